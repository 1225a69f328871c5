#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=15
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: a vLLM request hits what only another node has stored: the scheduler waits until Redis was
# asked, once a request, not longer than it may, and only where the daemon has a Redis.
# Method: python_engines_nodes.py: kvtier.vllm over doubles of torch and of vLLM's classes, two
# kvtierd, a redis-server.

command -v redis-server >/dev/null || { echo "skipped: no redis-server"; exit 77; }
exec "$(dirname "$0")/../lib/python.sh" python_engines_nodes.py
