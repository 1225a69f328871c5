/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_file.h - the file or block device of one NVMe path: found, made, locked, and looked at
 * before anything is written. Every function blocks: the daemon calls nvme_file_open() in a thread
 * of its own (nvme_opening.h), kvtierctl as it likes.
 *
 * No file or device that was there before is written to. A file that is made here is reserved in
 * full, and removed again when that fails.
 */
#ifndef KVTIER_NVME_FILE_H
#define KVTIER_NVME_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/own.h"

enum nvme_file_use {
	NVME_FILE_STORE,   /* the daemon: an absent or empty file is made */
	NVME_FILE_REPLACE, /* kvtierctl format: its content does not matter */
	/* the daemon, which had it open before: no file is made, and none is taken for blank */
	NVME_FILE_RETURNED,
};

struct nvme_file {
	int fd; /* O_DIRECT, locked for this process */
	uint64_t bytes;
	struct own own;
	bool block_device;
	/* a regular file that has only zeros, as far as was looked: may be formatted */
	bool blank;
	bool made; /* made by nvme_file_open(): nvme_file_discard() removes it */
};

/*
 * bytes: the size of a file that is made; 0: a block device, or the file that is there, decides.
 * Returns 0, or -errno with a sentence (without the path; n >= 256). -EBUSY: another process has it
 * open; -ENOTBLK: neither a file nor a block device; -ENOTSUP: no O_DIRECT there; -ENOSPC: too
 * small, or no room; -EINVAL: no size; other errors are the system's.
 */
int nvme_file_open(const char *path, uint64_t bytes, enum nvme_file_use use, struct nvme_file *ret,
		   char *text, size_t n);
/* The file is a block device of 0 bytes, as a device is that was pulled. No I/O. */
bool nvme_file_is_shell(const struct nvme_file *file);
/* Reads both superblocks, one after the other. A superblock that cannot be read becomes 0xff bytes.
 * 0, or -errno with a sentence. */
int nvme_file_supers(const struct nvme_file *file, uint8_t *ret, char *text, size_t n);

void nvme_file_close(struct nvme_file *file);
/* Closes it, and removes the file if nvme_file_open() made it. */
void nvme_file_discard(const char *path, struct nvme_file *file);
/* After a format: the directory entry outlives a power cut, too. 0 or -errno. */
int nvme_file_settle(const char *path);

#endif
