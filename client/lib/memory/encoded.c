/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encoded.c - engine mode, as encoded.h describes it. The kernels and the shape of an image are the
 * daemon's own (kernels/), built into the library. So images are the same bytes in both modes, and
 * no code for the engine's context ever comes over a socket.
 */
#include "encoded.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_memory.h"
#include "client/lib/base/last_error.h"
#include "client/lib/base/pages.h"
#include "client/abi/cuda_kernels.h"
#include "kernels/cuda/plan.h"

/* What an op encoded or decoded last: images [first, first + n), and a page of the op for each. */
struct encoded_op {
	CUevent event;
	const uint32_t *pages; /* the op's */
	uint32_t first, n;
	uint32_t mark; /* if fp8 may not hold all pages of a store: what the flags are compared
			* with; else 0 */
};

struct encoded {
	const struct cuda_memory *cuda;
	const struct cuda_api *api;
	struct image_geometry geometry;
	uint64_t stride;
	CUmodule module;
	CUfunction encode, decode;
	CUstream stream; /* of the least priority */
	struct cuda_plan plan;
	CUdeviceptr pieces; /* the plan's */
	struct encoded_op ops[KVTIER_MAX_OPS];
	uint32_t mark; /* the last */
	/* from encoded_map() to encoded_unmap() */
	uint32_t pages, max_ctas;
	struct image_codecs codecs; /* the space's */
	CUdeviceptr images, flags;
	uint64_t reserved, mapped; /* bytes of images */
	uint32_t *flags_here;      /* pinned */
	uint8_t *raw;              /* 1: a store found that fp8 does not hold this image */
};

/* Makes no call after the first error. */
#define TRY(e, rc, name, ...)                                                    \
	do {                                                                     \
		const CUresult result_ = (rc) ? 0 : (e)->api->name(__VA_ARGS__); \
                                                                                 \
		if (result_)                                                     \
			(rc) = driver_error(result_, #name);                     \
	} while (0)

/* --- the plan: where the kernels find the engine's pages --- */

static int place(const struct kvtier_region *regions, const struct kvtier_segment *s,
		 uint32_t element, struct page_piece *ret)
{
	if ((uintptr_t)regions[s->region].base % element)
		return error_set(-EINVAL, "regions[%u].base is no multiple of %u", s->region,
				 element);
	*ret = PAGE_PIECE(s, (uint8_t *)regions[s->region].base);
	return 0;
}

/* Puts the pieces into the canonical order: planes by layer, then typed, then opaque ones. A piece
 * that is missing or too many leaves a hole or a wrong count, which cuda_plan_make() refuses. */
static int sort(const struct space_layout *l, struct page_piece *pieces)
{
	const struct kvtier_geometry *g = &l->geometry;
	const uint32_t per_layer = (g->head_dim_k ? 1u : 0u) + (g->head_dim_v ? 1u : 0u);
	size_t typed = (size_t)g->layers * per_layer, opaque = typed + g->typed_segments;
	int rc = 0;

	for (size_t i = 0; i < l->n_segments && !rc; i++) {
		const struct kvtier_segment *s = &l->segments[i];
		const bool second = s->kind == KVTIER_V && g->head_dim_k;
		size_t at = (size_t)s->layer * per_layer + second;

		if (s->kind == KVTIER_TYPED)
			at = typed++;
		else if (s->kind == KVTIER_OPAQUE)
			at = opaque++;
		if (at < l->n_segments)
			rc = place(l->regions, s, image_element_bytes(g->dtype), &pieces[at]);
	}
	return rc;
}

static int plan_make(struct encoded *e, const struct space_layout *l, struct cuda_piece **ret)
{
	const size_t n = l->n_segments;
	struct page_piece *pieces = calloc(n + 1, sizeof(*pieces));
	const struct page_layout layout = {
		.geometry = e->geometry,
		.n_pieces = (uint32_t)n,
		.pieces = pieces,
	};
	int rc;

	*ret = calloc(n + 1, sizeof(**ret));
	if (!pieces || !*ret) {
		free(pieces);
		return error_set(-ENOMEM, "out of memory");
	}
	rc = sort(l, pieces);
	if (!rc && cuda_plan_make(&layout, false, &e->plan, *ret))
		rc = error_set(-EINVAL, "segments: they are not those of the geometry");
	free(pieces);
	return rc;
}

static int shapes(struct encoded *e, const struct kvtier_geometry *g)
{
	struct image_shape shape;

	e->geometry = IMAGE_GEOMETRY(g);
	if (image_shape(&e->geometry, CODEC_RAW, CODEC_RAW, &shape, NULL))
		return error_set(-EINVAL, "a raw image is larger than %d bytes", IMAGE_MAX_BYTES);
	for (uint32_t i = CODEC_RAW; i <= CODECS_INT8V4; i++) {
		const struct image_codecs codecs = image_codecs(i);

		if (!image_shape(&e->geometry, codecs.k, codecs.v, &shape, NULL) &&
		    shape.image_bytes > e->stride)
			e->stride = shape.image_bytes;
	}
	e->stride = (e->stride + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;
	return 0;
}

/* Waits until the stream is empty, also after an error: the error may be an earlier call's, which
 * the driver reports instead of waiting. rc: an error from before; it is returned. */
static int settle(const struct encoded *e, int rc)
{
	int first = 0, second = 0;

	TRY(e, first, cuStreamSynchronize, e->stream);
	if (first)
		TRY(e, second, cuStreamSynchronize, e->stream);
	return rc ? rc : first;
}

/* --- opening --- */

static int load_module(struct encoded *e, CUdevice device)
{
	struct cuda_kernels_for gpu;
	char why[160];
	CUresult result = cuda_kernels_ask(e->api, device, &gpu);

	if (result)
		return driver_error(result, "cuDeviceGetAttribute");
	if (cuda_kernels_check(gpu, why, sizeof(why)))
		return error_set(-EOPNOTSUPP, "engine mode: %s", why);
	result = cuda_kernels_load(e->api, gpu, &e->module);
	return result ? driver_error(result, "cuModuleLoadData") : 0;
}

static int load(struct encoded *e)
{
	int rc = load_module(e, e->cuda->device.device), least = 0, greatest = 0;

	TRY(e, rc, cuModuleGetFunction, &e->encode, e->module, "kvtier_encode");
	TRY(e, rc, cuModuleGetFunction, &e->decode, e->module, "kvtier_decode");
	TRY(e, rc, cuCtxGetStreamPriorityRange, &least, &greatest);
	TRY(e, rc, cuStreamCreateWithPriority, &e->stream, CU_STREAM_NON_BLOCKING, least);
	return rc;
}

static int bring(struct encoded *e, const struct cuda_piece *pieces, size_t n)
{
	int rc = 0;

	TRY(e, rc, cuMemAlloc, &e->pieces, (n + 1) * sizeof(*pieces));
	TRY(e, rc, cuMemcpyHtoDAsync, e->pieces, pieces, n * sizeof(*pieces), e->stream);
	rc = settle(e, rc);
	e->plan.pieces = e->pieces;
	return rc;
}

int encoded_open(const struct space_layout *layout, const struct cuda_memory *cuda,
		 struct encoded **ret)
{
	struct encoded *e = calloc(1, sizeof(*e));
	struct cuda_piece *pieces = NULL;
	int rc;

	if (!e)
		return error_set(-ENOMEM, "out of memory");
	e->cuda = cuda;
	e->api = cuda->device.api;
	rc = shapes(e, &layout->geometry);
	if (!rc)
		rc = plan_make(e, layout, &pieces);
	if (!rc)
		rc = cuda_enter(&cuda->device);
	if (!rc) {
		rc = load(e);
		if (!rc)
			rc = bring(e, pieces, layout->n_segments);
		cuda_leave(&cuda->device);
	}
	free(pieces);
	if (rc)
		encoded_close(e);
	else
		*ret = e;
	return rc;
}

void encoded_close(struct encoded *e)
{
	if (!e)
		return;
	encoded_unmap(e);
	if (!cuda_enter(&e->cuda->device)) {
		for (size_t i = 0; i < KVTIER_MAX_OPS; i++)
			if (e->ops[i].event)
				(void)e->api->cuEventDestroy(e->ops[i].event);
		if (e->stream)
			(void)e->api->cuStreamDestroy(e->stream);
		if (e->pieces)
			(void)e->api->cuMemFree(e->pieces);
		if (e->module)
			(void)e->api->cuModuleUnload(e->module);
		cuda_leave(&e->cuda->device);
	}
	free(e);
}

uint64_t encoded_stride(const struct encoded *e)
{
	return e->stride;
}

/* --- the daemon's memory --- */

static int map_images(struct encoded *e, int fd, uint64_t bytes)
{
	const CUmemAccessDesc access = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = e->cuda->device.device },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUmemGenericAllocationHandle handle = 0;
	int rc = 0;

	TRY(e, rc, cuMemImportFromShareableHandle, &handle, (void *)(uintptr_t)fd,
	    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (rc)
		return rc;
	TRY(e, rc, cuMemAddressReserve, &e->images, bytes, 0, 0, 0);
	e->reserved = rc ? 0 : bytes;
	TRY(e, rc, cuMemMap, e->images, bytes, 0, handle, 0);
	e->mapped = rc ? 0 : bytes;
	TRY(e, rc, cuMemSetAccess, e->images, bytes, &access, 1);
	(void)e->api->cuMemRelease(handle); /* the mapping keeps it */
	return rc;
}

static int map(struct encoded *e, int fd, uint64_t bytes)
{
	const size_t flags = e->pages * sizeof(*e->flags_here);
	int rc = map_images(e, fd, bytes);

	TRY(e, rc, cuMemAlloc, &e->flags, flags);
	TRY(e, rc, cuMemHostAlloc, (void **)&e->flags_here, flags, CU_MEMHOSTALLOC_PORTABLE);
	TRY(e, rc, cuMemsetD8Async, e->flags, 0, flags, e->stream);
	return settle(e, rc);
}

int encoded_map(struct encoded *e, int fd, uint32_t pages, uint64_t stride,
		const struct wire_space_ok *ok)
{
	int rc;

	e->stride = stride;
	if (ok->engine_bytes < pages * e->stride || ok->engine_bytes > WIRE_MAX_RANGE_BYTES ||
	    ok->max_ctas == 0 || ok->image_bytes > e->stride)
		return error_set(-EPROTO, "SPACE_OK.engine_bytes is %llu, of %u thread blocks",
				 (unsigned long long)ok->engine_bytes, ok->max_ctas);
	e->pages = pages;
	e->max_ctas = ok->max_ctas;
	e->codecs = image_codecs(ok->codec);
	e->raw = calloc(pages, 1);
	rc = e->raw ? cuda_enter(&e->cuda->device) : error_set(-ENOMEM, "out of memory");
	if (!rc) {
		rc = map(e, fd, ok->engine_bytes);
		cuda_leave(&e->cuda->device);
	}
	if (rc)
		encoded_unmap(e);
	return rc;
}

void encoded_unmap(struct encoded *e)
{
	free(e->raw);
	e->raw = NULL;
	if (!e->images && !e->flags && !e->flags_here)
		return;
	if (!cuda_enter(&e->cuda->device)) {
		if (e->mapped)
			(void)e->api->cuMemUnmap(e->images, e->mapped);
		if (e->reserved)
			(void)e->api->cuMemAddressFree(e->images, e->reserved);
		if (e->flags)
			(void)e->api->cuMemFree(e->flags);
		if (e->flags_here)
			(void)e->api->cuMemFreeHost(e->flags_here);
		cuda_leave(&e->cuda->device);
	}
	e->images = e->flags = 0;
	e->reserved = e->mapped = 0;
	e->flags_here = NULL;
}

/* --- kernels --- */

static struct image_codecs codecs_of(const struct encoded *e, uint32_t page)
{
	return e->raw[page] ? image_codecs(CODEC_RAW) : e->codecs;
}

/* Launches the kernel for the tasks that were added. */
static int launch(struct encoded *e, CUfunction kernel, struct cuda_tasks *tasks)
{
	struct cuda_plan plan = e->plan;
	void *params[] = { &plan, tasks };
	int rc = 0;

	if (tasks->n == 0)
		return 0;
	TRY(e, rc, cuLaunchKernel, kernel,
	    cuda_plan_blocks(&plan, cuda_tasks_number(tasks), e->max_ctas), 1, 1, CUDA_THREADS, 1,
	    1, 0, e->stream, params, NULL);
	tasks->n = 0;
	return rc;
}

/* Adds one image, and launches when there are as many as a launch can have. */
static int add(struct encoded *e, CUfunction kernel, uint64_t user_page, uint32_t page,
	       struct cuda_tasks *tasks)
{
	const struct image_codecs codecs = codecs_of(e, page);
	const CUdeviceptr image = e->images + page * e->stride;
	struct image_shape shape;

	if (image_shape(&e->geometry, codecs.k, codecs.v, &shape, NULL))
		return error_set(-EIO, "codec %d does not fit the space", (int)codecs.k);
	tasks->task[tasks->n++] = (struct cuda_task){
		.page = user_page,
		.scales = image + sizeof(struct image_header),
		.payload = image + shape.payload_offset,
		.flag = e->flags + page * sizeof(*e->flags_here),
		.n_tiles = e->plan.n_tiles,
		.codec_k = (uint8_t)codecs.k,
		.codec_v = (uint8_t)codecs.v,
	};
	return tasks->n == CUDA_TASKS ? launch(e, kernel, tasks) : 0;
}

/* Records the op's event behind the queued work. After a failure this work has ended. */
static int finish(struct encoded *e, struct encoded_op *op, int rc)
{
	if (!rc && !op->event)
		TRY(e, rc, cuEventCreate, &op->event, CU_EVENT_DISABLE_TIMING);
	TRY(e, rc, cuEventRecord, op->event, e->stream);
	if (rc)
		rc = settle(e, rc);
	cuda_leave(&e->cuda->device);
	return rc;
}

/* Encodes the op's raw images, or all of them. */
static int encode(struct encoded *e, struct encoded_op *op, bool all)
{
	struct cuda_tasks tasks = { .mark = op->mark };
	int rc = cuda_enter(&e->cuda->device);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < op->n && !rc; i++)
		if (all || e->raw[op->first + i])
			rc = add(e, e->encode, op->pages[i], op->first + i, &tasks);
	if (!rc)
		rc = launch(e, e->encode, &tasks);
	if (op->mark)
		TRY(e, rc, cuMemcpyDtoHAsync, e->flags_here + op->first,
		    e->flags + op->first * sizeof(*e->flags_here), op->n * sizeof(*e->flags_here),
		    e->stream);
	return finish(e, op, rc);
}

int encoded_store(struct encoded *e, uint32_t number, const uint32_t *pages, uint32_t first,
		  uint32_t n)
{
	struct encoded_op *op = &e->ops[number];

	memset(e->raw + first, 0, n);
	op->pages = pages;
	op->first = first;
	op->n = n;
	op->mark = 0;
	if (image_codec_scales(e->codecs.k)) {
		e->mark += e->mark == UINT32_MAX ? 2 : 1; /* never 0 */
		op->mark = e->mark;
	}
	return encode(e, op, true);
}

int encoded_load(struct encoded *e, uint32_t number, const uint32_t *pages, uint32_t first,
		 uint32_t n, int32_t *statuses)
{
	struct encoded_op *op = &e->ops[number];
	struct cuda_tasks tasks = { 0 };
	bool any = false;
	int rc = cuda_enter(&e->cuda->device);

	if (rc)
		return rc;
	op->mark = 0;
	for (uint32_t i = 0; i < n && !rc; i++) {
		if (statuses[i] < 0)
			continue;
		any = true;
		e->raw[first + i] = statuses[i] == WIRE_BLOCK_RAW;
		statuses[i] = KVTIER_BLOCK_OK;
		rc = add(e, e->decode, pages[i], first + i, &tasks);
	}
	if (!rc)
		rc = launch(e, e->decode, &tasks);
	rc = finish(e, op, rc);
	return rc ? rc : !any;
}

/* Notes which images their codec does not hold, to be encoded again, raw. True: there is one. */
static bool look_at_flags(struct encoded *e, struct encoded_op *op)
{
	bool any = false;

	for (uint32_t i = 0; i < op->n && op->mark; i++) {
		e->raw[op->first + i] = e->flags_here[op->first + i] == op->mark;
		any |= e->raw[op->first + i];
	}
	op->mark = 0;
	return any;
}

int encoded_look(struct encoded *e, uint32_t number)
{
	struct encoded_op *op = &e->ops[number];
	CUresult result;
	int rc = cuda_enter(&e->cuda->device);

	if (rc)
		return rc;
	result = e->api->cuEventQuery(op->event);
	if (result && result != CUDA_ERROR_NOT_READY) {
		rc = settle(e, driver_error(result, "cuEventQuery"));
	}
	cuda_leave(&e->cuda->device);
	if (result)
		return rc;
	return look_at_flags(e, op) ? encode(e, op, false) : 1;
}

int encoded_wait(const struct encoded *e)
{
	int rc = cuda_enter(&e->cuda->device);

	if (rc)
		return rc;
	rc = settle(e, 0);
	cuda_leave(&e->cuda->device);
	return rc;
}

uint32_t encoded_page(const struct encoded *e, uint32_t page)
{
	return e->raw[page] ? page | WIRE_PAGE_RAW : page;
}
