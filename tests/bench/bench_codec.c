/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codec.c - codec.*: gather+encode and decode+scatter against a non-temporal copy of the same
 * pages.
 *
 * One thread, and its CPU time: time that other programs take from the core meanwhile does not
 * count. Pages and images are memfds, as in the daemon, of more blocks than a private cache holds.
 * A run is one pass of the copy (page -> other page, same bytes) and one of the codec over all
 * blocks; both figures are logical bytes a second. The .cached cases do the same with one small
 * block whose page and slot stay in L2, so that no memory hides the arithmetic; their limit is a
 * pass with the same loads and stores and nothing between. Values are Gaussian, as keys and values
 * nearly are; the error cases use the same. KERNELS=avx2 (or ref, vbmi2) in the environment
 * measures that implementation instead of the daemon's choice.
 */
#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/form.h"
#include "kernels/fp8.h"
#include "tests/lib/lib_pages.h"
#include "bench.h"

enum { RUNS = 15, SET_BYTES = 96 << 20, GROUP_VALUES = 2048, ERROR_GROUPS = 4096 };
enum what { ENCODE, DECODE, CHECKSUM, GATHER };
enum order { TOKEN_MAJOR, HEAD_MAJOR };

struct setup {
	enum what what;
	uint32_t dtype, heads, dim, tokens, layers;
	enum order order;
	bool cached;
	uint32_t codec; /* of a space */
};

struct bed {
	struct page_layout layout;
	struct page_piece pieces[2 * 64];
	struct image_shape shape;
	struct image_identity identity;
	uint32_t blocks, rounds; /* a pass: all blocks, as often */
	uint64_t page_bytes, slot_bytes;
	uint8_t *pages, *copies, *images, *scratch;
};

/* A memfd, as engine regions and host slots are. */
static uint8_t *map_bytes(uint64_t n)
{
	int fd;
	uint8_t *ret = bench_memfd(n, false, &fd);

	memset(ret, 0, n); /* real pages, before anything is timed */
	return ret;
}

static uint32_t random32(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33);
}

static float gaussian(uint64_t *state)
{
	const double u = (random32(state) + 1.0) / 2147483649.0, v = random32(state) / 2147483648.0;

	return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static uint16_t to_code(uint32_t dtype, float x)
{
	const struct fp8_source s = fp8_source(dtype == DTYPE_FP16);
	int step = x == 0 ? s.least : ilogbf(x) - s.mantissa;
	uint32_t magnitude;

	step = step < s.least ? s.least : step;
	magnitude = ((uint32_t)(step - s.least) << s.mantissa) +
		    (uint32_t)lrintf(ldexpf(fabsf(x), -step));
	return (uint16_t)(magnitude | (signbit(x) ? 0x8000u : 0));
}

/* Pages as engines lay them out: per layer K then V, each plane contiguous within the page. */
static void lay_out(const struct setup *s, struct bed *b)
{
	const uint64_t row = s->dim * 2ull, plane = row * s->heads * s->tokens;

	b->layout.geometry = (struct image_geometry){
		.dtype = s->dtype,
		.layers = s->layers,
		.kv_heads = s->heads,
		.head_dim_k = s->dim,
		.head_dim_v = s->dim,
		.block_tokens = s->tokens,
	};
	b->layout.n_pieces = 2 * s->layers;
	b->layout.pieces = b->pieces;
	b->page_bytes = plane * b->layout.n_pieces;
	for (uint32_t i = 0; i < b->layout.n_pieces; i++)
		b->pieces[i] = (struct page_piece){
			.base = b->pages + i * plane,
			.page_stride = b->page_bytes,
			.head_stride = s->order == TOKEN_MAJOR ? row : row * s->tokens,
			.token_stride = s->order == TOKEN_MAJOR ? row * s->heads : row,
			.kind = i & 1 ? KIND_V : KIND_K,
			.layer = i / 2,
		};
}

static void bed_make(const struct setup *s, const struct codec_kernels *k, struct bed *b)
{
	const struct image_codecs codec = image_codecs(s->codec);
	uint64_t seed = 1;

	*b = (struct bed){ 0 };
	lay_out(s, b);
	bench_must(image_shape(&b->layout.geometry, codec.k, codec.v, &b->shape, NULL));
	b->blocks = s->cached ? 1 : (uint32_t)(SET_BYTES / b->page_bytes);
	b->rounds = s->cached ? (uint32_t)(SET_BYTES / b->page_bytes) : 1;
	b->slot_bytes = (b->shape.image_bytes + 4095u) & ~4095u;
	b->pages = map_bytes(b->blocks * b->page_bytes);
	b->copies = map_bytes(b->blocks * b->page_bytes);
	b->images = map_bytes(b->blocks * b->slot_bytes);
	b->scratch = map_bytes(CODEC_SCRATCH_BYTES);
	lay_out(s, b);
	for (uint64_t i = 0; i < b->page_bytes; i += 2) {
		const uint16_t v = to_code(s->dtype, gaussian(&seed));

		memcpy(b->pages + i, &v, sizeof(v));
	}
	for (uint32_t i = 0; i < b->blocks; i++) {
		if (i)
			memcpy(b->pages + i * b->page_bytes, b->pages, b->page_bytes);
		bench_must(codec_encode(k, &b->layout, i, codec.k, codec.v, &b->identity,
					b->images + i * b->slot_bytes, b->scratch));
	}
}

#if defined(__x86_64__)
/* Loads `from` lines and stores `to` lines past the cache, in turn, over the whole block. */
__attribute__((target("avx2"))) static void
bare_block(uint8_t *dst, uint32_t to, const uint8_t *src, uint32_t from, uint64_t dst_bytes)
{
	for (uint64_t at = 0; at < dst_bytes; at += 64ull * to) {
		__m256i a = _mm256_setzero_si256(), b = a;

		for (uint32_t i = 0; i < from; i++, src += 64) {
			a = _mm256_or_si256(a, _mm256_load_si256((const void *)src));
			b = _mm256_or_si256(b, _mm256_load_si256((const void *)(src + 32)));
		}
		for (uint32_t i = 0; i < to; i++, dst += 64) {
			_mm256_stream_si256((void *)dst, a);
			_mm256_stream_si256((void *)(dst + 32), b);
		}
	}
	_mm_sfence();
}
#endif

static void limit_pass(const struct setup *s, const struct codec_kernels *k, struct bed *b)
{
	uint8_t *payload = b->images + b->shape.payload_offset;

	for (uint32_t i = 0; i < b->blocks * (s->cached ? 0 : 1); i++)
		k->copy(b->copies + i * b->page_bytes, b->pages + i * b->page_bytes, b->page_bytes);
	for (uint32_t round = 0; round < b->rounds && s->cached; round++) {
#if defined(__x86_64__)
		if (s->what == DECODE)
			bare_block(b->pages, 2, payload, 1, b->page_bytes);
		else
			bare_block(payload, 1, b->pages, s->what == GATHER ? 1 : 2,
				   b->shape.payload_bytes);
#else
		k->copy(payload, b->pages, b->shape.payload_bytes);
#endif
	}
}

static void codec_pass(const struct setup *s, const struct codec_kernels *k, struct bed *b)
{
	const struct image_codecs codec = image_codecs(s->codec);
	int r = 0;

	for (uint32_t n = 0; n < b->blocks * b->rounds && !r; n++) {
		const uint32_t i = n % b->blocks;
		uint8_t *image = b->images + i * b->slot_bytes;

		if (s->what == CHECKSUM)
			r = codec_verify(k, image, &b->shape,
					 ((struct image_header *)(void *)image)->checksum);
		else if (s->what == DECODE)
			r = codec_decode(k, &b->layout, i, image, b->scratch);
		else
			r = codec_encode(k, &b->layout, i, codec.k, codec.v, &b->identity, image,
					 b->scratch);
	}
	bench_must(r);
}

static void run_speed(const struct bench_case *self, struct bench_result *ret)
{
	const struct setup *s = self->arg;
	const struct codec_kernels *k = codec_kernels(getenv("KERNELS"));
	struct bed b;

	bench_must(k ? 0 : -ENOTSUP);
	bed_make(s, k, &b);
	for (int run = -1; run < RUNS; run++) { /* run -1 warms up */
		const double bytes = (double)(b.blocks * b.rounds * b.page_bytes);
		uint64_t t0, t1, t2;

		t0 = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
		codec_pass(s, k, &b);
		t1 = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
		/* the next pass overwrites its bytes in a cached block */
		limit_pass(s, k, &b);
		t2 = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
		if (run >= 0)
			bench_add(ret, bytes / (double)(t1 - t0), bytes / (double)(t2 - t1));
	}
	bench_note(ret, "%s, %u heads x %u, %u tokens, %s", k->name, s->heads, s->dim, s->tokens,
		   s->order == TOKEN_MAJOR ? "token-major" : "head-major");
}

/* How many times the bytes of the image the block has. The note says what its slot takes. */
static void run_ratio(const struct bench_case *self, struct bench_result *ret)
{
	const struct setup *s = self->arg;
	const struct codec_kernels *k = codec_kernels(getenv("KERNELS"));
	const struct image_header *header;
	struct image_shape shape;
	struct bed b;

	bench_must(k ? 0 : -ENOTSUP);
	bed_make(s, k, &b);
	header = (const void *)b.images;
	bench_must(image_header_shape(header, &b.layout.geometry, &shape));
	bench_add(ret, (double)shape.logical_bytes / (shape.payload_bytes + shape.scale_bytes), 1);
	bench_note(ret, "payload and scales; a slot takes %.3f of raw",
		   (double)b.shape.image_bytes / shape.logical_bytes);
}

/* The coded form of block i's image into `to`. Returns its bytes. */
static uint32_t pack_block(const struct codec_kernels *k, const struct bed *b, uint32_t i,
			   uint8_t *to)
{
	struct form_pack p;
	int r;

	form_pack_start(&p, k, &b->layout.geometry, &b->shape, b->images + i * b->slot_bytes, to);
	do
		r = form_pack_step(&p, CODEC_PIECE_BYTES);
	while (r == CODEC_MORE);
	bench_must(r);
	return p.n;
}

static void unpack_block(const struct codec_kernels *k, struct bed *b, uint32_t i,
			 const uint8_t *form, uint32_t n)
{
	struct form_unpack u;
	size_t used;

	form_unpack_start(&u, k, &b->shape, b->images + i * b->slot_bytes);
	bench_must(form_unpack_some(&u, form, n, &used));
	bench_must(form_unpack_whole(&u) ? 0 : -EBADMSG);
}

/* Images, out of no cache, to one form, or from it: forms are sent as they are made, and unpacked
 * as they come in. Figures are bytes of images, and the limit is a copy of those. */
static void run_coded(const struct bench_case *self, struct bench_result *ret)
{
	const struct setup *s = self->arg;
	const struct codec_kernels *k = codec_kernels(getenv("KERNELS"));
	struct bed b;
	uint8_t *form;
	uint32_t n;

	bench_must(k ? 0 : -ENOTSUP);
	bed_make(s, k, &b);
	form = map_bytes(form_most(&b.shape) + FORM_SPARE);
	n = pack_block(k, &b, 0, form);
	for (int run = -1; run < RUNS; run++) {
		const double bytes = (double)b.blocks * b.shape.payload_bytes;
		uint64_t t0, t1, t2;

		t0 = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
		for (uint32_t i = 0; i < b.blocks; i++) {
			if (s->what == ENCODE)
				(void)pack_block(k, &b, i, form);
			else
				unpack_block(k, &b, i, form, n);
		}
		t1 = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
		for (uint32_t i = 0; i < b.blocks; i++)
			k->copy(b.copies + i * b.page_bytes,
				b.images + i * b.slot_bytes + b.shape.payload_offset,
				b.shape.payload_bytes);
		t2 = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
		if (run >= 0)
			bench_add(ret, bytes / (double)(t1 - t0), bytes / (double)(t2 - t1));
	}
	bench_note(ret, "%s, fp8 of %u heads x %u, %u tokens", k->name, s->heads, s->dim,
		   s->tokens);
}

/* How many times the bytes of its form the image has. */
static void run_coded_ratio(const struct bench_case *self, struct bench_result *ret)
{
	const struct setup *s = self->arg;
	const struct codec_kernels *k = codec_kernels(getenv("KERNELS"));
	uint8_t *form;
	struct bed b;

	bench_must(k ? 0 : -ENOTSUP);
	bed_make(s, k, &b);
	form = map_bytes(form_most(&b.shape) + FORM_SPARE);
	bench_add(ret,
		  (double)(b.shape.scale_bytes + b.shape.payload_bytes) /
			  pack_block(k, &b, 0, form),
		  1);
}

/* Power of the error of Gaussian data, of theirs. */
static double gaussian_error(void)
{
	double signal = 0, noise = 0;
	uint64_t seed = 2;

	for (uint32_t g = 0; g < ERROR_GROUPS; g++) {
		uint16_t v[GROUP_VALUES];
		uint32_t amax = 0;
		int k;

		for (uint32_t i = 0; i < GROUP_VALUES; i++) {
			v[i] = to_code(DTYPE_BF16, gaussian(&seed));
			amax = (v[i] & 0x7fffu) > amax ? v[i] & 0x7fffu : amax;
		}
		k = fp8_exponent(0, amax);
		for (uint32_t i = 0; i < GROUP_VALUES; i++) {
			const double x = codec_value(0, v[i]);
			const double y = codec_value(0, fp8_decode(0, k, fp8_encode(0, k, v[i])));

			signal += x * x;
			noise += (x - y) * (x - y);
		}
	}
	return noise / signal;
}

static void run_error_rms(const struct bench_case *self, struct bench_result *ret)
{
	(void)self;
	bench_add(ret, 100 * sqrt(gaussian_error()), 2.687);
}

static void run_error_sqnr(const struct bench_case *self, struct bench_result *ret)
{
	(void)self;
	bench_add(ret, -10 * log10(gaussian_error()), 31);
}

static struct image_shape shape_1mib(void)
{
	const struct image_geometry g = {
		.dtype = DTYPE_BF16,
		.layers = 32,
		.kv_heads = 8,
		.head_dim_k = 128,
		.head_dim_v = 128,
		.block_tokens = 16,
	};
	struct image_shape ret;

	bench_must(image_shape(&g, CODEC_FP8, CODEC_FP8, &ret, NULL));
	return ret;
}

static void run_size(const struct bench_case *self, struct bench_result *ret)
{
	const struct image_shape shape = shape_1mib();

	(void)self;
	bench_add(ret, (double)shape.packed_bytes / shape.logical_bytes, 0.5006);
}

static void run_size_slot(const struct bench_case *self, struct bench_result *ret)
{
	const struct image_shape shape = shape_1mib();

	(void)self;
	bench_add(ret, (double)shape.image_bytes / shape.logical_bytes, 0.503);
}

/* 1 MiB images: 32 layers of 8 x 128 x 16 tokens, or as many layers as come near. */
/* clang-format off */
#define SPEED(name, prose, goal, codec, ...) \
	{ name, run_speed, prose, goal, BENCH_MORE, "GB/s", \
	  &(const struct setup){ __VA_ARGS__, false, codec } }

#define RATIO(name, prose, goal, ...) \
	{ name, run_ratio, prose, goal, BENCH_MORE, "x", \
	  &(const struct setup){ ENCODE, __VA_ARGS__, true, CODEC_LOSSLESS } }

#define CODED(name, run, prose, goal, unit, ...) \
	{ name, run, prose, goal, BENCH_MORE, unit, \
	  &(const struct setup){ __VA_ARGS__, false, CODEC_FP8 } }

#define CACHED(name, prose, goal, codec, ...) \
	{ name, run_speed, prose, goal, BENCH_MORE, "GB/s", \
	  &(const struct setup){ __VA_ARGS__, true, codec } }

const struct bench_case bench_codec_cases[] = {
	SPEED("codec.encode.fp8.bf16", "gather+encode, of a non-temporal copy of the pages", 0.85,
	      CODEC_FP8, ENCODE, DTYPE_BF16, 8, 128, 16, 32, TOKEN_MAJOR),
	SPEED("codec.encode.fp8.bf16.tokens64", "the same, 64-token blocks", 0.85,
	      CODEC_FP8, ENCODE, DTYPE_BF16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.encode.fp8.bf16.heads3", "the same, 3 heads x 64", 0.85,
	      CODEC_FP8, ENCODE, DTYPE_BF16, 3, 64, 64, 30, TOKEN_MAJOR),
	SPEED("codec.encode.fp8.bf16.headmajor", "the same, head-major pages", 0.85,
	      CODEC_FP8, ENCODE, DTYPE_BF16, 8, 128, 16, 32, HEAD_MAJOR),
	SPEED("codec.encode.fp8.bf16.headmajor64", "the same, head-major, 64-token blocks", 0.85,
	      CODEC_FP8, ENCODE, DTYPE_BF16, 8, 128, 64, 8, HEAD_MAJOR),
	SPEED("codec.encode.fp8.fp16", "gather+encode of FP16", 0.85,
	      CODEC_FP8, ENCODE, DTYPE_FP16, 8, 128, 16, 32, TOKEN_MAJOR),
	SPEED("codec.encode.fp8.fp16.heads3", "the same, 3 heads x 64", 0.85,
	      CODEC_FP8, ENCODE, DTYPE_FP16, 3, 64, 64, 30, TOKEN_MAJOR),
	SPEED("codec.decode.fp8.bf16", "decode+scatter, of a non-temporal copy of the pages", 0.95,
	      CODEC_FP8, DECODE, DTYPE_BF16, 8, 128, 16, 32, TOKEN_MAJOR),
	SPEED("codec.decode.fp8.bf16.tokens64", "the same, 64-token blocks", 0.95,
	      CODEC_FP8, DECODE, DTYPE_BF16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.decode.fp8.bf16.heads3", "the same, 3 heads x 64", 0.95,
	      CODEC_FP8, DECODE, DTYPE_BF16, 3, 64, 64, 30, TOKEN_MAJOR),
	SPEED("codec.decode.fp8.bf16.headmajor", "the same, head-major pages", 0.95,
	      CODEC_FP8, DECODE, DTYPE_BF16, 8, 128, 16, 32, HEAD_MAJOR),
	SPEED("codec.decode.fp8.bf16.headmajor64", "the same, head-major, 64-token blocks", 0.95,
	      CODEC_FP8, DECODE, DTYPE_BF16, 8, 128, 64, 8, HEAD_MAJOR),
	SPEED("codec.decode.fp8.fp16", "decode+scatter to FP16", 0.95,
	      CODEC_FP8, DECODE, DTYPE_FP16, 8, 128, 16, 32, TOKEN_MAJOR),
	SPEED("codec.decode.fp8.fp16.heads3", "the same, 3 heads x 64", 0.95,
	      CODEC_FP8, DECODE, DTYPE_FP16, 3, 64, 64, 30, TOKEN_MAJOR),
	SPEED("codec.encode.int8.bf16", "gather+encode, int8 of 16 tokens", 0.75,
	      CODEC_INT8, ENCODE, DTYPE_BF16, 8, 128, 16, 32, TOKEN_MAJOR),
	SPEED("codec.encode.int8.bf16.tokens64", "the same, 64-token blocks", 0.75,
	      CODEC_INT8, ENCODE, DTYPE_BF16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.encode.int8.bf16.heads3", "the same, 3 heads x 64", 0.75,
	      CODEC_INT8, ENCODE, DTYPE_BF16, 3, 64, 64, 30, TOKEN_MAJOR),
	SPEED("codec.encode.int8.bf16.headmajor64", "the same, head-major, 64-token blocks", 0.75,
	      CODEC_INT8, ENCODE, DTYPE_BF16, 8, 128, 64, 8, HEAD_MAJOR),
	SPEED("codec.encode.int8.fp16", "gather+encode of FP16", 0.75,
	      CODEC_INT8, ENCODE, DTYPE_FP16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.decode.int8.bf16", "decode+scatter, int8 of 16 tokens", 0.95,
	      CODEC_INT8, DECODE, DTYPE_BF16, 8, 128, 16, 32, TOKEN_MAJOR),
	SPEED("codec.decode.int8.bf16.tokens64", "the same, 64-token blocks", 0.95,
	      CODEC_INT8, DECODE, DTYPE_BF16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.decode.int8.bf16.heads3", "the same, 3 heads x 64", 0.95,
	      CODEC_INT8, DECODE, DTYPE_BF16, 3, 64, 64, 30, TOKEN_MAJOR),
	SPEED("codec.decode.int8.bf16.headmajor64", "the same, head-major, 64-token blocks", 0.95,
	      CODEC_INT8, DECODE, DTYPE_BF16, 8, 128, 64, 8, HEAD_MAJOR),
	SPEED("codec.decode.int8.fp16", "decode+scatter to FP16", 0.95,
	      CODEC_INT8, DECODE, DTYPE_FP16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.encode.q4.bf16", "gather+encode, q4 of 16 tokens", 0.45,
	      CODECS_Q4, ENCODE, DTYPE_BF16, 8, 128, 16, 32, TOKEN_MAJOR),
	SPEED("codec.encode.q4.bf16.tokens64", "the same, 64-token blocks", 0.45,
	      CODECS_Q4, ENCODE, DTYPE_BF16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.encode.q4.bf16.heads3", "the same, 3 heads x 64", 0.45,
	      CODECS_Q4, ENCODE, DTYPE_BF16, 3, 64, 64, 30, TOKEN_MAJOR),
	SPEED("codec.encode.q4.bf16.headmajor64", "the same, head-major, 64-token blocks", 0.45,
	      CODECS_Q4, ENCODE, DTYPE_BF16, 8, 128, 64, 8, HEAD_MAJOR),
	SPEED("codec.encode.q4.fp16", "gather+encode of FP16", 0.45,
	      CODECS_Q4, ENCODE, DTYPE_FP16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.decode.q4.bf16", "decode+scatter, q4 of 16 tokens", 0.75,
	      CODECS_Q4, DECODE, DTYPE_BF16, 8, 128, 16, 32, TOKEN_MAJOR),
	SPEED("codec.decode.q4.bf16.tokens64", "the same, 64-token blocks", 0.75,
	      CODECS_Q4, DECODE, DTYPE_BF16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.decode.q4.bf16.heads3", "the same, 3 heads x 64", 0.75,
	      CODECS_Q4, DECODE, DTYPE_BF16, 3, 64, 64, 30, TOKEN_MAJOR),
	SPEED("codec.decode.q4.bf16.headmajor64", "the same, head-major, 64-token blocks", 0.75,
	      CODECS_Q4, DECODE, DTYPE_BF16, 8, 128, 64, 8, HEAD_MAJOR),
	SPEED("codec.decode.q4.fp16", "decode+scatter to FP16", 0.75,
	      CODECS_Q4, DECODE, DTYPE_FP16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.encode.lossless.bf16", "gather+encode, lossless, 16-token blocks", 0.70,
	      CODEC_LOSSLESS, ENCODE, DTYPE_BF16, 8, 128, 16, 32, TOKEN_MAJOR),
	SPEED("codec.encode.lossless.bf16.tokens64", "the same, 64-token blocks", 0.70,
	      CODEC_LOSSLESS, ENCODE, DTYPE_BF16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.encode.lossless.bf16.heads3", "the same, 3 heads x 64", 0.70,
	      CODEC_LOSSLESS, ENCODE, DTYPE_BF16, 3, 64, 64, 30, TOKEN_MAJOR),
	SPEED("codec.encode.lossless.bf16.headmajor64", "the same, head-major, 64-token blocks",
	      0.70,
	      CODEC_LOSSLESS, ENCODE, DTYPE_BF16, 8, 128, 64, 8, HEAD_MAJOR),
	SPEED("codec.encode.lossless.fp16", "gather+encode of FP16", 0.70,
	      CODEC_LOSSLESS, ENCODE, DTYPE_FP16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.decode.lossless.bf16", "decode+scatter, lossless, 16-token blocks", 0.95,
	      CODEC_LOSSLESS, DECODE, DTYPE_BF16, 8, 128, 16, 32, TOKEN_MAJOR),
	SPEED("codec.decode.lossless.bf16.tokens64", "the same, 64-token blocks", 0.95,
	      CODEC_LOSSLESS, DECODE, DTYPE_BF16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.decode.lossless.bf16.heads3", "the same, 3 heads x 64", 0.95,
	      CODEC_LOSSLESS, DECODE, DTYPE_BF16, 3, 64, 64, 30, TOKEN_MAJOR),
	SPEED("codec.decode.lossless.bf16.headmajor64", "the same, head-major, 64-token blocks",
	      0.95,
	      CODEC_LOSSLESS, DECODE, DTYPE_BF16, 8, 128, 64, 8, HEAD_MAJOR),
	SPEED("codec.decode.lossless.fp16", "decode+scatter to FP16", 0.95,
	      CODEC_LOSSLESS, DECODE, DTYPE_FP16, 8, 128, 64, 8, TOKEN_MAJOR),
	RATIO("codec.ratio.lossless.bf16", "bytes of Gaussian BF16 blocks, of their image's", 1.47,
	      DTYPE_BF16, 8, 128, 64, 8, TOKEN_MAJOR),
	RATIO("codec.ratio.lossless.bf16.tokens16", "the same, 16-token blocks", 1.47,
	      DTYPE_BF16, 8, 128, 16, 32, TOKEN_MAJOR),
	RATIO("codec.ratio.lossless.fp16", "the same of FP16", 1.15,
	      DTYPE_FP16, 8, 128, 64, 8, TOKEN_MAJOR),
	CODED("codec.ratio.coded", run_coded_ratio, "bytes of fp8 images of Gaussian blocks, of "
						    "their coded form's", 1.13, "x",
	      ENCODE, DTYPE_BF16, 8, 128, 64, 8, TOKEN_MAJOR),
	CODED("codec.encode.coded", run_coded, "fp8 images to their coded form, of a copy", 0.5,
	      "GB/s", ENCODE, DTYPE_BF16, 8, 128, 64, 8, TOKEN_MAJOR),
	CODED("codec.decode.coded", run_coded, "and back", 0.8,
	      "GB/s", DECODE, DTYPE_BF16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.decode.fp8.bf16.checksum", "checksum of the images, per logical byte", 1.0,
	      CODEC_FP8, CHECKSUM, DTYPE_BF16, 8, 128, 16, 32, TOKEN_MAJOR),
	SPEED("codec.encode.raw.bf16", "gather with checksum, of a non-temporal copy", 0.85,
	      CODEC_RAW, GATHER, DTYPE_BF16, 8, 128, 16, 32, TOKEN_MAJOR),
	SPEED("codec.encode.raw.bf16.headmajor", "the same, head-major pages", 0.85,
	      CODEC_RAW, GATHER, DTYPE_BF16, 8, 128, 16, 32, HEAD_MAJOR),
	SPEED("codec.encode.raw.bf16.tokens64", "the same, token-major, 64-token blocks", 0.85,
	      CODEC_RAW, GATHER, DTYPE_BF16, 8, 128, 64, 8, TOKEN_MAJOR),
	SPEED("codec.encode.raw.bf16.heads3", "the same, 3 heads x 64", 0.85,
	      CODEC_RAW, GATHER, DTYPE_BF16, 3, 64, 64, 30, TOKEN_MAJOR),
	CACHED("codec.encode.fp8.bf16.cached", "gather+encode in L2, of the same loads and stores "
					       "alone", 0.3,
	       CODEC_FP8, ENCODE, DTYPE_BF16, 8, 128, 16, 4, TOKEN_MAJOR),
	CACHED("codec.encode.fp8.bf16.tokens64.cached", "the same, 64-token blocks", 0.3,
	       CODEC_FP8, ENCODE, DTYPE_BF16, 8, 128, 64, 1, TOKEN_MAJOR),
	CACHED("codec.encode.fp8.bf16.heads3.cached", "the same, 3 heads x 64", 0.3,
	       CODEC_FP8, ENCODE, DTYPE_BF16, 3, 64, 64, 5, TOKEN_MAJOR),
	CACHED("codec.encode.fp8.bf16.headmajor.cached", "the same, head-major pages", 0.3,
	       CODEC_FP8, ENCODE, DTYPE_BF16, 8, 128, 16, 4, HEAD_MAJOR),
	CACHED("codec.encode.fp8.bf16.headmajor64.cached", "the same, head-major, 64-token blocks",
	       0.3,
	       CODEC_FP8, ENCODE, DTYPE_BF16, 8, 128, 64, 1, HEAD_MAJOR),
	CACHED("codec.encode.fp8.fp16.cached", "gather+encode of FP16 in L2, likewise", 0.3,
	       CODEC_FP8, ENCODE, DTYPE_FP16, 8, 128, 16, 4, TOKEN_MAJOR),
	CACHED("codec.encode.fp8.fp16.heads3.cached", "the same, 3 heads x 64", 0.3,
	       CODEC_FP8, ENCODE, DTYPE_FP16, 3, 64, 64, 5, TOKEN_MAJOR),
	CACHED("codec.encode.raw.bf16.cached", "gather with checksum in L2, likewise", 0.85,
	       CODEC_RAW, GATHER, DTYPE_BF16, 8, 128, 16, 4, TOKEN_MAJOR),
	CACHED("codec.encode.raw.bf16.headmajor.cached", "the same, head-major pages", 0.85,
	       CODEC_RAW, GATHER, DTYPE_BF16, 8, 128, 16, 4, HEAD_MAJOR),
	CACHED("codec.encode.raw.bf16.tokens64.cached", "the same, token-major, 64-token blocks",
	       0.85,
	       CODEC_RAW, GATHER, DTYPE_BF16, 8, 128, 64, 1, TOKEN_MAJOR),
	CACHED("codec.encode.raw.bf16.heads3.cached", "the same, 3 heads x 64", 0.85,
	       CODEC_RAW, GATHER, DTYPE_BF16, 3, 64, 64, 5, TOKEN_MAJOR),
	CACHED("codec.decode.fp8.bf16.cached", "decode+scatter in L2, likewise", 0.85,
	       CODEC_FP8, DECODE, DTYPE_BF16, 8, 128, 16, 4, TOKEN_MAJOR),
	{ "codec.error.rms", run_error_rms, "relative RMS error of Gaussian data",
	  1, BENCH_LESS, "%", NULL },
	{ "codec.error.sqnr", run_error_sqnr, "signal to quantisation noise of it",
	  1, BENCH_MORE, "dB", NULL },
	{ "codec.size", run_size, "packed 1 MiB image / BF16 block", 1, BENCH_LESS, "", NULL },
	{ "codec.size.slot", run_size_slot, "the same, in a slot of 4 KiB pages",
	  1, BENCH_LESS, "", NULL },
	{ 0 },
};
/* clang-format on */
