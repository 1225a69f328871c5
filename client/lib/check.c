/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - checks a caller's arguments: geometry, regions and segments; clients and spaces.
 *
 * They are copied to private structs of full size. Each field is checked, and the error names the
 * first wrong field with its value and limit. Pure. The daemon checks all of them again. The check
 * here gives the caller a sentence. It also keeps staged.c inside its memory, because staged.c
 * follows these numbers.
 */
#include "check.h"

#include <errno.h>
#include <string.h>

#include "client.h"
#include "error.h"
#include "process.h"
#include "space.h"

struct field {
	const char *name;
	size_t offset; /* of a uint32_t in struct kvtier_geometry */
	uint32_t min, max;
};

static const struct field geometry_fields[] = {
#define FIELD(name, min, max)                                               \
	{                                                                   \
#name, offsetof(struct kvtier_geometry, name), (min), (max) \
	}
	FIELD(dtype, KVTIER_BF16, KVTIER_INT8),
	FIELD(layers, 1, KVTIER_MAX_LAYERS),
	FIELD(kv_heads, 0, KVTIER_MAX_HEADS),
	FIELD(head_dim_k, 0, KVTIER_MAX_HEAD_DIM),
	FIELD(head_dim_v, 0, KVTIER_MAX_HEAD_DIM),
	FIELD(block_tokens, 1, KVTIER_MAX_BLOCK_TOKENS),
	FIELD(world, 1, UINT32_MAX),
	FIELD(codec, KVTIER_CODEC_DEFAULT, KVTIER_CODEC_FP8_NATIVE),
	FIELD(typed_segments, 0, KVTIER_MAX_SEGMENTS),
	FIELD(typed_values, 0, KVTIER_MAX_IMAGE_BYTES),
	FIELD(opaque_bytes, 0, KVTIER_MAX_IMAGE_BYTES),
#undef FIELD
};

uint32_t check_element_bytes(uint32_t dtype)
{
	if (dtype == KVTIER_FP32)
		return 4;
	return dtype == KVTIER_BF16 || dtype == KVTIER_FP16 ? 2 : 1;
}

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

int check_geometry(const struct kvtier_geometry *in, struct kvtier_geometry *ret,
		   struct wire_geometry *ret_wire)
{
	int rc = error_struct_in(ret, sizeof(*ret), in, "geometry");

	if (rc)
		return rc;
	for (size_t i = 0; i < sizeof(geometry_fields) / sizeof(geometry_fields[0]); i++) {
		const struct field *f = &geometry_fields[i];
		uint32_t v;

		memcpy(&v, (const uint8_t *)ret + f->offset, sizeof(v));
		if (v < f->min || v > f->max)
			return error_set(-EINVAL, "geometry.%s is %u, must be in %u..%u", f->name,
					 v, f->min, f->max);
	}
	if (ret->rank >= ret->world)
		return error_set(-EINVAL, "geometry.rank is %u, must be below world, %u", ret->rank,
				 ret->world);
	if ((ret->head_dim_k || ret->head_dim_v) && !ret->kv_heads)
		return error_set(-EINVAL, "geometry.kv_heads is 0 with a head_dim that is not");
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
	if (!r->length)
		return error_set(-EINVAL, "regions[%zu].length is 0", i);
	if (r->memory == KVTIER_MEMFD && r->fd < 0)
		return error_set(-EINVAL, "regions[%zu].fd is %d", i, r->fd);
	if (r->memory == KVTIER_MEMFD && r->offset % 4096)
		return error_set(-EINVAL, "regions[%zu].offset is %llu, must be a multiple of 4096",
				 i, (unsigned long long)r->offset);
	if (r->memory != KVTIER_MEMFD && !r->base)
		return error_set(-EINVAL, "regions[%zu].base is NULL", i);
	return 0;
}

static int segment_check(const struct kvtier_geometry *g, const struct kvtier_segment *s, size_t i,
			 size_t n_regions)
{
	const bool plane = s->kind == KVTIER_K || s->kind == KVTIER_V;
	const uint32_t element = s->kind == KVTIER_OPAQUE ? 1 : check_element_bytes(g->dtype);

	if (s->region >= n_regions)
		return error_set(-EINVAL, "segments[%zu].region is %u, there are %zu", i, s->region,
				 n_regions);
	if (s->kind < KVTIER_K || s->kind > KVTIER_OPAQUE)
		return error_set(-EINVAL, "segments[%zu].kind is %u, must be in 1..4", i, s->kind);
	if (plane ? s->layer >= g->layers : s->layer != 0)
		return error_set(-EINVAL, "segments[%zu].layer is %u, must be below %u", i,
				 s->layer, plane ? g->layers : 1);
	if (!s->page_stride)
		return error_set(-EINVAL, "segments[%zu].page_stride is 0", i);
	if (s->offset % element || s->page_stride % element ||
	    (plane && (s->head_stride % element || s->token_stride % element)))
		return error_set(
			-EINVAL,
			"segments[%zu]: offset and strides must be multiples of %u, the dtype's "
			"bytes",
			i, element);
	if ((s->kind == KVTIER_K && !g->head_dim_k) || (s->kind == KVTIER_V && !g->head_dim_v))
		return error_set(-EINVAL, "segments[%zu].kind is %s, but geometry.head_dim_%s is 0",
				 i, s->kind == KVTIER_K ? "K" : "V",
				 s->kind == KVTIER_K ? "k" : "v");
	if (s->kind == KVTIER_TYPED && (!s->length || s->length != g->typed_values))
		return error_set(
			-EINVAL,
			"segments[%zu].length is %llu, must be geometry.typed_values, %u, and not "
			"0",
			i, (unsigned long long)s->length, g->typed_values);
	if (s->kind == KVTIER_OPAQUE && (!s->length || s->length > g->opaque_bytes))
		return error_set(
			-EINVAL,
			"segments[%zu].length is %llu, must be in 1..%u (geometry.opaque_bytes)", i,
			(unsigned long long)s->length, g->opaque_bytes);
	return 0;
}

/* Every layer has its planes once; typed and opaque add up. */
static int coverage_check(const struct kvtier_geometry *g, const struct kvtier_segment *segments,
			  size_t n)
{
	uint8_t seen[2][KVTIER_MAX_LAYERS] = { { 0 } };
	uint64_t planes = 0, typed = 0, opaque = 0;
	const uint64_t wanted =
		(g->head_dim_k ? g->layers : 0ull) + (g->head_dim_v ? g->layers : 0ull);

	for (size_t i = 0; i < n; i++) {
		const struct kvtier_segment *s = &segments[i];

		if (s->kind == KVTIER_TYPED) {
			typed++;
		} else if (s->kind == KVTIER_OPAQUE) {
			opaque += s->length * (s->token_stride ? g->block_tokens : 1);
		} else {
			if (seen[s->kind - KVTIER_K][s->layer]++)
				return error_set(-EINVAL,
						 "segments[%zu]: layer %u has a %s segment already",
						 i, s->layer, s->kind == KVTIER_K ? "K" : "V");
			planes++;
		}
	}
	if (planes != wanted)
		return error_set(-EINVAL,
				 "segments hold %llu K and V planes, the geometry has %llu",
				 (unsigned long long)planes, (unsigned long long)wanted);
	if (typed != g->typed_segments)
		return error_set(-EINVAL,
				 "segments hold %llu of kind TYPED, geometry.typed_segments is %u",
				 (unsigned long long)typed, g->typed_segments);
	if (opaque != g->opaque_bytes)
		return error_set(-EINVAL,
				 "segments hold %llu opaque bytes, geometry.opaque_bytes is %u",
				 (unsigned long long)opaque, g->opaque_bytes);
	return 0;
}

/* The caller's elements lie as far apart as its struct is large. */
static int array_in(void *ret, size_t known, const void *in, size_t n, const char *name)
{
	uint32_t size = 0, each;

	for (size_t i = 0; i < n; i++) {
		const uint8_t *at = (const uint8_t *)in + i * size;
		int rc;

		memcpy(&each, at, sizeof(each));
		if (i && each != size)
			return error_set(-EINVAL, "%s[%zu].size is %u, that of the first is %u",
					 name, i, each, size);
		size = each;
		rc = error_struct_in((uint8_t *)ret + i * known, known, at, name);
		if (rc)
			return rc;
	}
	return 0;
}

int check_layout(const struct kvtier_geometry *geometry, const struct kvtier_region *in_regions,
		 size_t n_regions, const struct kvtier_segment *in_segments, size_t n_segments,
		 struct kvtier_region *regions, struct kvtier_segment *segments,
		 uint32_t *ret_memory)
{
	int rc;

	if (n_regions > KVTIER_MAX_REGIONS || n_segments > KVTIER_MAX_SEGMENTS)
		return error_set(-EINVAL, "n_regions is %zu and n_segments %zu, at most %d and %d",
				 n_regions, n_segments, KVTIER_MAX_REGIONS, KVTIER_MAX_SEGMENTS);
	if (!n_regions != !n_segments)
		return error_set(-EINVAL, "n_regions is %zu and n_segments %zu: both or neither",
				 n_regions, n_segments);
	*ret_memory = 0;
	if (!n_regions)
		return 0;
	if (!in_regions || !in_segments)
		return error_set(-EINVAL, "regions and segments must not be NULL");
	rc = array_in(regions, sizeof(*regions), in_regions, n_regions, "regions");
	if (!rc)
		rc = array_in(segments, sizeof(*segments), in_segments, n_segments, "segments");
	for (size_t i = 0; i < n_regions && !rc; i++)
		rc = region_check(&regions[i], i, regions[0].memory);
	for (size_t i = 0; i < n_segments && !rc; i++)
		rc = segment_check(geometry, &segments[i], i, n_regions);
	if (!rc)
		rc = coverage_check(geometry, segments, n_segments);
	if (!rc)
		*ret_memory = regions[0].memory;
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

int client_check(const struct kvtier_client *c)
{
	if (!c)
		return error_set(-EINVAL, "client is NULL");
	return process_ours(c->process) ? 0 : process_refuse();
}

int space_check(const struct kvtier_space *space)
{
	if (!space)
		return error_set(-EINVAL, "space is NULL");
	return client_check(space->client);
}
