/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_space.h - spaces in a state directory of their own, and counts of their blocks. For
 * cmocka tests.
 */
#pragma once

#include "daemon/table/space.h"
#include "daemon/table/space_counts.h"
#include "lib_scratch.h"
#include "test.h"

enum { MAX = 64, NUMBERS = MAX + MAX / 2 + 64 };

struct home {
	char dir[SCRATCH_BYTES];
	struct spaces *spaces;
	struct quota quota;
	struct space_counts *counts; /* as the table of blocks would have them */
};

extern char home_text[256]; /* for the sentence of a call that fails */

/* Around a case: a home with the tenant "default". */
extern struct home home;
int home_set_up(void **state);
int home_tear_down(void **state);
/* The spaces of home.dir, as after a restart: the tenant "default", no table of blocks. */
void home_open(void);
/* The blocks that carry a number; all of them are to go. */
uint32_t home_blocks(uint32_t space);
void home_set_blocks(uint32_t space, uint32_t n);
bool home_doomed(uint32_t space);
/* 2 layers, 2 heads x 32, 16 tokens, BF16, of the model "m@1". */
struct wire_geometry home_geometry(void);
