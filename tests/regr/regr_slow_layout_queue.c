/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=15 */
/*
 * regr_slow_layout_queue.c - goal: a client whose blocks are 60 MiB each, with a MiB between
 * tokens, delays others by its share and no more; its deadlines hold while its jobs run; when it is
 * killed, its jobs end. Method: a real kvtierd. A child stores one such block and then has 64 ops
 * outstanding that load it, 30 times each, into the same page. Meanwhile a quiet client stores and
 * loads small blocks, an op at a time: all of them must succeed before a quarter of the child's ops
 * has ended (each of the quiet ones waited for all parts of the child before). Then the child's
 * loads with a deadline far shorter than one takes must end with -ETIMEDOUT; they ended with 0, as
 * a job could not be ended. Then it is killed, and its ops must go.
 */

#include "tests/lib/lib.h"

enum {
	LAYERS = 64,
	HEADS = 64,
	DIM = 64,
	TOKENS = 60,
	ROW = HEADS * DIM * 2,
	STRIDE = LAYERS * 2 * ROW,
	OPS = 64,
	REPEATS = 30,
	ROUNDS = 40,
	FEW = 2,
	PATIENCE_MS = 120000,
	SHORT = 20,
};
_Static_assert(STRIDE == 1 << 20, "a MiB between tokens");

static const char config[] = "[host]\nbytes = 320M\nslab_bytes = 64M\nhuge_pages = no\n";

/* Words between parent and child. */
struct board {
	/* 1: the ops are outstanding; 2: asked to try short deadlines; 3: it did */
	atomic_int phase;
	atomic_uint ended, timed_out, in_time;
};

struct slow {
	struct kvtier_client *client;
	struct kvtier_space *space;
	struct kvtier_key key;
};

static void slow_open(struct slow *s, const char *socket)
{
	const struct kvtier_options o = {
		.size = sizeof(o), .socket_path = socket, .name = "slow", .timeout_ms = PATIENCE_MS
	};
	const struct kvtier_geometry g = {
		.size = sizeof(g),
		.dtype = KVTIER_BF16,
		.model = "slow@1",
		.convention = "test",
		.layers = LAYERS,
		.kv_heads = HEADS,
		.head_dim_k = DIM,
		.head_dim_v = DIM,
		.block_tokens = TOKENS,
		.world = 1,
		.codec = KVTIER_CODEC_RAW,
	};
	static struct kvtier_segment segments[2 * LAYERS];
	struct kvtier_region region = { .size = sizeof(region),
					.memory = KVTIER_MEMFD,
					.length = (uint64_t)TOKENS * STRIDE };
	static const uint32_t tokens[TOKENS] = { 1, 2, 3 };
	size_t n = 1;

	region.fd = memfd_make(region.length, F_SEAL_SHRINK | F_SEAL_GROW);
	void *const pages =
		mmap(NULL, region.length, PROT_READ | PROT_WRITE, MAP_SHARED, region.fd, 0);
	assert_ptr_not_equal(pages, MAP_FAILED);
	memset(pages, 0x11, region.length);
	for (uint32_t i = 0; i < 2 * LAYERS; i++)
		segments[i] = (struct kvtier_segment){
			.size = sizeof(segments[i]),
			.layer = i / 2,
			.kind = i % 2 ? KVTIER_V : KVTIER_K,
			.offset = (uint64_t)i * ROW,
			.page_stride = region.length,
			.head_stride = DIM * 2,
			.token_stride = STRIDE,
		};
	assert_int_equal(kvtier_connect(&o, &s->client), 0);
	if (kvtier_space_open(s->client, &g, &region, 1, segments, 2 * LAYERS, &s->space))
		fail_msg("kvtier_space_open: %s", kvtier_last_error());
	assert_int_equal(kvtier_keys(s->space, NULL, tokens, TOKENS, &s->key, &n), 0);
}

static uint64_t slow_load(struct slow *s, uint32_t repeats, int timeout_ms)
{
	struct kvtier_op o = { .size = sizeof(o) };
	struct kvtier_key keys[REPEATS];
	const uint32_t pages[REPEATS] = { 0 };
	uint64_t op;

	o.timeout_ms = (uint32_t)timeout_ms;
	for (uint32_t i = 0; i < repeats; i++)
		keys[i] = s->key;
	assert_int_equal(kvtier_load(s->space, keys, pages, repeats, &o, &op), 0);
	return op;
}

static void child(const char *socket, struct board *board)
{
	struct kvtier_result result = { .size = sizeof(result) };
	const uint32_t page = 0;
	struct slow s;
	uint64_t op;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	slow_open(&s, socket);
	assert_int_equal(kvtier_store(s.space, &s.key, &page, 1, NULL, &op), 0);
	assert_int_equal(kvtier_wait(s.client, op, PATIENCE_MS, &result), 0);
	assert_int_equal(result.status, 0);
	for (uint32_t i = 0; i < OPS; i++)
		(void)slow_load(&s, REPEATS, PATIENCE_MS);
	atomic_store(&board->phase, 1);
	while (atomic_load(&board->phase) == 1 && atomic_load(&board->ended) < OPS)
		if (kvtier_poll(s.client, &result, 1) == 1)
			atomic_fetch_add(&board->ended, 1);
		else
			nap_ms(1);
	while (atomic_load(&board->phase) == 1)
		nap_ms(1);
	for (uint32_t i = 0; i < SHORT; i++) {
		op = slow_load(&s, 1, 1);
		assert_int_equal(kvtier_wait(s.client, op, PATIENCE_MS, &result), 0);
		atomic_fetch_add(result.status == -ETIMEDOUT ? &board->timed_out : &board->in_time,
				 1);
	}
	atomic_store(&board->phase, 3);
	for (;;)
		(void)pause();
}

static void become(struct board *board, int phase)
{
	for (int i = 0; i < PATIENCE_MS && atomic_load(&board->phase) != phase; i++)
		nap_ms(1);
	assert_int_equal(atomic_load(&board->phase), phase);
}

static void quiet_round(struct engine *e, uint32_t round)
{
	struct kvtier_key keys[FEW];

	chain_keys(e, round, FEW, keys);
	assert_int_equal(chain_store(e, keys, 0, FEW), 0);
	assert_int_equal(chain_load(e, keys, 0, FEW), FEW);
}

TEST(a_slow_layout_costs_others_its_share)
{
	struct board *board =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct daemon d;
	struct engine e;
	uint32_t ended;
	pid_t pid;

	assert_ptr_not_equal(board, MAP_FAILED);
	daemon_start(&d, config);
	pid = fork();
	if (pid == 0)
		child(d.socket, board);
	assert_true(pid > 0);
	engine_open(&e, d.socket, "quiet", &tiny_raw, FEW);
	become(board, 1);
	for (uint32_t round = 0; round < ROUNDS; round++)
		quiet_round(&e, round);
	ended = atomic_load(&board->ended);
	atomic_store(&board->phase, 2);
	become(board, 3);
	printf("%u ops of the quiet client: meanwhile %u of %u slow ones ended; %u of %u in spite "
	       "of their deadline\n",
	       2 * ROUNDS, ended, OPS, atomic_load(&board->in_time), SHORT);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	daemon_stat_becomes(&d, "ops.outstanding", 0, PATIENCE_MS);
	quiet_round(&e, ROUNDS);
	engine_close(&e);
	daemon_remove(&d);
	assert_in_range(ended, 0, OPS / 4);
	assert_int_equal(atomic_load(&board->in_time), 0);
	(void)munmap(board, 4096);
}
