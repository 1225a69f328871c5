/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu.h - a thread's share of the CPUs. The daemon's threads work in pieces of microseconds, and
 * somebody waits for each piece: engines for their ops, the core for jobs, workers for the core.
 * The kernel changes threads at its tick, which is 4 ms apart with CONFIG_HZ=250.
 *
 * So a thread asks for short slices: when it wakes up it goes before threads that asked for longer
 * ones, for as long as it is owed time (Linux 6.12 and later; others take no notice). And it offers
 * its CPU when a slice is over: a thread that waits for the CPU gets it then, not at the tick. It
 * gets no more of the CPU than without this, and loses nothing where nobody waits. Any thread.
 */
#ifndef KVTIER_CPU_H
#define KVTIER_CPU_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Of the calling thread. */
struct cpu_slice {
	uint64_t began_ns;
};

/* CPUs that this thread may run on, 1 at least. */
uint32_t cpu_usable(void);
/* The calling thread stays on the n-th of the CPUs that it may run on now. 0 or -errno. */
int cpu_stay_on(uint32_t n);

/* Short slices for the calling thread, not for threads that it makes. 0 or -errno: -EOPNOTSUPP: it
 * has another policy than the usual one, which is left alone. */
int cpu_slice_ask(void);
/*
 * For a thread with short slices that stays on a CPU and waits for it: the kernel looks again whose
 * turn it is there. Without a claim, a thread that wakes up a microsecond before the kernel owes it
 * the CPU waits for the tick, and so does a thread that offered its CPU. No thread gets more of the
 * CPU by this. `nth` differs from the `nth` of the last claim for this thread. 0 or -errno, as
 * cpu_slice_ask().
 */
int cpu_slice_claim(pid_t thread, uint32_t nth);
/* The thread begins to work: it slept before. */
void cpu_slice_begin(struct cpu_slice *slice, uint64_t now_ns);
/* Between two pieces of work: offers the CPU if the slice is over. Whether it did. */
bool cpu_slice_look(struct cpu_slice *slice, uint64_t now_ns);

#endif
