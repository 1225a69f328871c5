/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recode.h - an image of 16-bit values in fewer bits, on its way to a medium: it is verified,
 * decoded, and encoded with other codecs, in steps. What it becomes is an image of the same block
 * and space, of its own size, which says its codecs in its header.
 *
 * One thread at a time; the image stays the caller's, and whole, until the end.
 */
#ifndef KVTIER_RECODE_H
#define KVTIER_RECODE_H

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
/* Whether an image with this good header would become one of fewer bytes of this codec, and
 * its shape: its codecs lose values already, and are not these. */
bool recode_takes(const struct image_header *header, const struct image_geometry *geometry,
		  const struct image_shape *shape, uint32_t codec, struct image_shape *ret);
/* Begins, with memory for the block's values and for what it becomes. The image's header was
 * checked, and recode_takes() said so. NULL: no memory. */
struct recode *recode_begin(const struct codec_kernels *kernels,
			    const struct image_geometry *geometry, const struct image_shape *shape,
			    const uint8_t *image, uint32_t codec);
/* Goes on for some `budget` bytes. CODEC_MORE; 0: it is made; -EBADMSG: the image is damaged;
 * -ERANGE: the codec cannot hold it. */
int recode_step(struct recode *recode, uint32_t budget);
void recode_end(struct recode *recode); /* may be NULL */

#endif
