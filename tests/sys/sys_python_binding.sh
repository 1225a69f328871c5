#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: the Python binding says what libkvtier says: bytes, statuses, errors, lifetimes.
# Method: python_binding.py, the standard library alone, against a kvtierd of its own on embedded
# defaults.

exec "$(dirname "$0")/../lib/python.sh" python_binding.py
