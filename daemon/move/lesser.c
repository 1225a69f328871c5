/* SPDX-License-Identifier: Apache-2.0 */
/* lesser.c - see lesser.h. Core thread only. */
#include "lesser.h"

#include "daemon/table/block.h"
#include "daemon/table/space.h"
#include "tables.h"
#include "tiers/recode.h"

/* An engine that asked for all bits gets them from any tier. Without V planes K is the latent of an
 * MLA model, and a part of it a RoPE part, which wants 8 bits. */
static bool may_have(const struct spaces *spaces, const struct space *space, uint32_t codec)
{
	const struct image_geometry *g = &space->geometry;
	const struct image_codecs codecs = image_codecs(codec);
	struct image_shape shape;

	return space->known && (space->codec == CODEC_INT8 || space->codec == CODEC_FP8) &&
	       g->head_dim_k && g->head_dim_v && spaces_allowed(spaces) >> codec & 1 &&
	       !image_shape(g, codecs.k, codecs.v, &shape, NULL) &&
	       shape.image_bytes < space->shape.image_bytes;
}

bool lesser_takes(const struct spaces *spaces, const struct space *space, uint8_t codec_k,
		  uint8_t codec_v)
{
	for (uint32_t codec = CODECS_Q4; codec <= CODECS_INT8V4; codec++) {
		const struct image_codecs codecs = image_codecs(codec);

		if (codec_k == codecs.k && codec_v == codecs.v)
			return may_have(spaces, space, codec);
	}
	return false;
}

bool lesser_is(const struct space *space, const struct image_header *header)
{
	return !space_has(space, (enum image_codec)header->codec_k,
			  (enum image_codec)header->codec_v);
}

bool lesser_at(const struct tables *tables, const struct space *space, const struct extent *where)
{
	const struct image_header *header = (const void *)tier_address(tables_host(tables), where);

	return header && lesser_is(space, header);
}

uint32_t lesser_own(const struct tables *tables, uint32_t block, const struct extent *where)
{
	const struct image_header *header = (const void *)tier_address(tables_host(tables), where);
	const struct space *space = space_at(tables->spaces, blocks_space(tables->blocks, block));

	if (!space || !header || !lesser_is(space, header))
		return 0;
	return recode_has(header, CODECS_Q4) ? CODECS_Q4 : CODECS_INT8V4;
}

bool lesser_wanted(const struct spaces *spaces, const struct space *space, uint32_t codec)
{
	const struct codec_error *error = &space->error;

	if (codec == 0 || space->on_gpu || !may_have(spaces, space, codec))
		return false;
	return space->codec != CODEC_FP8 || codec != CODECS_Q4 ||
	       (error->squares > 0 && error->k_errors <= error->k4_errors);
}

uint32_t lesser_codec(const struct tables *tables, uint32_t block, enum tier_id tier)
{
	const uint32_t codec = tables->codec_of[tier];
	const struct space *space =
		codec ? space_at(tables->spaces, blocks_space(tables->blocks, block)) : NULL;
	uint64_t tokens = 0;

	if (!space || !lesser_wanted(tables->spaces, space, codec))
		return 0;
	while (tokens < SPACE_FIRST_TOKENS && block != BLOCK_NONE) {
		block = blocks_parent(tables->blocks, block);
		tokens += space->geometry.block_tokens;
	}
	return block == BLOCK_NONE ? 0 : codec;
}
