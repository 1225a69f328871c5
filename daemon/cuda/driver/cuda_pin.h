/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_pin.h - registers the host tier's memory with the CUDA driver, piece by piece: it knows in
 * the context of which GPU each piece is registered, and which GPU copies there. A copy engine
 * reaches registered memory by itself; memory that is not registered is copied through a lane's
 * bounce buffer. A thread for each GPU registers pieces, in the background while the GPU serves:
 * one call takes tens of milliseconds, and all of them take seconds.
 *
 *	piece:	FREE --take--> TAKEN --give--> OWNED by a GPU, in whose context it is registered
 *		  ^^----give: refused--'         |
 *		  `----clear: unregistered, or its context is gone
 *
 *	a GPU's pin thread:
 *	OFF --cuda_pin_on(): the context was made--> ON: piece after piece is registered
 *	ON --cuda_pin_off(clean)--> LEAVING: the gate is shut; when no other GPU copies to them any
 *	      more its pieces are unregistered --> OFF
 *	LEAVING --cuda_pin_on(): the context is in use again--> ON
 *	ON, LEAVING --cuda_pin_off(lost)--> LOST: the same, but no call is made: it would fail, and
 *	      the reset takes the registrations --> OFF
 *	OFF --the context is closed or reset--> cuda_pin_gone(): its pieces are FREE, and the pin
 *	      threads of other GPUs take them, as does its own thread in the next context
 *
 * A piece is registered PORTABLE, so each GPU may copy there. So a thread that takes the
 * registration back (its owner's context is closed, or reset since it was lost) must know that no
 * other GPU copies there. A GPU's thread holds a piece from the moment it decides to copy there
 * until the copy has ended. Each owner has a gate:
 *
 *	GPU that copies:  count the hold; look whether the gate is open and the piece still the
 *			  owner's; if not, take the hold back and use the bounce buffer
 *	owner:		  shut the gate; wait until the holds of the others are 0
 *
 * Each of the two writes before it reads (sequentially consistent), so one of them sees the other.
 *
 * Invariants
 *   T1 the context may be closed or reset in OFF only. Then no thread is in a call of the driver
 *      with it but the GPU's own, and no other GPU copies through its registrations.
 *   T2 LEAVING and LOST wait at most HOLD_NS for the others. A GPU whose copies do not end is given
 *      up before that (cuda_gpu.c) and then holds nothing (T7), so HOLD_NS ends the wait only where
 *      the other GPU's thread hangs in a call of the driver. That GPU's page tables keep the memory
 *      of others from it, so only its own context breaks then.
 *   T3 several GPUs register at the same time, each from another piece on; a piece is registered
 *      by one of them, and only its owner's pin thread registers and unregisters it.
 *   T4 a piece that the driver refuses is left out, and tried again RETRY_NS later. After FAILS_MAX
 *      refusals in a row the rest is not tried before that time. Until all is registered the view
 *      says why not.
 *   T5 only memory that is faulted in already is registered: else the driver would do it, in one
 *      call and on one thread. Pieces that are not are looked at again and again (more and more
 *      seldom).
 *   T6 a piece is whole slabs: no slot lies in two, as a copy must not cross a border of
 *      registrations. It is a 32nd of the memory, 64 MiB at most, or one slab: a driver may keep
 *      its other calls waiting while it registers.
 *   T7 the holds of a GPU whose context is broken count no more: such a context runs no copy, and a
 *      late copy of its copy engine could reach memory only through that GPU's own page tables. So
 *      two GPUs that break at the same time do not wait for each other.
 */
#pragma once

#include "cuda_load.h"

struct cuda_pin;  /* of one GPU */
struct cuda_pins; /* of all of them */
struct tier;

/* Core, at start. 0 or -ENOMEM. The tier must stay open until the last GPU has left. */
int cuda_pins_open(struct tier *host, struct cuda_pins **ret);
/* Says that no GPU comes any more. The struct is freed when the last GPU has left. May be NULL. */
void cuda_pins_close(struct cuda_pins *pins);
/* Core, at a stop. From now on no piece is taken, so that the other GPUs do not register the memory
 * that one GPU leaves. */
void cuda_pins_stop(struct cuda_pins *pins);

/* Core, at start. news(arg) is called on the pin thread when it has come to OFF, or when the
 * context is broken. 0 or -ENOMEM. */
int cuda_pin_open(struct cuda_pins *pins, const struct cuda_api *api, void (*news)(void *arg),
		  void *arg, struct cuda_pin **ret);
/* May be called in OFF. The pin may be NULL, here and in all that follows: then no memory is
 * registered. */
void cuda_pin_close(struct cuda_pin *pin);

/* These functions are the GPU's thread's, and do not wait for the driver. */
void cuda_pin_on(struct cuda_pin *pin, CUcontext context);
/* True: OFF. False: it will be, and `news` comes then. */
bool cuda_pin_off(struct cuda_pin *pin, bool lost);
void cuda_pin_gone(struct cuda_pin *pin);
/* The error of the call that has broken the context since the last cuda_pin_on(); CUDA_SUCCESS: no
 * call has. */
CUresult cuda_pin_broken(struct cuda_pin *pin);
/* The GPU is about to copy from or to these bytes. > 0: they are registered, and their owner waits
 * for the drop. 0: they are not registered, or will not be for long. */
uint32_t cuda_pin_hold(struct cuda_pin *pin, const uint8_t *at, uint32_t bytes);
void cuda_pin_drop(struct cuda_pin *pin, uint32_t hold); /* may be 0 */

/* Any thread. The bytes that are registered in its context. ret_why says why not all of the tier
 * is, and what helps; or "". */
uint64_t cuda_pin_bytes(struct cuda_pin *pin, char *ret_why, size_t n);
/* How many calls it has made. A stop waits as long as this number grows. */
uint64_t cuda_pin_calls(struct cuda_pin *pin);
