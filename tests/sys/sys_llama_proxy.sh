#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=30
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: behind the README's proxy, llama.cpp's server answers as it does without: completions, chats
# with tools and text in parts, streams. What it computed comes back after its restart, also what it
# computed for a client that has gone away.
# Method: llama_proxy_cases.py, against the real server of the xllamacpp wheel, and a kvtierd of its
# own. Skipped only where the wheels of engine and model are not there and cannot be had.

. "$(dirname "$0")/../lib/llama.sh"
exec "$python" -B "$tree/tests/sys/llama_proxy_cases.py"
