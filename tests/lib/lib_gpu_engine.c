/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_gpu_engine.h"

static void make_mapped(const struct gpu *g, size_t bytes, struct gpu_memory *m)
{
	const CUmemAllocationHandleType type =
		m->kind == GPU_VMM_NONE ? CU_MEM_HANDLE_TYPE_NONE :
		m->kind == GPU_VMM_FABRIC || m->kind == GPU_VMM_FABRIC_TWO ?
					  CU_MEM_HANDLE_TYPE_FABRIC :
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	const size_t unit = gpu_granule(g, type);
	size_t each;

	m->allocs = m->kind == GPU_VMM_TWO || m->kind == GPU_VMM_FABRIC_TWO ? 2 : 1;
	if (m->kind == GPU_VMM_MANY)
		m->allocs = (bytes + unit - 1) / unit;
	assert_true(m->allocs <= GPU_MEMORY_ALLOCS);
	each = (bytes / m->allocs + unit - 1) / unit * unit;
	m->bytes = each * m->allocs;
	m->base = gpu_map(g, type, each, m->allocs, m->handles);
}

void gpu_memory_make(const struct gpu *g, enum gpu_memory_kind kind, size_t bytes,
		     struct gpu_memory *ret)
{
	*ret = (struct gpu_memory){ .kind = kind, .bytes = bytes };
	if (kind == GPU_ALLOC) {
		GPU(gpu_api()->cuMemAlloc(&ret->base, bytes));
	} else if (kind == GPU_POOL) {
		GPU(gpu_api()->cuMemAllocAsync(&ret->base, bytes, g->stream));
		GPU(gpu_api()->cuStreamSynchronize(g->stream));
	} else {
		make_mapped(g, bytes, ret);
	}
}

void gpu_memory_free(const struct gpu *g, struct gpu_memory *m)
{
	const struct cuda_api *cu = gpu_api();

	if (m->kind == GPU_ALLOC) {
		GPU(cu->cuMemFree(m->base));
	} else if (m->kind == GPU_POOL) {
		GPU(cu->cuMemFreeAsync(m->base, g->stream));
		GPU(cu->cuStreamSynchronize(g->stream));
	} else {
		gpu_unmap(m->base, m->bytes / m->allocs, m->allocs, m->handles);
	}
}

void gpu_engine_connect(struct gpu_engine *ge, const struct gpu *gpu, const char *socket,
			const struct kvtier_geometry *geometry, uint32_t pages,
			enum gpu_memory_kind kind)
{
	const struct kvtier_options o = {
		.size = sizeof(o), .socket_path = socket, .name = "gpu", .timeout_ms = 60000
	};
	struct engine *e = &ge->e;
	size_t bytes;

	*ge = (struct gpu_engine){ .gpu = gpu };
	*e = (struct engine){ .geometry = *geometry,
			      .pages = pages,
			      .page_bytes = engine_page_bytes(geometry),
			      .fd = -1 };
	bytes = e->page_bytes * pages;
	e->memory = aligned_alloc(4096, (bytes + 4095) & ~4095ull);
	assert_non_null(e->memory);
	GPU(gpu_api()->cuMemHostRegister(e->memory, bytes, CU_MEMHOSTREGISTER_PORTABLE));
	gpu_memory_make(gpu, kind, bytes, &ge->memory);
	if (kvtier_connect(&o, &e->client))
		fail_msg("kvtier_connect: %s", kvtier_last_error());
}

int gpu_engine_space(struct gpu_engine *ge)
{
	static struct kvtier_segment segments[KVTIER_MAX_SEGMENTS];
	struct engine *e = &ge->e;
	const size_t n = engine_segments(&e->geometry, segments, KVTIER_MAX_SEGMENTS);
	const struct kvtier_region region = { .size = sizeof(region),
					      .memory = KVTIER_CUDA,
					      .fd = -1,
					      .length = e->page_bytes * e->pages,
					      .base = (void *)(uintptr_t)ge->memory.base };

	return kvtier_space_open(e->client, &e->geometry, &region, 1, segments, n, &e->space);
}

void gpu_engine_open(struct gpu_engine *ge, const struct gpu *gpu, const char *socket,
		     const struct kvtier_geometry *geometry, uint32_t pages,
		     enum gpu_memory_kind kind)
{
	const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;
	int r;

	gpu_engine_connect(ge, gpu, socket, geometry, pages, kind);
	while ((r = gpu_engine_space(ge)) != 0) {
		if (r != -ENOTCONN || now_ns() > until)
			fail_msg("kvtier_space_open: %s", kvtier_last_error());
		nap_ms(5);
	}
}

void gpu_engine_close(struct gpu_engine *ge)
{
	GPU(gpu_api()->cuMemHostUnregister(ge->e.memory));
	engine_close(&ge->e);
	gpu_memory_free(ge->gpu, &ge->memory);
}

void gpu_engine_reached(const struct gpu_engine *ge, const char *words)
{
	static const char *const begins[] = {
		[KVTIER_REACH_CUDA_IPC] = "CUDA IPC",
		[KVTIER_REACH_CUDA_FD] = "CUDA descriptor",
		[KVTIER_REACH_CUDA_FABRIC] = "CUDA fabric handle",
		[KVTIER_REACH_CUDA_STAGED] = "CUDA staged",
	};
	char text[256];
	const int reach = kvtier_space_memory(ge->e.space, text, sizeof(text));

	assert_in_range(reach, KVTIER_REACH_CUDA_IPC, KVTIER_REACH_CUDA_STAGED);
	assert_int_equal(kvtier_space_memory(ge->e.space, NULL, 0), reach);
	if (!strstr(text, words) || strncmp(text, begins[reach], strlen(begins[reach])) != 0)
		fail_msg("pages are reached by \"%s\", not by \"%s\"", text, words);
}

void gpu_pages_push(const struct gpu_engine *ge, uint32_t first, uint32_t n)
{
	for (size_t at = first * ge->e.page_bytes; n > 0; n--, at += ge->e.page_bytes)
		gpu_write(ge->gpu, ge->memory.base + at, ge->e.memory + at, ge->e.page_bytes);
}

void gpu_pages_poison(struct gpu_engine *ge, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		page_poison(&ge->e, first + i);
	gpu_pages_push(ge, first, n);
}

void gpu_pages_pull(const struct gpu_engine *ge, uint32_t first, uint32_t n)
{
	for (size_t at = first * ge->e.page_bytes; n > 0; n--, at += ge->e.page_bytes)
		gpu_read(ge->gpu, ge->e.memory + at, ge->memory.base + at, ge->e.page_bytes);
}

int gpu_chain_store(struct gpu_engine *ge, const struct kvtier_key *keys, uint32_t first,
		    uint32_t n)
{
	uint32_t pages[KVTIER_MAX_BLOCKS];

	pages_from(first, pages, n);
	for (uint32_t i = 0; i < n; i++)
		page_fill(&ge->e, pages[i], &keys[i], 0);
	gpu_pages_push(ge, first, n);
	return engine_store(&ge->e, keys, pages, n, NULL, NULL);
}

uint32_t gpu_chain_load(struct gpu_engine *ge, const struct kvtier_key *keys, uint32_t first,
			uint32_t n)
{
	uint32_t pages[KVTIER_MAX_BLOCKS], hits = 0;
	int32_t blocks[KVTIER_MAX_BLOCKS];

	pages_from(first, pages, n);
	for (uint32_t i = 0; i < n; i++)
		blocks[i] = -EINPROGRESS;
	gpu_pages_poison(ge, first, n);
	(void)engine_load(&ge->e, keys, pages, n, blocks);
	gpu_pages_pull(ge, first, n);
	for (uint32_t i = 0; i < n; i++) {
		if (blocks[i] == 0 ? !page_is(&ge->e, pages[i], &keys[i], 0) :
				     !page_is_poison(&ge->e, pages[i]))
			fail_msg("block %u with status %d: its page holds the wrong bytes", i,
				 blocks[i]);
		hits += blocks[i] == 0;
	}
	return hits;
}

struct kvtier_result gpu_not_waited_for(struct gpu_engine *ge, uint64_t op, int r)
{
	struct kvtier_result ret = { .size = sizeof(ret) };

	assert_true(r == -EOPNOTSUPP || r == 0);
	assert_int_equal(kvtier_wait(ge->e.client, op, r == 0 ? 0 : -1, &ret), 0);
	return ret;
}

void gpu_engine_goes(const struct gpu *gpu, const char *socket, enum gpu_memory_kind kind,
		     uint32_t n, const char *words)
{
	struct kvtier_key keys[KVTIER_MAX_BLOCKS];
	struct gpu_engine ge;

	gpu_engine_open(&ge, gpu, socket, &large_fp8, 2 * n, kind);
	gpu_engine_reached(&ge, words);
	chain_keys(&ge.e, kind, n, keys);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, n), 0);
	assert_int_equal(gpu_chain_load(&ge, keys, n, n), n);
	gpu_engine_close(&ge);
}
