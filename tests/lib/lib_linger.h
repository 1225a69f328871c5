/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_linger.h - TCP sockets whose close() waits, as a hostile client sends them: with data that
 * the peer does not take, and SO_LINGER.
 */
#pragma once

#include <stdint.h>

/* LINGER_S: longer than all that a test does meanwhile. */
enum { LINGER_S = 120, LINGER_MAX = 64 };

struct lingers {
	int listener;
	uint32_t n;
	int peers[LINGER_MAX];
};

void lingers_begin(struct lingers *l);
/* close() of its last reference waits LINGER_S, or until lingers_reset(). */
int lingers_add(struct lingers *l);
void lingers_reset(struct lingers *l); /* from now on close() of these does not wait */
void lingers_end(struct lingers *l);
