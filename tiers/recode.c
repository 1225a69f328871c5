/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recode.c - an image in fewer bits. Contract: recode.h.
 *
 *	VERIFY ──> DECODE ──> ENCODE ──> made
 *
 * A damaged image must not become one with a good checksum.
 */
#include "recode.h"

#include <errno.h>
#include <string.h>

#include "base/vault.h"

enum { VERIFY, DECODE, ENCODE };

static const struct image_header *header_of(const struct recode *r)
{
	return (const void *)r->image;
}

bool recode_has(const struct image_header *header, uint32_t codec)
{
	const struct image_codecs codecs = image_codecs(codec);

	return header->codec_k == codecs.k && header->codec_v == codecs.v;
}

bool recode_takes(const struct image_header *header, const struct image_geometry *g,
		  const struct image_shape *shape, uint32_t codec, struct image_shape *ret)
{
	const struct image_codecs codecs = image_codecs(codec);

	return image_codec_scales(header->codec_k) && image_codec_scales(header->codec_v) &&
	       !recode_has(header, codec) && !image_shape(g, codecs.k, codecs.v, ret, NULL) &&
	       ret->image_bytes < shape->image_bytes;
}

static size_t aligned(uint64_t bytes)
{
	return (bytes + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;
}

/* One mapping: this struct, scratch, what the image becomes, its values, and where they lie. */
struct recode *recode_begin(const struct codec_kernels *kernels, const struct image_geometry *g,
			    const struct image_shape *shape, const uint8_t *image, uint32_t codec)
{
	const struct image_codecs codecs = image_codecs(codec);
	const size_t pieces = 2ull * g->layers + g->typed_segments + 1;
	const size_t values = aligned(shape->logical_bytes);
	struct image_shape made;
	struct page_piece *at;
	struct recode *r;
	size_t head, room;

	if (image_shape(g, codecs.k, codecs.v, &made, NULL))
		return NULL;
	head = aligned(sizeof(*r)) + CODEC_SCRATCH_BYTES;
	room = head + aligned(made.image_bytes) + values + pieces * sizeof(*at);
	r = vault_buffer(room);
	if (!r)
		return NULL;
	*r = (struct recode){ .kernels = kernels,
			      .image = image,
			      .codecs = codecs,
			      .shape = made,
			      .room = room,
			      .stage = VERIFY };
	r->scratch = (uint8_t *)r + aligned(sizeof(*r));
	r->made = (uint8_t *)r + head;
	at = (void *)(r->made + aligned(made.image_bytes) + values);
	r->layout.geometry = *g;
	r->layout.pieces = at;
	(void)image_order_pieces(g, r->made + aligned(made.image_bytes), at, &r->layout.n_pieces);
	memcpy(r->identity.key, header_of(r)->key, sizeof(r->identity.key));
	memcpy(r->identity.space_id, header_of(r)->space_id, sizeof(r->identity.space_id));
	kernels->verify_start(&r->run, image, shape, header_of(r)->checksum);
	return r;
}

static int next(struct recode *r)
{
	if (++r->stage == DECODE)
		return r->kernels->decode_start(&r->run, &r->layout, 0, r->image);
	return r->kernels->encode_start(&r->run, &r->layout, 0, r->codecs.k, r->codecs.v,
					&r->identity, r->made);
}

int recode_step(struct recode *r, uint32_t budget)
{
	int status = r->kernels->step(&r->run, budget, r->scratch);

	if (status || r->stage == ENCODE)
		return status;
	status = next(r);
	return status ? status : CODEC_MORE;
}

void recode_end(struct recode *r)
{
	if (r)
		vault_free(r, r->room);
}
