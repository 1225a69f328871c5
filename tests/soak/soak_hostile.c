/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soak_hostile.c - as sys_hostile_all.c, for SOAK_SECONDS (600). Not part of `make test`.
 */
#include "tests/lib/lib.h"
#include "tests/lib/lib_hostile.h"

TEST_DO(beside_a_hostile_client,
	hostile_beside("soak_hostile", (uint32_t)env_number("SOAK_SECONDS", 600)));
