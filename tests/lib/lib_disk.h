/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_disk.h - shared by system tests of the NVMe tier: a daemon with a store on a disk, cases that
 * run on both I/O engines, and hands in the store's file.
 */
#pragma once

#include "lib.h"

/* One case for each I/O engine: *state points to the engine's name, as in [nvme] io. */
extern char disk_uring[], disk_threads[];
#define ON_BOTH_ENGINES(name)                                                  \
	TEST_ROWS(name, { #name " [io_uring]", name, NULL, NULL, disk_uring }, \
		  { #name " [threads]", name, NULL, NULL, disk_threads })

/* Skips the case, which the output shows, where there is no directory for O_DIRECT or io_uring is
 * refused. */
void disk_need(const char *engine);
/* daemon_start() with these lines, of which the last section is [nvme], and this engine; waits
 * until the tier is up. */
void disk_start(struct daemon *d, const char *engine, const char *config);
/* One of its steps. */
void disk_state_becomes(const struct daemon *d, const char *state, int timeout_ms);

/* --- a daemon, an engine, a chain --- */

enum { DISK_BLOCKS = 64 };

struct disk_world {
	const char *engine; /* of the I/O */
	struct daemon d;
	struct engine e;                     /* tiny raw pages, 2 * DISK_BLOCKS of them */
	struct kvtier_key keys[DISK_BLOCKS]; /* of a chain; from disk_live() on */
	char path[200];                      /* of the default store */
};

struct disk_world *disk_place(void **state, const char *config); /* nothing runs yet */
/* the daemon starts, the tier is up, the engine connects */
void disk_live(struct disk_world *w);
void disk_die(struct disk_world *w, int signal); /* both are gone */
void disk_end(struct disk_world *w);

/* --- the store's file --- */

uint64_t disk_file_bytes(const char *path);
/* Flips one bit of every copy of the image with this key; offset >= 0: from its first byte. Returns
 * the copies. */
uint32_t disk_flip(const char *path, const struct kvtier_key *key, uint64_t offset);
/* Where an image with this key lies; ends the test if none does. */
uint64_t disk_find(const char *path, const struct kvtier_key *key);
/* Overwrites, as another program would. */
void disk_write(const char *path, uint64_t offset, const void *bytes, size_t n);
void disk_read(const char *path, uint64_t offset, void *ret, size_t n);
