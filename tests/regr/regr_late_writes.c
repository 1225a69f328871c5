/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=20 */
/*
 * regr_late_writes.c - goal: when an op of a client has ended, for any reason, no thread writes
 * into its pages any more: the daemon was told to stop, the client broke the protocol, the op's
 * deadline passed, its space was closed. Method: loads into large and small pages; one of these
 * ends at a random moment; as soon as the op's result is there the pages are marked: a byte every 4
 * KiB, of all blocks their ends first, where a late writer has not been yet. When the daemon has
 * let go of the pages, or its process is gone, each mark must still be there. Several trials each;
 * the seed is printed.
 */
#include "tests/lib/lib.h"

/* TRIALS: of each size */
enum { TRIALS = 4, BLOCKS = 128, MARK = 0xa5, MARK_EVERY = 4096 };

struct size {
	const char *name;
	uint32_t layers, tokens, blocks;
};

static const struct size sizes[] = {
	{ "32 MiB", 64, 128, 2 },
	{ "4 MiB", 32, 32, 12 },
	{ "256 KiB", 8, 8, BLOCKS },
};

static struct {
	struct daemon d;
	struct engine e;
	struct kvtier_key keys[BLOCKS];
	uint32_t pages[BLOCKS], n;
	int socket; /* the client's own */
} w;

static struct random rnd;

static struct kvtier_geometry geometry_of(const struct size *size)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	g.model = size->name;
	g.layers = size->layers;
	g.kv_heads = 8;
	g.head_dim_k = g.head_dim_v = 128;
	g.block_tokens = size->tokens;
	return g;
}

/* The client's socket: the descriptor that was not there before. */
static int last_socket(void)
{
	int type, found = -1;
	socklen_t n = sizeof(type);

	for (int fd = 3; fd < 200; fd++)
		if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_SEQPACKET)
			found = fd;
	assert_true(found >= 0);
	return found;
}

static void join(const struct size *size)
{
	const struct kvtier_geometry g = geometry_of(size);

	engine_open(&w.e, w.d.socket, "engine", &g, w.n);
	w.socket = last_socket();
}

/* A daemon that has the blocks. */
static void live(const struct size *size)
{
	daemon_start(&w.d, HOST("68M", "34M") "[device]\nworkers = 2\n");
	w.n = size->blocks;
	join(size);
	chain_keys(&w.e, 1, w.n, w.keys);
	pages_from(0, w.pages, w.n);
	memset(w.e.memory, 0x11, w.n * w.e.page_bytes);
	assert_int_equal(engine_store(&w.e, w.keys, w.pages, w.n, NULL, NULL), 0);
	engine_close(&w.e);
}

/* The op has ended: its pages are the engine's. */
static void mark(void)
{
	for (size_t at = w.e.page_bytes; at > 0; at -= MARK_EVERY)
		for (uint32_t i = 0; i < w.n; i++)
			__atomic_store_n(w.e.memory + i * w.e.page_bytes + at - 1, (uint8_t)MARK,
					 __ATOMIC_RELAXED);
}

/* Nobody has the pages but us. */
static void let_go(void)
{
	kvtier_close(w.e.client);
	w.e.client = NULL;
	if (w.d.pid)
		daemon_maps_become(&w.d, "memfd:engine", 0, PATIENT_MS);
}

static void check(const char *size, int trial, const char *what)
{
	size_t lost = 0, marks = w.n * w.e.page_bytes / MARK_EVERY;

	for (size_t at = MARK_EVERY; at <= w.n * w.e.page_bytes; at += MARK_EVERY)
		lost += w.e.memory[at - 1] != MARK;
	if (lost)
		fail_msg("%s, blocks of %s, trial %d: %zu of %zu marks were overwritten after the "
			 "op's end",
			 what, size, trial, lost, marks);
}

typedef void end_fn(uint64_t op);

static void await(uint64_t op)
{
	struct kvtier_result result = { .size = sizeof(result) };
	int rc;

	/* As an engine that polls does, and as one that waits. */
	if (random_next(&rnd) % 4) {
		while ((rc = kvtier_poll(w.e.client, &result, 1)) == 0)
			;
		assert_int_equal(rc, 1);
	} else {
		assert_int_equal(kvtier_wait(w.e.client, op, PATIENT_MS, &result), 0);
	}
	mark();
	assert_int_equal(result.lent, 0);
}

static void stop(uint64_t op)
{
	assert_int_equal(kill(w.d.pid, SIGTERM), 0);
	await(op);
	assert_int_equal(daemon_wait(&w.d, PATIENT_MS), 0);
}

static void murder(uint64_t op)
{
	assert_int_equal(kill(w.d.pid, SIGKILL), 0);
	await(op);
	(void)daemon_wait(&w.d, PATIENT_MS);
}

static void violation(uint64_t op)
{
	assert_int_equal(send(w.socket, "this is no message", 18, MSG_NOSIGNAL), 18);
	await(op);
}

static void space_close(TEST_UNUSED uint64_t op)
{
	kvtier_space_close(w.e.space);
	w.e.space = NULL;
	mark();
}

static void try_once(const struct size *size, end_fn *end, uint32_t timeout_ms)
{
	const struct kvtier_op o = { .size = sizeof(o), .timeout_ms = timeout_ms };
	uint64_t op;

	if (!w.d.pid)
		live(size);
	join(size);
	/* From now on its pages have memory, which both have mapped: a load begins at once, and
	 * marks are as quick as memory is. */
	assert_int_equal(engine_load(&w.e, w.keys, w.pages, w.n, NULL), 0);
	assert_int_equal(madvise(w.e.memory, w.n * w.e.page_bytes, MADV_POPULATE_WRITE), 0);
	assert_int_equal(kvtier_load(w.e.space, w.keys, w.pages, w.n, &o, &op), 0);
	(void)usleep((unsigned)(random_next(&rnd) % 6000));
	end(op);
	let_go();
}

static void try(end_fn *end, const char *what, uint32_t timeout_ms)
{
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		for (int trial = 0; trial < TRIALS; trial++) {
			try_once(&sizes[i], end, timeout_ms);
			check(sizes[i].name, trial, what);
			engine_close(&w.e);
			if (!w.d.pid)
				daemon_remove(&w.d);
		}
		if (w.d.pid)
			daemon_remove(&w.d);
	}
}

TEST_DO(a_clean_stop, try(stop, "SIGTERM", 60000));
TEST_DO(a_kill, try(murder, "SIGKILL", 60000));
TEST_DO(a_violation, try(violation, "a violation", 60000));
TEST_DO(a_deadline, try(await, "a deadline", 8));
TEST_DO(a_space_close, try(space_close, "SPACE_CLOSE", 60000));

TEST_BEGIN
{
	const char *given = getenv("TSAN_OPTIONS");
	char options[512];
	/* A stop does not wait long for regions to be unmapped (main.c exit_if_busy()), which takes
	 * a sanitizer long. */
	(void)snprintf(options, sizeof(options), "%s report_thread_leaks=0", given ? given : "");
	(void)setenv("TSAN_OPTIONS", options, 1);
	rnd = random_seeded("regr_late_writes");
}
