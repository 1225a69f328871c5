/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_turns.h - jobs that wait for a worker, by client, clients in turn. No threads and no locks
 * here: the device guards it. Nothing is allocated after open.
 */
#ifndef KVTIER_DEVICE_TURNS_H
#define KVTIER_DEVICE_TURNS_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* One client with waiting jobs; stands in the ring as long as it has any. */
struct device_turn {
	struct device_turn *next;
	uint32_t client;
	struct device_job *first, **end;
};

struct device_turns {
	struct device_turn *all, *unused;
	struct device_turn *first, **end; /* whose turn it is, and after it */
	uint32_t n_clients, n_jobs;
};

/* jobs at most; 0 or -ENOMEM */
int device_turns_open(struct device_turns *turns, uint32_t depth);
void device_turns_close(struct device_turns *turns); /* zeroed is fine */

/* behind its client's others */
void device_turns_add(struct device_turns *turns, struct device_job *job);
/* A job whose quantum is over: before its client's others, so that the job that was begun first
 * ends first. The client stands last in the ring. */
void device_turns_return(struct device_turns *turns, struct device_job *job);
/* The first job of the client whose turn it is, which then stands last; NULL: there is none. */
struct device_job *device_turns_take(struct device_turns *turns);
/* it has jobs that wait */
bool device_turns_wait(const struct device_turns *turns, uint32_t client);

#endif
