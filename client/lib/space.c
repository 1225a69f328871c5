/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.c - spaces as a caller sees them: opened, closed. Each call notes the state that it wants,
 * and waits until spaces.c has brought that state about. Control lock.
 */
#include "space.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "client.h"
#include "clock.h"
#include "cuda_memory.h"
#include "cuda_order.h"
#include "error.h"
#include "keys.h"
#include "lent.h"
#include "op.h"
#include "process.h"
#include "ring.h"
#include "session.h"
#include "space_memory.h"
#include "spaces.h"
#include "submit.h"
#include "turn.h"

/* Arguments, checked and kept. */
static int space_make(struct kvtier_client *c, const struct kvtier_geometry *geometry,
		      const struct kvtier_region *regions, size_t n_regions,
		      const struct kvtier_segment *segments, size_t n_segments,
		      struct kvtier_space *space)
{
	struct space_layout *l = space->layout;
	int rc;

	space->client = c;
	space->has_pages = n_segments != 0;
	rc = check_geometry(geometry, &l->geometry, &l->wire);
	if (!rc)
		rc = check_layout(&l->geometry, regions, n_regions, segments, n_segments,
				  l->regions, l->segments, &l->memory);
	l->n_regions = n_regions;
	l->n_segments = n_segments;
	if (!rc)
		rc = keys_open(l->geometry.block_tokens, &space->keys);
	if (!rc)
		rc = space_memory_open(space);
	return rc;
}

static int space_list(struct kvtier_client *c, struct kvtier_space *space)
{
	int rc = space->staged ? ops_stage_copies(c) : 0;

	if (!rc && space->cuda)
		rc = cuda_order_of(c, &space->cuda->device, &space->order);
	if (!rc && space->cuda && !space->staged)
		space->order->wanted = true;
	if (rc)
		return rc;
	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++) {
		if (c->spaces[i])
			continue;
		(void)pthread_mutex_lock(&c->ring);
		c->spaces[i] = space;
		(void)pthread_mutex_unlock(&c->ring);
		return 0;
	}
	return error_set(-EMFILE, "%d spaces are open on this client, which is the most",
			 KVTIER_MAX_SPACES);
}

/* Waits until the space is open (0), or it is clear that it will not be. Control held on entry and
 * exit, not throughout. */
static int space_await(struct kvtier_client *c, const struct kvtier_space *space)
{
	const uint64_t deadline = client_now() + ms_to_ns(c->timeout_ms);

	for (;;) {
		const uint64_t now = client_now();

		session_advance(c, now);
		if (space->state == SPACE_OPEN && !space->steps_down)
			return 0;
		if (space->state == SPACE_REFUSED)
			return error_set(space->error, "%s", space->text);
		if (c->state == SESSION_AWAY)
			return error_set(-ENOTCONN, "%s", c->text);
		if (now >= deadline)
			return error_set(-ETIMEDOUT, "the daemon did not open the space in %u ms",
					 c->timeout_ms);
		(void)pthread_mutex_unlock(&c->control);
		session_pause(c, deadline);
		(void)pthread_mutex_lock(&c->control);
	}
}

/* Opens the space. On failure the space is off the list, or an orphan. */
static int space_begin(struct kvtier_client *c, struct kvtier_space *space)
{
	int rc;

	(void)pthread_mutex_lock(&c->control);
	rc = space_list(c, space);
	if (rc) {
		space_free(space);
		(void)pthread_mutex_unlock(&c->control);
		return rc;
	}
	rc = space_await(c, space);
	if (rc)
		space_orphan(c, space);
	(void)pthread_mutex_unlock(&c->control);
	return rc;
}

int kvtier_space_open(struct kvtier_client *c, const struct kvtier_geometry *geometry,
		      const struct kvtier_region *regions, size_t n_regions,
		      const struct kvtier_segment *segments, size_t n_segments,
		      struct kvtier_space **ret)
{
	struct kvtier_space *space;
	int rc;

	if (!c || !geometry || !ret)
		return error_set(-EINVAL, "client, geometry and ret must not be NULL");
	rc = client_check(c);
	if (rc)
		return rc;
	space = calloc(1, sizeof(*space));
	if (space)
		space->layout =
			calloc(1, sizeof(*space->layout)); /* touched as far as it is used */
	if (space && space->layout)
		rc = space_make(c, geometry, regions, n_regions, segments, n_segments, space);
	else
		rc = error_set(-ENOMEM, "out of memory");
	if (rc) {
		space_free(space);
		return rc;
	}
	rc = space_begin(c, space);
	if (!rc)
		*ret = space;
	return rc;
}

/* No further op begins. */
static void space_shut(struct kvtier_space *space)
{
	(void)pthread_mutex_lock(&space->client->ring);
	atomic_store(&space->open, false);
	(void)pthread_mutex_unlock(&space->client->ring);
}

/* The id of the op in this slot of the op table, if it is of the space and runs; else 0. */
static uint64_t running_op(const struct kvtier_space *space, size_t slot)
{
	struct kvtier_client *c = space->client;
	uint64_t id = 0;

	(void)pthread_mutex_lock(&c->ring);
	if (c->ops[slot].space == space && c->ops[slot].state == OP_RUNNING)
		id = c->ops[slot].id;
	(void)pthread_mutex_unlock(&c->ring);
	return id;
}

/* Cancels the space's ops and sees them end. -ETIMEDOUT. */
static int space_cancel(struct kvtier_space *space, uint64_t deadline)
{
	struct kvtier_client *c = space->client;
	int rc = 0;

	space_shut(space);
	for (size_t i = 0; i < KVTIER_MAX_OPS && rc != -ETIMEDOUT; i++) {
		const uint64_t id = running_op(space, i);

		if (id)
			rc = submit_cancel(c, id, deadline);
	}
	return rc == -ETIMEDOUT ? rc : 0;
}

/* Lets the space's ops end by themselves until the deadline; then cancels them likewise. */
static int space_drain(struct kvtier_space *space, uint64_t deadline)
{
	space_shut(space);
	for (size_t i = 0; i < KVTIER_MAX_OPS; i++) {
		const uint64_t id = running_op(space, i);

		if (id)
			(void)op_await(space->client, id, deadline, false, NULL);
	}
	return space_cancel(space, client_now() + ms_to_ns(CLIENT_GRACE_MS));
}

/* The daemon reads ring and socket in any order: SPACE_CLOSE must come after our last sqe was
 * read. */
static void ring_flush(struct kvtier_client *c, uint64_t deadline)
{
	bool first = true, passed = false;
	uint64_t serial = 0;
	uint32_t tail = 0;

	while (!passed && client_now() < deadline) {
		const struct link *link;

		if (!first)
			(void)usleep(100);
		(void)pthread_mutex_lock(&c->ring);
		link = atomic_load(&c->link);
		if (first && link) {
			serial = link->serial;
			tail = link->sq_tail;
		}
		passed = !link || link->serial != serial || ring_passed(link, tail);
		(void)pthread_mutex_unlock(&c->ring);
		first = false;
	}
}

/* Waits until the daemon has let go of the space, or the connection is cut: the space is GONE, or
 * QUIET. Control held on entry and exit, not throughout. */
static void space_end(struct kvtier_client *c, struct kvtier_space *space, uint64_t deadline)
{
	const enum space_state end = space->close_wanted ? SPACE_GONE : SPACE_QUIET;

	for (;;) {
		const uint64_t now = client_now();

		if (space->state == SPACE_WANTED || space->state == SPACE_REFUSED ||
		    space->state == SPACE_QUIET)
			space->state = end;
		if (space->state == end)
			return;
		if (now >= deadline) {
			session_lost(c, -ETIMEDOUT,
				     "cut: the daemon did not close a space in time");
			continue;
		}
		session_advance(c, now);
		if (space->state == end)
			return;
		(void)pthread_mutex_unlock(&c->control);
		session_pause(c, deadline);
		(void)pthread_mutex_lock(&c->control);
	}
}

int space_close_until(struct kvtier_space *space, uint64_t deadline)
{
	struct kvtier_client *c = space->client;
	int lent;

	if (space_cancel(space, deadline))
		deadline = 0;
	else
		ring_flush(c, deadline);
	(void)pthread_mutex_lock(&c->control);
	space->close_wanted = true;
	space_end(c, space, deadline);
	(void)pthread_mutex_lock(&c->ring);
	for (size_t i = 0; i < KVTIER_MAX_OPS; i++) {
		struct op *op = &c->ops[i];

		if (op->state == OP_FREE || op->space != space)
			continue;
		assert(op->state == OP_DONE);
		op_drop(c, op);
	}
	(void)pthread_mutex_unlock(&c->ring);
	space_unlist(c, space);
	(void)pthread_mutex_unlock(&c->control);
	lent = (int)lent_space(space->lent);
	space_free(space);
	return lent;
}

static int refuse_quiet(const struct kvtier_space *space, bool quiet)
{
	return space->quiet_wanted == quiet ?
		       0 :
		       error_set(-EINVAL, "the space is %s",
				 quiet ? "not quiesced" : "quiesced already");
}

int kvtier_space_quiesce(struct kvtier_space *space)
{
	int rc = space_check(space), lent;
	struct kvtier_client *c;
	uint64_t deadline;

	if (!rc)
		rc = refuse_quiet(space, false);
	if (rc)
		return rc;
	c = space->client;
	deadline = client_now() + ms_to_ns(c->timeout_ms);
	if (space_drain(space, deadline))
		deadline = 0;
	else
		ring_flush(c, deadline);
	(void)pthread_mutex_lock(&c->control);
	space->quiet_wanted = true;
	space_end(c, space, deadline);
	lent = (int)lent_space(space->lent);
	space_memory_close(space);
	(void)pthread_mutex_unlock(&c->control);
	return lent;
}

/* Control held. */
static int space_return(struct kvtier_space *space)
{
	int rc = space_memory_open(space);

	if (!rc && space->staged)
		rc = ops_stage_copies(space->client);
	if (rc)
		return rc;
	space->pages = 0; /* the regions may be others */
	space->quiet_wanted = false;
	space->state = SPACE_WANTED;
	rc = space_await(space->client, space);
	if (rc) {
		space->quiet_wanted = true;
		space_end(space->client, space, 0);
	}
	return rc;
}

int kvtier_space_resume(struct kvtier_space *space, const struct kvtier_region *regions,
			size_t n_regions)
{
	int rc = space_check(space);
	struct kvtier_client *c;

	if (!rc)
		rc = refuse_quiet(space, true);
	if (!rc && !regions && space->layout->memory == KVTIER_MEMFD)
		rc = error_set(-EINVAL,
			       "regions is NULL: the descriptors of KVTIER_MEMFD regions are "
			       "not kept, give them again");
	if (!rc && regions)
		rc = check_regions_again(space->layout, regions, n_regions);
	if (rc)
		return rc;
	c = space->client;
	(void)pthread_mutex_lock(&c->control);
	rc = space_return(space);
	if (rc)
		space_memory_close(space);
	(void)pthread_mutex_unlock(&c->control);
	return rc;
}

void space_disown(struct kvtier_space *space)
{
	struct kvtier_client *c = space->client;

	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++)
		if (c->spaces[i] == space)
			c->spaces[i] = NULL;
	space_free(space);
}

int kvtier_space_close(struct kvtier_space *space)
{
	if (!space)
		return 0;
	if (!process_ours(space->client->process)) {
		space_disown(space);
		return 0;
	}
	return space_close_until(space, client_now() + ms_to_ns(space->client->timeout_ms));
}
