/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_job.c - a job as a command on a connection, and its end; chores. Contract and phases:
 * redis_job.h. I/O thread only.
 *
 * Invariant
 *   J1 a job ends once: redis_job_end() is the only way, and its phase is ENDED from then on.
 */
#include "redis_job.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "redis_endpoint.h"
#include "redis_io.h"

/* --- chores --- */

struct redis_chore *redis_chore_take(struct redis_endpoint *endpoint,
				     void (*done)(struct redis_command *command))
{
	struct redis_chore *chore = endpoint->io->free_chores;

	if (!chore)
		return NULL;
	endpoint->io->free_chores = chore->next;
	chore->endpoint = endpoint;
	chore->command.value = NULL;
	chore->command.done = done;
	return chore;
}

void redis_chore_give(struct redis_chore *chore)
{
	chore->next = chore->endpoint->io->free_chores;
	chore->endpoint->io->free_chores = chore;
}

int redis_chore_send(struct redis_chore *chore, struct redis_conn *conn)
{
	int r;

	chore->command.deadline_ns = redis_io_deadline(chore->endpoint->io);
	r = conn ? redis_conn_submit(conn, &chore->command) : -ENOTCONN;
	if (r)
		redis_chore_give(chore);
	return r;
}

/* --- jobs --- */

void redis_job_end(struct redis_io *io, struct redis_job *job, int status)
{
	assert(job->phase != REDIS_ENDED && status <= 0);
	loop_timer_unset(io->loop, &job->timer);
	job->lesser = job->pack.lesser;
	redis_pack_free(&io->packer, &job->pack);
	job->phase = REDIS_ENDED;
	job->status = io->stopping && status == -ECONNRESET ? -ECANCELED : status;
	job->endpoint = NULL;
	mails_append(&io->ended, &job->mail);
}

/* The command behind ASKING tells how it went. */
static void asking_done(struct redis_command *command)
{
	redis_chore_give(redis_chore_of(command));
}

static int send_asking(struct redis_job *job, struct redis_conn *conn)
{
	struct redis_chore *chore;

	/* Both or neither: an ASKING alone would be for the next command, whatever it is. */
	if (redis_conn_in_flight(conn) + 2 > REDIS_CONN_COMMANDS)
		return -EAGAIN;
	chore = redis_chore_take(job->endpoint, asking_done);
	if (!chore)
		return -EAGAIN;
	redis_command_make(&chore->command, (const char *const[]){ "ASKING", NULL });
	return redis_chore_send(chore, conn);
}

/* The front of a value comes as a small reply: shorter if the value is, "" if there is no value. */
static void make_probe(struct redis_job *job)
{
	const char *word = job->by_length ? "STRLEN" : "EXISTS", *name = job->name.text;
	char last[24];

	(void)snprintf(last, sizeof(last), "%zu", sizeof(struct redis_front) - 1);
	if (job->value.geometry && !job->by_length)
		redis_command_make(&job->command,
				   (const char *const[]){ "GETRANGE", name, "0", last, NULL });
	else
		redis_command_make(&job->command, (const char *const[]){ word, name, NULL });
}

int redis_job_send(struct redis_job *job, struct redis_conn *conn)
{
	struct redis_command *c = &job->command;
	const struct redis *r = job->endpoint->io->tier;
	const struct recode *made = job->pack.recode;
	const char *name = job->name.text;
	int err = job->asking ? send_asking(job, conn) : 0;

	if (err)
		return err;
	job->heard = job->endpoint->traffic.heard_bytes;
	c->value = NULL;
	switch (job->op) {
	case XFER_READ:
		redis_command_make(c, (const char *const[]){ "GET", name, NULL });
		c->value = &job->value;
		break;
	case XFER_WRITE:
		err = redis_command_set(c, name, made ? made->made : job->buffer,
					made ? &made->shape : &job->shape,
					(struct redis_coded){ job->pack.bytes, job->pack.n,
							      job->pack.lesser },
					job->seal, r->ttl_ms);
		break;
	case XFER_PROBE:
		make_probe(job);
		break;
	}
	c->deadline_ns = job->deadline_ns;
	if (!err)
		err = redis_conn_submit(conn, c);
	if (err)
		return err;
	job->asking = false;
	job->phase = REDIS_SENT;
	job->endpoint->in_flight++;
	return 0;
}
