/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (but for who is woken it has one thread) wrap=syscall */
/*
 * unit_ring.c - goal: the daemon's end of the rings takes entries once and in order over any wrap,
 * believes no index, wakes who sleeps, and its memory is sealed as wire.h says. Method: the test is
 * the client, on a second mapping of the same memfds. Threads asleep are real where one is woken,
 * and a number behind syscall() where many are.
 */
#include <linux/futex.h>

#include "daemon/session/ring.h"
#include "tests/lib/test.h"
#include "tests/lib/wrap.h"

enum { ENTRIES = 8, ARENA = 64 };

struct pair {
	struct ring ring;
	struct wire_submit *submit; /* the client's mappings */
	const struct wire_complete *complete;
};

static struct pair p;

FIXTURE(set_up)
{
	assert_int_equal(ring_open(&p.ring, ENTRIES, ARENA), 0);
	p.submit = mmap(NULL, p.ring.submit_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
			p.ring.submit_fd, 0);
	p.complete =
		mmap(NULL, p.ring.complete_bytes, PROT_READ, MAP_SHARED, p.ring.complete_fd, 0);
	assert_ptr_not_equal(p.submit, MAP_FAILED);
	assert_ptr_not_equal(p.complete, MAP_FAILED);
	return 0;
}

FIXTURE(tear_down)
{
	(void)munmap(p.submit, p.ring.submit_bytes);
	(void)munmap((void *)(uintptr_t)p.complete, p.ring.complete_bytes);
	ring_close(&p.ring);
	ring_close(&p.ring); /* twice is fine */
	return 0;
}

TEST_EACH(set_up, tear_down);

static struct wire_sqe *entry_at(uint32_t i)
{
	return (struct wire_sqe *)(void *)((char *)p.submit + WIRE_RING_OFFSET) +
	       (i & (ENTRIES - 1));
}

static const struct wire_cqe *completion_at(uint32_t i)
{
	return (const struct wire_cqe *)(const void *)((const char *)p.complete +
						       WIRE_RING_OFFSET) +
	       (i & (ENTRIES - 1));
}

TEST(entries_come_once_and_in_order)
{
	struct wire_sqe e;

	/* Indices run through 2^32. */
	p.ring.sq_head = p.submit->sq_tail = 0xfffffff0;
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(ring_peek(&p.ring, &e), 0);
		entry_at(p.submit->sq_tail)->op_id = i + 1;
		p.submit->sq_tail++;
		assert_int_equal(ring_peek(&p.ring, &e), 1);
		assert_int_equal(ring_peek(&p.ring, &e), 1); /* looking takes nothing */
		assert_int_equal(e.op_id, i + 1);
		ring_advance(&p.ring);
		assert_int_equal(p.complete->sq_head, p.submit->sq_tail);
	}
}

TEST(full_ring_is_fine_one_more_is_not)
{
	struct wire_sqe e;

	p.submit->sq_tail = ENTRIES;
	assert_int_equal(ring_peek(&p.ring, &e), 1);
	p.submit->sq_tail = ENTRIES + 1;
	assert_int_equal(ring_peek(&p.ring, &e), -EPROTO);
	p.submit->sq_tail = 0xffffffff; /* backwards */
	assert_int_equal(ring_peek(&p.ring, &e), -EPROTO);
}

TEST(copy_is_private)
{
	struct wire_sqe e;

	entry_at(0)->n = 5;
	p.submit->sq_tail = 1;
	assert_int_equal(ring_peek(&p.ring, &e), 1);
	entry_at(0)->n = 500;
	assert_int_equal(e.n, 5);
}

TEST(completions_wrap)
{
	p.ring.cq_tail = 0xfffffffa;
	p.submit->cq_head = 0xfffffffa;
	for (uint32_t i = 0; i < 30; i++) {
		const struct wire_cqe cqe = { .op_id = i + 1, .status = -5, .n = i };
		uint32_t room = 0;

		assert_int_equal(ring_room(&p.ring, 0, &room), 0);
		assert_int_equal(room, ENTRIES);
		assert_false(ring_complete(&p.ring, &cqe));
		assert_int_equal(p.complete->cq_tail, p.submit->cq_head + 1);
		assert_memory_equal(completion_at(p.submit->cq_head), &cqe, sizeof(cqe));
		p.submit->cq_head++;
	}
}

TEST(room_counts_untaken_and_outstanding)
{
	const struct wire_cqe cqe = { .op_id = 1 };
	uint32_t room;

	for (uint32_t i = 0; i < 3; i++)
		(void)ring_complete(&p.ring, &cqe);
	assert_int_equal(ring_room(&p.ring, 2, &room), 0);
	assert_int_equal(room, ENTRIES - 5);
	assert_int_equal(ring_room(&p.ring, ENTRIES - 3, &room), 0);
	assert_int_equal(room, 0);
	assert_int_equal(ring_room(&p.ring, 100, &room), 0);
	assert_int_equal(room, 0);
}

TEST(heads_that_cannot_be)
{
	uint32_t room;

	p.submit->cq_head = 1; /* took one that never came */
	assert_int_equal(ring_room(&p.ring, 0, &room), -EPROTO);
	p.ring.cq_tail = ENTRIES + 1;
	p.submit->cq_head = 0;
	assert_int_equal(ring_room(&p.ring, 0, &room), -EPROTO);
}

TEST(arrays_lie_where_the_client_thinks)
{
	uint8_t *keys = (uint8_t *)p.submit + wire_keys_offset(ENTRIES);
	uint32_t *pages =
		(uint32_t *)(void *)((char *)p.submit + wire_pages_offset(ENTRIES, ARENA));
	const int32_t *statuses = (const int32_t *)(const void *)((const char *)p.complete +
								  wire_status_offset(ENTRIES));
	uint8_t key[WIRE_KEY_BYTES];

	for (uint32_t i = 0; i < ARENA; i++) {
		memset(keys + i * WIRE_KEY_BYTES, (int)i + 1, WIRE_KEY_BYTES);
		pages[i] = i * 7;
		ring_set_status(&p.ring, i, -(int32_t)i);
	}
	for (uint32_t i = 0; i < ARENA; i++) {
		ring_key(&p.ring, i, key);
		assert_memory_equal(key, keys + i * WIRE_KEY_BYTES, sizeof(key));
		assert_int_equal(ring_page(&p.ring, i), i * 7);
		assert_int_equal(statuses[i], -(int32_t)i);
		assert_int_equal(ring_status(&p.ring, i), -(int32_t)i);
	}
}

TEST(wake_only_when_asked)
{
	const struct wire_cqe cqe = { .op_id = 1 };

	assert_false(ring_complete(&p.ring, &cqe));
	p.submit->want_wake = 1;
	assert_true(ring_complete(&p.ring, &cqe));
	p.submit->sleepers = 0xffffffff; /* costs a futex call, nothing else */
	assert_true(ring_complete(&p.ring, &cqe));
}

/* Woken, or too late to sleep at all: 0. */
static void *sleep_on_news(TEST_UNUSED void *arg)
{
	const struct timespec patience = { .tv_sec = PATIENT_MS / 1000 };
	long r;

	(void)__atomic_fetch_add(&p.submit->sleepers, 1, __ATOMIC_SEQ_CST);
	r = syscall(SYS_futex, &p.complete->news, FUTEX_WAIT, 0, &patience, NULL, 0);
	return r == 0 || errno == EAGAIN ? NULL : &p;
}

static void who_sleeps_is_woken_by(void (*event)(struct ring *ring))
{
	pthread_t thread;
	void *failed;

	assert_int_equal(p.complete->news, 0);
	assert_int_equal(pthread_create(&thread, NULL, sleep_on_news, &p), 0);
	AWAIT(__atomic_load_n(&p.submit->sleepers, __ATOMIC_SEQ_CST) > 0);
	event(&p.ring);
	assert_int_equal(pthread_join(thread, &failed), 0);
	assert_null(failed);
	assert_int_equal(p.complete->news, 1);
}

static void a_group(struct ring *ring)
{
	ring_set_layers(ring, 3, 1);
}

static void a_completion(struct ring *ring)
{
	const struct wire_cqe cqe = { .op_id = 1 };

	ring_set_layers(ring, 3, 0); /* nobody waits for that */
	(void)ring_complete(ring, &cqe);
}

TEST_DO(a_group_of_layers_wakes_who_sleeps, who_sleeps_is_woken_by(a_group));
TEST_DO(a_completion_wakes_who_sleeps, who_sleeps_is_woken_by(a_completion));

/* --- many sleepers --- */

enum { MOST = 256, ROUNDS = 10000 };

static struct {
	bool on;
	uint32_t asleep, woken;
} futex;

REAL(long, syscall, (long number, ...))
{
	va_list args;
	long a[6];
	uint32_t n;

	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if (!futex.on)
		return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	assert_int_equal(number, SYS_futex);
	assert_int_equal((int)a[1], FUTEX_WAKE);
	n = (uint32_t)a[2] < futex.asleep ? (uint32_t)a[2] : futex.asleep;
	futex.asleep -= n;
	futex.woken += n;
	return n;
}

FIXTURE(many_set_up)
{
	const int r = set_up(state);

	p.submit->sleepers = 1;
	futex.on = true;
	futex.asleep = futex.woken = 0;
	return r;
}

FIXTURE(many_tear_down)
{
	futex.on = false;
	return tear_down(state);
}

static void complete(void)
{
	const struct wire_cqe cqe = { .op_id = 1 };

	(void)ring_complete(&p.ring, &cqe);
}

TEST_WITH(an_iteration_wakes_so_many_and_the_next_as_many, many_set_up, many_tear_down)
{
	futex.asleep = 10 * MOST;
	for (int i = 0; i < 64; i++)
		complete();
	assert_int_equal(futex.woken, MOST);
	ring_iteration(&p.ring);
	assert_int_equal(futex.woken, 2 * MOST);
	complete(); /* in an iteration that has paid already */
	assert_int_equal(futex.woken, 2 * MOST);
	for (int i = 0; i < 5; i++)
		ring_iteration(&p.ring);
	assert_int_equal(futex.woken, 3 * MOST);
	complete();
	ring_iteration(&p.ring); /* one completion owes nothing */
	assert_int_equal(futex.woken, 4 * MOST);
}

/* However often the threads of an honest client go to sleep in an iteration, all that slept when
 * news came are awake in the next one. */
TEST_WITH(nobody_is_forgotten, many_set_up, many_tear_down)
{
	struct random random = random_seeded("unit_ring");

	for (uint32_t round = 0; round < ROUNDS; round++) {
		const uint32_t news = 1 + random_below(&random, 4);
		const uint32_t before = futex.woken;

		for (uint32_t i = 0; i < news; i++) {
			futex.asleep += random_below(&random, MOST + 1 - futex.asleep);
			complete();
		}
		assert_in_range(futex.woken - before, 0, MOST);
		ring_iteration(&p.ring);
		assert_int_equal(futex.asleep, 0);
		ring_iteration(&p.ring); /* nothing told: all room for the next round */
	}
}

TEST(client_cannot_write_completions)
{
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, p.ring.complete_fd,
			      0),
			 MAP_FAILED);
	assert_int_equal(pwrite(p.ring.complete_fd, "x", 1, 0), -1);
	assert_int_equal(mprotect((void *)(uintptr_t)p.complete, 4096, PROT_READ | PROT_WRITE), -1);
}

TEST(memory_keeps_its_size)
{
	assert_int_equal(ftruncate(p.ring.submit_fd, 0), -1);
	assert_int_equal(ftruncate(p.ring.submit_fd, 1 << 24), -1);
	assert_int_equal(ftruncate(p.ring.complete_fd, 0), -1);
	assert_int_equal(fcntl(p.ring.submit_fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(lookups_grow_or_are_not_believed)
{
	struct wire_lookups *l = &p.submit->lookups[3], n;

	*l = (struct wire_lookups){ .blocks = 100, .hits = 60, .nvme_hits = 20, .tokens = 1600 };
	ring_sample_lookups(&p.ring, 3, &n);
	assert_int_equal(n.blocks, 100);
	assert_int_equal(n.hits, 60);
	assert_int_equal(n.nvme_hits, 20);
	assert_int_equal(n.tokens, 1600);
	ring_sample_lookups(&p.ring, 3, &n);
	assert_int_equal(n.blocks + n.hits + n.nvme_hits + n.tokens, 0);
	l->blocks = 3;        /* backwards */
	l->hits = 1ull << 60; /* more than anybody could ask */
	ring_sample_lookups(&p.ring, 3, &n);
	assert_int_equal(n.blocks + n.hits, 0);
	l->blocks = 100; /* and forwards again: no news */
	l->hits = 101;   /* more than there were lookups */
	ring_sample_lookups(&p.ring, 3, &n);
	assert_int_equal(n.blocks + n.hits, 0);
	l->blocks = 103;
	l->hits = 61;
	ring_sample_lookups(&p.ring, 3, &n);
	assert_int_equal(n.blocks, 3);
	assert_int_equal(n.hits, 1);
}

/* A lookup counts its blocks last: what the daemon sees of one that is under way is not lost. */
TEST(hits_that_come_before_their_blocks_are_counted_with_them)
{
	struct wire_lookups *l = &p.submit->lookups[3], n;

	l->gpu_hits = 5;
	l->hits = 8;
	ring_sample_lookups(&p.ring, 3, &n);
	assert_int_equal(n.gpu_hits + n.hits + n.blocks, 0);
	l->blocks = 10;
	ring_sample_lookups(&p.ring, 3, &n);
	assert_int_equal(n.blocks, 10);
	assert_int_equal(n.hits, 8);
	assert_int_equal(n.gpu_hits, 5);
}

TEST(rubbish_in_the_lookup_counters_is_bounded)
{
	struct random random = random_seeded("unit_ring");
	uint64_t all_blocks = 0, *const words = (uint64_t *)&p.submit->lookups[3];
	struct wire_lookups n;

	for (int i = 0; i < 10000; i++) {
		for (size_t word = 0; word < sizeof(n) / sizeof(*words); word++)
			words[word] = random_next(&random) >> random_below(&random, 64);
		ring_sample_lookups(&p.ring, 3, &n);
		assert_true(n.blocks < 1ull << 40 && n.hits <= n.blocks);
		assert_true(n.gpu_hits <= n.hits && n.nvme_hits <= n.hits - n.gpu_hits);
		assert_true(n.redis_hits <= n.hits - n.gpu_hits - n.nvme_hits);
		assert_true(n.tokens < 1ull << 40 && n.hit_tokens <= n.tokens);
		assert_true(n.calls < 1ull << 40);
		all_blocks += n.blocks;
		assert_true(all_blocks <= UINT64_MAX / 2); /* no iteration goes round */
	}
}
