/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.c - a client's life, and the calls that are not about one space: connect, close, wait,
 * poll, event_fd; and kvtier_lookup(), which takes no lock (client.h says why that is safe). Locks:
 * client.h.
 */
#include "client.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client/runtime_dir.h"
#include "check.h"
#include "clock.h"
#include "cuda_order.h"
#include "error.h"
#include "lent.h"
#include "map.h"
#include "op.h"
#include "process.h"
#include "ring.h"
#include "session.h"
#include "space.h"
#include "submit.h"
#include "turn.h"

enum { DEFAULT_STAGING_BYTES = 16 << 20 };

const char *kvtier_version(void)
{
	return KVTIER_VERSION;
}

/* In /tmp anybody may have made the directory before the daemon did, to be shown this process's
 * pages. */
static int check_private(const char *dir)
{
	struct stat st;

	if (lstat(dir, &st))
		return error_set(
			-ENOENT,
			"no kvtierd of user %u: KVTIER_SOCKET and XDG_RUNTIME_DIR are not set, and "
			"there is no %s",
			(unsigned)geteuid(), dir);
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)))
		return error_set(-EPERM,
				 "%s: must be a directory of user %u that nobody else can write to",
				 dir, (unsigned)geteuid());
	return 0;
}

static int path_default(char *ret, size_t n)
{
	const char *path = getenv("KVTIER_SOCKET");
	char dir[PATH_MAX];
	int rc, length;

	if (path && *path) {
		length = snprintf(ret, n, "%s", path);
	} else {
		rc = runtime_dir(dir, sizeof(dir));
		if (rc == 1)
			rc = check_private(dir);
		if (rc && rc != -ENAMETOOLONG)
			return rc;
		length = rc ? -1 : snprintf(ret, n, "%s/" RUNTIME_DIR_SOCKET, dir);
	}
	return length >= 0 && (size_t)length < n ?
		       0 :
		       error_set(-ENAMETOOLONG, "the default socket path is longer than %zu bytes",
				 n - 1);
}

static int options_apply(struct kvtier_client *c, const struct kvtier_options *options)
{
	struct kvtier_options o = { 0 };
	const char *name;
	int rc = options ? error_struct_in(&o, sizeof(o), options, "options") : 0;

	if (rc)
		return rc;
	if (o.gpu_mode > KVTIER_GPU_ENGINE)
		return error_set(-EINVAL, "options.gpu_mode is %u, must be at most %d", o.gpu_mode,
				 KVTIER_GPU_ENGINE);
	c->gpu_mode = o.gpu_mode;
	c->timeout_ms = o.timeout_ms ? o.timeout_ms : CLIENT_TIMEOUT_MS;
	c->staging_bytes = o.staging_bytes ? o.staging_bytes : DEFAULT_STAGING_BYTES;
	c->spin_us = o.spin_us;
	name = o.name && *o.name ? o.name : program_invocation_short_name;
	(void)snprintf(c->name, sizeof(c->name), "%s", name);
	for (char *p = c->name; *p; p++)
		if (!isprint((unsigned char)*p))
			*p = '?';
	if (!o.socket_path)
		return path_default(c->path, sizeof(c->path));
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
	cuda_orders_close(c);
	if (c->epoll_fd >= 0)
		(void)close(c->epoll_fd);
	if (c->event_fd >= 0)
		(void)close(c->event_fd);
	ops_close(c);
	(void)pthread_mutex_destroy(&c->control);
	(void)pthread_mutex_destroy(&c->ring);
	free(c);
}

/* kvtier_event_fd() gives the epoll's descriptor. The epoll has the event of results that wait, and
 * the daemon's packets. */
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
	session_reap(c); /* no other thread is in a call: nothing stays */
	(void)pthread_mutex_unlock(&c->control);
	client_free(c);
}

/* A daemon lives there, and may have a place a moment later. -EAGAIN: its backlog is full. -EBUSY:
 * it refused a connection that was made. */
static bool worth_another_try(const struct kvtier_client *c)
{
	return c->error == -EAGAIN || (c->error == -EBUSY && c->connections > 0);
}

/* Whether the client is connected: 0; -EAGAIN: not yet. Control held. */
static int connect_look(struct kvtier_client *c, bool late)
{
	if (c->state == SESSION_UP)
		return 0;
	if (c->state == SESSION_AWAY && (late ? c->error == -EBUSY : !worth_another_try(c)))
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
	deadline = client_now() + ms_to_ns(c->timeout_ms);
	for (;;) {
		const uint64_t now = client_now();

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

/* In a process that did not make the client: frees this process's part of it. No lock is taken, as
 * a thread that is not here may hold it. Nothing is sent or shut down, and no memory is written to
 * that the parent shares. */
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
	deadline = client_now() + ms_to_ns(c->timeout_ms); /* one deadline for all spaces */
	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++) {
		struct kvtier_space *space;

		(void)pthread_mutex_lock(&c->control);
		space = c->spaces[i];
		if (space && space->orphan)
			space = NULL; /* the space goes with the connection */
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

/* Counts in shared memory, for the daemon to show; concurrent callers lose no count. */
static void lookup_count(struct link *link, size_t n, uint32_t hits)
{
	(void)__atomic_fetch_add(&link->submit->lookup_blocks, n, __ATOMIC_RELAXED);
	if (hits)
		(void)__atomic_fetch_add(&link->submit->lookup_hits, hits, __ATOMIC_RELAXED);
}

/* A stopped daemon's index is out of date. */
static bool fresh(const struct link *link)
{
	const uint64_t beat = __atomic_load_n(&link->index->heartbeat_ns, __ATOMIC_RELAXED);

	return (int64_t)(client_now() + (uint64_t)link->ahead_least_ns - beat) <=
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
	uint32_t places = 0;
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

		hit.blocks = (uint32_t)map_prefix(link->map, &index_key, keys, n, &places,
						  &hit.generation);
		hit.tiers = wire_tiers(places, atomic_load(&space->gpus));
		lookup_count(link, n, hit.blocks);
	}
	(void)atomic_fetch_sub(&c->readers, 1);
	if (!usable)
		session_nudge(c);
	hit.size = ret->size;
	memcpy(ret, &hit, hit.size < sizeof(hit) ? hit.size : sizeof(hit));
	return 0;
}

static int result_check(const struct kvtier_result *ret)
{
	if (ret && ret->size < sizeof(ret->size))
		return error_set(-EINVAL, "ret.size is %u: set it to sizeof the struct, %zu",
				 ret->size, sizeof(*ret));
	return 0;
}

int kvtier_wait(struct kvtier_client *c, uint64_t id, int timeout_ms, struct kvtier_result *ret)
{
	int rc = client_check(c);

	if (!rc)
		rc = result_check(ret);
	return rc ? rc : op_await(c, id, op_limit(c, id, timeout_ms), true, ret);
}

/* Which pages of it are lent still? 0: none, it has ended. */
static int cancel_check(struct kvtier_client *c, uint64_t id)
{
	const struct op *op;
	uint32_t n = 0;
	bool runs;

	(void)pthread_mutex_lock(&c->ring);
	op = op_find(c, id);
	runs = op && op->state == OP_RUNNING;
	if (op)
		n = runs ? op->n : lent_op(op->grave, id);
	(void)pthread_mutex_unlock(&c->ring);
	if (runs)
		return error_set(-ETIMEDOUT,
				 "op %llu still runs: its %u pages are lent until it ends",
				 (unsigned long long)id, n);
	if (n)
		return error_set(
			-ETIMEDOUT,
			"op %llu has ended with its connection, but %u of its pages are lent "
			"still: kvtier_lent() names them",
			(unsigned long long)id, n);
	return 0;
}

int kvtier_cancel(struct kvtier_client *c, uint64_t id, int timeout_ms)
{
	int rc = client_check(c);

	if (!rc)
		rc = submit_cancel(c, id,
				   client_now() + ms_to_ns(timeout_ms < 0 ? c->timeout_ms :
									    (uint64_t)timeout_ms));
	return rc && rc != -ETIMEDOUT ? rc : cancel_check(c, id);
}

/* Where kvtier_lent() writes to. */
struct lent_room {
	uint8_t *to;
	size_t stride, max;
};

static void lent_put(void *arg, size_t at, const struct kvtier_lent *lent)
{
	const struct lent_room *room = arg;
	struct kvtier_lent out = *lent;

	if (at >= room->max)
		return;
	out.size = room->stride < sizeof(out) ? (uint32_t)room->stride : (uint32_t)sizeof(out);
	memcpy(room->to + at * room->stride, &out, out.size);
}

/* Pages of running ops. Ring held. */
static size_t lent_running(struct kvtier_client *c, struct lent_room *room)
{
	const struct link *link = atomic_load(&c->link);
	size_t at = 0;

	for (size_t i = 0; link && i < KVTIER_MAX_OPS; i++) {
		const struct op *op = &c->ops[i];

		if (op->state != OP_RUNNING || !op_has_pages(op->hints.op))
			continue;
		for (uint32_t k = 0; k < op->n; k++) {
			struct kvtier_lent lent = { .op = op->id };

			if (op->staged)
				lent.page = op->pages[k];
			else
				lent_fill(op->space->lent, link->pages[op->first + k], &lent);
			lent_put(room, at++, &lent);
		}
	}
	return at;
}

int kvtier_lent(struct kvtier_client *c, struct kvtier_lent *ret, size_t max)
{
	struct lent_room room = { (uint8_t *)ret, ret && max ? ret->size : 0, max };
	size_t n = 0;
	int rc = c ? client_check(c) : 0;

	if (rc)
		return rc;
	if (max && (!ret || ret->size < sizeof(ret->size)))
		return error_set(
			-EINVAL,
			"ret must not be NULL, and ret[0].size must be sizeof the struct, %zu",
			sizeof(*ret));
	if (c) {
		(void)pthread_mutex_lock(&c->ring);
		(void)ops_turn(c);
		n = lent_running(c, &room);
		ops_unlock(c);
	}
	n = lent_list(n, lent_put, &room);
	return n <= INT32_MAX ? (int)n : INT32_MAX;
}

int kvtier_event_fd(const struct kvtier_client *client)
{
	struct kvtier_client *c = (struct kvtier_client *)(uintptr_t)client;
	struct link *link;
	const int rc = client_check(c);

	if (rc)
		return rc;
	(void)pthread_mutex_lock(&c->ring);
	if (!c->event_used) {
		c->event_used = true;
		/* completions that came before: the first kvtier_poll() finds them, and asks for
		 * WAKEs */
		ops_event(c);
		link = atomic_load(&c->link);
		if (link)
			__atomic_store_n(&link->submit->want_wake, 1, __ATOMIC_SEQ_CST);
	}
	(void)pthread_mutex_unlock(&c->ring);
	return c->epoll_fd;
}

/* Drains the event, takes completions, asks for the next WAKE, and looks once more. So no
 * completion is missed. Ring held. */
static void poll_turn(struct kvtier_client *c)
{
	struct link *link = atomic_load(&c->link);
	uint64_t drained;

	if (c->event_set && read(c->event_fd, &drained, sizeof(drained)) == sizeof(drained))
		c->event_set = false;
	if (ops_turn(c) || !link || !c->event_used)
		return;
	__atomic_store_n(&link->submit->want_wake, 1, __ATOMIC_SEQ_CST);
	if (ring_moved(link, link->cq_head))
		(void)ops_turn(c);
}

int kvtier_poll(struct kvtier_client *c, struct kvtier_result *ret, size_t max)
{
	const uint64_t now = client_now();
	int n = 0, rc;

	if (!c || (max && !ret))
		return error_set(-EINVAL, "client and ret must not be NULL");
	if (!process_ours(c->process))
		return process_refuse();
	for (size_t i = 0; i < max && i < KVTIER_MAX_OPS; i++) {
		const struct kvtier_result *at =
			(const struct kvtier_result *)(const void *)((uint8_t *)ret +
								     i * ret->size);

		rc = result_check(at);
		if (!rc && at->size != ret->size)
			rc = error_set(-EINVAL, "ret[%zu].size is %u, that of the first is %u", i,
				       at->size, ret->size);
		if (rc)
			return rc;
	}
	(void)pthread_mutex_lock(&c->control);
	session_advance(c, now);
	(void)pthread_mutex_unlock(&c->control);
	(void)pthread_mutex_lock(&c->ring);
	poll_turn(c);
	while ((size_t)n < max && n < KVTIER_MAX_OPS && !TAILQ_EMPTY(&c->done)) {
		op_take(c, TAILQ_FIRST(&c->done),
			(struct kvtier_result *)(void *)((uint8_t *)ret + (size_t)n * ret->size));
		n++;
	}
	if (!TAILQ_EMPTY(&c->done) || ops_wait_for_stream(c))
		ops_event(c);
	ops_unlock(c);
	return n;
}
