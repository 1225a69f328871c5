/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staged.c - regions that the daemon cannot reach: KVTIER_PRIVATE, and memory of a GPU that cannot
 * be shared. The daemon sees a sealed memfd of the library with a few pages in a compact layout:
 * segments one after another, K and V token-major. This file copies between these pages and the
 * engine's.
 *
 * The ring lock is held in all functions. So no copy overlaps a cancel or a close, and the engine's
 * pages are not touched after either of them. The price is that the lock is held while a chunk is
 * copied, which `staging_bytes` bounds.
 */
#include "staged.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/base/last_error.h"
#include "client/lib/base/pages.h"
#include "client/lib/base/shared_memory.h"
#include "client/lib/memory/cuda_memory.h"

enum { STAGED_ALIGN = 64, STAGED_PAGES_MAX = 65536 };

struct staged_segment {
	uint8_t *user;    /* page 0 */
	struct runs runs; /* of the engine's page; they lie end to end in ours */
	/* the same piece of a staging page, as the daemon is told */
	struct wire_segment wire;
};

static void segment_shape(const struct kvtier_geometry *g, const struct kvtier_segment *s,
			  struct staged_segment *ret)
{
	const struct runs runs = runs_of(g, s);

	ret->runs = runs_joined(&runs);
	ret->wire =
		(struct wire_segment){ .layer = s->layer, .kind = s->kind, .length = s->length };
	if (s->kind == KVTIER_K || s->kind == KVTIER_V)
		ret->wire.head_stride = runs.bytes;
	if (ret->wire.head_stride || runs.row_stride)
		ret->wire.token_stride = runs.bytes * runs.pieces;
}

static int too_large(void)
{
	return error_set(-EINVAL, "a page is larger than %u bytes", 2 * KVTIER_MAX_IMAGE_BYTES);
}

static int segments_fill(struct staged *staged, const struct space_layout *l)
{
	staged->user_pages = UINT32_MAX; /* page indices are 32 bits */
	for (size_t i = 0; i < staged->n_segments; i++) {
		const struct kvtier_segment *theirs = &l->segments[i];
		const struct kvtier_region *r = &l->regions[theirs->region];
		struct staged_segment *s = &staged->segments[i];
		uint64_t pages;

		segment_shape(&l->geometry, theirs, s);
		pages = runs_pages(&s->runs, theirs->offset, r->length);
		if (!pages)
			return error_set(
				-EINVAL,
				"segments[%zu]: page 0 does not fit its region of %llu bytes", i,
				(unsigned long long)r->length);
		if (pages < staged->user_pages)
			staged->user_pages = pages;
		if (s->runs.bytes > 2ull * KVTIER_MAX_IMAGE_BYTES)
			return too_large();
		s->user = (uint8_t *)r->base + theirs->offset;
		s->wire.offset = staged->page_bytes;
		staged->page_bytes +=
			(s->runs.rows * s->runs.pieces * s->runs.bytes + STAGED_ALIGN - 1) &
			~(STAGED_ALIGN - 1ull);
		if (staged->page_bytes > 2ull * KVTIER_MAX_IMAGE_BYTES)
			return too_large();
	}
	return staged->page_bytes ? 0 :
				    error_set(-EINVAL, "segments and geometry: a page has 0 bytes");
}

/* Decides how many staging pages there are, and how far apart. */
static void divide(struct staged *staged, uint64_t staging_bytes)
{
	uint64_t pages = staging_bytes / staged->page_bytes;

	if (pages < 1)
		pages = 1;
	if (pages > STAGED_PAGES_MAX)
		pages = STAGED_PAGES_MAX;
	staged->pages = (uint32_t)(pages < staged->user_pages ? pages : staged->user_pages);
	staged->bytes = (staged->pages * staged->page_bytes + 4095) & ~4095ull;
}

int staged_open(const struct space_layout *layout, uint64_t staging_bytes,
		const struct cuda_memory *cuda, struct staged **ret)
{
	struct staged *staged = calloc(1, sizeof(*staged));
	int rc;

	if (!staged)
		return error_set(-ENOMEM, "out of memory");
	staged->fd = -1;
	staged->cuda = cuda;
	staged->n_segments = layout->n_segments;
	staged->segments = calloc(layout->n_segments, sizeof(*staged->segments));
	rc = staged->segments ? segments_fill(staged, layout) : error_set(-ENOMEM, "out of memory");
	if (rc) {
		staged_close(staged);
		return rc;
	}
	divide(staged, staging_bytes);
	*ret = staged;
	return 0;
}

static void memory_drop(struct staged *staged)
{
	if (staged->memory && staged->pinned)
		cuda_memory_unpin(staged->cuda, staged->memory);
	staged->pinned = false;
	if (staged->memory)
		(void)munmap(staged->memory, staged->bytes);
	if (staged->fd >= 0)
		(void)close(staged->fd);
	staged->memory = NULL;
	staged->fd = -1;
}

void staged_close(struct staged *staged)
{
	if (!staged)
		return;
	memory_drop(staged);
	free(staged->segments);
	free(staged);
}

int staged_renew(struct staged *staged)
{
	void *memory;
	int rc;

	memory_drop(staged);
	staged->populated = 0;
	arena_init(&staged->arena, staged->pages);
	rc = memory_file_make("kvtier-staging", staged->bytes, F_SEAL_SHRINK | F_SEAL_GROW,
			      &staged->fd);
	if (rc)
		return rc;
	memory = mmap(NULL, staged->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, staged->fd, 0);
	if (memory == MAP_FAILED) {
		rc = -errno;
		memory_drop(staged);
		return error_set(rc, "cannot map %llu bytes of staging memory: %s",
				 (unsigned long long)staged->bytes, strerrordesc_np(-rc));
	}
	staged->memory = memory;
	if (staged->cuda) {
		populate_touch(staged->memory, staged->bytes);
		staged->populated = staged->bytes;
		staged->pinned = cuda_memory_pin(staged->cuda, staged->memory, staged->bytes);
	}
	return 0;
}

void staged_populate(struct staged *staged, uint32_t end)
{
	const uint64_t bytes = (end * staged->page_bytes + 4095) & ~4095ull;

	if (bytes <= staged->populated)
		return;
	populate_touch(staged->memory + staged->populated, bytes - staged->populated);
	staged->populated = bytes;
}

void staged_segment(const struct staged *staged, size_t i, struct wire_segment *ret)
{
	*ret = staged->segments[i].wire;
	ret->page_stride = staged->page_bytes;
}

/* Copies one segment; runs that lie a stride apart are one copy. */
static int copy_device(const struct staged *staged, const struct runs *runs, uint8_t *user,
		       uint8_t *ours, bool out)
{
	const bool heads = runs->pieces > 1;
	struct cuda_copy copy = {
		.run = runs->bytes,
		.rows = heads ? runs->pieces : runs->rows,
		.stride = heads ? runs->piece_stride : runs->row_stride,
		.to_device = out,
	};

	if (copy.rows == 1)
		copy.stride = copy.run;
	for (uint64_t r = 0; r < (heads ? runs->rows : 1); r++) {
		int rc;

		copy.device = (uintptr_t)user + r * runs->row_stride;
		copy.host = ours + r * runs->pieces * runs->bytes;
		rc = cuda_memory_copy(staged->cuda, &copy);
		if (rc)
			return rc;
	}
	return 0;
}

static void copy_host(const struct runs *runs, uint8_t *user, uint8_t *ours, bool out)
{
	for (uint64_t r = 0; r < runs->rows; r++)
		for (uint64_t p = 0; p < runs->pieces; p++, ours += runs->bytes) {
			uint8_t *theirs = user + r * runs->row_stride + p * runs->piece_stride;

			if (out)
				memcpy(theirs, ours, runs->bytes);
			else
				memcpy(ours, theirs, runs->bytes);
		}
}

int staged_copy(struct staged *staged, uint64_t user_page, uint32_t page, bool out)
{
	for (size_t i = 0; i < staged->n_segments; i++) {
		const struct staged_segment *s = &staged->segments[i];
		uint8_t *user = s->user + user_page * s->runs.page_stride;
		uint8_t *ours = staged->memory + page * staged->page_bytes + s->wire.offset;
		int rc;

		if (!staged->cuda) {
			copy_host(&s->runs, user, ours, out);
			continue;
		}
		rc = copy_device(staged, &s->runs, user, ours, out);
		if (rc)
			return rc;
	}
	return 0;
}

int staged_copied(struct staged *staged)
{
	return staged->cuda ? cuda_memory_copied(staged->cuda) : 0;
}
