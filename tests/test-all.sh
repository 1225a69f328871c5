#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test-all.sh - make lint, the tests under the sanitizers, and everything compiled by clang.
set -eu
cd "$(dirname "$0")/.."
ALSO="clang-format cppcheck" tests/deps.sh
make lint
for variant in SAN=address,undefined SAN=thread "CC=clang BUILD=build-clang"; do
	make -j"$(nproc)" tests $variant
done
# With a sanitizer the tests that wait compute, too.
JOBS=${JOBS:-$(nproc)} WAITERS=${WAITERS:-3} exec tests/run.sh build-address build-thread
