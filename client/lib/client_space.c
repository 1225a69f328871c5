/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_space.c - spaces as the daemon is told of them: opened, opened again on every new
 * connection, and closed (states: client_space.h); and how their memory gets there. Control held.
 *
 *	KVTIER_MEMFD    duplicates of the descriptors are sent with each opening
 *	KVTIER_PRIVATE  a memfd of the library is sent in their place (staged.c)
 *	KVTIER_CUDA     the memory is exported anew for each opening, by one rung of a ladder
 *			after the other (cuda_memory.h). The last rung is staged.
 *
 * The arguments of the opening are kept, so that the next rung can be tried when the daemon refuses
 * one, and a quiesced space can come back with other regions. The message of the first opening is
 * kept too. After a reconnection spaces_advance() sends it again, for one space at a time.
 */
#include "client_space.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "client/abi/fingerprint.h"
#include "base/clock.h"
#include "client/lib/base/keys.h"
#include "client/lib/base/last_error.h"
#include "client/lib/base/lent.h"
#include "client/lib/base/pages.h"
#include "client/lib/base/socket.h"
#include "client/lib/memory/cuda_memory.h"
#include "client/lib/memory/cuda_order.h"
#include "client_op.h"
#include "client/lib/memory/staged.h"

/* ---- memory ---- */

/* The message that opens the space. */
static int message_make(struct kvtier_space *space)
{
	const struct space_layout *l = &space->layout;
	const size_t n_regions = space->staged ? 1 : l->n_regions;
	const size_t bytes = sizeof(struct wire_space_open) +
			     n_regions * sizeof(struct wire_region) +
			     l->n_segments * sizeof(struct wire_segment);
	struct wire_space_open *m = calloc(1, bytes);
	struct wire_region *r;
	struct wire_segment *s;

	if (!m)
		return error_set(-ENOMEM, "out of memory");
	m->head = (struct wire_head){ .magic = WIRE_MAGIC,
				      .type = WIRE_SPACE_OPEN,
				      .length = (uint32_t)bytes };
	m->n_regions = (uint32_t)n_regions;
	m->n_segments = (uint32_t)l->n_segments;
	m->geometry = l->wire;
	r = (struct wire_region *)(void *)(m + 1);
	s = (struct wire_segment *)(void *)(r + n_regions);
	if (space->staged)
		r[0] = (struct wire_region){ .memory = WIRE_STAGED,
					     .length = space->staged->bytes };
	if (space->cuda && space->cuda->rung == CUDA_RUNG_STAGED)
		(void)snprintf(m->gpu_staged, sizeof(m->gpu_staged), "%.*s", WIRE_WHY_BYTES - 1,
			       space->cuda->why);
	for (size_t i = 0; i < l->n_regions && l->memory == KVTIER_MEMFD; i++)
		r[i] = (struct wire_region){ .memory = WIRE_MEMFD,
					     .fd_index = (uint32_t)i,
					     .offset = l->regions[i].offset,
					     .length = l->regions[i].length };
	for (size_t i = 0; i < l->n_segments; i++) {
		const struct kvtier_segment *u = &l->segments[i];

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
	free(space->message);
	space->message = m;
	return 0;
}

static int descriptors_keep(struct kvtier_space *space)
{
	const struct space_layout *l = &space->layout;

	for (size_t i = 0; i < l->n_regions; i++) {
		const int fd = fcntl(l->regions[i].fd, F_DUPFD_CLOEXEC, 0);

		if (fd < 0)
			return error_set(-errno, "regions[%zu].fd is %d: %s", i, l->regions[i].fd,
					 strerrordesc_np(errno));
		space->fds[space->n_fds++] = fd;
	}
	return 0;
}

/* Tells lent.c where the pages lie: in a memfd's bytes, or at a GPU's addresses. */
static int lent_open(struct kvtier_space *space)
{
	const struct space_layout *l = &space->layout;
	struct lent_place places[KVTIER_MAX_REGIONS];
	const struct wire_region *r =
		(const struct wire_region *)(const void *)(space->message + 1);

	for (size_t i = 0; i < l->n_regions; i++) {
		int rc = 0;

		if (l->memory == KVTIER_CUDA)
			places[i] = (struct lent_place){ LENT_CUDA, LENT_CUDA,
							 (uintptr_t)l->regions[i].base,
							 l->regions[i].length };
		else
			rc = lent_place_of(space->fds[i], &l->regions[i], &places[i]);
		if (rc)
			return error_set(rc, "regions[%zu].fd: %s", i, strerrordesc_np(-rc));
	}
	return lent_layout_open(places, l->n_regions,
				(const struct wire_segment *)(const void *)(r + l->n_regions),
				l->n_segments, &space->lent);
}

static int stage(struct kvtier_space *space)
{
	struct kvtier_client *c = space->client;
	struct staged *staged = NULL;
	const int rc = staged_open(&space->layout, c->staging_bytes, space->cuda, &staged);

	if (rc)
		return rc;
	(void)pthread_mutex_lock(&c->ring);
	space->staged = staged;
	(void)pthread_mutex_unlock(&c->ring);
	return 0;
}

/* Makes the staging memory of the rung, if it is the last. */
static int stage_rung(struct kvtier_space *space)
{
	return space->cuda->rung == CUDA_RUNG_STAGED ? stage(space) : 0;
}

static int memfd_open(struct kvtier_space *space)
{
	const int rc = descriptors_keep(space);

	return rc ? rc : populate_open(&space->layout, &space->populate);
}

static int cuda_open(struct kvtier_space *space)
{
	const struct space_layout *l = &space->layout;
	const int rc = cuda_memory_open(l->regions, l->n_regions, space->client->shares_pids,
					&space->cuda);

	return rc ? rc : stage_rung(space);
}

static void text_make(struct kvtier_space *space)
{
	static const char *const names[] = {
		[KVTIER_REACH_NONE] = "none: lookups and prefetches only",
		[KVTIER_REACH_MEMFD] = "memfd",
		[KVTIER_REACH_STAGED] = "staged",
	};
	char text[sizeof(space->memory)];
	enum kvtier_reach reach;

	static_assert((int)KVTIER_REACH_MEMFD == (int)KVTIER_MEMFD &&
			      (int)KVTIER_REACH_STAGED == (int)KVTIER_PRIVATE,
		      "of host memory the kind says it");
	if (space->cuda) {
		reach = cuda_memory_text(space->cuda, text, sizeof(text));
	} else {
		reach = (enum kvtier_reach)space->layout.memory;
		(void)snprintf(text, sizeof(text), "%s", names[reach]);
	}
	(void)pthread_mutex_lock(&space->client->ring);
	space->reach = reach;
	memcpy(space->memory, text, sizeof(text));
	(void)pthread_mutex_unlock(&space->client->ring);
}

int space_memory_open(struct kvtier_space *space)
{
	const struct space_layout *l = &space->layout;
	int rc = 0;

	if (l->memory == KVTIER_MEMFD)
		rc = memfd_open(space);
	else if (l->memory == KVTIER_PRIVATE)
		rc = stage(space);
	else if (l->memory == KVTIER_CUDA)
		rc = cuda_open(space);
	if (!rc)
		rc = message_make(space);
	if (!rc && l->n_segments && !space->staged)
		rc = lent_open(space);
	if (!rc)
		text_make(space);
	return rc;
}

void space_memory_close(struct kvtier_space *space)
{
	for (size_t i = 0; i < space->n_fds; i++)
		(void)close(space->fds[i]);
	space->n_fds = 0;
	staged_close(space->staged);
	lent_layout_close(space->lent);
	populate_close(space->populate);
	cuda_memory_close(space->cuda);
	free(space->message);
	space->staged = NULL;
	space->lent = NULL;
	space->populate = NULL;
	space->cuda = NULL;
	space->message = NULL;
}

/* Frees the staging memory; no op of the space runs. */
static void unstage(struct kvtier_space *space)
{
	struct staged *staged = space->staged;

	(void)pthread_mutex_lock(&space->client->ring);
	space->staged = NULL;
	(void)pthread_mutex_unlock(&space->client->ring);
	staged_close(staged);
}

/* Another rung was taken. */
static int rung_taken(struct kvtier_space *space)
{
	int rc = stage_rung(space);

	if (!rc && space->staged)
		rc = ops_stage_copies(space->client);
	if (!rc)
		rc = message_make(space);
	if (!rc && !space->staged && !space->lent)
		rc = lent_open(space);
	if (rc)
		return rc;
	if (!space->staged && space->order)
		space->order->wanted = true;
	space->pages = 0; /* a staged space has as many as its buffer */
	text_make(space);
	return 0;
}

/* Takes the next rung, if the daemon refused the way in which the memory is reached. True: the
 * space is to be WANTED again, and asked for in that way. */
static bool space_memory_refused(struct kvtier_space *space, int error, const char *why)
{
	const bool by_memory = error == -ENODEV || error == -ENXIO || error == -EOPNOTSUPP ||
			       error == -EPERM || error == -EBUSY;

	return space->cuda && by_memory && cuda_memory_next(space->cuda, why) &&
	       rung_taken(space) == 0;
}

/* There is a new connection, whose daemon may take what the one before refused. 0 or -errno. */
static int space_memory_again(struct kvtier_space *space)
{
	int rc;

	if (!space->cuda || !cuda_memory_again(space->cuda))
		return 0;
	if (space->staged)
		unstage(space);
	rc = rung_taken(space);
	if (!rc)
		space->cuda->anew = false;
	return rc;
}

/* Sends the message that opens the space, in the version of the connection: an older daemon is sent
 * a copy without the words that it does not know, which are the last before the regions. */
static int send_message(const struct kvtier_space *space, const int *fds, size_t n_fds)
{
	const struct kvtier_client *c = space->client;
	const struct wire_space_open *m = space->message;
	const size_t fixed = wire_space_open_bytes(atomic_load(&c->link)->version);
	const size_t arrays = m->head.length - sizeof(*m);
	struct wire_space_open *copy;
	int rc;

	if (fixed == sizeof(*m))
		return socket_send(c->fd, m, m->head.length, fds, n_fds);
	copy = malloc(m->head.length);
	if (!copy)
		return error_set(-ENOMEM, "out of memory");
	memcpy(copy, m, fixed);
	memcpy((uint8_t *)copy + fixed, m + 1, arrays);
	copy->head.length = (uint32_t)(fixed + arrays);
	rc = socket_send(c->fd, copy, copy->head.length, fds, n_fds);
	free(copy);
	return rc;
}

static int send_staged(struct kvtier_space *space)
{
	struct kvtier_client *c = space->client;
	int fd, rc;

	(void)pthread_mutex_lock(&c->ring);
	rc = staged_renew(space->staged);
	(void)pthread_mutex_unlock(&c->ring);
	if (rc)
		return rc;
	fd = space->staged->fd;
	return send_message(space, &fd, 1);
}

static int send_allocs(struct kvtier_space *space, struct cuda_allocs *p)
{
	const size_t bytes = sizeof(p->message) + p->message.n_allocs * sizeof(p->allocs[0]);

	p->message.head = (struct wire_head){ .magic = WIRE_MAGIC,
					      .type = WIRE_ALLOCS,
					      .length = (uint32_t)bytes,
					      .seq = space->message->head.seq };
	return socket_send(space->client->fd, &p->message, bytes, p->fds, p->n_fds);
}

/* Tells the daemon that the allocations which were sent are not needed. 0: none were sent. 1: it
 * was told, and will answer. Otherwise as space_memory_send(). */
static int space_memory_unsend(struct kvtier_space *space)
{
	struct cuda_allocs none;
	int rc;

	if (!space->cuda || !space->cuda->told_any)
		return 0;
	none.message = (struct wire_allocs){ 0 };
	none.n_fds = 0;
	rc = send_allocs(space, &none);
	return rc ? rc : 1;
}

static int send_cuda(struct kvtier_space *space)
{
	struct wire_region *regions = (struct wire_region *)(void *)(space->message + 1);
	int fds[KVTIER_MAX_REGIONS], rc;
	struct cuda_allocs allocs;
	size_t n;

	rc = cuda_memory_allocs(space->cuda, &allocs);
	if (rc < 0)
		return rc;
	if (rc > 0) {
		rc = send_allocs(space, &allocs);
		while (allocs.n_fds > 0)
			(void)close(allocs.fds[--allocs.n_fds]);
		if (rc)
			return rc;
		cuda_memory_told(space->cuda);
		return 1;
	}
	rc = cuda_memory_export(space->cuda, regions, fds, &n);
	if (rc)
		return rc;
	rc = send_message(space, fds, n);
	while (n > 0)
		(void)close(fds[--n]);
	return rc;
}

/* Sends the opening: 0. 1: ALLOCS were sent, which come before it. -EAGAIN: the socket is full.
 * -ECONNRESET. Another -errno: this process cannot send it. */
static int space_memory_send(struct kvtier_space *space)
{
	if (space->staged)
		return send_staged(space);
	if (space->cuda)
		return send_cuda(space);
	return send_message(space, space->fds, space->n_fds);
}

/* ---- states, and the messages that they need ---- */

void space_free(struct kvtier_space *space)
{
	if (!space)
		return;
	space_memory_close(space);
	keys_close(space->keys);
	free(space);
}

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

/* The daemon has given the space back. An orphan is freed later, by spaces_reap(): the caller has
 * it in its hands. */
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

/* Whether the daemon does not know the space. */
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
		space->allocs_due = space->gives_up = false;
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
	space->refused_ns = clock_ns();
	(void)pthread_mutex_lock(&space->client->ring);
	space->error = error;
	(void)snprintf(space->text, sizeof(space->text), "%s%s", who, text);
	(void)pthread_mutex_unlock(&space->client->ring);
}

/* Whether it is time to ask again: the daemon refused to reopen the space a while ago, and may now
 * have the memory or the place that it lacked. */
static bool space_retry(const struct kvtier_space *space)
{
	return space->state == SPACE_REFUSED && space->known && !space_leaves(space) &&
	       clock_ns() - space->refused_ns >= ms_to_ns(CLIENT_REOPEN_MS);
}

static void space_sent(struct kvtier_client *c, struct kvtier_space *space)
{
	space->seq = c->seq;
	space->state = SPACE_OPENING;
	space->allocs_due = false;
}

/* This process cannot open the space: the daemon is told to give back the allocations that it has.
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

/* 0: it was sent, or refused for good. -EAGAIN: the socket is full. Another -errno: the connection
 * is lost. */
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
		return send_open(c, space); /* tries the next rung; the last is refused for good */
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

/* The daemon knows the words of the space's GPU, or has refused them. */
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
	rc = cuda_orders_advance(&c->orders, c->fd, &c->seq);
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
		if (space->state == SPACE_OPEN && space_leaves(space)) {
			rc = send_close(c, space);
		} else if (space->state == SPACE_OPENING && space->allocs_due) {
			rc = send_open(c, space);
		} else if (space_is_ours(space) && space_leaves(space)) {
			space_gone(space);
		} else if (space->state == SPACE_WANTED && !opening && orders_told(space) &&
			   clock_ns() >= space->busy.retry_ns) {
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

static int space_opened(struct kvtier_client *c, struct kvtier_space *space,
			const struct packet *packet)
{
	const struct wire_space_ok *ok = &packet->space_ok;
	const struct fingerprint_key index_key = fingerprint_key_of(ok->index_key);

	if (ok->space >= WIRE_MAX_SPACES || handle_taken(c, ok->space))
		return error_set(-EPROTO, "SPACE_OK.space is %u: out of range, or in use",
				 ok->space);
	/* Staging memory is whole pages of the kernel's: a few more small pages may fit. */
	if (ok->pages > (uint64_t)UINT32_MAX + 1 || (space->has_pages != (ok->pages != 0)) ||
	    (space->staged && ok->pages < space->staged->pages))
		return error_set(-EPROTO, "SPACE_OK.pages is %llu, which does not fit the regions",
				 (unsigned long long)ok->pages);
	if (space->known && ((space->pages && ok->pages != space->pages) ||
			     memcmp(ok->space_id, space->space_id, sizeof(space->space_id)) != 0))
		return error_set(-EPROTO, "the space came back as another one");
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
	if (space->cuda && !space->staged && cuda_busy_again(&space->busy, error->error))
		space->state = SPACE_WANTED;
	else if (space_memory_refused(space, error->error, error->text))
		space->state = SPACE_WANTED;
	else
		space_refused(space, error->error, "kvtierd: ", error->text);
}

int spaces_reply(struct kvtier_client *c, const struct packet *packet)
{
	struct kvtier_space *space = NULL;

	if (cuda_orders_reply(&c->orders, packet->head.type, packet->head.seq))
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
	if (packet->head.type == WIRE_ALLOCS_OK && space->state == SPACE_OPENING) {
		space->allocs_due = true;
		return 0;
	}
	if (packet->head.type == WIRE_SPACE_OK && space->state == SPACE_OPENING)
		return space_opened(c, space, packet);
	if (packet->head.type == WIRE_SPACE_CLOSED && space->state == SPACE_CLOSING &&
	    packet->closed.space == space->handle) {
		space_gone(space);
		return 0;
	}
	return error_set(-EPROTO, "a reply of type %u to another request", packet->head.type);
}
