/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x86_encode.h - page -> image, only for x86_codec.h; read that first.
 *
 * Tiles are encoded in canonical order (tiles.h). Memory is fetched in another order:
 * - Where token rows follow each other with their heads side by side, a whole plane is prefetched
 *   in the order of its addresses, while the plane before it is encoded head by head from L2.
 *   The first plane is prefetched before the first tile if it is coded. A verbatim one is read as
 *   fast as such a burst (Zen 4, 64 tokens in L2: 0.90 of the bare loads and stores without the
 *   burst, 0.85 with it).
 * - Elsewhere the tile TILES_AHEAD further on is prefetched.
 * One loop encodes a tile, takes the amax of a later tile, and prefetches. AMAX_AHEAD tiles lie
 * between, so that k is there when it is needed. Where rows are whole steps, four steps are encoded
 * before they are hashed and stored: a step waits less for its own results (Zen 4, from L2: 7 to
 * 18 % faster, most where rows are short).
 *
 * A tile of whole lines is hashed in the register that it was made in, and stored past the cache.
 * Other tiles go to scratch; every FLUSH_BYTES of it are hashed and stored. After a step a line at
 * most is left in scratch, and is kept in the run.
 *
 * Prefetches go into L1 (T0) although the lines are used from L2: lines that T1 had brought were
 * gone from L2 before a plane of 128 KiB was encoded (Zen 5, AMD family 26: 0.69 of a copy instead
 * of 0.87). Zen 4 is the other way round (0.5 to 0.6 of a copy with T0, 0.75 to 0.8 with T1). It
 * gains by a longer way between prefetch and use, too, and loses by both only where verbatim planes
 * fit into L1. Zen 4 is family 25 with AVX-512. T1 was not measured on other CPUs.
 */
#pragma once

/* An image being written. Tiles of whole lines are hashed and leave line by line; others are put
 * together in scratch first. */
struct writer {
	uint8_t *scratch;       /* of this step */
	uint8_t rest[LINE];     /* what the last step left in its */
	size_t fill;            /* of scratch */
	uint8_t *payload, *end; /* next byte of the image, end of it */
	size_t behind;          /* bytes that must be left after packs */
	uint8_t *scale;
	struct hash hash;
};

/* n bytes of scratch, which are whole lines. Each is hashed in the register that it leaves by. More
 * bytes must come after them. */
MATH_FN void write_lines(struct writer *w, size_t n)
{
	struct hash_open open = hash_open(&w->hash);
	struct math_line line = math_load(w->scratch);

	for (size_t i = 0; i < n; i += LINE) {
		line = math_load(w->scratch + i);
		hash_line(&open, line);
		math_stream(w->payload + i, line);
	}
	hash_close(&w->hash, &open);
	hash_lines(&w->hash, n, line);
}

/* Leaves 1 to LINE bytes behind unless `all`. So every copy but the last is whole lines, and bytes
 * come after them. */
static void writer_flush(struct writer *w, bool all)
{
	const size_t lines = w->fill ? (w->fill - 1) & ~(size_t)(LINE - 1) : 0,
		     n = all ? w->fill : lines, rest = w->fill - n;

	/* pieces that do not add up to their geometry */
	assert(n <= (size_t)(w->end - w->payload));
	if (!all && n && hash_takes_lines(&w->hash)) {
		write_lines(w, n);
	} else {
		hash_update(&w->hash, w->scratch, n);
		stream(w->payload, w->scratch, n);
	}
	memcpy(w->scratch, w->scratch + n, n ? rest : 0);
	w->payload += n;
	w->fill = rest;
}

/* Whether a tile, if something comes after it, can leave in whole lines. */
static bool writer_takes_lines(struct writer *w, size_t line_bytes, const struct page_tile *u)
{
	if (u->row_bytes % line_bytes || w->fill % LINE)
		return false;
	if (w->fill)
		writer_flush(w, true);
	return hash_takes_lines(&w->hash);
}

/* n values that need not fill a step: reads them and no byte after. */
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

static uint32_t tile_amax(const struct page_tile *u)
{
	struct math_amax amax = math_amax_start();

	for (uint32_t r = 0; r < u->rows; r++)
		amax_tail(&amax, u->base + r * u->stride, u->row_bytes / 2);
	return math_amax_end(&amax);
}

/* n < STEP values; writes a whole step. */
MATH_FN void encode_tail(bool is_fp16, const struct math_encode *m, const uint8_t *src,
			 uint8_t *dst, uint32_t n)
{
	uint16_t last[STEP] = { 0 };

	memcpy(last, src, 2 * n);
	math_store(dst, math_encode64(is_fp16, m, (const uint8_t *)last));
}

/* The program asked the CPU once, at its start; a call costs two loads. */
static bool cpu_is_zen4(void)
{
	return __builtin_cpu_is("amdfam19h") && __builtin_cpu_supports("avx512vl");
}

/*
 * One tile's codes to dst, and up to STEP - 1 bytes of anything after them. In the same loop the
 * amax of `next` is taken and `far` prefetched, so that memory is read at an even pace under the
 * arithmetic; all three have the same rows.
 */
MATH_FN uint32_t encode_as(bool is_fp16, int k, const struct page_tile *u,
			   const struct page_tile *next, struct far far, uint8_t *dst)
{
	const struct math_encode m = math_encode_at(is_fp16, k);
	const uint32_t n = u->row_bytes / 2;
	struct math_amax amax = math_amax_start();

	for (uint32_t r = 0; r < u->rows; r++, dst += n) {
		const uint8_t *row = u->base + r * u->stride,
			      *next_row = next->base + r * next->stride;
		const uint8_t *far_row = far.base + r * far.stride;
		uint32_t i = 0;

		for (; i + STEP <= n; i += STEP) {
			prefetch_values(far, far_row + 2 * i);
			math_amax64(&amax, next_row + 2 * i);
			math_store(dst + i, math_encode64(is_fp16, &m, row + 2 * i));
		}
		if (i < n) {
			encode_tail(is_fp16, &m, row + 2 * i, dst + i, n - i);
			amax_tail(&amax, next_row + 2 * i, n - i);
		}
	}
	return math_amax_end(&amax);
}

/* A step of a tile whose rows have whole steps, and beside it those of encode_as(). */
struct place {
	const uint8_t *at, *next, *far;
	const uint8_t *row_end;
};

MATH_FN void place_move(struct place *p, const struct page_tile *u, const struct page_tile *next,
			struct far far)
{
	p->at += 2 * STEP, p->next += 2 * STEP, p->far += 2 * STEP;
	/* a single row may have any stride: then the step is backwards, and the tile is done */
	if (p->at == p->row_end) {
		p->at += (int64_t)(u->stride - u->row_bytes);
		p->next += (int64_t)(next->stride - u->row_bytes);
		p->far += (int64_t)(far.stride - u->row_bytes);
		p->row_end = p->at + u->row_bytes;
	}
}

/* encode_as() for rows of whole steps, which are hashed and go to the image at once. Steps are
 * encoded together, so that there is other work while one of them waits for memory or a result. */
MATH_FN uint32_t encode_lines_as(bool is_fp16, int k, const struct page_tile *in,
				 const struct page_tile *in_next, struct far far, struct hash *hash,
				 uint8_t *dst)
{
	/* of its own: the compiler would read it again after each store */
	const struct page_tile u = *in, next = *in_next;
	const struct math_encode m = math_encode_at(is_fp16, k);
	const uint32_t steps = u.rows * u.row_bytes / (2 * STEP);
	struct place p = { u.base, next.base, far.base, u.base + u.row_bytes };
	struct hash_open open = hash_open(hash);
	struct math_amax amax = math_amax_start();
	struct math_line last = math_load((const uint8_t *)hash->acc);

	for (uint32_t n = steps / TOGETHER; n; n--) {
		struct math_trial trial = math_trial_start();
		struct math_line line[TOGETHER];
		const uint8_t *src[TOGETHER];

#pragma GCC unroll 4
		for (int i = 0; i < TOGETHER; i++) {
			prefetch_values(far, p.far);
			math_amax64(&amax, p.next);
			line[i] = math_try64(is_fp16, &m, p.at, &trial);
			src[i] = p.at;
			place_move(&p, &u, &next, far);
		}
		if (!math_trial_holds(&m, &trial)) {
#pragma GCC unroll 4
			for (int i = 0; i < TOGETHER; i++)
				line[i] = math_encode64(is_fp16, &m, src[i]);
		}
#pragma GCC unroll 4
		for (int i = 0; i < TOGETHER; i++, dst += LINE) {
			hash_line(&open, line[i]);
			math_stream(dst, line[i]);
		}
		last = line[TOGETHER - 1];
	}
	for (uint32_t n = steps % TOGETHER; n; n--, dst += LINE) {
		prefetch_values(far, p.far);
		math_amax64(&amax, p.next);
		last = math_encode64(is_fp16, &m, p.at);
		hash_line(&open, last);
		math_stream(dst, last);
		place_move(&p, &u, &next, far);
	}
	hash_close(hash, &open);
	hash_lines(hash, steps * LINE, last);
	return math_amax_end(&amax);
}

/* Encodes tile u, and takes the amax of `next` beside it. */
static int encode_tile(struct writer *w, bool is_fp16, bool lines, const struct page_tile *u,
		       uint32_t amax, const struct page_tile *next, struct far far,
		       uint32_t *ret_next)
{
	const int k = fp8_exponent(is_fp16, amax);
	const uint32_t codes = u->rows * u->row_bytes / 2;

	if (k == FP8_K_NONE)
		return -ERANGE;
	/* pieces that exceed their geometry */
	assert(codes + w->fill <= (size_t)(w->end - w->payload));
	*w->scale++ = (uint8_t)(k + FP8_BIAS);
	if (!lines) {
		*ret_next = BY_TYPE(encode_as, is_fp16, k, u, next, far, w->scratch + w->fill);
		w->fill += codes;
	} else {
		*ret_next =
			BY_TYPE(encode_lines_as, is_fp16, k, u, next, far, &w->hash, w->payload);
		w->payload += codes;
	}
	return 0;
}

/* The scales of a tile's columns to `scales`, and their powers 2^-k. False: int8 cannot hold
 * one. */
MATH_FN bool columns_scales(bool is_fp16, const struct page_tile *u, uint8_t *scales, float *powers)
{
	const uint32_t n = u->row_bytes / 2;
	bool good = true;

	for (uint32_t i = 0; i < n; i += STEP) {
		const uint32_t now = n - i < STEP ? n - i : STEP;
		struct math_columns amax = math_columns_start();
		const uint8_t *row = u->base + 2 * i;
		uint16_t last[STEP] = { 0 };
		uint8_t found[STEP];

		for (uint32_t r = 0; r < u->rows && now == STEP; r++, row += u->stride)
			math_columns_max(&amax, row);
		for (uint32_t r = 0; r < u->rows && now < STEP; r++, row += u->stride) {
			memcpy(last, row, 2 * now);
			math_columns_max(&amax, (const uint8_t *)last);
		}
		good = math_columns_scales(is_fp16, &amax, found, powers + i) && good;
		memcpy(scales + i, found, now);
	}
	return good;
}

/* Codes to dst, and up to STEP - 1 bytes of anything after them. */
MATH_FN void encode_columns_as(bool is_fp16, const struct page_tile *u, const float *powers,
			       struct far far, uint8_t *dst)
{
	const uint32_t n = u->row_bytes / 2;

	for (uint32_t r = 0; r < u->rows; r++, dst += n) {
		const uint8_t *row = u->base + r * u->stride, *far_row = far.base + r * far.stride;
		uint16_t last[STEP] = { 0 };
		uint32_t i = 0;

		for (; i + STEP <= n; i += STEP) {
			prefetch_values(far, far_row + 2 * i);
			math_store(dst + i, math_int8_64(is_fp16, row + 2 * i, powers + i));
		}
		if (i == n)
			continue;
		memcpy(last, row + 2 * i, 2 * (n - i));
		math_store(dst + i, math_int8_64(is_fp16, (const uint8_t *)last, powers + i));
	}
}

/* The same for rows of whole steps, which are hashed and go to the image at once. */
MATH_FN void encode_column_lines_as(bool is_fp16, const struct page_tile *u, const float *powers,
				    struct far far, struct hash *hash, uint8_t *dst)
{
	const uint8_t *row = u->base, *far_row = far.base;
	const uint64_t stride = u->stride, n = u->row_bytes / 2;
	struct hash_open open = hash_open(hash);
	struct math_line line = math_load((const uint8_t *)hash->acc);

	for (uint32_t rows = u->rows; rows; rows--, row += stride, far_row += far.stride)
		for (uint64_t i = 0; i < n; i += STEP, dst += LINE) {
			prefetch_values(far, far_row + 2 * i);
			line = math_int8_64(is_fp16, row + 2 * i, powers + i);
			hash_line(&open, line);
			math_stream(dst, line);
		}
	hash_close(hash, &open);
	hash_lines(hash, u->rows * n, line);
}

/* An int8 tile, in two passes: down its columns for amax, then along its rows. Between the two it
 * stays in L1 or L2. */
static int encode_columns(struct writer *w, bool is_fp16, bool lines, const struct page_tile *u,
			  struct far far)
{
	const uint32_t columns = u->row_bytes / 2, codes = u->rows * columns;
	float *powers = powers_of(w->scratch);

	static_assert(FLUSH_BYTES + IMAGE_CHANNEL_TOKENS * IMAGE_MAX_HEAD_DIM + STEP <=
			      CODEC_SCRATCH_BYTES - POWERS_BYTES,
		      "scratch");
	assert(codes + w->fill <= (size_t)(w->end - w->payload));
	if (!BY_TYPE(columns_scales, is_fp16, u, w->scale, powers))
		return -ERANGE;
	w->scale += columns;
	if (!lines) {
		BY_TYPE(encode_columns_as, is_fp16, u, powers, far, w->scratch + w->fill);
		w->fill += codes;
	} else {
		BY_TYPE(encode_column_lines_as, is_fp16, u, powers, far, &w->hash, w->payload);
		w->payload += codes;
	}
	return 0;
}

static int write_pack(struct writer *w, bool is_fp16, const struct page_tile *u, struct far far)
{
	w->fill += encode_pack(u, is_fp16, far, w->scale, w->scratch + w->fill, w->scratch);
	w->scale += IMAGE_PACK_SCALES;
	return w->fill + w->behind > (size_t)(w->end - w->payload) ? -ERANGE : 0;
}

static int write_q4(struct writer *w, bool is_fp16, const struct page_tile *u, struct far far)
{
	const uint32_t values = u->row_bytes / 2,
		       bytes = u->rows * image_row_bytes(u->codec, DTYPE_BF16, values);

	assert(bytes + w->fill <= (size_t)(w->end - w->payload));
	if (!q4_encode(is_fp16, u, far, w->scale, w->scratch + w->fill, w->scratch))
		return -ERANGE;
	w->scale += image_scale_bytes(u->codec, u->rows, values);
	w->fill += bytes;
	return 0;
}

/* Verbatim rows. */
static void gather_rows(const struct page_tile *u, struct far far, uint8_t *dst)
{
	for (uint32_t r = 0; r < u->rows; r++, dst += u->row_bytes) {
		const uint8_t *row = u->base + r * u->stride, *far_row = far.base + r * far.stride;
		uint32_t at = 0;

		for (; at + LINE <= u->row_bytes; at += LINE) {
			prefetch_line(far, far_row + at);
			math_store(dst + at, math_load(row + at));
		}
		memcpy(dst + at, row + at, u->row_bytes - at);
	}
}

static void gather_lines(const struct page_tile *u, struct far far, struct hash *hash, uint8_t *dst)
{
	const uint64_t stride = u->stride, row_bytes = u->row_bytes;
	const uint8_t *row = u->base, *far_row = far.base;
	struct hash_open open = hash_open(hash);
	struct math_line line = math_load((const uint8_t *)hash->acc);

	for (uint32_t rows = u->rows; rows; rows--) {
#pragma GCC unroll 4
		for (uint64_t i = 0; i < row_bytes; i += LINE, dst += LINE) {
			prefetch_line(far, far_row + i);
			_mm_prefetch((const char *)(row + NEAR_ROWS * stride + i), _MM_HINT_T0);
			line = math_load(row + i);
			hash_line(&open, line);
			math_stream(dst, line);
		}
		row += stride, far_row += far.stride;
	}
	hash_close(hash, &open);
	hash_lines(hash, u->rows * u->row_bytes, line);
}

static void gather_tile(struct writer *w, bool lines, const struct page_tile *u, struct far far)
{
	const uint32_t bytes = u->rows * u->row_bytes;

	assert(bytes + w->fill <= (size_t)(w->end - w->payload));
	if (lines) {
		gather_lines(u, far, &w->hash, w->payload);
		w->payload += bytes;
	} else {
		gather_rows(u, far, w->scratch + w->fill);
		w->fill += bytes;
	}
}

/* One loop goes over both tiles, so they need the same rows: b if it has the rows of a, else a. */
static const struct page_tile *alike(const struct page_tile *a, const struct page_tile *b)
{
	return b && a->codec == b->codec && a->rows == b->rows && a->row_bytes == b->row_bytes ? b :
												 a;
}

struct encode_run {
	struct writer w;
	struct tiles tiles;
	struct {
		struct page_tile tile;
		uint32_t amax;
		bool known;      /* amax is */
	} ring[TILES_AHEAD + 1]; /* the tile at `now` and up to TILES_AHEAD after it */
	uint32_t have, now;
	bool is_fp16;
	bool zen4, zen4_deep; /* deep: of planes that L1 does not hold */
	enum image_codec codec_k, codec_v;
	const struct image_identity *identity;
	struct image_header *header;
	struct image_shape shape;
	uint32_t scales_hashed;
	bool open; /* a lossless image whose payload has not ended */
};

/* The next tile into the ring. */
static bool encode_look(struct encode_run *e, uint32_t at)
{
	e->ring[at].known = false;
	return tiles_next(&e->tiles, &e->ring[at].tile);
}

/* The n-th tile after the one at `now`, if it has the same rows; else the one at `now`. */
static const struct page_tile *fellow(const struct encode_run *e, uint32_t n)
{
	const struct page_tile *u = &e->ring[e->now].tile;

	return alike(u, e->have > n ? &e->ring[(e->now + n) % (TILES_AHEAD + 1)].tile : NULL);
}

static struct far encode_far(const struct encode_run *e)
{
	const struct page_tile *u = &e->ring[e->now].tile, *tile = fellow(e, TILES_AHEAD);
	const bool coded = u->codec != CODEC_RAW;

	if (u->ahead)
		return (struct far){ u->ahead, u->row_bytes, coded ? e->zen4 : e->zen4_deep };
	return (struct far){ tile->base, tile->stride, coded && e->zen4 };
}

static int encode_start(struct encode_run *e, const struct page_layout *layout, uint64_t page,
			enum image_codec codec_k, enum image_codec codec_v,
			const struct image_identity *identity, uint8_t *image)
{
	struct image_shape shape;
	const uint8_t *first;
	uint64_t bytes;
	const int r = image_shape(&layout->geometry, codec_k, codec_v, &shape, NULL);

	if (r)
		return r;
	e->is_fp16 = layout->geometry.dtype == DTYPE_FP16;
	e->codec_k = codec_k;
	e->codec_v = codec_v;
	e->identity = identity;
	e->header = (void *)image;
	e->shape = shape;
	e->scales_hashed = 0;
	e->w.fill = 0;
	e->w.scale = image + sizeof(struct image_header);
	e->w.payload = image + shape.payload_offset;
	e->w.end = image + shape.image_bytes;
	e->open = codec_k == CODEC_LOSSLESS;
	e->w.behind = e->open ? layout->geometry.opaque_bytes + IMAGE_PACK_SPARE : 0;
	hash_start(&e->w.hash);
	memset(e->w.scale + shape.scale_bytes, 0,
	       /* the padding */
	       shape.payload_offset - sizeof(struct image_header) - shape.scale_bytes);
	tiles_start(&e->tiles, layout, page, codec_k, codec_v, &shape, true);
	if (tiles_first(&e->tiles, &first, &bytes) && image_codec_scales(codec_k))
		for (uint64_t i = 0; i < bytes; i += LINE)
			_mm_prefetch((const char *)(first + i), _MM_HINT_T0);
	e->zen4 = cpu_is_zen4();
	e->zen4_deep = e->zen4 && bytes >= ZEN4_L1_BYTES;
	if (e->zen4_deep)
		e->tiles.ahead_least = ZEN4_AHEAD_BYTES;
	e->have = e->now = 0;
	while (e->have <= TILES_AHEAD && encode_look(e, e->have))
		e->have++;
	return 0;
}

static int encode_next(struct encode_run *e)
{
	const uint32_t then = (e->now + AMAX_AHEAD) % (TILES_AHEAD + 1);
	const struct page_tile *u = &e->ring[e->now].tile, *next = fellow(e, AMAX_AHEAD);
	const struct far far = encode_far(e);
	const bool coded = u->codec != CODEC_RAW;
	const bool lines = e->have > 1 && writer_takes_lines(&e->w, coded ? 2 * STEP : LINE, u);
	uint32_t amax;
	int r = 0;

	if (u->codec == CODEC_LOSSLESS) {
		r = write_pack(&e->w, e->is_fp16, u, far);
	} else if (u->codec == CODEC_INT8) {
		r = encode_columns(&e->w, e->is_fp16, lines, u, far);
	} else if (u->codec == CODEC_K4 || u->codec == CODEC_V4) {
		r = write_q4(&e->w, e->is_fp16, u, far);
	} else if (coded) {
		amax = e->ring[e->now].known ? e->ring[e->now].amax : tile_amax(u);
		r = encode_tile(&e->w, e->is_fp16, lines, u, amax, next, far, &amax);
		e->ring[then].known = next != u;
		e->ring[then].amax = amax;
	} else {
		gather_tile(&e->w, lines, u, far);
	}
	if (r == 0 && e->w.fill >= FLUSH_BYTES)
		writer_flush(&e->w, false);
	e->have--;
	if (encode_look(e, e->now))
		e->have++;
	e->now = (e->now + 1) % (TILES_AHEAD + 1);
	return r;
}

/* A lossless image ends where its packs do. Zeros follow, to the most that it may have. */
static void encode_close(struct encode_run *e)
{
	uint8_t *const end = e->w.end;

	memset(e->w.scratch + e->w.fill, 0, IMAGE_PACK_SPARE);
	e->w.fill += IMAGE_PACK_SPARE;
	writer_flush(&e->w, true);
	e->w.end = e->w.payload;
	image_shape_cut(&e->shape, e->shape.payload_bytes - (uint32_t)(end - e->w.end));
	memset(e->w.end, 0, (size_t)(end - e->w.end));
	e->open = false;
}

/* All tiles are done: the scales' part of the checksum, then the header. */
static int encode_end(struct encode_run *e, uint32_t budget)
{
	const uint8_t *scales = (uint8_t *)e->header + sizeof(*e->header);
	const uint32_t left = e->shape.scale_bytes - e->scales_hashed,
		       n = left < budget ? left : budget;

	if (e->open)
		encode_close(e);
	writer_flush(&e->w, true);
	assert(e->w.payload == e->w.end);
	hash_update(&e->w.hash, scales + e->scales_hashed, n);
	e->scales_hashed += n;
	if (n < left)
		return CODEC_MORE;
	image_header_fill(e->header, &e->tiles.layout->geometry, e->codec_k, e->codec_v, &e->shape,
			  e->identity);
	image_seal(e->header, hash_end(&e->w.hash));
	return 0;
}

static int encode_step(struct encode_run *e, uint32_t budget, uint8_t *scratch)
{
	uint64_t cost = 0;
	int r = 0;

	e->w.scratch = scratch;
	memcpy(scratch, e->w.rest, LINE);
	while (e->have && cost < budget && !r) {
		cost += e->ring[e->now].tile.cost;
		r = encode_next(e);
	}
	if (!r && e->have) {
		writer_flush(&e->w, false);
		memcpy(e->w.rest, scratch, LINE);
		return CODEC_MORE;
	}
	return r ? r : encode_end(e, budget);
}
