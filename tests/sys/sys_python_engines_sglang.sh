#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=30
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: what kvtier.sglang does beneath SGLang: pages come back as they were given, whatever the
# order of their values; every call is answered, whatever becomes of the daemon, and no page is
# touched after the answer.
# Method: python_engines_sglang.py: pools of the standard library alone in SGLang's orders, against
# a kvtierd of its own. The real SGLang: make test-engines.

exec "$(dirname "$0")/../lib/python.sh" python_engines_sglang.py
