/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space_memory.c - the memory that a space's pages lie in: the caller's regions, and how the daemon
 * is told of them (states of a space: space.h).
 *
 *	KVTIER_MEMFD    duplicates of the descriptors, sent with each opening
 *	KVTIER_PRIVATE  a memfd of the library in front of them (staged.c)
 *	KVTIER_CUDA     exported anew for each opening, rung by rung (cuda.h); the last is staged;
 *			before the first, if it is asked for, engine mode: memory that comes with
 *			the answer (encoded.c)
 *
 * The arguments of the opening are kept, so that a rung that a daemon refuses is followed by the
 * next, and a quiesced space can come back with other regions.
 */
#include "space_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "client.h"
#include "cuda_memory.h"
#include "cuda_probe.h"
#include "error.h"
#include "lent.h"
#include "op.h"
#include "populate.h"
#include "socket.h"
#include "space.h"
#include "staged.h"

/* The message that opens the space. */
static int message_make(struct kvtier_space *space)
{
	const struct space_layout *l = space->layout;
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
					     .length = staged_bytes(space->staged) };
	if (space->staged && staged_encoded(space->staged)) {
		r[0].memory = WIRE_DEVICE_ENGINE;
		memcpy(r[0].device, space->cuda->device.uuid, sizeof(r[0].device));
	}
	if (space->cuda)
		memcpy(m->not_engine, space->cuda->not_engine, sizeof(m->not_engine));
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
	const struct space_layout *l = space->layout;

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
	const struct space_layout *l = space->layout;
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
	const struct space_layout *l = space->layout;
	struct kvtier_client *c = space->client;
	struct staged *staged = NULL;
	const bool encodes = space->cuda && space->cuda->rung == CUDA_RUNG_ENGINE;
	int rc = (encodes ? staged_open_encoded :
			    staged_open)(&l->geometry, l->regions, l->segments, l->n_segments,
					 c->staging_bytes, space->cuda, &staged);

	if (rc)
		return rc;
	(void)pthread_mutex_lock(&c->ring);
	space->staged = staged;
	(void)pthread_mutex_unlock(&c->ring);
	return 0;
}

static bool is_staged(const struct cuda_memory *cuda)
{
	return cuda->rung == CUDA_RUNG_STAGED || cuda->rung == CUDA_RUNG_ENGINE;
}

/* Makes the staging memory of the rung. Where that fails in engine mode, the process takes the next
 * rung. */
static int stage_rung(struct kvtier_space *space)
{
	int rc = is_staged(space->cuda) ? stage(space) : 0;

	while (rc && space->cuda->rung == CUDA_RUNG_ENGINE &&
	       cuda_memory_next(space->cuda, kvtier_last_error()))
		rc = is_staged(space->cuda) ? stage(space) : 0;
	return rc;
}

static int memfd_open(struct kvtier_space *space)
{
	const struct space_layout *l = space->layout;
	int rc = descriptors_keep(space);

	if (!rc && l->n_segments)
		rc = populate_open(&l->geometry, l->regions, l->n_regions, l->segments,
				   l->n_segments, &space->populate);
	return rc;
}

static int cuda_open(struct kvtier_space *space)
{
	const struct space_layout *l = space->layout;
	const struct kvtier_client *c = space->client;
	const bool engine = (c->gpu_mode ? c->gpu_mode : c->gpu_mode_advised) == KVTIER_GPU_ENGINE;
	int rc = cuda_memory_open(l->regions, l->n_regions, c->shares_pids, engine, &space->cuda);

	return rc ? rc : stage_rung(space);
}

static void text_make(struct kvtier_space *space)
{
	static const char *const names[] = {
		[0] = "none: lookups and prefetches only",
		[KVTIER_MEMFD] = "memfd",
		[KVTIER_PRIVATE] = "staged",
	};
	char text[sizeof(space->memory)];

	if (space->cuda)
		cuda_memory_text(space->cuda, text, sizeof(text));
	else
		(void)snprintf(text, sizeof(text), "%s", names[space->layout->memory]);
	(void)pthread_mutex_lock(&space->client->ring);
	memcpy(space->memory, text, sizeof(text));
	(void)pthread_mutex_unlock(&space->client->ring);
}

int space_memory_open(struct kvtier_space *space)
{
	const struct space_layout *l = space->layout;
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

/* Staging memory goes; no op of the space runs. */
static void unstage(struct kvtier_space *space)
{
	struct staged *staged = space->staged;

	(void)pthread_mutex_lock(&space->client->ring);
	space->staged = NULL;
	(void)pthread_mutex_unlock(&space->client->ring);
	staged_close(staged);
}

/* The next rung, if this refusal is about how the memory is reached. */
bool space_memory_refused(struct kvtier_space *space, int error, const char *why)
{
	const bool engine = space->cuda && space->cuda->rung == CUDA_RUNG_ENGINE;
	const bool by_memory = error == -ENODEV || error == -ENXIO || error == -EOPNOTSUPP ||
			       error == -EPERM || error == -EBUSY;

	if (!space->cuda || (space->staged && !engine) || !(by_memory || engine) ||
	    !cuda_memory_next(space->cuda, why))
		return false;
	if (engine)
		unstage(space);
	if (space->cuda->rung == CUDA_RUNG_STAGED &&
	    (ops_stage_copies(space->client) || stage(space)))
		return false;
	if (message_make(space))
		return false;
	if (engine && !space->staged && !space->lent && lent_open(space))
		return false;
	if (engine && !space->staged && space->order)
		space->order->wanted = true;
	space->pages = 0; /* a staged space has as many as its buffer */
	text_make(space);
	return true;
}

int space_memory_again(struct kvtier_space *space)
{
	int rc;

	if (!space->cuda || !cuda_memory_again(space->cuda))
		return 0;
	if (space->staged)
		unstage(space);
	rc = stage_rung(space);
	if (!rc)
		rc = message_make(space);
	if (!rc && !space->staged && !space->lent)
		rc = lent_open(space);
	if (rc)
		return rc;
	if (!space->staged && space->order)
		space->order->wanted = true;
	space->pages = 0;
	space->cuda->anew = false;
	text_make(space);
	return 0;
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
	if (staged_encoded(space->staged))
		return socket_send(c->fd, space->message, space->message->head.length, NULL, 0);
	fd = staged_fd(space->staged);
	return socket_send(c->fd, space->message, space->message->head.length, &fd, 1);
}

static int send_parts(struct kvtier_space *space, struct cuda_parts *p)
{
	const size_t bytes = sizeof(p->message) + p->message.n_parts * sizeof(p->parts[0]);

	p->message.head = (struct wire_head){ .magic = WIRE_MAGIC,
					      .type = WIRE_PARTS,
					      .length = (uint32_t)bytes,
					      .seq = space->message->head.seq };
	return socket_send(space->client->fd, &p->message, bytes, p->fds, p->n_fds);
}

int space_memory_unsend(struct kvtier_space *space)
{
	struct cuda_parts none;
	int rc;

	if (!space->cuda || !space->cuda->told_any)
		return 0;
	none.message = (struct wire_parts){ 0 };
	none.n_fds = 0;
	rc = send_parts(space, &none);
	return rc ? rc : 1;
}

static int send_cuda(struct kvtier_space *space)
{
	struct wire_region *regions = (struct wire_region *)(void *)(space->message + 1);
	int fds[KVTIER_MAX_REGIONS], rc;
	struct cuda_parts parts;
	size_t n;

	rc = cuda_memory_parts(space->cuda, &parts);
	if (rc < 0)
		return rc;
	if (rc > 0) {
		rc = send_parts(space, &parts);
		while (parts.n_fds > 0)
			(void)close(parts.fds[--parts.n_fds]);
		if (rc)
			return rc;
		cuda_memory_told(space->cuda);
		return 1;
	}
	rc = cuda_memory_export(space->cuda, regions, fds, &n);
	if (rc)
		return rc;
	rc = socket_send(space->client->fd, space->message, space->message->head.length, fds, n);
	while (n > 0)
		(void)close(fds[--n]);
	return rc;
}

int space_memory_send(struct kvtier_space *space)
{
	if (space->staged)
		return send_staged(space);
	if (space->cuda)
		return send_cuda(space);
	return socket_send(space->client->fd, space->message, space->message->head.length,
			   space->fds, space->n_fds);
}

int kvtier_space_memory(const struct kvtier_space *space, char *ret, size_t n)
{
	const int rc = space_check(space);
	int length;

	if (rc)
		return rc;
	if (!ret || !n)
		return error_set(-EINVAL, "ret must not be NULL, nor n 0");
	(void)pthread_mutex_lock(&space->client->ring);
	length = snprintf(ret, n, "%s", space->memory);
	(void)pthread_mutex_unlock(&space->client->ring);
	return (size_t)length < n ? 0 : error_set(-ENOSPC, "the sentence has %d bytes", length);
}
