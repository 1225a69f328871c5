/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_opening.h - nvme_file_open() in a thread of its own. A disk that hangs also hangs the thread
 * that opens it, and the core thread must not hang. At the start the daemon waits for a while. For
 * a disk that comes back it looks now and then whether there is an answer. Core thread only.
 */
#ifndef KVTIER_NVME_OPENING_H
#define KVTIER_NVME_OPENING_H

#include "nvme_file.h"

struct nvme_opening;

/* At the start: nvme_file_open() of a store (NVME_FILE_STORE), with its results. -ETIMEDOUT: it has
 * not ended within timeout_ns; if it ends after all, the thread closes the file, and removes a file
 * that it made. */
int nvme_opening_wait(const char *path, uint64_t bytes, uint64_t timeout_ns, struct nvme_file *ret,
		      char *text, size_t n);

/* A disk that was open before comes back: its path is opened (NVME_FILE_RETURNED) and its
 * superblocks are read. The old descriptor must be closed: its lock would keep us out. 0, -ENOMEM,
 * or -EAGAIN: no thread. */
int nvme_opening_begin(const char *path, struct nvme_opening **ret);
/* -EINPROGRESS: the thread has not ended. Else the results of nvme_file_open(), and the superblocks
 * as nvme_file_supers() gives them; the opening is freed. */
int nvme_opening_ended(struct nvme_opening *o, struct nvme_file *ret, uint8_t *supers, char *text,
		       size_t n);
/* The answer is not wanted any more: the file that is opened will be closed. NULL is fine. */
void nvme_opening_leave(struct nvme_opening *o);

#endif
