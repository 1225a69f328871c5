/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_job.c - a job as a command on a connection, and its end. Contract and phases: redis_job.h.
 * I/O thread only.
 *
 * Invariant
 *   J1 a job ends once: redis_job_end() is the only way, and its phase is ENDED from then on.
 */
#include "redis_job.h"

#include <assert.h>
#include <errno.h>

#include "redis_chore.h"
#include "redis_endpoint.h"
#include "redis_io.h"

void redis_job_end(struct redis_io *io, struct redis_job *job, int status)
{
	assert(job->phase != REDIS_ENDED && status <= 0);
	loop_timer_unset(io->loop, &job->timer);
	job->phase = REDIS_ENDED;
	job->status = io->stopping && status == -ECONNRESET ? -ECANCELED : status;
	job->endpoint = NULL;
	mails_append(&io->ended, &job->mail);
}

static void asking_done(struct redis_chore *chore)
{
	/* the command behind ASKING tells how it went */
	redis_chore_give(chore->endpoint->io, chore);
}

static int send_asking(struct redis_job *job, struct redis_conn *conn)
{
	static const char *const words[] = { "ASKING" };
	struct redis_io *io = job->endpoint->io;
	struct redis_chore *chore;
	int r;

	/* Both or none: an ASKING alone would be for the next command, which did not ask for it. */
	if (redis_conn_in_flight(conn) + 2 > REDIS_CONN_COMMANDS)
		return -EAGAIN;
	chore = redis_chore_take(io);
	if (!chore)
		return -EAGAIN;
	chore->done = asking_done;
	redis_command_words(&chore->command, words, 1);
	r = redis_chore_send(chore, job->endpoint, conn);
	if (r)
		redis_chore_give(io, chore);
	return r;
}

int redis_job_send(struct redis_job *job, struct redis_conn *conn)
{
	struct redis_command *c = &job->command;
	const struct redis *r = job->endpoint->io->tier;
	int err = job->asking ? send_asking(job, conn) : 0;

	if (err)
		return err;
	c->value = NULL;
	switch (job->op) {
	case XFER_READ:
		redis_command_get(c, job->name.text, job->name.bytes);
		c->value = &job->value;
		break;
	case XFER_WRITE:
		err = redis_command_set(c, job->name.text, job->name.bytes, job->buffer,
					&job->shape, job->seal, r->ttl_ms);
		break;
	case XFER_PROBE:
		if (job->by_length)
			redis_command_length(c, job->name.text, job->name.bytes);
		else if (job->value.geometry)
			redis_command_front(c, job->name.text, job->name.bytes,
					    sizeof(struct redis_front));
		else
			redis_command_exists(c, job->name.text, job->name.bytes);
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
