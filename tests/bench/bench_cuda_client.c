/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_cuda_client.h"

enum { PAGE = CUDA_CLIENT_PAGE };

/* --- life --- */

/* Slabs for so many images: twice as many as they fill, since few fit into a small one. */
static uint64_t room_for(uint64_t images, uint64_t slab)
{
	return (images * (PAGE + (64 << 10)) / slab + 2) * slab * 2;
}

static void start_daemon(struct cuda_client *c, const struct cuda_client_setup *s)
{
	const uint64_t slab = c->rig.bytes < RIG_SMALL ? 2 << 20 : 64 << 20;
	const uint64_t gpu = s->gpu_times ? room_for((uint64_t)s->gpu_times * c->blocks, slab) : 0;
	char sections[512], ctas[32] = "";

	if (rig_blocks(0))
		(void)snprintf(ctas, sizeof(ctas), "max_ctas = %" PRIu32 "\n", rig_blocks(0));
	(void)snprintf(sections, sizeof(sections),
		       "[host]\nbytes = %" PRIu64 "\nslab_bytes = %" PRIu64 "\n[nvme]\nbytes = 0\n"
		       "[gpu]\ndevices = required\nbytes = %" PRIu64 "\n%s",
		       room_for((uint64_t)s->host_times * c->blocks, slab), slab, gpu, ctas);
	bench_daemon_start(&c->d, sections);
}

void cuda_client_open(struct cuda_client *c, const struct cuda_client_setup *setup)
{
	const struct bench_shape shape = { BENCH_LAYERS / 2, BENCH_HEADS, BENCH_DIM, setup->codec };
	const struct stats_values *v;
	struct kvtier_region region = {
		.size = sizeof(region),
		.memory = KVTIER_CUDA,
		.fd = -1,
		.base = (void *)(uintptr_t)c->rig.pages,
	};

	c->blocks = (uint32_t)(c->rig.bytes / PAGE);
	region.length = (uint64_t)c->blocks * PAGE;
	start_daemon(c, setup);
	v = &c->d.stats->v;
	bench_daemon_await_up(&v->tiers_host_state);
	c->space = bench_space(c->d.client, &shape, &region);
	/* Not for ever: where the driver registers less memory, the case runs with that. */
	for (int i = 0; i < 1500 && stats_get(&v->tiers_host_pinned_bytes) <
					    stats_get(&v->tiers_host_capacity_bytes);
	     i++)
		usleep(20000);
}

struct kvtier_space *cuda_small_space(struct rig *rig, struct kvtier_client *client, bool on_gpu,
				      uint32_t blocks)
{
	const struct bench_shape shape = { 2, 2, 64, KVTIER_CODEC_FP8 };
	struct kvtier_region region = {
		.size = sizeof(region),
		.memory = on_gpu ? KVTIER_CUDA : KVTIER_MEMFD,
		.fd = -1,
		.length = blocks * bench_page_bytes(&shape),
	};

	if (on_gpu)
		region.base = (void *)(uintptr_t)rig_alloc(rig, region.length);
	else
		(void)bench_memfd(region.length, false, &region.fd);
	return bench_space(client, &shape, &region);
}

/* --- blocks --- */

int cuda_client_keys(const struct cuda_client *c, uint32_t run, uint32_t n, struct kvtier_key *ret)
{
	return bench_keys(c->space, run, n, ret);
}

int cuda_client_move(const struct cuda_client *c, bool load, const struct kvtier_key *keys,
		     uint32_t first, uint32_t n)
{
	return bench_move(c->d.client, c->space, load, keys, first, n);
}

void cuda_client_fill(struct cuda_client *c, uint32_t first, uint32_t n, uint8_t value)
{
	const CUdeviceptr page = c->rig.pages + (uint64_t)first * PAGE;

	CALL(&c->rig, cuMemsetD8Async, page, value, (size_t)n * PAGE, c->rig.stream);
	rig_wait(&c->rig);
}

void cuda_client_compare(struct cuda_client *c, uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i < first + n; i++) {
		const CUdeviceptr page = c->rig.pages + (uint64_t)i * PAGE;
		uint8_t ends[2] = { 0, 0 };

		CALL(&c->rig, cuMemcpyDtoHAsync, &ends[0], page, 1, c->rig.stream);
		CALL(&c->rig, cuMemcpyDtoHAsync, &ends[1], page + PAGE - 1, 1, c->rig.stream);
		rig_wait(&c->rig);
		if (ends[0] != CUDA_CLIENT_VALUE || ends[1] != CUDA_CLIENT_VALUE)
			bench_must(-EBADMSG);
	}
}
