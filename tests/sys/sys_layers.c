/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=8 */
/*
 * sys_layers - goal: a load with layer groups brings group after group of all of its blocks, and
 * never says that a group is there before its bytes are; a store with groups reads none before it
 * was given. When such an op ends early, for any reason, its waiters go on and are told. Method:
 * pages on the CPU, shared and staged; a daemon with one slow worker; more blocks than it has jobs.
 */
#include "tests/lib/lib.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

enum { LAYERS = 16, GROUPS = 7, BLOCKS = 100, PAGES = 2 * BLOCKS, TRIES = 10 };

/* 64 jobs at once: fewer than there are blocks. */
static const char config[] = "[host]\nbytes = 64M\nslab_bytes = 2M\nhuge_pages = no\n"
			     "[device]\nworkers = 1\nkernels = ref\n";

struct world {
	struct served s;
	struct kvtier_key keys[BLOCKS], others[BLOCKS];
	uint32_t pages[BLOCKS]; /* the second half */
	int32_t blocks[BLOCKS];
};

static uint32_t first_layer(uint32_t group)
{
	return LAYERS * group / GROUPS;
}

static struct kvtier_geometry geometry(void)
{
	struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);

	g.layers = LAYERS;
	return g;
}

static void begin_with(struct world *w, const char *lines)
{
	const struct kvtier_geometry g = geometry();

	served_begin(&w->s, lines, &g, PAGES);
	chain_keys(&w->s.e, 1, BLOCKS, w->keys);
	chain_keys(&w->s.e, 2, BLOCKS, w->others);
	assert_int_equal(chain_store(&w->s.e, w->keys, 0, BLOCKS), 0);
	pages_from(BLOCKS, w->pages, BLOCKS);
}

FIXTURE(begin)
{
	static struct world w;

	begin_with(&w, config);
	*state = &w;
	return 0;
}

TEST_EACH(begin, served_end);

/* --- loads --- */

static uint64_t load(struct world *w, uint32_t timeout_ms)
{
	const struct kvtier_op_options o = { .size = sizeof(o),
					     .timeout_ms = timeout_ms,
					     .layer_groups = GROUPS };
	uint64_t op;

	for (uint32_t i = 0; i < BLOCKS; i++)
		page_poison(&w->s.e, w->pages[i]);
	assert_int_equal(kvtier_load(w->s.e.space, w->keys, w->pages, BLOCKS, &o, &op), 0);
	return op;
}

static struct kvtier_result result_of(struct world *w, uint64_t op)
{
	struct kvtier_result r = { .size = sizeof(r), .blocks = w->blocks, .blocks_max = BLOCKS };

	assert_int_equal(kvtier_wait(w->s.e.client, op, PATIENT_MS, &r), 0);
	return r;
}

static void assert_group_is_there(struct world *w, uint32_t group)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		if (!page_has_layers(&w->s.e, w->pages[i], &w->keys[i], 0, first_layer(group),
				     first_layer(group + 1)))
			fail_msg("group %u is said to be there, and block %u has other bytes",
				 group, i);
}

/* Pages without a byte of the last layer. */
static uint32_t lack_the_last_layer(struct world *w)
{
	const size_t layer = w->s.e.page_bytes / LAYERS;
	uint32_t n = 0;

	for (uint32_t i = 0; i < BLOCKS; i++) {
		const uint8_t *end = w->s.e.memory + (w->pages[i] + 1ull) * w->s.e.page_bytes;

		n += end[-1] == 0xa5 && end[-(ptrdiff_t)layer] == 0xa5;
	}
	return n;
}

/* A group of all blocks comes before the next one of any that is not in the daemon's hands at the
 * same time: so when the first group is there, most of the last layers are not. */
TEST(groups_come_one_after_the_other)
{
	struct world *w = *state;
	uint32_t most = 0;

	for (int i = 0; i < TRIES && most < BLOCKS / 2; i++) {
		const uint64_t op = load(w, 0);

		for (uint32_t g = 0; g < GROUPS; g++) {
			uint32_t lack;

			INSIST(kvtier_wait_layers(w->s.e.client, op, g, PATIENT_MS));
			lack = g == 0 ? lack_the_last_layer(w) : 0;
			most = lack > most ? lack : most;
			assert_group_is_there(w, g);
		}
		assert_int_equal(result_of(w, op).status, 0);
		for (uint32_t k = 0; k < BLOCKS; k++)
			assert_true(page_is(&w->s.e, w->pages[k], &w->keys[k], 0));
	}
	if (most < BLOCKS / 2)
		fail_msg("with the first group only %u of %d blocks lack the last layer", most,
			 BLOCKS);
}

/* Its op is made of the memory of the op that has ended. */
TEST(the_next_load_counts_its_groups_anew)
{
	struct world *w = *state;

	assert_int_equal(result_of(w, load(w, 0)).status, 0);
	groups_come_one_after_the_other(state);
}

TEST(a_load_that_has_ended_has_all_groups)
{
	struct world *w = *state;
	const uint64_t op = load(w, 0);

	while (kvtier_wait_layers(w->s.e.client, op, GROUPS - 1, 20) != 0)
		;
	assert_int_equal(kvtier_wait_layers(w->s.e.client, op, 0, 0), 0);
	assert_int_equal(result_of(w, op).status, 0);
	assert_int_equal(kvtier_wait_layers(w->s.e.client, op, 0, 0), -ENOENT);
}

/* The others' groups come, but no group is said to be there. */
TEST(a_load_that_misses_a_block_says_so)
{
	struct world *w = *state;
	const struct kvtier_key key = w->keys[BLOCKS / 2];
	uint64_t op;

	w->keys[BLOCKS / 2] = w->others[0];
	op = load(w, 0);
	w->keys[BLOCKS / 2] = key;
	INSIST(kvtier_wait_layers(w->s.e.client, op, 0, PATIENT_MS) == -ENODATA ? 0 : -EIO);
	assert_non_null(strstr(kvtier_last_error(), "has ended without group 0"));
	assert_int_equal(result_of(w, op).status, -ENOENT);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		assert_int_equal(w->blocks[i], i == BLOCKS / 2 ? -ENOENT : 0);
		assert_true(i == BLOCKS / 2 ? page_is_poison(&w->s.e, w->pages[i]) :
					      page_is(&w->s.e, w->pages[i], &w->keys[i], 0));
	}
}

/* Half of the blocks fit into host memory: each group of each block is brought again. */
TEST(blocks_on_disk_are_brought_for_each_group)
{
	struct world *w = *state;
	uint64_t op;

	if (!disk_dir())
		skip();
	engine_close(&w->s.e);
	daemon_remove(&w->s.d);
	begin_with(w, "[host]\nbytes = 16M\nslab_bytes = 2M\nhuge_pages = no\n"
		      "[nvme]\nbytes = 128M\nsegment_bytes = 2M\n");
	op = load(w, PATIENT_MS);
	for (uint32_t g = 0; g < GROUPS; g++) {
		INSIST(kvtier_wait_layers(w->s.e.client, op, g, PATIENT_MS));
		assert_group_is_there(w, g);
	}
	assert_int_equal(result_of(w, op).status, 0);
	daemon_stat_reaches(&w->s.d, "tiers.nvme.hit_blocks_total", 1);
}

TEST(images_can_be_verified_before_each_group)
{
	struct world *w = *state;
	uint64_t op;

	engine_close(&w->s.e);
	daemon_remove(&w->s.d);
	begin_with(w, "[host]\nbytes = 64M\nslab_bytes = 2M\nhuge_pages = no\nverify = always\n");
	op = load(w, PATIENT_MS);
	for (uint32_t g = 0; g < GROUPS; g++) {
		INSIST(kvtier_wait_layers(w->s.e.client, op, g, PATIENT_MS));
		assert_group_is_there(w, g);
	}
	assert_int_equal(result_of(w, op).status, 0);
}

static void assert_ended_early(struct world *w, uint64_t op, int status)
{
	struct kvtier_result r;

	assert_int_equal(kvtier_wait_layers(w->s.e.client, op, GROUPS - 1, PATIENT_MS), -ENODATA);
	r = result_of(w, op);
	assert_int_equal(r.status, status);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		assert_true(w->blocks[i] == 0 || w->blocks[i] == status);
		assert_true(w->blocks[i] == 0 ? page_is(&w->s.e, w->pages[i], &w->keys[i], 0) :
						page_is_part(&w->s.e, w->pages[i], &w->keys[i], 0));
		page_poison(&w->s.e, w->pages[i]);
	}
	nap_ms(20); /* nothing is touched from now on */
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(page_is_poison(&w->s.e, w->pages[i]));
}

TEST(a_cancel_ends_the_wait)
{
	struct world *w = *state;
	const uint64_t op = load(w, 0);

	INSIST(kvtier_wait_layers(w->s.e.client, op, 0, PATIENT_MS));
	assert_int_equal(kvtier_cancel(w->s.e.client, op, PATIENT_MS), 0);
	if (kvtier_wait_layers(w->s.e.client, op, GROUPS - 1, 0) == 0)
		skip(); /* a quick machine */
	assert_ended_early(w, op, -ECANCELED);
	daemon_stat_becomes(&w->s.d, "leases", 0, PATIENT_MS);
}

TEST(a_deadline_ends_the_wait)
{
	struct world *w = *state;
	uint64_t op = load(w, 0); /* the library has touched the pages now */

	for (uint32_t ms = 16;
	     kvtier_wait_layers(w->s.e.client, op, GROUPS - 1, PATIENT_MS) == 0 && ms > 0;
	     ms /= 2) {
		assert_int_equal(result_of(w, op).status, 0);
		op = load(w, ms);
	}
	assert_ended_early(w, op, -ETIMEDOUT);
}

struct waiter {
	struct world *w;
	uint64_t op;
	int r;
};

static void *wait_for_the_last(void *arg)
{
	struct waiter *waiter = arg;

	waiter->r = kvtier_wait_layers(waiter->w->s.e.client, waiter->op, GROUPS - 1, PATIENT_MS);
	return NULL;
}

TEST(a_daemons_death_ends_the_wait)
{
	struct world *w = *state;
	struct waiter waiter = { .w = w, .r = 1 };
	struct kvtier_result r;
	pthread_t thread;

	daemon_signal(&w->s.d, SIGSTOP);
	waiter.op = load(w, PATIENT_MS);
	assert_int_equal(pthread_create(&thread, NULL, wait_for_the_last, &waiter), 0);
	assert_int_equal(kvtier_wait_layers(w->s.e.client, waiter.op, 0, 50), -ETIMEDOUT);
	daemon_signal(&w->s.d, SIGKILL);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(waiter.r, -ENODATA);
	r = result_of(w, waiter.op);
	assert_int_equal(r.status, -ECONNRESET);
	assert_int_equal(r.ok, 0);
	daemon_restart(&w->s.d);
}

/* --- stores --- */

static uint64_t store(struct world *w, uint32_t timeout_ms)
{
	const struct kvtier_op_options o = { .size = sizeof(o),
					     .timeout_ms = timeout_ms,
					     .layer_groups = GROUPS };
	uint64_t op;

	for (uint32_t i = 0; i < BLOCKS; i++)
		page_poison(&w->s.e, i);
	assert_int_equal(kvtier_store(w->s.e.space, w->others, w->pages, BLOCKS, &o, &op), 0);
	return op;
}

static void give(struct world *w, uint64_t op, uint32_t group)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_fill_layers(&w->s.e, w->pages[i], &w->others[i], 0, first_layer(group),
				 first_layer(group + 1));
	assert_int_equal(kvtier_store_layers(w->s.e.client, op, group + 1, NULL), 0);
}

TEST(a_store_reads_what_it_was_given)
{
	struct world *w = *state;
	const uint64_t op = store(w, 0);

	for (uint32_t g = 0; g < GROUPS; g++) {
		assert_int_equal(kvtier_wait(w->s.e.client, op, 5, NULL), -ETIMEDOUT);
		assert_int_equal(engine_lookup(&w->s.e, w->others, BLOCKS), 0);
		give(w, op, g);
	}
	assert_int_equal(result_of(w, op).status, 0);
	assert_int_equal(chain_load(&w->s.e, w->others, 0, BLOCKS), BLOCKS);
}

/* The daemon holds nothing for it, and other ops go on. */
TEST(a_store_that_is_not_given_all_ends_at_its_deadline)
{
	struct world *w = *state;
	uint64_t op = load(w, 0); /* the library touches the pages: not in the 300 ms */

	assert_int_equal(result_of(w, op).status, 0);
	op = store(w, 300);
	for (uint32_t g = 0; g + 1 < GROUPS; g++)
		give(w, op, g);
	assert_int_equal(chain_load(&w->s.e, w->keys, 0, BLOCKS), BLOCKS);
	assert_int_equal(result_of(w, op).status, -ETIMEDOUT);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_int_equal(w->blocks[i], -ETIMEDOUT);
	assert_int_equal(engine_lookup(&w->s.e, w->others, BLOCKS), 0);
	daemon_stat_becomes(&w->s.d, "ops.outstanding", 0, PATIENT_MS);
	daemon_stat_becomes(&w->s.d, "leases", 0, PATIENT_MS);
}

TEST(a_store_can_be_cancelled_before_it_was_given_all)
{
	struct world *w = *state;
	const uint64_t op = store(w, PATIENT_MS);

	give(w, op, 0);
	assert_int_equal(kvtier_cancel(w->s.e.client, op, PATIENT_MS), 0);
	assert_int_equal(kvtier_store_layers(w->s.e.client, op, GROUPS, NULL), 0);
	assert_int_equal(result_of(w, op).status, -ECANCELED);
	assert_int_equal(engine_lookup(&w->s.e, w->others, BLOCKS), 0);
}

/* --- both --- */

TEST(staged_pages_have_all_groups_at_the_end)
{
	struct world *w = *state;
	const struct kvtier_op_options o = { .size = sizeof(o), .layer_groups = GROUPS };
	const struct kvtier_geometry g = geometry();
	struct engine e;
	uint64_t op;

	engine_open_staged(&e, w->s.d.socket, "staged", &g, PAGES, 8 * engine_page_bytes(&g));
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_poison(&e, w->pages[i]);
	assert_int_equal(kvtier_store(e.space, w->others, w->pages, BLOCKS, &o, &op), 0);
	for (uint32_t i = 1; i <= GROUPS; i++) {
		assert_int_equal(kvtier_wait(e.client, op, 2, NULL), -ETIMEDOUT);
		for (uint32_t k = 0; k < BLOCKS; k++)
			page_fill_layers(&e, w->pages[k], &w->others[k], 0, first_layer(i - 1),
					 first_layer(i));
		assert_int_equal(kvtier_store_layers(e.client, op, i, NULL), 0);
	}
	assert_int_equal(kvtier_wait(e.client, op, PATIENT_MS, NULL), 0);
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_poison(&e, w->pages[i]);
	assert_int_equal(kvtier_load(e.space, w->others, w->pages, BLOCKS, &o, &op), 0);
	INSIST(kvtier_wait_layers(e.client, op, 0, PATIENT_MS));
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(page_is(&e, w->pages[i], &w->others[i], 0));
	assert_int_equal(kvtier_wait(e.client, op, 0, NULL), 0);
	engine_close(&e);
}

static void assert_refused(int r, int error, const char *words)
{
	assert_int_equal(r, error);
	if (!strstr(kvtier_last_error(), words))
		fail_msg("not \"%s\" in \"%s\"", words, kvtier_last_error());
}

TEST(limits_are_named)
{
	struct world *w = *state;
	struct kvtier_client *c = w->s.e.client;
	struct kvtier_op_options o = { .size = sizeof(o), .layer_groups = 129 };
	uint64_t op;

	assert_refused(kvtier_load(w->s.e.space, w->keys, w->pages, 1, &o, &op), -EINVAL,
		       "options.layer_groups is 129, must be at most 128");
	o.layer_groups = LAYERS + 1;
	assert_refused(kvtier_store(w->s.e.space, w->keys, w->pages, 1, &o, &op), -EINVAL,
		       "options.layer_groups is 17, must be at most the layers of the space, 16");
	op = load(w, 0);
	assert_refused(kvtier_wait_layers(c, op, GROUPS, 0), -EINVAL, "group is 7: op ");
	assert_refused(kvtier_wait_layers(c, op, UINT32_MAX, 0), -EINVAL, "must be less than 128");
	assert_refused(kvtier_store_layers(c, op, 1, NULL), -EINVAL, "groups is 1: must be");
	assert_refused(kvtier_stream_wait_layers(c, op, GROUPS, NULL), -EINVAL, "group is 7: op ");
	assert_int_equal(result_of(w, op).status, 0);
	assert_refused(kvtier_store_layers(c, op, 1, NULL), -ENOENT, "no op ");
	op = store(w, PATIENT_MS);
	assert_refused(kvtier_store_layers(c, op, 0, NULL), -EINVAL, "groups is 0: must be 1 to");
	assert_refused(kvtier_store_layers(c, op, GROUPS + 1, NULL), -EINVAL, "which for op");
	assert_refused(kvtier_store_layers(c, op, 1, w), -EINVAL, "not KVTIER_CUDA");
	assert_refused(kvtier_wait_layers(c, op, 0, 0), -EINVAL, "is no load");
	assert_int_equal(kvtier_cancel(c, op, PATIENT_MS), 0);
	(void)result_of(w, op);
}
