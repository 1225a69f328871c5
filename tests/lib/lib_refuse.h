/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_refuse.h - the n-th call of a function fails; and counts of descriptors and mappings that
 * this process holds.
 *
 * The linker puts a test's __wrap_NAME() in front of each call of NAME() (fact `wrap=NAME`, see
 * README.md); REFUSABLE writes such a function. A test gives its functions numbers, which the plan
 * names. Any thread may call a wrapped function; one thread makes the plan.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>

#include "wrap.h"

enum {
	REFUSE_ANY = -1,    /* whichever of the functions comes */
	REFUSE_MMAP = 1000, /* mmap() as lib_refuse_maps.c wraps it */
	REFUSE_FOREVER = 1 << 30,
};

/* The n-th call (1...) of `call` fails with `error`, and so do the calls behind it: `times` in
 * all. */
void refuse(int call, int n, int times, int error);
void refuse_nothing(void);
bool refuse_came(void); /* all the failures of the plan have been */

/* For wrappers. 0, or the errno that this call fails with, in errno too. */
int refused(int call);

#define REFUSABLE(call, fails_with, type, name, params, args)             \
	REAL(type, name, params)                                          \
	{                                                                 \
		return refused(call) ? (fails_with) : __real_##name args; \
	}

/* --- counts --- */

int descriptors_open(void);
/* Mappings made less mappings taken away, by code that the test links: facts `wrap=mmap,munmap`. */
extern int mappings_open;
