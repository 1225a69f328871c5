#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=20
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: KvtierStorage and KvtierLinker keep their contract with SGLang: pages come back as they were
# given, in every layout; what is wrong (options, pools, calls, a daemon) is False, one line and a
# count; nothing raises, nothing hangs.
# Method: python_engines_hicache.py: kvtier.sglang over doubles of torch and of SGLang's classes and
# layouts (sglang_double.py), a kvtierd of its own, memory of the CPU. The real SGLang: make
# test-engines.

exec "$(dirname "$0")/../lib/python.sh" python_engines_hicache.py
