/* SPDX-License-Identifier: Apache-2.0 */
/* host_block.h - a block that runs: shared by host_block.c, host_meet.c and host_shared.c alone. */
#pragma once

#include <stdbool.h>

#include "host_fiber.h"
#include "host_kernel.h"

enum {
	HOST_WARP = 32,
	HOST_WARPS = HOST_KERNEL_THREADS / HOST_WARP,
	HOST_BARRIERS = 16,
	HOST_WORDS = 128,
	HOST_TEXT = 240,
};

enum host_state { HOST_READY, HOST_AT_SHUFFLE, HOST_AT_BARRIER, HOST_ENDED };

/* A thread's knowledge of the others at its last barrier. Threads that met there share one. */
struct host_clock {
	uint32_t users;
	uint32_t seen[HOST_KERNEL_THREADS];
};

struct host_thread {
	struct fiber *fiber;
	enum host_state state;
	uint32_t mask, value, received, from, site; /* of the shuffle */
	uint32_t shuffles;                          /* so far: all of a warp have as many */
	uint32_t barrier, threads;                  /* of the barrier */
	struct host_clock *clock;                   /* NULL: it has met nobody */
	uint32_t now; /* its own time: barriers that it has passed, plus 1 */
};

/* A word of shared memory: its last writer and its readers since, with their times. */
struct host_word {
	const uint32_t *address;
	uint32_t writer, written; /* written 0: never */
	uint32_t *read;           /* of each thread; 0: not */
};

struct host_block {
	const struct host_kernel *kernel;
	const struct host_launch *launch;
	struct fiber caller;
	struct host_thread *threads;
	uint32_t n, running; /* the thread that runs */
	uint32_t *ready;     /* threads that can run, in no order */
	uint32_t n_ready, n_ended;
	uint32_t waiting[HOST_BARRIERS];                   /* threads at each barrier */
	uint32_t shuffling[HOST_WARPS], ended[HOST_WARPS]; /* lanes of each warp: in that state */
	struct host_word words[HOST_WORDS];
	uint32_t n_words;
	uint64_t random;
	int result; /* of the launch: 0, or the first mistake, which text says */
	char *text;
	size_t text_bytes;
};

extern _Thread_local struct host_block *host_block __attribute__((tls_model("initial-exec")));

uint64_t host_random(void);
/* The running thread has stopped; another goes on. */
void host_stop(enum host_state state);
void host_yield(void);
/* Can run again. */
void host_resume(uint32_t thread);
/* The first mistake: the launch ends. Does not return to the thread that made it. */
_Noreturn void host_fail(int result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Nobody can go on: says why, in `text`. */
void host_describe_deadlock(const struct host_block *b, char *text, size_t n);
/* Ends a block's shared memory. */
void host_shared_end(struct host_block *b);
/* Threads [first, first + n) have met. */
void host_shared_met(struct host_block *b, const uint32_t *threads, uint32_t n);
