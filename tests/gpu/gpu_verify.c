/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=4 */
/*
 * gpu_verify - goal: with verify = always a damaged image in host memory is a miss for an engine on
 * a GPU, counted, and its page stays as it was; whether the image crosses the wire in one piece,
 * which is verified while it is copied or where it lies, or in several. Method: a bit of an image
 * is flipped in the daemon's memory, in the payload's first and last byte, in its scales, in the
 * checksum; the page is poisoned before the load.
 */
#include "tests/lib/lib_damage.h"
#include "tests/lib/lib_gpu_raw.h"
#include "tests/lib/test.h"

#include <errno.h>

#include "kernels/image.h"

enum { N = 4, CHAIN = 6, VICTIM = 2 };

static const char config[] =
	"[host]\nbytes = 128M\nslab_bytes = 32M\nhuge_pages = no\nverify = always\n"
	"[device]\nworkers = 2\ndepth = 16\n"
	"[gpu]\ndevices = required\nstaging_bytes = 8M\n";

static struct daemon d;
static struct gpu gpu;

FIXTURE(begin)
{
	return gpu_daemon_begin(&d, &gpu, config);
}

FIXTURE(end)
{
	return gpu_daemon_end(&d, &gpu);
}

TEST_EACH(begin, end);

/* The bit `offset` bytes from the image's start is flipped; the others are good. */
static void is_a_miss(struct gpu_raw *e, long offset)
{
	const uint64_t corrupt = daemon_stat(&d, "tiers.host.corrupt_blocks_total");
	struct wire_cqe cqe;
	uint8_t key[32];

	gpu_raw_fill(e, CHAIN, 0, N);
	assert_int_equal(gpu_raw_run(e, WIRE_OP_STORE, CHAIN, 0, N).status, 0);
	gpu_raw_poison(e, N, N);
	cqe = gpu_raw_run(e, WIRE_OP_LOAD, CHAIN, N, N);
	assert_int_equal(cqe.ok, N);
	random_key((uint64_t)CHAIN << 32 | (VICTIM + 1), key);
	damage_image(&d, key, offset);
	gpu_raw_poison(e, N, N);
	cqe = gpu_raw_run(e, WIRE_OP_LOAD, CHAIN, N, N);
	assert_int_equal(cqe.status, -ENOENT);
	assert_int_equal(cqe.ok, N - 1);
	assert_int_equal(daemon_stat(&d, "tiers.host.corrupt_blocks_total"), corrupt + 1);
	for (uint32_t i = 0; i < N; i++)
		assert_true(i == VICTIM ? gpu_raw_is_poison(e, N + i) :
					  gpu_raw_holds(e, CHAIN, i, N + i));
}

static void damaged_everywhere(const struct kvtier_geometry *g)
{
	const long payload = IMAGE_ALIGN; /* the scales of these fit before it */
	struct gpu_raw e;

	gpu_raw_open(&e, d.socket, &gpu, g, 2 * N);
	is_a_miss(&e, payload);
	is_a_miss(&e, payload + (long)(e.page_bytes / (g->codec == KVTIER_CODEC_FP8 ? 2 : 1)) - 1);
	is_a_miss(&e, offsetof(struct image_header, checksum));
	if (g->codec == KVTIER_CODEC_FP8)
		is_a_miss(&e, sizeof(struct image_header));
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
}

TEST(of_one_piece)
{
	const struct kvtier_geometry raw = tiny_geometry(KVTIER_CODEC_RAW);
	const struct kvtier_geometry fp8 = tiny_geometry(KVTIER_CODEC_FP8);

	damaged_everywhere(&raw);
	damaged_everywhere(&fp8);
}

TEST(of_several_pieces)
{
	struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);

	g.layers = 16;
	g.kv_heads = 8;
	g.head_dim_k = g.head_dim_v = 256;
	damaged_everywhere(&g);
}

/* A payload of 256 KiB or more crosses from its own slot, once the driver has registered it. */
TEST(of_one_piece_that_goes_directly)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct gpu_raw first;

	g.layers = 8;
	g.kv_heads = 4;
	g.head_dim_k = g.head_dim_v = 128;
	g.block_tokens = 32;
	gpu_raw_open(&first, d.socket, &gpu, &g,
		     1); /* somebody uses the GPU: memory is registered */
	daemon_stat_becomes(&d, "tiers.host.pinned_bytes", 128 << 20, PATIENT_MS);
	damaged_everywhere(&g);
	gpu_raw_close_space(&first);
	gpu_raw_close(&first);
	assert_true(daemon_stat(&d, "gpu.direct_in_bytes_total") > 0);
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0 one_thread=1");
}
