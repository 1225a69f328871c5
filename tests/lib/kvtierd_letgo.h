/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierd_letgo.h - memory that a test shares with kvtierd_letgo.c: which thread of the daemon lets
 * go of big memory of a client, and when it may go on. The file that LETGO_PATH names begins
 * zeroed.
 */
#pragma once

#include <stdatomic.h>

#define LETGO_PATH "KVTIER_TEST_LETGO"
/* Smaller mappings and memfds are not looked at; the daemon has none so big of its own that it
 * gives up while it serves. */
enum { LETGO_BYTES = 32 << 20 };

struct letgo {
	atomic_uint by_core, by_helpers; /* close() of a memfd, munmap(), begun */
	atomic_uint ended;               /* of both */
	atomic_bool hold;                /* the test: helpers wait before each */
};
