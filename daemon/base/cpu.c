/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.c - see cpu.h. */
#include "cpu.h"

#include <errno.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	SLICE_NS = 100000, /* the least that the kernel takes */
	RESET_ON_FORK = 1, /* SCHED_FLAG_RESET_ON_FORK */
};

/* struct sched_attr: <linux/sched/types.h> and newer <sched.h> cannot both be included. */
struct attr {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime_ns, deadline_ns, period_ns;
};

uint32_t cpu_usable(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : (uint32_t)CPU_COUNT(&set);
}

int cpu_stay_on(uint32_t n)
{
	cpu_set_t set, one;

	if (sched_getaffinity(0, sizeof(set), &set))
		return -errno;
	CPU_ZERO(&one);
	for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set) && n-- == 0) {
			CPU_SET(cpu, &one);
			return sched_setaffinity(0, sizeof(one), &one) ? -errno : 0;
		}
	return -EINVAL;
}

/* Asked for a thread that is in a CPU's queue, the kernel takes the thread out and puts it back,
 * and sees whether the slice of the running thread is over. It does nothing if the thread has this
 * very slice already. */
static int ask_for(pid_t thread, uint64_t slice_ns)
{
	const struct attr attr = { .size = sizeof(attr),
				   .policy = SCHED_OTHER,
				   .flags = RESET_ON_FORK,
				   .nice = getpriority(PRIO_PROCESS, (id_t)thread),
				   .runtime_ns = slice_ns };

	if ((sched_getscheduler(thread) & ~SCHED_RESET_ON_FORK) != SCHED_OTHER)
		return -EOPNOTSUPP;
	return syscall(SYS_sched_setattr, thread, &attr, 0) ? -errno : 0;
}

int cpu_slice_ask(void)
{
	return ask_for(0, SLICE_NS);
}

int cpu_slice_claim(pid_t thread, uint32_t nth)
{
	return ask_for(thread, SLICE_NS + nth % 2);
}

void cpu_slice_begin(struct cpu_slice *slice, uint64_t now_ns)
{
	slice->began_ns = now_ns;
}

bool cpu_slice_look(struct cpu_slice *slice, uint64_t now_ns)
{
	if (now_ns < slice->began_ns + SLICE_NS)
		return false;
	(void)sched_yield();
	slice->began_ns = now_ns;
	return true;
}
