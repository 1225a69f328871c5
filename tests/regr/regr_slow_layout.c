/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=15 */
/*
 * regr_slow_layout.c - goal: pages laid out to be slow cost their own client time, and no other;
 * its deadlines hold while its jobs run; when it is killed, its jobs end. Method: one client keeps
 * 64 loads outstanding, all into the same page, whose token rows lie 1 MiB apart. It has a process
 * of its own, as workers take turns by process. Images of 32 MiB: it counts its loads that end
 * while another client does some small loads one by one. Then one slow load with a short deadline:
 * it ends with -ETIMEDOUT, and most of its page is untouched. Blocks of 60 MiB, 30 loads an op:
 * small stores and loads all succeed before a quarter of the ops has ended; then its loads with a
 * deadline far shorter than one takes end with -ETIMEDOUT, and when it is killed its ops go.
 * Nothing is timed.
 */
#include "tests/lib/lib.h"

enum {
	LAYERS = 64,
	PLANES = 2 * LAYERS,
	STRIDE = 1 << 20,
	TOKENS = 2048, /* at most */
	OPS = 64,
	REPEATS = 30,
	QUIET_LOADS = 12,
	ROUNDS = 40,
	FEW = 2,
	SHORT = 20,
	MS = 300000,
};

/* A page: the rows of a token are together, those of the next one STRIDE further. */
struct layout {
	uint32_t heads, dim, tokens, codec;
};

static const struct layout rows_far_apart = { 1, 128, TOKENS, KVTIER_CODEC_FP8 };
static const struct layout no_gaps = { 64, 64, 60, KVTIER_CODEC_RAW };

DAEMON_EACH(d, HOST("320M", "64M"));

struct slow {
	struct kvtier_client *client;
	struct kvtier_space *space;
	const struct layout *layout;
	uint8_t *memory;
	struct kvtier_key key;
};

static size_t row_bytes(const struct layout *l)
{
	return 2 * (size_t)l->heads * l->dim;
}

static uint8_t *row_of(const struct slow *s, uint32_t token, uint32_t plane)
{
	return s->memory + (uint64_t)token * STRIDE + plane * row_bytes(s->layout);
}

/* Values of one: every row is touched, so that the daemon need not fault any of them in. */
static void fill(struct slow *s, uint8_t value)
{
	for (uint32_t t = 0; t < s->layout->tokens; t++)
		memset(row_of(s, t, 0), value, PLANES * row_bytes(s->layout));
}

static int finish(struct slow *s, uint64_t op)
{
	struct kvtier_result result = { .size = sizeof(result) };
	const int r = kvtier_wait(s->client, op, MS, &result);

	return r ? r : result.status;
}

/* Connects and stores its block. */
static void slow_open(struct slow *s, const struct layout *l)
{
	struct kvtier_geometry g = tiny_geometry(l->codec);
	struct kvtier_region region = { .size = sizeof(region),
					.memory = KVTIER_MEMFD,
					.length = (uint64_t)l->tokens * STRIDE };
	static struct kvtier_segment segments[PLANES];
	static const uint32_t tokens[TOKENS] = { 1, 2, 3 };
	const uint32_t page = 0;
	size_t n = 1;
	uint64_t op = 0;

	g.model = "slow@1";
	g.layers = LAYERS;
	g.kv_heads = l->heads;
	g.head_dim_k = g.head_dim_v = l->dim;
	g.block_tokens = l->tokens;
	s->layout = l;
	region.fd = memfd_make(region.length, F_SEAL_SHRINK | F_SEAL_GROW);
	s->memory = mmap(NULL, region.length, PROT_READ | PROT_WRITE, MAP_SHARED, region.fd, 0);
	assert_ptr_not_equal(s->memory, MAP_FAILED);
	for (uint32_t i = 0; i < PLANES; i++)
		segments[i] = (struct kvtier_segment){
			.size = sizeof(segments[i]),
			.layer = i / 2,
			.kind = i & 1 ? KVTIER_V : KVTIER_K,
			.offset = i * row_bytes(l),
			.page_stride = region.length,
			.head_stride = 2 * l->dim,
			.token_stride = STRIDE,
		};
	fill(s, 0x3f);
	if (client_dial(d.socket, "slow", MS, &s->client) ||
	    kvtier_space_open(s->client, &g, &region, 1, segments, PLANES, &s->space) ||
	    kvtier_keys(s->space, NULL, tokens, l->tokens, &s->key, &n) ||
	    kvtier_store(s->space, &s->key, &page, 1, NULL, &op))
		fail_msg("slow client: %s", kvtier_last_error());
	assert_int_equal(finish(s, op), 0);
	(void)close(region.fd);
}

static void slow_close(struct slow *s)
{
	kvtier_close(s->client);
	(void)munmap(s->memory, (uint64_t)s->layout->tokens * STRIDE);
}

static uint64_t begin_load(struct slow *s, uint32_t repeats, uint32_t timeout_ms)
{
	const struct kvtier_op o = { .size = sizeof(o), .timeout_ms = timeout_ms };
	const uint32_t pages[REPEATS] = { 0 };
	struct kvtier_key keys[REPEATS];
	uint64_t op;

	for (uint32_t i = 0; i < repeats; i++)
		keys[i] = s->key;
	if (kvtier_load(s->space, keys, pages, repeats, &o, &op))
		fail_msg("kvtier_load: %s", kvtier_last_error());
	return op;
}

/* --- beside another client --- */

/* Words between the slow client, a child, and the test. */
struct board {
	/* 1: the ops are outstanding; 2: the child is asked to go on; 3: it did */
	atomic_int phase;
	atomic_uint ended, wrong, in_time;
};

static struct board *child_start(pid_t *ret, void (*run)(struct board *board))
{
	struct board *board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(board, MAP_FAILED);
	*ret = fork();
	if (*ret == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		run(board);
		_exit(0);
	}
	assert_true(*ret > 0);
	return board;
}

/* Until the child ends: that is too early. */
static void becomes(struct board *board, pid_t child, int phase)
{
	int end;

	for (int ms = 0; ms < MS && atomic_load(&board->phase) != phase; ms++) {
		assert_int_equal(waitpid(child, &end, WNOHANG), 0);
		nap_ms(1);
	}
	assert_int_equal(atomic_load(&board->phase), phase);
}

static void keep_busy(struct board *board)
{
	struct slow s;
	uint64_t ops[OPS];

	slow_open(&s, &rows_far_apart);
	for (uint32_t i = 0; i < OPS; i++)
		ops[i] = begin_load(&s, 1, MS);
	for (uint32_t i = 0; atomic_load(&board->phase) < 2; i = (i + 1) % OPS) {
		if (finish(&s, ops[i]))
			board->wrong++;
		if (++board->ended == 2) /* all of them were begun */
			atomic_store(&board->phase, 1);
		ops[i] = begin_load(&s, 1, MS);
	}
	slow_close(&s);
}

TEST(others_load_in_turn)
{
	struct kvtier_key key;
	struct engine quiet;
	struct board *board;
	uint32_t before;
	pid_t pid;
	int end;

	board = child_start(&pid, keep_busy);
	engine_open(&quiet, d.socket, "quiet", &tiny_fp8, 4);
	chain_keys(&quiet, 1, 1, &key);
	assert_int_equal(chain_store(&quiet, &key, 0, 1), 0);
	becomes(board, pid, 1);
	before = board->ended;
	for (uint32_t i = 0; i < QUIET_LOADS; i++)
		assert_int_equal(chain_load(&quiet, &key, 0, 1), 1);
	before = board->ended - before;
	(void)printf("%u slow loads ended while %d small ones of another client did\n", before,
		     QUIET_LOADS);
	assert_true(before < 16 * QUIET_LOADS);
	atomic_store(&board->phase, 2);
	assert_int_equal(waitpid(pid, &end, 0), pid);
	assert_int_equal(end, 0);
	assert_int_equal(board->wrong, 0);
	engine_close(&quiet);
	(void)munmap(board, sizeof(*board));
}

static void load_and_try_short_deadlines(struct board *board)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct slow s;

	slow_open(&s, &no_gaps);
	for (uint32_t i = 0; i < OPS; i++)
		(void)begin_load(&s, REPEATS, MS);
	atomic_store(&board->phase, 1);
	while (atomic_load(&board->phase) == 1)
		if (board->ended < OPS && kvtier_poll(s.client, &result, 1) == 1)
			board->ended++;
		else
			nap_ms(1);
	for (uint32_t i = 0; i < SHORT; i++)
		board->in_time += finish(&s, begin_load(&s, 1, 1)) != -ETIMEDOUT;
	atomic_store(&board->phase, 3);
	for (;;)
		(void)pause();
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
	struct board *board;
	struct engine e;
	uint32_t ended;
	pid_t pid;

	board = child_start(&pid, load_and_try_short_deadlines);
	engine_open(&e, d.socket, "quiet", &tiny_raw, FEW);
	becomes(board, pid, 1);
	for (uint32_t round = 0; round < ROUNDS; round++)
		quiet_round(&e, round);
	ended = board->ended;
	atomic_store(&board->phase, 2);
	becomes(board, pid, 3);
	printf("%u ops of the quiet client: meanwhile %u of %u slow ones ended; %u of %u in spite "
	       "of their deadline\n",
	       2 * ROUNDS, ended, OPS, board->in_time, SHORT);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	daemon_stat_becomes(&d, "ops.outstanding", 0, MS);
	quiet_round(&e, ROUNDS);
	engine_close(&e);
	assert_in_range(ended, 0, OPS / 4);
	assert_int_equal(board->in_time, 0);
	(void)munmap(board, sizeof(*board));
}

TEST(a_deadline_ends_a_slow_job)
{
	uint32_t untouched = 0;
	struct slow s;

	slow_open(&s, &rows_far_apart);
	fill(&s, 0xa5);
	assert_int_equal(finish(&s, begin_load(&s, 1, 1)), -ETIMEDOUT);
	for (uint32_t t = 0; t < TOKENS; t++)
		untouched += row_of(&s, t, PLANES - 1)[0] == 0xa5;
	(void)printf("%u of the last plane's %d rows are untouched\n", untouched, TOKENS);
	assert_true(untouched > TOKENS / 2);
	slow_close(&s);
}
