/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_cut.c - see cuda_cut.h. */
#include "cuda_cut.h"

#include "kernels/cuda/plan.h"

static uint32_t at(const struct cuda_units *u, uint32_t unit, uint32_t *ret_payload)
{
	uint32_t scale;

	cuda_plan_at(u->plan, u->pieces, u->codec_k, u->codec_v, unit, &scale, ret_payload);
	return scale;
}

/* The units [cut->first_unit, end): their bytes, and where they would lie. */
static void place(const struct cuda_units *u, uint32_t end, uint32_t used, struct cuda_cut *cut)
{
	uint32_t payload_end;
	uint64_t payload_at;

	cut->n_units = end - cut->first_unit;
	cut->scale = at(u, cut->first_unit, &cut->payload);
	cut->scale_bytes = at(u, end, &payload_end) - cut->scale;
	cut->payload_bytes = payload_end - cut->payload;
	cut->scale_at = used;
	payload_at = (uint64_t)used + cut->scale_bytes;
	payload_at += (cut->payload - payload_at) % CUDA_LANE_ALIGN;
	cut->payload_at = (uint32_t)payload_at;
	cut->end = cut->payload_at + cut->payload_bytes;
}

bool cuda_cut(const struct cuda_units *u, uint32_t first, uint32_t used, uint32_t lane_bytes,
	      struct cuda_cut *ret)
{
	struct cuda_cut cut = { .first_unit = first };
	uint32_t low = first, high = u->end; /* low fits, or is first; high: not */

	place(u, high, used, &cut);
	if (cut.end <= lane_bytes) {
		*ret = cut;
		return true;
	}
	if (used > CUDA_LANE_HEAD) {
		struct cuda_cut whole = { .first_unit = u->first };

		place(u, u->end, CUDA_LANE_HEAD, &whole);
		if (whole.end <= lane_bytes || lane_bytes - used < CUDA_PIECE_LEAST)
			return false;
	}
	while (high - low > 1) {
		const uint32_t middle = low + (high - low) / 2;

		place(u, middle, used, &cut);
		if (cut.end <= lane_bytes)
			low = middle;
		else
			high = middle;
	}
	if (low == first)
		return false;
	place(u, low, used, &cut);
	*ret = cut;
	return true;
}
