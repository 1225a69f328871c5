#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=10
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: a request with an adapter (LoRA) hits blocks of the same weights alone, and vLLM's KV is
# kept under the name of the weights that it computed with, though a hub's branch moves on.
# Method: python_engines_adapters.py: kvtier.vllm over doubles of torch and of vLLM's classes
# (vllm_double.py), a kvtierd of its own, a directory that looks as the cache of huggingface_hub.

exec "$(dirname "$0")/../lib/python.sh" python_engines_adapters.py
