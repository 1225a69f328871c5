/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_coder.h - records that are the coded form of their image (kernels/form.h), or of an image in
 * fewer bits that is made of it (tiers/recode.h): made before they are appended, undone after they
 * were read, by threads of the tier's own. For the core thread.
 *
 * A record that is made takes memory beside the image: NVME_CODER_BYTES in all. What has no room
 * there, or is not worth it, is appended as it is.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/workers.h"
#include "kernels/form.h"
#include "tiers/form_trial.h"
#include "tiers/recode.h"

enum { NVME_CODER_BYTES = 64 << 20, NVME_CODER_THREADS = 2 };

/* What the coders of all disks share. */
struct nvme_coders {
	struct workers *workers; /* NULL: no record was coded yet */
	struct loop *loop;
	const struct codec_kernels *kernels;
	struct form_trials trials;
	uint64_t bytes; /* of records that were begun and not freed */
	uint64_t full;  /* images that were to be coded and had no room */
	bool compress;  /* of images as they are; records are undone in any case */
};

/* One image on its way. Zeroed: none is. */
struct nvme_coder {
	struct work work;
	struct nvme_coders *shared;
	void (*done)(struct nvme_coder *coder); /* on the core thread, from the loop */
	uint8_t *image;
	uint32_t bytes; /* of the image's slot */
	uint32_t codec; /* enum kvtier_codec of the record's image; 0: the image's own */
	struct image_geometry geometry;
	struct image_shape shape;
	uint8_t *record;      /* page-aligned, of vault_buffer(); NULL: none */
	size_t room;          /* of it */
	uint32_t coded_bytes; /* of the record; 0: the image is to be appended as it is */
	int status;           /* of an undone one: 0, -EBADMSG, -ENOMEM */
};

/* 0 or -errno. Without `compress` threads are made when a record is to be undone. */
int nvme_coders_open(struct nvme_coders *coders, struct loop *loop, bool compress);
void nvme_coders_close(struct nvme_coders *coders); /* no image is on its way */

/* Begins to make the record of an image that lies in `bytes` bytes, in another codec if one is
 * asked for (xfer.codec). False: it is to be appended as it is. The image is lent until done(),
 * where coder->codec is 0 unless it got that codec. */
bool nvme_coder_pack(struct nvme_coders *coders, struct nvme_coder *coder, uint8_t *image,
		     uint32_t bytes, uint32_t codec, void (*done)(struct nvme_coder *coder));
/* Begins to undo a record of coded_bytes, which lies at the start of a buffer of `bytes` bytes and
 * may be anything; the image takes its place. 0, and the buffer is lent until done(); or -errno:
 * there are no threads. */
int nvme_coder_unpack(struct nvme_coders *coders, struct nvme_coder *coder, uint8_t *buffer,
		      uint32_t bytes, uint32_t coded_bytes, void (*done)(struct nvme_coder *coder));
/* Frees the record that was made, if there is one. */
void nvme_coder_free(struct nvme_coder *coder);
