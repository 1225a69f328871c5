#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: seconds=25 no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: a real engine's prefix outlives the engine. A 128-token prefix computed by one llama.cpp
# process and stored raw comes back in another after the first was killed, with logits equal bit for
# bit, and in fewer bytes from a lossless space; FP8 halves the bytes; an engine whose daemon is
# killed under it still answers; after both were killed the prefix comes back from NVMe, equal bit
# for bit again; a second node that shares a Redis has it from there, and a Redis that is killed
# under it costs the hit alone. Needs 1 GiB of disk that take O_DIRECT under the build directory.
# Method: the demo with a shorter document and answer and less memory, in directories of its own; it
# exits 1 when one of these fails. Skipped only where the wheels of engine and model are not there
# and cannot be had.

. "$(dirname "$0")/../lib/llama.sh"
exec "$python" -B "$tree/client/examples/llama_demo.py" \
	--build "$build" --work "$build/test-llama-prefix" \
	--prefix-tokens 128 --answer-tokens 4 --host-bytes 128M --nvme-bytes 1G
