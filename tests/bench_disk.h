/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_disk.h - the limit of what is measured on a disk: io_uring by hand on a file of one's own, and that file.
 *
 * The raw loop keeps the queue full, one block after the other, with registered file and buffers, and one
 * submit-and-wait a turn. The file is written once in full before anything is measured, so that no write allocates.
 */
#ifndef KVTIER_BENCH_DISK_H
#define KVTIER_BENCH_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BENCH_DISK_DEPTH = 32 };

struct bench_disk {
	char dir[256], path[300];	/* removed by bench_disk_close() */
	int fd;				/* O_DIRECT */
	uint64_t bytes;
	uint8_t *buffers;		/* BENCH_DISK_DEPTH x block */
	uint32_t block;			/* bytes, a multiple of 4096 */
};

/* A directory of its own in $KVTIER_BENCH_DIR, $TMPDIR or /var/tmp with a file of `bytes` in it. -ENOTSUP with note:
 * no O_DIRECT there, or no room. */
int  bench_disk_open(struct bench_disk *d, uint64_t bytes, uint32_t block, char *note, size_t n);
void bench_disk_close(struct bench_disk *d);
/* Blocks read or written from `offset` on, `depth` at once; GB/s. -ENOTSUP: io_uring is refused here. */
int  bench_disk_raw(struct bench_disk *d, bool write, uint32_t depth, uint64_t offset, uint32_t blocks, double *ret);
double bench_cpu_seconds(void);		/* of this process */

#endif
