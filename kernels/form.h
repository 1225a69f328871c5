/* SPDX-License-Identifier: Apache-2.0 */
/*
 * form.h - the coded form of an image: fewer bytes for a medium that is slow or is paid by the
 * byte, undone before anything else looks at the image. Format: daemon/IMAGE.md, "Coded form".
 *
 * The header stays as it is. Scales and payload become chunks, one after the other, each of them
 *
 *	0    method   1 byte: 0 the bytes themselves, 1 nibbles (nibbles.h), 2 an LZ4 block
 *	1    zeros    3 bytes
 *	4    plain    2 bytes: how many bytes it becomes, less 1
 *	6    coded    2 bytes: how many bytes follow, less 1
 *
 * Nibbles are for FP8 codes, LZ4 for what no codec of ours made smaller: opaque bytes, FP32, INT8.
 * No chunk holds bytes of both scales and payload, and none is longer than what it becomes.
 *
 * All functions are pure, on memory that is private to the caller: any thread.
 */
#pragma once

#include <stdbool.h>

#include "kernels.h"

enum {
	FORM_HEAD_BYTES = 8, /* of a chunk */
	FORM_CHUNK_BYTES = 64 << 10,
	FORM_CHUNK_MOST = FORM_HEAD_BYTES + FORM_CHUNK_BYTES,
	/* bytes that the packer may write behind `most`, and that lie behind unpacked ones and may
	 * be read */
	FORM_SPARE = 32 << 10,
	FORM_LEAST_PERCENT = 6, /* saved: else the form is not worth it */
	FORM_ENDS = 4,          /* scales, planes, typed, opaque */
};
static_assert((int)FORM_SPARE >= NIBBLES_MOST_BYTES + (int)FORM_HEAD_BYTES, "form spare");

struct form_pack {
	const struct codec_kernels *kernels;
	const uint8_t *image;
	uint32_t scale_bytes, payload_offset;
	/* ends of the parts: scales, planes, typed, opaque; and which of them are FP8 codes */
	uint64_t ends[FORM_ENDS];
	bool codes[FORM_ENDS];
	uint32_t part;
	uint64_t at; /* of scales, then payload */
	uint8_t *to;
	uint32_t n, most; /* bytes in `to`, and the most there may be */
};

/* The most bytes of a form that is worth it: scales and payload, less FORM_LEAST_PERCENT. */
uint32_t form_most(const struct image_shape *shape);
/* Begins to pack a whole image, whose header has been checked: geometry and shape are its own.
 * `to` has room for form_most() + FORM_SPARE. */
void form_pack_start(struct form_pack *p, const struct codec_kernels *kernels,
		     const struct image_geometry *geometry, const struct image_shape *shape,
		     const uint8_t *image, uint8_t *to);
/* The most that any form of such an image has. With p->most set to it, and FORM_SPARE bytes more
 * of room, the form is made whatever that saves. */
uint32_t form_whole(const struct image_shape *shape);
/* Goes on for `budget` bytes of the image, or a chunk more. CODEC_MORE; 0: p->n bytes; -E2BIG: it
 * is not worth it. */
int form_pack_step(struct form_pack *p, uint32_t budget);

struct form_unpack {
	const struct codec_kernels *kernels;
	uint8_t *image;
	uint32_t scale_bytes, payload_offset;
	uint64_t at, end; /* of scales, then payload */
};

/* Begins to unpack behind the header at `image`, which has room for the shape's image. */
void form_unpack_start(struct form_unpack *u, const struct codec_kernels *kernels,
		       const struct image_shape *shape, uint8_t *image);
/* Unpacks the whole chunks at the start of n bytes that came from anywhere; FORM_SPARE bytes lie
 * behind them. *ret_used: the bytes of those chunks. 0, or -EBADMSG: they are not chunks of this
 * image. Writes nowhere but to scales and payload. */
int form_unpack_some(struct form_unpack *u, const uint8_t *bytes, size_t n, size_t *ret_used);
/* Whether all of the image is there. */
static inline bool form_unpack_whole(const struct form_unpack *u)
{
	return u->at == u->end;
}
