/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_image.c - see cuda_image.h. */
#include "cuda_image.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kernels/cuda/plan.h"

/* Hashed and copied together, so that the second finds it in the cache. */
enum { STEP_BYTES = 16 << 10 };

/* --- cuts --- */

static uint32_t scale_at(const struct cuda_tiles *u, uint32_t tile, uint32_t *ret_payload)
{
	uint32_t scale;

	cuda_plan_at(u->plan, u->pieces, u->codec_k, u->codec_v, tile, &scale, ret_payload);
	return scale;
}

/* Far parts of n packs, each up to its pack's end. */
static uint32_t far_bytes(const uint8_t *scales, uint32_t n)
{
	uint32_t sum = 0;

	for (; n; n--, scales += IMAGE_PACK_SCALES)
		sum += (image_pack_far(scales) + IMAGE_PACK_ALIGN - 1) / IMAGE_PACK_ALIGN *
		       IMAGE_PACK_ALIGN;
	return sum;
}

void cuda_tiles_go(struct cuda_tiles *u, uint32_t from, uint32_t to)
{
	uint32_t first, end, payload;

	if (u->codec_k != CODEC_LOSSLESS || !u->scales)
		return;
	first = scale_at(u, from, &payload);
	end = scale_at(u, to, &payload);
	u->far += far_bytes(u->scales + first, (end - first) / IMAGE_PACK_SCALES);
}

/* Far parts of a cut of a lossless image: what they have, or what they may have. */
static uint32_t far_of(const struct cuda_tiles *u, const struct cuda_cut *cut)
{
	const struct cuda_plan *plan = u->plan;
	const uint32_t n = cut->scale_bytes / IMAGE_PACK_SCALES;
	uint32_t first, last;

	if (u->scales)
		return far_bytes(u->scales + cut->scale, n);
	if (cut->n_tiles == plan->n_tiles)
		return u->most - cut->fixed;
	(void)scale_at(u, cut->first_tile, &first);
	(void)scale_at(u, cut->first_tile + n, &last); /* opaque tiles have no scale */
	return (last - first) / lossless_step_bytes((int)plan->is_fp16) * CUDA_PART_FAR;
}

/* The tiles [cut->first_tile, end): their bytes, and where they would lie. */
static void place(const struct cuda_tiles *u, uint32_t end, uint32_t used, struct cuda_cut *cut)
{
	uint32_t payload_end;
	uint64_t payload_at;

	cut->n_tiles = end - cut->first_tile;
	cut->scale = scale_at(u, cut->first_tile, &cut->payload);
	cut->scale_bytes = scale_at(u, end, &payload_end) - cut->scale;
	cut->payload_bytes = cut->fixed = payload_end - cut->payload;
	if (u->codec_k == CODEC_LOSSLESS) {
		cut->payload += u->far;
		cut->far = u->far;
		cut->payload_bytes += far_of(u, cut);
	}
	cut->scale_at = used;
	payload_at = (uint64_t)used + cut->scale_bytes;
	payload_at += (cut->payload - payload_at) % CUDA_LANE_ALIGN;
	cut->payload_at = (uint32_t)payload_at;
	cut->end = cut->payload_at + cut->payload_bytes;
}

bool cuda_cut(const struct cuda_tiles *u, uint32_t first, uint32_t used, uint32_t lane_bytes,
	      struct cuda_cut *ret)
{
	struct cuda_cut cut = { .first_tile = first };
	uint32_t low = first, high = u->end; /* low fits, or is first; high: not */

	place(u, high, used, &cut);
	if (cut.end <= lane_bytes) {
		*ret = cut;
		return true;
	}
	if (used > CUDA_LANE_HEAD) {
		struct cuda_cut whole = { .first_tile = u->first };

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

/* --- the CPU's half --- */

static const struct image_geometry *geometry_of(const struct cuda_image *i)
{
	return &i->job->layout->pages.geometry;
}

static uint8_t *scales_of(const struct cuda_image *i)
{
	return i->job->image + sizeof(struct image_header);
}

void *cuda_image_hash(void)
{
	return aligned_alloc(64, (sizeof(XXH3_state_t) + 63) / 64 * 64);
}

int cuda_image_begin(struct cuda_image *i)
{
	struct device_job *job = i->job;

	i->codec_k = job->codec_k;
	i->codec_v = job->codec_v;
	job->out_codec_k = job->codec_k;
	job->out_codec_v = job->codec_v;
	if (image_shape(geometry_of(i), i->codec_k, i->codec_v, &i->shape, NULL) ||
	    i->shape.image_bytes > job->image_bytes)
		return -EINVAL;
	i->stored = 0;
	(void)XXH3_64bits_reset(i->hash);
	return 0;
}

int cuda_image_begin_load(struct cuda_image *i)
{
	struct device_job *job = i->job;
	struct image_header header;
	int r;

	memcpy(&header, job->image, sizeof(header));
	r = image_header_check(&header, geometry_of(i), &job->identity, &i->shape);
	if (r)
		return r;
	if (i->shape.image_bytes > job->image_bytes ||
	    (header.codec_k == CODEC_LOSSLESS &&
	     !image_packs_fit(geometry_of(i), &i->shape, scales_of(i))))
		return -EBADMSG;
	i->codec_k = header.codec_k;
	i->codec_v = header.codec_v;
	i->checksum = header.checksum;
	job->out_codec_k = header.codec_k;
	job->out_codec_v = header.codec_v;
	(void)XXH3_64bits_reset(i->hash);
	return 0;
}

/* Packs are right before a page is touched, where its checksum is asked for. */
static int look_at_packs(const struct cuda_image *i)
{
	return i->codec_k == CODEC_LOSSLESS &&
			       !image_packs_are_right(geometry_of(i), &i->shape, i->job->image) ?
		       -EBADMSG :
		       0;
}

int cuda_image_verify(struct cuda_image *i)
{
	const int r = codec_verify(i->kernels, i->job->image, &i->shape, i->checksum);

	return r ? r : look_at_packs(i);
}

/* Payload, through the cache once: hashed, and copied to `to` while it is there. */
static void hash_and_copy(struct cuda_image *i, uint8_t *to, const uint8_t *from, uint32_t bytes)
{
	for (uint32_t at = 0; at < bytes; at += STEP_BYTES) {
		const uint32_t left = bytes - at;
		const uint32_t n = left < STEP_BYTES ? left : STEP_BYTES;

		(void)XXH3_64bits_update(i->hash, from + at, n);
		i->kernels->copy(to + at, from + at, n);
	}
}

uint8_t *cuda_image_payload(const struct cuda_image *i, const struct cuda_cut *cut)
{
	return i->job->image + i->shape.payload_offset + cut->payload;
}

int cuda_image_in(struct cuda_image *i, const struct cuda_cut *cut, uint8_t *lane, bool direct,
		  bool verify)
{
	uint8_t *payload = cuda_image_payload(i, cut), *scales = lane + cut->scale_at;

	memcpy(scales, scales_of(i) + cut->scale, cut->scale_bytes);
	if (verify && !direct)
		hash_and_copy(i, lane + cut->payload_at, payload, cut->payload_bytes);
	else if (verify)
		(void)XXH3_64bits_update(i->hash, payload, cut->payload_bytes);
	else if (!direct)
		i->kernels->copy(lane + cut->payload_at, payload, cut->payload_bytes);
	i->kernels->fence(); /* the copy engine sees it */
	if (!verify)
		return 0;
	(void)XXH3_64bits_update(i->hash, payload + cut->payload_bytes,
				 i->shape.payload_bytes - cut->payload_bytes);
	(void)XXH3_64bits_update(i->hash, scales, cut->scale_bytes);
	return XXH3_64bits_digest(i->hash) == i->checksum ? look_at_packs(i) : -EBADMSG;
}

static void seal(struct cuda_image *i)
{
	uint8_t *image = i->job->image;
	const uint32_t used = (uint32_t)sizeof(struct image_header) + i->shape.scale_bytes;
	struct image_header header;

	(void)XXH3_64bits_update(i->hash, scales_of(i), i->shape.scale_bytes);
	image_header_fill(&header, geometry_of(i), i->codec_k, i->codec_v, &i->shape,
			  &i->job->identity);
	image_seal(&header, XXH3_64bits_digest(i->hash));
	memcpy(image, &header, sizeof(header));
	memset(image + used, 0, i->shape.payload_offset - used); /* the padding */
}

/* Behind the packs: the payload's last zeros, and those up to the end of the slot's image. */
static void end_packs(struct cuda_image *i)
{
	uint8_t *end = i->job->image + i->shape.payload_offset + i->stored;

	memset(end, 0, i->shape.payload_bytes - i->stored);
	(void)XXH3_64bits_update(i->hash, end, IMAGE_PACK_SPARE);
	image_shape_cut(&i->shape, i->stored + IMAGE_PACK_SPARE);
}

/* The lengths in the lane say how much there is. The kernel has refused what has no room there. */
static int packs_out(struct cuda_image *i, const struct cuda_cut *cut, const uint8_t *lane)
{
	const uint32_t n = cut->scale_bytes / IMAGE_PACK_SCALES,
		       bytes = cut->fixed + far_bytes(lane + cut->scale_at, n);

	if (bytes > cut->payload_bytes ||
	    bytes > i->shape.payload_bytes - IMAGE_PACK_SPARE - i->stored)
		return -ERANGE;
	hash_and_copy(i, i->job->image + i->shape.payload_offset + i->stored,
		      lane + cut->payload_at, bytes);
	i->stored += bytes;
	return 0;
}

int cuda_image_out(struct cuda_image *i, const struct cuda_cut *cut, const uint8_t *lane,
		   bool direct, bool last)
{
	int r = 0;

	if (i->codec_k == CODEC_LOSSLESS)
		r = packs_out(i, cut, lane);
	else if (direct)
		(void)XXH3_64bits_update(i->hash, cuda_image_payload(i, cut), cut->payload_bytes);
	else
		hash_and_copy(i, cuda_image_payload(i, cut), lane + cut->payload_at,
			      cut->payload_bytes);
	if (r)
		return r;
	memcpy(scales_of(i) + cut->scale, lane + cut->scale_at, cut->scale_bytes);
	if (last && i->codec_k == CODEC_LOSSLESS)
		end_packs(i);
	if (last)
		seal(i);
	i->kernels->fence();
	return 0;
}
