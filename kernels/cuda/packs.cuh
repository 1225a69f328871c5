/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packs.cuh - lossless.h's rule: a warp does a pack, four steps at a time, eight values a thread.
 * Only for codec.cu.
 *
 * A step has 64 values in eight chunks. Lane 8 * s + l of a warp has those of step s whose places
 * are 8 * l ... 8 * l + 7; they are consecutive values, so a chunk of the page. A thread's values
 * are two words of four bytes each: exponents, distances and codes are computed four at a time. A
 * thread has a byte of each word of its step.
 *
 * Values that are not near are numbered by a sum over the lanes. To pack their three bits, each
 * thread gathers those of its eight; neighbours join theirs, and then four lanes theirs, to strings
 * of up to 32 bits, one for each of the three; at last all strings are shifted to their places and
 * joined by OR, 32 bits at a time. No byte goes through shared memory.
 *
 * A page that changes between two reads is told by its counts: they bound what is written, and must
 * be the same again at the end.
 */
#pragma once

#include "chunks.cuh"
#include "kernels/lossless.h"

enum {
	PACK_LANES = 8,   /* of a step */
	PACK_STEPS = 4,   /* that a warp does at once */
	PACK_AHEAD = 4,   /* times so many steps are loaded before any is used */
	PACK_SAMPLES = 4, /* no base has more than 16 steps as a sample */
	FAR_BITS = 3,     /* words of the far part for the same values */
	BYTE_ONES = 0x01010101,
};

struct pack {
	const struct work *work;
	int is_fp16;
	uint32_t cols, values, steps;
	uint64_t high, near, far; /* addresses: of the parts behind low, which is at the image's */
	uint32_t place;           /* of this thread among the lanes of a step */
	uint32_t chunk;           /* its first value in a step */
};

MEM_FN struct pack pack_of(const struct work *w, int is_fp16)
{
	struct pack p;

	p.work = w;
	p.is_fp16 = is_fp16;
	p.cols = w->tile.row_bytes / 2;
	p.values = w->tile.rows * p.cols;
	p.steps = (p.values + LOSSLESS_STEP - 1) / LOSSLESS_STEP;
	p.high = w->image + (uint64_t)p.steps * LOSSLESS_LOW_BYTES;
	p.near = p.high + (is_fp16 ? (uint64_t)p.steps * LOSSLESS_HIGH_BYTES : 0);
	p.far = p.near + (uint64_t)p.steps * LOSSLESS_NEAR_BYTES;
	p.place = threadIdx.x % PACK_LANES;
	p.chunk = lossless_value_at(p.place * 8);
	return p;
}

/* The step of this thread in the n-th time that the warp does four. */
MEM_FN uint32_t pack_step(uint32_t n)
{
	return n * PACK_STEPS + threadIdx.x % WARP / PACK_LANES;
}

MEM_FN uint64_t value_page(const struct pack *p, uint32_t value)
{
	const struct tile *u = &p->work->tile;
	const uint32_t row = value / p->cols;

	return u->address + row * u->stride + 2ull * (value - row * p->cols);
}

/* The thread's values of a step; the pack's last one fills it up. */
MEM_FN uint4 pack_load(const struct pack *p, uint32_t step)
{
	const uint32_t first = step * LOSSLESS_STEP + p->chunk;
	uint64_t low = 0, high = 0;

	if (p->work->wide && first + 8 <= p->values)
		return mem_load16(value_page(p, first));
#pragma unroll 1
	for (uint32_t i = first; i < first + 8; i++) {
		const uint64_t x = mem_load2(value_page(p, i < p->values ? i : p->values - 1));

		low = low >> 16 | high << 48;
		high = high >> 16 | x << 48;
	}
	return mem_uint4(low, high);
}

MEM_FN void pack_store(const struct pack *p, uint32_t step, uint4 v)
{
	const uint32_t first = step * LOSSLESS_STEP + p->chunk;
	uint64_t low = mem_u64(v.x, v.y), high = mem_u64(v.z, v.w);

	if (p->work->wide && first + 8 <= p->values) {
		mem_store16(value_page(p, first), v);
		return;
	}
#pragma unroll 1
	for (uint32_t i = first; i < first + 8 && i < p->values; i++) {
		mem_store2(value_page(p, i), (uint16_t)low);
		low = low >> 16 | high << 48;
		high >>= 16;
	}
}

/* The exponents of four values, a byte each. */
MEM_FN uint32_t exponents4(int is_fp16, uint32_t a, uint32_t b)
{
	return is_fp16 ? __byte_perm(a >> 2, b >> 2, 0x7531) & 31u * BYTE_ONES :
			 __byte_perm(a << 1, b << 1, 0x7531);
}

/* Bit 0 of each of four bytes -> four bits, and back. */
MEM_FN uint32_t bits_of_bytes(uint32_t x)
{
	return (x & BYTE_ONES) * 0x10204080u >> 28;
}

MEM_FN uint32_t bytes_of_bits(uint32_t x)
{
	return (x & 15) * 0x00204081u & BYTE_ONES;
}

/* lossless_bits() of four values, a byte each. */
struct coded4 {
	uint32_t near, far;
	uint32_t is_far, is_beyond; /* 1: its near bits are 3; its far bits are 7 */
};

/* No byte's sum or difference leaves its byte. */
MEM_FN struct coded4 code4(uint32_t base, uint32_t exponents)
{
	const uint32_t high = 0x80u * BYTE_ONES, b = base * BYTE_ONES;
	const uint32_t d = ((b | high) - (exponents & ~high)) ^ ((b ^ ~exponents) & high);
	/* d, or 15 where it is more */
	const uint32_t more = ((d >> 4 & 15u * BYTE_ONES) + 15u * BYTE_ONES) & 16u * BYTE_ONES,
		       x = (d & 15u * BYTE_ONES) | (more - (more >> 4));
	const uint32_t least_2 = (x + 14u * BYTE_ONES) >> 4 & BYTE_ONES,
		       least_5 = (x + 11u * BYTE_ONES) >> 4 & BYTE_ONES,
		       least_10 = (x + 6u * BYTE_ONES) >> 4 & BYTE_ONES;
	struct coded4 c;

	c.is_far = (least_2 ^ BYTE_ONES) | least_5;
	c.is_beyond = least_10;
	c.near = ((x + 2u * BYTE_ONES) & 3u * BYTE_ONES) | c.is_far * 3;
	c.far = ((x - least_5 * 3) | least_10 * 7) & 7u * BYTE_ONES;
	return c;
}

MEM_FN uint32_t warp_sum(uint32_t x)
{
#pragma unroll
	for (int distance = WARP / 2; distance; distance /= 2)
		x += __shfl_xor_sync((unsigned)ALL_LANES, x, distance);
	return x;
}

/* The sum of the lanes before this one; *ret_all: of all. */
MEM_FN uint32_t warp_before(uint32_t x, uint32_t *ret_all)
{
	const uint32_t lane = threadIdx.x % WARP, mine = x;

#pragma unroll
	for (uint32_t distance = 1; distance < WARP; distance *= 2) {
		const uint32_t other =
			__shfl_sync((unsigned)ALL_LANES, x,
				    (int)(lane >= distance ? lane - distance : lane));

		x += lane >= distance ? other : 0;
	}
	*ret_all = warp_told(x, WARP - 1);
	return x - mine;
}

/* How many of the sampled exponents are at least x > 0, in the warp. Those that are not there
 * are 0. */
MEM_FN uint32_t at_least(const uint32_t *exponents, uint32_t x)
{
	const uint32_t high = 0x80u * BYTE_ONES, b = x * BYTE_ONES;
	uint32_t n = 0;

#pragma unroll
	for (uint32_t i = 0; i < 2 * PACK_SAMPLES; i++) {
		const uint32_t a = exponents[i], borrow = (a | high) - (b & ~high);

		n += (uint32_t)__popc(((a & ~b) | (~(a ^ b) & borrow)) & high);
	}
	return warp_sum(n);
}

/* lossless_base() of the pack. */
MEM_FN uint32_t pack_base(const struct pack *p)
{
	const uint32_t stride = lossless_stride(p->steps), n = (p->steps + stride - 1) / stride;
	uint32_t exponents[2 * PACK_SAMPLES], least[LOSSLESS_WINDOWS + 2], top = 0;

#pragma unroll
	for (uint32_t i = 0; i < PACK_SAMPLES; i++) {
		exponents[2 * i] = exponents[2 * i + 1] = 0;
		if (pack_step(i) < n) {
			const uint4 v = pack_load(p, pack_step(i) * stride);

			exponents[2 * i] = exponents4(p->is_fp16, v.x, v.y);
			exponents[2 * i + 1] = exponents4(p->is_fp16, v.z, v.w);
		}
	}
#pragma unroll 1
	for (uint32_t bit = 128; bit; bit /= 2)
		if (at_least(exponents, top | bit) >= lossless_enough(n * LOSSLESS_STEP))
			top |= bit;
#pragma unroll
	for (uint32_t i = 0; i < LOSSLESS_WINDOWS + 2; i++)
		least[i] = top > i ? at_least(exponents, top - i) : n * LOSSLESS_STEP;
	return lossless_base(top, least);
}

/* How many values of a pack are not near, and how many of these are beyond. */
struct far_counts {
	uint32_t far, beyond;
};

/* Whole words of 64 for the far values. */
MEM_FN uint32_t far_words(uint32_t far)
{
	return (far + LOSSLESS_STEP - 1) / LOSSLESS_STEP * LOSSLESS_FAR_BYTES;
}

MEM_FN struct far_counts count_pack(const struct pack *p, uint32_t base)
{
	struct far_counts ret = { 0 };

#pragma unroll 1
	for (uint32_t n = 0; n * PACK_STEPS < p->steps; n += PACK_AHEAD) {
		uint4 v[PACK_AHEAD];

#pragma unroll
		for (uint32_t i = 0; i < PACK_AHEAD; i++)
			if (pack_step(n + i) < p->steps)
				v[i] = pack_load(p, pack_step(n + i));
#pragma unroll
		for (uint32_t i = 0; i < PACK_AHEAD; i++)
			if (pack_step(n + i) < p->steps) {
				const struct coded4 a = code4(base, exponents4(p->is_fp16, v[i].x,
									       v[i].y)),
						    b = code4(base, exponents4(p->is_fp16, v[i].z,
									       v[i].w));

				ret.far += (uint32_t)__popc(a.is_far | b.is_far << 1);
				ret.beyond += (uint32_t)__popc(a.is_beyond | b.is_beyond << 1);
			}
	}
	ret.far = warp_sum(ret.far);
	ret.beyond = warp_sum(ret.beyond);
	return ret;
}

/* Makes the scales. */
MEM_FN void scale_pack(const struct pack *p)
{
	const uint32_t base = pack_base(p);
	const struct far_counts c = count_pack(p, base);
	const uint32_t far = far_words(c.far) + c.beyond, lane = threadIdx.x % WARP;

	if (lane < IMAGE_PACK_SCALES)
		mem_store1(p->work->scale + lane, (uint8_t)(lane ? far >> 8 * (lane - 1) : base));
}

/* --- where a tile lies --- */

/* The far parts before a tile of a task, as far as they were counted. */
struct packs_before {
	uint32_t task, tile, bytes;
};

MEM_FN struct packs_before packs_before_none(void)
{
	struct packs_before b;

	b.task = CUDA_TASKS;
	b.tile = b.bytes = 0;
	return b;
}

MEM_FN uint32_t far_length(uint64_t scales)
{
	return mem_load1(scales + 1) | (uint32_t)mem_load1(scales + 2) << 8;
}

MEM_FN uint32_t far_rounded(uint32_t far)
{
	return (far + IMAGE_PACK_ALIGN - 1) & ~(IMAGE_PACK_ALIGN - 1u);
}

/* Counts on to the tile of `work`: a team's tiles come in order. The sum of forged lengths is cut,
 * but not below what fits anywhere. */
MEM_FN void count_packs(struct packs_before *at, const struct cuda_plan *plan,
			const struct cuda_tasks *tasks, const struct work *w)
{
	const struct cuda_task *t = &tasks->task[w->task];
	const uint32_t tile = t->first_tile + (w->at - t->start),
		       end = tile < plan->packs ? tile : plan->packs;

	if (at->task != w->task) {
		at->task = w->task;
		at->tile = t->first_tile;
		at->bytes = 0;
	}
#pragma unroll 1
	for (; at->tile < end; at->tile = end - at->tile < WARP ? end : at->tile + WARP) {
		const uint32_t i = at->tile + threadIdx.x % WARP;
		const uint64_t scales = t->scales + (uint64_t)i * IMAGE_PACK_SCALES;

		at->bytes += warp_sum(i < end ? far_rounded(far_length(scales)) : 0);
		if (at->bytes > IMAGE_MAX_BYTES)
			at->bytes = IMAGE_MAX_BYTES;
	}
}

/* Finds the payload of a lossless image's tile, whose scales are there. False: it does not end
 * where the task's payload does, or before. Tiles of other images are where they were found. */
MEM_FN bool place_tile(const struct cuda_plan *plan, const struct cuda_tasks *tasks,
		       struct packs_before *before, struct work *w)
{
	const struct cuda_task *t = &tasks->task[w->task];
	uint64_t bytes = (uint64_t)w->tile.rows * w->tile.row_bytes;

	if (t->codec_k != CODEC_LOSSLESS)
		return true;
	count_packs(before, plan, tasks, w);
	w->image += before->bytes;
	if (w->tile.codec == CODEC_LOSSLESS)
		bytes = tile_pack(plan, (uint32_t)bytes / 2) + far_rounded(far_length(w->scale));
	w->wide &= w->tile.codec == CODEC_LOSSLESS || before->bytes % CUDA_CHUNK_BYTES == 0;
	return w->image + bytes <= t->end;
}

/* --- encode --- */

/* What a thread's eight values become. */
struct coded8 {
	uint32_t low[2], high[2]; /* high: the upper bytes */
	uint32_t exponents[2];
	struct coded4 four[2];
};

MEM_FN struct coded8 code8(const struct pack *p, uint32_t base, uint4 v)
{
	const uint32_t words[4] = { v.x, v.y, v.z, v.w };
	struct coded8 c;

#pragma unroll
	for (uint32_t i = 0; i < 2; i++) {
		const uint32_t a = words[2 * i], b = words[2 * i + 1];

		c.exponents[i] = exponents4(p->is_fp16, a, b);
		c.four[i] = code4(base, c.exponents[i]);
		c.low[i] = __byte_perm(a, b, 0x6420);
		c.high[i] = __byte_perm(a, b, 0x7531);
		if (!p->is_fp16)
			c.low[i] = (c.low[i] & 127u * BYTE_ONES) | (c.high[i] & 128u * BYTE_ONES);
	}
	return c;
}

/* A byte for each word of a step, of bits of the eight values. */
MEM_FN void store_bits(const struct pack *p, uint64_t words, const uint32_t *x, uint32_t bit)
{
	mem_store1(words + p->place,
		   (uint8_t)(bits_of_bytes(x[0] >> bit) | bits_of_bytes(x[1] >> bit) << 4));
}

MEM_FN void store_fixed(const struct pack *p, uint32_t step, const struct coded8 *c)
{
	const uint32_t near[2] = { c->four[0].near, c->four[1].near };
	const uint64_t nears = p->near + (uint64_t)step * LOSSLESS_NEAR_BYTES,
		       highs = p->high + (uint64_t)step * LOSSLESS_HIGH_BYTES;
	uint2 low;

	low.x = c->low[0];
	low.y = c->low[1];
	mem_store8(p->work->image + (uint64_t)step * LOSSLESS_LOW_BYTES + p->place * 8ull, low);
	store_bits(p, nears, near, 0);
	store_bits(p, nears + 8, near, 1);
	if (p->is_fp16) {
		store_bits(p, highs, c->high, 0);
		store_bits(p, highs + 8, c->high, 1);
		store_bits(p, highs + 16, c->high, 7);
	}
}

/* The far part as it grows. */
struct far_end {
	struct far_counts most, done;
	uint32_t rest; /* bits behind the last whole 32, of the word that this lane stores */
};

/* The address of 32 bits: of the word `word` % 3 for the values from 32 * n on. */
MEM_FN uint64_t far_address(const struct pack *p, uint32_t n, uint32_t word)
{
	return p->far + (uint64_t)(n / 2) * LOSSLESS_FAR_BYTES + word * 8 + n % 2 * 4;
}

/* The far bits of the thread's values, packed: a byte for each of the three words. And the bytes of
 * values beyond, from number `beyond` on. */
MEM_FN uint32_t gather_far(const struct pack *p, const struct coded8 *c, const struct far_end *e,
			   uint32_t beyond)
{
	const uint64_t last = p->far + far_words(e->most.far);
	uint32_t bits = 0, n = 0;

#pragma unroll
	for (uint32_t i = 0; i < 8; i++) {
		const struct coded4 *four = &c->four[i / 4];
		const uint32_t shift = i % 4 * 8, far = four->far >> shift & 7;

		if (four->is_far >> shift & 1)
			bits |= (far * 0x4081 & 0x10101) << n++;
		if (!(four->is_beyond >> shift & 1))
			continue;
		if (beyond < e->most.beyond)
			mem_store1(last + beyond, (uint8_t)(c->exponents[i / 4] >> shift));
		beyond++;
	}
	return bits;
}

/* Joins the strings of four lanes; `n` bits of each of three in `bits`, a byte each. Returns the
 * one of the word that this lane stores. */
MEM_FN uint32_t join_far(uint32_t bits, uint32_t n)
{
	const uint32_t lane = threadIdx.x % WARP, mine = bits | n << 24,
		       other = __shfl_xor_sync((unsigned)ALL_LANES, mine, 1),
		       first = lane & 1 ? other : mine, second = lane & 1 ? mine : other,
		       shift = first >> 24, sum = shift + (second >> 24);
	/* up to 16 bits of each: two in a word, the third with their number */
	const uint32_t a = (first & 0xff) | (second & 0xff) << shift,
		       b = (first >> 8 & 0xff) | (second >> 8 & 0xff) << shift,
		       c = (first >> 16 & 0xff) | (second >> 16 & 0xff) << shift;
	const uint32_t ab = a | b << 16, cn = c | sum << 16;
	const uint32_t other_ab = __shfl_xor_sync((unsigned)ALL_LANES, ab, 2),
		       other_cn = __shfl_xor_sync((unsigned)ALL_LANES, cn, 2);
	const uint32_t low_ab = lane & 2 ? other_ab : ab, high_ab = lane & 2 ? ab : other_ab,
		       low_cn = lane & 2 ? other_cn : cn, high_cn = lane & 2 ? cn : other_cn,
		       by = low_cn >> 16;
	const uint32_t word = lane % 4,
		       low = word == 0 ? low_ab & 0xffff :
			     word == 1 ? low_ab >> 16 :
					 low_cn & 0xffff,
		       high = word == 0 ? high_ab & 0xffff :
			      word == 1 ? high_ab >> 16 :
					  high_cn & 0xffff;

	return word < FAR_BITS ? low | high << by : 0;
}

/* Puts the strings of all lanes behind the far part: `first` is the number of the lane's first far
 * value, `all` of the first one after them. Stores the words that are whole. */
MEM_FN void put_far(const struct pack *p, struct far_end *e, uint32_t string, uint32_t first,
		    uint32_t all)
{
	const uint32_t lane = threadIdx.x % WARP, begin = warp_told(first, lane & ~3u),
		       shift = begin % 32;
	uint32_t n = e->done.far / 32;

#pragma unroll 1
	for (;; n++) {
		uint32_t x = n == begin / 32                  ? string << shift :
			     shift > 0 && n == begin / 32 + 1 ? string >> (32 - shift) :
								0;

		if (n == e->done.far / 32 && lane < 4)
			x |= e->rest;
#pragma unroll
		for (int distance = 4; distance < WARP; distance *= 2)
			x |= __shfl_xor_sync((unsigned)ALL_LANES, x, distance);
		if ((n + 1) * 32 > all) {
			e->rest = x;
			return;
		}
		if (lane < FAR_BITS && n * 32 < e->most.far)
			mem_store4(far_address(p, n, lane), x);
	}
}

/* The last bits, and zeros up to the end of their words and of the pack. */
MEM_FN void end_far(const struct pack *p, struct far_end *e)
{
	const uint32_t lane = threadIdx.x % WARP, words = far_words(e->most.far),
		       far = words + e->most.beyond;

#pragma unroll 1
	for (uint32_t n = e->done.far / 32; n < words / LOSSLESS_FAR_BYTES * 2; n++) {
		if (lane < FAR_BITS)
			mem_store4(far_address(p, n, lane), e->rest);
		e->rest = 0;
	}
	if (lane < (0 - far) % IMAGE_PACK_ALIGN)
		mem_store1(p->far + far + lane, 0);
}

/* By the scales that scale_pack() made. False: the page has changed since then. */
MEM_FN bool encode_pack(const struct pack *p)
{
	const uint32_t base = mem_load1(p->work->scale);
	const struct far_counts counts = count_pack(p, base);
	struct far_end e = { 0 };
	uint4 next = { 0 };

	if (far_words(counts.far) + counts.beyond != far_length(p->work->scale))
		return false;
	e.most = counts;
	if (pack_step(0) < p->steps)
		next = pack_load(p, pack_step(0));
#pragma unroll 1
	for (uint32_t n = 0; n * PACK_STEPS < p->steps; n++) {
		struct coded8 c = { 0 };
		uint32_t before, all, is_far = 0, is_beyond = 0, first;
		const uint4 v = next;

		if (pack_step(n + 1) < p->steps)
			next = pack_load(p, pack_step(n + 1));
		if (pack_step(n) < p->steps) {
			c = code8(p, base, v);
			store_fixed(p, pack_step(n), &c);
			is_far = (uint32_t)__popc(c.four[0].is_far | c.four[1].is_far << 1);
			is_beyond =
				(uint32_t)__popc(c.four[0].is_beyond | c.four[1].is_beyond << 1);
		}
		before = warp_before(is_far | is_beyond << 16, &all);
		first = e.done.far + (before & 0xffff);
		put_far(p, &e,
			join_far(gather_far(p, &c, &e, e.done.beyond + (before >> 16)), is_far),
			first, e.done.far + (all & 0xffff));
		e.done.far += all & 0xffff;
		e.done.beyond += all >> 16;
	}
	end_far(p, &e);
	return e.done.far == counts.far && e.done.beyond == counts.beyond;
}

/* --- decode --- */

/* A mask of the first n bits; of all of them from 32 on. */
MEM_FN uint32_t first_bits(uint32_t n)
{
	return n < 32 ? (1u << n) - 1 : ~0u;
}

/* Counts what the bits say. False: the far part is not `bytes` long. Nothing behind it is read. */
MEM_FN bool pack_is_right(const struct pack *p, uint32_t bytes, struct far_counts *ret)
{
	const uint32_t lane = threadIdx.x % WARP;
	uint32_t words;

	ret->far = ret->beyond = 0;
#pragma unroll 1
	for (uint32_t i = lane; i < p->steps; i += WARP) {
		const uint64_t at = p->near + (uint64_t)i * LOSSLESS_NEAR_BYTES;
		const uint2 a = mem_load8(at), b = mem_load8(at + 8);

		ret->far += (uint32_t)(__popc(a.x & b.x) + __popc(a.y & b.y));
	}
	ret->far = warp_sum(ret->far);
	words = far_words(ret->far);
	if (words > bytes)
		return false;
#pragma unroll 1
	for (uint32_t i = lane * LOSSLESS_FAR_BYTES; i < words; i += WARP * LOSSLESS_FAR_BYTES) {
		const uint2 a = mem_load8(p->far + i), b = mem_load8(p->far + i + 8),
			    c = mem_load8(p->far + i + 16);
		const uint32_t left = ret->far - i / LOSSLESS_FAR_BYTES * LOSSLESS_STEP;

		ret->beyond +=
			(uint32_t)(__popc(a.x & b.x & c.x & first_bits(left)) +
				   __popc(a.y & b.y & c.y & first_bits(left < 32 ? 0 : left - 32)));
	}
	ret->beyond = warp_sum(ret->beyond);
	return words + ret->beyond == bytes;
}

/* n <= 8 bits of a word of the far part, from value `first` on. */
MEM_FN uint32_t load_far(const struct pack *p, uint32_t word, uint32_t first, uint32_t n)
{
	const uint32_t shift = first % 32;
	uint32_t x;

	if (n == 0)
		return 0;
	x = mem_load4(far_address(p, first / 32, word)) >> shift;
	if (shift + n > 32)
		x |= mem_load4(far_address(p, first / 32 + 1, word)) << (32 - shift);
	return x & first_bits(n);
}

/* The exponents of the thread's eight values. `far`: which are not near; their bits are in `bits`.
 * last: the address of its first value beyond. */
MEM_FN uint64_t decode_exponents(uint32_t base, uint32_t near_low, uint32_t near_high,
				 const uint32_t *bits, uint64_t last)
{
	uint64_t ret = 0;
	uint32_t a = bits[0], b = bits[1], c = bits[2], far = near_low & near_high;

#pragma unroll
	for (uint32_t i = 0; i < 2; i++) { /* base - 2 - near, as if all were near */
		const uint32_t near = bytes_of_bits(near_low >> 4 * i) +
				      2 * bytes_of_bits(near_high >> 4 * i),
			       high = 0x80u * BYTE_ONES,
			       x = ((base - LOSSLESS_NEAR) & 255) * BYTE_ONES;

		ret |= (uint64_t)(((x | high) - near) ^ (~x & high)) << 32 * i;
	}
	for (; far; far &= far - 1, a >>= 1, b >>= 1, c >>= 1) {
		const uint32_t code = (a & 1) | (b & 1) << 1 | (c & 1) << 2,
			       shift = ((uint32_t)__ffs((int)far) - 1) * 8;
		const uint32_t e = code == LOSSLESS_BEYOND ? mem_load1(last) :
							     base - lossless_distance(3, code);

		last += code == LOSSLESS_BEYOND;
		ret = (ret & ~(0xffull << shift)) | (uint64_t)(e & 0xff) << shift;
	}
	return ret;
}

MEM_FN uint4 join_values(const struct pack *p, uint32_t step, uint64_t exponents)
{
	const uint2 low =
		mem_load8(p->work->image + (uint64_t)step * LOSSLESS_LOW_BYTES + p->place * 8ull);
	const uint64_t highs = p->high + (uint64_t)step * LOSSLESS_HIGH_BYTES + p->place;
	const uint32_t lows[2] = { low.x, low.y };
	uint32_t words[4], bits[FAR_BITS] = { 0 };
	uint4 v;

#pragma unroll
	for (uint32_t i = 0; i < FAR_BITS && p->is_fp16; i++)
		bits[i] = mem_load1(highs + i * 8);
#pragma unroll
	for (uint32_t i = 0; i < 2; i++) {
		const uint32_t e = (uint32_t)(exponents >> 32 * i), x = lows[i];
		uint32_t lower = (x & 127u * BYTE_ONES) | (e & BYTE_ONES) << 7,
			 upper = (x & 128u * BYTE_ONES) | (e >> 1 & 127u * BYTE_ONES);

		if (p->is_fp16) {
			lower = x;
			upper = (e & 31u * BYTE_ONES) << 2 | bytes_of_bits(bits[0] >> 4 * i) |
				bytes_of_bits(bits[1] >> 4 * i) << 1 |
				bytes_of_bits(bits[2] >> 4 * i) << 7;
		}
		words[2 * i] = __byte_perm(lower, upper, 0x5140);
		words[2 * i + 1] = __byte_perm(lower, upper, 0x7362);
	}
	v.x = words[0];
	v.y = words[1];
	v.z = words[2];
	v.w = words[3];
	return v;
}

/* False: its length is wrong, and no value was written. */
MEM_FN bool decode_pack(const struct pack *p)
{
	const uint32_t base = mem_load1(p->work->scale);
	struct far_counts done = { 0 }, counts;
	uint64_t last;

	if (!pack_is_right(p, far_length(p->work->scale), &counts))
		return false;
	last = p->far + far_words(counts.far);
#pragma unroll 1
	for (uint32_t n = 0; n * PACK_STEPS < p->steps; n++) {
		const uint32_t step = pack_step(n);
		const uint64_t nears = p->near + (uint64_t)step * LOSSLESS_NEAR_BYTES + p->place;
		uint32_t near_low = 0, near_high = 0, far, first, all, all_beyond, beyond;
		uint32_t bits[FAR_BITS];

		if (step < p->steps) {
			near_low = mem_load1(nears);
			near_high = mem_load1(nears + 8);
		}
		far = (uint32_t)__popc(near_low & near_high);
		first = done.far + warp_before(far, &all);
#pragma unroll
		for (uint32_t i = 0; i < FAR_BITS; i++)
			bits[i] = load_far(p, i, first, far);
		beyond = done.beyond +
			 warp_before((uint32_t)__popc(bits[0] & bits[1] & bits[2]), &all_beyond);
		if (step < p->steps)
			pack_store(p, step,
				   join_values(p, step,
					       decode_exponents(base, near_low, near_high, bits,
								last + beyond)));
		done.far += all;
		done.beyond += all_beyond;
	}
	return true;
}
