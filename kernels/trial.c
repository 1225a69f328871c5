/* SPDX-License-Identifier: Apache-2.0 */
/* trial.c - see trial.h. */
#include "trial.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fp8.h"

enum { CODECS = 32, VALUES = 1 << 16 };

struct tried {
	bool takes; /* the codec takes this geometry */
	struct image_shape shape;
	struct trial_result sums;
	struct codec_error *heads; /* [pieces][heads]; typed: one a piece */
};

struct trial {
	const struct codec_kernels *kernels;
	uint32_t codecs;
	/* the image that comes in: so many bytes of `bytes` are there; it begins with its header */
	struct image_header header;
	struct image_shape shape;
	uint32_t have, bytes;
	uint32_t blocks;
	/* of the first image, and from there on */
	struct image_header first;
	struct page_layout layout;
	struct page_piece *pieces;
	uint64_t page_bytes, room; /* room: no image is larger */
	uint8_t *page, *other, *image, *made, *scratch;
	float *values; /* of each 16-bit code */
	struct tried tried[CODECS];
};

static double now_s(void)
{
	struct timespec t = { 0 };

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct trial *trial_new(const struct codec_kernels *kernels, uint32_t codecs)
{
	struct trial *t = calloc(1, sizeof(*t));

	if (t) {
		t->kernels = kernels;
		t->codecs = codecs;
	}
	return t;
}

void trial_free(struct trial *t)
{
	if (!t)
		return;
	for (int i = 0; i < CODECS; i++)
		free(t->tried[i].heads);
	free(t->pieces);
	free(t->page);
	free(t->other);
	free(t->image);
	free(t->made);
	free(t->scratch);
	free(t->values);
	free(t);
}

/* Real pages of memory, before anything is timed. */
static uint8_t *buffer(uint64_t bytes)
{
	const uint64_t whole = (bytes + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;
	uint8_t *ret = aligned_alloc(IMAGE_ALIGN, whole);

	if (ret)
		memset(ret, 0, whole);
	return ret;
}

/* A page in the image's order of values; pages are not there yet. */
static int lay_out(struct trial *t)
{
	const struct image_geometry *g = &t->layout.geometry;

	t->pieces = calloc(2ull * g->layers + g->typed_segments + 1, sizeof(*t->pieces));
	if (!t->pieces)
		return -ENOMEM;
	t->layout.pieces = t->pieces;
	t->page_bytes = image_order_pieces(g, NULL, t->pieces, &t->layout.n_pieces);
	return 0;
}

/* Inf and NaN count as 0: a block that has one is kept raw. */
static void values_fill(float *values, int is_fp16)
{
	const struct fp8_source source = fp8_source(is_fp16);

	for (uint32_t code = 0; code < VALUES; code++) {
		int e = 0;
		const uint32_t m = fp8_split(&source, code, &e);

		if ((code & 0x7fff) < source.inf)
			values[code] = ldexpf(code & 0x8000 ? -(float)m : (float)m, e);
	}
}

/* The first image says what all of them are. */
static int begin(struct trial *t)
{
	const struct image_geometry *g = &t->layout.geometry;
	uint64_t most = t->shape.image_bytes;
	int r;

	t->first = t->header;
	image_header_geometry(&t->first, &t->layout.geometry);
	r = lay_out(t);
	if (r)
		return r;
	for (uint32_t codec = 1; codec < CODECS; codec++) {
		const struct image_codecs codecs = image_codecs(codec);
		struct tried *x = &t->tried[codec];

		if (image_shape(g, codecs.k, codecs.v, &x->shape, NULL))
			continue;
		most = x->shape.image_bytes > most ? x->shape.image_bytes : most;
		x->takes = (t->codecs >> codec & 1) != 0;
		if (!x->takes)
			continue;
		x->heads = calloc(t->layout.n_pieces * (g->kv_heads + 1ull), sizeof(*x->heads));
		if (!x->heads)
			return -ENOMEM;
	}
	t->room = most;
	t->page = buffer(t->page_bytes);
	t->other = buffer(t->page_bytes);
	t->image = buffer(most);
	t->made = buffer(most);
	t->scratch = buffer(CODEC_SCRATCH_BYTES);
	t->values = calloc(VALUES, sizeof(*t->values));
	if (!t->page || !t->other || !t->image || !t->made || !t->scratch || !t->values)
		return -ENOMEM;
	values_fill(t->values, g->dtype == DTYPE_FP16);
	return 0;
}

static int all_steps(const struct trial *t, struct codec_run *run)
{
	int r;

	do
		r = t->kernels->step(run, CODEC_PIECE_BYTES, t->scratch);
	while (r == CODEC_MORE);
	return r;
}

static int decode(const struct trial *t, const struct page_piece *pieces, const uint8_t *image)
{
	struct page_layout layout = t->layout;
	struct codec_run run;
	int r;

	layout.pieces = pieces;
	r = t->kernels->decode_start(&run, &layout, 0, image);
	return r ? r : all_steps(t, &run);
}

static int encode(const struct trial *t, const struct page_piece *pieces, uint32_t codec)
{
	const struct image_codecs codecs = image_codecs(codec);
	struct page_layout layout = t->layout;
	const struct image_identity identity = { 0 };
	struct codec_run run;
	int r;

	layout.pieces = pieces;
	r = t->kernels->encode_start(&run, &layout, 0, codecs.k, codecs.v, &identity, t->made);
	return r ? r : all_steps(t, &run);
}

static void compare_some(const struct trial *t, uint64_t at, uint64_t bytes,
			 struct codec_error *ret)
{
	for (uint64_t end = at + bytes; at < end; at += 2) {
		uint16_t was, is;
		double d;

		memcpy(&was, t->page + at, 2);
		memcpy(&is, t->other + at, 2);
		d = (double)t->values[was] - (double)t->values[is];
		ret->squares += (double)t->values[was] * (double)t->values[was];
		ret->errors += d * d;
	}
}

static void compare(const struct trial *t, struct tried *x)
{
	const struct image_geometry *g = &t->layout.geometry;

	for (uint32_t i = 0; i < t->layout.n_pieces; i++) {
		const struct page_piece *p = &t->pieces[i];
		const uint64_t at = (uintptr_t)p->base;
		struct codec_error *heads = &x->heads[i * (g->kv_heads + 1ull)];

		if (p->kind == KIND_TYPED)
			compare_some(t, at, 2 * p->length, heads);
		for (uint32_t head = 0; p->kind < KIND_TYPED && head < g->kv_heads; head++)
			compare_some(t, at + head * p->head_stride, p->head_stride, &heads[head]);
	}
}

static int try_codec(struct trial *t, const struct page_piece *from, const struct page_piece *to,
		     uint32_t codec)
{
	struct tried *x = &t->tried[codec];
	struct image_shape shape;
	double start = now_s();
	int r = encode(t, from, codec);

	x->sums.encode_s += now_s() - start;
	if (r == -ERANGE) {
		x->sums.raw_blocks++;
		r = encode(t, from, CODEC_RAW);
	}
	if (r == 0)
		r = image_header_shape((const struct image_header *)(const void *)t->made,
				       &t->layout.geometry, &shape);
	if (r)
		return r;
	start = now_s();
	r = decode(t, to, t->made);
	x->sums.decode_s += now_s() - start;
	x->sums.blocks++;
	x->sums.page_bytes += t->page_bytes;
	/* a lossless image has its slot, which is as large for every block */
	x->sums.image_bytes +=
		shape.image_bytes > x->shape.image_bytes ? shape.image_bytes : x->shape.image_bytes;
	x->sums.packed_bytes += shape.packed_bytes;
	if (r == 0 && image_element_bytes(t->layout.geometry.dtype) == 2)
		compare(t, x);
	return r;
}

/* The image is whole. */
static int try_block(struct trial *t)
{
	struct page_piece *from = calloc(2ull * t->layout.n_pieces, sizeof(*from)), *to;
	double start, copied;
	int r;

	if (!from)
		return -ENOMEM;
	to = from + t->layout.n_pieces;
	(void)image_order_pieces(&t->layout.geometry, t->page, from, &t->layout.n_pieces);
	(void)image_order_pieces(&t->layout.geometry, t->other, to, &t->layout.n_pieces);
	r = codec_verify(t->kernels, t->image, &t->shape, t->header.checksum);
	if (r == 0)
		r = decode(t, from, t->image);
	start = now_s();
	t->kernels->copy(t->other, t->page, t->page_bytes);
	copied = now_s() - start;
	for (uint32_t codec = 1; codec < CODECS && r == 0; codec++)
		if (t->tried[codec].takes) {
			t->tried[codec].sums.copy_s += copied;
			r = try_codec(t, from, to, codec);
		}
	free(from);
	t->blocks++;
	return r;
}

/* The header is there. An image's size is that of its codecs, whatever a lossless one needs. */
static int take_header(struct trial *t)
{
	struct image_identity identity;
	struct image_geometry geometry;
	struct image_shape most;
	int r;

	image_header_geometry(&t->header, &geometry);
	memcpy(identity.space_id, t->header.space_id, sizeof(identity.space_id));
	memcpy(identity.key, t->header.key, sizeof(identity.key));
	r = image_header_check(&t->header, &geometry, &identity, &t->shape);
	if (r == 0 && image_shape(&geometry, t->header.codec_k, t->header.codec_v, &most, NULL))
		r = -EBADMSG;
	if (r == 0 && !t->page)
		r = begin(t);
	if (r == 0 && (memcmp(t->first.space_id, t->header.space_id, 32) != 0 ||
		       memcmp(&t->layout.geometry, &geometry, sizeof(geometry)) != 0 ||
		       most.image_bytes > t->room))
		r = -EBADMSG;
	if (r)
		return r;
	if (t->first.codec_k == CODEC_RAW) { /* its codec could not hold that block */
		t->first.codec_k = t->header.codec_k;
		t->first.codec_v = t->header.codec_v;
	}
	t->bytes = most.image_bytes;
	memcpy(t->image, &t->header, sizeof(t->header));
	return 0;
}

int trial_feed(struct trial *t, const uint8_t *bytes, size_t n)
{
	const uint32_t head = sizeof(t->header);
	int r = 0;

	while (n > 0 && r == 0) {
		const bool heading = t->have < head;
		const uint32_t left = (heading ? head : t->bytes) - t->have;
		const uint32_t some = n < left ? (uint32_t)n : left;

		memcpy((heading ? (uint8_t *)&t->header : t->image) + t->have, bytes, some);
		bytes += some;
		n -= some;
		t->have += some;
		if (heading && t->have == head)
			r = take_header(t);
		else if (!heading && t->have == t->bytes) {
			r = try_block(t);
			t->have = 0;
		}
	}
	return r;
}

const struct image_header *trial_whole(const struct trial *t)
{
	return t->blocks > 0 && t->have == 0 ? &t->first : NULL;
}

static double relative(const struct codec_error *error)
{
	return error->squares > 0 ? sqrt(error->errors / error->squares) : -1;
}

int trial_result(const struct trial *t, uint32_t codec, struct trial_result *ret)
{
	const struct tried *x = codec < CODECS ? &t->tried[codec] : NULL;
	const uint64_t heads = t->layout.geometry.kv_heads + 1ull;

	if (!x || !x->takes)
		return -EINVAL;
	*ret = x->sums;
	for (int kind = 0; kind < TRIAL_KINDS; kind++) {
		struct codec_error all = { 0 };

		ret->worst[kind] = -1;
		for (uint64_t i = 0; i < t->layout.n_pieces * heads; i++) {
			const struct codec_error *head = &x->heads[i];

			if (t->pieces[i / heads].kind != KIND_K + (uint32_t)kind)
				continue;
			all.squares += head->squares;
			all.errors += head->errors;
			if (relative(head) > ret->worst[kind])
				ret->worst[kind] = relative(head);
		}
		ret->error[kind] = relative(&all);
	}
	return 0;
}
