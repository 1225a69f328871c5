/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_chore.c - commands of the tier's own: their pool, sending one, and the deletion of bad
 * values. Contract: redis_chore.h.
 */
#include "redis_chore.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <string.h>

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

int redis_chore_send_any(struct redis_chore *chore, struct redis_endpoint *endpoint)
{
	struct redis_link *link =
		redis_endpoint_usable(endpoint) ? redis_link_pick(endpoint, XFER_PROBE, 0) : NULL;

	return link ? redis_chore_send(chore, endpoint, link->conn) : -ENOTCONN;
}

/* --- deletion --- */

static void deleted(struct redis_chore *chore)
{
	const struct redis_command *c = &chore->command;
	struct redis_endpoint *endpoint = chore->endpoint;

	if (c->status == 0 && c->reply && c->reply->type == REDIS_REPLY_INTEGER &&
	    c->reply->integer == 1)
		endpoint->counters.deleted_total++;
	/* An ACL without EVAL, or an endpoint without scripts, is not asked again; it is no
	 * misconfiguration. */
	if (c->status == -EREMOTEIO &&
	    redis_verdict(c->error, strlen(c->error)) != REDIS_SAYS_MOVED)
		endpoint->refused_evals = true;
	redis_chore_give(endpoint->io, chore);
}

void redis_chore_delete(struct redis_endpoint *endpoint, const struct redis_condemned *what)
{
	struct redis_chore *chore = endpoint->refused_evals ? NULL : redis_chore_take(endpoint->io);

	if (!chore)
		return;
	redis_command_delete_if(&chore->command, what->name.text, what->name.bytes, what->sha1,
				what->packed, what->length);
	chore->done = deleted;
	if (redis_chore_send_any(chore, endpoint))
		/* the next read finds it bad again */
		redis_chore_give(endpoint->io, chore);
}
