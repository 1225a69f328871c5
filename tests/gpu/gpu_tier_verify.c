/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=8 */
/*
 * gpu_tier_verify - goal: `kvtierctl verify` reads images in the memory of GPUs back and holds them
 * against their sealed copies, in host memory or on NVMe. One that differs in a bit is listed,
 * counted, told of by `status`, and dropped, though nobody asked for that: no block goes with it,
 * and the next load is right. A GPU that fails meanwhile costs its own copies alone. Method: the
 * memory of the emulated GPU is changed from outside, in images of one and of many pieces.
 */
#include "tests/lib/lib_gpu_raw.h"
#include "tests/lib/lib_gpu_tier.h"

enum { N = 6, CHAIN = 3, VICTIM = 2, TIER = 48 << 20, ROW = 128 };

static const char config[] =
	HOST("48M", "8M") "[device]\nworkers = 2\n"
			  "[nvme]\nbytes = 128M\nsegment_bytes = 16M\n" GPU_LINES "bytes = 48M\n";

static struct daemon d;
static struct gpu gpu;
static struct gpu_raw e;
static uint8_t *pages; /* what was stored */

static void read_pages(uint32_t first, uint8_t *ret)
{
	gpu_read(&gpu, ret, e.memory + e.offset + first * e.page_bytes, N * e.page_bytes);
}

/* No row is like another one. */
static void fill(void)
{
	struct random random = { gpu_seed() };

	pages = malloc(N * e.page_bytes);
	assert_non_null(pages);
	for (size_t i = 0; i < N * e.page_bytes; i++)
		pages[i] = (uint8_t)random_below(&random, 256);
	gpu_write(&gpu, e.memory + e.offset, pages, N * e.page_bytes);
}

static void begin(const struct kvtier_geometry *g, const char *settings)
{
	gpu_open(&gpu, 0);
	gpu_settings("%s", settings);
	daemon_start(&d, config);
	gpu_raw_open(&e, d.socket, &gpu, g, 2 * N);
	fill();
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, CHAIN, 0, N).status, 0);
	daemon_stat_becomes(&d, "tiers.gpu.blocks", N, PATIENT_MS);
}

/* All of it is on NVMe, too. */
static void flush(void)
{
	(void)daemon_told(&d, "flush");
}

static void end(void)
{
	gpu_raw_close_all(&e);
	gpu_daemon_end(&d, &gpu);
	free(pages);
}

static void load(void)
{
	uint8_t *loaded = malloc(N * e.page_bytes);
	struct wire_cqe cqe;

	assert_non_null(loaded);
	gpu_raw_poison(&e, N, N);
	cqe = gpu_raw_run(&e, WIRE_OP_LOAD, CHAIN, N, N);
	assert_int_equal(cqe.status, 0);
	read_pages(N, loaded);
	assert_memory_equal(loaded, pages, N * e.page_bytes);
	free(loaded);
}

static void says(const char *text, const char *words)
{
	if (!strstr(text, words))
		fail_msg("'%s' is missing: %s", words, text);
}

static const char *verify(int status, const char *words)
{
	static char text[4096];
	const int r = daemon_ctl(&d, "verify --json", text, sizeof(text));

	if (r != status)
		fail_msg("it ends with %d: %s", r, text);
	says(text, words);
	return text;
}

/* All that was bad was dropped, in each row and in the sum. */
static void dropped(const char *text, unsigned n)
{
	char sum[64];

	(void)snprintf(sum, sizeof(sum), "\"dropped_blocks\":%u,\"dropped\":true", n);
	says(text, sum);
	says(text, "\"dropped\":true,\"tenant\"");
}

/* The payload of a raw image begins with its page's first row. */
static void damage(size_t offset)
{
	gpu_tier_damage(&d, TIER, pages + VICTIM * e.page_bytes, ROW, offset);
}

/* `copies` of each block, that on the GPU is one of them. */
static void is_found(unsigned copies, size_t offset, const char *tier)
{
	const uint64_t hits = daemon_stat(&d, tier);
	char words[64], text[4096];

	(void)snprintf(words, sizeof(words), "\"checked_blocks\":%u,", copies * N);
	(void)verify(0, words);
	damage(offset);
	dropped(verify(1, "\"tier\":\"gpu\",\"disk\":0,"), 1);
	assert_int_equal(daemon_stat(&d, "tiers.gpu.corrupt_blocks_total"), 1);
	assert_int_not_equal(daemon_ctl(&d, "status --json", text, sizeof(text)), 0);
	says(text, "gpu_corrupt");
	daemon_stat_becomes(&d, "tiers.gpu.blocks", N - 1, PATIENT_MS);
	says(verify(0, "\"bad_blocks\":0,"), "\"dropped_blocks\":0,\"dropped\":false");
	load();
	assert_int_equal(daemon_stat(&d, "tiers.gpu.hit_blocks_total"), N - 1);
	assert_int_equal(daemon_stat(&d, tier), hits + 1);
}

TEST(one_that_differs_from_host_memory)
{
	begin(&large_raw, "");
	flush();
	is_found(3, 0, "tiers.host.hit_blocks_total");
	end();
}

/* The last byte is in the last piece. */
TEST(one_of_many_pieces)
{
	begin(&many_lanes_raw, "");
	flush();
	is_found(3, e.page_bytes - 1, "tiers.host.hit_blocks_total");
	end();
}

TEST(one_that_differs_from_nvme)
{
	begin(&large_raw, "");
	flush();
	(void)daemon_told(&d, "evict --all");
	daemon_stat_becomes(&d, "tiers.host.blocks", 0, PATIENT_MS);
	is_found(2, 4000, "tiers.nvme.hit_blocks_total");
	end();
}

/* The next daemon, with these settings, has loaded all blocks from NVMe once. */
static void begin_again(const struct kvtier_geometry *g, const char *settings)
{
	gpu_raw_close_all(&e);
	gpu_settings("%s", settings);
	daemon_signal(&d, SIGTERM);
	daemon_restart(&d);
	gpu_raw_open(&e, d.socket, &gpu, g, 2 * N);
	load();
	daemon_stat_becomes(&d, "tiers.gpu.blocks", N, PATIENT_MS);
}

/* A daemon that has stored nothing copies from the GPU only to verify. */
TEST(a_gpu_that_fails_meanwhile)
{
	begin(&large_raw, "");
	flush();
	begin_again(&large_raw, "sticky=cuMemcpyDtoHAsync:3");
	(void)verify(0, "\"bad_blocks\":0,");
	daemon_stat_becomes(&d, "gpu.lost_total", 1, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.gpu.blocks", 0, PATIENT_MS);
	gpu_raw_close(&e);
	gpu_raw_open(&e, d.socket, &gpu, &large_raw, 2 * N);
	load();
	assert_int_equal(daemon_stat(&d, "tiers.gpu.hit_blocks_total"), 0);
	end();
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 one_thread=1");
	   gpu_needs_emulation("it changes the memory of another process"));
