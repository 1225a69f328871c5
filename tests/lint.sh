#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh [BUILD] - rules of the tree that no compiler checks: who may include whom, who may call whom
# (circles.py), the format (.clang-format, lines of 100 columns), how long files are; and cppcheck.
# Includes: daemon/base uses nobody; kernels and tiers use it and no other room of daemon/ or client/;
# libkvtier uses nothing of the daemon. In the daemon front is above op, and op above the other rooms.
set -u
cd "$(dirname "$0")/.." || exit 1
status=0
refuse() { ! "$@" || status=1; }
mapfile -t sources < <(find client daemon kernels tiers tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)
in_room() { printf '%s\n' "${sources[@]}" | grep -E "$1"; }

refuse grep -nE '#include "(daemon|tiers|kernels|client|tests)/' $(in_room '^daemon/base/')
refuse grep -nE '#include "(daemon/[^b]|client/|tests/)' $(in_room '^tiers/')
refuse grep -nE '#include "(daemon|tiers|client|tests)/' $(in_room '^kernels/')
refuse grep -nE '#include "daemon/front/' $(in_room '^daemon/[^/]*/' | grep -Ev '^daemon/(admin|front)/')
refuse grep -nE '#include "daemon/op/' $(in_room '^daemon/(shared|store|nvme|redis|device|config)/')
refuse grep -nE '#include "(daemon|tiers|kernels|tests)/' $(in_room '^client/([^/]*\.h|lib/.*)$')
build=${1:-build}
[ -x "$build/kvtierd" ] || make -j"$(nproc)" BUILD="$build" all || status=1
python3 tests/circles.py "$build" || status=1
python3 - "${sources[@]}" <<'END' || status=1
import sys
long = [f"{name}:{number}: {len(line.rstrip().expandtabs(8))} columns"
        for name in sys.argv[1:]
        for number, line in enumerate(open(name, encoding="utf-8"), 1)
        if len(line.rstrip().expandtabs(8)) > 100]
print(*long, sep="\n", end="\n" if long else "")
sys.exit(bool(long))
END
if command -v clang-format >/dev/null; then
	clang-format --dry-run -Werror "${sources[@]}" || status=1
else
	echo "lint: no clang-format here (apt-get install clang-format): the format was not checked"
fi
wc -l "${sources[@]}" | awk '$1 > 600 && $2 != "total" { print $2 ": more than 600 lines"; n++ } END { exit !!n }' || status=1
cppcheck --quiet --enable=warning,portability --inline-suppr \
	--suppress=arrayIndexOutOfBoundsCond:daemon/base/loop.c --error-exitcode=1 -D_GNU_SOURCE -I. \
	client daemon kernels tiers || status=1
exit $status
