/* SPDX-License-Identifier: Apache-2.0 */
/*
 * populate.c - pages of shared regions are allocated before the daemon sees them.
 *
 * The kernel charges a memfd's page to the process that touches it first. So the daemon refuses
 * pages that are not there (-EFAULT), and the library touches each page before its first store or
 * load, through a mapping of its own. A page is touched again when the daemon refused it all the
 * same: its engine gave the memory back meanwhile. Thread-safe without a lock: a bit set twice does
 * no harm.
 */
#include "populate.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "check.h"
#include "clock.h"
#include "error.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { MEMORY_PAGE = 4096, BITS = 64 };

/* `rows` x `heads` runs of `run` bytes make up a page. */
struct populate_segment {
	uint8_t *base; /* of page 0 */
	uint64_t page_stride, row_stride, head_stride;
	uint64_t rows, heads, run;
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

static void segment_fill(const struct kvtier_geometry *g, const struct kvtier_segment *s,
			 uint8_t *map, struct populate_segment *ret)
{
	const uint64_t element = check_element_bytes(g->dtype);

	*ret = (struct populate_segment){
		.base = map + s->offset,
		.page_stride = s->page_stride,
		.row_stride = s->token_stride,
		.head_stride = s->head_stride,
		.rows = 1,
		.heads = 1,
		.run = s->length,
	};
	if (s->kind == KVTIER_K || s->kind == KVTIER_V) {
		ret->rows = g->block_tokens;
		ret->heads = g->kv_heads;
		ret->run = element * (s->kind == KVTIER_K ? g->head_dim_k : g->head_dim_v);
	} else if (s->kind == KVTIER_TYPED) {
		ret->run *= element;
	} else if (s->token_stride) {
		ret->rows = g->block_tokens;
	}
	/* Pieces that lie end to end are one run: heads of a row, then rows; or the rows of a
	 * head. */
	if (ret->head_stride == ret->run) {
		ret->run *= ret->heads;
		ret->heads = 1;
	}
	if (ret->row_stride == ret->run) {
		ret->run *= ret->rows;
		ret->rows = 1;
	}
}

/* Pages that lie in the region; strides are any 64-bit numbers. */
static uint64_t segment_pages(const struct populate_segment *s, uint64_t offset, uint64_t length)
{
	const unsigned __int128 end = (unsigned __int128)offset +
				      (unsigned __int128)(s->rows - 1) * s->row_stride +
				      (unsigned __int128)(s->heads - 1) * s->head_stride + s->run;

	if (end > length)
		return 0;
	return s->page_stride ? (uint64_t)((length - end) / s->page_stride) + 1 : UINT32_MAX;
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

static int fill(struct populate *p, const struct kvtier_geometry *geometry,
		const struct kvtier_region *regions, size_t n_regions,
		const struct kvtier_segment *segments, size_t n_segments)
{
	int rc;

	p->segments = calloc(n_segments, sizeof(*p->segments));
	p->n_segments = n_segments;
	p->pages = UINT32_MAX; /* page indices are 32 bits */
	if (!p->segments)
		return -ENOMEM;
	rc = map_regions(p, regions, n_regions);
	if (rc)
		return rc;
	for (size_t i = 0; i < n_segments; i++) {
		const struct kvtier_segment *s = &segments[i];
		uint64_t pages;

		segment_fill(geometry, s, p->maps[s->region], &p->segments[i]);
		pages = segment_pages(&p->segments[i], s->offset, p->bytes[s->region]);
		if (pages < p->pages)
			p->pages = pages;
	}
	p->done = calloc(p->pages / BITS + 1, sizeof(*p->done));
	return p->done ? 0 : -ENOMEM;
}

int populate_open(const struct kvtier_geometry *geometry, const struct kvtier_region *regions,
		  size_t n_regions, const struct kvtier_segment *segments, size_t n_segments,
		  struct populate **ret)
{
	struct populate *p = calloc(1, sizeof(*p));
	int rc = p ? fill(p, geometry, regions, n_regions, segments, n_segments) : -ENOMEM;

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

/* Runs that touch the same pages of memory, or the next ones, are one call. */
struct span {
	uintptr_t from, to;
};

static void span_add(struct span *span, const uint8_t *base, uint64_t n)
{
	const uintptr_t from = (uintptr_t)base & ~(uintptr_t)(MEMORY_PAGE - 1);
	const uintptr_t to =
		((uintptr_t)base + n + MEMORY_PAGE - 1) & ~(uintptr_t)(MEMORY_PAGE - 1);

	if (from >= span->from && from <= span->to) {
		span->to = to > span->to ? to : span->to;
		return;
	}
	populate_touch((uint8_t *)span->from, span->to - span->from);
	*span = (struct span){ from, to };
}

static void populate_page(const struct populate *p, uint32_t page)
{
	struct span span = { 0, 0 };

	for (size_t i = 0; i < p->n_segments; i++) {
		const struct populate_segment *s = &p->segments[i];
		const uint8_t *base = s->base + page * s->page_stride;

		for (uint64_t h = 0; h < s->heads; h++)
			for (uint64_t r = 0; r < s->rows; r++)
				span_add(&span, base + h * s->head_stride + r * s->row_stride,
					 s->run);
	}
	populate_touch((uint8_t *)span.from, span.to - span.from);
}

int populate_pages(struct populate *p, const uint32_t *pages, size_t n, uint64_t deadline_ns)
{
	for (size_t i = 0; p && i < n; i++) {
		if (done(p, pages[i]))
			continue;
		if (client_now() >= deadline_ns)
			return error_set(-ETIMEDOUT,
					 "allocating the pages took longer than the op may");
		populate_page(p, pages[i]);
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
