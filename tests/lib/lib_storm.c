/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_storm.h"

enum {
	SPACES = 3,
	CHAINS = 12, /* a space */
	OPS = 6,     /* of one engine at once, each with pages of its own */
	PAGES = OPS * STORM_LENGTH,
	SPARE = PAGES, /* a page that no op has */
};

static struct kvtier_geometry geometry_of(uint32_t engine)
{
	switch (engine % SPACES) {
	case 0:
		return tiny_geometry(KVTIER_CODEC_RAW);
	case 1:
		return tiny_geometry(KVTIER_CODEC_FP8);
	default:
		return large_geometry(KVTIER_CODEC_RAW);
	}
}

/* --- an engine --- */

enum storm_kind { NOTHING, STORE, LOAD, PREFETCH };

struct storm_op {
	enum storm_kind kind;
	uint64_t id, start_ns;
	uint32_t first, n; /* page; blocks */
	struct kvtier_key keys[STORM_LENGTH];
	const struct kvtier_key *parent;
	struct kvtier_key before;
};

struct storm_client {
	struct engine e;
	struct random random;
	struct storm_score *score;
	bool odd;
	struct storm_op ops[OPS];
};

static uint8_t *page_at(const struct engine *e, uint32_t page)
{
	return e->memory + (size_t)page * e->page_bytes;
}

/* Of an odd storm every fourth key's block begins with an infinity. */
static void fill(struct storm_client *c, uint32_t page, const struct kvtier_key *key)
{
	static const uint8_t infinity[2] = { 0x80, 0x7f }; /* BF16 */

	page_fill(&c->e, page, key, 0);
	if (c->odd && key->bytes[0] % 4 == 0)
		memcpy(page_at(&c->e, page), infinity, sizeof(infinity));
}

static bool is_right(struct storm_client *c, uint32_t page, const struct kvtier_key *key)
{
	fill(c, SPARE, key);
	return memcmp(page_at(&c->e, page), page_at(&c->e, SPARE), c->e.page_bytes) == 0;
}

/* Each value is the block's, or poison still: its load ended between two pieces. */
static bool is_part(struct storm_client *c, uint32_t page, const struct kvtier_key *key)
{
	const uint16_t *values = (const void *)page_at(&c->e, page);
	const uint16_t *right = (const void *)page_at(&c->e, SPARE);

	fill(c, SPARE, key);
	for (size_t i = 0; i < c->e.page_bytes / sizeof(*values); i++)
		if (values[i] != right[i] && values[i] != 0xa5a5)
			return false;
	return true;
}

static void choose_keys(struct storm_client *c, struct storm_op *op)
{
	struct kvtier_key chain[STORM_LENGTH];
	uint32_t from = 0;

	chain_keys(&c->e, random_below(&c->random, CHAINS), STORM_LENGTH, chain);
	op->n = 1 + random_below(&c->random, STORM_LENGTH);
	if (c->odd && random_below(&c->random, 4) == 0)
		from = random_below(&c->random, STORM_LENGTH - op->n + 1);
	memcpy(op->keys, chain + from, op->n * sizeof(op->keys[0]));
	op->parent = NULL;
	if (from > 0 && random_below(&c->random, 2)) {
		op->before = chain[from - 1];
		op->parent = &op->before;
	}
	/* some of them twice, or before their parents */
	if (c->odd && random_below(&c->random, 8) == 0)
		for (uint32_t k = 0; k < op->n; k++)
			op->keys[k] = chain[random_below(&c->random, STORM_LENGTH)];
}

static void op_start(struct storm_client *c, struct storm_op *op)
{
	static const enum storm_kind kinds[] = { STORE, STORE, LOAD, LOAD, LOAD, PREFETCH };
	struct kvtier_op o = { .size = sizeof(o) };
	uint32_t pages[STORM_LENGTH];
	int r;

	op->kind = kinds[random_below(&c->random, sizeof(kinds) / sizeof(kinds[0]))];
	choose_keys(c, op);
	pages_from(op->first, pages, op->n);
	o.parent = op->parent;
	op->start_ns = now_ns();
	if (random_below(&c->random, 3) == 0)
		o.timeout_ms = 1 + random_below(&c->random, 50);
	for (uint32_t i = 0; i < op->n; i++) {
		if (op->kind == STORE)
			fill(c, pages[i], &op->keys[i]);
		else
			page_poison(&c->e, pages[i]);
	}
	if (op->kind == STORE)
		r = kvtier_store(c->e.space, op->keys, pages, op->n, &o, &op->id);
	else if (op->kind == LOAD)
		r = kvtier_load(c->e.space, op->keys, pages, op->n, &o, &op->id);
	else
		r = kvtier_prefetch(c->e.space, op->keys, op->n, NULL, &op->id);
	/* the machine is busy: its pages were not allocated by its deadline */
	if (r == -ETIMEDOUT)
		op->kind = NOTHING;
	else if (r)
		fail_msg("an op could not be started: %s", kvtier_last_error());
}

/* A block with status 0 has its bytes. A block that was ended while it was written may have a part
 * of them. Any other page is as it was. */
static void check_load(struct storm_client *c, const struct storm_op *op, const int32_t *blocks)
{
	for (uint32_t i = 0; i < op->n; i++) {
		const uint32_t page = op->first + i;

		/* the daemon died: the test is lost, and says so elsewhere */
		if (blocks[i] == -ECONNRESET)
			continue;
		if (blocks[i] == -ETIMEDOUT || blocks[i] == -ECANCELED) {
			if (!is_part(c, page, &op->keys[i]))
				fail_msg("block %u with status %d: its page has a byte that is not "
					 "the block's",
					 i, blocks[i]);
			continue;
		}
		if (blocks[i] == 0 ? !is_right(c, page, &op->keys[i]) :
				     !page_is_poison(&c->e, page))
			fail_msg("block %u with status %d: its page holds the wrong bytes", i,
				 blocks[i]);
		atomic_fetch_add(&c->score->hits, blocks[i] == 0);
	}
}

static void op_end(struct storm_client *c, struct storm_op *op)
{
	int32_t blocks[STORM_LENGTH];
	struct kvtier_result result = { .size = sizeof(result),
					.blocks = blocks,
					.blocks_max = STORM_LENGTH };
	uint64_t ms;
	int r;

	if (random_below(&c->random, 4) == 0)
		assert_int_equal(kvtier_cancel(c->e.client, op->id, STORM_REST_MS), 0);
	r = kvtier_wait(c->e.client, op->id, STORM_REST_MS, &result);
	if (r)
		fail_msg("an op did not end: %s", strerror(-r));
	assert_int_equal(result.n, op->n);
	ms = (now_ns() - op->start_ns) / 1000000;
	if (ms > atomic_load(&c->score->slowest_ms))
		atomic_store(&c->score->slowest_ms, ms);
	if (op->kind == LOAD)
		check_load(c, op, blocks);
	op->kind = NOTHING;
	atomic_fetch_add(&c->score->ops, 1);
}

/* With ops outstanding, perhaps. */
static void leave_and_come_back(struct storm_client *c, const struct storm *s,
				const struct kvtier_geometry *g)
{
	engine_close(&c->e);
	memset(c->ops, 0, sizeof(c->ops));
	engine_open(&c->e, s->d.socket, "engine", g, PAGES + 1);
}

static void engine_runs(struct storm *s, uint32_t number, uint64_t seed)
{
	const struct kvtier_geometry g = geometry_of(number);
	static struct storm_client c;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* a failure here ends this process, not the test in it */
	(void)setenv("CMOCKA_TEST_ABORT", "1", 1);
	c = (struct storm_client){ .random.state = seed, .score = s->score, .odd = s->odd };
	engine_open(&c.e, s->d.socket, "engine", &g, PAGES + 1);
	while (!atomic_load(&s->score->stop)) {
		const uint32_t i = random_below(&c.random, OPS);

		c.ops[i].first = i * STORM_LENGTH;
		if (c.odd && random_below(&c.random, 500) == 0)
			leave_and_come_back(&c, s, &g);
		else if (c.ops[i].kind == NOTHING)
			op_start(&c, &c.ops[i]);
		else
			op_end(&c, &c.ops[i]);
	}
	for (uint32_t i = 0; i < OPS; i++)
		if (c.ops[i].kind != NOTHING && random_below(&c.random, 2))
			op_end(&c, &c.ops[i]);
	engine_close(&c.e);
	_exit(0);
}

static void spawn(struct storm *s, uint32_t number)
{
	const uint64_t seed = random_next(&s->random);

	s->engines[number] = fork();
	if (s->engines[number] == 0)
		engine_runs(s, number, seed);
	assert_true(s->engines[number] > 0);
}

void storm_engines_start(struct storm *s)
{
	(void)fflush(stdout); /* children do not say it again */
	for (uint32_t i = 0; i < STORM_ENGINES; i++)
		spawn(s, i);
}

/* --- the operator --- */

static void daemon_lives(struct storm *s)
{
	int status;

	if (waitpid(s->d.pid, &status, WNOHANG) == s->d.pid) {
		s->d.pid = 0;
		fail_msg("kvtierd ended with status 0x%x, see %s/log", (unsigned)status, s->d.dir);
	}
}

void storm_command(struct storm *s, const char *words)
{
	const int code = daemon_ctl(&s->d, words, s->text, sizeof(s->text));

	daemon_lives(s);
	if (code)
		fail_msg("kvtierctl %s: exit code %d: %s", words, code, s->text);
}

void storm_engine_dies(struct storm *s)
{
	const uint32_t number = random_below(&s->random, STORM_ENGINES);
	int status;

	assert_int_equal(kill(s->engines[number], SIGKILL), 0);
	assert_int_equal(waitpid(s->engines[number], &status, 0), s->engines[number]);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		fail_msg("engine %u had ended with status 0x%x", number, (unsigned)status);
	s->deaths++;
	spawn(s, number);
}

void storm_engines_stop(struct storm *s)
{
	atomic_store(&s->score->stop, true);
	for (uint32_t i = 0; i < STORM_ENGINES; i++) {
		int status;

		assert_int_equal(waitpid(s->engines[i], &status, 0), s->engines[i]);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			fail_msg("engine %u ended with status 0x%x", i, (unsigned)status);
	}
}

static void memory_is_given_back(struct storm *s)
{
	const uint64_t until = now_ns() + STORM_REST_MS * 1000000ull;

	do {
		if (now_ns() > until)
			fail_msg("host memory is still in use: %s", s->text);
		storm_command(s, "evict --all");
		nap_ms(50);
	} while (daemon_stat(&s->d, "tiers.host.used_bytes") > 0);
}

void storm_nothing_is_left(struct storm *s)
{
	daemon_lives(s);
	daemon_stat_becomes(&s->d, "clients", 0, STORM_REST_MS);
	daemon_stat_becomes(&s->d, "ops.outstanding", 0, STORM_REST_MS);
	if (s->d.disk[0])
		storm_command(s, "flush");
	daemon_stat_becomes(&s->d, "tiers.redis.queued_blocks", 0, STORM_REST_MS);
	daemon_stat_becomes(&s->d, "leases", 0, STORM_REST_MS);
	storm_command(s, "verify");
	memory_is_given_back(s);
	daemon_stat_becomes(&s->d, "tiers.redis.queued_bytes", 0, STORM_REST_MS);
	assert_int_equal(daemon_stat(&s->d, "tiers.redis.corrupt_blocks_total"), 0);
	assert_int_equal(daemon_stat(&s->d, "tiers.nvme.corrupt_blocks_total"), 0);
	assert_int_equal(daemon_stat(&s->d, "tiers.host.corrupt_blocks_total"), 0);
	assert_true(s->score->ops > 0);
}

/* --- the storm --- */

void storm_begin(struct storm *s, const char *seed_name)
{
	*s = (struct storm){ .random = random_seeded(seed_name) };
	s->score = mmap(NULL, sizeof(*s->score), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			-1, 0);
	assert_ptr_not_equal(s->score, MAP_FAILED);
}

void storm_end(struct storm *s)
{
	(void)munmap(s->score, sizeof(*s->score));
}
