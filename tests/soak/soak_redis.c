/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * soak_redis.c - goal: a Redis that stands still under full write load costs no memory beyond the
 * configured, and no load of a node's own blocks. Method: two nodes that store as fast as they can
 * while their Redis is stopped, for SOAK_SECONDS (600); resident memory and bytes are looked at all
 * the time. Not part of `make test`, where sys_redis_trouble does the same for a shorter time.
 */
#include "tests/lib/lib_shared.h"

TEST_DO(a_flood_while_it_is_stopped, shared_flood((uint32_t)env_number("SOAK_SECONDS", 600)));

TEST_FIRST(redis_needed());
