/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_turns.c - see device_turns.h.
 *
 *	ring of clients:  first -> A -> B -> C
 *	their jobs, in order:      A: a1 a2 a3, B: b1, C: c1 c2
 *	take: a1, and the ring is  first -> B -> C -> A
 *
 * There are at most as many clients in it as jobs, so looking one up is a short walk.
 */
#include "device_turns.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int device_turns_open(struct device_turns *turns, uint32_t depth)
{
	*turns = (struct device_turns){ .all = calloc(depth, sizeof(*turns->all)) };
	if (!turns->all)
		return -ENOMEM;
	turns->end = &turns->first;
	for (uint32_t i = depth; i-- > 0;) {
		turns->all[i].next = turns->unused;
		turns->unused = &turns->all[i];
	}
	return 0;
}

void device_turns_close(struct device_turns *turns)
{
	free(turns->all);
	*turns = (struct device_turns){ 0 };
}

static void stand_last(struct device_turns *turns, struct device_turn *turn)
{
	turn->next = NULL;
	*turns->end = turn;
	turns->end = &turn->next;
}

/* The client's place in the ring; a new one at its end. */
static struct device_turn *turn_of(struct device_turns *turns, uint32_t client)
{
	struct device_turn *turn = turns->first;

	while (turn && turn->client != client)
		turn = turn->next;
	if (turn)
		return turn;
	turn = turns->unused;
	assert(turn); /* no more clients than jobs */
	turns->unused = turn->next;
	turn->client = client;
	turn->first = NULL;
	turn->end = &turn->first;
	turns->n_clients++;
	stand_last(turns, turn);
	return turn;
}

void device_turns_add(struct device_turns *turns, struct device_job *job)
{
	struct device_turn *turn = turn_of(turns, job->client);

	job->next = NULL;
	*turn->end = job;
	turn->end = &job->next;
	turns->n_jobs++;
}

void device_turns_return(struct device_turns *turns, struct device_job *job)
{
	struct device_turn *turn = turn_of(turns, job->client), **link = &turns->first;

	while (*link != turn)
		link = &(*link)->next;
	*link = turn->next;
	if (!turn->next)
		turns->end = link;
	stand_last(turns, turn);
	job->next = turn->first;
	if (!turn->first)
		turn->end = &job->next;
	turn->first = job;
	turns->n_jobs++;
}

struct device_job *device_turns_take(struct device_turns *turns)
{
	struct device_turn *turn = turns->first;
	struct device_job *job;

	if (!turn)
		return NULL;
	turns->first = turn->next;
	if (!turns->first)
		turns->end = &turns->first;
	job = turn->first;
	turn->first = job->next;
	turns->n_jobs--;
	if (turn->first) {
		stand_last(turns, turn);
	} else {
		turn->next = turns->unused;
		turns->unused = turn;
		turns->n_clients--;
	}
	return job;
}

bool device_turns_wait(const struct device_turns *turns, uint32_t client)
{
	const struct device_turn *turn = turns->first;

	while (turn && turn->client != client)
		turn = turn->next;
	return turn != NULL;
}
