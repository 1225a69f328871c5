/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_space.h - spaces in a state directory of their own, and a table of blocks that is an array of
 * counts. For cmocka tests.
 */
#ifndef KVTIER_TESTS_LIB_SPACE_H
#define KVTIER_TESTS_LIB_SPACE_H

#include <stdbool.h>

#include "daemon/store/space.h"
#include "lib_scratch.h"
#include "test.h"

enum { MAX = 64, NUMBERS = MAX + MAX / 2 + 64 };

struct home {
	char dir[SCRATCH_BYTES];
	struct spaces *spaces;
	uint32_t blocks[NUMBERS];        /* that a number has, as block.c would say */
	uint8_t index_keys[NUMBERS][16]; /* as given to block.c */
	bool doomed[NUMBERS];            /* likewise */
};

extern char home_text[256]; /* for the sentence of a call that fails */

/* Around a case: *state is a home with the tenant "default". */
int home_set_up(void **state);
int home_tear_down(void **state);
/* The spaces of w->dir, as after a restart: the tenant "default", no table of blocks. */
void home_open(struct home *w);
/* 2 layers, 2 heads x 32, 16 tokens, BF16, of the model "m@1". */
struct wire_geometry home_geometry(void);

#endif
