/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_hostile_wire.h - the wire protocol for lib_hostile.c: connections that may be refused, cut or
 * left at any step. Nothing waits for longer than 200 ms, nothing asserts.
 */
#ifndef KVTIER_TESTS_LIB_HOSTILE_WIRE_H
#define KVTIER_TESTS_LIB_HOSTILE_WIRE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/wire.h"
#include "random.h"

/* Pages [page][layer][K|V][token][head][dim] of BF16; with a token stride,
 * [page][layer][token] with K and V of a token in either half of it. */
struct evil_layout {
	uint32_t layers, heads, dim, tokens, pages;
	uint64_t token_stride; /* 0: close together */
	bool touched;          /* its memory is there before the daemon sees it */
	bool fp8;              /* else raw; touched with values that fp8 holds */
};

struct evil {
	int fd; /* -1: not connected */
	uint32_t seq;
	struct wire_hello_ok ok;
	struct wire_submit *submit;
	const struct wire_complete *complete;
	uint32_t space, n_pages;
	int memory; /* of the space's region, or -1 */
	uint8_t *pages;
	size_t bytes;
	uint64_t model; /* which space it is; 0: the usual one */
	uint64_t op_id, key;
	bool starves; /* takes no completions */
	atomic_bool stop;
	struct random random;
};

void evil_init(struct evil *e, uint64_t seed);
void evil_close(struct evil *e);      /* twice is fine */
int evil_connect(const char *socket); /* a descriptor or -errno */
int evil_dial(struct evil *e, const char *socket);
/* These wait for no answer. */
int evil_hello_with(struct evil *e, const int *fds, size_t n);
int evil_space_over(struct evil *e, const struct evil_layout *layout, const int *fds, size_t n);
int evil_ring_with(struct evil *e, const int *fds, size_t n);
int evil_hello(struct evil *e);
int evil_open(struct evil *e, const char *socket); /* dial, hello */
int evil_space(struct evil *e, const struct evil_layout *layout);
void evil_ring(struct evil *e);
/* a request that is refused; nobody reads the refusal */
void evil_ask_nonsense(struct evil *e);
bool evil_is_cut(struct evil *e); /* reads, and forgets, the daemon's messages */
/* As many ops as the ring takes; how many. Stores of new keys and loads of some stored before. */
uint64_t evil_push_blocks(struct evil *e);
uint64_t evil_push_nops(struct evil *e);

int evil_memfd(uint64_t bytes, int seals);
uint64_t evil_now_ns(void);
void evil_nap_us(uint32_t us);

#endif
