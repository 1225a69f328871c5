/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec.cu - gather + amax + encode, decode + scatter: engine pages and images, both in device
 * memory. Contract: codec.h. ref.c is the oracle; the arithmetic is that of fp8.h, int8.h and
 * q4.h.
 *
 *	tile  find() ── told() to the warp ── chunks_of() a thread ──► load 8 x 16 bytes a thread
 *	      amax over the team ── k ──► codes from the same registers ──► store 8 x 8 bytes
 *
 * A team of one warp (head dims to 128) or more does a tile, an fp8 tile group by group; teams
 * take tiles in turn, in grids of any size. Warps do the strips of other coded tiles alone: 4
 * chunks wide and 64 rows long, so a channel's amax takes three shuffles and no shared memory. HBM
 * is read once: a group's values stay in registers between amax and codes. Only a group of more
 * than 64 KiB (head dims beyond 2,048) is read a second time, from L2.
 *
 * This is paper; tests/gpu/RESULTS.md has what GPUs gave. The goal is 400 GB/s of BF16 with
 * 16 blocks on as many SMs: 25 GB/s read and 12.5 written by each.
 * - Latency. A loaded HBM answers in 0.8 us. 25 GB/s times 0.8 us is 20 KB in flight an SM
 *   (Little's law). A block of 512 threads with 8 loads of 16 bytes each asks for 64 KiB at once,
 *   so a third of the time may go into other work. A thread issues all 8 loads before it waits for
 *   a value.
 * - Issue. An fp8 group of 16 tokens x 128 dims took 655 instructions of its warp to encode on
 *   sm_90, 490 to decode, before int8 came; of these 345 and 283 go to the integer pipe, which
 *   takes one in two cycles: 690 and 566 cycles a group, 4 groups at a time. That is 40 and 49
 *   GB/s an SM at 1.7 GHz (H100), and 33 to 40 and 38 to 48 with the latency of a group that has
 *   the scheduler to itself (tests/gpu/RESULTS.md has the parts; unit_cuda_binaries holds the
 *   code's size).
 * - Registers: 115 to 128 a thread. So an SM has one block of 16 warps, a quarter of the warps that
 *   it can hold. No register spills: the build fails at a spill. A second block of 512 threads
 *   would need 64 registers a thread, and half of the values in flight. The 8 loads of a thread
 *   hide the latency.
 * - Row by row, consecutive lanes read consecutive chunks: whole 32-byte sectors from rows of 32
 *   bytes on. Codes leave as 256 consecutive bytes a warp.
 *
 * A chunk that is not whole, or not aligned to 16 bytes, goes in accesses of 4, 2 or 1 bytes, one
 * chunk after the other: right, and slow. sm_89 and later convert to E4M3 in hardware, in about
 * half the instructions. Such a path may stand beside the integers once the exhaustive test has run
 * on such a GPU.
 */
#ifdef __CUDACC__
#define FP8_FN __device__ static __forceinline__
#endif
#include "codec.h"

#include "packed.cuh"
#include "chunks.cuh"
#include "channels.cuh"
#include "four_bits.cuh"
#include "packs.cuh"
#include "team.cuh"

MEM_FN uint4 zeros(void)
{
	uint4 v;

	v.x = v.y = v.z = v.w = 0;
	return v;
}

/* An array in registers must not be indexed by a variable: all are looked at. */
MEM_FN uint4 pick(const uint4 *v, uint32_t i)
{
	uint4 x = v[0];

#pragma unroll
	for (uint32_t j = 1; j < CUDA_CHUNKS; j++)
		if (j == i)
			x = v[j];
	return x;
}

MEM_FN void put(uint4 *v, uint32_t i, uint4 x)
{
#pragma unroll
	for (uint32_t j = 0; j < CUDA_CHUNKS; j++)
		if (j == i)
			v[j] = x;
}

/* Chunks first .. first + CUDA_CHUNKS - 1, of page or image, zeros behind the end: all loads before
 * any use. */
MEM_FN void load_wide(const struct chunks *s, uint32_t first, bool from_page, uint4 *v)
{
	const uint64_t step = from_page ? s->page_step : s->image_step;
	uint64_t address = from_page ? chunk_page(s, first) : chunk_image(s, first);

#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++, address += step) {
		v[i] = zeros();
		if (chunk_is(s, first + i))
			v[i] = mem_load16(address);
	}
}

MEM_FN void load_odd(const struct chunks *s, uint32_t first, bool from_page, uint4 *v)
{
#pragma unroll 1
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++) {
		uint4 x = zeros();

		if (chunk_is(s, first + i))
			x = mem_load_some16(from_page ? chunk_page(s, first + i) :
							chunk_image(s, first + i),
					    chunk_bytes(s, first + i));
		put(v, i, x);
	}
}

MEM_FN void load_chunks(const struct chunks *s, uint32_t first, bool from_page, uint4 *v)
{
	if (s->wide)
		load_wide(s, first, from_page, v);
	else
		load_odd(s, first, from_page, v);
}

MEM_FN void store_wide(const struct chunks *s, uint32_t first, bool to_page, const uint4 *v)
{
	const uint64_t step = to_page ? s->page_step : s->image_step;
	uint64_t address = to_page ? chunk_page(s, first) : chunk_image(s, first);

#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++, address += step)
		if (chunk_is(s, first + i))
			mem_store16(address, v[i]);
}

MEM_FN void store_odd(const struct chunks *s, uint32_t first, bool to_page, const uint4 *v)
{
#pragma unroll 1
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++)
		if (chunk_is(s, first + i))
			mem_store_some16(to_page ? chunk_page(s, first + i) :
						   chunk_image(s, first + i),
					 chunk_bytes(s, first + i), pick(v, i));
}

MEM_FN void store_chunks(const struct chunks *s, uint32_t first, bool to_page, const uint4 *v)
{
	if (s->wide)
		store_wide(s, first, to_page, v);
	else
		store_odd(s, first, to_page, v);
}

/* Bytes as they are, from the page or to it. The first ones are in v. */
MEM_FN void copy_tile(const struct work *w, struct chunks *s, uint4 *v, const struct team *team,
		      bool from_page)
{
	const uint32_t singles = work_is_single(w) ? w->tile.rows : 1;
	uint32_t row = 0, first = 0;

#pragma unroll 1
	for (;;) {
		store_chunks(s, first, !from_page, v);
		first += CUDA_CHUNKS;
		if (first * s->step >= s->end) {
			if (++row == singles)
				return;
			*s = chunks_row(&w->tile, team, w->image, row);
			s->wide = w->wide;
			first = 0;
		}
		load_chunks(s, first, from_page, v);
	}
}

/* The largest magnitude code. The upper half of a word decides between words; of the lower halves
 * the maximum is taken apart, shifted up and its sign shifted out. */
MEM_FN uint32_t largest(const uint4 *v)
{
	uint32_t high = 0, low = 0;

#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++) {
		const uint32_t words[4] = { v[i].x, v[i].y, v[i].z, v[i].w };

#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			const uint32_t upper = words[j] & 0x7fffffff, lower = words[j] << 17;

			high = upper > high ? upper : high;
			low = lower > low ? lower : low;
		}
	}
	high >>= 16;
	low >>= 17;
	return high > low ? high : low;
}

/* Chunk i, by fp8.h, which knows every case. */
MEM_FN void encode_plain(const struct chunks *s, int is_fp16, int k, uint32_t i, uint4 v)
{
	mem_store_some8(chunk_image(s, i), chunk_bytes(s, i) / 2, plain_encode8(is_fp16, k, v));
}

/* fp8 codes of the chunks from `first` on, which are in v. Chunks that are not common, or
 * not whole and aligned, come after the others, one at a time. */
MEM_FN void encode_chunks(const struct chunks *s, int is_fp16, int k, uint32_t first,
			  const uint4 *v)
{
	const struct packed_encode at = packed_encode_at(is_fp16, k);
	uint64_t address = chunk_image(s, first);
	uint32_t left = 0;

#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++, address += s->image_step) {
		uint2 codes;

		if (chunk_is(s, first + i)) {
			if (packed_encode8(&at, v[i], &codes) && s->wide)
				mem_store8(address, codes);
			else
				left |= 1u << i;
		}
	}
	for (; left; left &= left - 1) {
		const uint32_t i = (uint32_t)__ffs((int)left) - 1;

		encode_plain(s, is_fp16, k, first + i, pick(v, i));
	}
}

/* Chunks 0 .. n - 1 of a group beyond 64 KiB are read again, from L2. They may have changed since
 * amax was taken, and fp8_encode() saturates. */
MEM_FN void encode_again(const struct chunks *s, int is_fp16, int k, uint32_t n)
{
#pragma unroll 1
	for (uint32_t i = 0; i < n; i++)
		if (chunk_is(s, i))
			encode_plain(s, is_fp16, k, i,
				     mem_load_some16(chunk_page(s, i), chunk_bytes(s, i)));
}

MEM_FN void refuse(const struct work *w, const struct cuda_tasks *tasks)
{
	mem_store4(tasks->task[w->task].flag, tasks->mark);
}

/* A group's values stay in registers between amax and codes; of a group beyond 64 KiB, the last
 * part's. */
MEM_FN void encode_group(const struct work *w, const struct chunks *s, uint4 *v, int is_fp16,
			 const struct cuda_tasks *tasks, struct team *team,
			 struct team_shared *shared)
{
	uint32_t amax = 0, first = 0;
	int k;

#pragma unroll 1
	for (;; load_odd(s, first, true, v)) {
		const uint32_t x = largest(v);

		amax = x > amax ? x : amax;
		if ((first + CUDA_CHUNKS) * s->step >= s->end)
			break;
		first += CUDA_CHUNKS;
	}
	k = fp8_exponent(is_fp16, team_max(team, shared, amax));
	if (k == FP8_K_NONE) {
		if (team->lane == 0)
			refuse(w, tasks);
		return;
	}
	if (team->lane == 0)
		mem_store1(w->scale, (uint8_t)(k + FP8_BIAS));
	encode_chunks(s, is_fp16, k, first, v);
	encode_again(s, is_fp16, k, first);
}

MEM_FN void store_channels(const struct chunks *s, const struct channels *at, const uint4 *v)
{
	uint64_t address = chunk_image(s, 0);

	if (s->wide) {
#pragma unroll
		for (uint32_t i = 0; i < CUDA_CHUNKS; i++, address += s->image_step)
			if (chunk_is(s, i))
				mem_store8(address, channels_encode(at, v[i]));
		return;
	}
#pragma unroll 1
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++)
		if (chunk_is(s, i)) {
			const uint2 codes = channels_encode(at, pick(v, i));

			mem_store_some8(chunk_image(s, i), chunk_bytes(s, i) / 2,
					mem_u64(codes.x, codes.y));
		}
}

MEM_FN void encode_strip(const struct work *w, const struct chunks *s, const uint4 *v, int is_fp16,
			 const struct cuda_tasks *tasks)
{
	const uint32_t width = WARP / s->step;
	uint32_t amax[4];
	struct channels at;

	channels_largest(v, amax);
	lanes_agree(amax, width, WARP);
	if (!chunk_is(s, 0))
		return;
	if (!channels_encode_at(is_fp16, amax, &at)) {
		refuse(w, tasks);
		return;
	}
	if (threadIdx.x % WARP < width)
		mem_store_some8(w->scale + s->channel, chunk_bytes(s, 0) / 2, at.scales);
	store_channels(s, &at, v);
}

/* The place of the scale of a v4 row's group that has the thread's columns. */
MEM_FN uint64_t v4_scale(const struct work *w, const struct chunks *s, uint32_t i)
{
	const uint32_t groups = tile_scales(CODEC_V4, 1, w->tile.row_bytes / 2);

	return w->scale + (s->at + i * s->step) * groups + s->channel / IMAGE_V4_VALUES;
}

/* Chunk i of a strip -> its codes. */
MEM_FN uint32_t encode_q4_chunk(bool k4, struct channels *at, uint64_t steps, uint32_t i, uint4 v)
{
	if (!k4)
		v4_at(true, (uint32_t)(steps >> 8 * i) & 0xff, at);
	return q4_encode8(k4, at, v);
}

MEM_FN void store_q4(bool k4, const struct chunks *s, struct channels *at, uint64_t steps,
		     const uint4 *v)
{
	uint64_t address = chunk_image(s, 0);

	if (s->wide) {
#pragma unroll
		for (uint32_t i = 0; i < CUDA_CHUNKS; i++, address += s->image_step)
			if (chunk_is(s, i))
				mem_store4(address, encode_q4_chunk(k4, at, steps, i, v[i]));
		return;
	}
#pragma unroll 1
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++)
		if (chunk_is(s, i)) {
			const uint32_t n = chunk_bytes(s, i) / 2;
			const uint64_t codes = encode_q4_chunk(k4, at, steps, i, pick(v, i));

			/* an odd last value leaves half a byte */
			mem_store_some8(chunk_image(s, i), (n + 1) / 2,
					codes & ((1ull << 4 * n) - 1));
		}
}

MEM_FN void encode_q4(bool k4, const struct work *w, const struct chunks *s, const uint4 *v,
		      int is_fp16, const struct cuda_tasks *tasks)
{
	const struct sharing sharing = sharing_of(k4, WARP / s->step);
	uint32_t lo[CHANNELS / 2] = { 0 }, hi[CHANNELS / 2];
	uint64_t steps;
	struct channels at;

	if (k4)
		k4_ends(is_fp16, s, v, &sharing, lo, hi);
	else
		v4_ends(v, &sharing, hi);
	/* A lane without a chunk may have found the steps of others'. Channels without values have
	 * ends that are no numbers. */
	if (!q4_steps(k4, is_fp16, &sharing, lo, hi, &steps) &&
	    (!k4 || (s->left && w->row < w->tile.rows)))
		refuse(w, tasks);
	if (!chunk_is(s, 0))
		return;
	channels_widen(is_fp16, &at);
	if (k4) {
		const uint32_t n = chunk_bytes(s, 0) / 2;
		uint4 least;

		k4_at(true, lo, steps, &at);
		least.x = lo[0];
		least.y = lo[1];
		least.z = lo[2];
		least.w = lo[3];
		if (sharing.mine == 0) {
			mem_store_some16(w->scale + 2 * s->channel, 2 * n, least);
			mem_store_some8(w->scale + w->tile.row_bytes + s->channel, n, steps);
		}
	} else if (sharing.mine == 0) {
#pragma unroll 1
		for (uint32_t i = 0; i < CUDA_CHUNKS; i++)
			if (chunk_is(s, i))
				mem_store1(v4_scale(w, s, i), (uint8_t)(steps >> 8 * i));
	}
	store_q4(k4, s, &at, steps, v);
}

MEM_FN void load_codes(const struct chunks *s, uint32_t first, uint2 *codes)
{
	uint64_t address = chunk_image(s, first);

#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++, address += s->image_step) {
		codes[i].x = codes[i].y = 0;
		if (chunk_is(s, first + i) && s->wide)
			codes[i] = mem_load8(address);
	}
}

MEM_FN void decode_chunks(const struct chunks *s, int is_fp16, int k, uint32_t first)
{
	const struct packed_decode at = packed_decode_at(is_fp16, k);
	uint2 codes[CUDA_CHUNKS];
	uint64_t address = chunk_page(s, first);
	uint32_t left = 0;

	load_codes(s, first, codes);
#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++, address += s->page_step) {
		uint4 v;

		if (chunk_is(s, first + i)) {
			if (packed_decode8(&at, codes[i], &v) && s->wide)
				mem_store16(address, v);
			else
				left |= 1u << i;
		}
	}
	for (; left; left &= left - 1) { /* read again: they are in a cache, or were not read yet */
		const uint32_t i = first + (uint32_t)__ffs((int)left) - 1, n = chunk_bytes(s, i);

		mem_store_some16(chunk_page(s, i), n,
				 plain_decode8(is_fp16, k,
					       mem_load_some8(chunk_image(s, i), n / 2)));
	}
}

MEM_FN void decode_group(const struct work *w, int is_fp16, const struct team *team)
{
	const int k = (int)mem_load1(w->scale) - FP8_BIAS;
	const struct chunks s = chunks_of(w, team);

#pragma unroll 1
	for (uint32_t first = 0; first * s.step < s.end; first += CUDA_CHUNKS)
		decode_chunks(&s, is_fp16, k, first);
}

/* A strip by int8.h, which knows every case. */
MEM_FN void decode_plain(const struct chunks *s, int is_fp16, uint64_t scales)
{
#pragma unroll 1
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++)
		if (chunk_is(s, i)) {
			const uint32_t n = chunk_bytes(s, i);

			mem_store_some16(chunk_page(s, i), n,
					 plain_channels(is_fp16, scales,
							mem_load_some8(chunk_image(s, i), n / 2)));
		}
}

MEM_FN void copy_all(const struct work *w, const struct team *team, bool encode)
{
	struct chunks s = chunks_of(w, team);
	uint4 v[CUDA_CHUNKS];

	load_chunks(&s, 0, encode, v);
	copy_tile(w, &s, v, team, encode);
}

MEM_FN void decode_strip(const struct work *w, const struct team *team, int is_fp16)
{
	const struct chunks s = chunks_of(w, team);
	const uint32_t n = chunk_bytes(&s, 0) / 2;
	const uint64_t scales = mem_load_some8(w->scale + s.channel, n);
	uint2 codes[CUDA_CHUNKS];
	uint64_t address = chunk_page(&s, 0);
	struct channels at;

	load_codes(&s, 0, codes);
	if (!channels_decode_at(is_fp16, scales, n, &at) || !s.wide) {
		decode_plain(&s, is_fp16, scales);
		return;
	}
#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++, address += s.page_step)
		if (chunk_is(&s, i))
			mem_store16(address, channels_decode(&at, codes[i]));
}

/* A strip by q4.h. */
MEM_FN void decode_q4_plain(bool k4, const struct chunks *s, int is_fp16, const uint32_t *lo,
			    uint64_t steps)
{
#pragma unroll 1
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++)
		if (chunk_is(s, i)) {
			const uint32_t n = chunk_bytes(s, i);
			const uint32_t codes =
				(uint32_t)mem_load_some8(chunk_image(s, i), (n / 2 + 1) / 2);

			mem_store_some16(
				chunk_page(s, i), n,
				q4_plain8(k4, is_fp16, lo,
					  k4 ? steps : (steps >> 8 * i & 0xff) * 0x0101010101010101,
					  codes));
		}
}

MEM_FN void decode_q4(bool k4, const struct work *w, const struct team *team, int is_fp16)
{
	const struct chunks s = chunks_of(w, team);
	const uint32_t n = chunk_bytes(&s, 0) / 2;
	uint64_t steps = 0, image = chunk_image(&s, 0), page = chunk_page(&s, 0);
	uint32_t codes[CUDA_CHUNKS], lo[CHANNELS / 2] = { 0 };
	struct channels at;

#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++, image += s.image_step) {
		codes[i] = chunk_is(&s, i) && s.wide ? mem_load4(image) : 0;
		if (!k4 && chunk_is(&s, i))
			steps |= (uint64_t)mem_load1(v4_scale(w, &s, i)) << 8 * i;
	}
	if (k4) {
		const uint4 least = mem_load_some16(w->scale + 2 * s.channel, 2 * n);

		lo[0] = least.x;
		lo[1] = least.y;
		lo[2] = least.z;
		lo[3] = least.w;
		steps = mem_load_some8(w->scale + w->tile.row_bytes + s.channel, n);
	}
	if (!s.wide || (k4 && !k4_finite(is_fp16, lo))) {
		decode_q4_plain(k4, &s, is_fp16, lo, steps);
		return;
	}
	channels_widen(is_fp16, &at);
	if (k4)
		k4_at(false, lo, steps, &at);
#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++, page += s.page_step)
		if (chunk_is(&s, i)) {
			if (!k4)
				v4_at(false, (uint32_t)(steps >> 8 * i) & 0xff, &at);
			mem_store16(page, q4_decode8(k4, is_fp16, &at, codes[i]));
		}
}

/* The packs and the other tiles of lossless images. */
MEM_FN void code_packs(const struct cuda_plan *plan, const struct cuda_tasks *tasks, bool encode)
{
	const struct team team = team_of(plan->lanes);
	struct round round = round_of(&team);
	struct packs_before before = packs_before_none();
	struct work w;

	while (tasks->n && next_work(plan, tasks, true, &team, &round, &w)) {
		if (!place_tile(plan, tasks, &before, &w)) {
			refuse(&w, tasks);
		} else if (w.tile.codec == CODEC_LOSSLESS) {
			const struct pack p = pack_of(&w, (int)plan->is_fp16);

			if (encode ? !encode_pack(&p) : !decode_pack(&p))
				refuse(&w, tasks);
		} else {
			copy_all(&w, &team, encode);
		}
	}
}

#ifdef __cplusplus
extern "C" {
#endif

__global__ void __launch_bounds__(CUDA_THREADS, 1)
	kvtier_encode(const __grid_constant__ struct cuda_plan plan,
		      const __grid_constant__ struct cuda_tasks tasks)
{
	__shared__ struct team_shared shared;
	struct team team = team_of(plan.lanes);
	struct round round = round_of(&team);
	struct work w;

	while (tasks.n && next_work(&plan, &tasks, false, &team, &round, &w)) {
		struct chunks s = chunks_of(&w, &team);
		uint4 v[CUDA_CHUNKS];

		load_chunks(&s, 0, true, v);
		if (w.tile.codec == CODEC_FP8)
			encode_group(&w, &s, v, (int)plan.is_fp16, &tasks, &team, &shared);
		else if (w.tile.codec == CODEC_INT8)
			encode_strip(&w, &s, v, (int)plan.is_fp16, &tasks);
		else if (w.tile.codec == CODEC_K4)
			encode_q4(true, &w, &s, v, (int)plan.is_fp16, &tasks);
		else if (w.tile.codec == CODEC_V4)
			encode_q4(false, &w, &s, v, (int)plan.is_fp16, &tasks);
		else
			copy_tile(&w, &s, v, &team, true);
	}
}

__global__ void __launch_bounds__(CUDA_THREADS, 1)
	kvtier_decode(const __grid_constant__ struct cuda_plan plan,
		      const __grid_constant__ struct cuda_tasks tasks)
{
	const struct team team = team_of(plan.lanes);
	struct round round = round_of(&team);
	struct work w;

	while (tasks.n && next_work(&plan, &tasks, false, &team, &round, &w)) {
		if (w.tile.codec == CODEC_FP8)
			decode_group(&w, (int)plan.is_fp16, &team);
		else if (w.tile.codec == CODEC_INT8)
			decode_strip(&w, &team, (int)plan.is_fp16);
		else if (w.tile.codec == CODEC_K4)
			decode_q4(true, &w, &team, (int)plan.is_fp16);
		else if (w.tile.codec == CODEC_V4)
			decode_q4(false, &w, &team, (int)plan.is_fp16);
		else
			copy_all(&w, &team, false);
	}
}

__global__ void __launch_bounds__(CUDA_THREADS, 1)
	kvtier_pack_lengths(const __grid_constant__ struct cuda_plan plan,
			    const __grid_constant__ struct cuda_tasks tasks)
{
	const struct team team = team_of(plan.lanes);
	struct round round = round_of(&team);
	struct work w;

	while (tasks.n && next_work(&plan, &tasks, true, &team, &round, &w))
		if (w.tile.codec == CODEC_LOSSLESS) {
			const struct pack p = pack_of(&w, (int)plan.is_fp16);

			scale_pack(&p);
		}
}

__global__ void __launch_bounds__(CUDA_THREADS, 1)
	kvtier_pack_encode(const __grid_constant__ struct cuda_plan plan,
			   const __grid_constant__ struct cuda_tasks tasks)
{
	code_packs(&plan, &tasks, true);
}

__global__ void __launch_bounds__(CUDA_THREADS, 1)
	kvtier_pack_decode(const __grid_constant__ struct cuda_plan plan,
			   const __grid_constant__ struct cuda_tasks tasks)
{
	code_packs(&plan, &tasks, false);
}

#ifdef __cplusplus
}
#endif
