/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_hostile.h - a hostile client program: a process that does to a daemon all that a client can,
 * over and over. It is for tests and for kvtier-bench, so it asserts nothing: after a refusal or a
 * cut it begins again.
 *
 * It has three threads, each with one connection at a time (hostile_hold takes many for a moment):
 *	jobs         what keeps workers busy: slow layouts, sparse regions, blocks of very many
 *		     tiles, big blocks, holes punched under loads, and a ring that is rewritten
 *		     while it is read
 *	rings        floods of ops and doorbells; completions that nobody takes, replies that nobody
 *		     reads
 *	connections  descriptors of every kind, connections that end half-way, spaces by the hundred
 *
 * It runs at nice value 19, or lower still (`idle`): the client's messages are to harm the daemon,
 * not a lack of CPU.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum hostile_deed {
	HOSTILE_SLOW,   /* rows far apart: each on a page of its own */
	HOSTILE_SPARSE, /* the same over memory that nobody touched */
	HOSTILE_TILES,  /* fp8 blocks of very many tiles, in a new space: they are measured */
	HOSTILE_BIG,    /* new blocks of 1 MiB, as fast as they are taken */
	HOSTILE_HOLES,
	HOSTILE_REWRITE,
	HOSTILE_FLOOD,
	HOSTILE_STARVE,
	HOSTILE_DESCRIPTORS,
	HOSTILE_HALF_WAY,
	HOSTILE_SPACES,
	HOSTILE_HOLD, /* as many connections as are to be had */
	HOSTILE_DEEDS,
};

/* How often each was done; in memory that both processes have. */
struct hostile_tally {
	_Atomic uint64_t deeds[HOSTILE_DEEDS];
	_Atomic uint64_t ops;
};

struct hostile {
	pid_t pid;
	bool idle; /* set before the start: SCHED_IDLE, a fifth of the share of nice value 19 */
	struct hostile_tally *tally;
};

const char *hostile_deed_name(enum hostile_deed deed);
/* 0 or -errno. The caller has one thread. */
int hostile_start(struct hostile *h, const char *socket, uint64_t seed);
void hostile_stop(struct hostile *h); /* kill -9. The tally stays until hostile_free() */
void hostile_free(struct hostile *h);

/* lib_hostile_beside.c: an honest engine and a hostile client of one daemon, for at least so long.
 * The engine stores, loads and compares every byte; the test ends if anything is wrong. */
void hostile_beside(const char *test, uint32_t seconds);
