/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_damage.h - bits that flip in a daemon's host memory, by /proc/PID/mem; and images with right
 * sums that no kvtierd makes.
 */
#ifndef KVTIER_LIB_DAMAGE_H
#define KVTIER_LIB_DAMAGE_H

#include "kernels/image.h"
#include "lib.h"

/* One bit of the image of this block, `offset` bytes from its start. Skips the test where the
 * daemon's memory cannot be written; ends it where the image is not there. */
void damage_image(const struct daemon *d, const uint8_t key[32], long offset);

/* The same block with these codecs, and all its values 0: as an image lies in memory, IMAGE_ALIGN
 * aligned, ret_shape->image_bytes. */
void damage_recoded(const struct image_header *header, enum image_codec codec_k,
		    enum image_codec codec_v, uint8_t *ret, struct image_shape *ret_shape);

#endif
