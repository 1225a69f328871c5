/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x86_encode.h - page -> image, for x86_codec.h and nobody else; read that first.
 *
 * Units go in canonical order (walk.h). One loop encodes a unit from L1, takes the amax of the next (which
 * brings it there) and prefetches the one WALK_AHEAD further on. Codes go to scratch, and past the cache to
 * the image; every FLUSH_BYTES of scratch are hashed. A step leaves less than a line in scratch, which is kept
 * in the run.
 */
#ifndef KVTIER_X86_ENCODE_H
#define KVTIER_X86_ENCODE_H

/* An image being written: units are put together in scratch and leave it in order. */
struct writer {
	uint8_t *scratch;       /* of this step */
	uint8_t rest[LINE];     /* what the last step left in its */
	size_t fill;            /* of scratch */
	size_t sent;            /* of fill: in the image already; whole lines, or all that is there */
	uint8_t *payload, *end; /* next byte of the image, end of it */
	uint8_t *scale;
	XXH3_state_t hash;
};

/* Leaves fewer than LINE bytes behind unless `all`, so that every copy but the last is whole lines. */
static void writer_flush(struct writer *w, bool all)
{
	const size_t n = all ? w->fill : w->fill & ~(size_t)(LINE - 1), rest = w->fill - n;

	assert(n <= (size_t)(w->end - w->payload)); /* pieces that do not add up to their geometry */
	(void)XXH3_64bits_update(&w->hash, w->scratch, n);
	if (w->sent < n)
		stream(w->payload + w->sent, w->scratch + w->sent, n - w->sent);
	memcpy(w->scratch, w->scratch + n, rest < n ? rest : 0);
	w->payload += n;
	w->fill = rest;
	w->sent = 0;
}

/* n values that need not fill a step: reads them and nothing after. */
MATH_FN void amax_tail(struct math_amax *amax, const uint8_t *src, uint32_t n)
{
	for (; n; src += 2 * STEP) {
		const uint32_t now = n < STEP ? n : STEP;
		uint16_t last[STEP] = { 0 };

		memcpy(last, src, 2 * now);
		math_amax64(amax, (const uint8_t *)last);
		n -= now;
	}
}

static uint32_t unit_amax(const struct walk_unit *u)
{
	struct math_amax amax = math_amax_start();

	for (uint32_t r = 0; r < u->rows; r++)
		amax_tail(&amax, u->base + r * u->stride, u->row_bytes / 2);
	return math_amax_end(&amax);
}

/* n < STEP values; writes a whole step. */
MATH_FN void encode_tail(bool is_fp16, const struct math_encode *m, const uint8_t *src, uint8_t *dst,
			 uint32_t n)
{
	uint16_t last[STEP] = { 0 };

	memcpy(last, src, 2 * n);
	math_encode64(is_fp16, m, (const uint8_t *)last, dst, NULL);
}

/*
 * One unit's codes to dst, and up to STEP - 1 bytes of anything after them. In the same loop the amax of
 * `next` is taken and `far` prefetched, so that memory is read at an even pace under the arithmetic; all
 * three have the same rows. With `past`, a line in the image, the same bytes go there past the cache; rows
 * must then be multiples of STEP codes.
 */
MATH_FN uint32_t encode_as(bool is_fp16, int k, const struct walk_unit *u, const struct walk_unit *next,
			   const struct walk_unit *far, uint8_t *dst, uint8_t *past)
{
	const struct math_encode m = math_encode_at(is_fp16, k);
	const uint32_t n = u->row_bytes / 2;
	struct math_amax amax = math_amax_start();

	for (uint32_t r = 0; r < u->rows; r++, dst += n) {
		const uint8_t *row = u->base + r * u->stride, *next_row = next->base + r * next->stride;
		const uint8_t *far_row = far->base + r * far->stride;
		uint32_t i = 0;

		for (; i + STEP <= n; i += STEP) {
			_mm_prefetch((const char *)(far_row + 2 * i), _MM_HINT_T1);
			_mm_prefetch((const char *)(far_row + 2 * i + LINE), _MM_HINT_T1);
			math_amax64(&amax, next_row + 2 * i);
			math_encode64(is_fp16, &m, row + 2 * i, dst + i, past);
			past = past ? past + LINE : NULL;
		}
		if (i < n) {
			encode_tail(is_fp16, &m, row + 2 * i, dst + i, n - i);
			amax_tail(&amax, next_row + 2 * i, n - i);
		}
	}
	return math_amax_end(&amax);
}

/* *amax: of u; becomes that of next. */
static int encode_unit(struct writer *w, bool is_fp16, const struct walk_unit *u,
		       const struct walk_unit *next, const struct walk_unit *far, uint32_t *amax)
{
	const int k = fp8_exponent(is_fp16, *amax);
	const uint32_t codes = u->rows * u->row_bytes / 2;
	const bool direct = w->sent == w->fill && w->fill % LINE == 0 && u->row_bytes % (2 * STEP) == 0;
	uint8_t *const to = w->scratch + w->fill, *const past = w->payload + w->fill;

	if (k == FP8_K_NONE)
		return -ERANGE;
	assert(codes + w->fill <= (size_t)(w->end - w->payload)); /* pieces that exceed their geometry */
	*w->scale++ = (uint8_t)(k + FP8_BIAS);
	if (is_fp16)
		*amax = direct ? encode_as(true, k, u, next, far, to, past)
			       : encode_as(true, k, u, next, far, to, NULL);
	else
		*amax = direct ? encode_as(false, k, u, next, far, to, past)
			       : encode_as(false, k, u, next, far, to, NULL);
	w->fill += codes;
	w->sent = direct ? w->fill : w->sent;
	return 0;
}

/* Verbatim rows; `past` as for codes, for rows of whole lines. */
MATH_FN void gather_rows(const struct walk_unit *u, const struct walk_unit *far, uint8_t *dst, uint8_t *past)
{
	for (uint32_t r = 0; r < u->rows; r++, dst += u->row_bytes) {
		const uint8_t *row = u->base + r * u->stride, *far_row = far->base + r * far->stride;
		uint32_t at = 0;

		for (; at + LINE <= u->row_bytes; at += LINE) {
			const __m256i a = _mm256_loadu_si256((const void *)(row + at));
			const __m256i b = _mm256_loadu_si256((const void *)(row + at + 32));

			_mm_prefetch((const char *)(far_row + at), _MM_HINT_T1);
			_mm256_storeu_si256((void *)(dst + at), a);
			_mm256_storeu_si256((void *)(dst + at + 32), b);
			if (past) {
				_mm256_stream_si256((void *)past, a);
				_mm256_stream_si256((void *)(past + 32), b);
				past += LINE;
			}
		}
		memcpy(dst + at, row + at, u->row_bytes - at);
	}
}

static void gather_unit(struct writer *w, const struct walk_unit *u, const struct walk_unit *far)
{
	const uint32_t bytes = u->rows * u->row_bytes;
	const bool direct = w->sent == w->fill && w->fill % LINE == 0 && u->row_bytes % LINE == 0;

	assert(bytes + w->fill <= (size_t)(w->end - w->payload));
	if (direct)
		gather_rows(u, far, w->scratch + w->fill, w->payload + w->fill);
	else
		gather_rows(u, far, w->scratch + w->fill, NULL);
	w->fill += bytes;
	w->sent = direct ? w->fill : w->sent;
}

/* b, if it is there and has the rows of a; else a itself, for loops that go over both at once. */
static const struct walk_unit *alike(const struct walk_unit *a, const struct walk_unit *b)
{
	return b && a->fp8 == b->fp8 && a->rows == b->rows && a->row_bytes == b->row_bytes ? b : a;
}

struct encode_run {
	struct writer w;
	struct walk walk;
	struct walk_unit ring[WALK_AHEAD + 1]; /* the unit at `now` and up to WALK_AHEAD after it */
	uint32_t have, now;
	uint32_t amax;
	bool known; /* amax is that of the unit at `now` */
	bool is_fp16;
	enum image_codec codec_k, codec_v;
	const struct image_identity *identity;
	struct image_header *header;
	struct image_shape shape;
};

static int encode_start(struct encode_run *e, const struct page_layout *layout, uint64_t page,
			enum image_codec codec_k, enum image_codec codec_v,
			const struct image_identity *identity, uint8_t *image)
{
	struct image_shape shape;
	const int r = image_shape(&layout->geometry, codec_k, codec_v, &shape, NULL);

	if (r)
		return r;
	e->is_fp16 = layout->geometry.dtype == DTYPE_FP16;
	e->codec_k = codec_k;
	e->codec_v = codec_v;
	e->identity = identity;
	e->header = (void *)image;
	e->shape = shape;
	e->w.fill = e->w.sent = 0;
	e->w.scale = image + sizeof(struct image_header);
	e->w.payload = image + shape.payload_offset;
	e->w.end = image + shape.image_bytes;
	XXH3_INITSTATE(&e->w.hash);
	(void)XXH3_64bits_reset(&e->w.hash);
	memset(e->w.scale, 0, shape.payload_offset - sizeof(struct image_header)); /* the padding too */
	walk_start(&e->walk, layout, page, codec_k, codec_v, &shape, true);
	e->have = e->now = e->amax = 0;
	e->known = false;
	while (e->have <= WALK_AHEAD && walk_next(&e->walk, &e->ring[e->have]))
		e->have++;
	return 0;
}

static const struct walk_unit *unit_after(const struct encode_run *e, uint32_t n)
{
	const struct walk_unit *u = &e->ring[e->now];

	return alike(u, e->have > n ? &e->ring[(e->now + n) % (WALK_AHEAD + 1)] : NULL);
}

static int encode_next(struct encode_run *e)
{
	const struct walk_unit *u = &e->ring[e->now], *next = unit_after(e, 1);
	const struct walk_unit *far = unit_after(e, WALK_AHEAD);
	int r = 0;

	if (u->fp8) {
		e->amax = e->known ? e->amax : unit_amax(u);
		r = encode_unit(&e->w, e->is_fp16, u, next, far, &e->amax);
		e->known = next != u;
	} else {
		gather_unit(&e->w, u, far);
		e->known = false;
	}
	if (e->w.fill >= FLUSH_BYTES)
		writer_flush(&e->w, false);
	e->have--;
	if (walk_next(&e->walk, &e->ring[e->now]))
		e->have++;
	e->now = (e->now + 1) % (WALK_AHEAD + 1);
	return r;
}

static void encode_end(struct encode_run *e)
{
	uint8_t *image = (uint8_t *)e->header;

	writer_flush(&e->w, true);
	assert(e->w.payload == e->w.end);
	(void)XXH3_64bits_update(&e->w.hash, image + sizeof(*e->header), e->shape.scale_bytes);
	image_header_fill(e->header, &e->walk.layout->geometry, e->codec_k, e->codec_v, &e->shape, e->identity);
	image_seal(e->header, XXH3_64bits_digest(&e->w.hash));
}

static int encode_step(struct encode_run *e, uint32_t budget, uint8_t *scratch)
{
	uint64_t cost = 0;
	int r = 0;

	e->w.scratch = scratch;
	memcpy(scratch, e->w.rest, LINE);
	while (e->have && cost < budget && !r) {
		cost += e->ring[e->now].cost;
		r = encode_next(e);
	}
	if (!r && e->have) {
		writer_flush(&e->w, false);
		memcpy(e->w.rest, scratch, LINE);
		return CODEC_MORE;
	}
	if (!r)
		encode_end(e);
	return r;
}

#endif
