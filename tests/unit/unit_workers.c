/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_workers.c - goal: work that is lent to a pool is run once and given back once, in any order
 * of ends. The pool ends its work when it is closed. It grows while its threads block, and keeps
 * the order it was given. It wakes its owner once for several works that end close to each other,
 * and never makes its owner wait for a thread. A mailbox loses nothing. Method: works that say
 * when they begin and go on when they are told, by semaphores: so the test knows without a clock
 * which work a thread did before its next work began.
 */
#include <semaphore.h>

#include "base/list.h"
#include "base/loop.h"
#include "base/workers.h"
#include "tests/lib/test.h"

enum { MANY = 5000, SOME = 12 };

struct item {
	struct work work;
	uint32_t runs, dones, again; /* again: so many times it is not ended yet */
	pthread_t thread;            /* that ran it */
	sem_t begun, go;
};

static struct item items[MANY];
static struct loop *loop;
static struct workers *pool;
static uint32_t n_done, n_wanted;
static uint32_t order_of[SOME], n_order;

static struct item *item_of(const struct work *work)
{
	return container_of(work, struct item, work);
}

static enum work_end run_fast(struct work *work, uint32_t thread)
{
	struct item *i = item_of(work);

	(void)thread;
	i->runs++;
	return i->again-- > 0 ? WORK_AGAIN : WORK_ENDED;
}

static enum work_end run_gated(struct work *work, uint32_t thread)
{
	struct item *i = item_of(work);

	(void)thread;
	i->thread = pthread_self();
	assert_int_equal(sem_post(&i->begun), 0);
	while (sem_wait(&i->go))
		assert_int_equal(errno, EINTR);
	i->runs++;
	return WORK_ENDED;
}

static void done(struct work *work)
{
	item_of(work)->dones++;
	if (n_order < SOME)
		order_of[n_order++] = (uint32_t)(item_of(work) - items);
	if (++n_done == n_wanted && loop)
		loop_stop(loop);
}

static void make(uint32_t n, enum work_end (*run)(struct work *work, uint32_t thread))
{
	assert_true(n <= MANY);
	n_done = n_order = 0;
	n_wanted = n;
	for (uint32_t i = 0; i < n; i++) {
		items[i] = (struct item){ .work = { .run = run, .done = done } };
		assert_int_equal(sem_init(&items[i].begun, 0, 0), 0);
		assert_int_equal(sem_init(&items[i].go, 0, 0), 0);
	}
}

static void open_pool(const struct workers_conf *conf)
{
	assert_int_equal(workers_open(conf, &pool), 0);
}

static void begun(uint32_t i)
{
	while (sem_wait(&items[i].begun))
		assert_int_equal(errno, EINTR);
}

static void go(uint32_t i)
{
	assert_int_equal(sem_post(&items[i].go), 0);
}

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* Until so many have been reaped. */
static void reap(uint32_t n)
{
	struct pollfd p = { .fd = workers_fd(pool), .events = POLLIN };

	while (n_done < n) {
		assert_int_equal(poll(&p, 1, -1), 1);
		(void)workers_reap(pool, UINT32_MAX);
	}
}

static void expect_each_once(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(items[i].runs, 1);
		assert_int_equal(items[i].dones, 1);
	}
	assert_int_equal(workers_lent(pool), 0);
}

/* --- tests --- */

TEST(each_once_in_a_loop)
{
	assert_int_equal(loop_open(0, &loop), 0);
	open_pool(&(struct workers_conf){ .loop = loop, .threads = 4, .keep = 4 });
	make(MANY, run_fast);
	for (uint32_t i = 0; i < MANY; i++)
		workers_submit(pool, &items[i].work);
	assert_int_equal(n_done, 0); /* never inside submit */
	assert_int_equal(loop_run(loop), 0);
	expect_each_once(MANY);
	workers_close(pool);
	loop_close(loop);
	loop = NULL;
}

TEST(each_once_by_reaping)
{
	open_pool(&(struct workers_conf){ .threads = 3, .keep = 3 });
	make(MANY, run_fast);
	for (uint32_t i = 0; i < MANY; i++)
		workers_submit(pool, &items[i].work);
	while (n_done < MANY)
		assert_true(workers_reap(pool, 7) <= 7);
	expect_each_once(MANY);
	workers_close(pool);
}

static void *open_gates(TEST_UNUSED void *unused)
{
	for (uint32_t i = 0; i < SOME; i++)
		go(i);
	return NULL;
}

/* Running and waiting work is run; nothing is given back any more. */
TEST(a_stop_while_busy)
{
	pthread_t opener;

	open_pool(&(struct workers_conf){ .threads = 2, .keep = 2 });
	make(SOME, run_gated);
	for (uint32_t i = 0; i < SOME; i++)
		workers_submit(pool, &items[i].work);
	begun(0);
	begun(1);
	assert_int_equal(pthread_create(&opener, NULL, open_gates, NULL), 0);
	workers_close(pool);
	assert_int_equal(pthread_join(opener, NULL), 0);
	for (uint32_t i = 0; i < SOME; i++) {
		assert_int_equal(items[i].runs, 1);
		assert_int_equal(items[i].dones, 0);
	}
}

/* Each blocks until it is let go, and the last is let go first. */
TEST(it_grows_while_its_threads_block)
{
	open_pool(&(struct workers_conf){ .threads = SOME, .keep = 2 });
	for (int round = 0; round < 3; round++) {
		make(SOME, run_gated);
		for (uint32_t i = 0; i < SOME; i++)
			workers_submit(pool, &items[i].work);
		for (uint32_t i = 0; i < SOME; i++)
			begun(i);
		for (uint32_t i = SOME; i-- > 0;) {
			go(i);
			reap(SOME - i);
		}
		expect_each_once(SOME);
	}
	workers_close(pool);
}

/* The owner calls one thread, and each one that has work the next: at first new ones, then idle. */
TEST(a_list_of_works_reaches_as_many_threads)
{
	open_pool(&(struct workers_conf){ .threads = SOME, .keep = SOME });
	for (int round = 0; round < 3; round++) {
		struct mails all;

		mails_clear(&all);
		make(SOME, run_gated);
		for (uint32_t i = 0; i < SOME; i++)
			mails_append(&all, &items[i].work.mail);
		workers_submit_all(pool, &all);
		for (uint32_t i = 0; i < SOME; i++)
			begun(i);
		for (uint32_t i = 0; i < SOME; i++)
			go(i);
		reap(SOME);
		expect_each_once(SOME);
	}
	workers_close(pool);
}

/* --- an order, and being told late --- */

static struct work *stack[SOME];
static uint32_t n_stack;

static void push(void *arg, struct work *work)
{
	assert_ptr_equal(arg, stack);
	stack[n_stack++] = work;
}

/* Below all that is there. */
static void push_under(void *arg, struct work *work)
{
	assert_ptr_equal(arg, stack);
	for (uint32_t i = n_stack++; i > 0; i--)
		stack[i] = stack[i - 1];
	stack[0] = work;
}

static struct work *pop(void *arg)
{
	assert_ptr_equal(arg, stack);
	return n_stack > 0 ? stack[--n_stack] : NULL;
}

static bool more(TEST_UNUSED void *arg, TEST_UNUSED const struct work *ended)
{
	return n_stack > 0;
}

static const struct workers_order last_first = {
	.put = push, .put_back = push_under, .take = pop, .more = more
};

/* One thread. */
static void open_ordered(uint32_t wake_batch, uint64_t late_ns)
{
	open_pool(&(struct workers_conf){ .threads = 1,
					  .keep = 1,
					  .order = &last_first,
					  .order_arg = stack,
					  .wake_batch = wake_batch,
					  .late_ns = late_ns });
}

TEST(an_order_of_its_own)
{
	static const uint32_t want[] = { 0, 3, 1, 2 };

	open_ordered(0, 0);
	make(4, run_fast);
	items[0].work.run = run_gated;
	items[2].again = 1; /* it comes when all others have ended */
	for (uint32_t i = 0; i < 4; i++) {
		workers_submit(pool, &items[i].work);
		if (i == 0)
			begun(0);
	}
	go(0);
	reap(4);
	assert_memory_equal(order_of, want, sizeof(want));
	assert_int_equal(items[2].runs, 2);
	assert_int_equal(items[2].dones, 1);
	workers_close(pool);
}

/* The owner is told of the fourth that ended, and of the last. */
TEST(told_once_for_several)
{
	enum { N = 6, BATCH = 4 };

	open_ordered(BATCH, UINT64_MAX / 2);
	make(N, run_gated);
	workers_submit(pool, &items[0].work);
	begun(0);
	for (uint32_t i = N; i-- > 1;)
		workers_submit(pool, &items[i].work);
	for (uint32_t i = 0; i + 1 < N; i++) {
		go(i);
		begun(i + 1); /* i + 1 have ended */
		assert_int_equal(readable(workers_fd(pool)), i + 1 >= BATCH);
	}
	assert_int_equal(workers_reap(pool, UINT32_MAX), N - 1);
	go(N - 1);
	reap(N);
	expect_each_once(N);
	workers_close(pool);
}

static enum work_end run_and_tell(struct work *work, uint32_t thread)
{
	workers_tell(pool, item_of(work)->again); /* too early */
	assert_int_equal(readable(workers_fd(pool)), false);
	workers_tell(pool, UINT64_MAX);
	assert_int_equal(readable(workers_fd(pool)), true);
	item_of(work)->again = 0;
	return run_fast(work, thread);
}

TEST(told_late_by_the_next)
{
	open_ordered(4, 1000);
	make(2, run_gated);
	items[1].work.run = run_and_tell;
	items[1].again = 1;
	workers_submit(pool, &items[0].work);
	begun(0);
	workers_submit(pool, &items[1].work);
	go(0);
	reap(2);
	expect_each_once(2);
	workers_close(pool);
}

/* --- the mailbox alone --- */

enum { WRITERS = 4, EACH = 20000 };

struct letter {
	struct mail mail;
	uint32_t seen;
};

static struct letter letters[WRITERS][EACH];
static struct mailbox box;

static sem_t standing, go_on;

/* SIGBUS is the only signal that workers take. */
static void stand_still(TEST_UNUSED int signal)
{
	(void)sem_post(&standing);
	while (sem_wait(&go_on))
		;
}

static void make_stand(pthread_t thread)
{
	assert_int_equal(sem_init(&standing, 0, 0), 0);
	assert_int_equal(sem_init(&go_on, 0, 0), 0);
	(void)signal(SIGBUS, stand_still);
	assert_int_equal(pthread_kill(thread, SIGBUS), 0);
	while (sem_wait(&standing))
		assert_int_equal(errno, EINTR);
}

/* It stands for a thread that was called and waits for a CPU. A condition variable's signal waits
 * for it (alarm() ends the test then). */
TEST(submitting_waits_for_no_thread)
{
	open_pool(&(struct workers_conf){ .threads = 2, .keep = 2 });
	make(SOME, run_fast);
	for (uint32_t i = 0; i < 2; i++) {
		items[i].work.run = run_gated;
		workers_submit(pool, &items[i].work);
		begun(i);
	}
	go(0);
	go(1);
	reap(2);
	make_stand(items[0].thread);
	(void)alarm(60);
	for (uint32_t i = 2; i < SOME; i++) {
		workers_submit(pool, &items[i].work);
		if (i > 2) /* the first of them may be left to the thread that stands */
			reap(i + 1);
	}
	(void)alarm(0);
	assert_int_equal(sem_post(&go_on), 0);
	expect_each_once(SOME);
	workers_close(pool);
	(void)signal(SIGBUS, SIG_DFL);
}

static void *write_letters(void *arg)
{
	struct letter *mine = arg;
	struct mails list;

	mails_clear(&list);
	for (uint32_t i = 0; i < EACH; i++) {
		mails_append(&list, &mine[i].mail);
		if (i % 7 == 0 || i + 1 == EACH)
			mailbox_post(&box, &list);
	}
	return NULL;
}

/* The taker sleeps on the eventfd alone: a lost wake-up is a test that does not end. */
TEST(a_mailbox_loses_nothing)
{
	pthread_t writers[WRITERS];
	struct mails got;
	struct mail *mail;
	uint32_t n = 0;

	assert_int_equal(mailbox_open(&box), 0);
	mails_clear(&got);
	for (int i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&writers[i], NULL, write_letters, letters[i]), 0);
	while (n < WRITERS * EACH) {
		struct pollfd p = { .fd = box.fd, .events = POLLIN };

		assert_int_equal(poll(&p, 1, -1), 1);
		mailbox_hear(&box);
		mailbox_take(&box, &got);
		while ((mail = mails_take(&got)) != NULL) {
			assert_int_equal(container_of(mail, struct letter, mail)->seen++, 0);
			n++;
		}
	}
	for (int i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_join(writers[i], NULL), 0);
	mailbox_close(&box);
}

TEST(a_mailbox_tells_once)
{
	struct letter two[2] = { 0 };
	struct mails list, got;

	assert_int_equal(mailbox_open(&box), 0);
	mails_clear(&list);
	mails_clear(&got);
	mailbox_tell(&box); /* of nothing */
	assert_false(readable(box.fd));
	mails_append(&list, &two[0].mail);
	assert_int_equal(mailbox_put(&box, &list), 1);
	assert_false(readable(box.fd));
	mailbox_tell(&box);
	assert_true(readable(box.fd));
	mailbox_hear(&box);
	mails_append(&list, &two[1].mail);
	assert_int_equal(mailbox_put(&box, &list), 0); /* told of, and not taken */
	mailbox_post(&box, &list);
	assert_false(readable(box.fd));
	mailbox_take(&box, &got);
	assert_int_equal(got.n, 2);
	mailbox_ring(&box);
	assert_true(readable(box.fd));
	mailbox_hear(&box);
	mails_clear(&got);
	mails_append(&list, &two[0].mail);
	mailbox_post(&box, &list);
	assert_true(readable(box.fd));
	mailbox_close(&box);
}
