/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_image.h - lays an image that a GPU encodes or decodes into lanes, and does the CPU's half of
 * the work: headers, checksums, and copies between host slots and pinned lanes. A lane is a buffer
 * of a few MiB that crosses the wire in one copy: several small images whole, or a run of tiles of
 * a large one.
 *
 *	lane:  head (flags) | scales, payload of a piece | scales, payload of the next | ...
 *
 * No CUDA call is made here. One thread at a time has an image.
 */
#pragma once

#include "daemon/device/device.h"
#include "kernels/cuda/codec.h"

enum {
	CUDA_LANE_PIECES = CUDA_TASKS,                        /* one launch can do them */
	CUDA_LANE_HEAD = CUDA_LANE_PIECES * sizeof(uint32_t), /* a flag a piece, of stores */
	CUDA_LANE_ALIGN = 256, /* a payload's bytes are aligned here as in their image */
	/* A part of a lossless image has room for so many bytes of far part a step, in the mean: a
	 * third more than the whole image. So few images are raw for a few layers' sake. */
	CUDA_PART_FAR = 16,
	/* The rest of a lane is not worth a piece of an image that has to be cut anyway. */
	CUDA_PIECE_LEAST = 256 << 10,
	/* The smallest lane: the largest tile (64 tokens of 4,096 BF16 values) fits, and a run is
	 * worth its copy. */
	CUDA_LANE_LEAST = 1 << 20,
};

/* Where tiles begin in an image of these codecs. */
struct cuda_tiles {
	const struct cuda_plan *plan;
	const struct cuda_piece *pieces;
	enum image_codec codec_k, codec_v;
	/* of the image, the tiles that are wanted: [first, end). A store's last are wanted later */
	uint32_t first, end;
	/* Lossless. Load: the image's scales, and the far parts before the next tile. Store, whose
	 * lengths are not known yet: scales is NULL, and `most` is the most payload of an image */
	const uint8_t *scales;
	uint32_t far, most;
};

/* A run of tiles, and its place in a lane. */
struct cuda_cut {
	uint32_t first_tile, n_tiles;
	uint32_t scale, scale_bytes; /* in the image's scales */
	/* in the image's payload; of a lossless image that is stored: as without far parts, and so
	 * many bytes at most */
	uint32_t payload, payload_bytes;
	uint32_t far, fixed; /* lossless: of payload and payload_bytes, far parts; all others */
	uint32_t scale_at, payload_at; /* in the lane */
	uint32_t end;                  /* of the lane's used bytes, with it */
};

/* The tiles from `first` on that go behind the `used` bytes of a lane. An image that fits into a
 * lane is never cut. False: they belong into the next lane. In an empty lane (used ==
 * CUDA_LANE_HEAD) there is room for one tile at least. */
bool cuda_cut(const struct cuda_tiles *tiles, uint32_t first, uint32_t used, uint32_t lane_bytes,
	      struct cuda_cut *ret);

/* The next tile was `from` and is `to`. */
void cuda_tiles_go(struct cuda_tiles *tiles, uint32_t from, uint32_t to);

struct cuda_image {
	const struct codec_kernels *kernels;
	struct device_job *job;
	struct image_shape shape;
	enum image_codec codec_k, codec_v; /* of this image */
	uint64_t checksum;                 /* load: the header's */
	uint32_t stored;                   /* store: bytes of payload in the slot */
	/* of the payload so far: of a store, and of a load that verifies its bytes */
	void *hash;
};

/* Allocates memory for a hash, at start; NULL: out of memory. */
void *cuda_image_hash(void);

/* Begins with an image that the job describes: one to be stored, or one in the GPU's memory. 0 or
 * -EINVAL. */
int cuda_image_begin(struct cuda_image *image);
/* Begins with the image in the slot of a load. 0, or -EBADMSG: it is not the image that the job
 * asks for. */
int cuda_image_begin_load(struct cuda_image *image);

/* Where a piece's payload lies in the slot. */
uint8_t *cuda_image_payload(const struct cuda_image *image, const struct cuda_cut *cut);

/* Below, `direct`: the copy engine moves the payload between slot and GPU by itself, and the lane
 * has the scales alone. */

/* Load: compares the checksum, before a page is touched. 0 or -EBADMSG. */
int cuda_image_verify(struct cuda_image *image);
/* Load: copies a piece from the slot into its lane. verify: the piece is the whole image, which is
 * verified on the way. 0 or -EBADMSG. */
int cuda_image_in(struct cuda_image *image, const struct cuda_cut *cut, uint8_t *lane, bool direct,
		  bool verify);
/* Store: copies a piece from its lane into the slot. An image's pieces come in order, and the last
 * one seals the image. 0, or -ERANGE: the image is lossless and becomes too long. */
int cuda_image_out(struct cuda_image *image, const struct cuda_cut *cut, const uint8_t *lane,
		   bool direct, bool last);
