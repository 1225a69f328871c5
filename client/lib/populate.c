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
#include "runs.h"

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

		p->segments[i].base = (uint8_t *)p->maps[s->region] + s->offset;
		p->segments[i].runs = runs_to_touch(geometry, s);
		pages = runs_pages(&p->segments[i].runs, s->offset, p->bytes[s->region]);
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
		if (client_now() >= span->deadline_ns)
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
		return ++span->runs % LOOK_RUNS == 0 && client_now() >= span->deadline_ns ?
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
