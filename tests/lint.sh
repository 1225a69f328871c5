#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh [BUILD] - rules of the tree that no compiler checks: which room includes which (rooms.py),
# which file calls which (circles.py), which header declares what (headers.py), how wide lines and
# how long files are (columns.py), the format (.clang-format), waits by the wall clock, whether
# FAULTS.md has each fault; and cppcheck.
set -u
cd "$(dirname "$0")/.." || exit 1
status=0
mapfile -t sources < <(find client daemon kernels tiers tests \
	-name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)
build=${1:-build}
for program in clang-format cppcheck; do
	command -v $program >/dev/null ||
		{ echo "lint: no $program here: apt-get install $program"; exit 1; }
done
make -j"$(nproc)" BUILD="$build" all >/dev/null || status=1
python3 tests/rooms.py || status=1
python3 tests/circles.py "$build" || status=1
python3 tests/headers.py "$build" || status=1
python3 tests/columns.py || status=1
clang-format --dry-run -Werror "${sources[@]}" || status=1
# A wait until a deadline goes by CLOCK_MONOTONIC, which nobody sets (daemon/base/thread.h).
wall=$(grep -rnE 'pthread_timedjoin_np\(|sem_timedwait\(|pthread_(mutex|rwlock)_timed[a-z]*lock\(' \
	client daemon tiers --include='*.[ch]'
	grep -rl 'pthread_cond_timedwait(' client daemon tiers --include='*.[ch]' |
		xargs grep -n 'pthread_cond_init(')
if [ -n "$wall" ]; then
	echo "$wall"
	echo "lint: a wait by the wall clock, see daemon/base/thread.h"
	status=1
fi
# Each test of a fault has an entry in FAULTS.md, and each test that it names is there.
for test in tests/{regr,fault,soak,fuzz}/*.c tests/sys/sys_hostile_*.c; do
	grep -qw "$(basename "$test" .c)" tests/FAULTS.md ||
		{ echo "$test: no entry in tests/FAULTS.md"; status=1; }
done
kinds='(unit|fault|sim|fuzz|regr|sys|gpu|soak)'
for test in $(grep -owE "${kinds}_[a-z0-9_]+" tests/FAULTS.md | sort -u); do
	compgen -G "tests/${test%%_*}/$test.*" >/dev/null ||
		{ echo "tests/FAULTS.md: no test $test"; status=1; }
done
cppcheck --quiet --enable=warning,portability --inline-suppr \
	--suppress=arrayIndexOutOfBoundsCond:daemon/base/loop.c --error-exitcode=1 \
	-D_GNU_SOURCE -I. client daemon kernels tiers || status=1
exit $status
