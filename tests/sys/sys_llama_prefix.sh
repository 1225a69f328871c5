#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: seconds=25 no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: a real engine's prefix outlives the engine. A 192-token prefix computed by one llama.cpp process and
# stored raw comes back in another after the first was killed, with logits equal bit for bit; FP8 halves the
# bytes; an engine whose daemon is killed under it still answers; after both were killed the prefix comes back
# from NVMe, equal bit for bit again; a second node that shares a Redis has it from there, and a Redis that is killed
# under it costs the hit alone. Needs 8 GiB of disk that take O_DIRECT under the build directory.
# Method: the demo with a shorter document and answer and less memory, in directories of its own; it exits 1 when one
# of these fails. Skipped only where the wheels of engine and model are not there and cannot be had.

tree=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${BUILD:-$tree/build}" && pwd)

# Sanitizers' runtimes must be the first library of a program, and Python is not built with them.
if LC_ALL=C grep -qE '__(asan|tsan)_init' "$build/libkvtier.so.0"; then
	echo "skipped: libkvtier has a sanitizer in it, which Python cannot load"
	exit 77
fi
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
exec "$python" -B "$tree/client/examples/llama_demo.py" --build "$build" --work "$build/test-llama-prefix" \
	--prefix-tokens 192 --answer-tokens 8 --host-bytes 256M
