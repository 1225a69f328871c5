/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec.cu - gather + amax + encode, decode + scatter: engine pages and images, both in device
 * memory. Contract: codec.h. ref.c is the oracle; the arithmetic is fp8.h's.
 */
#ifdef __CUDACC__
#define FP8_FN __device__ static __forceinline__
#endif
#include "kernels/cuda/codec.h"

#include "kernels/cuda/packed.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/cuda/unit.h"

MEM_FN uint32_t piece_first(const struct cuda_plan *plan, uint32_t piece)
{
	return mem_load4(plan->pieces + piece * sizeof(struct cuda_piece) +
			 offsetof(struct cuda_piece, first_unit));
}

MEM_FN struct cuda_piece load_piece(const struct cuda_plan *plan, uint32_t i)
{
	const uint64_t at = plan->pieces + i * sizeof(struct cuda_piece);
	const uint4 a = mem_table16(at), b = mem_table16(at + 16), c = mem_table16(at + 32),
		    d = mem_table16(at + 48);
	struct cuda_piece p;

	p.base = mem_u64(a.x, a.y);
	p.page_stride = mem_u64(a.z, a.w);
	p.head_stride = mem_u64(b.x, b.y);
	p.token_stride = mem_u64(b.z, b.w);
	p.length = c.x;
	p.kind = (uint16_t)c.y;
	p.rows = (uint16_t)(c.y >> 16);
	p.first_unit = c.z;
	p.values_k = c.w;
	p.values_v = d.x;
	p.opaque_bytes = d.y;
	p.scales_k = d.z;
	p.scales_v = d.w;
	return p;
}

/* The task that a team is at: units come in order, so the search goes on where it stood. */
struct turn {
	uint32_t task;
	uint4 counts; /* first_unit, n_units, start, codecs */
};

MEM_FN uint64_t task_at(uint64_t tasks, uint32_t i)
{
	return tasks + i * sizeof(struct cuda_task);
}

MEM_FN uint4 load_counts(uint64_t tasks, uint32_t i)
{
	return mem_table16(task_at(tasks, i) + offsetof(struct cuda_task, first_unit));
}

/* What one thread does of a unit: chunks lane, lane + lanes, ... of its `chunks`, row by row. */
struct share {
	struct unit unit;
	uint64_t scales, payload; /* addresses of the unit's scale and first byte of payload */
	uint64_t flag;
	uint32_t chunks, row_chunks;
	uint32_t multiplier; /* 2^31 / row_chunks, rounded up; of one row 0 */
	uint32_t lane, lanes;
	bool wide; /* whole chunks, aligned in page and image */
};

struct chunk {
	uint64_t page; /* address */
	uint32_t at;   /* in the unit, without gaps */
	uint32_t bytes;
};

MEM_FN struct share share_of(const struct cuda_plan *plan, uint64_t tasks, struct turn *turn,
			     const struct team *team, uint32_t at)
{
	uint4 places, outputs;
	struct cuda_piece piece;
	struct share s = { 0 };
	uint32_t unit, bits;

	while (at - turn->counts.z >= turn->counts.y)
		turn->counts = load_counts(tasks, ++turn->task);
	unit = turn->counts.x + (at - turn->counts.z);
	places = mem_table16(task_at(tasks, turn->task));
	outputs = mem_table16(task_at(tasks, turn->task) + 16);
	piece = load_piece(plan, unit_piece(plan, unit));
	s.unit = unit_of(plan, &piece, turn->counts.w & 0xff, turn->counts.w >> 8 & 0xff,
			 mem_u64(places.x, places.y), unit);
	s.scales = mem_u64(places.z, places.w) + s.unit.scale;
	s.payload = mem_u64(outputs.x, outputs.y) + s.unit.payload;
	s.flag = mem_u64(outputs.z, outputs.w);
	s.row_chunks = (s.unit.row_bytes + CUDA_CHUNK_BYTES - 1) / CUDA_CHUNK_BYTES;
	s.chunks = s.unit.rows * s.row_chunks;
	s.multiplier = s.unit.rows > 1 ? 0x7fffffffu / s.row_chunks + 1 : 0;
	s.lane = team->lane;
	s.lanes = team->lanes;
	bits = (uint32_t)s.unit.address | s.unit.row_bytes |
	       (s.unit.rows > 1 ? (uint32_t)s.unit.stride : 0) |
	       (uint32_t)s.payload << (s.unit.fp8 ? 1 : 0);
	s.wide = bits % CUDA_CHUNK_BYTES == 0;
	return s;
}

/* c < s->chunks <= 2^18, and row_chunks <= 2^13 where there are several rows: exact. */
MEM_FN struct chunk chunk_at(const struct share *s, uint32_t c)
{
	const uint32_t row = (uint32_t)((uint64_t)(2 * c) * s->multiplier >> 32),
		       byte = (c - row * s->row_chunks) * CUDA_CHUNK_BYTES,
		       left = s->unit.row_bytes - byte;
	struct chunk chunk;

	chunk.page = s->unit.address + row * s->unit.stride + byte;
	chunk.at = row * s->unit.row_bytes + byte;
	chunk.bytes = left < CUDA_CHUNK_BYTES ? left : CUDA_CHUNK_BYTES;
	return chunk;
}

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

/* The share's chunks from `first` on, zeros behind the end: all loads first. `from_page`, or from
 * the image, where chunks of fp8 take half. */
MEM_FN void load_wide(const struct share *s, uint32_t first, bool from_page, uint4 *v)
{
#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++) {
		const uint32_t c = first + i * s->lanes + s->lane;

		v[i] = zeros();
		if (c < s->chunks)
			v[i] = mem_load16(from_page ? chunk_at(s, c).page :
						      s->payload + (uint64_t)c * CUDA_CHUNK_BYTES);
	}
}

MEM_FN void load_odd(const struct share *s, uint32_t first, bool from_page, uint4 *v)
{
#pragma unroll 1
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++) {
		const uint32_t c = first + i * s->lanes + s->lane;
		uint4 x = zeros();

		if (c < s->chunks) {
			const struct chunk chunk = chunk_at(s, c);

			x = mem_load_some16(from_page ? chunk.page : s->payload + chunk.at,
					    chunk.bytes);
		}
		put(v, i, x);
	}
}

MEM_FN void load_chunks(const struct share *s, uint32_t first, bool from_page, uint4 *v)
{
	if (s->wide)
		load_wide(s, first, from_page, v);
	else
		load_odd(s, first, from_page, v);
}

/* Bytes as they are, from the page or to it. A unit may have more than its team has registers. */
MEM_FN void copy_unit(const struct share *s, bool from_page)
{
	uint4 v[CUDA_CHUNKS];

#pragma unroll 1
	for (uint32_t first = 0; first < s->chunks; first += CUDA_CHUNKS * s->lanes) {
		load_chunks(s, first, from_page, v);
#pragma unroll
		for (uint32_t i = 0; i < CUDA_CHUNKS; i++) {
			const uint32_t c = first + i * s->lanes + s->lane;

			if (c < s->chunks && s->wide)
				mem_store16(from_page ?
						    s->payload + (uint64_t)c * CUDA_CHUNK_BYTES :
						    chunk_at(s, c).page,
					    v[i]);
		}
#pragma unroll 1
		for (uint32_t i = s->wide ? CUDA_CHUNKS : 0; i < CUDA_CHUNKS; i++) {
			const uint32_t c = first + i * s->lanes + s->lane;
			const struct chunk chunk = chunk_at(s, c);

			if (c < s->chunks)
				mem_store_some16(from_page ? s->payload + chunk.at : chunk.page,
						 chunk.bytes, pick(v, i));
		}
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

/* fp8 codes of the share's chunks from `first` on, which are in v. Chunks that are not common, or
 * not whole and aligned, come after the others, one at a time: one copy of the code that knows
 * every case. saturate: v may have values that amax has not seen. */
MEM_FN void encode_chunks(const struct share *s, int is_fp16, int k, uint32_t first, bool saturate,
			  const uint4 *v)
{
	const struct packed_encode at = packed_encode_at(is_fp16, k);
	uint32_t left = 0;

#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++) {
		const uint32_t c = first + i * s->lanes + s->lane;
		uint2 codes;

		if (c < s->chunks) {
			if (packed_encode8(&at, v[i], &codes) && s->wide && !saturate)
				mem_store8(s->payload + (uint64_t)c * (CUDA_CHUNK_BYTES / 2),
					   codes);
			else
				left |= 1u << i;
		}
	}
	for (; left; left &= left - 1) {
		const uint32_t i = (uint32_t)__ffs((int)left) - 1;
		const struct chunk chunk = chunk_at(s, first + i * s->lanes + s->lane);

		mem_store_some8(s->payload + chunk.at / 2, chunk.bytes / 2,
				plain_encode8(is_fp16, k, pick(v, i)));
	}
}

/* A group's values stay in registers between amax and codes. Only of a group beyond 64 KiB the last
 * part does: the others are read again, from L2, and may have changed. */
MEM_FN void encode_unit(const struct share *s, int is_fp16, struct team *team,
			struct team_shared *shared)
{
	const uint32_t part = CUDA_CHUNKS * s->lanes;
	uint4 v[CUDA_CHUNKS];
	uint32_t amax = 0, first, last;
	int k;

	for (first = 0; first < s->chunks; first += part) {
		uint32_t x;

		load_chunks(s, first, true, v);
		x = largest(v);
		amax = x > amax ? x : amax;
	}
	first = last = first - part;
	k = fp8_exponent(is_fp16, team_max(team, shared, amax));
	if (s->lane == 0) {
		if (k == FP8_K_NONE)
			mem_store4(s->flag, 1);
		else
			mem_store1(s->scales, (uint8_t)(k + FP8_BIAS));
	}
	while (k != FP8_K_NONE) {
		encode_chunks(s, is_fp16, k, first, first != last, v);
		if (first == 0)
			break;
		first -= part;
		load_chunks(s, first, true, v);
	}
}

MEM_FN void load_codes(const struct share *s, uint32_t first, uint2 *codes)
{
#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++) {
		const uint32_t c = first + i * s->lanes + s->lane;

		codes[i].x = codes[i].y = 0;
		if (c < s->chunks && s->wide)
			codes[i] = mem_load8(s->payload + (uint64_t)c * (CUDA_CHUNK_BYTES / 2));
	}
}

MEM_FN void decode_chunks(const struct share *s, int is_fp16, int k, uint32_t first)
{
	const struct packed_decode at = packed_decode_at(is_fp16, k);
	uint2 codes[CUDA_CHUNKS];
	uint32_t left = 0;

	load_codes(s, first, codes);
#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++) {
		const uint32_t c = first + i * s->lanes + s->lane;
		uint4 v;

		if (c < s->chunks) {
			if (packed_decode8(&at, codes[i], &v) && s->wide)
				mem_store16(chunk_at(s, c).page, v);
			else
				left |= 1u << i;
		}
	}
	for (; left; left &= left - 1) { /* read again: they are in a cache, or nobody read them */
		const uint32_t i = (uint32_t)__ffs((int)left) - 1;
		const struct chunk chunk = chunk_at(s, first + i * s->lanes + s->lane);
		const uint64_t some = mem_load_some8(s->payload + chunk.at / 2, chunk.bytes / 2);

		mem_store_some16(chunk.page, chunk.bytes, plain_decode8(is_fp16, k, some));
	}
}

MEM_FN void decode_unit(const struct share *s, int is_fp16)
{
	const int k = (int)mem_load1(s->scales) - FP8_BIAS;

#pragma unroll 1
	for (uint32_t first = 0; first < s->chunks; first += CUDA_CHUNKS * s->lanes)
		decode_chunks(s, is_fp16, k, first);
}

#ifdef __cplusplus
extern "C" {
#endif

__global__ void __launch_bounds__(CUDA_THREADS, 1)
	kvtier_encode(const __grid_constant__ struct cuda_plan plan, uint64_t tasks,
		      uint32_t n_tasks, uint32_t n_units)
{
	__shared__ struct team_shared shared;
	struct team team = team_of(plan.lanes);
	struct turn turn = { 0 };

	if (n_tasks)
		turn.counts = load_counts(tasks, 0);
	for (uint32_t at = blockIdx.x * team.teams + team.index; at < n_units;
	     at += gridDim.x * team.teams) {
		const struct share s = share_of(&plan, tasks, &turn, &team, at);

		if (s.unit.fp8)
			encode_unit(&s, (int)plan.is_fp16, &team, &shared);
		else
			copy_unit(&s, true);
	}
}

__global__ void __launch_bounds__(CUDA_THREADS, 1)
	kvtier_decode(const __grid_constant__ struct cuda_plan plan, uint64_t tasks,
		      uint32_t n_tasks, uint32_t n_units)
{
	const struct team team = team_of(plan.lanes);
	struct turn turn = { 0 };

	if (n_tasks)
		turn.counts = load_counts(tasks, 0);
	for (uint32_t at = blockIdx.x * team.teams + team.index; at < n_units;
	     at += gridDim.x * team.teams) {
		const struct share s = share_of(&plan, tasks, &turn, &team, at);

		if (s.unit.fp8)
			decode_unit(&s, (int)plan.is_fp16);
		else
			copy_unit(&s, false);
	}
}

#ifdef __cplusplus
}
#endif
