#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# soak.sh BUILD - the tests of kind soak, one after the other: over an hour of operations, kills,
# outages, lies and a hostile client, in which nothing may grow or be lost.
set -eu
cd "$(dirname "$0")/.."
names=$(basename -s .c tests/soak/soak_*.c)
make -j"$(nproc)" BUILD="$1" all $(printf "$1/tests/%s " $names)
for name in $names; do "$1/tests/$name"; done
