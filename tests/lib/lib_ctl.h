/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_ctl.h - shared by unit_ctl*.c: the real ctl.c and loop.c in a daemon whose other modules
 * are faked, with knobs, and an asker in a second thread. A test names in its fact `wrap` the
 * functions that it wants faked.
 *
 * The knobs are set before admin_with_loop() and read after it; in between the loop's thread owns
 * them, but for the knobs marked as shared.
 */
#pragma once

#include "daemon/config/config.h"
#include "daemon/kvtierd.h"
#include "test.h"

extern struct fake_modules {
	uint32_t clients, spaces;
	uint64_t blocks;       /* of 1,000 bytes each, in the host tier */
	uint32_t slices;       /* mover calls */
	int start;             /* the result of starting a flush, purge or verify */
	int status;            /* how it ends */
	bool never;            /* it does not end */
	uint32_t looks;        /* how often a verify was asked how far it is */
	uint32_t looks_needed; /* until it is done */
	uint32_t bad;          /* blocks, all found at the end */
	bool drop;             /* the verify's argument */
	char tenant[32];       /* that was purged */
	uint32_t disks, endpoints;
	uint32_t begun, ended, canceled; /* shared: relaxed */
} fake;

extern struct heard {
	char text[4 << 20];
	int packets, told;  /* told: how many of them said how far it is */
	char progress[256]; /* the last of them */
} heard;

extern struct kvtierd admin_daemon;
extern struct config admin_config;

/* Around a case. */
int admin_set_up(void **unused);
int admin_tear_down(void **unused);
/* Ends admin_daemon.ctl as the daemon does: its sockets are closed when this returns. */
void admin_close(void);
/* Runs the loop until `fn`, in a thread of its own, has returned. */
void admin_with_loop(void (*fn)(void));
/* The same; `fn` has a connection to the admin socket, which is closed when it has returned. */
void admin_asks(void (*fn)(int fd));
/* A case that is the body of such a `fn`, in a daemon as the statements make it. */
#define ADMIN_CASE(name, ...)                                \
	static void name##_asks(int fd);                     \
	TEST_DO(name, __VA_ARGS__; admin_asks(name##_asks)); \
	static void name##_asks(int fd)
/* In that thread: a connection to the admin socket. */
int admin_dial(void);
/* A whole reply into `heard`. Returns the first byte of its last packet, 0 when it was cut off. */
char admin_hear(int fd);
char admin_ask(int fd, const char *words, size_t n);
#define ASK(fd, words) admin_ask(fd, words, sizeof(words) - 1)
/* Asserts that the reply has these words. */
void admin_says(const char *words);
/* How many rows of this name the reply has, which must be JSON. */
size_t admin_rows(const char *name);
