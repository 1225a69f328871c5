/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_daemon.h - an engine and a kvtierd of its own, for cases that go through both.
 *
 * Blocks are FP8 with images of 1 MiB payload; the pages are a memfd that the daemon maps. FP8
 * holds the values exactly, and each page has its own, so that loaded pages can be compared with
 * stored ones.
 */
#ifndef KVTIER_BENCH_DAEMON_H
#define KVTIER_BENCH_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/kvtier.h"

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
	BENCH_BLOCKS = 480, /* most */
	BENCH_PATIENCE_MS = 60000,
};

/* Blocks of BF16: token-major planes of each layer's K and V, one after the other in a page. */
struct bench_shape {
	const char *model;
	uint32_t layers, tokens, heads, dim; /* layers: at most BENCH_LAYERS */
	uint32_t codec;                      /* enum kvtier_codec */
};

struct bench_daemon {
	pid_t pid;
	/* run: its directory, "" before bench_daemon_open() */
	char program[512], run[64], socket[96];
	struct kvtier_client *client;
	struct kvtier_space *space;
	int fd;
	uint32_t blocks;
	uint8_t *pages;                       /* blocks x BENCH_PAGE */
	struct kvtier_key keys[BENCH_BLOCKS]; /* of the run */
};

/* Takes a zeroed one. state_dir: NULL: in its own directory. sections: of the configuration behind
 * [daemon]. Returns when the space is open; close it on errors too. */
int bench_daemon_open(struct bench_daemon *d, uint32_t blocks, const char *state_dir,
		      const char *sections);
void bench_daemon_close(struct bench_daemon *d);
/* A sentence for the failure r. */
void bench_daemon_explain(int r, char *note, size_t n);
int bench_space(struct kvtier_client *client, const struct bench_shape *shape,
		const struct kvtier_region *region, struct kvtier_space **ret);
/* Another space of the same blocks, its pages in this region: d->blocks x BENCH_PAGE. */
int bench_daemon_space(const struct bench_daemon *d, const struct kvtier_region *region,
		       struct kvtier_space **ret);
/* kvtierctl with these words; its output, cut to n. */
int bench_daemon_ctl(const struct bench_daemon *d, const char *words, char *ret, size_t n);
int bench_daemon_await_up(const struct bench_daemon *d, const char *tier); /* "nvme" */
double bench_daemon_cpu_seconds(const struct bench_daemon *d);
/* New keys: chains of 32 blocks, others in every run. */
int bench_daemon_keys(struct bench_daemon *d, uint32_t run);
/* All blocks, all ops at once; 0 when every block made it. */
int bench_daemon_move(struct bench_daemon *d, bool load);
void bench_daemon_spoil(struct bench_daemon *d);        /* the pages */
bool bench_daemon_intact(const struct bench_daemon *d); /* they are as they were at first */

#endif
