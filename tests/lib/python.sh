#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# python.sh FILE - runs tests/sys/FILE, which loads libkvtier into Python, on the build in $BUILD (default: build).
# Exit status 77, and why, where that cannot be.

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
exec env KVTIER_LIBRARY="$build/libkvtier.so.0" python3 -B "$tree/tests/sys/$1" "$build"
