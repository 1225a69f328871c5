/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_file.h - the file or block device of one NVMe path: found, made, locked, and looked at
 * before anything is written. All of that blocks. So the daemon opens a path in a thread of its own
 * (struct nvme_opening); kvtierctl may block.
 *
 * No file or device that was there before is written to. A file that is made here is reserved in
 * full, and removed again when that fails.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/own.h"

enum nvme_file_use {
	NVME_FILE_STORE,   /* the daemon: an absent or empty file is made */
	NVME_FILE_REPLACE, /* kvtierctl format: its content does not matter */
	/* the daemon, which had it open before: no file is made or taken for blank */
	NVME_FILE_RETURNED,
};

struct nvme_file {
	int fd; /* O_DIRECT, locked for this process */
	uint64_t bytes;
	struct own own;
	bool block_device;
	/* a regular file that has only zeros, as far as was looked: may be formatted */
	bool blank;
	bool made; /* made when it was opened: removed if the opening fails later */
};

/* The file is a block device of 0 bytes, as a device is that was pulled. No I/O. */
bool nvme_file_is_shell(const struct nvme_file *file);

void nvme_file_close(struct nvme_file *file);
/* After a format: the directory entry outlives a power cut, too. 0 or -errno. */
int nvme_file_settle(const char *path);

struct nvme_super;
/* The newest good superblock of a store (nvme_super_newest()), or -errno of the read. */
int nvme_newest_super(int fd, struct nvme_super *ret);
/*
 * Makes an empty store of `bytes` at path, over anything. A file that is absent is made, and its
 * space reserved (fallocate). bytes 0: the size of the block device or file that is there.
 * prewrite: all of it is written once. progress (may be NULL) hears how many bytes are written,
 * and of how many. 0, or -errno with a sentence (n >= NVME_TEXT_BYTES); -EBUSY: a daemon has the
 * path open.
 */
int nvme_make_store(const char *path, uint64_t bytes, uint32_t segment_bytes, bool prewrite,
		    void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
		    char *text, size_t n);

/*
 * A path is opened in a thread of its own. A disk that hangs also hangs the thread that opens it,
 * and the core thread must not hang. At the start the daemon waits for a while. For a disk that
 * comes back it looks now and then whether there is an answer. Core thread only.
 */
struct nvme_opening;

/*
 * At the start: opens a store (NVME_FILE_STORE). bytes: the size of a file that is made; 0: a block
 * device, or the file that is there, decides. Returns 0, or -errno with a sentence (without the
 * path; n >= 256). -EBUSY: another process has it open; -ENOTBLK: not a file and not a block
 * device; -ENOTSUP: no O_DIRECT there; -ENOSPC: too small, or no room; -EINVAL: no size;
 * -ETIMEDOUT: it has not ended within timeout_ns, and if it ends after all, the thread closes the
 * file, and removes a file that it made; other errors are the system's.
 */
int nvme_opening_wait(const char *path, uint64_t bytes, uint64_t timeout_ns, struct nvme_file *ret,
		      char *text, size_t n);

/* A disk that was open before comes back: its path is opened (NVME_FILE_RETURNED) and its
 * superblocks are read. The old descriptor must be closed: its lock would keep us out. 0, -ENOMEM,
 * or -EAGAIN: no thread. */
int nvme_opening_begin(const char *path, struct nvme_opening **ret);
/* -EINPROGRESS: the thread has not ended. Else the results of nvme_opening_wait(), and both
 * superblocks, one after the other; a superblock that cannot be read becomes 0xff bytes. The
 * opening is freed. */
int nvme_opening_ended(struct nvme_opening *o, struct nvme_file *ret, uint8_t *supers, char *text,
		       size_t n);
/* The answer is not wanted any more: the file that is opened will be closed. may be NULL. */
void nvme_opening_leave(struct nvme_opening *o);
