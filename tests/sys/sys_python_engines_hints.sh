#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=10
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: the kv_hints of a vLLM request do to blocks what daemon/HINTS.md says, and a wrong one does
# nothing else.
# Method: python_engines_hints.py: the scheduler and worker of python_engines.py, against a kvtierd
# of its own.

exec "$(dirname "$0")/../lib/python.sh" python_engines_hints.py
