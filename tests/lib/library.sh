# SPDX-License-Identifier: Apache-2.0
# library.sh - sourced by scripts that load libkvtier into programs which were built without it.
# Sets tree and build (that in $BUILD, default: build), both absolute, and what a Python finds
# library, binding, demo and doubles by. If the library has a sanitizer in it, the script ends with
# exit status 77 and says so: the sanitizer's runtime must be the first library of a program.

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "${BUILD:-$tree/build}" && pwd)
if LC_ALL=C grep -qE '__(asan|tsan)_init' "$build/libkvtier.so.0"; then
	echo "skipped: libkvtier has a sanitizer in it, which the program that loads it has not"
	exit 77
fi
export BUILD=$build KVTIER_LIBRARY=$build/libkvtier.so.0
export PYTHONPATH=$tree/tests/sys:$tree/tests/engines:$tree/client/examples:$tree/client/python
