#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# soak.sh BUILD - the tests of kind soak, one after the other: over an hour of operations, kills,
# outages, lies and a hostile client, in which nothing may grow or be lost. Then tests of kind gpu
# whose order a seed draws, each at GPU_SEEDS (20) seeds: `make test` has one, with fewer
# STEPS.
set -eu
cd "$(dirname "$0")/.."
names=$(basename -s .c tests/soak/soak_*.c)
seeded="gpu_cut gpu_random gpu_tier_random gpu_client_kill"
make -j"$(nproc)" BUILD="$1" tests TEST="$seeded gpu_verify"
make -j"$(nproc)" BUILD="$1" all $(printf "$1/tests/%s " $names)
for name in $names; do "$1/tests/$name"; done
tests/first-day.sh "$1" --emulated
for seed in $(seq 1 "${GPU_SEEDS:-20}"); do
	for name in $seeded; do SEED=$seed STEPS=60 "$1/tests/$name"; done
	SEED=$seed "$1/tests/kvt" tests/gpu/gpu_verify.kvt
done
