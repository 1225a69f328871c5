#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# python.sh FILE - runs tests/sys/FILE, which loads libkvtier into Python, on the build in $BUILD
# (default: build). Exit status 77, and why, where that cannot be.

. "$(dirname "$0")/library.sh"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || {
	echo "skipped: no Python 3.10 or newer"
	exit 77
}
exec env KVTIER_LIBRARY="$build/libkvtier.so.0" python3 -B "$tree/tests/sys/$1" "$build"
