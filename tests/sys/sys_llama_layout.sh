#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: seconds=8 no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: what kvtier believes of llama.cpp's state bytes is checked, and what differs is refused.
# Method: llama_layout.py, against the real llama.cpp and model, a dictionary in place of the
# daemon. Skipped only where the wheels of engine and model are not there and cannot be had.

. "$(dirname "$0")/../lib/llama.sh"
exec "$python" -B "$tree/tests/sys/llama_layout.py"
