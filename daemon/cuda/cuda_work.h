/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_work.h - the CPU's half of an image that a GPU encodes or decodes: headers, checksums, and
 * copies between host slots and pinned lanes. On a worker; one at a time has an image. No CUDA
 * here.
 */
#ifndef KVTIER_CUDA_WORK_H
#define KVTIER_CUDA_WORK_H

#include "cuda_cut.h"
#include "daemon/device/device.h"

struct cuda_image {
	const struct codec_kernels *kernels;
	struct device_job *job;
	struct image_shape shape;
	enum image_codec codec_k, codec_v; /* of this image */
	uint64_t checksum;                 /* load: the header's */
	/* of the payload so far: of a store, and of a load that verifies its bytes */
	void *hash;
};

/* At start: memory for a hash; NULL: there is none. */
void *cuda_image_hash(void);

/* Store: the image that the job asks for. 0, or -EINVAL. */
int cuda_image_begin_store(struct cuda_image *image);
/* Load: the image in the job's slot. -EBADMSG: it is not the image that the job asks for. */
int cuda_image_begin_load(struct cuda_image *image);

/* Load of the image in the GPU's memory that the job describes: 0, or -EINVAL. */
int cuda_image_begin_hit(struct cuda_image *image);

/* Where a piece's payload lies in the slot. */
uint8_t *cuda_image_payload(const struct cuda_image *image, const struct cuda_cut *cut);

/* Below, `direct`: the copy engine moves the payload between slot and GPU by itself, and the lane
 * has the scales alone. */

/* Load, before a page is touched: 0, or -EBADMSG. */
int cuda_image_verify(struct cuda_image *image);
/* Load: a piece, from the slot into its lane. */
void cuda_image_in(const struct cuda_image *image, const struct cuda_cut *cut, uint8_t *lane,
		   bool direct);
/* The same of a whole image, and verifies it on the way: 0, or -EBADMSG. */
int cuda_image_in_verified(struct cuda_image *image, const struct cuda_cut *cut, uint8_t *lane,
			   bool direct);
/* Store: a piece, from its lane into the slot. An image's pieces come in order; the last one seals
 * the image. */
void cuda_image_out(struct cuda_image *image, const struct cuda_cut *cut, const uint8_t *lane,
		    bool direct, bool last);

#endif
