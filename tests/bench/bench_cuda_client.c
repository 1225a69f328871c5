/* SPDX-License-Identifier: Apache-2.0 */
/* bench_cuda_client.c - see bench_cuda_client.h. */
#include "bench_cuda_client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 16, TOKENS = 16, HEADS = 8, DIM = 128, PLANE = TOKENS * HEADS * DIM * 2 };
enum { PAGE = CUDA_CLIENT_PAGE, OP_BLOCKS = CUDA_CLIENT_OP };
_Static_assert(PAGE == PLANE * 2 * LAYERS, "bytes of a page");

/* --- life --- */

/* Slabs for so many images: twice as many as they fill, since few fit into a small one. */
static uint64_t room_for(uint64_t images, uint64_t slab)
{
	return (images * (PAGE + (64 << 10)) / slab + 2) * slab * 2;
}

static int open_daemon(struct cuda_client *c, const struct cuda_client_setup *s)
{
	const uint64_t slab = c->rig.bytes < RIG_SMALL ? 2 << 20 : 64 << 20;
	const uint64_t gpu = s->gpu_times ? room_for((uint64_t)s->gpu_times * c->blocks, slab) : 0;
	char sections[512], ctas[32] = "";

	if (rig_blocks(0))
		(void)snprintf(ctas, sizeof(ctas), "max_ctas = %" PRIu32 "\n", rig_blocks(0));
	(void)snprintf(sections, sizeof(sections),
		       "[host]\nbytes = %" PRIu64 "\nslab_bytes = %" PRIu64 "\n[nvme]\nbytes = 0\n"
		       "[gpu]\ndevices = required\nbytes = %" PRIu64 "\nmode = %s\n%s",
		       room_for((uint64_t)s->host_times * c->blocks, slab), slab, gpu, s->mode,
		       ctas);
	return bench_daemon_open(&c->d, OP_BLOCKS, NULL, sections);
}

static int open_space(struct cuda_client *c, uint32_t codec)
{
	const struct bench_shape shape = {
		.model = "cuda@1",
		.layers = LAYERS,
		.tokens = TOKENS,
		.heads = HEADS,
		.dim = DIM,
		.codec = codec,
	};
	const struct kvtier_region region = {
		.size = sizeof(region),
		.memory = KVTIER_CUDA,
		.fd = -1,
		.base = (void *)(uintptr_t)c->rig.pages,
		.length = (uint64_t)c->blocks * PAGE,
	};

	return bench_space(c->d.client, &shape, &region, &c->space);
}

uint64_t cuda_client_stat(const struct cuda_client *c, const char *name)
{
	char words[96], text[2048];
	const char *line;

	(void)snprintf(words, sizeof(words), "stats -f %s", name);
	if (bench_daemon_ctl(&c->d, words, text, sizeof(text)))
		return 0;
	line = strstr(text, name);
	return line ? strtoull(line + strlen(name), NULL, 10) : 0;
}

/* Not for ever: where the driver registers less memory, the case runs with that. */
static void await_pinned(const struct cuda_client *c)
{
	const uint64_t all = cuda_client_stat(c, "tiers.host.capacity_bytes");

	for (int i = 0; i < 1500 && cuda_client_stat(c, "tiers.host.pinned_bytes") < all; i++)
		usleep(20000);
}

int cuda_client_open(struct cuda_client *c, const struct cuda_client_setup *setup)
{
	int r;

	c->blocks = (uint32_t)(c->rig.bytes / PAGE);
	r = open_daemon(c, setup);
	if (r == 0)
		r = bench_daemon_await_up(&c->d, "host");
	if (r == 0)
		r = open_space(c, setup->codec);
	if (r == 0)
		await_pinned(c);
	return r;
}

int cuda_client_close(struct cuda_client *c)
{
	(void)kvtier_space_close(c->space);
	bench_daemon_close(&c->d);
	return rig_close(&c->rig);
}

/* --- blocks --- */

int cuda_client_keys(const struct cuda_client *c, uint32_t run, uint32_t n, struct kvtier_key *ret)
{
	uint32_t tokens[TOKENS * OP_BLOCKS];
	int r = 0;

	for (uint32_t i = 0; i < n && r == 0; i += OP_BLOCKS) {
		const uint32_t some = n - i < OP_BLOCKS ? n - i : OP_BLOCKS;
		size_t made = some;

		tokens[0] = run;
		for (uint32_t t = 1; t < TOKENS * OP_BLOCKS; t++)
			tokens[t] = i << 10 ^ t;
		r = kvtier_keys(c->space, NULL, tokens, (size_t)TOKENS * some, ret + i, &made);
	}
	return r;
}

int cuda_client_move(struct cuda_client *c, bool load, const struct kvtier_key *keys,
		     uint32_t first, uint32_t n, double *ret_s)
{
	const uint32_t n_ops = (n + OP_BLOCKS - 1) / OP_BLOCKS;
	uint64_t *ops = calloc(n_ops, sizeof(*ops));
	uint32_t pages[OP_BLOCKS], begun = 0;
	const uint64_t start = bench_now_ns();
	int r = ops ? 0 : -ENOMEM;

	for (; begun < n_ops && r == 0; begun += r == 0) {
		const uint32_t at = begun * OP_BLOCKS, left = n - at;
		const uint32_t some = left < OP_BLOCKS ? left : OP_BLOCKS;

		for (uint32_t i = 0; i < some; i++)
			pages[i] = first + at + i;
		r = (load ? kvtier_load : kvtier_store)(c->space, keys + at, pages, some, NULL,
							&ops[begun]);
	}
	for (uint32_t i = 0; i < begun; i++) {
		struct kvtier_result result = { .size = sizeof(result) };
		const int w = kvtier_wait(c->d.client, ops[i], -1, &result);

		if (r == 0)
			r = w ? w : result.status;
	}
	*ret_s = (double)(bench_now_ns() - start) * 1e-9;
	free(ops);
	return r;
}

int cuda_client_fill(struct cuda_client *c, uint32_t first, uint32_t n, uint8_t value)
{
	const CUdeviceptr page = c->rig.pages + (uint64_t)first * PAGE;

	return c->rig.api.cuMemsetD8Async(page, value, (size_t)n * PAGE, c->rig.stream) ||
			       c->rig.api.cuStreamSynchronize(c->rig.stream) ?
		       -EIO :
		       0;
}

int cuda_client_compare(struct cuda_client *c, uint32_t first, uint32_t n)
{
	const struct cuda_api *api = &c->rig.api;

	for (uint32_t i = first; i < first + n; i++) {
		const CUdeviceptr page = c->rig.pages + (uint64_t)i * PAGE;
		uint8_t ends[2] = { 0, 0 };

		if (api->cuMemcpyDtoHAsync(&ends[0], page, 1, c->rig.stream) ||
		    api->cuMemcpyDtoHAsync(&ends[1], page + PAGE - 1, 1, c->rig.stream) ||
		    api->cuStreamSynchronize(c->rig.stream))
			return -EIO;
		if (ends[0] != CUDA_CLIENT_VALUE || ends[1] != CUDA_CLIENT_VALUE)
			return -EBADMSG;
	}
	return 0;
}
