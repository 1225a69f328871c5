/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.c - spaces: opened, opened again on every new connection, closed (states: client.h).
 * Control lock.
 *
 * The library keeps the message of the first opening, and duplicates of the regions' descriptors.
 * spaces_advance() sends it again after a reconnection, one space at a time. kvtier_space_open()
 * adds a WANTED space and waits for it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

static void space_free(struct kvtier_space *space)
{
	if (!space)
		return;
	for (size_t i = 0; i < space->n_fds; i++)
		(void)close(space->fds[i]);
	staged_close(space->staged);
	lent_layout_close(space->layout);
	populate_close(space->populate);
	keys_close(space->keys);
	free(space->message);
	free(space);
}

/* Takes a space off the client's list. */
static void space_unlist(struct kvtier_client *c, const struct kvtier_space *space)
{
	(void)pthread_mutex_lock(&c->ring);
	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++)
		if (c->spaces[i] == space)
			c->spaces[i] = NULL;
	(void)pthread_mutex_unlock(&c->ring);
}

static void space_gone(struct kvtier_client *c, struct kvtier_space *space)
{
	space->state = SPACE_GONE;
	if (!space->orphan)
		return;
	space_unlist(c, space);
	space_free(space);
}

void spaces_lost(struct kvtier_client *c)
{
	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++) {
		struct kvtier_space *space = c->spaces[i];

		if (!space)
			continue;
		if (space->close_wanted || space->state == SPACE_GONE)
			space_gone(c, space);
		else
			space->state = SPACE_WANTED;
	}
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

/* Refused when it was opened again, a while ago: whatever was short may be there now. */
static bool space_retry(const struct kvtier_space *space)
{
	return space->state == SPACE_REFUSED && space->known && !space->close_wanted &&
	       client_now() - space->refused_ns >= ms_to_ns(CLIENT_REOPEN_MS);
}

/* 0: sent, or refused for good; -EAGAIN: the socket is full; else the connection is lost. */
static int send_open(struct kvtier_client *c, struct kvtier_space *space)
{
	const int *fds = space->fds;
	size_t n_fds = space->n_fds;
	int staging, rc;

	if (space->staged) {
		(void)pthread_mutex_lock(&c->ring);
		rc = staged_renew(space->staged);
		(void)pthread_mutex_unlock(&c->ring);
		if (rc) {
			space_refused(space, rc, "", kvtier_last_error());
			return 0;
		}
		staging = staged_fd(space->staged);
		fds = &staging;
		n_fds = 1;
	}
	space->message->head.seq = ++c->seq;
	rc = socket_send(c->fd, space->message, space->message->head.length, fds, n_fds);
	if (rc == -EAGAIN || rc == -ECONNRESET)
		return rc;
	if (rc) {
		space_refused(space, rc,
			      "the space's description cannot be sent: ", strerrordesc_np(-rc));
		return 0;
	}
	space->seq = c->seq;
	space->state = SPACE_OPENING;
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

void spaces_advance(struct kvtier_client *c)
{
	bool opening = false;
	int rc = 0;

	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++)
		opening |= c->spaces[i] && c->spaces[i]->state == SPACE_OPENING;
	for (size_t i = 0; i < KVTIER_MAX_SPACES && (!rc || rc == -EAGAIN); i++) {
		struct kvtier_space *space = c->spaces[i];

		if (!space)
			continue;
		if (space_retry(space))
			space->state = SPACE_WANTED;
		if (space->state == SPACE_OPEN && space->close_wanted) {
			rc = send_close(c, space);
		} else if (space->state == SPACE_WANTED && !opening) {
			rc = send_open(c, space);
			opening = true;
		} else if (space->state == SPACE_REFUSED && space->close_wanted) {
			space_gone(c, space);
		}
	}
	if (rc && rc != -EAGAIN)
		session_lost(c, rc, "the daemon closed the connection");
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

static int space_opened(struct kvtier_client *c, struct kvtier_space *space,
			const struct wire_space_ok *ok)
{
	const struct fingerprint_key index_key = fingerprint_key_of(ok->index_key);

	if (ok->space >= WIRE_MAX_SPACES || handle_taken(c, ok->space))
		return error_set(-EPROTO, "SPACE_OK.space is %u: out of range, or in use",
				 ok->space);
	if (ok->pages > (uint64_t)UINT32_MAX + 1 || (space->has_pages != (ok->pages != 0)) ||
	    (space->staged && ok->pages != staged_pages(space->staged)))
		return error_set(-EPROTO, "SPACE_OK.pages is %llu, which does not fit the regions",
				 (unsigned long long)ok->pages);
	if (space->known && (ok->pages != space->pages ||
			     memcmp(ok->space_id, space->space_id, sizeof(space->space_id)) != 0))
		return error_set(-EPROTO, "the space came back as another one");
	/* Not so the salt: a new daemon may have a new secret, and then nothing is found,
	 * rightly. */
	keys_salt(space->keys, ok->salt);
	space->known = true;
	space->pages = ok->pages;
	memcpy(space->space_id, ok->space_id, sizeof(space->space_id));
	space->state = SPACE_OPEN;
	(void)pthread_mutex_lock(&c->ring);
	space->error = 0;
	space->handle = ok->space;
	for (int i = 0; i < 2; i++)
		atomic_store_explicit(&space->index_key[i], index_key.k[i], memory_order_relaxed);
	atomic_store(&space->open, !space->close_wanted);
	(void)pthread_mutex_unlock(&c->ring);
	return 0;
}

int spaces_reply(struct kvtier_client *c, const struct packet *packet)
{
	struct kvtier_space *space = NULL;

	for (size_t i = 0; i < KVTIER_MAX_SPACES && !space; i++)
		if (c->spaces[i] && c->spaces[i]->seq == packet->head.seq &&
		    (c->spaces[i]->state == SPACE_OPENING || c->spaces[i]->state == SPACE_CLOSING))
			space = c->spaces[i];
	if (!space)
		return error_set(-EPROTO, "a reply (type %u) that nobody asked for",
				 packet->head.type);
	if (packet->head.type == WIRE_ERROR && space->state == SPACE_OPENING) {
		space_refused(space, packet->error.error, "kvtierd: ", packet->error.text);
		return 0;
	}
	if (packet->head.type == WIRE_SPACE_OK && space->state == SPACE_OPENING)
		return space_opened(c, space, &packet->space_ok);
	if (packet->head.type == WIRE_SPACE_CLOSED && space->state == SPACE_CLOSING &&
	    packet->closed.space == space->handle) {
		space_gone(c, space);
		return 0;
	}
	return error_set(-EPROTO, "a reply of type %u to another request", packet->head.type);
}

/* The message that opens the space, from checked arguments. */
static int message_make(struct kvtier_space *space, const struct wire_geometry *geometry,
			const struct kvtier_region *regions, size_t n_regions,
			const struct kvtier_segment *segments, size_t n_segments)
{
	const size_t wire_regions = space->staged ? 1 : n_regions;
	const size_t bytes = sizeof(struct wire_space_open) +
			     wire_regions * sizeof(struct wire_region) +
			     n_segments * sizeof(struct wire_segment);
	struct wire_region *r;
	struct wire_segment *s;

	space->message = calloc(1, bytes);
	if (!space->message)
		return error_set(-ENOMEM, "out of memory");
	space->message->head = (struct wire_head){ .magic = WIRE_MAGIC,
						   .type = WIRE_SPACE_OPEN,
						   .length = (uint32_t)bytes };
	space->message->n_regions = (uint32_t)wire_regions;
	space->message->n_segments = (uint32_t)n_segments;
	space->message->geometry = *geometry;
	r = (struct wire_region *)(void *)(space->message + 1);
	s = (struct wire_segment *)(void *)(r + wire_regions);
	if (space->staged)
		r[0] = (struct wire_region){ .memory = WIRE_STAGED,
					     .length = staged_bytes(space->staged) };
	for (size_t i = 0; i < n_regions && !space->staged; i++)
		r[i] = (struct wire_region){ .memory = WIRE_MEMFD,
					     .fd_index = (uint32_t)i,
					     .offset = regions[i].offset,
					     .length = regions[i].length };
	for (size_t i = 0; i < n_segments; i++) {
		const struct kvtier_segment *u = &segments[i];

		if (space->staged)
			staged_segment(space->staged, i, &s[i]);
		else
			s[i] = (struct wire_segment){ .region = u->region,
						      .layer = u->layer,
						      .kind = u->kind,
						      .offset = u->offset,
						      .page_stride = u->page_stride,
						      .head_stride = u->head_stride,
						      .token_stride = u->token_stride,
						      .length = u->length };
	}
	return 0;
}

static int regions_keep(struct kvtier_space *space, const struct kvtier_region *regions, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const int fd = fcntl(regions[i].fd, F_DUPFD_CLOEXEC, 0);

		if (fd < 0)
			return error_set(-errno, "regions[%zu].fd is %d: %s", i, regions[i].fd,
					 strerrordesc_np(errno));
		space->fds[space->n_fds++] = fd;
	}
	return 0;
}

static int layout_keep(struct kvtier_space *space)
{
	const struct wire_space_open *m = space->message;
	const struct wire_region *r = (const struct wire_region *)(const void *)(m + 1);

	return lent_layout_open(space->fds, r, m->n_regions,
				(const struct wire_segment *)(const void *)(r + m->n_regions),
				m->n_segments, &space->layout);
}

/* What the caller's arrays become: large, and needed only while opening. */
struct layout {
	struct kvtier_region regions[KVTIER_MAX_REGIONS];
	struct kvtier_segment segments[KVTIER_MAX_SEGMENTS];
};

static int space_make(struct kvtier_client *c, const struct kvtier_geometry *in_geometry,
		      const struct kvtier_region *in_regions, size_t n_regions,
		      const struct kvtier_segment *in_segments, size_t n_segments,
		      struct layout *layout, struct kvtier_space *space)
{
	struct kvtier_geometry geometry;
	struct wire_geometry wire;
	bool private = false;
	int rc;

	rc = check_geometry(in_geometry, &geometry, &wire);
	if (!rc)
		rc = check_layout(&geometry, in_regions, n_regions, in_segments, n_segments,
				  layout->regions, layout->segments, &private);
	if (!rc)
		rc = keys_open(geometry.block_tokens, &space->keys);
	if (!rc && private)
		rc = staged_open(&geometry, layout->regions, layout->segments, n_segments,
				 c->staging_bytes, &space->staged);
	if (!rc && !private)
		rc = regions_keep(space, layout->regions, n_regions);
	if (!rc && !private && n_segments)
		rc = populate_open(&geometry, layout->regions, n_regions, layout->segments,
				   n_segments, &space->populate);
	if (!rc)
		rc = message_make(space, &wire, layout->regions, n_regions, layout->segments,
				  n_segments);
	if (!rc && !private && n_segments)
		rc = layout_keep(space);
	space->client = c;
	space->has_pages = n_segments != 0;
	return rc;
}

static int space_list(struct kvtier_client *c, struct kvtier_space *space)
{
	int rc = space->staged ? client_stage_copies(c) : 0;

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

/* Waits until the space is open, or will not be; then, unless open, it is off the list or an
 * orphan. */
static int space_await(struct kvtier_client *c, struct kvtier_space *space)
{
	const uint64_t deadline = client_now() + ms_to_ns(c->timeout_ms);
	int rc;

	(void)pthread_mutex_lock(&c->control);
	rc = space_list(c, space);
	if (rc) {
		space_free(space);
		(void)pthread_mutex_unlock(&c->control);
		return rc;
	}
	for (;;) {
		const uint64_t now = client_now();

		session_advance(c, now);
		if (space->state == SPACE_OPEN)
			break;
		if (space->state == SPACE_REFUSED)
			rc = error_set(space->error, "%s", space->text);
		else if (c->state == SESSION_AWAY)
			rc = error_set(-ENOTCONN, "%s", c->text);
		else if (now >= deadline)
			rc = error_set(-ETIMEDOUT, "the daemon did not open the space in %u ms",
				       c->timeout_ms);
		if (rc)
			break;
		(void)pthread_mutex_unlock(&c->control);
		session_pause(c, deadline);
		(void)pthread_mutex_lock(&c->control);
	}
	if (rc) {
		space->orphan = space->close_wanted = true;
		if (space->state != SPACE_OPENING)
			space_gone(c, space); /* else when the daemon's late reply was answered */
	}
	(void)pthread_mutex_unlock(&c->control);
	return rc;
}

int kvtier_space_open(struct kvtier_client *c, const struct kvtier_geometry *geometry,
		      const struct kvtier_region *regions, size_t n_regions,
		      const struct kvtier_segment *segments, size_t n_segments,
		      struct kvtier_space **ret)
{
	struct kvtier_space *space;
	struct layout *layout;
	int rc;

	if (!c || !geometry || !ret)
		return error_set(-EINVAL, "client, geometry and ret must not be NULL");
	rc = client_check(c);
	if (rc)
		return rc;
	space = calloc(1, sizeof(*space));
	layout = malloc(sizeof(*layout));
	if (space && layout)
		rc = space_make(c, geometry, regions, n_regions, segments, n_segments, layout,
				space);
	else
		rc = error_set(-ENOMEM, "out of memory");
	free(layout);
	if (rc) {
		space_free(space);
		return rc;
	}
	rc = space_await(c, space);
	if (!rc)
		*ret = space;
	return rc;
}

/* Cancels the space's ops and sees them end. -ETIMEDOUT. */
static int space_quiesce(struct kvtier_space *space, uint64_t deadline)
{
	struct kvtier_client *c = space->client;
	int rc = 0;

	(void)pthread_mutex_lock(&c->ring);
	atomic_store(&space->open, false);
	(void)pthread_mutex_unlock(&c->ring);
	for (size_t i = 0; i < KVTIER_MAX_OPS && rc != -ETIMEDOUT; i++) {
		uint64_t id = 0;

		(void)pthread_mutex_lock(&c->ring);
		if (c->ops[i].space == space && c->ops[i].state == OP_RUNNING)
			id = c->ops[i].id;
		(void)pthread_mutex_unlock(&c->ring);
		if (id)
			rc = submit_cancel(c, id, deadline);
	}
	return rc == -ETIMEDOUT ? rc : 0;
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

/* Control held on entry and exit, not throughout. */
static void space_end(struct kvtier_client *c, struct kvtier_space *space, uint64_t deadline)
{
	space->close_wanted = true;
	for (;;) {
		const uint64_t now = client_now();

		if (space->state == SPACE_WANTED || space->state == SPACE_REFUSED)
			space->state = SPACE_GONE;
		if (space->state == SPACE_GONE)
			return;
		if (now >= deadline) {
			session_lost(c, -ETIMEDOUT,
				     "cut: the daemon did not close a space in time");
			continue;
		}
		session_advance(c, now);
		if (space->state == SPACE_GONE)
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

	if (space_quiesce(space, deadline))
		deadline = 0;
	else
		ring_flush(c, deadline);
	(void)pthread_mutex_lock(&c->control);
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
	lent = (int)lent_space(space->layout);
	space_free(space);
	return lent;
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
