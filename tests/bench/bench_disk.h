/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_disk.h - the limit of cases on a disk: io_uring by hand on a file of one's own, and that
 * file.
 *
 * The raw loop keeps the queue full, one block after the other, with registered file and buffers,
 * and one submit-and-wait per iteration. The file is written once in full before anything is
 * measured, so that no write allocates.
 *
 * It has the same means as the code that is measured against it. Its memory is in huge pages, as
 * the host tier's is, since a disk splits a request that has more pieces than it takes. It has as
 * much disk, through which its writes walk on as a log's do, since the same place again and again
 * is up to a third quicker. It reads the blocks that were written last.
 */
#pragma once

#include "bench.h"

enum { BENCH_DISK_DEPTH = 32 };

struct bench_disk {
	char dir[256], path[300];
	int fd;                /* O_DIRECT */
	uint64_t from, bytes;  /* the raw loop's part of the file; multiples of 4096 */
	uint64_t walked;       /* from there; see bench_disk_walk() */
	bool small_pages;      /* the raw loop has 4 KiB pages; as its caller likes */
	uint8_t *huge, *small; /* BENCH_DISK_DEPTH x block each */
	uint32_t block;        /* bytes, a multiple of 4096 */
};

/* Where the disk is measured: $KVTIER_BENCH_DIR, $TMPDIR or /var/tmp. */
const char *bench_disk_directory(void);
/* A directory of its own there with a file in it, whose last
 * `bytes`, from `from` on, are the raw loop's; until the case ends. The case is skipped where there
 * is no O_DIRECT, or no room. */
void bench_disk_open(struct bench_disk *d, uint64_t from, uint64_t bytes, uint32_t block);
/* Where in the file so many blocks are written next, or were written last. */
uint64_t bench_disk_walk(struct bench_disk *d, bool write, uint32_t blocks);
/* Blocks written or read there, `depth` at once; GB/s. The case is skipped where io_uring is
 * refused. */
double bench_disk_raw(struct bench_disk *d, bool write, uint32_t depth, uint32_t blocks);

/* Anonymous memory, all of it there, aligned to 2 MiB and in huge pages where the kernel has them,
 * or in 4 KiB pages; until the case ends. */
uint8_t *bench_memory(size_t bytes, bool huge);
