/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_chore.c - commands of the tier's own: their pool, sending one. Contract: redis_chore.h.
 */
#include "redis_chore.h"

#include "redis_endpoint.h"
#include "redis_io.h"

struct redis_chore *redis_chore_take(struct redis_io *io)
{
	struct redis_chore *chore = io->free_chores;

	if (!chore)
		return NULL;
	io->free_chores = chore->next;
	chore->endpoint = NULL;
	chore->value = (struct redis_value){ 0 };
	chore->command.value = NULL;
	return chore;
}

void redis_chore_give(struct redis_io *io, struct redis_chore *chore)
{
	chore->next = io->free_chores;
	io->free_chores = chore;
}

static void chore_done(struct redis_command *command)
{
	struct redis_chore *chore = (struct redis_chore *)command; /* first member */

	chore->done(chore);
}

int redis_chore_send(struct redis_chore *chore, struct redis_endpoint *endpoint,
		     struct redis_conn *conn)
{
	chore->endpoint = endpoint;
	chore->command.deadline_ns = redis_io_deadline(endpoint->io);
	chore->command.done = chore_done;
	return redis_conn_submit(conn, &chore->command);
}
