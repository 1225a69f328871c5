/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regr_slow_layout.c - goal: pages laid out to be slow cost their own client time, and no
 * other. A block was one job, done to its end: 64 outstanding loads of a client whose token rows
 * lie 1 MiB apart held all workers, each of another client's loads stood behind all of them, and an
 * op ended long after its deadline. Method: one client keeps 64 such loads outstanding (32 MiB
 * images, all into the same page). It has a process of its own, as workers take turns by process.
 * It counts its loads that end while another client does some small loads one by one: a load behind
 * all the others' saw 62 of them end. Then one slow load with a short deadline: it ends with
 * -ETIMEDOUT, and most of its page is untouched. Nothing is timed.
 */
#include "tests/lib/lib.h"

enum {
	OPS = 64,
	LAYERS = 64,
	TOKENS = 2048,
	DIM = 128,
	ROW = 2 * DIM,
	PLANES = 2 * LAYERS,
	STRIDE = 1 << 20,
	QUIET_LOADS = 12,
	MS = 300000,
};
#define REGION ((uint64_t)TOKENS * STRIDE)

struct slow {
	struct kvtier_client *client;
	struct kvtier_space *space;
	uint8_t *memory;
	struct kvtier_key key;
	/* of keep_busy() */
	_Atomic uint32_t ended; /* loads */
	_Atomic bool stop;
	int wrong; /* an unexpected status */
};

static uint8_t *row_of(const struct slow *s, uint32_t token, uint32_t plane)
{
	return s->memory + (uint64_t)token * STRIDE + (uint64_t)plane * ROW;
}

/* Values of one: every row is touched, so that the daemon need not fault any of them in. */
static void fill(struct slow *s, uint8_t value)
{
	for (uint32_t t = 0; t < TOKENS; t++)
		memset(row_of(s, t, 0), value, (size_t)PLANES * ROW);
}

static void slow_open(struct slow *s, const char *socket)
{
	const struct kvtier_options o = {
		.size = sizeof(o), .socket_path = socket, .name = "slow", .timeout_ms = MS
	};
	const struct kvtier_geometry g = {
		.size = sizeof(g),
		.dtype = KVTIER_BF16,
		.model = "slow",
		.convention = "test",
		.layers = LAYERS,
		.kv_heads = 1,
		.head_dim_k = DIM,
		.head_dim_v = DIM,
		.block_tokens = TOKENS,
		.world = 1,
		.codec = KVTIER_CODEC_FP8,
	};
	struct kvtier_region region = { .size = sizeof(region),
					.memory = KVTIER_MEMFD,
					.length = REGION };
	static struct kvtier_segment segments[PLANES];
	uint32_t *tokens = calloc(TOKENS, sizeof(*tokens));
	size_t n = 1;

	region.fd = memfd_make(REGION, F_SEAL_SHRINK | F_SEAL_GROW);
	s->memory = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED, region.fd, 0);
	assert_ptr_not_equal(s->memory, MAP_FAILED);
	for (uint32_t i = 0; i < PLANES; i++)
		segments[i] = (struct kvtier_segment){
			.size = sizeof(segments[i]),
			.layer = i / 2,
			.kind = i & 1 ? KVTIER_V : KVTIER_K,
			.offset = (uint64_t)i * ROW,
			.page_stride = REGION,
			.head_stride = ROW,
			.token_stride = STRIDE,
		};
	fill(s, 0x3f);
	if (kvtier_connect(&o, &s->client) ||
	    kvtier_space_open(s->client, &g, &region, 1, segments, PLANES, &s->space) ||
	    kvtier_keys(s->space, NULL, tokens, TOKENS, &s->key, &n))
		fail_msg("slow client: %s", kvtier_last_error());
	(void)close(region.fd);
	free(tokens);
}

static void slow_close(struct slow *s)
{
	kvtier_close(s->client);
	(void)munmap(s->memory, REGION);
}

static int finish(struct slow *s, uint64_t op)
{
	struct kvtier_result result = { .size = sizeof(result) };
	const int r = kvtier_wait(s->client, op, MS, &result);

	return r ? r : result.status;
}

static uint64_t begin_load(struct slow *s, uint32_t timeout_ms)
{
	const struct kvtier_op o = { .size = sizeof(o), .timeout_ms = timeout_ms };
	const uint32_t page = 0;
	uint64_t op;

	if (kvtier_load(s->space, &s->key, &page, 1, &o, &op))
		fail_msg("kvtier_load: %s", kvtier_last_error());
	return op;
}

static void store_it(struct slow *s)
{
	const uint32_t page = 0;
	uint64_t op;

	if (kvtier_store(s->space, &s->key, &page, 1, NULL, &op))
		fail_msg("kvtier_store: %s", kvtier_last_error());
	assert_int_equal(finish(s, op), 0);
}

static void keep_busy(struct slow *s)
{
	uint64_t ops[OPS];

	for (uint32_t i = 0; i < OPS; i++)
		ops[i] = begin_load(s, MS);
	for (uint32_t i = 0; !s->stop; i = (i + 1) % OPS) {
		if (finish(s, ops[i]))
			s->wrong++;
		s->ended++;
		ops[i] = begin_load(s, MS);
	}
}

static void child(struct slow *s, const char *socket)
{
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	slow_open(s, socket);
	store_it(s);
	keep_busy(s);
	slow_close(s);
	_exit(0);
}

TEST(others_load_in_turn)
{
	struct slow *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct kvtier_key key;
	struct engine quiet;
	struct daemon d;
	uint32_t before;
	pid_t pid;
	int end;

	assert_ptr_not_equal(s, MAP_FAILED);
	daemon_start(&d, "[host]\nbytes = 192M\nslab_bytes = 64M\nhuge_pages = no\n");
	pid = fork();
	if (pid == 0)
		child(s, d.socket);
	assert_true(pid > 0);
	{
		engine_open(&quiet, d.socket, "quiet", &tiny_fp8, 4);
	}
	chain_keys(&quiet, 1, 1, &key);
	assert_int_equal(chain_store(&quiet, &key, 0, 1), 0);
	while (s->ended < 2) { /* all of them were begun */
		assert_int_equal(waitpid(pid, &end, WNOHANG), 0);
		nap_ms(1);
	}
	before = s->ended;
	for (uint32_t i = 0; i < QUIET_LOADS; i++)
		assert_int_equal(chain_load(&quiet, &key, 0, 1), 1);
	before = s->ended - before;
	(void)printf("%u slow loads ended while %d small ones of another client did\n", before,
		     QUIET_LOADS);
	assert_true(before < 16 * QUIET_LOADS);
	s->stop = true;
	assert_int_equal(waitpid(pid, &end, 0), pid);
	assert_int_equal(end, 0);
	assert_int_equal(s->wrong, 0);
	engine_close(&quiet);
	daemon_remove(&d);
	(void)munmap(s, sizeof(*s));
}

TEST(a_deadline_ends_a_slow_job)
{
	uint32_t untouched = 0;
	struct slow s = { 0 };
	struct daemon d;

	daemon_start(&d, "[host]\nbytes = 192M\nslab_bytes = 64M\nhuge_pages = no\n");
	slow_open(&s, d.socket);
	store_it(&s);
	fill(&s, 0xa5);
	assert_int_equal(finish(&s, begin_load(&s, 1)), -ETIMEDOUT);
	for (uint32_t t = 0; t < TOKENS; t++)
		untouched += row_of(&s, t, PLANES - 1)[0] == 0xa5;
	(void)printf("%u of the last plane's %d rows are untouched\n", untouched, TOKENS);
	assert_true(untouched > TOKENS / 2);
	slow_close(&s);
	daemon_remove(&d);
}
