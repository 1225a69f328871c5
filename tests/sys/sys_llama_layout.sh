#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: seconds=8 no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: what kvtier believes of llama.cpp's structs and state bytes is checked, and what differs is refused.
# Method: llama_layout.py, against the real llama.cpp and model, a dictionary in place of the daemon.
# Skipped only where the wheels of engine and model are not there and cannot be had.

tree=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${BUILD:-$tree/build}" && pwd)

[ "$(uname -m)" = x86_64 ] || {
	echo "skipped: llama.cpp's struct layouts can be checked on x86-64 only"
	exit 77
}
python=$("$tree/client/examples/venv.sh" "$build") || {
	[ $? -eq 77 ] || exit 1
	echo "skipped: the wheels of engine and model cannot be had (see above)"
	exit 77
}
export OMP_WAIT_POLICY=passive	# two threads that spin at each barrier keep other tests from the cores
exec "$python" -B "$tree/tests/sys/llama_layout.py"
