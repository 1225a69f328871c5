/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.c - an engine's pages, as a caller describes them: the description is checked and copied,
 * the bytes of a page are found, and the pages of shared regions are allocated before the daemon
 * sees them.
 *
 * A description is copied into private structs of full size and checked as far as this process
 * depends on it. The daemon checks each field of a geometry, region and segment, and its sentence
 * reaches the caller too. Here are the checks behind which the library touches the caller's memory,
 * and those that the daemon cannot make because it is told of other memory (staged pages).
 *
 * The kernel charges a memfd's page to the process that touches it first. So the daemon refuses
 * pages that are not there (-EFAULT), and the library touches each page before its first store or
 * load, through a mapping of its own. When the daemon refuses a page all the same, because its
 * engine gave the memory back meanwhile, the page is touched again. This needs no lock: a bit that
 * is set twice does no harm.
 */
#include "pages.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "last_error.h"

/* ---- where the bytes of a page lie ---- */

static uint32_t element_bytes(uint32_t dtype)
{
	if (dtype == KVTIER_FP32)
		return 4;
	return dtype == KVTIER_BF16 || dtype == KVTIER_FP16 ? 2 : 1;
}

struct runs runs_of(const struct kvtier_geometry *g, const struct kvtier_segment *s)
{
	const uint64_t element = element_bytes(g->dtype);
	struct runs ret = {
		.page_stride = s->page_stride, .rows = 1, .pieces = 1, .bytes = s->length
	};

	if (s->kind == KVTIER_TYPED) {
		ret.bytes *= element;
		return ret;
	}
	if (s->kind == KVTIER_K || s->kind == KVTIER_V) {
		ret.bytes = element * (s->kind == KVTIER_K ? g->head_dim_k : g->head_dim_v);
		ret.pieces = g->kv_heads;
		ret.piece_stride = s->head_stride;
	} else if (!s->token_stride) {
		return ret;
	}
	ret.rows = g->block_tokens;
	ret.row_stride = s->token_stride;
	return ret;
}

struct runs runs_joined(const struct runs *runs)
{
	struct runs ret = *runs;

	if (ret.piece_stride == ret.bytes) {
		ret.bytes *= ret.pieces;
		ret.pieces = 1;
	}
	if (ret.pieces == 1 && ret.row_stride == ret.bytes) {
		ret.bytes *= ret.rows;
		ret.rows = 1;
	}
	return ret;
}

uint64_t runs_pages(const struct runs *runs, uint64_t offset, uint64_t length)
{
	const unsigned __int128 end =
		(unsigned __int128)offset + (unsigned __int128)(runs->rows - 1) * runs->row_stride +
		(unsigned __int128)(runs->pieces - 1) * runs->piece_stride + runs->bytes;

	return end > length ? 0 : (uint64_t)((length - end) / runs->page_stride) + 1;
}

/* ---- the description, checked ---- */

static int string_copy(const char *in, const char *name, bool optional, char ret[WIRE_STRING_BYTES])
{
	size_t n;

	if (!in || !*in)
		return optional ? 0 :
				  error_set(-EINVAL,
					    "geometry.%s is empty: it is part of what makes blocks "
					    "interchangeable",
					    name);
	n = strnlen(in, WIRE_STRING_BYTES);
	if (n > KVTIER_MAX_STRING)
		return error_set(-EINVAL, "geometry.%s is longer than %d bytes", name,
				 KVTIER_MAX_STRING);
	memcpy(ret, in, n);
	return 0;
}

static int limit_check(const char *name, uint32_t value, uint32_t min, uint32_t max)
{
	return value >= min && value <= max ?
		       0 :
		       error_set(-EINVAL, "geometry.%s is %u, must be in %u..%u", name, value, min,
				 max);
}

static int check_geometry(const struct kvtier_geometry *in, struct kvtier_geometry *ret,
			  struct wire_geometry *ret_wire)
{
	int rc = error_struct_in(ret, sizeof(*ret), in, "geometry");

	if (rc)
		return rc;
	/* how many bytes a page's runs have */
	rc = limit_check("kv_heads", ret->kv_heads, ret->head_dim_k || ret->head_dim_v,
			 KVTIER_MAX_HEADS);
	if (!rc)
		rc = limit_check("head_dim_k", ret->head_dim_k, 0, KVTIER_MAX_HEAD_DIM);
	if (!rc)
		rc = limit_check("head_dim_v", ret->head_dim_v, 0, KVTIER_MAX_HEAD_DIM);
	if (!rc)
		rc = limit_check("block_tokens", ret->block_tokens, 1, KVTIER_MAX_BLOCK_TOKENS);
	if (rc)
		return rc;
	*ret_wire = (struct wire_geometry){
		.dtype = ret->dtype,
		.codec = ret->codec,
		.layers = ret->layers,
		.kv_heads = ret->kv_heads,
		.head_dim_k = ret->head_dim_k,
		.head_dim_v = ret->head_dim_v,
		.block_tokens = ret->block_tokens,
		.rank = ret->rank,
		.world = ret->world,
		.typed_segments = ret->typed_segments,
		.typed_values = ret->typed_values,
		.opaque_bytes = ret->opaque_bytes,
	};
	rc = string_copy(ret->model, "model", false, ret_wire->model);
	if (!rc)
		rc = string_copy(ret->convention, "convention", false, ret_wire->convention);
	if (!rc)
		rc = string_copy(ret->extras, "extras", true, ret_wire->extras);
	return rc;
}

static int region_check(const struct kvtier_region *r, size_t i, uint32_t memory_of_first)
{
	if (r->memory < KVTIER_MEMFD || r->memory > KVTIER_CUDA)
		return error_set(
			-EINVAL,
			"regions[%zu].memory is %u, must be KVTIER_MEMFD, KVTIER_PRIVATE or "
			"KVTIER_CUDA",
			i, r->memory);
	if (r->memory != memory_of_first)
		return error_set(-EINVAL,
				 "regions[%zu].memory differs from regions[0].memory: kinds of "
				 "memory cannot be mixed in one space",
				 i);
	if (r->reserved)
		return error_set(-EINVAL, "regions[%zu].reserved is %u, must be 0", i, r->reserved);
	if (r->memory != KVTIER_MEMFD && !r->base)
		return error_set(-EINVAL, "regions[%zu].base is NULL", i);
	return 0;
}

static int segment_check(const struct kvtier_geometry *g, const struct kvtier_segment *s, size_t i,
			 size_t n_regions)
{
	const bool plane = s->kind == KVTIER_K || s->kind == KVTIER_V;
	const uint32_t element = s->kind == KVTIER_OPAQUE ? 1 : element_bytes(g->dtype);

	if (s->region >= n_regions)
		return error_set(-EINVAL, "segments[%zu].region is %u, there are %zu", i, s->region,
				 n_regions);
	if (!plane && s->layer)
		return error_set(-EINVAL,
				 "segments[%zu].layer is %u, must be 0 of a segment that "
				 "is neither K nor V",
				 i, s->layer);
	if (!s->page_stride)
		return error_set(-EINVAL, "segments[%zu].page_stride is 0", i);
	if (s->offset % element || s->page_stride % element ||
	    (plane && (s->head_stride % element || s->token_stride % element)))
		return error_set(
			-EINVAL,
			"segments[%zu]: offset and strides must be multiples of %u, the dtype's "
			"bytes",
			i, element);
	return 0;
}

/* The caller's elements lie as far apart as its struct is large, which the first one says. */
static int array_in(void *ret, size_t known, const void *in, size_t n, const char *name)
{
	uint32_t size;
	int rc = 0;

	memcpy(&size, in, sizeof(size));
	for (size_t i = 0; i < n && !rc; i++)
		rc = error_struct_of((uint8_t *)ret + i * known, known,
				     (const uint8_t *)in + i * size, size, name);
	return rc;
}

int check_layout(const struct kvtier_geometry *geometry, const struct kvtier_region *regions,
		 size_t n_regions, const struct kvtier_segment *segments, size_t n_segments,
		 struct space_layout *ret)
{
	int rc = check_geometry(geometry, &ret->geometry, &ret->wire);

	if (rc)
		return rc;
	if (n_regions > KVTIER_MAX_REGIONS || n_segments > KVTIER_MAX_SEGMENTS)
		return error_set(-EINVAL, "n_regions is %zu and n_segments %zu, at most %d and %d",
				 n_regions, n_segments, KVTIER_MAX_REGIONS, KVTIER_MAX_SEGMENTS);
	if (!n_regions != !n_segments)
		return error_set(-EINVAL, "n_regions is %zu and n_segments %zu: both or neither",
				 n_regions, n_segments);
	if (!n_regions)
		return 0;
	if (!regions || !segments)
		return error_set(-EINVAL, "regions and segments must not be NULL");
	rc = array_in(ret->regions, sizeof(*regions), regions, n_regions, "regions");
	if (!rc)
		rc = array_in(ret->segments, sizeof(*segments), segments, n_segments, "segments");
	for (size_t i = 0; i < n_regions && !rc; i++)
		rc = region_check(&ret->regions[i], i, ret->regions[0].memory);
	for (size_t i = 0; i < n_segments && !rc; i++)
		rc = segment_check(&ret->geometry, &ret->segments[i], i, n_regions);
	ret->memory = ret->regions[0].memory;
	ret->n_regions = n_regions;
	ret->n_segments = n_segments;
	return rc;
}

int check_regions_again(struct space_layout *layout, const struct kvtier_region *in, size_t n)
{
	struct kvtier_region regions[KVTIER_MAX_REGIONS];
	int rc;

	if (n != layout->n_regions)
		return error_set(-EINVAL, "n_regions is %zu, the space was opened with %zu", n,
				 layout->n_regions);
	rc = array_in(regions, sizeof(*regions), in, n, "regions");
	for (size_t i = 0; i < n && !rc; i++)
		rc = region_check(&regions[i], i, layout->memory);
	if (!rc)
		memcpy(layout->regions, regions, n * sizeof(*regions));
	return rc;
}

/* ---- populating them ---- */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum {
	MEMORY_PAGE = 4096,
	BITS = 64,
	TOUCH_BYTES = 4 << 20, /* between two looks at the clock; and so many runs: */
	LOOK_RUNS = 1 << 16,
};

struct populate_segment {
	uint8_t *base; /* of page 0 */
	struct runs runs;
};

struct populate {
	struct populate_segment *segments;
	size_t n_segments;
	uint64_t pages;
	void *maps[KVTIER_MAX_REGIONS];
	uint64_t bytes[KVTIER_MAX_REGIONS];
	_Atomic uint64_t *done; /* a bit a page */
};

/* The touch changes no byte, so it may meet writes of others. */
void populate_touch(uint8_t *base, uint64_t n)
{
	if (n == 0 || madvise(base, n, MADV_POPULATE_WRITE) == 0 || errno != EINVAL)
		return;
	for (uint64_t at = 0; at < n; at += MEMORY_PAGE)
		(void)__atomic_fetch_or(base + at, 0, __ATOMIC_RELAXED);
}

/* Touching asks for no order, so the rows of a head may be one run, too. */
static struct runs runs_to_touch(const struct kvtier_geometry *g, const struct kvtier_segment *s)
{
	const struct runs runs = runs_of(g, s);
	struct runs ret = runs_joined(&runs);

	if (ret.row_stride == ret.bytes) {
		ret.bytes *= ret.rows;
		ret.rows = 1;
	}
	return ret;
}

static int map_regions(struct populate *p, const struct kvtier_region *regions, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		void *map =
			mmap(NULL, regions[i].length, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_NORESERVE, regions[i].fd, (off_t)regions[i].offset);

		if (map == MAP_FAILED)
			return -errno;
		p->maps[i] = map;
		p->bytes[i] = regions[i].length;
		(void)madvise(map, regions[i].length, MADV_DONTDUMP);
	}
	return 0;
}

static int fill(struct populate *p, const struct space_layout *l)
{
	int rc;

	p->segments = calloc(l->n_segments, sizeof(*p->segments));
	p->n_segments = l->n_segments;
	p->pages = UINT32_MAX; /* page indices are 32 bits */
	if (!p->segments)
		return -ENOMEM;
	rc = map_regions(p, l->regions, l->n_regions);
	if (rc)
		return rc;
	for (size_t i = 0; i < l->n_segments; i++) {
		const struct kvtier_segment *s = &l->segments[i];
		uint64_t pages;

		p->segments[i].base = (uint8_t *)p->maps[s->region] + s->offset;
		p->segments[i].runs = runs_to_touch(&l->geometry, s);
		pages = runs_pages(&p->segments[i].runs, s->offset, p->bytes[s->region]);
		if (pages < p->pages)
			p->pages = pages;
	}
	p->done = calloc(p->pages / BITS + 1, sizeof(*p->done));
	return p->done ? 0 : -ENOMEM;
}

int populate_open(const struct space_layout *layout, struct populate **ret)
{
	struct populate *p = calloc(1, sizeof(*p));
	int rc = p ? fill(p, layout) : -ENOMEM;

	if (rc) {
		populate_close(p);
		p = NULL;
	}
	if (rc == -ENOMEM)
		return error_set(rc, "out of memory for the regions");
	*ret = p;
	return 0;
}

void populate_close(struct populate *p)
{
	if (!p)
		return;
	for (size_t i = 0; i < KVTIER_MAX_REGIONS; i++)
		if (p->maps[i])
			(void)munmap(p->maps[i], p->bytes[i]);
	free(p->segments);
	free((void *)p->done);
	free(p);
}

static bool done(const struct populate *p, uint32_t page)
{
	return page >= p->pages ||
	       (atomic_load_explicit(&p->done[page / BITS], memory_order_relaxed) >> page % BITS &
		1);
}

/* Runs that touch the same pages of memory, or the next ones, are one span. */
struct span {
	uintptr_t from, to;
	uint64_t deadline_ns, runs;
};

/* A page may have millions of spans, or a span many bytes: the clock is looked at before each
 * piece. */
static int span_touch(const struct span *span)
{
	for (uintptr_t at = span->from; at < span->to; at += TOUCH_BYTES) {
		if (clock_ns() >= span->deadline_ns)
			return -ETIMEDOUT;
		populate_touch((uint8_t *)at,
			       span->to - at < TOUCH_BYTES ? span->to - at : TOUCH_BYTES);
	}
	return 0;
}

static int span_add(struct span *span, const uint8_t *base, uint64_t n)
{
	int rc;

	const uintptr_t from = (uintptr_t)base & ~(uintptr_t)(MEMORY_PAGE - 1);
	const uintptr_t to =
		((uintptr_t)base + n + MEMORY_PAGE - 1) & ~(uintptr_t)(MEMORY_PAGE - 1);

	if (from >= span->from && from <= span->to) {
		span->to = to > span->to ? to : span->to;
		return ++span->runs % LOOK_RUNS == 0 && clock_ns() >= span->deadline_ns ?
			       -ETIMEDOUT :
			       0;
	}
	rc = span_touch(span);
	span->from = from;
	span->to = to;
	return rc;
}

static int populate_page(const struct populate *p, uint32_t page, uint64_t deadline_ns)
{
	struct span span = { .deadline_ns = deadline_ns };
	int rc = 0;

	for (size_t i = 0; i < p->n_segments; i++) {
		const struct runs *runs = &p->segments[i].runs;
		const uint8_t *base = p->segments[i].base + page * runs->page_stride;

		for (uint64_t h = 0; h < runs->pieces; h++)
			for (uint64_t r = 0; r < runs->rows && !rc; r++)
				rc = span_add(&span,
					      base + h * runs->piece_stride + r * runs->row_stride,
					      runs->bytes);
	}
	return rc ? rc : span_touch(&span);
}

int populate_pages(struct populate *p, const uint32_t *pages, size_t n, uint64_t deadline_ns)
{
	for (size_t i = 0; p && i < n; i++) {
		if (done(p, pages[i]))
			continue;
		if (populate_page(p, pages[i], deadline_ns))
			return error_set(-ETIMEDOUT,
					 "allocating the pages took longer than the op may");
		(void)atomic_fetch_or_explicit(&p->done[pages[i] / BITS], 1ull << pages[i] % BITS,
					       memory_order_relaxed);
	}
	return 0;
}

void populate_forget(struct populate *p, uint32_t page)
{
	if (p && page < p->pages)
		(void)atomic_fetch_and_explicit(&p->done[page / BITS], ~(1ull << page % BITS),
						memory_order_relaxed);
}
