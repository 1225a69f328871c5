/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=8 */
/*
 * gpu_tier_reuse - goal: a slot of a GPU's memory is not used again while a hit reads it, however
 * late the hit runs: loaded bytes are right, although stores want the slot's room meanwhile. Bytes
 * of one space are never left in a slot that another space's image gets. Purged blocks are on no
 * GPU any more. Method: a tier of one slab; hits that wait for a word of their engine; the bytes of
 * the daemon's memory on the emulated GPU are looked at from outside, which a GPU does not allow.
 */
#include "tests/lib/lib_gpu_raw.h"
#include "tests/lib/lib_gpu_tier.h"

enum { MIB = 1 << 20, TIER = 3 * MIB, N = 12 };

/* One slab of 3 MiB: the daemon's memory of this size, and a page, is the tier. */
GPU_DAEMON_EACH(GPU_CONFIG("96M", "3M") "bytes = 3M\n");

/* 128 KiB a page, 132 KiB an image: 23 in the slab. The hits wait for a word of their engine while
 * stores want their room. */
TEST(a_hit_in_flight_keeps_its_slot)
{
	enum { FIT = 22, CHAIN = 1, OTHER = 2 };
	struct gpu_raw hits, stores;
	struct wire_sqe load;

	gpu_raw_open(&hits, d.socket, &gpu, &large_raw, 2 * FIT);
	assert_int_equal(gpu_raw_order(&hits), 0);
	gpu_raw_open(&stores, d.socket, &gpu, &large_raw, 2 * FIT);
	gpu_raw_store(&hits, CHAIN, 0, FIT);
	gpu_raw_poison(&hits, FIT, FIT);
	load = gpu_raw_sqe(&hits, WIRE_OP_LOAD, CHAIN, FIT, FIT);
	load.word = 1;
	load.flags = WIRE_SQE_READY;
	gpu_raw_send(&hits, &load);
	gpu_devices_have(&d, "jobs", FIT);
	gpu_raw_store(&stores, OTHER, 0, FIT);
	assert_int_equal(daemon_stat(&d, "tiers.gpu.evicted_blocks_total"), 0);
	__atomic_store_n(&hits.words->ready[0], load.op_id, __ATOMIC_RELEASE);
	assert_int_equal(gpu_raw_await(&hits).status, 0);
	gpu_raw_all_hold(&hits, CHAIN, FIT, FIT);
	assert_int_equal(daemon_stat(&d, "tiers.gpu.hit_blocks_total"), FIT);
	/* now they may go */
	gpu_raw_round_trip(&stores, OTHER + 1, FIT);
	assert_true(daemon_stat(&d, "tiers.gpu.evicted_blocks_total") > 0);
	gpu_raw_close_all(&stores);
	gpu_raw_close_all(&hits);
}

/* --- bytes --- */

enum { ROW = 64 };

static int compare_rows(const void *a, const void *b)
{
	return memcmp(a, b, ROW);
}

/* How many of the pages' rows lie somewhere in the daemon's memory on the GPU. */
static uint32_t rows_there(const uint8_t *pages, size_t n)
{
	size_t bytes = 0;
	uint8_t *memory = gpu_tier_read(&d, TIER, &bytes);
	uint32_t found = 0;

	qsort(memory, bytes / ROW, ROW, compare_rows);
	for (size_t at = 0; at < n; at += ROW)
		found += bsearch(pages + at, memory, bytes / ROW, ROW, compare_rows) != NULL;
	free(memory);
	return found;
}

/* Rows that are like no others. */
static void fill_by_chance(struct gpu_raw *e, uint8_t *copy, uint64_t seed)
{
	struct random random = { seed };

	for (size_t i = 0; i < N * e->page_bytes; i++)
		copy[i] = (uint8_t)random_below(&random, 120);
	gpu_write(&gpu, e->memory + e->offset, copy, N * e->page_bytes);
}

/* The first space's images are a page larger, and their slots hold the second one's, too. */
enum { LAYERS = 17, LAYER = 4096, IMAGE = (LAYERS + 1) * LAYER };

static struct kvtier_geometry geometry_of(uint16_t layers)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	g.layers = layers;
	return g;
}

/* Its blocks; and the first of them once more under another name, as the last. Returns its pages,
 * the caller's to free. */
static uint8_t *store_first(void)
{
	const struct kvtier_geometry g = geometry_of(LAYERS);
	struct gpu_raw first;
	uint8_t *ret;

	gpu_raw_open(&first, d.socket, &gpu, &g, N);
	ret = malloc(N * first.page_bytes);
	assert_non_null(ret);
	assert_int_equal(first.page_bytes, LAYERS * LAYER);
	fill_by_chance(&first, ret, 1);
	assert_int_equal(gpu_raw_run(&first, WIRE_OP_STORE, 1, 0, N).status, 0);
	assert_int_equal(gpu_raw_run(&first, WIRE_OP_STORE, 2, 0, 1).status, 0);
	for (size_t i = 0; i < N && !gpu_is_real(); i++) /* it can be seen */
		assert_int_equal(rows_there(ret + i * first.page_bytes, ROW), 1);
	gpu_raw_close_all(&first);
	return ret;
}

TEST(a_slot_keeps_nothing_of_another_space)
{
	enum { CHAINS = TIER / (LAYERS * LAYER) / N + 2 };
	const struct kvtier_geometry g = geometry_of(LAYERS - 1);
	struct gpu_raw second;
	uint8_t *copy;

	if (gpu_is_real()) /* nothing can be seen */
		skip();
	copy = store_first();
	gpu_raw_open(&second, d.socket, &gpu, &g, N);
	for (uint32_t chain = 0; chain < CHAINS; chain++)
		gpu_raw_store(&second, chain, 0, N);
	assert_int_equal(rows_there(copy, N * (size_t)LAYERS * LAYER), 0);
	free(copy);
	gpu_raw_close_all(&second);
}

/* The second space's blocks come by groups of layers, from host memory, to where the first one's
 * were: after this eviction, which leaves `left` images of the first one. */
static void load_by_groups_after(const char *evict, uint32_t left)
{
	enum { BLOCKS = N + 2, GROUPS = 5, CHAIN = 3 };
	const struct kvtier_geometry g = geometry_of(LAYERS - 1);
	struct gpu_raw cpu, second;
	uint8_t *copy = store_first();

	(void)daemon_told(&d, evict);
	daemon_stat_becomes(&d, "tiers.gpu.blocks", left, PATIENT_MS);
	gpu_raw_open_host(&cpu, d.socket, &g, BLOCKS);
	gpu_raw_store(&cpu, CHAIN, 0, BLOCKS);
	gpu_raw_open(&second, d.socket, &gpu, &g, BLOCKS);
	for (int again = 0; again < 2; again++) { /* and again from there */
		struct wire_sqe load = gpu_raw_sqe(&second, WIRE_OP_LOAD, CHAIN, 0, BLOCKS);

		gpu_raw_poison(&second, 0, BLOCKS);
		load.groups = GROUPS;
		gpu_raw_send(&second, &load);
		assert_int_equal(gpu_raw_await(&second).status, 0);
		gpu_raw_all_hold(&second, CHAIN, 0, BLOCKS);
		daemon_stat_becomes(&d, "tiers.gpu.blocks", BLOCKS + left, PATIENT_MS);
	}
	daemon_stat_becomes(&d, "tiers.gpu.hit_blocks_total", BLOCKS, PATIENT_MS);
	(void)daemon_told(&d, "verify");
	if (!gpu_is_real()) /* the first page is in what is left */
		assert_int_equal(rows_there(copy + LAYERS * LAYER, (N - 1) * LAYERS * LAYER), 0);
	free(copy);
	gpu_raw_close_all(&second);
	gpu_raw_close(&cpu);
}

/* The slab keeps its size of slots, and each slot has an end that no layer is put over. */
TEST(nor_at_a_slots_end_when_layers_come_by_groups)
{
	char evict[64];

	(void)snprintf(evict, sizeof(evict), "evict --tier gpu --bytes %d", N * IMAGE);
	load_by_groups_after(evict, 1);
}

/* The slab has slots of another size, whose headers come to lie where layers were. */
TEST_DO(nor_in_front_of_the_layers, load_by_groups_after("evict --tier gpu --all", 0));

/* A purge reaches the GPU: what the tenant had there is served to nobody. */
TEST(a_purge_takes_the_copies_too)
{
	struct gpu_raw e;

	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_raw_store(&e, 1, 0, N);
	daemon_stat_becomes(&d, "tiers.gpu.blocks", N, PATIENT_MS);
	(void)daemon_told(&d, "purge --tenant default");
	daemon_stat_becomes(&d, "tiers.gpu.blocks", 0, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.gpu.used_bytes", 0, PATIENT_MS);
	gpu_raw_poison(&e, N, N);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_LOAD, 1, N, N).ok, 0);
	gpu_raw_all_poison(&e, N, N);
	/* and an eviction from host memory, of blocks that nothing else has */
	gpu_raw_store(&e, 2, 0, N);
	(void)daemon_told(&d, "evict --all");
	daemon_stat_becomes(&d, "tiers.gpu.blocks", 0, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.gpu.used_bytes", 0, PATIENT_MS);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_LOAD, 2, N, N).ok, 0);
	gpu_raw_close_all(&e);
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 one_thread=1 late=6 keeps=1"));
