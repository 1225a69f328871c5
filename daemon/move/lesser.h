/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lesser.h - blocks that have fewer bits on a medium than their space's codec gives them, as [nvme]
 * codec and [redis] codec say, and keep these when they come back: lesser images. Core thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/image.h"
#include "tiers/tier.h"

struct space;
struct spaces;
struct tables;

/* Whether images of the space may have these codecs, though they are not its own (space_has()): it
 * is int8 or fp8, has K and V, and [codec] allow has them. */
bool lesser_takes(const struct spaces *spaces, const struct space *space, uint8_t codec_k,
		  uint8_t codec_v);
/* Whether an image that was verified is a lesser one. */
bool lesser_is(const struct space *space, const struct image_header *header);
bool lesser_at(const struct tables *tables, const struct space *space, const struct extent *where);
/* The codec (enum kvtier_codec) of a block's image, if that is a lesser one; else 0. */
uint32_t lesser_own(const struct tables *tables, uint32_t block, const struct extent *where);
/* Whether blocks of the space may get this codec (enum kvtier_codec) on a medium. GPUs have no
 * pages of it, and from fp8 to q4 it was measured that fp8 loses less of K than q4 would. */
bool lesser_wanted(const struct spaces *spaces, const struct space *space, uint32_t codec);
/* The codec (xfer.codec) that a block which is in host memory gets on its way to this tier. 0: the
 * block stays as it is. Blocks of a prompt's first tokens do, and blocks whose place in the prompt
 * is unknown because an ancestor has left host memory. */
uint32_t lesser_codec(const struct tables *tables, uint32_t block, enum tier_id tier);
