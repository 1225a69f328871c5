#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=15
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: the adapters keep their contract with an engine: it gets the bytes that it gave, or fewer,
# and never an exception, whatever becomes of the daemon; and what an adapter cannot serve is
# computed without kvtier.
# Method: python_engines.py: engines of the standard library alone, against a kvtierd of its own.
# The real engines: make test-engines.

exec "$(dirname "$0")/../lib/python.sh" python_engines.py
