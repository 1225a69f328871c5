/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_daemon.h - an engine and a kvtierd of its own, for cases that go through both. Both end
 * with the case.
 *
 * An engine's blocks are BF16 and its pages a memfd that the daemon maps. FP8 holds the values
 * exactly, and each page has its own, so that loaded pages can be compared with stored ones.
 */
#pragma once

#include "bench.h"
#include "client/kvtier.h"
#include "daemon/stats/stats.h"

enum {
	BENCH_LAYERS = 32,
	BENCH_TOKENS = 16,
	BENCH_HEADS = 8,
	BENCH_DIM = 128,
	/* bytes of K or V of a layer */
	BENCH_PLANE = BENCH_TOKENS * BENCH_HEADS * BENCH_DIM * 2,
	BENCH_PAGE = BENCH_PLANE * 2 * BENCH_LAYERS,
	BENCH_IMAGE = 4096 + BENCH_PAGE / 2, /* in memory and on NVMe */
	/* packed, as in Redis */
	BENCH_VALUE = 128 + BENCH_LAYERS * 2 * BENCH_HEADS + BENCH_PAGE / 2,
	BENCH_BLOCKS = 1024, /* most */
	BENCH_OP = 32,       /* blocks of an op */
	BENCH_PATIENCE_MS = 60000,
};

/* Token-major planes of each layer's K and V, one after the other in a page. */
struct bench_shape {
	uint32_t layers, heads, dim; /* layers: at most BENCH_LAYERS; BENCH_TOKENS tokens */
	uint32_t codec;              /* enum kvtier_codec */
};

/* FP8, with images of 1 MiB payload. */
extern const struct bench_shape bench_shape_1mib;
uint64_t bench_page_bytes(const struct bench_shape *shape);

/* Zeroed at first. */
struct bench_daemon {
	/* To be set before the start. */
	const char *state_dir;   /* NULL: its own directory */
	uint32_t spin_us;        /* the client looks so long before it sleeps */
	uint32_t daemon_spin_us; /* 0: as it does by itself */
	pid_t pid;
	char program[512], run[64], socket[96];
	int directory; /* bytes of program that name the bench's own */
	struct kvtier_client *client;
	const struct stats *stats; /* its stats page */
	/* The engine. */
	struct kvtier_space *space;
	int fd;
	uint32_t blocks; /* a multiple of BENCH_OP */
	size_t bytes;    /* of all pages */
	uint8_t *pages;
	struct kvtier_key keys[BENCH_BLOCKS]; /* of the run */
};

/* kvtierd with these sections of the configuration behind [daemon], and a client of it. */
void bench_daemon_start(struct bench_daemon *d, const char *sections);
/* The same with an engine that has so many blocks, of this shape. */
void bench_daemon_open(struct bench_daemon *d, const char *sections,
		       const struct bench_shape *shape, uint32_t blocks);
/* The engine alone; its pages in huge pages, as the host tier is, or not. */
void bench_daemon_engine(struct bench_daemon *d, const struct bench_shape *shape, uint32_t blocks,
			 bool huge);
/* All of a tier is there: a number of the stats page (tiers_host_state) says so. */
void bench_daemon_await_up(const uint64_t *state);
/* kvtierctl with these words. */
void bench_daemon_ctl(const struct bench_daemon *d, const char *words);
double bench_daemon_cpu_seconds(const struct bench_daemon *d);
/* New keys, others in every run. */
void bench_daemon_keys(struct bench_daemon *d, uint32_t run);
void bench_daemon_move(struct bench_daemon *d, bool load); /* all blocks, all ops at once */
/* All blocks are. The index tells without a system call; asking a thousand times a second costs the
 * daemon nothing. */
void bench_daemon_await_on_nvme(const struct bench_daemon *d);
void bench_daemon_spoil(struct bench_daemon *d);         /* the pages */
void bench_daemon_compare(const struct bench_daemon *d); /* they are as they were at first */

struct kvtier_space *bench_space(struct kvtier_client *client, const struct bench_shape *shape,
				 const struct kvtier_region *region);
/* Any thread may call these. Keys of n blocks in chains of BENCH_OP, others in every run. */
int bench_keys(struct kvtier_space *space, uint32_t run, uint32_t n, struct kvtier_key *ret);
/* n blocks to or from pages first .. first + n - 1, all ops at once. -errno:
 * not all of them moved. */
int bench_move(struct kvtier_client *client, struct kvtier_space *space, bool load,
	       const struct kvtier_key *keys, uint32_t first, uint32_t n);
/* For the end of an op: its status. */
int bench_wait(struct kvtier_client *client, uint64_t op, struct kvtier_result *ret);
