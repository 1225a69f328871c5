/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.c - a client and its spaces as their caller sees them: connected, opened, quiesced,
 * closed, and how they stand; kvtier_lookup(), which takes no lock (client.h says why that is
 * safe). A call notes the state that it wants, and waits until session.c and client_space.c have
 * brought that state about. Locks: client.h.
 */
#include "client.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client/abi/runtime_dir.h"
#include "base/clock.h"
#include "client/lib/base/client_ring.h"
#include "client/lib/base/keys.h"
#include "client/lib/base/last_error.h"
#include "client/lib/base/lent.h"
#include "client/lib/base/map.h"
#include "client/lib/base/pages.h"
#include "client/lib/base/process.h"
#include "client/lib/memory/cuda_memory.h"
#include "client_op.h"
#include "client_space.h"
#include "op_calls.h"
#include "session.h"

/* ---- connecting ---- */

enum { DEFAULT_STAGING_BYTES = 16 << 20 };

const char *kvtier_version(void)
{
	return KVTIER_VERSION;
}

/* Anybody can make a directory in /tmp before the daemon does, and would be shown this process's
 * pages. */
static int check_private(const char *dir)
{
	struct stat st;

	if (lstat(dir, &st))
		return error_set(
			-ENOENT,
			"no kvtierd of user %u or of the node: KVTIER_SOCKET and XDG_RUNTIME_DIR "
			"are not set, and there is no %s and no " RUNTIME_DIR_NODE_SOCKET
			": start kvtierd, or set KVTIER_SOCKET to its socket",
			(unsigned)geteuid(), dir);
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)))
		return error_set(-EPERM,
				 "%s: must be a directory of user %u that nobody else can write to",
				 dir, (unsigned)geteuid());
	return 0;
}

static int path_default(struct kvtier_client *c)
{
	const char *path = getenv("KVTIER_SOCKET");
	char dir[PATH_MAX];
	int rc, length;

	if (path && *path) {
		length = snprintf(c->path, sizeof(c->path), "%s", path);
	} else {
		rc = runtime_dir(dir, sizeof(dir));
		c->or_node = strcmp(dir, RUNTIME_DIR_NODE) != 0;
		if (rc == 1)
			rc = check_private(dir);
		if (rc && rc != -ENAMETOOLONG && access(RUNTIME_DIR_NODE_SOCKET, F_OK) == 0)
			rc = (strcpy(dir, RUNTIME_DIR_NODE), 0);
		if (rc && rc != -ENAMETOOLONG)
			return rc;
		length =
			rc ? -1 : snprintf(c->path, sizeof(c->path), "%s/" RUNTIME_DIR_SOCKET, dir);
	}
	return length >= 0 && (size_t)length < sizeof(c->path) ?
		       0 :
		       error_set(-ENAMETOOLONG, "the default socket path is longer than %zu bytes",
				 sizeof(c->path) - 1);
}

static int options_apply(struct kvtier_client *c, const struct kvtier_options *options)
{
	struct kvtier_options o = { 0 };
	const char *name;
	int rc = options ? error_struct_in(&o, sizeof(o), options, "options") : 0;

	if (rc)
		return rc;
	c->timeout_ms = o.timeout_ms ? o.timeout_ms : CLIENT_TIMEOUT_MS;
	c->staging_bytes = o.staging_bytes ? o.staging_bytes : DEFAULT_STAGING_BYTES;
	c->spin_us = o.spin_us;
	name = o.name && *o.name ? o.name : program_invocation_short_name;
	(void)snprintf(c->name, sizeof(c->name), "%s", name);
	for (char *p = c->name; *p; p++)
		if (!isprint((unsigned char)*p))
			*p = '?';
	if (!o.socket_path)
		return path_default(c);
	/* the kernel would read 108 zeros as a name, which anybody may take */
	if (!*o.socket_path)
		return error_set(-EINVAL, "options.socket_path is empty; NULL means the default");
	if (strlen(o.socket_path) >= sizeof(c->path))
		return error_set(-ENAMETOOLONG, "options.socket_path is longer than %zu bytes",
				 sizeof(c->path) - 1);
	strcpy(c->path, o.socket_path);
	return 0;
}

static void client_free(struct kvtier_client *c)
{
	if (!c)
		return;
	assert(!c->retired);
	cuda_orders_close(&c->orders);
	if (c->epoll_fd >= 0)
		(void)close(c->epoll_fd);
	if (c->event_fd >= 0)
		(void)close(c->event_fd);
	ops_close(c);
	(void)pthread_mutex_destroy(&c->control);
	(void)pthread_mutex_destroy(&c->ring);
	free(c);
}

/* kvtier_event_fd() returns the epoll's descriptor. The epoll watches the event that says that
 * results wait, and the socket. */
static int events_open(struct kvtier_client *c)
{
	struct epoll_event event = { .events = EPOLLIN };

	c->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->event_fd >= 0)
		c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (c->epoll_fd < 0 || epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, c->event_fd, &event))
		return error_set(-errno, "cannot make an event descriptor: %s",
				 strerrordesc_np(errno));
	return 0;
}

static int client_new(const struct kvtier_options *options, struct kvtier_client **ret)
{
	struct kvtier_client *c = calloc(1, sizeof(*c));
	int rc;

	if (!c)
		return error_set(-ENOMEM, "out of memory");
	(void)pthread_mutex_init(&c->control, NULL);
	(void)pthread_mutex_init(&c->ring, NULL);
	c->orders.ring = &c->ring;
	c->orders.path = c->path;
	c->orders.serial = &c->op_serial;
	c->process = process_begin();
	c->fd = -1;
	c->event_fd = c->epoll_fd = -1;
	rc = options_apply(c, options);
	if (!rc)
		rc = events_open(c);
	if (!rc)
		rc = ops_open(c);
	if (rc) {
		client_free(c);
		return rc;
	}
	*ret = c;
	return 0;
}

static void client_end(struct kvtier_client *c)
{
	(void)pthread_mutex_lock(&c->control);
	session_lost(c, -ECANCELED, "closed");
	session_reap(c); /* no other thread is in a call, so all are unmapped */
	(void)pthread_mutex_unlock(&c->control);
	client_free(c);
}

/* Whether a daemon lives there, and may have a place a moment later. -EAGAIN means that its backlog
 * is full, -EBUSY after a connection that it refused this one, -ECONNRESET that a daemon that stops
 * ended the first one: the next one waits in the socket of the service manager, if there is one. */
static bool worth_another_try(const struct kvtier_client *c)
{
	return c->error == -EAGAIN || (c->error == -EBUSY && c->connections > 0) ||
	       (c->error == -ECONNRESET && c->connections <= 1);
}

/* Whether the client is connected: 0; -EAGAIN: not yet. A try under way keeps the error of the last
 * one: where that is a refusal, it says more than "no answer". Control held. */
static int connect_look(struct kvtier_client *c, bool late)
{
	if (c->state == SESSION_UP)
		return 0;
	if (late ? c->error == -EBUSY : c->state == SESSION_AWAY && !worth_another_try(c))
		return error_set(c->error, "%s", c->text);
	return late ? error_set(-ETIMEDOUT, "no answer on %s in %u ms", c->path, c->timeout_ms) :
		      -EAGAIN;
}

int kvtier_connect(const struct kvtier_options *options, struct kvtier_client **ret)
{
	struct kvtier_client *c = NULL;
	uint64_t deadline;
	int rc;

	if (!ret)
		return error_set(-EINVAL, "ret is NULL");
	rc = client_new(options, &c);
	if (rc)
		return rc;
	deadline = clock_ns() + ms_to_ns(c->timeout_ms);
	for (;;) {
		const uint64_t now = clock_ns();

		(void)pthread_mutex_lock(&c->control);
		session_advance(c, now);
		rc = connect_look(c, now >= deadline);
		(void)pthread_mutex_unlock(&c->control);
		if (rc != -EAGAIN)
			break;
		session_pause(c, deadline);
	}
	if (rc)
		client_end(c);
	else
		*ret = c;
	return rc;
}

/* ---- how it stands ---- */

/* Control held. */
static int say_session(const struct kvtier_client *c, char *ret, size_t n)
{
	if (c->state == SESSION_AWAY)
		return snprintf(ret, n, "not connected: %s", c->text);
	return snprintf(ret, n, "connect%s to %s", c->state == SESSION_UP ? "ed" : "ing", c->path);
}

static int say_lent(const struct lent_wait *wait, char *ret, size_t n)
{
	if (wait->pages == 0)
		return 0;
	return snprintf(ret, n,
			"; waits for kvtierd (pid %" PRId32 ") to answer or end: %" PRIu64
			" pages are lent still over %" PRIu32 " cut connection%s (systemd ends a "
			"kvtierd that stands still for 30 s)",
			wait->pid, wait->pages, wait->connections,
			wait->connections == 1 ? "" : "s");
}

int kvtier_tiers(struct kvtier_client *c)
{
	const int rc = client_check(c);

	return rc ? rc : (int)atomic_load(&c->tiers);
}

int kvtier_status(struct kvtier_client *c, char *ret, size_t n)
{
	const int rc = client_check(c);
	struct lent_wait wait;
	int length, state;

	if (rc)
		return rc;
	lent_wait(&wait);
	(void)pthread_mutex_lock(&c->control);
	session_advance(c, clock_ns());
	state = (c->state == SESSION_UP ? KVTIER_CONNECTED : 0) |
		(c->state == SESSION_GREETING ? KVTIER_CONNECTING : 0) |
		(wait.pages > 0 ? KVTIER_WAITING : 0);
	length = say_session(c, ret, ret ? n : 0);
	(void)pthread_mutex_unlock(&c->control);
	if (ret && (size_t)length < n)
		length += say_lent(&wait, ret + length, n - (size_t)length);
	return !ret || (size_t)length < n ? state :
					    error_set(-ENOSPC, "the sentence has %d bytes", length);
}

/* ---- a space is opened ---- */

/* Checks the arguments and keeps them. */
static int space_make(struct kvtier_client *c, const struct kvtier_geometry *geometry,
		      const struct kvtier_region *regions, size_t n_regions,
		      const struct kvtier_segment *segments, size_t n_segments,
		      struct kvtier_space *space)
{
	int rc = check_layout(geometry, regions, n_regions, segments, n_segments, &space->layout);

	space->client = c;
	space->has_pages = n_segments != 0;
	if (!rc)
		rc = keys_open(space->layout.geometry.block_tokens, &space->keys);
	if (!rc)
		rc = space_memory_open(space);
	return rc;
}

static int space_list(struct kvtier_client *c, struct kvtier_space *space)
{
	int rc = space->staged ? ops_stage_copies(c) : 0;

	if (!rc && space->cuda)
		rc = cuda_order_of(&c->orders, &space->cuda->device, &space->order);
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

/* Waits until the space is open (0), or it is clear that it will not be. Control is held on entry
 * and on exit, and released in between. */
static int space_await(struct kvtier_client *c, const struct kvtier_space *space)
{
	const uint64_t deadline = clock_ns() + ms_to_ns(c->timeout_ms);

	for (;;) {
		const uint64_t now = clock_ns();

		session_advance(c, now);
		if (space->state == SPACE_OPEN)
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
	space = calloc(1, sizeof(*space)); /* its layout is touched as far as it is used */
	if (!space)
		return error_set(-ENOMEM, "out of memory");
	rc = space_make(c, geometry, regions, n_regions, segments, n_segments, space);
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
			rc = op_cancel(c, id, deadline);
	}
	return rc == -ETIMEDOUT ? rc : 0;
}

/* Lets the space's ops end by themselves until the deadline, and then cancels the others. */
static int space_drain(struct kvtier_space *space, uint64_t deadline)
{
	space_shut(space);
	for (size_t i = 0; i < KVTIER_MAX_OPS; i++) {
		const uint64_t id = running_op(space, i);

		if (id)
			(void)op_await(space->client, id, deadline);
	}
	return space_cancel(space, clock_ns() + ms_to_ns(CLIENT_GRACE_MS));
}

/* Waits until the daemon has read our last entry. It reads ring and socket in any order, and
 * SPACE_CLOSE must come behind the entries of the space. */
static void ring_flush(struct kvtier_client *c, uint64_t deadline)
{
	bool first = true, passed = false;
	uint64_t serial = 0;
	uint32_t tail = 0;

	while (!passed && clock_ns() < deadline) {
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

/* Waits until the daemon has given the space back, or cuts the connection. The space is then GONE,
 * or QUIET. Control is held on entry and on exit, and released in between. */
static void space_end(struct kvtier_client *c, struct kvtier_space *space, uint64_t deadline)
{
	const enum space_state end = space->close_wanted ? SPACE_GONE : SPACE_QUIET;

	for (;;) {
		const uint64_t now = clock_ns();

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

static int space_close_until(struct kvtier_space *space, uint64_t deadline)
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
	deadline = clock_ns() + ms_to_ns(c->timeout_ms);
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
	if (!rc && !regions && space->layout.memory == KVTIER_MEMFD)
		rc = error_set(-EINVAL,
			       "regions is NULL: the descriptors of KVTIER_MEMFD regions are "
			       "not kept, give them again");
	if (!rc && regions)
		rc = check_regions_again(&space->layout, regions, n_regions);
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

static void space_disown(struct kvtier_space *space)
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
	return space_close_until(space, clock_ns() + ms_to_ns(space->client->timeout_ms));
}

int kvtier_space_memory(const struct kvtier_space *space, char *ret, size_t n)
{
	int length, rc = space_check(space);

	if (rc)
		return rc;
	(void)pthread_mutex_lock(&space->client->ring);
	length = snprintf(ret, ret ? n : 0, "%s", space->memory);
	rc = (int)space->reach;
	(void)pthread_mutex_unlock(&space->client->ring);
	return !ret || (size_t)length < n ? rc :
					    error_set(-ENOSPC, "the sentence has %d bytes", length);
}

/* ---- the client is closed ---- */

/* In a process that did not make the client, frees what this process has of it. This takes no lock,
 * as a thread of the parent may have held it at the fork. It does not use the socket, and writes to
 * no memory that the parent shares. */
static void client_disown(struct kvtier_client *c)
{
	struct link *link = atomic_load(&c->link);

	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++)
		if (c->spaces[i])
			space_disown(c->spaces[i]);
	link_close(link);
	while ((link = c->retired) != NULL) {
		c->retired = link->next;
		link_close(link);
	}
	if (c->fd >= 0)
		(void)close(c->fd);
	client_free(c);
}

void kvtier_close(struct kvtier_client *c)
{
	uint64_t deadline;

	if (!c)
		return;
	if (!process_ours(c->process)) {
		client_disown(c);
		return;
	}
	deadline = clock_ns() + ms_to_ns(c->timeout_ms); /* one deadline for all spaces */
	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++) {
		struct kvtier_space *space;

		(void)pthread_mutex_lock(&c->control);
		space = c->spaces[i];
		if (space && space->orphan)
			space = NULL; /* it is freed with the connection */
		(void)pthread_mutex_unlock(&c->control);
		if (space)
			(void)space_close_until(space, deadline);
	}
	client_end(c);
}

int kvtier_set_timeout(struct kvtier_client *c, uint32_t timeout_ms)
{
	const int rc = client_check(c);

	if (!rc)
		atomic_store(&c->timeout_ms, timeout_ms ? timeout_ms : CLIENT_TIMEOUT_MS);
	return rc;
}

/* ---- keys, and what is present ---- */

int kvtier_keys(const struct kvtier_space *space, const struct kvtier_key *parent,
		const uint32_t *tokens, size_t n_tokens, struct kvtier_key *ret, size_t *ret_n)
{
	if (!space || !ret_n || (n_tokens && !tokens) || (*ret_n && !ret))
		return error_set(-EINVAL,
				 "kvtier_keys: space, tokens, ret and ret_n must not be NULL");
	if (!process_ours(space->client->process))
		return process_refuse();
	return keys_chain(space->keys, parent, tokens, n_tokens, ret, ret_n);
}

static void lookup_add(uint64_t *counter, uint64_t n)
{
	if (n)
		(void)__atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

/* Counts in shared memory, where the daemon reads it. Concurrent callers lose no count. */
static void lookup_count(const struct kvtier_space *space, struct link *link,
			 const uint32_t from[MAP_TIERS], uint64_t n, uint64_t hits)
{
	const uint64_t tokens = space->layout.geometry.block_tokens;
	struct wire_lookups *l =
		&link->submit->lookups[wire_lookups_at(link->version, space->handle)];

	static_assert(KVTIER_TIER_GPU == 1 && KVTIER_TIER_HOST == 2 && KVTIER_TIER_NVME == 4 &&
			      KVTIER_TIER_REDIS == 8,
		      "from[] has them in this order");
	lookup_add(&l->gpu_hits, from[0]);
	lookup_add(&l->nvme_hits, from[2]);
	lookup_add(&l->redis_hits, from[3]);
	lookup_add(&l->hits, hits);
	lookup_add(&l->tokens, n * tokens);
	lookup_add(&l->hit_tokens, hits * tokens);
	lookup_add(&l->calls, 1);
	(void)__atomic_fetch_add(&l->blocks, n, __ATOMIC_RELEASE);
}

/* A stopped daemon's index is out of date. */
static bool fresh(const struct link *link)
{
	const uint64_t beat = __atomic_load_n(&link->index->heartbeat_ns, __ATOMIC_RELAXED);

	return (int64_t)(clock_ns() + (uint64_t)link->ahead_least_ns - beat) <=
	       (int64_t)ms_to_ns(WIRE_STALE_MS);
}

static struct fingerprint_key space_index_key(const struct kvtier_space *space)
{
	struct fingerprint_key ret;

	for (int i = 0; i < 2; i++)
		ret.k[i] = atomic_load_explicit(&space->index_key[i], memory_order_relaxed);
	return ret;
}

int kvtier_lookup(struct kvtier_space *space, const struct kvtier_key *keys, size_t n,
		  struct kvtier_hit *ret)
{
	struct kvtier_hit hit = { 0 };
	struct kvtier_client *c;
	struct link *link;
	bool usable;

	if (!space || (n && !keys) || !ret)
		return error_set(-EINVAL, "space, keys and ret must not be NULL");
	if (ret->size < sizeof(ret->size) || n > UINT32_MAX)
		return error_set(
			-EINVAL,
			"ret.size is %u and n %zu: set size to sizeof the struct, %zu; n to a "
			"number of blocks",
			ret->size, n, sizeof(hit));
	c = space->client;
	if (!process_ours(c->process))
		return process_refuse();
	(void)atomic_fetch_add(&c->readers, 1);
	link = atomic_load(&c->link);
	usable = link && atomic_load_explicit(&space->open, memory_order_acquire) && fresh(link);
	if (usable) {
		const struct fingerprint_key index_key = space_index_key(space);
		const uint32_t gpus = atomic_load(&space->gpus);
		uint32_t from[MAP_TIERS];
		struct map_ends ends;

		hit.blocks = (uint32_t)map_prefix(link->map, &index_key, keys, n, &ends);
		hit.tiers = wire_tiers(ends.last, gpus);
		map_spread(link->map, &index_key, keys, hit.blocks, &ends, gpus, from);
		lookup_count(space, link, from, n, hit.blocks);
	}
	(void)atomic_fetch_sub(&c->readers, 1);
	if (!usable)
		session_nudge(c);
	hit.size = ret->size;
	memcpy(ret, &hit, hit.size < sizeof(hit) ? hit.size : sizeof(hit));
	return 0;
}
