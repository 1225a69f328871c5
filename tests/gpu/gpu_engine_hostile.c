/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=6 */
/*
 * gpu_engine_hostile - goal: a client in engine mode that writes into the memory that the daemon
 * lends it spoils its own blocks and nothing else; no client finds another client's bytes there.
 * Method: a client that speaks the wire by hand and scribbles over its memory all the while, beside
 * an honest one; memory is looked at when it comes, and after its client gave it back and kept it.
 */
#include "tests/lib/lib_gpu_raw.h"

#include "kernels/image.h"

enum { N = 6, ROUNDS = 12, HOSTILE = 7, HONEST = 3 };

static const char config[] = HOST("64M", "2M") "verify = always\n" GPU_LINES "engine_bytes = 64M\n";
static const char keeping[] = HOST("64M", "2M") "verify = always\n" GPU_LINES "bytes = 32M\n";

static struct daemon d;
static struct gpu gpu;

FIXTURE(begin)
{
	return gpu_daemon_begin(&d, &gpu, *state);
}

FIXTURE(end)
{
	assert_int_equal(daemon_stat(&d, "tiers.host.corrupt_blocks_total"), 0);
	gpu_daemon_end(&d, &gpu);
	gpu_report_clean("gpu_engine_hostile"); /* it harms others within the driver's rules */
	return 0;
}

/* So many rounds of other bytes, over all of its memory, queued and not waited for. */
static void scribble(const struct gpu_raw *e, uint32_t rounds)
{
	static uint8_t byte;

	for (uint32_t i = 0; i < rounds; i++)
		GPU(gpu_api()->cuMemsetD8Async(e->images, ++byte, e->image_bytes, gpu.stream));
}

static bool all_are(const struct gpu_raw *e, uint8_t byte)
{
	uint8_t *bytes = malloc(e->image_bytes);
	bool ret = true;

	assert_non_null(bytes);
	gpu_read(&gpu, bytes, e->images, e->image_bytes);
	for (uint64_t i = 0; i < e->image_bytes; i++)
		ret &= bytes[i] == byte;
	free(bytes);
	return ret;
}

TEST_GIVEN(memory_comes_zeroed_and_is_nobody_elses, begin, end, config)
{
	struct gpu_raw hostile, other;

	gpu_raw_open_engine(&hostile, d.socket, &gpu, &large_fp8, N);
	assert_true(all_are(&hostile, 0));
	GPU(gpu_api()->cuMemsetD8Async(hostile.images, 0xee, hostile.image_bytes, gpu.stream));
	gpu_raw_close_space(&hostile); /* and keeps its mapping */
	daemon_stat_becomes(&d, "gpu.lent_bytes", 0, PATIENT_MS);
	for (int i = 0; i < 4; i++) {
		gpu_raw_open_engine(&other, d.socket, &gpu, &large_fp8, N);
		assert_true(all_are(&other, 0));
		assert_true(all_are(&hostile, 0xee));
		GPU(gpu_api()->cuMemsetD8Async(other.images, 0xdd, other.image_bytes, gpu.stream));
		GPU(gpu_api()->cuStreamSynchronize(gpu.stream));
		gpu_raw_close(&other);
		assert_true(all_are(&hostile, 0xee));
	}
	gpu_raw_close(&hostile);
}

/* A block that it stores while it scribbles is one image, the same at each load. */
TEST_GIVEN(rubbish_is_its_own_block, begin, end, config)
{
	const struct image_geometry ig = { .dtype = large_fp8.dtype,
					   .layers = large_fp8.layers,
					   .kv_heads = large_fp8.kv_heads,
					   .head_dim_k = large_fp8.head_dim_k,
					   .head_dim_v = large_fp8.head_dim_v,
					   .block_tokens = large_fp8.block_tokens };
	struct image_shape shape;
	struct gpu_raw hostile, honest;
	uint8_t *found[2];

	assert_int_equal(image_shape(&ig, CODEC_FP8, CODEC_FP8, &shape, NULL), 0);
	found[0] = malloc(shape.image_bytes);
	found[1] = malloc(shape.image_bytes);
	assert_true(found[0] && found[1]);
	gpu_raw_open_engine(&hostile, d.socket, &gpu, &large_fp8, 2 * N);
	gpu_raw_open(&honest, d.socket, &gpu, &large_fp8, 2 * N);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		const uint32_t chain = HOSTILE + 100 * round;

		scribble(&hostile, 4);
		gpu_raw_start(&hostile, WIRE_OP_STORE, chain, 0, N);
		scribble(&hostile, 8);
		gpu_raw_round_trip(&honest, HONEST + 100 * round, N);
		assert_int_equal(gpu_raw_await(&hostile).status, 0);
		GPU(gpu_api()->cuStreamSynchronize(gpu.stream));
		for (uint32_t i = 0; i < 2; i++) {
			GPU(gpu_api()->cuMemsetD8Async(hostile.images, (uint8_t)(0x11 + i),
						       hostile.image_bytes, gpu.stream));
			GPU(gpu_api()->cuStreamSynchronize(gpu.stream));
			assert_int_equal(
				gpu_raw_run(&hostile, WIRE_OP_LOAD, chain, i * N, N).status, 0);
			gpu_read(&gpu, found[i], hostile.images + i * N * hostile.stride,
				 shape.image_bytes);
		}
		assert_memory_equal(found[0] + 128, found[1] + 128, shape.scale_bytes);
		assert_memory_equal(found[0] + shape.payload_offset,
				    found[1] + shape.payload_offset, shape.payload_bytes);
		/* the honest one loads it, too: rubbish, and nothing breaks */
		assert_int_equal(gpu_raw_run(&honest, WIRE_OP_LOAD, chain, 0, N).status, 0);
	}
	gpu_raw_close(&hostile);
	gpu_raw_close(&honest);
	free(found[0]);
	free(found[1]);
}

/* The GPU keeps blocks that a load brings. They come to the scribbler's pages and to the GPU's
 * memory, and the honest client is served from there. */
TEST_GIVEN(what_a_gpu_keeps_does_not_come_from_pages, begin, end, keeping)
{
	struct gpu_raw hostile, honest;

	gpu_raw_open_engine(&hostile, d.socket, &gpu, &large_fp8, N);
	gpu_raw_open(&honest, d.socket, &gpu, &large_fp8, N);
	gpu_raw_store(&honest, HONEST, 0, N);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		const uint64_t hits = daemon_stat(&d, "tiers.gpu.hit_blocks_total");

		(void)daemon_told(&d, "evict --all --tier gpu");
		daemon_stat_becomes(&d, "tiers.gpu.blocks", 0, PATIENT_MS);
		scribble(&hostile, 2);
		gpu_raw_start(&hostile, WIRE_OP_LOAD, HONEST, 0, N);
		scribble(&hostile, 16);
		assert_int_equal(gpu_raw_await(&hostile).status, 0);
		assert_int_equal(daemon_stat(&d, "tiers.gpu.hit_blocks_total"), hits);
		gpu_raw_load(&honest, HONEST, 0, N);
		assert_int_equal(daemon_stat(&d, "tiers.gpu.hit_blocks_total"), hits + N);
		GPU(gpu_api()->cuStreamSynchronize(gpu.stream));
	}
	gpu_raw_close(&hostile);
	gpu_raw_close(&honest);
}

static void refused(uint64_t stride, uint64_t length, const char *words)
{
	struct wire_region region;
	char text[232] = "";
	struct gpu_raw e;

	gpu_raw_dial_engine(&e, d.socket, &gpu, &large_fp8, N, &region);
	e.stride = stride ? stride : e.stride;
	region.length = length;
	assert_true(gpu_raw_space(&e, &region, 1, NULL, 0, text) < 0);
	if (!strstr(text, words))
		fail_msg("\"%s\" does not say \"%s\"", text, words);
	daemon_stat_becomes(&d, "gpu.lent_bytes", 0, PATIENT_MS);
	e.stride = 0;
	gpu_raw_close(&e);
}

/* A page is 128 KiB; raw images take 4 KiB more. */
TEST_GIVEN(pages_have_room_for_images, begin, end, config)
{
	refused(128 << 10, 1 << 20, "segments[0].page_stride is 131072; in engine mode");
	refused((132 << 10) + 8, 1 << 20, "page_stride is 135176; in engine mode");
	refused(132 << 10, 0, "length 0; must be 1 to");
	refused(132 << 10, 1ull << 36, "must be 1 to [gpu] engine_bytes");
	refused(132 << 10, UINT64_MAX, "regions: with these");
	refused(132 << 10, (132 << 10) - 1, "regions[0].length is 135167; one page takes 135168");
}

/* A library of the release before would take an int8 image for an fp8 image. */
TEST_GIVEN(an_older_client_has_no_newer_codec_in_engine_mode, begin, end, config)
{
	const struct kvtier_geometry geometry = large_geometry(KVTIER_CODEC_INT8);
	struct wire_region region;
	struct gpu_raw e;

	for (uint32_t version = WIRE_VERSION_MIN; version <= WIRE_VERSION_MAX; version++) {
		raw_version = version;
		gpu_raw_dial_engine(&e, d.socket, &gpu, &geometry, N, &region);
		raw_version = 0;
		if (version < WIRE_WITH_ENGINE_CODECS) {
			gpu_raw_space_refused(&e, &region, -1, -EOPNOTSUPP, "has raw, fp8");
			e.stride = 0;
		} else {
			gpu_raw_space_open(&e, &region, 1, NULL, 0);
		}
		gpu_raw_close(&e);
	}
}

/* The last page's image ends where its memory does; there is none behind it. And a block is raw
 * only where the space's codec is fp8. */
TEST_GIVEN(pages_end_with_their_memory, begin, end, config)
{
	struct wire_region region;
	struct gpu_raw e;

	gpu_raw_dial_engine(&e, d.socket, &gpu, &large_fp8, N, &region);
	region.length += e.page_bytes; /* behind the last image there is room for planes */
	assert_int_equal(gpu_raw_space(&e, &region, 1, NULL, 0, NULL), 0);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, 1, N - 1, 1).status, 0);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, 2, N, 1).status, -EFAULT);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_LOAD, 1, N, 1).status, -EFAULT);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, 3, WIRE_PAGE_RAW | (N - 1), 1).status, 0);
	assert_int_equal(daemon_stat(&d, "store.raw_blocks_total"), 1);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, 4, WIRE_PAGE_RAW | N, 1).status, -EFAULT);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_LOAD, 1, WIRE_PAGE_RAW, 1).status, -EFAULT);
	gpu_raw_close(&e);
	gpu_raw_open_engine(&e, d.socket, &gpu, &large_raw, N);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, 5, WIRE_PAGE_RAW, 1).status, -EFAULT);
	gpu_raw_close(&e);
	gpu_raw_open(&e, d.socket, &gpu, &large_fp8, N);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, 6, WIRE_PAGE_RAW, 1).status, -EFAULT);
	gpu_raw_close(&e);
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 keeps=1"));
