#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=15
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: KvtierCache keeps its contract with llama-cpp-python: a prompt is continued from what any
# process computed of it, with the same answer; nothing is stored under another prompt's key, and no
# exception reaches the engine.
# Method: python_engines_llama.py: doubles of llama-cpp-python and of llama.cpp's memory, a kvtierd
# of its own. The real llama.cpp: sys_llama_layout; the real llama-cpp-python: make test-engines.

exec "$(dirname "$0")/../lib/python.sh" python_engines_llama.py
