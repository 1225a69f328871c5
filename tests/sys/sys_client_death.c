/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_client_death.c - goal: an engine that is killed in the midst of an op leaves nothing: no
 * block of a store that did not complete, no lease, region, descriptor or connection; and other
 * engines do not notice. Method: forked engines that store chain after chain and note progress in
 * shared memory, killed at random moments; then each of their chains is looked up and compared.
 */
/* make: needs=kvtierd_tuned */
#include "tests/lib/lib_raw.h"

enum { BLOCKS = 48, CHAINS = 8, PAGES = 2 * BLOCKS, DEATHS = 40 };

struct progress {                              /* of the engine that will die; shared with it */
	_Atomic uint32_t submitted, completed; /* chains */
	_Atomic bool ready;
};

static struct {
	struct daemon d;
	struct engine e;
	struct witness witness;
	struct random random;
	struct progress *progress;
	int fds; /* of the daemon, with engine and witness connected */
} w;

/* Chains that no other death uses. */
static uint64_t chain_number(int death, uint32_t i)
{
	return 100000 + (uint64_t)death * CHAINS + i;
}

static void doomed(int death, bool load_too)
{
	struct kvtier_key keys[BLOCKS];
	struct engine e;
	int r;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	engine_open(&e, w.d.socket, "doomed", &large_raw, PAGES);
	atomic_store(&w.progress->ready, true);
	for (uint32_t i = 0; i < CHAINS; i++) {
		chain_keys(&e, chain_number(death, i), BLOCKS, keys);
		atomic_store(&w.progress->submitted, i + 1);
		r = chain_store(&e, keys, 0, BLOCKS);
		if (r) {
			fprintf(stderr, "store of chain %u: %d\n", i, r);
			_exit(3);
		}
		atomic_store(&w.progress->completed, i + 1);
		if (load_too && chain_load(&e, keys, BLOCKS, BLOCKS) != BLOCKS)
			_exit(4);
	}
	for (;;)
		(void)pause();
}

static pid_t start_doomed(int death, bool load_too)
{
	pid_t pid;

	memset(w.progress, 0, sizeof(*w.progress));
	(void)fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		doomed(death, load_too);
		_exit(0);
	}
	AWAIT(atomic_load(&w.progress->ready));
	return pid;
}

static void kill_and_reap(pid_t pid)
{
	int status;

	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFSIGNALED(status))
		fail_msg("the engine ended by itself with status 0x%x: a wrong byte, or an op that "
			 "failed",
			 (unsigned)status);
}

static void assert_nothing_left(void)
{
	daemon_stat_becomes(&w.d, "clients", 2, PATIENT_MS);
	daemon_stat_becomes(&w.d, "leases", 0, PATIENT_MS);
	daemon_stat_becomes(&w.d, "ops.outstanding", 0, PATIENT_MS);
	daemon_maps_become(&w.d, "memfd:engine", 2, PATIENT_MS);
	daemon_fds_fall_to(&w.d, w.fds, PATIENT_MS);
}

/* Whole or not at all; whole if it is known to have completed. Returns whether a chain was cut
 * off. */
static bool check_chains(int death)
{
	const uint32_t submitted = atomic_load(&w.progress->submitted);
	const uint32_t completed = atomic_load(&w.progress->completed);
	struct kvtier_key keys[BLOCKS];
	bool cut = false;

	for (uint32_t i = 0; i < submitted; i++) {
		uint32_t n;

		chain_keys(&w.e, chain_number(death, i), BLOCKS, keys);
		n = engine_lookup(&w.e, keys, BLOCKS);
		if (n != BLOCKS && (i < completed || n != 0))
			fail_msg("chain %u of %u submitted, %u completed, has %u of %d blocks", i,
				 submitted, completed, n, BLOCKS);
		if (n == BLOCKS)
			assert_int_equal(chain_load(&w.e, keys, 0, BLOCKS), BLOCKS);
		for (uint32_t k = 0; n == 0 && k < BLOCKS; k++)
			assert_int_equal(engine_lookup(&w.e, &keys[k], 1), 0);
		cut |= n == 0;
	}
	return cut;
}

TEST(killed_in_the_midst)
{
	int cut = 0;

	for (int death = 0; death < DEATHS; death++) {
		const pid_t pid = start_doomed(death, death % 2);

		(void)usleep(random_below(&w.random, 40000));
		kill_and_reap(pid);
		assert_nothing_left();
		cut += check_chains(death);
		(void)daemon_told(&w.d, "evict --all");
	}
	assert_true(cut > 0); /* some were caught in the midst of a store */
	witness_check(&w.witness);
}

/* The dead engine's child still has its socket open: there is no hang-up, but the process is
 * gone. */
TEST(its_child_keeps_the_socket)
{
	int parent_status, alive[2];
	char c;
	pid_t pid;

	assert_int_equal(pipe(alive), 0);
	(void)fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct engine e;

		(void)close(alive[1]);
		engine_open(&e, w.d.socket, "parent", &large_raw, PAGES);
		if (fork() == 0) { /* holds everything open until the test closes its end */
			(void)!read(alive[0], &c, 1);
			_exit(0);
		}
		_exit(0); /* without closing anything */
	}
	(void)close(alive[0]);
	assert_int_equal(waitpid(pid, &parent_status, 0), pid);
	assert_nothing_left();
	(void)close(alive[1]);
	witness_check(&w.witness);
}

FIXTURE(begin)
{
	w.random = random_seeded("sys_client_death");
	w.progress = mmap(NULL, sizeof(*w.progress), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(w.progress, MAP_FAILED);
	daemon_start(&w.d, HOST("96M", "2M") "[device]\nworkers = 2\n");
	engine_open(&w.e, w.d.socket, "engine", &large_raw, PAGES);
	w.witness.may_miss = true; /* room for the next death's chains is made by evicting all */
	witness_start(&w.witness, w.d.socket);
	daemon_stat_becomes(&w.d, "clients", 2, PATIENT_MS);
	w.fds = daemon_fds_settled(&w.d);
	return 0;
}

FIXTURE(end)
{
	witness_stop(&w.witness);
	engine_close(&w.e);
	daemon_stat_becomes(&w.d, "clients", 0, PATIENT_MS);
	daemon_maps_become(&w.d, "memfd:engine", 0, PATIENT_MS);
	daemon_remove(&w.d);
	return 0;
}

TEST_GROUP(begin, end);

TEST_FIRST(daemon_tuned("ref", 0));
