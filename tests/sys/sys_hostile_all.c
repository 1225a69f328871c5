/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_hostile_all.c - goal: while a client program does all kinds of harm at once, another client's
 * bytes are right and none of its ops fails. Method: lib_hostile.h beside an honest engine
 * (lib_hostile.h) for ten seconds. Longer: soak_hostile.c.
 */
#include "tests/lib/lib.h"
#include "tests/lib/lib_hostile.h"

TEST_DO(beside_a_hostile_client, hostile_beside("sys_hostile_all", 10));
