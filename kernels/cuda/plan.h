/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h - the plans and the tasks that the CUDA kernels take (codec.h). Pure functions. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "codec.h"

/* Pieces' bases are device addresses. ret_pieces: layout->n_pieces of them, to be copied to the
 * device; ret->pieces is left 0 for the caller to set. 0; -EINVAL, -EOVERFLOW: the geometry has no
 * image (image_shape()), or the pieces are not those of the geometry in canonical order. lossless:
 * its images are lossless or raw, else anything else; -EINVAL: !cuda_plan_takes_packs(). */
int cuda_plan_make(const struct page_layout *layout, bool lossless, struct cuda_plan *ret,
		   struct cuda_piece *ret_pieces);

/* Whether a plan can be made of a lossless space: tiles of K and V have as many tokens. False only
 * where the head dims differ, and one is beyond 640. */
bool cuda_plan_takes_packs(const struct image_geometry *geometry);

/* Where the scale and the payload of a tile begin, in bytes after the image's first of each;
 * of tile n_tiles: their sizes. A lossless image's payload: without far parts. pieces: the
 * host's. */
void cuda_plan_at(const struct cuda_plan *plan, const struct cuda_piece *pieces,
		  enum image_codec codec_k, enum image_codec codec_v, uint32_t tile,
		  uint32_t *ret_scale, uint32_t *ret_payload);

/* Blocks of CUDA_THREADS that a launch of n_tiles needs: at most `most`, at least 1. */
uint32_t cuda_plan_blocks(const struct cuda_plan *plan, uint32_t n_tiles, uint32_t most);

/* Sets `start` of each task, and n_tiles, which it returns; 0: there is no task, or the sum is 2^31
 * or more. */
uint32_t cuda_tasks_number(struct cuda_tasks *tasks);
