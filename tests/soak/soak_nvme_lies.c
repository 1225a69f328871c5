/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soak_nvme_lies.c - as the last case of sim_nvme_lies.c, for SOAK_SECONDS (600): a disk whose
 * every eighth I/O is a lie. Not part of `make test`.
 */
#include "tests/lib/lib.h"
#include "tests/lib/lib_nvme_lies.h"

static uint64_t seed;

TEST_DO(many_lies,
	lies_by_chance(seed, 1, now_ns() + env_number("SOAK_SECONDS", 600) * 1000000000ull));

TEST_FIRST(seed = random_seeded("soak_nvme_lies").state);
