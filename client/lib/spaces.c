/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.c - the messages of daemon and library about spaces: opened, opened again on every new
 * connection, closed (states: space.h). Control lock.
 *
 * The library keeps the message of the first opening, and duplicates of the regions' descriptors.
 * spaces_advance() sends it again after a reconnection, one space at a time.
 */
#include "spaces.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/fingerprint.h"
#include "client.h"
#include "clock.h"
#include "cuda.h"
#include "cuda_memory.h"
#include "cuda_order.h"
#include "error.h"
#include "keys.h"
#include "socket.h"
#include "space.h"
#include "space_memory.h"
#include "staged.h"

void space_free(struct kvtier_space *space)
{
	if (!space)
		return;
	space_memory_close(space);
	keys_close(space->keys);
	free(space->layout);
	free(space);
}

/* Takes a space off the client's list. */
void space_unlist(struct kvtier_client *c, const struct kvtier_space *space)
{
	(void)pthread_mutex_lock(&c->ring);
	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++)
		if (c->spaces[i] == space)
			c->spaces[i] = NULL;
	(void)pthread_mutex_unlock(&c->ring);
}

static bool space_leaves(const struct kvtier_space *space)
{
	return space->close_wanted || space->quiet_wanted;
}

/* The daemon has let go of it. An orphan is freed later, by spaces_reap(): the caller has it in its
 * hands. */
static void space_gone(struct kvtier_space *space)
{
	space->state = space->close_wanted ? SPACE_GONE : SPACE_QUIET;
}

/* Frees the orphans that are GONE. */
static void spaces_reap(struct kvtier_client *c)
{
	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++) {
		struct kvtier_space *space = c->spaces[i];

		if (!space || !space->orphan || space->state != SPACE_GONE)
			continue;
		space_unlist(c, space);
		space_free(space);
	}
}

/* In these states the daemon has no part in the space. */
static bool space_is_ours(const struct kvtier_space *space)
{
	return space->state == SPACE_WANTED || space->state == SPACE_REFUSED;
}

void space_orphan(struct kvtier_client *c, struct kvtier_space *space)
{
	space->orphan = space->close_wanted = true;
	if (space_is_ours(space))
		space_gone(space);
	spaces_reap(c);
}

void spaces_lost(struct kvtier_client *c)
{
	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++) {
		struct kvtier_space *space = c->spaces[i];

		if (!space)
			continue;
		space->parts_due = space->gives_up = space->steps_down = false;
		space->busy = (struct cuda_busy){ 0 };
		if (space_leaves(space) || space->state == SPACE_GONE)
			space_gone(space);
		else
			space->state = SPACE_WANTED;
		space->again = space->state == SPACE_WANTED;
	}
	spaces_reap(c);
}

static void space_refused(struct kvtier_space *space, int error, const char *who, const char *text)
{
	space->state = SPACE_REFUSED;
	space->refused_ns = client_now();
	(void)pthread_mutex_lock(&space->client->ring);
	space->error = error;
	(void)snprintf(space->text, sizeof(space->text), "%s%s", who, text);
	(void)pthread_mutex_unlock(&space->client->ring);
}

/* The daemon refused to open it again, a while ago: the memory or place that it lacked may be there
 * now. */
static bool space_retry(const struct kvtier_space *space)
{
	return space->state == SPACE_REFUSED && space->known && !space_leaves(space) &&
	       client_now() - space->refused_ns >= ms_to_ns(CLIENT_REOPEN_MS);
}

static void space_sent(struct kvtier_client *c, struct kvtier_space *space)
{
	space->seq = c->seq;
	space->state = SPACE_OPENING;
	space->parts_due = false;
}

/* This process cannot open the space: the daemon is told to give back the parts that it has.
 * Returns as send_open(). */
static int give_up(struct kvtier_client *c, struct kvtier_space *space, int error)
{
	const int rc = space->gives_up ? 0 : space_memory_unsend(space);

	if (rc == -EAGAIN || rc == -ECONNRESET)
		return rc;
	space_refused(space, error, "the space's description cannot be sent: ",
		      *kvtier_last_error() ? kvtier_last_error() : strerrordesc_np(-error));
	if (rc == 1) {
		space_sent(c, space);
		space->gives_up = true;
	}
	return 0;
}

/* 0: sent, or refused for good; -EAGAIN: the socket is full; else the connection is lost. */
static int send_open(struct kvtier_client *c, struct kvtier_space *space)
{
	int rc;

	if (space->cuda && space->state == SPACE_WANTED)
		cuda_memory_begin(space->cuda);
	space->message->head.seq = ++c->seq;
	(void)error_set(0, "%s", ""); /* not every failure of a system call has a sentence */
	rc = space_memory_send(space);
	if (rc == -EAGAIN || rc == -ECONNRESET)
		return rc;
	if (rc < 0 && space_memory_refused(space, rc, kvtier_last_error()))
		return send_open(c, space); /* tries the next rung; the last has none after it */
	if (rc < 0)
		return give_up(c, space, rc);
	space_sent(c, space);
	return 0;
}

static int send_close(struct kvtier_client *c, struct kvtier_space *space)
{
	const struct wire_space_close message = {
		.head = { .magic = WIRE_MAGIC,
			  .type = WIRE_SPACE_CLOSE,
			  .length = sizeof(message),
			  .seq = ++c->seq },
		.space = space->handle,
	};
	const int rc = socket_send(c->fd, &message, sizeof(message), NULL, 0);

	if (!rc) {
		space->seq = c->seq;
		space->state = SPACE_CLOSING;
	}
	return rc;
}

/* The daemon knows the events and words of the space's GPU, or has refused them. */
static bool orders_told(const struct kvtier_space *space)
{
	return !space->order || space->staged || space->order->state == CUDA_ORDER_KNOWN ||
	       space->order->state == CUDA_ORDER_REFUSED;
}

/* Before the first opening on a connection. */
static void begin_again(struct kvtier_space *space)
{
	const int rc = space_memory_again(space);

	space->again = rc != 0;
	if (rc)
		space_refused(space, rc,
			      "its memory cannot be told of again: ", kvtier_last_error());
}

int spaces_advance(struct kvtier_client *c)
{
	bool opening = false;
	int rc;

	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++)
		if (c->spaces[i] && c->spaces[i]->again && c->spaces[i]->state == SPACE_WANTED)
			begin_again(c->spaces[i]);
	rc = cuda_orders_advance(c);
	if (rc && rc != -EAGAIN)
		return rc;
	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++)
		opening |= c->spaces[i] && c->spaces[i]->state == SPACE_OPENING;
	for (size_t i = 0; i < KVTIER_MAX_SPACES && (!rc || rc == -EAGAIN); i++) {
		struct kvtier_space *space = c->spaces[i];

		if (!space)
			continue;
		if (space_retry(space))
			space->state = SPACE_WANTED;
		if (space->state == SPACE_OPEN && (space_leaves(space) || space->steps_down)) {
			rc = send_close(c, space);
		} else if (space->state == SPACE_OPENING && space->parts_due) {
			rc = send_open(c, space);
		} else if (space_is_ours(space) && space_leaves(space)) {
			space_gone(space);
		} else if (space->state == SPACE_WANTED && !opening && orders_told(space) &&
			   client_now() >= space->busy.retry_ns) {
			rc = send_open(c, space);
			opening = true;
		}
	}
	spaces_reap(c);
	return rc == -EAGAIN ? 0 : rc;
}

static bool handle_taken(const struct kvtier_client *c, uint32_t handle)
{
	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++) {
		const struct kvtier_space *s = c->spaces[i];

		if (s && (s->state == SPACE_OPEN || s->state == SPACE_CLOSING) &&
		    s->handle == handle)
			return true;
	}
	return false;
}

/* Engine mode: the memory that came. 1: this process cannot map it, and the space is closed again,
 * to be opened in another way. */
static int take_memory(struct kvtier_space *space, const struct packet *packet)
{
	const struct wire_space_ok *ok = &packet->space_ok;
	const bool wanted = space->staged && staged_encoded(space->staged);
	int rc;

	if (packet->n_fds != (wanted ? 1 : 0))
		return error_set(-EPROTO, "SPACE_OK came with %d descriptors", packet->n_fds);
	rc = wanted ? staged_map(space->staged, packet->fds[0], ok) : 0;
	if (!rc || rc == -EPROTO)
		return rc;
	if (!space_memory_refused(space, rc, kvtier_last_error()))
		return error_set(-EPROTO, "memory for engine mode cannot be mapped");
	space->handle = ok->space;
	space->state = SPACE_OPEN;
	space->steps_down = true;
	return 1;
}

static int space_opened(struct kvtier_client *c, struct kvtier_space *space,
			const struct packet *packet)
{
	const struct wire_space_ok *ok = &packet->space_ok;
	const struct fingerprint_key index_key = fingerprint_key_of(ok->index_key);
	int rc;

	if (ok->space >= WIRE_MAX_SPACES || handle_taken(c, ok->space))
		return error_set(-EPROTO, "SPACE_OK.space is %u: out of range, or in use",
				 ok->space);
	/* Staging memory is whole pages of the kernel's: a few more small pages may fit. */
	if (ok->pages > (uint64_t)UINT32_MAX + 1 || (space->has_pages != (ok->pages != 0)) ||
	    (space->staged && ok->pages < staged_pages(space->staged)))
		return error_set(-EPROTO, "SPACE_OK.pages is %llu, which does not fit the regions",
				 (unsigned long long)ok->pages);
	if (space->known && ((space->pages && ok->pages != space->pages) ||
			     memcmp(ok->space_id, space->space_id, sizeof(space->space_id)) != 0))
		return error_set(-EPROTO, "the space came back as another one");
	rc = take_memory(space, packet);
	if (rc)
		return rc == 1 ? 0 : rc;
	/* The salt may change: a new daemon may have a new secret, and then rightly finds no
	 * block. */
	keys_salt(space->keys, ok->salt);
	space->known = true;
	space->pages = ok->pages;
	memcpy(space->space_id, ok->space_id, sizeof(space->space_id));
	space->state = SPACE_OPEN;
	space->busy = (struct cuda_busy){ 0 };
	(void)pthread_mutex_lock(&c->ring);
	space->error = 0;
	space->handle = ok->space;
	for (int i = 0; i < 2; i++)
		atomic_store_explicit(&space->index_key[i], index_key.k[i], memory_order_relaxed);
	atomic_store_explicit(&space->gpus, ok->gpus, memory_order_relaxed);
	atomic_store(&space->open, !space_leaves(space));
	(void)pthread_mutex_unlock(&c->ring);
	return 0;
}

/* The daemon's answer to an opening that it does not like. */
static void opening_refused(struct kvtier_space *space, const struct wire_error *error)
{
	if (space->cuda && (!space->staged || staged_encoded(space->staged)) &&
	    cuda_busy_again(&space->busy, error->error))
		space->state = SPACE_WANTED;
	else if (space_memory_refused(space, error->error, error->text))
		space->state = SPACE_WANTED;
	else
		space_refused(space, error->error, "kvtierd: ", error->text);
}

int spaces_reply(struct kvtier_client *c, const struct packet *packet)
{
	struct kvtier_space *space = NULL;

	if (cuda_orders_reply(c, packet->head.type, packet->head.seq,
			      packet->head.type == WIRE_ERROR ? packet->error.error : 0))
		return 0;
	for (size_t i = 0; i < KVTIER_MAX_SPACES && !space; i++)
		if (c->spaces[i] && c->spaces[i]->seq == packet->head.seq &&
		    (c->spaces[i]->state == SPACE_OPENING || c->spaces[i]->state == SPACE_CLOSING))
			space = c->spaces[i];
	if (!space)
		return error_set(-EPROTO, "a reply (type %u) that nobody asked for",
				 packet->head.type);
	if (space->gives_up && space->state == SPACE_OPENING) {
		space->gives_up = false;
		space->state = SPACE_REFUSED; /* for the reason that is there */
		return 0;
	}
	if (packet->head.type == WIRE_ERROR && space->state == SPACE_OPENING) {
		opening_refused(space, &packet->error);
		return 0;
	}
	if (packet->head.type == WIRE_PARTS_OK && space->state == SPACE_OPENING) {
		space->parts_due = true;
		return 0;
	}
	if (packet->head.type == WIRE_SPACE_OK && space->state == SPACE_OPENING)
		return space_opened(c, space, packet);
	if (packet->head.type == WIRE_SPACE_CLOSED && space->state == SPACE_CLOSING &&
	    packet->closed.space == space->handle) {
		if (space->steps_down && !space_leaves(space))
			space->state = SPACE_WANTED;
		else
			space_gone(space);
		space->steps_down = false;
		return 0;
	}
	return error_set(-EPROTO, "a reply of type %u to another request", packet->head.type);
}
