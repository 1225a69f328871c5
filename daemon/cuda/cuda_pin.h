/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_pin.h - registers the host tier's memory in the context of one GPU, in the background while
 * that GPU serves. A thread of its own makes these calls, as one takes tens of milliseconds and all
 * of them take seconds; the GPU's thread goes on meanwhile.
 *
 *	OFF --cuda_pin_on(): the context was made--> ON: piece after piece is registered
 *	ON --cuda_pin_off(clean)--> LEAVING: the gate is shut; when no other GPU copies to them any
 *	      more its pieces are unregistered --> OFF
 *	LEAVING --cuda_pin_on(): the context is in use again--> ON
 *	ON, LEAVING --cuda_pin_off(lost)--> LOST: likewise, but no call is made: it would fail, and
 *	      the reset takes the registrations --> OFF
 *	OFF --the context is closed or reset--> cuda_pin_gone(): its pieces are FREE, and the pin
 *	      threads of other GPUs take them, as does its own thread in the next context
 *
 * Invariants
 *   T1 the context may be closed or reset in OFF only. Then no thread is in a call of the driver
 *      with it but the GPU's own, and no other GPU copies through its registrations.
 *   T2 LEAVING and LOST wait at most HOLD_NS for the others. If a GPU's copies do not end within
 *      HOLD_NS, its driver hangs. Its page tables keep the memory of others from it, so only that
 *      GPU's own context breaks then.
 *   T3 several GPUs register at the same time, each from another piece on; a piece is registered
 *      by one of them, and each may copy there (cuda_pins.h).
 *   T4 a piece that the driver refuses is left out, and tried again RETRY_NS later. After FAILS_MAX
 *      refusals in a row the rest is not tried before that time. Until all is registered the view
 *      says why not.
 *   T5 only memory that is faulted in already is registered: else the driver would do it, in one
 *      call and on one thread. Pieces that are not are looked at again and again (more and more
 *      seldom).
 */
#ifndef KVTIER_CUDA_PIN_H
#define KVTIER_CUDA_PIN_H

#include "cuda_load.h"
#include "cuda_pins.h"

struct cuda_pin;

struct cuda_pin_view {
	uint64_t bytes; /* registered in its context */
	char why[240];  /* not all of the tier is, and the remedy; "" */
};

/* Core, at start. news(arg): called from the pin thread, it has come to OFF, or the context is
 * broken. 0 or -ENOMEM. */
int cuda_pin_open(struct cuda_pins *pins, const struct cuda_api *api, void (*news)(void *arg),
		  void *arg, struct cuda_pin **ret);
/* In OFF. NULL is fine, here and in all that follows: nothing is registered then. */
void cuda_pin_close(struct cuda_pin *pin);

/* The GPU's thread, from here on. None of them waits for the driver. */
void cuda_pin_on(struct cuda_pin *pin, CUcontext context);
/* True: OFF. False: it will be, and `news` comes then. */
bool cuda_pin_off(struct cuda_pin *pin, bool lost);
void cuda_pin_gone(struct cuda_pin *pin);
/* The error of a call that broke the context, since the last cuda_pin_on(); CUDA_SUCCESS: none
 * did. */
CUresult cuda_pin_broken(struct cuda_pin *pin);
/* As cuda_pins_hold() and its drop (hold 0: nothing). */
uint32_t cuda_pin_hold(struct cuda_pin *pin, const uint8_t *at, uint32_t bytes);
void cuda_pin_drop(struct cuda_pin *pin, uint32_t hold);

/* Any thread. */
void cuda_pin_view(struct cuda_pin *pin, struct cuda_pin_view *ret);
/* Calls that it has made. A stop waits as long as they become more. */
uint64_t cuda_pin_calls(struct cuda_pin *pin);

#endif
