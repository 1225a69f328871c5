/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_pins.h - the host tier's memory as GPUs reach it: which pieces of it are registered with the
 * CUDA driver, in the context of which GPU, and which GPU copies there. A copy engine reaches
 * registered memory by itself; memory that is not registered is copied through a lane's bounce
 * buffer.
 *
 *	piece:	FREE --take--> TAKEN --give--> OWNED by a GPU, in whose context it is registered
 *		  ^^----give: refused--'         |
 *		  `----clear: unregistered, or its context is gone
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
 *   N1 a piece is whole slabs: no slot lies in two, as a copy must not cross a border of
 *      registrations. It has [host] pin_bytes at most, or is one slab.
 *   N2 only its owner's pin thread (cuda_pin.h) registers and unregisters a piece.
 *   N3 the holds of a GPU whose context is broken count no more: such a context runs nothing, and a
 *      late copy of its copy engine could reach memory only through that GPU's own page tables. So
 *      two GPUs that break at the same time do not wait for each other.
 */
#ifndef KVTIER_CUDA_PINS_H
#define KVTIER_CUDA_PINS_H

#include <stdbool.h>
#include <stdint.h>

struct cuda_pins;
struct mailbox;
struct tier;

/* Core, at start. 0 or -ENOMEM. Of the tier: it stays open until the last GPU has left. */
int cuda_pins_open(struct tier *host, uint64_t piece_bytes, struct cuda_pins **ret);
/* Each of these is ended by a cuda_pins_close(); the last one frees it. */
void cuda_pins_refer(struct cuda_pins *pins);
void cuda_pins_close(struct cuda_pins *pins); /* NULL is fine */
/* Core, at start: one GPU more, and how its pin thread hears of news: from any other one. Its
 * number. */
uint32_t cuda_pins_add(struct cuda_pins *pins, void (*news)(void *arg), void *arg);
/* Core, at a stop: it is told no more. No piece is taken from now on: the other GPUs need not
 * register memory that one GPU leaves. */
void cuda_pins_remove(struct cuda_pins *pins, uint32_t gpu);
void cuda_pins_stop(struct cuda_pins *pins);

/* A GPU's thread: it is about to copy from or to these bytes: > 0, and its owner waits for the
 * drop; 0: they are not registered, or not for long. */
uint32_t cuda_pins_hold(struct cuda_pins *pins, uint32_t gpu, const uint8_t *at, uint32_t bytes);
void cuda_pins_drop(struct cuda_pins *pins, uint32_t gpu, uint32_t hold);

/* Pin threads, from here on. */
uint32_t cuda_pins_pieces(const struct cuda_pins *pins);
uint8_t *cuda_pins_at(const struct cuda_pins *pins, uint32_t piece, uint64_t *ret_bytes);
/* All pages of the piece are there: registering it would not have to fault them in. */
bool cuda_pins_resident(const struct cuda_pins *pins, uint32_t piece);
/* The order in which a GPU takes them: each GPU begins somewhere else. n < cuda_pins_pieces(). */
uint32_t cuda_pins_nth(const struct cuda_pins *pins, uint32_t gpu, uint32_t n);
bool cuda_pins_is_free(struct cuda_pins *pins, uint32_t piece);
bool cuda_pins_take(struct cuda_pins *pins, uint32_t piece); /* false: it is not free */
void cuda_pins_give(struct cuda_pins *pins, uint32_t gpu, uint32_t piece, bool registered);
/* From `first` on, the next piece of a GPU; the number of pieces: it has none. */
uint32_t cuda_pins_next(struct cuda_pins *pins, uint32_t gpu, uint32_t first);
void cuda_pins_clear(struct cuda_pins *pins, uint32_t gpu, uint32_t piece);
/* broken: of a gate that is shut: nothing of the GPU runs any more */
void cuda_pins_gate(struct cuda_pins *pins, uint32_t gpu, bool open, bool broken);
bool cuda_pins_held(struct cuda_pins *pins, uint32_t gpu); /* others copy to its pieces */
/* Pieces are free that were not: all pin threads hear of it. */
void cuda_pins_tell(struct cuda_pins *pins);

/* Any thread: bytes that are registered, in the context of one GPU and of all; and of the tier. */
uint64_t cuda_pins_bytes(const struct cuda_pins *pins, uint32_t gpu, uint64_t *ret_registered,
			 uint64_t *ret_all);

#endif
