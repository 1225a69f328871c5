/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=connect seconds=9 needs=kvtierd_tuned */
/*
 * gpu_layers - goal: the words that say how many layer groups of a load are in its pages (wire.h:
 * layers[] of the ring, and of the device's words) are never ahead of the bytes; a run is scattered
 * while the next one crosses the wire. The words hold, too, where the GPU has the blocks in its own
 * memory and serves each group from there, with no byte on the wire; a copy that goes between two
 * groups is no loss. A load by groups leaves each of its blocks there whole and of one image, or
 * not at all. Method: loads on an emulated driver that runs queued operations late and in an order
 * of its own; the test reads the words all the while, and with each word the layers that it
 * promises. The driver's trace has the copies and kernels, and their order.
 */
#include "tests/lib/lib_gpu_raw.h"

enum { CHAIN = 3, OTHER = 4, LOADS = 16, ENOUGH = 12 };

static const char common[] = HOST("64M", "16M") GPU_LINES;

static struct daemon d;
static struct gpu gpu;
static struct gpu_raw e;
static uint32_t blocks;     /* of the chain */
static uint64_t give_up_ns; /* the load that is watched */

/* Memory of the GPU for images; jobs at once. A page crosses in four or five runs. */
static void begin_with(const char *bytes, uint32_t depth, uint32_t n)
{
	char config[256];

	blocks = n;
	(void)snprintf(config, sizeof(config), "%sbytes = %s\n[device]\nworkers = 2\n", common,
		       bytes);
	daemon_tuned(NULL, depth);
	gpu_let_go();
	gpu_open(&gpu, 0);
	daemon_start(&d, config);
	gpu_raw_open(&e, d.socket, &gpu, &many_lanes_raw, 2 * blocks);
	assert_int_equal(gpu_raw_order(&e), 0);
	gpu_raw_store(&e, CHAIN, 0, blocks);
	gpu_report_clear();
}

FIXTURE_DO(begin, begin_with("0", 16, 3));
/* The GPU has the chain. */
FIXTURE_DO(begin_near, begin_with("64M", 16, 3));
/* Likewise, and two blocks are in hand at once: the third one's copy is not pinned. */
FIXTURE_DO(begin_near_in_turn, begin_with("64M", 1, 3));
/* Five of six are, and one more part is there for another process. */
FIXTURE_DO(begin_near_beside, begin_with("64M", 3, 6));

FIXTURE(end)
{
	gpu_let_go();
	gpu_raw_close_all(&e);
	return gpu_daemon_end(&d, &gpu);
}

TEST_EACH(begin, end);

static uint32_t ring_word(uint32_t slot)
{
	const struct wire_hello_ok *ok = &e.raw.ok;
	const uint32_t *words =
		(const uint32_t *)(const void *)((const char *)e.raw.complete +
						 wire_layers_offset(ok->cq_entries,
								    ok->arena_blocks));

	return __atomic_load_n(&words[slot], __ATOMIC_ACQUIRE);
}

static uint32_t device_word(const struct wire_sqe *sqe)
{
	const uint64_t word = __atomic_load_n(&e.words->layers[sqe->word - 1], __ATOMIC_ACQUIRE);
	const int64_t groups = (int64_t)(word - wire_groups(sqe->op_id, 0));

	return groups < 0 ? 0 : (uint32_t)groups;
}

static void look(uint32_t groups, uint32_t there, const char *whose)
{
	const uint32_t layers = wire_group_layer(e.geometry.layers, groups, there);

	for (uint32_t i = 0; i < blocks; i++)
		if (!gpu_raw_holds_layers(&e, CHAIN, i, blocks + i, layers))
			fail_msg("block %u: the word of the %s says %u layers before they are "
				 "there",
				 i, whose, layers);
}

static struct wire_sqe load(uint32_t chain, uint16_t groups)
{
	struct wire_sqe sqe;

	give_up_ns = now_ns() + PATIENT_MS * 1000000ull;
	gpu_raw_poison(&e, blocks, blocks);
	sqe = gpu_raw_sqe(&e, WIRE_OP_LOAD, chain, blocks, blocks);
	sqe.groups = groups;
	sqe.word = 1;
	gpu_raw_send(&e, &sqe);
	return sqe;
}

/* Between two looks: late operations are late by 100 us and more, and others want the processor. */
static void rest(void)
{
	const struct timespec nap = { .tv_nsec = 10000 };

	assert_true(now_ns() < give_up_ns);
	(void)nanosleep(&nap, NULL);
}

/* How many words promised some groups, and not all. */
static uint32_t load_and_watch(uint16_t groups, void (*between)(void))
{
	uint32_t ring = 0, device = 0, some = 0;
	const struct wire_sqe sqe = load(CHAIN, groups);

	while (!gpu_raw_completed(&e)) {
		const uint32_t r = ring_word(sqe.first), n = device_word(&sqe);

		if (r != ring) {
			look(groups, r, "ring");
			/* 0 again: its completion is on its way */
			assert_true((r > ring && r <= groups) || r == 0);
			some += r > 0 && r < groups;
			ring = r;
			if (between && some == 1)
				between();
		}
		if (n != device && n != WIRE_ALL_GROUPS) {
			look(groups, n, "device");
			assert_true(n > device && n <= groups);
			device = n;
		}
		rest();
	}
	assert_int_equal(gpu_raw_await(&e).status, 0);
	gpu_raw_all_hold(&e, CHAIN, blocks, blocks);
	assert_int_equal(ring_word(sqe.first), 0);
	assert_int_equal(device_word(&sqe), WIRE_ALL_GROUPS);
	return some;
}

TEST(words_are_never_ahead_of_the_bytes)
{
	uint32_t some = 0;

	for (uint16_t i = 0; i < LOADS && some < ENOUGH; i++)
		some += load_and_watch(i % 2 ? 16 : 5, NULL);
	if (some == 0 && !gpu_is_real()) /* where all may be quicker than a look */
		fail_msg("in %d loads no word told of the first groups alone", LOADS);
}

/* A word of a slot's last op is not one of its next op; at the end streams are let go. */
TEST(a_load_of_nothing_has_no_groups)
{
	struct wire_sqe sqe;

	(void)load_and_watch(4, NULL);
	sqe = load(CHAIN + 1, 4);
	while (!gpu_raw_completed(&e)) {
		const uint32_t n = device_word(&sqe);

		assert_int_equal(ring_word(sqe.first), 0);
		assert_true(n == 0 || n == WIRE_ALL_GROUPS);
		rest();
	}
	assert_int_equal(gpu_raw_await(&e).ok, 0);
	assert_int_equal(device_word(&sqe), WIRE_ALL_GROUPS);
}

/* It would be a cache line to fetch from the client, of each op. */
TEST(a_load_without_groups_leaves_their_word)
{
	struct wire_sqe sqe;
	uint64_t before;

	(void)load_and_watch(4, NULL);
	before = __atomic_load_n(&e.words->layers[0], __ATOMIC_ACQUIRE);
	assert_int_equal(before & WIRE_ALL_GROUPS, WIRE_ALL_GROUPS);
	sqe = load(CHAIN, 0);
	assert_int_equal(gpu_raw_await(&e).status, 0);
	assert_int_equal(__atomic_load_n(&e.words->layers[0], __ATOMIC_ACQUIRE), before);
	assert_int_equal(__atomic_load_n(&e.words->done[0], __ATOMIC_ACQUIRE), sqe.op_id);
}

/* --- from the GPU's own memory --- */

static uint64_t gpu_hits(void)
{
	return daemon_stat(&d, "tiers.gpu.hit_blocks_total");
}

static uint64_t host_hits(void)
{
	return daemon_stat(&d, "tiers.host.hit_blocks_total");
}

static void add_bytes(void *arg, const char *said)
{
	unsigned long long *sum = arg, bytes;
	char call[64];

	if (sscanf(said, "queued %63s ticket %*u stream %*u priority %*d bytes %llu", call,
		   &bytes) == 2 &&
	    !strcmp(call, "cuMemcpyHtoDAsync") && bytes > 65536) /* small copies: page numbers */
		*sum += bytes;
}

/* Of images, to the GPU; 0 on a real driver. */
static unsigned long long bytes_crossed(void)
{
	unsigned long long sum = 0;

	gpu_report_each("kvtierd", "note", add_bytes, &sum);
	return sum;
}

static void evict_there(void)
{
	(void)daemon_told(&d, "evict --tier gpu --all");
}

TEST_WITH(each_group_of_a_hit_is_there_when_its_word_says_so, begin_near, end)
{
	uint32_t some = 0, loads = 0;

	while (loads < LOADS && some < ENOUGH)
		some += load_and_watch(loads++ % 2 ? 16 : 5, NULL);
	if (some == 0 && !gpu_is_real())
		fail_msg("in %d hits no word told of the first groups alone", LOADS);
	assert_int_equal(gpu_hits(), loads * blocks);
	assert_int_equal(host_hits(), 0);
	assert_int_equal(bytes_crossed(), 0);
}

/* What is not under way, while the GPU is held. */
static void evict_some(const char *command)
{
	if (gpu_is_real()) {
		(void)daemon_told(&d, command);
		return;
	}
	gpu_report_has("is held", 1);
	AWAIT(strncmp(daemon_told(&d, command), "evicted 0 ", 10) != 0);
}

static void evict_some_there(void)
{
	evict_some("evict --tier gpu --all");
	gpu_let_go();
}

/* The first groups are there; blocks that are not under way are evicted. */
TEST_WITH(a_copy_that_goes_between_two_groups_is_no_loss, begin_near_in_turn, end)
{
	gpu_hold();
	(void)load_and_watch(16, evict_some_there);
	assert_true(daemon_stat(&d, "tiers.gpu.evicted_blocks_total") > 0);
	assert_true(bytes_crossed() > 0 || gpu_is_real());
}

TEST_WITH(a_load_by_groups_brings_it_as_it_passes, begin_near, end)
{
	for (uint16_t groups = 1; groups <= 16; groups = (uint16_t)(3 * groups + 1)) {
		const uint64_t hits = gpu_hits(), from_host = host_hits();

		evict_there();
		(void)load_and_watch(groups, NULL);
		assert_int_equal(gpu_hits(), hits);
		assert_int_equal(host_hits(), from_host + blocks);
		daemon_stat_becomes(&d, "tiers.gpu.blocks", blocks, PATIENT_MS);
		(void)load_and_watch(groups, NULL); /* looks at all bytes, group by group */
		assert_int_equal(gpu_hits(), hits + blocks);
		assert_int_equal(host_hits(), from_host + blocks);
		(void)daemon_told(&d, "verify");
	}
}

/* A load of the chain, held when the first group has come and the last one has not. Some of its
 * blocks are evicted. */
static void load_and_evict(void)
{
	struct wire_sqe sqe;

	gpu_hold();
	sqe = load(CHAIN, 16);
	while (ring_word(sqe.first) == 0 && !gpu_raw_completed(&e))
		rest();
	evict_some("evict --tier host --all");
}

/* Blocks go while their groups come: a block that did not come whole is no copy, and its room is
 * free. */
TEST_WITH(a_load_by_groups_that_misses_leaves_no_part_there, begin_near_in_turn, end)
{
	struct wire_cqe cqe;

	evict_there();
	load_and_evict();
	gpu_let_go();
	cqe = gpu_raw_await(&e);
	assert_true(cqe.status == 0 || cqe.status == -ENOENT);
	assert_true((cqe.ok > 0 && cqe.ok < blocks) ||
		    gpu_is_real()); /* where all may be too quick */
	evict_there();
	daemon_stat_becomes(&d, "tiers.gpu.blocks", 0, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.gpu.used_bytes", 0, PATIENT_MS);
}

/* Without a parent: it may be evicted before the blocks behind it. */
static void store_alone(uint32_t block)
{
	struct wire_sqe sqe = gpu_raw_sqe(&e, WIRE_OP_STORE, CHAIN, 0, blocks);

	sqe.first = block;
	sqe.n = 1;
	gpu_raw_send(&e, &sqe);
	assert_int_equal(gpu_raw_await(&e).status, 0);
}

/* How many of the loaded pages have layers of two images. */
static uint32_t mixed(void)
{
	uint32_t ret = 0;

	for (uint32_t i = 0; i < blocks; i++)
		ret += !gpu_raw_is_poison(&e, blocks + i) &&
		       !gpu_raw_holds(&e, CHAIN, i, blocks + i) &&
		       !gpu_raw_holds(&e, OTHER, i, blocks + i);
	return ret;
}

/* Blocks go while their groups come, and are stored again, with other bytes: a load has layers of
 * both, each good, and no copy has. */
TEST_WITH(a_copy_is_of_one_image, begin_near_beside, end)
{
	struct gpu_raw cpu; /* a store of it leaves nothing on the GPU */

	gpu_raw_open_host(&cpu, d.socket, &many_lanes_raw, blocks);
	gpu_raw_fill(&cpu, OTHER, 0, blocks);
	(void)daemon_told(&d, "evict --tier host --all");
	for (uint32_t i = 0; i < blocks; i++)
		store_alone(i);
	evict_there();
	load_and_evict();
	assert_int_equal(gpu_raw_run(&cpu, WIRE_OP_STORE, CHAIN, 0, blocks).status, 0);
	gpu_let_go();
	assert_int_equal(gpu_raw_await(&e).status, 0);
	assert_true(mixed() > 0 || gpu_is_real());
	(void)daemon_told(&d, "verify");
	assert_int_equal(daemon_stat(&d, "tiers.gpu.corrupt_blocks_total"), 0);
	gpu_raw_close(&cpu);
}

/* --- the wire --- */

struct overlap {
	bool crossing;
	int kernels;
};

/* Of loads: their streams have the higher priority, which is the lower number. */
static void look_for_overlap(void *arg, const char *said)
{
	struct overlap *o = arg;
	char what[16], call[64];
	unsigned long long ticket, stream, bytes;
	int priority;

	if (sscanf(said, "%15s %63s ticket %llu stream %llu priority %d bytes %llu", what, call,
		   &ticket, &stream, &priority, &bytes) != 6 ||
	    priority >= 0)
		return;
	if (!strcmp(call, "cuMemcpyHtoDAsync") && bytes > 65536 && strcmp(what, "queued") != 0)
		o->crossing = !strcmp(what, "begins");
	o->kernels += o->crossing && !strcmp(call, "cuLaunchKernel") && !strcmp(what, "ended");
}

TEST(a_run_is_scattered_while_the_next_one_crosses)
{
	struct overlap o = { 0 };

	if (gpu_is_real())
		skip();
	for (int i = 0; i < LOADS && o.kernels == 0; i++) {
		gpu_report_clear();
		(void)gpu_raw_run(&e, WIRE_OP_LOAD, CHAIN, blocks, blocks);
		o = (struct overlap){ 0 };
		gpu_report_each("kvtierd", "note", look_for_overlap, &o);
	}
	if (o.kernels == 0)
		fail_msg("in %d loads no kernel ran while a later run was on the wire", LOADS);
}

/* A load by 16 groups has 48 pieces, and in turn each has a kernel of its own. The GPU is held
 * after 13 of them: four groups have come, blocks 0 and 1 are under way, and block 2, which has no
 * children, may go. */
TEST_FIRST(gpu_begin(argv, "null_stream=0 one_thread=1 late=3 trace=1 halts=14"));
