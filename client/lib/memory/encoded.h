/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encoded.h - engine mode: kernels of this process encode pages into memory that the daemon lends,
 * and decode from there, and the daemon copies (wire.h, "Engine mode"). The ring lock is held,
 * except while the space is opened, mapped or closed, when no op of it runs.
 *
 * The memory is a row of images. A store calls encoded_store(), and then encoded_look() until that
 * says that the images are there; encoded_page() gives the numbers for the wire. A load calls
 * encoded_load() once the daemon has put the images there, and then encoded_look().
 *
 * encoded_wait() is the only call that waits for a kernel. `op` is a number below KVTIER_MAX_OPS,
 * and each has one store or load at a time.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/kvtier.h"
#include "client/abi/wire.h"

struct cuda_memory;
struct encoded;
struct space_layout;

/* -errno with its sentence: this process cannot do it. */
int encoded_open(const struct space_layout *layout, const struct cuda_memory *cuda,
		 struct encoded **ret);
void encoded_close(struct encoded *e);            /* may be NULL */
uint64_t encoded_stride(const struct encoded *e); /* least bytes from image to image */

/* Maps the memory that came with SPACE_OK, which has room for so many images, so far apart. fd
 * remains the caller's. -errno: as encoded_open(). */
int encoded_map(struct encoded *e, int fd, uint32_t pages, uint64_t stride,
		const struct wire_space_ok *ok);
void encoded_unmap(struct encoded *e);

/* Encodes these pages of the engine into images first .. first + n - 1. 0: kernels run. -errno: no
 * kernel does. */
int encoded_store(struct encoded *e, uint32_t op, const uint32_t *pages, uint32_t first,
		  uint32_t n);
/* Decodes the images of the blocks whose status is not an error; 1: there is no such block. The
 * statuses are KVTIER_BLOCK_OK or -errno afterwards. */
int encoded_load(struct encoded *e, uint32_t op, const uint32_t *pages, uint32_t first, uint32_t n,
		 int32_t *statuses);
/* 1: the op's last kernels are done; 0: not yet; -errno: one failed, and no kernel runs. */
int encoded_look(struct encoded *e, uint32_t op);
int encoded_wait(const struct encoded *e); /* waits until no kernel runs */
/* The number by which an entry names the image. */
uint32_t encoded_page(const struct encoded *e, uint32_t page);
