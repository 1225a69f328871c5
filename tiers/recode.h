/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recode.h - an image of 16-bit values in fewer bits, on its way to a medium: it is verified,
 * decoded, and encoded with other codecs, in steps. The new image is of the same block and space,
 * has a size of its own, and names its codecs in its header.
 *
 * One thread at a time. The old image stays the caller's, who must not change it before the end.
 */
#pragma once

#include <stdbool.h>

#include "kernels/kernels.h"

struct recode {
	const struct codec_kernels *kernels;
	struct page_layout layout;
	const uint8_t *image;
	struct image_codecs codecs;
	struct image_shape shape; /* of `made` */
	uint8_t *made;            /* once a step has ended with 0; page-aligned */
	/* private */
	size_t room;
	uint8_t *scratch;
	int stage;
	struct image_identity identity; /* which `run` has a pointer to */
	struct codec_run run;
};

/* Whether an image has this codec (enum kvtier_codec). */
bool recode_has(const struct image_header *header, uint32_t codec);
/* Whether an image can become a smaller one of this codec, whose shape is then in *ret. The image's
 * codecs must be lossy already, and others than this codec's. The header was checked. */
bool recode_takes(const struct image_header *header, const struct image_geometry *geometry,
		  const struct image_shape *shape, uint32_t codec, struct image_shape *ret);
/* Begins, with memory for the block's values and for the new image. The image's header was checked,
 * and recode_takes() was true. NULL: no memory. */
struct recode *recode_begin(const struct codec_kernels *kernels,
			    const struct image_geometry *geometry, const struct image_shape *shape,
			    const uint8_t *image, uint32_t codec);
/* Goes on for some `budget` bytes. CODEC_MORE; 0: it is made; -EBADMSG: the image is damaged;
 * -ERANGE: the codec cannot hold it. */
int recode_step(struct recode *recode, uint32_t budget);
void recode_end(struct recode *recode); /* may be NULL */
