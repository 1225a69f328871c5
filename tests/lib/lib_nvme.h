/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_nvme.h - a log on a simulated disk, with a block table that knows what every block's bytes
 * must be.
 *
 * Block i belongs to tenant i % KIT_TENANTS and has one of three shapes in turn: the tag in the
 * padding of the first page, in a page of its own, in the padding of a later page. Its image
 * follows from its number alone.
 */
#pragma once

#include "disk_sim.h"

enum {
	KIT_BLOCKS = 4096,
	KIT_TENANTS = 3,
	KIT_APPENDS = 8,
	KIT_SEGMENT = 65536,
	KIT_IMAGE_MAX = 24576
};

struct kit_block {
	uint64_t location; /* NVME_NOWHERE: not there */
	uint64_t tick;
	bool busy;  /* being appended */
	bool found; /* by recovery; it may have been reclaimed since */
};

struct kit_slot {
	struct nvme_append append;
	struct kit *kit;
	uint32_t block;
	bool busy;
	uint8_t *image;
};

struct kit {
	struct disk_sim sim;
	struct nvme_conf conf;
	struct nvme_log *log;
	struct kit_block block[KIT_BLOCKS];
	struct kit_slot slot[KIT_APPENDS];
	uint8_t *buffer, *expected;
	struct io_op spare;
	uint64_t tick;
	int ready, flushed, purged; /* the callbacks' arguments; 1: not yet called */
	uint32_t blocks;            /* in the table */
	uint32_t found, stored, failed, moved, dropped;
	bool refuse_found, keep; /* keep: to ask, all records are young */
};

void kit_open(struct kit *kit, uint32_t segments, uint64_t seed);
void kit_close(struct kit *kit);                     /* I/O on its way is forgotten */
int kit_format(struct kit *kit);                     /* ready's argument */
int kit_recover(struct kit *kit);                    /* with an empty table */
void kit_forget_log(struct kit *kit);                /* as a crash does */
void kit_crash(struct kit *kit, enum sim_crash how); /* and the disk's part of it */
void kit_run(struct kit *kit);                       /* until nothing is on its way */
bool kit_step(struct kit *kit);

/* 0, or nvme_log_append()'s error. kit_store() waits until it could be done, and reports the
 * end. */
int kit_append(struct kit *kit, uint32_t block);
int kit_store(struct kit *kit, uint32_t block);
void kit_store_range(struct kit *kit, uint32_t from, uint32_t to); /* all must succeed */
void kit_touch(struct kit *kit, uint32_t block);
void kit_forget(struct kit *kit, uint32_t block);
/* 0: whole and right; -ENOENT: not in the table; else a miss, and gone from the table. Wrong bytes:
 * assert. */
int kit_load(struct kit *kit, uint32_t block);
int kit_flush(struct kit *kit, bool last);
/* as the disk's probe does, when nothing else is on its way */
void kit_write_spare(struct kit *kit);
int kit_purge(struct kit *kit, uint32_t tenant);
uint32_t kit_load_all(struct kit *kit);    /* how many are whole; the others must be misses */
void kit_check(struct kit *kit);           /* sums in the log = sums over the table */
uint64_t kit_table_bytes(struct kit *kit); /* of the records in the table */
/* Images have few bits to a byte, so that they may be coded. */
extern bool kit_soft;
/* Until kit_close(): the pages of a block's image, 2 to 6, in place of the three shapes; or
 * NULL. */
extern uint32_t (*kit_pages)(uint32_t block);
uint32_t kit_image(uint32_t block, uint8_t *ret); /* its bytes; returns how many */
void kit_key(uint32_t block, uint8_t ret[32]);
void kit_owner(uint32_t block, uint8_t ret[32]);
uint32_t kit_number(const struct nvme_entry *entry); /* its block; all else in it must be right */
/* A reader's checks: header against identity and geometry, then the checksum: -EBADMSG. An image
 * that passes must be the block's bytes: assert. expected: KIT_IMAGE_MAX to work in. */
int kit_image_check(const uint8_t *image, uint32_t block, uint8_t *expected);
