/* SPDX-License-Identifier: Apache-2.0 */
/*
 * form.c - the coded form of an image. Contract and format: form.h.
 */
#include "form.h"

#include <errno.h>
#include <lz4.h>
#include <string.h>

enum { VERBATIM = 0, NIBBLES = 1, LZ4 = 2 };
enum { SCALES, PLANES, TYPED, OPAQUE };

struct head {
	uint32_t method, plain, coded;
};

static void put_head(uint8_t *to, const struct head *h)
{
	const uint8_t bytes[FORM_HEAD_BYTES] = {
		[0] = (uint8_t)h->method,
		[4] = (uint8_t)(h->plain - 1),
		[5] = (uint8_t)((h->plain - 1) >> 8),
		[6] = (uint8_t)(h->coded - 1),
		[7] = (uint8_t)((h->coded - 1) >> 8),
	};

	memcpy(to, bytes, sizeof(bytes));
}

/* Where a byte of scales, then payload, lies in the image. */
static size_t place(uint64_t at, uint32_t scale_bytes, uint32_t payload_offset)
{
	return at < scale_bytes ? sizeof(struct image_header) + at :
				  payload_offset + (at - scale_bytes);
}

/* --- pack --- */

uint32_t form_most(const struct image_shape *shape)
{
	const uint64_t bytes = (uint64_t)shape->scale_bytes + shape->payload_bytes;

	return (uint32_t)(bytes * (100 - FORM_LEAST_PERCENT) / 100);
}

/* Its least chunks, of codes, have NIBBLES_MOST bytes; each part may end with two shorter ones. */
uint32_t form_whole(const struct image_shape *shape)
{
	const uint64_t bytes = (uint64_t)shape->scale_bytes + shape->payload_bytes;

	return (uint32_t)(bytes + (bytes / NIBBLES_MOST + 2ull * FORM_ENDS) * FORM_HEAD_BYTES);
}

static bool is_fp8(uint8_t codec)
{
	return codec == CODEC_FP8 || codec == CODEC_FP8_NATIVE;
}

void form_pack_start(struct form_pack *p, const struct codec_kernels *kernels,
		     const struct image_geometry *g, const struct image_shape *shape,
		     const uint8_t *image, uint8_t *to)
{
	const struct image_header *header = (const void *)image;
	const uint8_t k = header->codec_k, v = header->codec_v;
	const uint64_t all = (uint64_t)shape->scale_bytes + shape->payload_bytes;
	uint32_t scales, planes = 0;

	*p = (struct form_pack){ .kernels = kernels,
				 .image = image,
				 .scale_bytes = shape->scale_bytes,
				 .payload_offset = shape->payload_offset,
				 .to = to,
				 .most = form_most(shape) };
	if (k != CODEC_LOSSLESS) /* whose packs are no codes, as its typed values */
		image_layer_at(g, k, v, g->layers, NULL, &scales, &planes);
	p->ends[SCALES] = shape->scale_bytes;
	p->ends[PLANES] = p->ends[SCALES] + planes;
	p->ends[TYPED] = all - g->opaque_bytes;
	p->ends[OPAQUE] = all;
	/* Planes of both kinds may be mixed: chunks that are no codes stay as they are. */
	p->codes[PLANES] = is_fp8(k) || is_fp8(v);
	/* beside planes of any codec with scales they are fp8 */
	p->codes[TYPED] = k == CODEC_FP8_NATIVE || image_codec_scales(k);
}

/* A chunk of FP8 codes. */
static struct head pack_codes(const struct form_pack *p, const uint8_t *from, uint64_t left,
			      uint8_t *to)
{
	const uint32_t n = left < NIBBLES_MOST ? (uint32_t)left : NIBBLES_MOST;
	struct head h = { NIBBLES, n / NIBBLES_STEP * NIBBLES_STEP, 0 };

	if (h.plain > 0)
		h.coded = p->kernels->nibbles_pack(from, h.plain, to);
	if (h.plain == 0 || h.coded >= h.plain) {
		h = (struct head){ VERBATIM, h.plain ? h.plain : n, h.plain ? h.plain : n };
		memcpy(to, from, h.coded);
	}
	return h;
}

/* Another chunk; `room` bytes are left for it. coded 0: they are too few. */
static struct head pack_bytes(const uint8_t *from, uint64_t left, uint8_t *to, uint32_t room)
{
	const uint32_t n = left < FORM_CHUNK_BYTES ? (uint32_t)left : FORM_CHUNK_BYTES,
		       most = n - n / 16 < room ? n - n / 16 : room;
	const int r = LZ4_compress_default((const char *)from, (char *)to, (int)n, (int)most);

	if (r > 0 && (uint32_t)r < n)
		return (struct head){ LZ4, n, (uint32_t)r };
	if (n > room)
		return (struct head){ VERBATIM, n, 0 };
	memcpy(to, from, n);
	return (struct head){ VERBATIM, n, n };
}

int form_pack_step(struct form_pack *p, uint32_t budget)
{
	const uint64_t enough = p->at + budget;

	for (;;) {
		const uint8_t *from = p->image + place(p->at, p->scale_bytes, p->payload_offset);
		uint8_t *to = p->to + p->n + FORM_HEAD_BYTES;
		uint64_t left;
		struct head h;

		while (p->part < OPAQUE && p->at == p->ends[p->part])
			p->part++;
		left = p->ends[p->part] - p->at;
		if (left == 0)
			return 0;
		if (p->at >= enough)
			return CODEC_MORE;
		h = p->codes[p->part] ? pack_codes(p, from, left, to) :
					pack_bytes(from, left, to,
						   p->most + FORM_SPARE - p->n - FORM_HEAD_BYTES);
		if (h.coded == 0 || p->n + FORM_HEAD_BYTES + h.coded > p->most)
			return -E2BIG;
		put_head(to - FORM_HEAD_BYTES, &h);
		p->n += FORM_HEAD_BYTES + h.coded;
		p->at += h.plain;
	}
}

/* --- unpack --- */

void form_unpack_start(struct form_unpack *u, const struct codec_kernels *kernels,
		       const struct image_shape *shape, uint8_t *image)
{
	*u = (struct form_unpack){ .kernels = kernels,
				   .image = image,
				   .scale_bytes = shape->scale_bytes,
				   .payload_offset = shape->payload_offset,
				   .end = (uint64_t)shape->scale_bytes + shape->payload_bytes };
}

/* 0, or -EBADMSG: no chunk of this image begins so. */
static int get_head(const struct form_unpack *u, const uint8_t *from, struct head *ret)
{
	const uint64_t end = u->at < u->scale_bytes ? u->scale_bytes : u->end;

	ret->method = from[0];
	ret->plain = 1 + (from[4] | (uint32_t)from[5] << 8);
	ret->coded = 1 + (from[6] | (uint32_t)from[7] << 8);
	if (from[1] | from[2] | from[3] || ret->plain > end - u->at || ret->coded > ret->plain)
		return -EBADMSG;
	switch (ret->method) {
	case VERBATIM:
		return ret->coded == ret->plain ? 0 : -EBADMSG;
	case NIBBLES:
		return ret->plain % NIBBLES_STEP || ret->plain > NIBBLES_MOST ? -EBADMSG : 0;
	case LZ4:
		return 0;
	default:
		return -EBADMSG;
	}
}

static int unpack(const struct form_unpack *u, const struct head *h, const uint8_t *from)
{
	uint8_t *to = u->image + place(u->at, u->scale_bytes, u->payload_offset);

	switch (h->method) {
	case NIBBLES:
		return u->kernels->nibbles_unpack(from, h->coded, h->plain, to);
	case LZ4:
		return LZ4_decompress_safe((const char *)from, (char *)to, (int)h->coded,
					   (int)h->plain) == (int)h->plain ?
			       0 :
			       -EBADMSG;
	default:
		memcpy(to, from, h->plain);
		return 0;
	}
}

int form_unpack_some(struct form_unpack *u, const uint8_t *bytes, size_t n, size_t *ret_used)
{
	struct head h;

	*ret_used = 0;
	for (; n - *ret_used >= FORM_HEAD_BYTES; *ret_used += FORM_HEAD_BYTES + h.coded) {
		const uint8_t *from = bytes + *ret_used;

		if (u->at == u->end || get_head(u, from, &h))
			return -EBADMSG;
		if (n - *ret_used < FORM_HEAD_BYTES + h.coded)
			return 0;
		if (unpack(u, &h, from + FORM_HEAD_BYTES))
			return -EBADMSG;
		u->at += h.plain;
	}
	return u->at == u->end && *ret_used < n ? -EBADMSG : 0;
}
