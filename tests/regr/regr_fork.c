/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regr_fork.c - goal: a child of fork() does no harm to the client that it inherited: each
 * call in it is -EPERM with a sentence. Closing the client, or exiting through a destructor that
 * closes it, leaves the parent's connection as it is. Method: children that do so, also while other
 * threads of the parent are inside calls and hold locks; the parent's ops go on, over the same
 * connection (the daemon counts them). A child must be able to make a client of its own.
 */
#include "tests/lib/lib.h"

enum { BLOCKS = 16, PAGES = 2 * BLOCKS, CHILD_S = 60, FORKS = 40 };

struct world {
	struct daemon d;
	struct engine e;
	struct kvtier_key keys[BLOCKS];
	uint32_t pages[BLOCKS];
	uint64_t connections;
	pthread_t thread;
	_Atomic bool stop;
	_Atomic uint32_t rounds, wrong;
};

static struct world w;

/* 0 when the child exits with 0; it has an end of its own. */
static int in_child(int (*run)(void))
{
	const pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		(void)alarm(CHILD_S);
		_exit(run());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* The parent's connection serves, and is the same as before. */
static void parent_goes_on(void)
{
	assert_int_equal(engine_lookup(&w.e, w.keys, BLOCKS), BLOCKS);
	assert_int_equal(chain_load(&w.e, w.keys, BLOCKS, BLOCKS), BLOCKS);
	assert_int_equal(daemon_stat(&w.d, "clients_total"), w.connections);
	assert_int_equal(daemon_stat(&w.d, "clients"), 1);
}

static int close_it(void)
{
	kvtier_close(w.e.client);
	return 0;
}

static int close_the_space(void)
{
	return kvtier_space_close(w.e.space);
}

static int leave_it(void)
{
	return 0;
}

static struct kvtier_client *at_exit_client;

static void at_exit(void)
{
	kvtier_close(at_exit_client);
}

static int exit_through_a_destructor(void)
{
	at_exit_client = w.e.client;
	(void)atexit(at_exit);
	(void)fclose(stdout); /* output that the parent has not flushed yet */
	exit(0);
}

static bool refused(int rc)
{
	return rc == -EPERM && strstr(kvtier_last_error(), "after fork()") != NULL;
}

static int every_call_is_refused(void)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_hit hit = { .size = sizeof(hit) };
	struct kvtier_space *space;
	struct kvtier_key key;
	const uint32_t token[16] = { 0 };
	uint64_t op;
	size_t n = 1;

	return refused(kvtier_lookup(w.e.space, w.keys, BLOCKS, &hit)) &&
			       refused(kvtier_load(w.e.space, w.keys, w.pages, 1, NULL, &op)) &&
			       refused(kvtier_store(w.e.space, w.keys, w.pages, 1, NULL, &op)) &&
			       refused(kvtier_prefetch(w.e.space, w.keys, 1, NULL, &op)) &&
			       refused(kvtier_keys(w.e.space, NULL, token, 16, &key, &n)) &&
			       refused(kvtier_space_open(w.e.client, &w.e.geometry, NULL, 0, NULL,
							 0, &space)) &&
			       refused(kvtier_wait(w.e.client, 1, 0, &result)) &&
			       refused(kvtier_poll(w.e.client, &result, 1)) &&
			       refused(kvtier_cancel(w.e.client, 1, 0)) &&
			       refused(kvtier_event_fd(w.e.client)) &&
			       refused(kvtier_lent(w.e.client, NULL, 0)) ?
		       0 :
		       1;
}

static int its_own_client(void)
{
	struct engine e;

	kvtier_close(w.e.client);
	engine_open(&e, w.d.socket, "child", &w.e.geometry, PAGES);
	if (engine_lookup(&e, w.keys, BLOCKS) != BLOCKS ||
	    chain_load(&e, w.keys, 0, BLOCKS) != BLOCKS)
		return 1;
	engine_close(&e);
	return 0;
}

/* *state: whether the engine's pages are private memory. */
FIXTURE(begin)
{
	memset(&w, 0, sizeof(w));
	daemon_start(&w.d, HOST("16M", "256K"));
	if (*state)
		engine_open_staged(&w.e, w.d.socket, "engine", &tiny_raw, PAGES, 1 << 16);
	else
		engine_open(&w.e, w.d.socket, "engine", &tiny_raw, PAGES);
	chain_keys(&w.e, 1, BLOCKS, w.keys);
	pages_from(0, w.pages, BLOCKS);
	assert_int_equal(chain_store(&w.e, w.keys, 0, BLOCKS), 0);
	w.connections = daemon_stat(&w.d, "clients_total");
	return 0;
}

FIXTURE(end)
{
	if (w.e.client)
		engine_close(&w.e);
	daemon_remove(&w.d);
	return 0;
}

#define CASE(name) \
	TEST_ROWS(name, { #name, name, begin, end, NULL }, { #name, name, begin, end, &w })

CASE(a_child_closes)
{
	assert_int_equal(in_child(close_it), 0);
	parent_goes_on();
	assert_int_equal(in_child(close_the_space), 0);
	parent_goes_on();
}

CASE(a_child_exits)
{
	assert_int_equal(in_child(leave_it), 0);
	parent_goes_on();
	assert_int_equal(in_child(exit_through_a_destructor), 0);
	parent_goes_on();
}

CASE(a_child_calls)
{
	assert_int_equal(in_child(every_call_is_refused), 0);
	parent_goes_on();
}

CASE(a_child_makes_its_own)
{
	assert_int_equal(in_child(its_own_client), 0);
	daemon_stat_becomes(&w.d, "clients", 1, PATIENT_MS);
	w.connections++;
	parent_goes_on();
}

static void *load_all_the_time(TEST_UNUSED void *arg)
{
	while (!w.stop) {
		uint32_t pages[BLOCKS];

		pages_from(BLOCKS, pages, BLOCKS);
		w.wrong += engine_load(&w.e, w.keys, pages, BLOCKS, NULL) != 0;
		w.rounds++;
	}
	return NULL;
}

/* Another thread may hold any lock at the moment of the fork. */
CASE(children_close_under_load)
{
	assert_int_equal(pthread_create(&w.thread, NULL, load_all_the_time, NULL), 0);
	for (int i = 0; i < FORKS; i++)
		assert_int_equal(in_child(i % 2 ? close_it : every_call_is_refused), 0);
	w.stop = true;
	(void)pthread_join(w.thread, NULL);
	assert_true(w.rounds > 0);
	assert_int_equal(w.wrong, 0);
	parent_goes_on();
}

/* The child holds copies of all descriptors: the daemon must see the parent's close all the
 * same. */
CASE(the_parent_closes_before_its_child)
{
	int pipe_fd[2];
	pid_t pid;

	assert_int_equal(pipe(pipe_fd), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		char byte;

		(void)alarm(CHILD_S);
		(void)close(pipe_fd[1]);
		_exit(read(pipe_fd[0], &byte, 1) != 0);
	}
	engine_close(&w.e);
	daemon_stat_becomes(&w.d, "clients", 0, PATIENT_MS);
	(void)close(pipe_fd[0]);
	(void)close(pipe_fd[1]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}
