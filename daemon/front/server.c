/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.c - the listening socket, the table of connections, and the graves of connections that
 * died.
 *
 * A slot is taken at accept and given back when the dying connection's last request has let go, its
 * regions are unmapped and its socket is closed. All slots are made at start. slots.c says which
 * peer gets one; any other peer is refused and counted.
 *
 * Closing a socket closes descriptors that its client has sent and nobody received, which may block
 * (intake.c). Where the kernel can, the listening socket keeps them out (guarded). Elsewhere
 * helpers close the sockets of clients that were refused, REFUSED_MAX at once, and nobody is
 * accepted while all of these helpers block.
 */
#include "server.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/closer.h"
#include "daemon/base/container_of.h"
#include "daemon/base/socket.h"
#include "daemon/config/config_derive.h"
#include "daemon/kvtierd.h"
#include "daemon/op/ops.h"
#include "conn.h"
#include "conn_leave.h"
#include "conn_share.h"
#include "front.h"
#include "packet.h"
#include "slots.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5: no race with a reused pid; older kernels refuse it */
#endif

enum {
	ACCEPTS_A_TURN = 16,
	BACKLOG = 1024,
	REFUSED_MAX = 64,
	LOOKS_MAX = 32, /* half-open connections that are looked at for one newcomer */
	DYING_MAX = 32, /* without SO_PASSRIGHTS: connections that helpers are closing */
};

#define REFUSED_SHOWN_NS 10000000000ull
#define BREATH_NS \
	1000000ull /* without SO_PASSRIGHTS: between accepting, while many are being closed */

struct server {
	struct front front;
	struct closer *refused; /* sockets of clients that were refused, where not guarded */
	struct loop_watch listener;
	struct own own; /* the socket's file */
	struct loop_poller reaper;
	struct loop_timer resume; /* listening again after running out of fds */
	struct slots_rule rule;
	struct slots_owner *owners; /* max_clients of them, for slots_find_hog() */
	/* when a client was refused for want of a slot last; 0: never */
	uint64_t refused_ns;
	uint32_t next_id;
	struct conn *conns; /* alive and dying, in order of arrival */
	struct conn *free_conns;
	struct conn *pool;
	struct peer *free_peers;
	struct peer *peer_pool; /* max_clients of them */
};

uint32_t server_connections(const struct server *s)
{
	return s->front.n_alive;
}

bool server_busy(const struct server *s)
{
	return s && (s->front.n_dying > 0 || helpers_busy(s->front.helpers) > 0);
}

/* Slots are short, or were a moment ago: whose they are. */
static void show_slots(struct server *s)
{
	const uint64_t now = loop_now(s->front.d->loop);
	const bool full = s->front.n_alive + s->front.n_dying >= s->rule.max,
		   refused = s->refused_ns && now - s->refused_ns < REFUSED_SHOWN_NS;
	char text[STATS_TEXT_BYTES] = "";
	struct slots_hog hog;

	if (full || refused) {
		slots_find_hog(s->conns, s->owners, &hog);
		snprintf(text, sizeof(text),
			 "%u of %u connections are taken, %u of them by user %u, of those %u by "
			 "process %ld; a user may have %u",
			 hog.all, s->rule.max, hog.of_uid, (unsigned)hog.uid, hog.of_pid,
			 (long)hog.pid, s->rule.per_uid);
	}
	stats_health_set(s->front.d->stats, STATS_HEALTH_CLIENTS_FULL, full || refused);
	stats_clients_text(s->front.d->stats, text);
	stats_health_set(s->front.d->stats, STATS_HEALTH_OUT_OF_FILES,
			 s->front.out_of_files_ns &&
				 now - s->front.out_of_files_ns < REFUSALS_KEPT_NS);
	refusals_text(&s->front.refusals, now, text, sizeof(text));
	stats_health_set(s->front.d->stats, STATS_HEALTH_CLIENTS_REFUSED, text[0] != '\0');
	stats_refused_text(s->front.d->stats, text);
}

/* --- processes --- */

/* NULL: it has no connection. */
static struct peer *find_peer(const struct server *s, const struct ucred *of)
{
	for (const struct conn *c = s->conns; c && of->pid > 0; c = c->next)
		if (c->client.pid == of->pid && c->uid == of->uid)
			return c->client.peer;
	return NULL;
}

static struct peer *hold_peer(struct server *s, struct peer *peer)
{
	if (!peer) {
		peer = s->free_peers;
		s->free_peers = peer->next;
		*peer = (struct peer){ .number = (uint32_t)(peer - s->peer_pool) + 1 };
	}
	peer->n_clients++;
	return peer;
}

static void drop_peer(struct server *s, struct peer *peer)
{
	if (--peer->n_clients > 0)
		return;
	peer->next = s->free_peers;
	s->free_peers = peer;
}

static void drop_conn(struct server *s, struct conn *c)
{
	drop_peer(s, c->client.peer);
	c->next = s->free_conns;
	s->free_conns = c;
}

/* Ends dying connections that have drained, and frees connections that have ended. */
static bool reap(struct loop_poller *poller)
{
	struct server *s = container_of(poller, struct server, reaper);
	bool worked = false;

	if (s->front.n_dying == 0)
		return false;
	for (struct conn **link = &s->conns; *link;) {
		struct conn *c = *link;

		if (c->state < CONN_DYING || c->client.n_ops > 0 || !conn_end(c)) {
			link = &c->next;
			continue;
		}
		*link = c->next;
		drop_conn(s, c);
		s->front.n_dying--;
		worked = true;
	}
	return worked;
}

/* --- accepting --- */

static void append(struct server *s, struct conn *c)
{
	struct conn **end = &s->conns;

	while (*end)
		end = &(*end)->next;
	c->next = NULL;
	*end = c;
}

static void on_closed(void *arg)
{
	struct server *s = arg;

	if (s->listener.fd >= 0 && s->resume.position == 0)
		(void)loop_modify(s->front.d->loop, &s->listener, EPOLLIN);
}

/* The closer has room, or on_listener() would not have accepted. */
static void hang_up(struct server *s, int fd)
{
	if (!s->front.guarded) {
		closer_take(s->refused, fd);
		return;
	}
	(void)shutdown(fd, SHUT_RDWR);
	(void)close(fd);
}

static void refuse(struct server *s, int fd, const struct ucred *peer, const char *why)
{
	struct refusal refusal = {
		.at_ns = loop_now(s->front.d->loop),
		.pid = peer->pid,
		.uid = peer->uid,
	};

	snprintf(refusal.why, sizeof(refusal.why), "%s", why);
	refusals_add(&s->front.refusals, &refusal);
	(void)packet_error(fd, 0, -EBUSY, why);
	hang_up(s, fd);
	stats_add(&s->front.d->stats->v.clients_refused_total, 1);
	log_limited(&s->front.log, loop_now(s->front.d->loop), LOG_LEVEL_WARNING,
		    "a client was refused: %s", why);
}

/* Not fatal when there is none: the socket's HUP tells of death too, unless a forked child holds it
 * open. */
static int open_pidfd(int fd, pid_t pid)
{
	int pidfd = -1;
	socklen_t n = sizeof(pidfd);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &n) == 0)
		return pidfd;
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

/* Room for one more connection of this process, made by dropping one that has not said HELLO, if
 * need be. -EBUSY with why. */
static int make_room(struct server *s, const struct ucred *of, char *why, size_t n)
{
	struct conn *victim;

	for (uint32_t i = 0; i < LOOKS_MAX; i++) {
		const enum slots_answer answer =
			slots_ask(&s->rule, s->conns, of->uid, find_peer(s, of), &victim, why, n);

		if (answer == SLOTS_FREE)
			return 0;
		if (answer == SLOTS_NONE)
			break;
		conn_look(victim); /* perhaps it lies there unread */
		if (victim->state != CONN_GREETING)
			continue;
		conn_turn_away(victim);
		(void)reap(&s->reaper);
		if (s->free_conns)
			return 0;
		if (!s->front.guarded)
			/* its slot comes later, a helper closes it: dropping more of them does not
			 * help */
			break;
	}
	s->refused_ns = loop_now(s->front.d->loop);
	return -EBUSY;
}

static void welcome(struct server *s, int fd)
{
	struct ucred peer = { 0 };
	socklen_t n = sizeof(peer);
	struct conn *c;
	char why[200];
	int pidfd = -1;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n)) {
		refuse(s, fd, &peer, "the kernel does not tell who it is");
		return;
	}
	if (make_room(s, &peer, why, sizeof(why))) {
		refuse(s, fd, &peer, why);
		return;
	}
	pidfd = open_pidfd(fd, peer.pid);
	if (pidfd < 0 && peer.pid > 0 && errno == EMFILE)
		front_out_of_files(&s->front);
	c = s->free_conns;
	s->free_conns = c->next;
	memset(c, 0, sizeof(*c));
	c->front = &s->front;
	c->client.id = ++s->next_id;
	c->client.pid = peer.pid;
	c->client.peer = hold_peer(s, find_peer(s, &peer));
	c->uid = peer.uid;
	c->born_ns = loop_now(s->front.d->loop);
	if (conn_start(c, fd, pidfd)) {
		if (pidfd >= 0)
			(void)close(pidfd);
		drop_conn(s, c);
		refuse(s, fd, &peer, "the daemon is out of memory for it");
		return;
	}
	append(s, c);
	s->front.n_alive++;
	stats_add(&s->front.d->stats->v.clients_total, 1);
	front_count(&s->front);
}

static void on_resume(struct loop_timer *timer)
{
	struct server *s = container_of(timer, struct server, resume);

	(void)loop_modify(s->front.d->loop, &s->listener, EPOLLIN);
}

static void on_listener(struct loop_watch *watch, uint32_t events)
{
	struct server *s = container_of(watch, struct server, listener);

	(void)events;
	/* Half-open ones are dropped for newcomers: let helpers keep up with closing them. */
	if (!s->front.guarded && s->front.n_dying >= DYING_MAX && s->resume.position == 0) {
		(void)loop_modify(s->front.d->loop, &s->listener, 0);
		loop_timer_set(s->front.d->loop, &s->resume,
			       loop_now(s->front.d->loop) + BREATH_NS);
	}
	for (int i = 0; i < ACCEPTS_A_TURN; i++) {
		if (closer_room(s->refused) == 0) {
			/* until on_closed() */
			(void)loop_modify(s->front.d->loop, &s->listener, 0);
			return;
		}
		const int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			welcome(s, fd);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
			if (errno == EMFILE || errno == ENFILE)
				front_out_of_files(&s->front);
			/* Level-triggered: without a pause this would spin. */
			log_limited(&s->front.log, loop_now(s->front.d->loop), LOG_LEVEL_ERROR,
				    "cannot accept clients: %s; raise LimitNOFILE=",
				    strerror(errno));
			(void)loop_modify(s->front.d->loop, &s->listener, 0);
			loop_timer_set(s->front.d->loop, &s->resume,
				       loop_now(s->front.d->loop) + 100000000);
		}
		return;
	}
}

/* --- opening and closing --- */

static int set_group(const struct config *config, char *text, size_t n)
{
	gid_t group = (gid_t)-1; /* leaves it as it is */
	const int r = config_group(config, &group, text, n);

	if (r)
		return r;
	if (chown(config->socket_path, (uid_t)-1, group)) {
		snprintf(text, n, "[socket] group: cannot give %s to group %s: %s",
			 config->socket_path, config->socket_group, strerror(errno));
		return -EPERM;
	}
	return 0;
}

/* Its group is set before it listens. */
static int open_listener(struct server *s, const struct config *config, char *text, size_t n)
{
	const char *path = config->socket_path;
	int r = socket_bind(path, config->socket_mode, &s->listener.fd, &s->own);

	if (r) {
		snprintf(text, n, "[socket] path: %s%s%s", path,
			 r == -EADDRINUSE ? " is another daemon's: it answers there" :
			 r == -EEXIST     ? " exists and is no socket" :
					    ": ",
			 r == -EADDRINUSE || r == -EEXIST ? "" : strerror(-r));
		return r;
	}
	if (config->socket_group[0])
		r = set_group(config, text, n);
	if (r == 0 && listen(s->listener.fd, BACKLOG)) {
		r = -errno;
		snprintf(text, n, "[socket] path: cannot listen at %s: %s", path, strerror(-r));
	}
	return r;
}

/* Clients that had imported something of it import it again, over a new connection: libkvtier does
 * so. */
static void on_lost(void *arg, struct device *device, const char *why)
{
	struct server *s = arg;
	char text[200];

	snprintf(text, sizeof(text), "the GPU failed and what was mapped of it is lost: %.140s",
		 why);
	log_error("device %s: %s", device->ops->name, text);
	for (struct conn *c = s->conns; c; c = c->next)
		conn_lost(c, device, text);
}

int server_open(struct kvtierd *d, struct server **ret, char *text, size_t n)
{
	struct server *s = calloc(1, sizeof(*s));
	int r = -ENOMEM;

	snprintf(text, n, "out of memory for [socket] max_clients = %u",
		 d->config->socket_max_clients);
	if (!s)
		return r;
	s->front.d = d;
	s->listener = (struct loop_watch){ .fd = -1, .ready = on_listener };
	s->front.self = (int)syscall(SYS_pidfd_open, getpid(), 0); /* close-on-exec */
	s->reaper.poll = reap;
	s->resume.fire = on_resume;
	s->pool = calloc(d->config->socket_max_clients, sizeof(*s->pool));
	s->peer_pool = calloc(d->config->socket_max_clients, sizeof(*s->peer_pool));
	s->owners = calloc(d->config->socket_max_clients, sizeof(*s->owners));
	if (!s->pool || !s->peer_pool || !s->owners)
		goto fail;
	s->rule = (struct slots_rule){
		.max = d->config->socket_max_clients,
		.own = geteuid(),
		.per_uid = slots_per_uid(d->config->socket_max_clients,
					 d->config->socket_max_clients_per_uid),
	};
	for (uint32_t i = d->config->socket_max_clients; i-- > 0;) {
		s->pool[i].next = s->free_conns;
		s->free_conns = &s->pool[i];
		s->peer_pool[i].next = s->free_peers;
		s->free_peers = &s->peer_pool[i];
	}
	r = open_listener(s, d->config, text, n);
	if (r)
		goto fail;
	s->front.guarded = socket_pass_fds(s->listener.fd, false);
	devices_on_lost(&d->devices, on_lost, s);
	/* An intake and a leaving for each client, and sockets of refused ones. */
	r = helpers_open(d->loop, 2 * d->config->socket_max_clients + REFUSED_MAX,
			 &s->front.helpers);
	if (r == 0)
		r = closer_open(s->front.helpers, REFUSED_MAX, on_closed, s, &s->refused);
	if (r)
		goto fail;
	loop_poller_add(d->loop, &s->reaper);
	r = loop_add(d->loop, &s->listener, EPOLLIN);
	if (r)
		goto fail;
	*ret = s;
	return 0;
fail:
	server_close(s);
	return r;
}

void server_shutdown(struct server *s)
{
	if (s->listener.fd >= 0) {
		loop_timer_unset(s->front.d->loop, &s->resume);
		loop_remove(s->front.d->loop, &s->listener);
		if (s->front.guarded)
			/* else at exit: nobody waits for it there */
			(void)close(s->listener.fd);
		own_unlink(s->front.d->config->socket_path, &s->own);
		s->listener.fd = -1;
	}
	for (struct conn *c = s->conns; c; c = c->next)
		conn_kill(c);
}

void server_close(struct server *s)
{
	if (!s)
		return;
	devices_on_lost(&s->front.d->devices, NULL, NULL);
	server_shutdown(s);
	(void)reap(&s->reaper);
	assert(!s->conns);
	loop_poller_remove(s->front.d->loop, &s->reaper);
	helpers_close(s->front.helpers);
	closer_close(s->refused);
	if (s->front.self >= 0)
		(void)close(s->front.self);
	free(s->owners);
	free(s->peer_pool);
	free(s->pool);
	free(s);
}

/* --- for people --- */

void server_sample(struct server *s)
{
	show_slots(s);
	for (struct conn *c = s->conns; c; c = c->next)
		if (c->state == CONN_OPEN)
			conn_count_lookups(c);
}

static bool refusal_row(const struct server *s, uint32_t i, struct conn_row *ret)
{
	const uint64_t now = loop_now(s->front.d->loop);
	const struct refusal *refusal = refusals_at(&s->front.refusals, i, now);

	if (!refusal)
		return false;
	*ret = (struct conn_row){
		.pid = refusal->pid,
		.uid = refusal->uid,
		.refused = refusal->times,
		.version_min = refusal->version_min,
		.version_max = refusal->version_max,
		.age_ns = now - refusal->at_ns,
	};
	memcpy(ret->name, refusal->name, sizeof(ret->name));
	memcpy(ret->why, refusal->why, sizeof(ret->why));
	return true;
}

bool server_row(const struct server *s, uint32_t position, struct conn_row *ret)
{
	const struct conn *c = s->conns;
	struct intake_share share;

	for (; c && position > 0; position--)
		c = c->next;
	if (!c)
		return refusal_row(s, position, ret);
	*ret = (struct conn_row){
		.id = c->client.id,
		.pid = c->client.pid,
		.uid = c->uid,
		.ops = c->client.n_ops,
		.pages = ops_pages(&c->client),
		.ending = c->state >= CONN_DYING,
		.version_min = c->version,
		.version_max = c->version,
		.stored_blocks = c->client.stored_blocks,
		.loaded_blocks = c->client.loaded_blocks,
		.missed_blocks = c->client.missed_blocks,
		.sparse_blocks = c->client.sparse_blocks,
		.age_ns = loop_now(s->front.d->loop) - c->born_ns,
	};
	memcpy(ret->name, c->client.name, sizeof(ret->name));
	snprintf(ret->tenant, sizeof(ret->tenant), "%.31s", front_tenant(&s->front));
	conn_share(c, &share);
	ret->regions = share.regions;
	ret->region_bytes = share.bytes;
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++) {
		const struct mount *mount = c->client.mounts[i];

		if (!mount)
			continue;
		ret->spaces++;
		ret->memories |= mount->memories;
		if (mount->not_engine[0] != '\0')
			memcpy(ret->not_engine, mount->not_engine, sizeof(ret->not_engine));
		if (mount->gpu_staged[0] != '\0')
			memcpy(ret->gpu_staged, mount->gpu_staged, sizeof(ret->gpu_staged));
	}
	return true;
}

uint32_t server_staged(const struct server *s, char *text, size_t n)
{
	uint32_t staged = 0;

	for (const struct conn *c = s->conns; c; c = c->next)
		for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++) {
			const struct mount *mount = c->client.mounts[i];

			if (!mount || mount->gpu_staged[0] == '\0')
				continue;
			if (staged++ == 0)
				snprintf(text, n, "%s (pid %d) is staged: %s", c->client.name,
					 c->client.pid, mount->gpu_staged);
		}
	return staged;
}
