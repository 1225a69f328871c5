/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encoded.h - engine mode: this process's kernels encode pages into memory that the daemon lends,
 * and decode from there; the daemon copies (wire.h, "Engine mode"). Ring lock, but for opening,
 * mapping and closing: then no op of the space runs.
 *
 * The memory is a row of images. A store: encoded_store(), then encoded_look() until it says that
 * the images are there; encoded_page() has the numbers for the wire. A load: once the daemon has
 * put the images there, encoded_load(), then encoded_look().
 *
 * No call waits for a kernel but encoded_wait(). `op` is a number below KVTIER_MAX_OPS; of each one
 * store or load at a time.
 */
#ifndef KVTIER_LIB_ENCODED_H
#define KVTIER_LIB_ENCODED_H

#include <stddef.h>
#include <stdint.h>

#include "client/kvtier.h"
#include "client/wire.h"

struct cuda_memory;
struct encoded;

/* Arguments have passed check_layout(). -errno and its sentence: this process cannot do it. */
int encoded_open(const struct kvtier_geometry *geometry, const struct kvtier_region *regions,
		 const struct kvtier_segment *segments, size_t n_segments,
		 const struct cuda_memory *cuda, struct encoded **ret);
void encoded_close(struct encoded *e);            /* NULL is fine */
uint64_t encoded_stride(const struct encoded *e); /* least bytes from image to image */

/* SPACE_OK came with the memory: room for so many images, so far apart. fd stays the caller's.
 * Likewise. */
int encoded_map(struct encoded *e, int fd, uint32_t pages, uint64_t stride,
		const struct wire_space_ok *ok);
void encoded_unmap(struct encoded *e);

/* Images first .. first + n - 1, of these pages of the engine. 0: kernels run; else none does. */
int encoded_store(struct encoded *e, uint32_t op, const uint32_t *pages, uint32_t first,
		  uint32_t n);
/* The other way, of the blocks whose status is not an error. 1: there is none. Statuses are then
 * KVTIER_BLOCK_OK or -errno. */
int encoded_load(struct encoded *e, uint32_t op, const uint32_t *pages, uint32_t first, uint32_t n,
		 int32_t *statuses);
/* 1: the last kernels of op are done; 0: not yet; -errno: it failed, and no kernel runs. */
int encoded_look(struct encoded *e, uint32_t op);
int encoded_wait(const struct encoded *e); /* until no kernel runs */
uint32_t encoded_page(const struct encoded *e, uint32_t page);

#endif
