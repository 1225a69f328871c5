/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=12 */
/*
 * gpu_tier_random - goal: a block that is said to be loaded has its bytes, and no other page is
 * touched. Blocks are stored, loaded, evicted and purged over the memory of two GPUs, host memory
 * and NVMe, each too small for all. Engines on both GPUs have several ops under way; some leave, or
 * are killed, in the middle of them. The daemon is killed, too.
 * Method: random steps, by two engines on each GPU here, and by one on each in a process of its
 * own, which is killed now and then; each page's bytes follow from chain and block; the emulated
 * driver runs queued operations late and in an order of its own. At the end each of the three
 * tiers has been hit, and the GPUs' has been evicted from.
 */
#include "tests/lib/lib_gpu_raw.h"

enum { GPUS = 2, ENGINES = 4, OPS = 3, N = 6, CHAINS = 12 };

static const char config[] =
	HOST("6M", "1M") "[device]\nworkers = 2\n"
			 "[nvme]\nbytes = 16M\nsegment_bytes = 1M\n" GPU_LINES "bytes = 2M\n";

static struct daemon d;
static struct gpu gpus[GPUS];
static struct random seed;

/* Op i has N slots of the arena and 2 N pages: N to store, N to load. */
struct step {
	enum wire_op op;
	uint32_t chain, n;
};

struct side {
	struct gpu_raw e;
	struct kvtier_geometry geometry;
	const struct gpu *gpu;
	const char *socket;
	struct step steps[OPS];
};

static void use(const struct side *s)
{
	GPU(gpu_api()->cuCtxSetCurrent(s->gpu->context));
}

static void open_side(struct side *s)
{
	use(s);
	gpu_raw_open(&s->e, s->socket, s->gpu, &s->geometry, OPS * 2 * N);
}

/* --- a round of an engine --- */

static void begin_op(struct side *s, uint32_t i)
{
	struct step *step = &s->steps[i];
	const uint32_t stored = 2 * N * i, loaded = stored + N;
	struct wire_sqe sqe;

	step->op = random_below(&seed, 3) ? WIRE_OP_LOAD : WIRE_OP_STORE;
	step->chain = random_below(&seed, CHAINS);
	step->n = 1 + random_below(&seed, N);
	if (step->op == WIRE_OP_STORE)
		gpu_raw_fill(&s->e, step->chain, stored, step->n);
	else
		gpu_raw_poison(&s->e, loaded, N);
	sqe = gpu_raw_sqe_at(&s->e, N * i, step->op, step->chain,
			     step->op == WIRE_OP_STORE ? stored : loaded, step->n);
	if (step->op == WIRE_OP_LOAD && random_below(&seed, 2))
		sqe.groups = (uint16_t)(1 + random_below(&seed, s->geometry.layers));
	if (random_below(&seed, 24) == 0)
		sqe.deadline_ns = now_ns() + random_below(&seed, 2000000);
	gpu_raw_send(&s->e, &sqe);
}

static void begin_ops(struct side *s)
{
	use(s);
	for (uint32_t i = 0; i < OPS; i++)
		begin_op(s, i);
}

static void check_load(struct side *s, uint32_t op)
{
	const struct step *step = &s->steps[op];

	for (uint32_t i = 0; i < N; i++) {
		const uint32_t page = 2 * N * op + N + i;
		const int32_t status = gpu_raw_status(&s->e, N * op + i);

		if (i >= step->n)
			assert_true(gpu_raw_is_poison(&s->e, page));
		else if (status == 0)
			assert_true(gpu_raw_holds(&s->e, step->chain, i, page));
		else if (status != -ENOENT && status != -ENOSPC && status != -ETIMEDOUT)
			fail_msg("block %u: status %d", i, status);
	}
}

static void check(struct side *s)
{
	use(s);
	(void)gpu_raw_await(&s->e);
	for (uint32_t i = 0; i < OPS; i++)
		if (s->steps[i].op == WIRE_OP_LOAD)
			check_load(s, i);
}

/* --- engines that are killed --- */

struct victim {
	pid_t process;
	int socket;
};

/* On the GPU of this number, until it is killed: a failure ends it otherwise. */
static int engine(const char *number)
{
	static struct gpu own;
	struct side s = { .geometry = large_geometry(KVTIER_CODEC_FP8),
			  .gpu = &own,
			  .socket = getenv("KVTIER_TEST_SOCKET") };

	seed.state = strtoull(getenv("KVTIER_TEST_SEED"), NULL, 10);
	gpu_open(&own, atoi(number));
	open_side(&s);
	for (bool told = false;; told = true) {
		begin_ops(&s);
		if (!told && write(STDIN_FILENO, "", 1) != 1)
			return 1;
		check(&s);
	}
}

static void victim_start(struct victim *v, uint32_t on)
{
	char number[24];

	(void)snprintf(number, sizeof(number), "%llu", (unsigned long long)random_next(&seed));
	setenv("KVTIER_TEST_SEED", number, 1);
	(void)snprintf(number, sizeof(number), "%u", on);
	v->process = gpu_spawn(number, "", &v->socket);
}

static void victim_end(struct victim *v)
{
	char begun;

	if (read(v->socket, &begun, 1) != 1)
		fail_msg("an engine has ended: %d", gpu_wait(v->process));
	usleep(random_below(&seed, 20000));
	(void)kill(v->process, SIGKILL);
	assert_int_equal(gpu_wait(v->process), -SIGKILL);
	(void)close(v->socket);
}

/* --- all of them --- */

static void operate(void)
{
	static const char *const commands[] = {
		"evict --tier gpu --bytes 300K",
		"evict --tier gpu --all",
		"evict --bytes 1M",
		"evict --all",
		"flush",
		"purge --tenant default",
	};
	const uint32_t which = random_below(&seed, 64);
	char text[1024];

	if (which < sizeof(commands) / sizeof(commands[0]))
		(void)daemon_ctl(&d, commands[which], text, sizeof(text));
}

static struct counted {
	const char *path;
	uint64_t n; /* of the daemons that were killed */
} counted[] = {
	{ "tiers.gpu.hit_blocks_total", 0 },
	{ "tiers.gpu.evicted_blocks_total", 0 },
	{ "tiers.host.hit_blocks_total", 0 },
	{ "tiers.nvme.hit_blocks_total", 0 },
};

static void count(void)
{
	for (size_t i = 0; i < sizeof(counted) / sizeof(counted[0]); i++)
		counted[i].n += daemon_stat(&d, counted[i].path);
}

/* Every engine has ops under way. Their blocks are on NVMe, or nowhere. */
static void kill_daemon(struct side *sides, struct victim *victims)
{
	for (uint32_t i = 0; i < GPUS; i++)
		victim_end(&victims[i]);
	count();
	daemon_signal(&d, SIGKILL);
	daemon_restart(&d);
	for (uint32_t i = 0; i < ENGINES; i++) {
		use(&sides[i]);
		gpu_raw_close(&sides[i].e);
		open_side(&sides[i]);
	}
	for (uint32_t i = 0; i < GPUS; i++)
		victim_start(&victims[i], i);
}

static void play(struct side *sides, struct victim *victims)
{
	for (uint32_t i = 0; i < ENGINES; i++)
		begin_ops(&sides[i]);
	operate();
	if (random_below(&seed, 16) == 0) {
		kill_daemon(sides, victims);
		return;
	}
	for (uint32_t i = 0; i < GPUS; i++) {
		if (random_below(&seed, 10) != 0)
			continue;
		victim_end(&victims[i]);
		victim_start(&victims[i], i);
	}
	for (uint32_t i = 0; i < ENGINES; i++) {
		if (random_below(&seed, 24) != 0) {
			check(&sides[i]);
			continue;
		}
		use(&sides[i]); /* it leaves with its ops under way */
		gpu_raw_close(&sides[i].e);
		open_side(&sides[i]);
	}
}

TEST(all_at_once)
{
	static struct side sides[ENGINES];
	static struct victim victims[GPUS];
	const uint64_t rounds = env_number("STEPS", 24);

	if (gpu_count() < GPUS)
		skip();
	seed = random_seeded("gpu_tier_random");
	for (int i = 0; i < GPUS; i++)
		gpu_open(&gpus[i], i);
	daemon_start(&d, config);
	setenv("KVTIER_TEST_SOCKET", d.socket, 1);
	for (uint32_t i = 0; i < ENGINES; i++) {
		/* the engines of a pair share their blocks, and both GPUs have both pairs */
		sides[i].geometry = large_geometry(i < 2 ? KVTIER_CODEC_FP8 : KVTIER_CODEC_RAW);
		sides[i].gpu = &gpus[i % GPUS];
		sides[i].socket = d.socket;
		open_side(&sides[i]);
	}
	for (uint32_t i = 0; i < GPUS; i++)
		victim_start(&victims[i], i);
	for (uint64_t round = 0; round < rounds; round++)
		play(sides, victims);
	for (uint32_t i = 0; i < GPUS; i++)
		victim_end(&victims[i]);
	count();
	for (size_t i = 0; i < sizeof(counted) / sizeof(counted[0]); i++)
		if (counted[i].n == 0)
			fail_msg("%s is 0 in every life of the daemon", counted[i].path);
	for (uint32_t i = 0; i < ENGINES; i++) {
		use(&sides[i]);
		gpu_raw_close(&sides[i].e);
	}
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	gpu_close(&gpus[1]);
	GPU(gpu_api()->cuCtxSetCurrent(gpus[0].context));
	gpu_daemon_end(&d, &gpus[0]);
}

TEST_BEGIN
{
	gpu_begin(argv, "gpus=2 null_stream=0 one_thread=1");
	if (argc > 1)
		exit(engine(argv[1]));
}
