#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=30
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: KvtierConnector keeps its contract with vLLM: lookups plan nothing, each load and save is
# told of once, blocks that did not come are named, blocks are read before they are freed, and
# nothing raises into the engine.
# Method: python_engines_vllm.py: kvtier.vllm over doubles of torch and of vLLM's classes
# (vllm_double.py), a kvtierd of its own, memory of the CPU. The real vLLM: make test-engines.

exec "$(dirname "$0")/../lib/python.sh" python_engines_vllm.py
