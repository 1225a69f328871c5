/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_make_store.h - `kvtierctl format`: makes an empty store on a path, without a loop or a
 * daemon. Blocks; any thread.
 */
#ifndef KVTIER_NVME_MAKE_STORE_H
#define KVTIER_NVME_MAKE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Makes an empty store of `bytes` at path, over anything. A file that is absent is made, and its
 * space reserved (fallocate). bytes 0: the size of the block device or file that is there.
 * prewrite: all of it is written once. progress (NULL is fine) hears how many bytes are written,
 * and of how many. 0, or -errno with a sentence (n >= NVME_TEXT_BYTES); -EBUSY: a daemon has the
 * path open.
 */
int nvme_make_store(const char *path, uint64_t bytes, uint32_t segment_bytes, bool prewrite,
		    void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
		    char *text, size_t n);

#endif
