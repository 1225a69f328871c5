#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# python.sh -m unittest -v NAME[.CASE] - runs Python, which loads libkvtier, on the build in $BUILD
# (default: build): all cases of a test, or this one. Exit status 77, and why, where that cannot be.

. "$(dirname "$0")/library.sh"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || {
	echo "skipped: no Python 3.10 or newer"
	exit 77
}
exec python3 -B "$@"
