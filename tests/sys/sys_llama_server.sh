#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=65
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: what a slot of llama.cpp's server computed is restored into a slot of another process of it,
# but not where it computes other KV; the README's program does so as it is written; and the server
# answers every request, whatever becomes of the daemon: it is stopped or killed before, while and
# after it has a load or a store.
# Method: llama_server_cases.py, against the real server of the xllamacpp wheel, and a kvtierd of
# its own. Skipped only where the wheels of engine and model are not there and cannot be had.

. "$(dirname "$0")/../lib/llama.sh"
exec "$python" -B "$tree/tests/sys/llama_server_cases.py"
