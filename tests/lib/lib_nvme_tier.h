/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_nvme_tier.h - the NVMe tier on real files, with a block table that knows every block's right
 * bytes (as in lib_nvme.h), and slots for reads and writes. The test holds the clock: it is linked
 * with wrap=clock_gettime,epoll_wait.
 */
#pragma once

#include "tiers/nvme/nvme.h"
#include "lib_io.h"
#include "lib_nvme.h"

enum { SITE_BLOCKS = 512, SITE_SLOTS = 16, SITE_PATHS = 3, SITE_SEGMENTS = 16 };

#define SITE_BYTES ((uint64_t)NVME_DATA_OFFSET + SITE_SEGMENTS * KIT_SEGMENT)

struct site;

/* A host slot with the transfer into or out of it. */
struct site_slot {
	struct xfer x; /* first */
	struct site *site;
	uint32_t block;
	bool busy; /* until done, and until release where it was kept */
	uint32_t dones;
	uint8_t *bytes;
};

struct site {
	struct loop *loop;
	struct tier *tier;
	struct nvme_tier_conf conf;
	char text[TIER_TEXT_BYTES];
	char dir[256];
	char path[SITE_PATHS][300];
	struct {
		bool there;
		struct extent where;
		uint64_t tick;
	} block[SITE_BLOCKS];
	struct site_slot slot[SITE_SLOTS];
	uint8_t *memory, *expected;
	uint64_t tick;
	uint32_t blocks, found, dropped, moved, released, changed;
	int ended; /* the status of purge or flush; 1: not yet */
	struct loop_timer pause;
};

enum { SITE_STALL_MS = 30000 }; /* an I/O that takes longer makes its disk offline */

/* An empty directory for n paths, a loop, a configuration. */
void site_open(struct site *site, enum io_engine_choice engine, uint32_t n_paths);
void site_close(struct site *site); /* and everything in the directory is gone */
/* with an empty table; waits until nothing is starting */
void site_start(struct site *site);
/* Of one path, UP, with the blocks 0 to n - 1. */
void site_open_filled(struct site *site, enum io_engine_choice engine, uint32_t n);
/* without flush: as a kill does, when nothing is on its way */
void site_stop(struct site *site, bool flush);
/* Some iterations of the loop: a millisecond or two. While no disk has anything in its hands time
 * passes faster (lib_clock.h), so that nobody waits for a probe. */
void site_iterate(struct site *site);
/* iterations until it is; false: not in 30 s */
bool site_settle(struct site *site, bool (*is)(struct site *site));
bool site_is_idle(struct site *site);
bool site_has_ended(struct site *site); /* what site_ended() was to be told of */
void site_ended(void *site, int status);
bool site_until_state(struct site *site, enum tier_state state);

/* Submits; NULL and *ret: refused. The others must be taken, or refused, with this error. */
struct site_slot *site_try(struct site *site, enum xfer_op op, uint32_t block, int *ret);
struct site_slot *site_begin(struct site *site, enum xfer_op op, uint32_t block);
int site_refused(struct site *site, enum xfer_op op, uint32_t block);
/* Until it has ended: its status. */
int site_wait(struct site *site, const struct site_slot *slot);
/* 0, or the status it ended with. store waits while it is -EAGAIN. load: -ENOENT not in the table;
 * -EBADMSG: the bytes are not the block's, as a reader sees; a block that could not be read is
 * dropped from the table. */
int site_store(struct site *site, uint32_t block);
int site_load(struct site *site, uint32_t block);
uint32_t site_load_all(struct site *site); /* how many are whole */
void site_store_range(struct site *site, uint32_t from, uint32_t to);
void site_forget(struct site *site, uint32_t block);
int site_purge(struct site *site, uint32_t tenant);
int site_flush(struct site *site, bool last);
struct nvme_disk_row site_disk(const struct site *site, uint32_t i);
struct nvme_tier_status site_status(const struct site *site);

/* Bytes of a file, from outside. */
void site_peek(const char *path, uint64_t offset, void *ret, size_t n);
void site_poke(const char *path, uint64_t offset, const void *bytes, size_t n);
/* offset of its image in its file */
uint64_t site_place(const struct site *site, uint32_t block);
