/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=mmap,munmap,mbind,madvise,mlock2,pthread_create,pthread_join,calloc */
/*
 * Goal: when the system refuses anything while the host tier opens, the answer is that -errno with
 * a text, and nothing is left behind. A later refusal is a visible state. Method: the linker puts
 * the functions below in front of the system's (-Wl,--wrap=NAME); the n-th call fails, n = 1..
 * until an open needs fewer calls. Descriptors and threads are counted, memory is ASan's to watch.
 */

#include "base/thread.h"
#include "tests/lib/lib_refuse.h"
#include "tests/lib/test.h"
#include "tiers/slabs.h"

enum { KIB = 1024, SLABS = 8 };

enum call { MBIND, MADVISE, MLOCK2, PTHREAD_CREATE, CALLOC, MMAP = REFUSE_MMAP };

REFUSABLE(MBIND, -1, long, mbind,
	  (void *at, unsigned long n, int mode, const unsigned long *mask, unsigned long max,
	   unsigned int flags),
	  (at, n, mode, mask, max, flags))
REFUSABLE(MLOCK2, -1, int, mlock2, (const void *at, size_t n, unsigned int flags), (at, n, flags))
REFUSABLE(CALLOC, NULL, void *, calloc, (size_t n, size_t size), (n, size))

/* While set, all threads but the opening one wait here. */
static atomic_bool stall;
static pthread_t opener;

REAL(int, madvise, (void *at, size_t n, int advice))
{
	while (atomic_load(&stall) && !pthread_equal(pthread_self(), opener))
		(void)nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	return refused(MADVISE) ? -1 : __real_madvise(at, n, advice);
}

/* Threads are counted here: /proc shows a joined one for a moment longer. */
static int threads;

REAL(int, pthread_create,
     (pthread_t * ret, const pthread_attr_t *attr, void *(*fn)(void *), void *arg))
{
	const int refusal = refused(PTHREAD_CREATE);
	const int err = refusal ? refusal : __real_pthread_create(ret, attr, fn, arg);

	threads += !err;
	return err;
}

REAL(int, pthread_join, (pthread_t thread, void **ret))
{
	threads--;
	return __real_pthread_join(thread, ret);
}

static struct tier *t;
static char text[TIER_TEXT_BYTES]; /* of the last open_host() */

static int open_host(const struct tier_conf *conf)
{
	text[0] = '\0';
	return tier_open(TIER_HOST, conf, NULL, &t, text, sizeof(text));
}

static void settle(void)
{
	while (tier_state(t) == TIER_STARTING)
		(void)nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

/* Every use of `call` in open fails once; `uses` is how many there are. */
static void each_use_fails(int call, const struct tier_conf *conf, int err, int uses)
{
	const int fds = descriptors_open(), maps = mappings_open;

	for (int n = 1; n <= uses + 1; n++) {
		refuse(call, n, 1, err);
		if (n <= uses) {
			assert_int_equal(open_host(conf), -err);
			assert_memory_equal(text, "[host] ", 7);
			assert_true(refuse_came());
		} else {
			assert_int_equal(open_host(conf), 0);
			tier_close(t);
			refuse_nothing();
		}
		assert_int_equal(descriptors_open(), fds);
		assert_int_equal(mappings_open, maps);
		assert_int_equal(threads, 0);
	}
}

/* Where it may be used at all. */
static void the_use_fails(int call, const struct tier_conf *conf, int err)
{
	if (open_host(conf))
		skip();
	tier_close(t);
	each_use_fails(call, conf, err, 1);
}

static const struct tier_conf plain = { .bytes = SLABS * 64 * KIB, .slab_bytes = 64 * KIB };

TEST(no_mapping)
{
	each_use_fails(MMAP, &plain, ENOMEM, 2); /* the memory, the table of slots */
}

TEST(no_policy)
{
	struct tier_conf conf = plain;

	conf.n_nodes = 1;
	conf.nodes[0] = (struct tier_node){ .node = 0, .bytes = conf.bytes };
	the_use_fails(MBIND, &conf, EIO); /* else no NUMA here, or no node 0 */
}

TEST(no_lock)
{
	struct tier_conf conf = plain;

	conf.lock = true;
	the_use_fails(MLOCK2, &conf, ENOMEM); /* else this process may not lock half a megabyte */
}

TEST(no_thread)
{
	const uint32_t cpus = thread_cpus(), most = SLABS - 1;

	each_use_fails(PTHREAD_CREATE, &plain, EAGAIN, (int)(cpus < most ? cpus : most));
}

TEST(no_heap)
{
	/* host, memory, states, nodes, slabs, their table, the heads of their lists */
	each_use_fails(CALLOC, &plain, ENOMEM, 7);
}

TEST(dumped_or_no_first_slab)
{
	/* to be left out of core dumps, to be there */
	each_use_fails(MADVISE, &plain, ENOMEM, 2);
}

TEST(populate_unknown_to_the_kernel)
{
	/* all but the first, which asks for something else */
	refuse(MADVISE, 2, REFUSE_FOREVER, EINVAL);
	assert_int_equal(open_host(&plain), 0);
	settle();
	assert_int_equal(tier_state(t), TIER_UP);
	assert_int_equal(slabs_free_slabs(tier_slabs(t)), SLABS);
	refuse_nothing();
	tier_close(t);
}

TEST(memory_lost_after_the_start_shows)
{
	struct extent where;
	int slots = 0;

	refuse(MADVISE, 3, 1, ENOMEM); /* one of the slabs after the first */
	assert_int_equal(open_host(&plain), 0);
	settle();
	assert_int_equal(tier_state(t), TIER_DEGRADED);
	while (!tier_alloc(t, 64 * KIB, &where))
		slots++;
	assert_int_equal(slots, SLABS - 1);
	assert_int_equal(t->capacity_bytes, (SLABS - 1) * 64 * KIB);
	tier_close(t);
}

/* Stores right after the start do not wait, and their bytes survive the faulting in (by touch,
 * too). */
TEST(slabs_are_usable_before_they_are_faulted_in)
{
	struct extent where[SLABS];

	for (int touch = 0; touch < 2; touch++) {
		opener = pthread_self();
		atomic_store(&stall, true);
		assert_int_equal(open_host(&plain), 0);
		for (int i = 0; i < SLABS; i++) {
			assert_int_equal(tier_alloc(t, 64 * KIB, &where[i]), 0);
			memset(tier_address(t, &where[i]), i + 1, 64 * KIB);
		}
		assert_int_equal(tier_alloc(t, 64 * KIB, &where[0]), -ENOSPC);
		assert_int_equal(tier_state(t), TIER_STARTING);
		refuse(MADVISE, 1, touch ? REFUSE_FOREVER : 0, EINVAL);
		atomic_store(&stall, false);
		settle();
		for (int i = 0; i < SLABS; i++)
			for (int k = 0; k < 64 * KIB; k++)
				assert_int_equal(tier_address(t, &where[i])[k], i + 1);
		refuse_nothing();
		assert_int_equal(tier_state(t), TIER_UP);
		tier_close(t);
	}
}
