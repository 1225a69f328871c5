#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=15 no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: the adapters keep their contract with an engine: it gets the bytes that it gave, or fewer, and never an
# exception, whatever becomes of the daemon; and what an adapter cannot serve is computed without kvtier.
# Method: python_engines.py: engines of the standard library alone, against a kvtierd of its own. The real engines:
# make test-engines.

tree=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${BUILD:-$tree/build}" && pwd)

# Sanitizers' runtimes must be the first library of a program, and Python is not built with them.
if LC_ALL=C grep -qE '__(asan|tsan)_init' "$build/libkvtier.so.0"; then
	echo "skipped: libkvtier has a sanitizer in it, which Python cannot load"
	exit 77
fi
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || {
	echo "skipped: no Python 3.10 or newer"
	exit 77
}
exec env KVTIER_LIBRARY="$build/libkvtier.so.0" python3 -B "$tree/tests/sys/python_engines.py" "$build"
