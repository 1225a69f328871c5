/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_quiesce.c - goal: a space that is quiesced lends no page and keeps its identity; resumed over
 * the same memory or over other memory it finds its blocks again. Method: a real daemon whose
 * mappings are counted, shared and staged pages, ops in flight, a daemon that dies meanwhile.
 */
#include "tests/lib/lib.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCKS = 64, DEADLINE_MS = 20000 };

static const char config[] = "[host]\nbytes = 48M\nslab_bytes = 2M\nhuge_pages = no\n"
			     "[device]\nworkers = 1\nkernels = ref\n"; /* slow: ops are in flight */

struct world {
	struct daemon d;
	struct engine e;
	struct kvtier_key keys[BLOCKS];
};

FIXTURE(set_up)
{
	static struct world w;

	memset(&w, 0, sizeof(w));
	daemon_start(&w.d, config);
	*state = &w;
	return 0;
}

static void open_shared(struct world *w)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_RAW);

	engine_open(&w->e, w->d.socket, "quiet", &g, 2 * BLOCKS);
	chain_keys(&w->e, 1, BLOCKS, w->keys);
	assert_int_equal(chain_store(&w->e, w->keys, 0, BLOCKS), 0);
}

static struct kvtier_region region_of(const struct world *w, int fd)
{
	return (struct kvtier_region){ .size = sizeof(struct kvtier_region),
				       .memory = KVTIER_MEMFD,
				       .fd = fd,
				       .length = w->e.pages * w->e.page_bytes };
}

FIXTURE(tear_down)
{
	struct world *w = *state;

	engine_close(&w->e);
	daemon_remove(&w->d);
	return 0;
}

TEST_EACH(set_up, tear_down);

static void assert_takes_nothing(struct world *w)
{
	uint32_t page = 0;
	uint64_t op = 7;

	assert_int_equal(engine_lookup(&w->e, w->keys, BLOCKS), 0);
	assert_int_equal(kvtier_load(w->e.space, w->keys, &page, 1, NULL, &op), -ENOTCONN);
	assert_int_equal(kvtier_store(w->e.space, w->keys, &page, 1, NULL, &op), -ENOTCONN);
	assert_int_equal(op, 7);
}

TEST(a_quiet_space_is_unmapped_and_takes_nothing)
{
	struct world *w = *state;

	open_shared(w);
	daemon_maps_become(&w->d, "memfd:engine", 1, DEADLINE_MS);
	assert_int_equal(kvtier_space_quiesce(w->e.space), 0);
	daemon_maps_become(&w->d, "memfd:engine", 0, DEADLINE_MS);
	assert_takes_nothing(w);
}

TEST(it_comes_back_over_other_memory)
{
	struct world *w = *state;
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_RAW);
	const int fd = memfd_make(2 * BLOCKS * engine_page_bytes(&g), F_SEAL_SHRINK);
	struct kvtier_region region;

	open_shared(w);
	region = region_of(w, fd);
	assert_int_equal(kvtier_space_quiesce(w->e.space), 0);
	assert_int_equal(kvtier_space_resume(w->e.space, &region, 1), 0);
	(void)munmap(w->e.memory, region.length);
	w->e.memory = mmap(NULL, region.length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(w->e.memory != MAP_FAILED);
	assert_int_equal(engine_lookup(&w->e, w->keys, BLOCKS), BLOCKS);
	assert_int_equal(chain_load(&w->e, w->keys, 0, BLOCKS), BLOCKS);
	(void)close(fd);
}

TEST(staged_pages_come_back_without_regions)
{
	struct world *w = *state;
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_RAW);

	engine_open_staged(&w->e, w->d.socket, "quiet", &g, 2 * BLOCKS, 1 << 20);
	chain_keys(&w->e, 1, BLOCKS, w->keys);
	assert_int_equal(chain_store(&w->e, w->keys, 0, BLOCKS), 0);
	assert_int_equal(kvtier_space_quiesce(w->e.space), 0);
	daemon_maps_become(&w->d, "memfd:kvtier-staging", 0, DEADLINE_MS);
	assert_takes_nothing(w);
	assert_int_equal(kvtier_space_resume(w->e.space, NULL, 0), 0);
	assert_int_equal(chain_load(&w->e, w->keys, BLOCKS, BLOCKS), BLOCKS);
}

TEST(ops_in_flight_end_before_it_is_quiet)
{
	struct world *w = *state;
	uint32_t pages[BLOCKS];
	int32_t blocks[BLOCKS];
	struct kvtier_result result = { .size = sizeof(result),
					.blocks = blocks,
					.blocks_max = BLOCKS };
	uint64_t op;

	open_shared(w);
	pages_from(BLOCKS, pages, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_poison(&w->e, pages[i]);
	assert_int_equal(kvtier_load(w->e.space, w->keys, pages, BLOCKS, NULL, &op), 0);
	assert_int_equal(kvtier_space_quiesce(w->e.space), 0);
	assert_int_equal(kvtier_lent(w->e.client, NULL, 0), 0);
	assert_int_equal(kvtier_wait(w->e.client, op, 0, &result), 0);
	assert_int_equal(result.ok, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(page_is(&w->e, pages[i], &w->keys[i], 0));
}

TEST(what_is_refused)
{
	struct world *w = *state;
	struct kvtier_region two[2];

	open_shared(w);
	two[0] = two[1] = region_of(w, w->e.fd);
	assert_int_equal(kvtier_space_resume(w->e.space, two, 1), -EINVAL);
	assert_non_null(strstr(kvtier_last_error(), "not quiesced"));
	assert_int_equal(kvtier_space_quiesce(w->e.space), 0);
	assert_int_equal(kvtier_space_quiesce(w->e.space), -EINVAL);
	assert_int_equal(kvtier_space_resume(w->e.space, two, 2), -EINVAL);
	assert_non_null(strstr(kvtier_last_error(), "n_regions is 2"));
	assert_int_equal(kvtier_space_resume(w->e.space, NULL, 0), -EINVAL);
	two[0].memory = KVTIER_PRIVATE;
	assert_int_equal(kvtier_space_resume(w->e.space, two, 1), -EINVAL);
	two[0] = two[1];
	two[0].length = 4096; /* too small for a page */
	assert_int_equal(kvtier_space_resume(w->e.space, two, 1), -EINVAL);
	assert_takes_nothing(w);
	assert_int_equal(kvtier_space_resume(w->e.space, two + 1, 1), 0);
	assert_int_equal(chain_load(&w->e, w->keys, 0, BLOCKS), BLOCKS);
}

TEST(a_daemon_that_died_meanwhile_is_met_again)
{
	struct world *w = *state;
	struct kvtier_region region;
	int r;

	open_shared(w);
	region = region_of(w, w->e.fd);
	assert_int_equal(kvtier_space_quiesce(w->e.space), 0);
	daemon_signal(&w->d, SIGKILL);
	assert_int_equal(kvtier_space_resume(w->e.space, &region, 1), -ENOTCONN);
	daemon_restart(&w->d);
	for (const uint64_t end = now_ns() + DEADLINE_MS * 1000000ull;;) {
		r = kvtier_space_resume(w->e.space, &region, 1);
		if (r != -ENOTCONN || now_ns() > end)
			break;
		nap_ms(20); /* the library waits between two attempts */
	}
	assert_int_equal(r, 0);
	assert_int_equal(chain_store(&w->e, w->keys, 0, BLOCKS), 0);
	assert_int_equal(chain_load(&w->e, w->keys, BLOCKS, BLOCKS), BLOCKS);
}
