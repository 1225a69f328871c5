#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=15
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: PrefixCache keeps its contract with transformers: a prompt is continued from the very KV
# that any process computed of it, with the same answer; a model that was changed is another one;
# calls that are not served are computed, models that are not are refused.
# Method: python_engines_transformers.py: kvtier.transformers over doubles of torch and of a
# DynamicCache (transformers_double.py), a kvtierd of its own. The real one: make test-engines.

exec "$(dirname "$0")/../lib/python.sh" python_engines_transformers.py
