/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_fiber.h - stacks of one thread of the host, between which it switches. A stack ends at an
 * inaccessible page. Nothing is unwound: a fiber that is not gone on with is forgotten.
 */
#pragma once

#include <stdint.h>

struct fiber {
	void *stack; /* where it stands */
};

/* n fibers of this thread of the host, kept until it ends; NULL: no memory. */
struct fiber *fibers_of_thread(uint32_t n);
/* The next switch to it calls entry(), which must not return. */
void fiber_start(struct fiber *fiber, void (*entry)(void));
/* Leaves *from where it stands, and goes on with *to. */
void fiber_switch(struct fiber *from, const struct fiber *to);
