/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_io_plan.c - the plan of lib_io_faults.h. It outlives a process that is killed with the lock
 * in its hands.
 */
#include "lib_io_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct shared {
	pthread_mutex_t lock; /* guards plan. Take no locks while holding it */
	struct io_plan plan;
	atomic_uint held_kinds, held_kinds_of_one;
	atomic_uint transfers;
	atomic_int held;
};

static struct shared own = { .lock = PTHREAD_MUTEX_INITIALIZER };
static struct shared *all = &own;

static void take_lock(void)
{
	if (pthread_mutex_lock(&all->lock) == EOWNERDEAD)
		(void)pthread_mutex_consistent(&all->lock);
}

static void give_lock(void)
{
	(void)pthread_mutex_unlock(&all->lock);
}

static void make_lock(void)
{
	pthread_mutexattr_t kind;

	(void)pthread_mutexattr_init(&kind);
	(void)pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
	(void)pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
	(void)pthread_mutex_init(&all->lock, &kind);
	(void)pthread_mutexattr_destroy(&kind);
}

int io_plan_share(const char *path, bool make)
{
	const int fd = open(path, O_RDWR | O_CLOEXEC | (make ? O_CREAT | O_TRUNC : 0), 0600);
	void *at;

	if (fd < 0)
		return -errno;
	if (make && ftruncate(fd, sizeof(*all))) {
		(void)close(fd);
		return -errno;
	}
	at = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	(void)close(fd);
	if (at == MAP_FAILED)
		return -errno;
	if (all != &own)
		(void)munmap(all, sizeof(*all));
	all = at;
	if (make)
		make_lock();
	atomic_store(&all->held, 0); /* of this life */
	return 0;
}

void io_plan_set(struct io_plan new)
{
	take_lock();
	all->plan = new;
	give_lock();
	atomic_store(&all->transfers, 0);
}

static int32_t harmless(struct random *random)
{
	static const int32_t results[] = { -EINTR,       -EAGAIN,        IO_ALIGN,
					   3 * IO_ALIGN, IO_ALIGN + 512, 700 };

	if (random_below(random, 4))
		return IO_AS_IT_IS;
	return results[random_below(random, sizeof(results) / sizeof(*results))];
}

static int32_t hit(struct io_plan *plan, bool *ret_flip)
{
	if (plan->skip > 0) {
		plan->skip--;
		return IO_AS_IT_IS;
	}
	if (plan->times == 0)
		return IO_AS_IT_IS;
	plan->times--;
	*ret_flip = plan->flip;
	if (plan->flip)
		return IO_AS_IT_IS;
	return plan->page_every && plan->times % plan->page_every == 0 ? IO_ALIGN : plan->result;
}

int32_t io_planned(enum io_kind kind, int32_t real, bool *ret_flip)
{
	int32_t result = IO_AS_IT_IS;

	*ret_flip = false;
	atomic_fetch_add(&all->transfers, 1);
	take_lock();
	if (all->plan.random)
		result = kind == IO_FDATASYNC ? IO_AS_IT_IS : harmless(all->plan.random);
	else if (all->plan.kinds & 1u << kind)
		result = hit(&all->plan, ret_flip);
	give_lock();
	return result == IO_AS_IT_IS || (real >= 0 && result > real) ? real : result;
}

bool io_is_held(enum io_kind kind, uint32_t file)
{
	return (atomic_load(&all->held_kinds) |
		(file == 0 ? atomic_load(&all->held_kinds_of_one) : 0)) &
	       1u << kind;
}

void io_held_add(int n)
{
	atomic_fetch_add(&all->held, n);
}

uint32_t io_held(void)
{
	return (uint32_t)atomic_load(&all->held);
}

void io_hold(uint32_t kinds)
{
	atomic_store(&all->held_kinds, kinds);
	if (kinds == 0)
		atomic_store(&all->held_kinds_of_one, 0);
}

void io_hold_file(uint32_t kinds)
{
	atomic_store(&all->held_kinds_of_one, kinds);
}

uint32_t io_transfers(void)
{
	return atomic_load(&all->transfers);
}

void io_plan_none(void)
{
	io_plan_set((struct io_plan){ 0 });
	io_hold(0);
}
