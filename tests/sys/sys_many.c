/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_many.c - goal: many engines at once are served, and engines that came and went leave nothing
 * in the daemon. Method: 64 processes store and load; 1,000 connections open a space and close;
 * descriptors are counted, and resident memory is compared with the figure after a first round,
 * which fills pools that are kept for reuse.
 */
#include "tests/lib/lib_raw.h"

enum {
	CROWD = 64,
	CLIENTS = 64,
	BLOCKS = 8,
	PAGES = 2 * BLOCKS,
	ROUNDS = 10,
	CYCLES = 1000,
	WARM_UP = 100
};

static const char config[] = HOST("16M", "512K");

static struct daemon d;

FIXTURE_DO(begin, daemon_start(&d, config));
FIXTURE_DO(end, daemon_remove(&d));

TEST_GROUP(begin, end);

static void child_engine(uint32_t number)
{
	const struct kvtier_geometry g =
		tiny_geometry(number % 2 ? KVTIER_CODEC_FP8 : KVTIER_CODEC_RAW);
	struct kvtier_key keys[BLOCKS];
	struct engine e;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (number % 4 == 3)
		engine_open_staged(&e, d.socket, "child", &g, PAGES, 3 * engine_page_bytes(&g));
	else
		engine_open(&e, d.socket, "child", &g, PAGES);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		chain_keys(&e, number / 8 * 1000 + i, BLOCKS, keys); /* eight share each chain */
		if (chain_store(&e, keys, 0, BLOCKS) != 0)
			_exit(3);
		if (chain_load(&e, keys, BLOCKS, BLOCKS) != BLOCKS)
			_exit(4);
	}
	engine_close(&e);
	_exit(0);
}

static void wave(void)
{
	pid_t pids[CLIENTS];

	(void)fflush(NULL);
	for (uint32_t i = 0; i < CLIENTS; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] == 0)
			child_engine(i);
	}
	for (uint32_t i = 0; i < CLIENTS; i++) {
		int status;

		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		if (status != 0)
			fail_msg("engine %u ended with status 0x%x", i, (unsigned)status);
	}
}

TEST(sixty_four_at_once)
{
	struct daemon_size size;

	/* The allocator has an arena for each thread. Arenas grow in the first waves: by 2 MiB in
	 * four, by less than 100 KiB in four after some hundred. */
	for (int i = 0; i < 4; i++)
		wave();
	daemon_stat_becomes(&d, "clients", 0, PATIENT_MS);
	size = daemon_size(&d);
	for (int i = 0; i < 4; i++)
		wave();
	daemon_stat_becomes(&d, "clients", 0, PATIENT_MS);
	daemon_stat_becomes(&d, "leases", 0, PATIENT_MS);
	daemon_size_check(&d, &size);
	assert_int_equal(daemon_stat(&d, "protocol_errors_total"), 0);
	assert_int_equal(daemon_stat(&d, "clients_refused_total"), 0);
}

static void cycle(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct kvtier_key keys[BLOCKS];
		struct engine e;

		engine_open(&e, d.socket, "cycle", &tiny_raw, PAGES);
		chain_keys(&e, 7, BLOCKS, keys);
		if (i % 10 == 0)
			assert_int_equal(chain_store(&e, keys, 0, BLOCKS), 0);
		engine_close(&e);
	}
}

TEST(thousand_connections)
{
	struct daemon_size size;

	cycle(WARM_UP);
	daemon_stat_becomes(&d, "clients", 0, PATIENT_MS);
	size = daemon_size(&d);
	cycle(CYCLES);
	daemon_stat_becomes(&d, "clients", 0, PATIENT_MS);
	daemon_maps_become(&d, "memfd:engine", 0, PATIENT_MS);
	daemon_maps_become(&d, "memfd:kvtier-submit", 0, PATIENT_MS);
	daemon_size_check(&d, &size);
}

/* Each with its own model: identities are reused when nobody has them open and no block carries
 * them. */
TEST(thousands_of_spaces)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct kvtier_client *client;
	char model[32];

	g.model = model;
	assert_int_equal(client_dial(d.socket, NULL, 0, &client), 0);
	for (int i = 0; i < 3000; i++) {
		struct kvtier_space *space;

		snprintf(model, sizeof(model), "model-%d", i);
		assert_int_equal(kvtier_space_open(client, &g, NULL, 0, NULL, 0, &space), 0);
		kvtier_space_close(space);
	}
	kvtier_close(client);
}

static bool connects(const struct daemon *to, uint32_t timeout_ms)
{
	struct kvtier_client *client;

	if (client_dial(to->socket, NULL, timeout_ms, &client))
		return false;
	kvtier_close(client);
	return true;
}

struct crowd {
	pthread_barrier_t gate;
	const struct daemon *d;
	_Atomic uint32_t refused;
};

static void *connect_at_once(void *arg)
{
	struct crowd *crowd = arg;

	(void)pthread_barrier_wait(&crowd->gate);
	crowd->refused += !connects(crowd->d, PATIENT_MS);
	return NULL;
}

/* Many more than the daemon has places: each has its turn, as the ones before it leave. */
TEST(a_crowd_connects_at_once)
{
	pthread_t threads[CROWD];
	struct crowd crowd = { 0 };
	struct daemon small;

	daemon_start(&small, HOST("4M", "512K") "[socket]\nmax_clients = 16\n");
	crowd.d = &small;
	assert_int_equal(pthread_barrier_init(&crowd.gate, NULL, CROWD), 0);
	for (int i = 0; i < CROWD; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, connect_at_once, &crowd), 0);
	for (int i = 0; i < CROWD; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	(void)pthread_barrier_destroy(&crowd.gate);
	daemon_remove(&small);
	assert_int_equal(crowd.refused, 0);
}

/* The daemon's limit lowered while it runs: it waits for better times, serves its present clients,
 * and goes on. */
TEST(out_of_descriptors)
{
	struct rlimit before, low;
	struct witness witness;
	char text[4096];

	memset(&witness, 0, sizeof(witness));
	witness_start(&witness, d.socket);
	assert_int_equal(prlimit(d.pid, RLIMIT_NOFILE, NULL, &before), 0);
	(void)daemon_ctl(&d, "status", text, sizeof(text));
	assert_null(strstr(text, "out_of_files"));
	for (rlim_t more = 0; more < 5; more++) { /* at accept, at its pidfd, at each ring */
		low = before;
		low.rlim_cur = (rlim_t)daemon_fds(&d) + more;
		assert_int_equal(prlimit(d.pid, RLIMIT_NOFILE, &low, NULL), 0);
		(void)connects(&d, 200);
		witness_check(&witness);
		assert_int_equal(prlimit(d.pid, RLIMIT_NOFILE, &before, NULL), 0);
		assert_true(connects(&d, 20000));
		daemon_stat_becomes(&d, "clients", 1, PATIENT_MS);
	}
	witness_stop(&witness);
	/* no client has done anything wrong */
	assert_int_equal(daemon_stat(&d, "protocol_errors_total"), 0);
	/* status says it when the page is drawn next */
	for (int ms = 0; ms < PATIENT_MS && !strstr(text, "WARN out_of_files"); ms += 10) {
		usleep(10000);
		(void)daemon_ctl(&d, "status", text, sizeof(text));
	}
	assert_int_equal(daemon_ctl(&d, "status", text, sizeof(text)), 1);
	assert_non_null(strstr(text, "WARN out_of_files"));
}

/* Its packet comes, and the descriptors in it find no room. */
TEST(engine_without_descriptors_hears_emfile)
{
	struct kvtier_segment segments[8];
	struct kvtier_region region = { .size = sizeof(region),
					.memory = KVTIER_MEMFD,
					.length =
						(engine_page_bytes(&tiny_raw) + 4095) & ~4095ull };
	const size_t n = engine_segments(&tiny_raw, segments, 8);
	struct kvtier_client *client;
	struct kvtier_space *space;
	struct rlimit before, low;

	region.fd = memfd_make(region.length, F_SEAL_SHRINK | F_SEAL_GROW);
	INSIST(client_dial(d.socket, NULL, 0, &client));
	assert_int_equal(prlimit(d.pid, RLIMIT_NOFILE, NULL, &before), 0);
	low = before;
	low.rlim_cur = 3; /* fewer than it has */
	assert_int_equal(prlimit(d.pid, RLIMIT_NOFILE, &low, NULL), 0);
	assert_int_equal(kvtier_space_open(client, &tiny_raw, &region, 1, segments, n, &space),
			 -EMFILE);
	assert_non_null(strstr(kvtier_last_error(), "raise LimitNOFILE="));
	assert_int_equal(prlimit(d.pid, RLIMIT_NOFILE, &before, NULL), 0);
	INSIST(kvtier_space_open(client, &tiny_raw, &region, 1, segments, n, &space));
	kvtier_close(client);
	(void)close(region.fd);
	assert_int_equal(daemon_stat(&d, "protocol_errors_total"), 0);
}

static void tight_soft_limit(void)
{
	struct rlimit limit;

	(void)getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = 32;
	(void)setrlimit(RLIMIT_NOFILE, &limit);
}

TEST(soft_limit_is_raised_at_the_start)
{
	struct rlimit limit;
	struct daemon low;

	daemon_place(&low, false);
	daemon_configure(&low, config);
	low.enter = tight_soft_limit;
	daemon_restart(&low);
	assert_int_equal(prlimit(low.pid, RLIMIT_NOFILE, NULL, &limit), 0);
	assert_int_equal(limit.rlim_cur, limit.rlim_max);
	daemon_remove(&low);
}
