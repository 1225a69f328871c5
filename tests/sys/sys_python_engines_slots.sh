#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=10
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: whatever is behind a SlotCache's URL may change at any time, and no KV of before is
# restored: scales of adapters, another server, model, context or rope. Requests with a key, with
# parts of text and streams are served; what is not served says why.
# Method: python_engines_slots.py: a double of llama.cpp's server, whose answers depend on each byte
# of the KV that a slot holds, and a kvtierd of its own. The real server: sys_llama_server.

exec "$(dirname "$0")/../lib/python.sh" python_engines_slots.py
