/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_cut.h - how images are laid into lanes. A lane is a buffer of a few MiB that crosses the
 * wire in one copy: several small images whole, or a run of units of a large one.
 *
 *	lane:  head (flags) | scales, payload of a piece | scales, payload of the next | ...
 *
 * Pure computation on host memory: any thread.
 */
#ifndef KVTIER_CUDA_CUT_H
#define KVTIER_CUDA_CUT_H

#include <stdbool.h>

#include "kernels/cuda/codec.h"

enum {
	CUDA_LANE_PIECES = CUDA_TASKS,                        /* one launch can do them */
	CUDA_LANE_HEAD = CUDA_LANE_PIECES * sizeof(uint32_t), /* a flag a piece; a load has none */
	CUDA_LANE_ALIGN = 256, /* a payload's bytes are aligned here as in their image */
	/* The rest of a lane is not worth a piece of an image that has to be cut anyway. */
	CUDA_PIECE_LEAST = 256 << 10,
	/* The smallest lane: the largest unit (16 tokens of 4,096 FP32 values) fits, and a run is
	 * worth its copy. */
	CUDA_LANE_LEAST = 1 << 20,
};

/* Where units begin in an image of these codecs. */
struct cuda_units {
	const struct cuda_plan *plan;
	const struct cuda_piece *pieces;
	enum image_codec codec_k, codec_v;
	/* of the image, the units that are wanted: [first, end). A store's last are wanted later */
	uint32_t first, end;
};

/* A run of units, and its place in a lane. */
struct cuda_cut {
	uint32_t first_unit, n_units;
	uint32_t scale, scale_bytes;     /* in the image's scales */
	uint32_t payload, payload_bytes; /* in the image's payload */
	uint32_t scale_at, payload_at;   /* in the lane */
	uint32_t end;                    /* of the lane's used bytes, with it */
};

/* The units from `first` on that go behind the `used` bytes of a lane. An image that fits into a
 * lane is never cut. False: they belong into the next lane. In an empty lane (used ==
 * CUDA_LANE_HEAD) there is room for one unit at least. */
bool cuda_cut(const struct cuda_units *units, uint32_t first, uint32_t used, uint32_t lane_bytes,
	      struct cuda_cut *ret);

#endif
