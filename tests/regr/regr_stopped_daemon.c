/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=30 */
/*
 * regr_stopped_daemon.c - goal: a daemon is stopped in the middle of a load or store, given
 * up, and then goes on. It harms no page that libkvtier says is the engine's: pages that it may
 * still write into are reported, named and not lent again (also over another connection, to another
 * daemon) until this daemon answers or is dead; memory that was taken back is safe at once; a page
 * that changed under a late store becomes no block. Method: SIGSTOP at a random moment of an op
 * with large blocks; a client with a short patience closes its space; marks (a byte in each KiB) go
 * into every page that is free; SIGCONT or SIGKILL; in the end, with the daemon gone, all marks
 * must be there. Where the daemon had nothing in its hands the trial is repeated. The seed is
 * printed.
 */
#include "tests/lib/lib.h"

enum {
	BLOCKS = 4,
	PAGES = BLOCKS + 2,
	SPARE = BLOCKS,
	TRIALS = 5,
	ATTEMPTS = 200,
	MARK = 0xa5,
	MARK_EVERY = 1024,
	TIMEOUT_MS = 100,
	PATIENCE_MS = 30000
};

static const char config[] = HOST("160M", "32M") "[device]\nworkers = 2\n";

struct world {
	struct daemon d, other;       /* other: pid 0 when it does not run */
	struct engine e;              /* the pages, and a patient client of d */
	struct kvtier_region own;     /* the pages, whole */
	struct kvtier_client *client; /* of d, impatient */
	struct kvtier_space *space;
	struct kvtier_key keys[BLOCKS];
	uint32_t pages[BLOCKS];
	struct kvtier_lent lent[2 * PAGES];
	int n_lent;
};

static struct world w;

static struct random rnd;

static struct kvtier_geometry geometry(void)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	g.model = "16 MiB";
	g.layers = 64;
	g.kv_heads = 8;
	g.head_dim_k = g.head_dim_v = 128;
	g.block_tokens = 64;
	return g;
}

static uint64_t inode_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

static int open_space(const struct kvtier_region *region, struct kvtier_space **ret)
{
	static struct kvtier_segment segments[KVTIER_MAX_SEGMENTS];
	const struct kvtier_geometry g = geometry();

	return kvtier_space_open(w.client, &g, region, 1, segments,
				 engine_segments(&g, segments, KVTIER_MAX_SEGMENTS), ret);
}

static bool joined(const struct daemon *d, const struct kvtier_region *region)
{
	if (client_dial(d->socket, NULL, TIMEOUT_MS, &w.client))
		return false;
	if (open_space(region, &w.space) == 0)
		return true;
	kvtier_close(w.client);
	return false;
}

static uint8_t *page_at(uint32_t page)
{
	return w.e.memory + page * w.e.page_bytes;
}

static void mark(uint8_t *page, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += MARK_EVERY)
		__atomic_store_n(page + at, (uint8_t)MARK, __ATOMIC_RELAXED);
}

static void check_marks(const uint8_t *page, size_t bytes, uint32_t number, const char *when)
{
	size_t lost = 0;

	for (size_t at = 0; at < bytes; at += MARK_EVERY)
		lost += page[at] != MARK;
	if (lost)
		fail_msg("%s: page %u was free, and %zu of its %zu marks were overwritten", when,
			 number, lost, bytes / MARK_EVERY);
}

static bool is_lent(uint32_t page)
{
	for (int i = 0; i < w.n_lent; i++)
		if (w.lent[i].page == page)
			return true;
	return false;
}

static void ask_lent(struct kvtier_client *client)
{
	w.lent[0].size = sizeof(w.lent[0]);
	w.n_lent = kvtier_lent(client, w.lent, 2 * PAGES);
	assert_in_range(w.n_lent, 0, 2 * PAGES);
}

static void none_is_lent_soon(void)
{
	AWAIT(kvtier_lent(NULL, NULL, 0) <= 0);
	assert_int_equal(kvtier_lent(NULL, NULL, 0), 0);
}

typedef int submit_fn(struct kvtier_space *space, const struct kvtier_key *keys,
		      const uint32_t *pages, size_t n, const struct kvtier_op *options,
		      uint64_t *ret_op);

/* Stops the daemon in the middle of an op, or leaves it running: false. */
static bool stop_in(submit_fn *submit, uint64_t *ret_op)
{
	const struct kvtier_op patient = { .size = sizeof(patient), .timeout_ms = 60000 };
	struct kvtier_result result = { .size = sizeof(result) };

	assert_int_equal(submit(w.space, w.keys, w.pages, BLOCKS, &patient, ret_op), 0);
	(void)usleep(random_below(&rnd, 6000));
	daemon_signal(&w.d, SIGSTOP);
	if (kvtier_wait(w.client, *ret_op, 0, &result) == -ETIMEDOUT)
		return true;
	daemon_signal(&w.d, SIGCONT);
	return false;
}

/* The same until the close of the space says that pages are lent: returns how many. */
static int stop_and_close(const struct kvtier_region *region)
{
	for (int i = 0; i < ATTEMPTS; i++) {
		uint64_t op;
		int lent;

		AWAIT(joined(&w.d, region));
		if (!stop_in(kvtier_load, &op)) {
			kvtier_close(w.client);
			continue;
		}
		lent = kvtier_space_close(w.space);
		if (lent > 0)
			return lent;
		kvtier_close(w.client); /* the op was not even read */
		daemon_signal(&w.d, SIGCONT);
		none_is_lent_soon();
	}
	fail_msg("the daemon was not stopped in the middle of a load in %d attempts", ATTEMPTS);
	return 0;
}

/* --- cases --- */

TEST(what_is_not_named_stays_as_it_is)
{
	for (int trial = 0; trial < TRIALS; trial++) {
		const int lent = stop_and_close(&w.own);

		ask_lent(w.client);
		for (uint32_t p = 0; p < PAGES; p++)
			if (!is_lent(p))
				mark(page_at(p), w.e.page_bytes);
		daemon_signal(&w.d, SIGCONT);
		kvtier_close(w.client);
		for (uint32_t p = 0; p < PAGES; p++)
			if (!is_lent(p))
				check_marks(page_at(p), w.e.page_bytes, p,
					    "while others were lent");
		none_is_lent_soon();
		for (uint32_t p = 0; p < PAGES; p++)
			mark(page_at(p), w.e.page_bytes);
		daemon_stat_becomes(&w.d, "ops.outstanding", 0, PATIENCE_MS);
		daemon_stat_becomes(&w.d, "clients", 1, PATIENCE_MS);
		for (uint32_t p = 0; p < PAGES; p++)
			check_marks(page_at(p), w.e.page_bytes, p, "after none was lent");
		assert_int_equal(w.n_lent, lent);
		for (int i = 0; i < w.n_lent; i++) {
			assert_int_equal(w.lent[i].memory, inode_of(w.e.fd));
			assert_int_equal(w.lent[i].offset, w.lent[i].page * w.e.page_bytes);
			assert_int_equal(w.lent[i].daemon, w.d.pid);
			assert_int_equal(w.lent[i].ended, 1);
		}
	}
}

/* The other daemon has the same blocks with other bytes: 0x22. */
static void other_starts(void)
{
	const struct kvtier_geometry g = geometry();
	struct engine e;

	daemon_start(&w.other, config);
	engine_open(&e, w.other.socket, "other", &g, BLOCKS);
	memset(e.memory, 0x22, BLOCKS * e.page_bytes);
	assert_int_equal(engine_store(&e, w.keys, w.pages, BLOCKS, NULL, NULL), 0);
	engine_close(&e);
}

static int load_one(uint32_t page)
{
	const struct kvtier_op patient = { .size = sizeof(patient), .timeout_ms = PATIENCE_MS };
	struct kvtier_result result = { .size = sizeof(result) };
	uint64_t op;
	int rc = kvtier_load(w.space, w.keys, &page, 1, &patient, &op);

	if (!rc)
		rc = kvtier_wait(w.client, op, -1, &result);
	return rc ? rc : result.status;
}

static void check_page(uint32_t page, uint8_t byte, const char *when)
{
	const uint8_t *p = page_at(page);

	for (size_t at = 0; at < w.e.page_bytes; at++)
		if (p[at] != byte)
			fail_msg("%s: byte %zu of page %u is %#x, not %#x: another block's bytes "
				 "came as a hit",
				 when, at, page, p[at], byte);
}

TEST(a_lent_page_is_not_lent_again)
{
	uint32_t lent;

	other_starts();
	(void)stop_and_close(&w.own);
	ask_lent(NULL);
	kvtier_close(w.client);
	AWAIT(joined(&w.other, &w.own));
	lent = w.n_lent > 0 ? w.lent[0].page : 0;
	if (load_one(lent) == 0) {
		daemon_signal(&w.d, SIGCONT);
		daemon_stat_becomes(&w.d, "ops.outstanding", 0, PATIENCE_MS);
		check_page(lent, 0x22, "loaded into a lent page");
	}
	assert_int_equal(load_one(lent), -EBUSY);
	assert_non_null(strstr(kvtier_last_error(), "lent still"));
	assert_int_equal(load_one(SPARE), 0); /* one that is free */
	check_page(SPARE, 0x22, "a free page");
	daemon_signal(&w.d, SIGCONT);
	none_is_lent_soon();
	assert_int_equal(load_one(lent), 0);
	daemon_signal(&w.d, SIGTERM);
	check_page(lent, 0x22, "after the stopped daemon had answered");
	kvtier_close(w.client);
}

TEST(a_killed_daemon_frees_them)
{
	(void)stop_and_close(&w.own);
	kvtier_close(w.client);
	assert_true(kvtier_lent(NULL, NULL, 0) > 0);
	daemon_signal(&w.d, SIGKILL);
	none_is_lent_soon();
}

/* As systemd's watchdog ends it: SIGABRT, and SIGCONT so that it is heard. */
TEST(so_does_the_watchdog)
{
	(void)stop_and_close(&w.own);
	kvtier_close(w.client);
	daemon_signal(&w.d, SIGABRT);
	daemon_signal(&w.d, SIGCONT);
	assert_true(WIFSIGNALED(daemon_wait(&w.d, PATIENCE_MS)));
	none_is_lent_soon();
}

TEST(memory_is_taken_back)
{
	const size_t bytes = w.e.page_bytes;
	struct kvtier_region region = { .size = sizeof(region) };
	struct kvtier_memory *memory;
	uint8_t *base;

	other_starts();
	assert_int_equal(kvtier_memory_alloc(bytes * PAGES, NULL, &memory), 0);
	base = kvtier_memory_address(memory);
	for (int trial = 0; trial < TRIALS; trial++) {
		const uint8_t pattern = (uint8_t)(0x30 + trial);

		assert_int_equal(kvtier_memory_region(memory, &region), 0);
		memset(base + SPARE * bytes, pattern, bytes);
		(void)stop_and_close(&region);
		kvtier_close(w.client);
		AWAIT(joined(&w.other, &region));
		assert_int_equal(kvtier_memory_take_back(memory), -EBUSY);
		assert_int_equal(load_one(0), -EBUSY);
		kvtier_close(w.client);
		assert_int_equal(kvtier_memory_take_back(memory), 0);
		assert_int_equal(kvtier_lent(NULL, NULL, 0), 0);
		for (size_t at = 0; at < bytes; at++)
			assert_int_equal(base[SPARE * bytes + at], pattern);
		for (uint32_t p = 1; p < PAGES; p++)
			mark(base + p * bytes, bytes);
		assert_int_equal(kvtier_memory_region(memory, &region), 0);
		AWAIT(joined(&w.other, &region));
		assert_int_equal(load_one(0), 0);
		daemon_signal(&w.d, SIGCONT);
		daemon_stat_becomes(&w.d, "ops.outstanding", 0, PATIENCE_MS);
		daemon_stat_becomes(&w.d, "clients", 1, PATIENCE_MS);
		for (size_t at = 0; at < bytes; at++)
			assert_int_equal(base[at], 0x22);
		for (uint32_t p = 1; p < PAGES; p++)
			check_marks(base + p * bytes, bytes, p, "after the memory was taken back");
		kvtier_close(w.client);
	}
	kvtier_memory_free(memory);
}

/* Keys of its own each time; bytes 0x33, changed to 0x44 when it was given up. */
TEST(a_late_store_becomes_no_block)
{
	for (int trial = 0; trial < TRIALS; trial++) {
		int32_t statuses[BLOCKS];
		uint64_t op;

		chain_keys(&w.e, 100 + (uint64_t)trial, BLOCKS, w.keys);
		memset(w.e.memory, 0x33, BLOCKS * w.e.page_bytes);
		AWAIT(joined(&w.d, &w.own));
		if (stop_in(kvtier_store, &op)) {
			(void)kvtier_space_close(w.space);
			memset(w.e.memory, 0x44, BLOCKS * w.e.page_bytes);
			daemon_signal(&w.d, SIGCONT);
		}
		kvtier_close(w.client);
		none_is_lent_soon();
		daemon_stat_becomes(&w.d, "clients", 1, PATIENCE_MS);
		(void)engine_load(&w.e, w.keys, w.pages, BLOCKS, statuses);
		for (uint32_t i = 0; i < BLOCKS; i++)
			if (statuses[i] == 0)
				check_page(i, 0x33, "stored late");
		(void)daemon_told(&w.d, "evict --all");
	}
}

/* The client's status says whether it waits for the daemon that stands still, and for which. */
static void status_waits(bool waits)
{
	char text[1024], word[64];

	assert_int_equal((kvtier_status(w.client, text, sizeof(text)) & KVTIER_WAITING) != 0,
			 waits);
	(void)snprintf(word, sizeof(word), "waits for kvtierd (pid %d)", (int)w.d.pid);
	if ((strstr(text, word) != NULL) != waits ||
	    (strstr(text, "pages are lent still") != NULL) != waits)
		fail_msg("\"%s\", not \"%s\" in it: %s", waits ? "waits" : "waits not", word, text);
}

TEST(results_and_cancel_say_so)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_space *second;
	uint64_t op = 0;
	int lent;

	for (int i = 0; i < ATTEMPTS; i++) {
		AWAIT(joined(&w.d, &w.own));
		assert_int_equal(open_space(&w.own, &second), 0);
		if (stop_in(kvtier_load, &op)) {
			ask_lent(w.client);
			assert_int_equal(w.n_lent, BLOCKS); /* it runs */
			assert_int_equal(w.lent[0].ended, 0);
			assert_int_equal(kvtier_cancel(w.client, op, 50), -ETIMEDOUT);
			assert_non_null(strstr(kvtier_last_error(), "its 4 pages are lent"));
			lent = kvtier_space_close(second);
			assert_int_equal(kvtier_lent(NULL, NULL, 0), lent);
			if (lent > 0)
				break;
			daemon_signal(&w.d, SIGCONT);
		}
		kvtier_close(w.client);
	}
	assert_int_equal(kvtier_cancel(w.client, op, 0), -ETIMEDOUT); /* ended, but lent */
	assert_non_null(strstr(kvtier_last_error(), "has ended"));
	assert_int_equal(kvtier_wait(w.client, op, 0, &result), 0);
	assert_int_equal(result.status, -ECONNRESET);
	assert_int_equal(result.lent, BLOCKS);
	status_waits(true);
	assert_int_equal(kvtier_space_close(w.space), BLOCKS);
	daemon_signal(&w.d, SIGCONT);
	none_is_lent_soon();
	status_waits(false);
	kvtier_close(w.client);
}

FIXTURE(begin)
{
	const struct kvtier_geometry g = geometry();

	memset(&w, 0, sizeof(w));
	daemon_start(&w.d, config);
	engine_open(&w.e, w.d.socket, "engine", &g, PAGES);
	w.own = (struct kvtier_region){ .size = sizeof(w.own),
					.memory = KVTIER_MEMFD,
					.fd = w.e.fd,
					.length = w.e.page_bytes * PAGES };
	chain_keys(&w.e, 1, BLOCKS, w.keys);
	pages_from(0, w.pages, BLOCKS);
	memset(w.e.memory, 0x11, BLOCKS * w.e.page_bytes);
	assert_int_equal(engine_store(&w.e, w.keys, w.pages, BLOCKS, NULL, NULL), 0);
	return 0;
}

FIXTURE(end)
{
	if (w.d.pid)
		daemon_signal(&w.d, SIGCONT);
	engine_close(&w.e);
	daemon_remove(&w.d);
	if (w.other.pid)
		daemon_remove(&w.other);
	return 0;
}

TEST_EACH(begin, end);
TEST_FIRST((void)setrlimit(RLIMIT_CORE, &(struct rlimit){ 0 });
	   rnd = random_seeded("regr_stopped_daemon"));
