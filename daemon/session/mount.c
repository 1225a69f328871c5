/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.c - see mount.h. It makes a page layout of a client's segment list, keeps the ranges that
 * ALLOCS bring, and opens and closes a space on a connection.
 *
 * A failure at any step undoes the steps before it. The segment list comes from a client, so every
 * sum and product is checked before it becomes an address. A page index is valid only if each of
 * the page's segments lies wholly in its region.
 */
#include "mount.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "daemon/table/block.h"
#include "daemon/move/tables.h"
#include "daemon/table/space_counts.h"
#include "kernels/cuda/plan.h"
#include "tiers/slabs.h"

/* --- segments --- */

struct builder {
	const struct image_geometry *geometry;
	struct page_piece *pieces;
	uint32_t planes;        /* the K and V pieces, which come first, layer by layer */
	uint32_t typed, opaque; /* placed so far */
	uint64_t opaque_bytes;
	uint32_t value_bytes;
	char *text;
	size_t text_bytes;
};

__attribute__((format(printf, 3, 4))) static int refuse_segment(struct builder *b, uint32_t at,
								const char *format, ...)
{
	va_list args;
	const int n = snprintf(b->text, b->text_bytes, "segments[%u].", at);

	va_start(args, format);
	if (n >= 0 && (size_t)n < b->text_bytes)
		vsnprintf(b->text + n, b->text_bytes - (size_t)n, format, args);
	va_end(args);
	return -EINVAL;
}

static uint32_t planes_per_layer(const struct image_geometry *g)
{
	return (g->head_dim_k ? 1u : 0u) + (g->head_dim_v ? 1u : 0u);
}

/* ret += a * b, false on overflow. */
static bool add_product(uint64_t *ret, uint64_t a, uint64_t b)
{
	uint64_t product;

	return !__builtin_mul_overflow(a, b, &product) &&
	       !__builtin_add_overflow(*ret, product, ret);
}

/* Bytes from the first to one past the last byte of one page of this segment; false on overflow. */
static bool page_span(const struct builder *b, const struct wire_segment *s, uint64_t *ret)
{
	const struct image_geometry *g = b->geometry;
	uint64_t span = 0;
	bool ok = true;

	switch (s->kind) {
	case KIND_K:
	case KIND_V:
		ok = add_product(&span, s->token_stride, g->block_tokens - 1) &&
		     add_product(&span, s->head_stride, g->kv_heads - 1) &&
		     add_product(&span, s->kind == KIND_K ? g->head_dim_k : g->head_dim_v,
				 b->value_bytes);
		break;
	case KIND_TYPED:
		ok = add_product(&span, s->length, b->value_bytes);
		break;
	case KIND_OPAQUE:
		if (s->token_stride)
			ok = add_product(&span, s->token_stride, g->block_tokens - 1);
		ok = ok && add_product(&span, s->length, 1);
		break;
	default:
		break;
	}
	*ret = span;
	return ok;
}

static int count_pages(struct builder *b, uint32_t at, const struct wire_segment *s,
		       uint64_t region_length, uint64_t *pages)
{
	uint64_t span, end, fit;

	if (s->page_stride == 0)
		return refuse_segment(b, at, "page_stride is 0; must be at least 1");
	if (!page_span(b, s, &span) || __builtin_add_overflow(span, s->offset, &end))
		return refuse_segment(b, at, "offset and strides overflow 64 bits");
	if (end > region_length)
		return refuse_segment(
			b, at,
			"offset %llu + one page of %llu bytes is past the region's %llu bytes",
			(unsigned long long)s->offset, (unsigned long long)span,
			(unsigned long long)region_length);
	fit = (region_length - end) / s->page_stride + 1;
	if (fit < *pages)
		*pages = fit;
	return 0;
}

static int check_alignment(struct builder *b, uint32_t at, const struct wire_segment *s)
{
	const struct {
		const char *name;
		uint64_t value;
	} fields[] = {
		{ "offset", s->offset },
		{ "page_stride", s->page_stride },
		{ "head_stride", s->head_stride },
		{ "token_stride", s->token_stride },
	};

	if (s->kind == KIND_OPAQUE)
		return 0;
	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
		if (fields[i].value % b->value_bytes)
			return refuse_segment(
				b, at, "%s is %llu; must be a multiple of the dtype's %u bytes",
				fields[i].name, (unsigned long long)fields[i].value,
				b->value_bytes);
	return 0;
}

/* *ret = the piece of the segment, by its place in canonical order. */
static int place_segment(struct builder *b, uint32_t at, const struct wire_segment *s,
			 struct page_piece **ret)
{
	const struct image_geometry *g = b->geometry;
	const uint32_t per_layer = planes_per_layer(g);

	switch (s->kind) {
	case KIND_K:
	case KIND_V:
		if ((s->kind == KIND_K ? g->head_dim_k : g->head_dim_v) == 0)
			return refuse_segment(b, at,
					      "kind is %s but the geometry's head_dim_%s is 0",
					      s->kind == KIND_K ? "k" : "v",
					      s->kind == KIND_K ? "k" : "v");
		if (s->layer >= g->layers)
			return refuse_segment(b, at, "layer is %u; must be 0 to %u", s->layer,
					      g->layers - 1);
		*ret = &b->pieces[s->layer * per_layer + (s->kind == KIND_V && g->head_dim_k != 0)];
		if ((*ret)->kind)
			return refuse_segment(b, at, "layer %u has two %s segments", s->layer,
					      s->kind == KIND_K ? "k" : "v");
		return 0;
	case KIND_TYPED:
		if (b->typed == g->typed_segments)
			return refuse_segment(
				b, at, "kind is typed but the geometry's typed_segments is %u",
				g->typed_segments);
		if (s->length != g->typed_values)
			return refuse_segment(
				b, at, "length is %llu; must be the geometry's typed_values, %u",
				(unsigned long long)s->length, g->typed_values);
		*ret = &b->pieces[b->planes + b->typed++];
		return 0;
	case KIND_OPAQUE:
		if (s->length == 0 || s->length > g->opaque_bytes)
			return refuse_segment(
				b, at,
				"length is %llu; must be 1 to the geometry's opaque_bytes, %u",
				(unsigned long long)s->length, g->opaque_bytes);
		b->opaque_bytes += s->length * (s->token_stride ? g->block_tokens : 1);
		*ret = &b->pieces[b->planes + g->typed_segments + b->opaque++];
		return 0;
	default:
		return refuse_segment(b, at,
				      "kind is %u; must be 1 (k), 2 (v), 3 (typed) or 4 (opaque)",
				      s->kind);
	}
}

static int add_segment(struct builder *b, uint32_t at, const struct wire_segment *s,
		       uint8_t *const *region_bases, const uint64_t *region_lengths,
		       uint32_t n_regions, uint64_t *pages)
{
	struct page_piece *piece = NULL;
	int r;

	if (s->region >= n_regions)
		return refuse_segment(b, at, "region is %u; must be less than the %u regions given",
				      s->region, n_regions);
	r = place_segment(b, at, s, &piece);
	if (!r)
		r = check_alignment(b, at, s);
	if (!r)
		r = count_pages(b, at, s, region_lengths[s->region], pages);
	if (r)
		return r;
	*piece = PAGE_PIECE(s, region_bases[s->region]);
	return 0;
}

static int check_complete(struct builder *b, uint32_t n)
{
	const struct image_geometry *g = b->geometry;
	uint32_t planes = 0;

	for (uint32_t i = 0; i < b->planes; i++)
		planes += b->pieces[i].kind != 0;
	if (planes != b->planes || b->typed != g->typed_segments) {
		snprintf(b->text, b->text_bytes,
			 "segments: %u of %u k and v segments and %u of %u typed ones given",
			 planes, b->planes, b->typed, g->typed_segments);
		return -EINVAL;
	}
	if (b->opaque_bytes != g->opaque_bytes) {
		snprintf(
			b->text, b->text_bytes,
			"segments: opaque ones hold %llu bytes a page; the geometry's opaque_bytes "
			"is %u",
			(unsigned long long)b->opaque_bytes, g->opaque_bytes);
		return -EINVAL;
	}
	assert(planes + b->typed + b->opaque == n);
	return 0;
}

int layout_build(const struct wire_segment *segments, uint32_t n, uint8_t *const *region_bases,
		 const uint64_t *region_lengths, uint32_t n_regions,
		 const struct image_geometry *geometry, struct page_layout *ret,
		 uint64_t *ret_pages, char *text, size_t text_bytes)
{
	struct builder b = { .geometry = geometry, .text = text, .text_bytes = text_bytes };
	struct image_shape shape;
	uint64_t pages = UINT32_MAX;
	int r = image_shape(geometry, CODEC_RAW, CODEC_RAW, &shape, NULL);

	if (r)
		return r;
	b.value_bytes = shape.element_bytes;
	b.planes = geometry->layers * planes_per_layer(geometry);
	/* Room for every plane and typed piece, and for n opaque pieces. */
	b.pieces = calloc((size_t)b.planes + geometry->typed_segments + n + 1, sizeof(*b.pieces));
	if (!b.pieces)
		return text_fail(text, text_bytes, -ENOMEM, "out of memory for %u segments", n);
	for (uint32_t i = 0; i < n && r == 0; i++)
		r = add_segment(&b, i, &segments[i], region_bases, region_lengths, n_regions,
				&pages);
	if (r == 0 && n > 0)
		r = check_complete(&b, n);
	if (r) {
		free(b.pieces);
		return r;
	}
	*ret = (struct page_layout){ .geometry = *geometry, .n_pieces = n, .pieces = b.pieces };
	*ret_pages = n ? pages : 0;
	return 0;
}

void layout_free(struct page_layout *layout)
{
	free((void *)(uintptr_t)layout->pieces);
	layout->pieces = NULL;
	layout->n_pieces = 0;
}

/* --- ranges --- */

static int ranges_device(const struct devices *devices, const struct proto_allocs *m,
			 struct ranges *ranges, char *text, size_t n)
{
	struct device *device = devices_find(devices, m->device);

	if (!device || device == devices_cpu(devices))
		return text_fail(text, n, -ENODEV,
				 "allocs.device: this daemon serves no such device");
	if (ranges->device && ranges->device != device)
		return text_fail(text, n, -EINVAL,
				 "allocs.device is another than that of the ranges before");
	ranges->device = device;
	return 0;
}

/* The range is gone, and ranges does not count it any more. */
static void forget_range(struct ranges *ranges, struct told_range *range)
{
	ranges->n_ranges--;
	ranges->n_allocs -= range->n;
	ranges->bytes -= range->bytes;
	*range = (struct told_range){ 0 };
}

/* Whether these allocations continue where the range ends, and describe the same range. */
static int check_next(const struct told_range *range, const struct proto_allocs *m, char *text,
		      size_t n)
{
	if (m->at != range->at)
		return text_fail(text, n, -EINVAL,
				 "allocs.at is %llu; the allocations before end at %llu",
				 (unsigned long long)m->at, (unsigned long long)range->at);
	if (range->at && (m->memory != range->memory || m->range_bytes != range->bytes))
		return text_fail(
			text, n, -EINVAL,
			"allocs.memory and allocs.range_bytes must be the same in each ALLOCS "
			"of range %u",
			m->range);
	if (range->n + m->n_allocs > WIRE_MAX_RANGE_ALLOCS)
		return text_fail(text, n, -EINVAL, "range %u has more than %d allocations",
				 m->range, WIRE_MAX_RANGE_ALLOCS);
	return 0;
}

static int import_allocs(struct ranges *ranges, struct told_range *range,
			 const struct proto_allocs *m, const int *fds, char *text, size_t n)
{
	const bool fd = m->memory == WIRE_DEVICE_FD;
	struct region_allocs more = { .memory = m->memory,
				      .region_bytes = m->range_bytes,
				      .n = m->n_allocs };

	for (uint32_t i = 0; i < m->n_allocs; i++) {
		more.allocs[i] = (struct region_alloc){ .bytes = m->allocs[i].bytes,
							.fd = fd ? fds[i] : -1 };
		memcpy(more.allocs[i].handle, m->allocs[i].handle, sizeof(more.allocs[i].handle));
	}
	return device_import_allocs(ranges->device, &more, &range->region, text, n);
}

static void count_allocs(struct ranges *ranges, struct told_range *range,
			 const struct proto_allocs *m)
{
	if (range->at == 0) {
		range->memory = m->memory;
		range->bytes = m->range_bytes;
		ranges->n_ranges++;
		ranges->bytes += m->range_bytes;
	}
	for (uint32_t i = 0; i < m->n_allocs; i++)
		range->at += m->allocs[i].bytes;
	range->n += m->n_allocs;
	ranges->n_allocs += m->n_allocs;
}

int ranges_add(const struct devices *devices, struct ranges **at, const struct proto_allocs *m,
	       const int *fds, char *text, size_t n)
{
	struct ranges *ranges = *at ? *at : calloc(1, sizeof(*ranges));
	struct told_range *range;
	int r;

	if (!ranges)
		return text_fail(text, n, -ENOMEM, "out of memory for ranges");
	*at = ranges;
	range = &ranges->ranges[m->range];
	if (m->at == 0 && range->region.own) {
		device_release(&range->region);
		forget_range(ranges, range);
	}
	r = ranges_device(devices, m, ranges, text, n);
	if (r == 0)
		r = check_next(range, m, text, n);
	if (r == 0)
		r = import_allocs(ranges, range, m, fds, text, n);
	if (r == 0)
		count_allocs(ranges, range, m);
	return r;
}

/* Takes the range of that number out of ranges; the caller wants `offset` and `length` of it.
 * ranges may be NULL, and has no range then. -EINVAL with text. *ret_n: how many allocations the
 * range has */
static int ranges_take(struct ranges *ranges, uint32_t number, struct region_desc *desc,
		       struct device_region *ret, uint32_t *ret_n, char *text, size_t n)
{
	struct told_range *range = ranges ? &ranges->ranges[number] : NULL;

	if (!range || !range->region.own)
		return text_fail(text, n, -EINVAL,
				 "no ALLOCS have brought range %u, or it was taken", number);
	if (memcmp(desc->device, ranges->device->uuid, sizeof(desc->device)) != 0)
		return text_fail(text, n, -EINVAL, "range %u is another device's", number);
	if (range->at != range->bytes)
		return text_fail(text, n, -EINVAL, "range %u has %llu of its %llu bytes", number,
				 (unsigned long long)range->at, (unsigned long long)range->bytes);
	if (desc->length == 0 || desc->offset > range->bytes ||
	    desc->length > range->bytes - desc->offset)
		return text_fail(text, n, -EINVAL,
				 "offset %llu + length %llu must lie in the range's %llu bytes",
				 (unsigned long long)desc->offset, (unsigned long long)desc->length,
				 (unsigned long long)range->bytes);
	desc->memory = range->memory;
	*ret = range->region;
	ret->base += desc->offset;
	ret->length = desc->length;
	*ret_n = range->n;
	forget_range(ranges, range);
	return 0;
}

void ranges_close(struct ranges *ranges)
{
	for (uint32_t i = 0; ranges && i < WIRE_MAX_REGIONS; i++)
		if (ranges->ranges[i].region.own)
			device_release(&ranges->ranges[i].region);
	free(ranges);
}

/* --- spaces on a connection --- */

static int find_device(const struct devices *devices, const struct proto_space_open *m,
		       struct device **ret, char *text, size_t n)
{
	char uuid[2 * WIRE_UUID_BYTES + 1] = "";

	*ret = m->n_regions == 0 ? devices_cpu(devices) :
				   devices_find(devices, m->regions[0].device);
	if (*ret)
		return 0;
	for (size_t i = 0; i < WIRE_UUID_BYTES; i++)
		snprintf(uuid + 2 * i, 3, "%02x", m->regions[0].device[i]);
	return text_fail(text, n, -ENODEV, "regions[0].device: this daemon serves no device %s",
			 uuid);
}

static bool has_fd(const struct wire_region *region)
{
	return region->memory == WIRE_MEMFD || region->memory == WIRE_STAGED ||
	       region->memory == WIRE_DEVICE_FD;
}

static void describe(const struct wire_region *region, const int *fds, struct region_desc *ret)
{
	*ret = (struct region_desc){
		.memory = (enum wire_memory)region->memory,
		.offset = region->offset,
		.length = region->length,
		.fd = has_fd(region) ? fds[region->fd_index] : -1,
	};
	memcpy(ret->device, region->device, sizeof(ret->device));
	memcpy(ret->handle, region->handle, sizeof(ret->handle));
}

static int import(struct mount *mount, const struct wire_region *region, const int *fds,
		  struct ranges *ranges, char *text, size_t n)
{
	struct device_region *ret = &mount->regions[mount->n_regions];
	struct region_desc desc;
	uint32_t n_allocs = 0;
	int r;

	describe(region, fds, &desc);
	if (desc.memory == WIRE_DEVICE_RANGE)
		r = ranges_take(ranges, region->fd_index, &desc, ret, &n_allocs, text, n);
	else
		r = device_import(mount->device, &desc, ret, text, n);
	if (r)
		return r;
	mount->n_regions++;
	mount->n_allocs += n_allocs;
	mount->region_bytes += desc.length;
	mount->memories |= 1u << desc.memory;
	return 0;
}

int mount_import(const struct devices *devices, const struct proto_space_open *m, const int *fds,
		 struct ranges *ranges, struct mount **ret, char *text, size_t n)
{
	struct mount *mount = calloc(1, sizeof(*mount));
	char why[200];
	int r;

	if (!mount)
		return text_fail(text, n, -ENOMEM, "out of memory for a space");
	memcpy(mount->gpu_staged, m->gpu_staged, sizeof(mount->gpu_staged));
	r = find_device(devices, m, &mount->device, text, n);
	for (uint32_t i = 0; i < m->n_regions && r == 0; i++) {
		r = import(mount, &m->regions[i], fds, ranges, why, sizeof(why));
		if (r)
			snprintf(text, n, "regions[%u]: %s", i, why);
	}
	if (r) {
		mount_unmap(mount);
		free(mount);
		return r;
	}
	*ret = mount;
	return 0;
}

bool mount_is_void(const struct mount *mount)
{
	for (uint32_t i = 0; i < mount->n_regions; i++)
		if (device_region_void(&mount->regions[i]))
			return true;
	return false;
}

void mount_unmap(struct mount *mount)
{
	for (uint32_t i = 0; i < mount->n_regions; i++)
		device_release(&mount->regions[i]);
}

static int build_layout(struct mount *mount, const struct proto_space_open *m, char *text, size_t n)
{
	uint8_t *bases[WIRE_MAX_REGIONS];
	uint64_t lengths[WIRE_MAX_REGIONS];
	int r;

	for (uint32_t i = 0; i < mount->n_regions; i++) {
		bases[i] = mount->regions[i].base;
		lengths[i] = mount->regions[i].length;
	}
	r = layout_build(m->segments, m->n_segments, bases, lengths, mount->n_regions,
			 &mount->space->geometry, &mount->layout.pages, &mount->pages, text, n);
	if (r)
		return r;
	mount->layout.lossless = mount->space->codec == CODEC_LOSSLESS;
	if (mount->layout.lossless && mount->device->unit != DEVICE_NO_UNIT &&
	    !cuda_plan_takes_packs(&mount->space->geometry))
		return text_fail(
			text, n, -EOPNOTSUPP,
			"geometry.head_dim_k is %u, head_dim_v %u; lossless on a GPU takes "
			"equal ones, or both up to 640",
			mount->space->geometry.head_dim_k, mount->space->geometry.head_dim_v);
	mount->space->on_gpu = mount->space->on_gpu || mount->device->unit != DEVICE_NO_UNIT;
	mount->layout.regions = mount->regions;
	mount->layout.n_regions = mount->n_regions;
	r = device_prepare(mount->device, &mount->layout);
	if (r)
		snprintf(text, n, "segments: the device has no memory for them");
	mount->prepared = r == 0;
	return r;
}

int mount_open(struct tables *tables, const char *tenant, const struct proto_space_open *m,
	       struct mount *mount, char *text, size_t n)
{
	const struct slabs *slabs = tier_slabs(tables_host(tables));
	int r = space_acquire(tables->spaces, tenant, &m->geometry, &mount->space, text, n);

	if (r)
		return r;
	counts_set_standing(blocks_counts(tables->blocks), mount->space->number, HINT_USUAL);
	if (slabs_slot_bytes(slabs, mount->space->shape.image_bytes) == 0) {
		snprintf(text, n,
			 "geometry: one block takes %u bytes, more than [host] slab_bytes = %llu; "
			 "raise that or use fewer block_tokens",
			 mount->space->shape.image_bytes,
			 (unsigned long long)slabs_slab_bytes(slabs));
		r = -E2BIG;
	}
	if (!r)
		r = build_layout(mount, m, text, n);
	if (r)
		mount_close(tables, mount);
	return r;
}

void mount_close(struct tables *tables, struct mount *mount)
{
	assert(mount->ops == 0);
	if (mount->prepared)
		device_forget(mount->device, &mount->layout);
	mount->prepared = false;
	layout_free(&mount->layout.pages);
	mount->pages = 0;
	if (mount->space)
		space_release(tables->spaces, mount->space);
	mount->space = NULL;
}
