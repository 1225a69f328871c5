/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.c - the listening sockets and the table of connections, also of those that are ending.
 *
 * A slot is taken at accept. It is free again when the dying connection's last request has ended,
 * its regions are unmapped and its socket is closed. All slots are made at start. may_connect()
 * decides which peer gets a slot; any other peer is refused and counted.
 *
 * Closing a socket also closes descriptors that its client has sent and that were not received,
 * which may block (intake.c). Where the kernel can, the listening socket keeps them out
 * (`guarded`). Elsewhere helpers close the sockets of clients that were refused, REFUSED_MAX at
 * once, and no client is accepted while all of these helpers block.
 */
#include "server.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/text.h"
#include "base/list.h"
#include "base/own.h"
#include "daemon/config/config.h"
#include "daemon/kvtierd.h"
#include "daemon/op/op.h"
#include "conn.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5: no race with a reused pid; older kernels refuse it */
#endif

enum {
	ACCEPTS_PER_ITERATION = 16,
	BACKLOG = 1024,
	REFUSED_MAX = 64,
	LOOKS_MAX = 32, /* half-open connections that are looked at for one newcomer */
	DYING_MAX = 32, /* without SO_PASSRIGHTS: connections that helpers are closing */
};

#define REFUSED_SHOWN_NS 10000000000ull
#define BREATH_NS \
	1000000ull /* without SO_PASSRIGHTS: between accepting, while many are being closed */

/* From so many [socket] max_clients on, the last one is kept for root, and a process has a
 * limit. */
enum { RESERVE_FROM = 4 };

struct owner {
	uid_t uid;
	pid_t pid;
};

/* A socket that listens: of [socket], or of a [socket NAME]. */
struct listener {
	struct loop_watch watch;
	struct server *server;
	const struct config_socket *socket;
	struct own own; /* the socket's file */
};

/* A socket that a helper closes. Its queue may have descriptors that its peer has sent and that
 * were not received. close() drops them, which may block for as long as the peer likes. */
struct closing {
	struct work work;
	struct server *server;
	struct closing *next; /* free */
	int fd;
};

struct server {
	struct front front;
	/* sockets of clients that were refused, where not guarded */
	struct closing closings[REFUSED_MAX], *free_closings;
	struct listener listeners[CONFIG_SOCKETS_MAX];
	uint32_t n_listeners;
	struct loop_poller reaper;
	struct loop_timer resume; /* listening again after running out of fds */
	struct quota *quota;
	uint32_t max;         /* connections */
	struct owner *owners; /* max_clients of them, for tell_hog() */
	/* when a client was refused for want of a slot last; 0: never */
	uint64_t refused_ns;
	uint32_t next_id;
	struct conn *conns; /* alive and dying, in order of arrival */
	/* Connections without a client: those that had one, and from n_used on those that never had
	 * one, which so take no memory. */
	struct conn *free_conns;
	struct conn *pool;
	uint32_t n_used;
	struct peer *free_peers;
	struct peer *peer_pool; /* max_clients of them */
};

/* --- who may have a connection ---
 *
 * A user has a limit. A process may have as many of the user's connections as it leaves to the
 * user's other processes. The last connection is kept for root. If there is no room, a connection
 * without a HELLO is ended for the newcomer, the oldest first. A connection that ends counts until
 * it has given all back.
 */

/* NULL: the process has no connection. */
static struct peer *find_peer(const struct server *s, uint32_t tenant, const struct ucred *of)
{
	for (const struct conn *c = s->conns; c && of->pid > 0; c = c->next)
		if (c->client.pid == of->pid && c->uid == of->uid && c->client.tenant == tenant)
			return c->client.peer;
	return NULL;
}

/* The oldest connection without a HELLO, of this process, user and tenant if they are given; or
 * NULL. */
static struct conn *oldest(const struct server *s, const struct peer *peer, const uid_t *uid,
			   const uint32_t *tenant)
{
	for (struct conn *c = s->conns; c; c = c->next)
		if (c->state == CONN_GREETING && (!peer || c->client.peer == peer) &&
		    (!uid || c->uid == *uid) && (!tenant || c->client.tenant == *tenant))
			return c;
	return NULL;
}

/* How many connections one user may have. */
static uint32_t per_uid(const struct server *s)
{
	const uint32_t most = s->front.d->config->socket_max_clients_per_uid;

	return most == 0 ? s->max - s->max / 4 : most < s->max ? most : s->max;
}

/* False: `why` says why not, and *ret_victim is a connection without a HELLO that may be ended for
 * it, or NULL. */
static bool may_connect(const struct server *s, uint32_t tenant, const struct ucred *of,
			struct conn **ret_victim, char *why, size_t n)
{
	const struct peer *peer = find_peer(s, tenant, of);
	/* the daemon's own user counts as root */
	const bool root = of->uid == 0 || of->uid == geteuid(), divided = s->max >= RESERVE_FROM;
	const uint32_t most = per_uid(s);
	uint32_t all = 0, of_uid = 0;

	for (const struct conn *c = s->conns; c; c = c->next) {
		all++;
		of_uid += c->uid == of->uid;
	}
	if (of_uid >= most && most < s->max) {
		*ret_victim = oldest(s, NULL, &of->uid, NULL);
		snprintf(why, n,
			 "user %u has %u connections, as many as [socket] max_clients_per_uid "
			 "allows one user of the %u: close some, or raise it",
			 (unsigned)of->uid, of_uid, s->max);
	} else if (divided && peer && !quota_of_free(peer->n_clients, 1, most - of_uid)) {
		*ret_victim = oldest(s, peer, NULL, NULL);
		snprintf(why, n,
			 "this process has %u connections, and %u of the %u that a user may have "
			 "are left for others: use one client for all threads, or raise [socket] "
			 "max_clients_per_uid",
			 peer->n_clients, most - of_uid, most);
	} else if (all >= s->max) {
		*ret_victim = oldest(s, NULL, NULL, NULL);
		snprintf(why, n,
			 "%u clients are connected, as many as [socket] max_clients allows: close "
			 "some, or raise it",
			 s->max);
	} else if (!quota_allows(s->quota, QUOTA_connections, tenant)) {
		*ret_victim = oldest(s, NULL, NULL, &tenant);
		snprintf(why, n,
			 "tenant %s has %u of the %u connections of [socket] max_clients, and the "
			 "others are kept for other tenants: close some, or raise it",
			 s->quota->tenant[tenant].name,
			 (unsigned)s->quota->tenant[tenant].used[QUOTA_connections], s->max);
	} else if (!root && all + 1 == s->max && divided) {
		*ret_victim = oldest(s, NULL, NULL, NULL);
		snprintf(why, n,
			 "%u clients are connected, and the last of [socket] max_clients = %u is "
			 "kept for root: close some, or raise it",
			 all, s->max);
	} else {
		return true;
	}
	return false;
}

static int compare(const void *a, const void *b)
{
	const struct owner *x = a, *y = b;

	if (x->uid != y->uid)
		return x->uid < y->uid ? -1 : 1;
	return (x->pid > y->pid) - (x->pid < y->pid);
}

/* Names the user that has most connections, and its process that has most. */
static void tell_hog(const struct server *s, char *text, size_t size)
{
	struct owner *owners = s->owners, hog = { 0 }, of_user = { 0 };
	uint32_t n = 0, of_uid = 0, of_pid = 0, most_of_user = 0, most_of_uid = 0, most_of_pid = 0;

	for (const struct conn *c = s->conns; c; c = c->next)
		owners[n++] = (struct owner){ c->uid, c->client.pid };
	qsort(owners, n, sizeof(*owners), compare);
	for (uint32_t i = 0; i < n; i++) {
		const bool same_uid = i > 0 && owners[i].uid == owners[i - 1].uid;

		of_uid = same_uid ? of_uid + 1 : 1;
		of_pid = same_uid && owners[i].pid == owners[i - 1].pid ? of_pid + 1 : 1;
		if (!same_uid || of_pid > most_of_user) {
			of_user = owners[i];
			most_of_user = of_pid;
		}
		if (of_uid >= most_of_uid) {
			hog = of_user;
			most_of_uid = of_uid;
			most_of_pid = most_of_user;
		}
	}
	snprintf(text, size,
		 "%u of %u connections are taken, %u of them by user %u, of those %u by process "
		 "%ld; a user may have %u",
		 n, s->max, most_of_uid, (unsigned)hog.uid, most_of_pid, (long)hog.pid, per_uid(s));
}

bool server_busy(const struct server *s)
{
	return s && (s->front.n_dying > 0 || workers_lent(s->front.helpers) > 0);
}

/* Shows whose the slots are, if they are short or were short a moment ago; and who was refused. */
static void show_slots(struct server *s)
{
	const uint64_t now = loop_now(s->front.d->loop);
	const bool full = s->front.n_alive + s->front.n_dying >= s->max,
		   refused = s->refused_ns && now - s->refused_ns < REFUSED_SHOWN_NS;
	char text[STATS_TEXT_BYTES] = "";

	if (full || refused)
		tell_hog(s, text, sizeof(text));
	stats_health_set(s->front.d->stats, STATS_HEALTH_CLIENTS_FULL, full || refused);
	stats_text_set(s->front.d->stats->clients_text, STATS_TEXT_BYTES, text);
	stats_health_set(s->front.d->stats, STATS_HEALTH_OUT_OF_FILES,
			 s->front.out_of_files_ns &&
				 now - s->front.out_of_files_ns < REFUSALS_KEPT_NS);
	refusals_text(&s->front.refusals, now, text, sizeof(text));
	stats_health_set(s->front.d->stats, STATS_HEALTH_CLIENTS_REFUSED, text[0] != '\0');
	stats_text_set(s->front.d->stats->refused_text, STATS_TEXT_BYTES, text);
}

/* --- processes --- */

static struct peer *hold_peer(struct server *s, uint32_t tenant, struct peer *peer)
{
	if (!peer) {
		peer = s->free_peers;
		s->free_peers = peer->next;
		*peer = (struct peer){ .tenant = tenant,
				       .number = (uint32_t)(peer - s->peer_pool) + 1 };
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
	quota_give(s->quota, QUOTA_connections, c->client.tenant, 1);
	c->next = s->free_conns;
	s->free_conns = c;
}

static struct conn *take_conn(struct server *s)
{
	struct conn *c = s->free_conns;

	if (!c)
		return &s->pool[s->n_used++];
	s->free_conns = c->next;
	return c;
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

/* EPOLLIN, or 0: newcomers wait. */
static void listen_for(struct server *s, uint32_t events)
{
	for (uint32_t i = 0; i < s->n_listeners; i++)
		(void)loop_modify(s->front.d->loop, &s->listeners[i].watch, events);
}

static enum work_end close_one(struct work *work, uint32_t thread)
{
	(void)thread;
	(void)close(container_of(work, struct closing, work)->fd);
	return WORK_ENDED;
}

static void on_closed(struct work *work)
{
	struct closing *closing = container_of(work, struct closing, work);
	struct server *s = closing->server;

	closing->next = s->free_closings;
	s->free_closings = closing;
	if (s->resume.position == 0)
		listen_for(s, EPOLLIN);
}

/* There is a free closing, or on_listener() would not have accepted. */
static void hang_up(struct server *s, int fd)
{
	struct closing *closing = s->free_closings;

	(void)shutdown(fd, SHUT_RDWR);
	if (s->front.guarded) {
		(void)close(fd);
		return;
	}
	s->free_closings = closing->next;
	closing->fd = fd;
	workers_submit(s->front.helpers, &closing->work);
}

static void refuse(struct server *s, int fd, const struct ucred *peer, enum refusal_reason reason,
		   const char *why)
{
	struct refusal refusal = { .at_ns = loop_now(s->front.d->loop),
				   .pid = peer->pid,
				   .uid = peer->uid,
				   .reason = reason };
	char about[LOG_ABOUT_BYTES];

	snprintf(refusal.why, sizeof(refusal.why), "%s", why);
	refusals_add(&s->front.refusals, &refusal);
	refusals_count(s->front.d->stats, reason);
	(void)conn_send_error(fd, 0, -EBUSY, why);
	hang_up(s, fd);
	log_warning(log_about(about, "client_refused", (long)peer->pid, 0, ""),
		    "a client of user %ld was refused: %s", (long)peer->uid, why);
}

/* -1: then only the socket's HUP tells of the process's death, unless a forked child holds the
 * socket open. */
static int open_pidfd(int fd, pid_t pid)
{
	int pidfd = -1;
	socklen_t n = sizeof(pidfd);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &n) == 0)
		return pidfd;
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

/* Makes room for one more connection of this process. If there is none, it drops connections that
 * have sent no HELLO. -EBUSY with the reason. */
static int make_room(struct server *s, uint32_t tenant, const struct ucred *of, char *why, size_t n)
{
	struct conn *victim;

	for (uint32_t i = 0; i < LOOKS_MAX; i++) {
		if (may_connect(s, tenant, of, &victim, why, n))
			return 0;
		if (!victim)
			break;
		conn_look(victim); /* its HELLO may have come and be unread */
		if (victim->state != CONN_GREETING)
			continue;
		conn_displace(victim);
		(void)reap(&s->reaper);
		if (s->free_conns || s->n_used < s->max)
			return 0;
		if (!s->front.guarded)
			/* its slot comes later, a helper closes it: dropping more of them does not
			 * help */
			break;
	}
	s->refused_ns = loop_now(s->front.d->loop);
	quota_refused(s->quota, QUOTA_connections, tenant);
	return -EBUSY;
}

static void welcome(struct server *s, const struct listener *from, int fd)
{
	const uint32_t tenant = (uint32_t)(from->socket - s->front.d->config->sockets);
	struct ucred peer = { 0 };
	socklen_t n = sizeof(peer);
	struct conn *c;
	char why[200];
	int pidfd = -1;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n)) {
		refuse(s, fd, &peer, REFUSAL_permission, "the kernel does not tell who it is");
		return;
	}
	if (make_room(s, tenant, &peer, why, sizeof(why))) {
		refuse(s, fd, &peer, REFUSAL_full, why);
		return;
	}
	pidfd = open_pidfd(fd, peer.pid);
	if (pidfd < 0 && peer.pid > 0 && errno == EMFILE)
		s->front.out_of_files_ns = loop_now(s->front.d->loop);
	c = take_conn(s);
	memset(c, 0, sizeof(*c));
	c->front = &s->front;
	c->client.id = ++s->next_id;
	c->client.pid = peer.pid;
	c->client.tenant = tenant;
	c->client.peer = hold_peer(s, tenant, find_peer(s, tenant, &peer));
	quota_take(s->quota, QUOTA_connections, tenant, 1);
	c->uid = peer.uid;
	c->socket_conf = from->socket;
	c->born_ns = loop_now(s->front.d->loop);
	if (conn_start(c, fd, pidfd)) {
		if (pidfd >= 0)
			(void)close(pidfd);
		drop_conn(s, c);
		refuse(s, fd, &peer, REFUSAL_resources, "the daemon is out of memory for it");
		return;
	}
	append(s, c);
	s->front.n_alive++;
	stats_add(&s->front.d->stats->v.clients_total, 1);
	stats_set(&s->front.d->stats->v.clients, s->front.n_alive);
}

static void on_resume(struct loop_timer *timer)
{
	listen_for(container_of(timer, struct server, resume), EPOLLIN);
}

static void on_listener(struct loop_watch *watch, uint32_t events)
{
	struct listener *from = container_of(watch, struct listener, watch);
	struct server *s = from->server;

	(void)events;
	/* Connections without a HELLO are dropped for newcomers: helpers have to keep up with
	 * closing them. */
	if (!s->front.guarded && s->front.n_dying >= DYING_MAX && s->resume.position == 0) {
		listen_for(s, 0);
		loop_timer_set(s->front.d->loop, &s->resume,
			       loop_now(s->front.d->loop) + BREATH_NS);
	}
	for (int i = 0; i < ACCEPTS_PER_ITERATION; i++) {
		if (!s->free_closings) {
			/* until on_closed() */
			listen_for(s, 0);
			return;
		}
		const int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			welcome(s, from, fd);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
			if (errno == EMFILE || errno == ENFILE)
				s->front.out_of_files_ns = loop_now(s->front.d->loop);
			/* Level-triggered: without a pause this would spin. */
			log_error("accept",
				  "cannot accept clients: %s; raise LimitNOFILE=", strerror(errno));
			listen_for(s, 0);
			loop_timer_set(s->front.d->loop, &s->resume,
				       loop_now(s->front.d->loop) + 100000000);
		}
		return;
	}
}

/* --- opening and closing --- */

static int set_group(const struct config_socket *socket, char *text, size_t n)
{
	gid_t group = (gid_t)-1; /* leaves it as it is */
	const int r = config_group("socket", socket->group, &group, text, n);

	if (r)
		return r;
	if (group != (gid_t)-1 && chown(socket->path, (uid_t)-1, group))
		return text_fail(text, n, -EPERM, "[socket] group: cannot give %s to group %s: %s",
				 socket->path, socket->group, strerror(errno));
	return 0;
}

/* The socket gets its group before it listens. One that the service manager holds has its own
 * mode and group, and its file is never removed: l->own stays that of no file. */
static int open_listener(struct server *s, const struct config_socket *socket, char *text, size_t n)
{
	struct listener *l = &s->listeners[s->n_listeners];
	const int held = socket_held_at(socket->path);
	int r = 0;

	*l = (struct listener){ .watch = { .fd = held, .ready = on_listener },
				.server = s,
				.socket = socket };
	if (held < 0)
		r = socket_bind(socket->path, SOCK_SEQPACKET, socket->mode, &l->watch.fd, &l->own);
	if (r)
		return text_fail(text, n, r, "[socket] path: %s%s%s", socket->path,
				 r == -EADDRINUSE ? " is another daemon's: it answers there" :
				 r == -EEXIST     ? " exists and is no socket" :
						    ": ",
				 r == -EADDRINUSE || r == -EEXIST ? "" : strerror(-r));
	s->n_listeners++; /* closed with the others from now on */
	if (held >= 0)
		log_info("socket_held",
			 "%s is the service manager's socket, with the mode and group of its unit",
			 socket->path);
	else if (socket->group[0])
		r = set_group(socket, text, n);
	/* Clients of a held socket wait in its queue already, and may have sent descriptors. */
	s->front.guarded &= held < 0 || !socket_passes_fds(held);
	/* Clients of a held socket, too, then see this process as their peer. */
	if (r == 0 && listen(l->watch.fd, BACKLOG)) {
		r = -errno;
		snprintf(text, n, "[socket] path: cannot listen at %s: %s", socket->path,
			 strerror(-r));
	}
	s->front.guarded &= r == 0 && socket_pass_fds(l->watch.fd, false);
	return r;
}

/* Cuts the connections that had memory or events of the device. libkvtier imports them again, over
 * a new connection. */
static void on_lost(void *arg, struct device *device, const char *why)
{
	struct server *s = arg;
	char text[200];

	snprintf(text, sizeof(text), "the GPU failed and what was mapped of it is lost: %.140s",
		 why);
	log_error("device_lost", "device %s: %s", device->ops->name, text);
	for (struct conn *c = s->conns; c; c = c->next)
		conn_lost(c, device, text);
}

static void set_quota(struct kvtierd *d)
{
	const struct {
		enum quota_use use;
		uint64_t all;
	} uses[] = {
		{ QUOTA_connections, d->config->socket_max_clients },
		{ QUOTA_open_spaces, d->config->index_max_spaces },
		{ QUOTA_regions, INTAKE_MAX_REGIONS },
		{ QUOTA_region_bytes, INTAKE_MAX_BYTES },
		{ QUOTA_allocations, INTAKE_MAX_ALLOCS },
	};

	for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++)
		quota_set(&d->quota, uses[i].use, uses[i].all, quota_lines[uses[i].use].percent);
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
	s->front.self = (int)syscall(SYS_pidfd_open, getpid(), 0); /* close-on-exec */
	s->reaper.poll = reap;
	s->resume.fire = on_resume;
	s->pool = calloc(d->config->socket_max_clients, sizeof(*s->pool));
	s->peer_pool = calloc(d->config->socket_max_clients, sizeof(*s->peer_pool));
	s->owners = calloc(d->config->socket_max_clients, sizeof(*s->owners));
	if (!s->pool || !s->peer_pool || !s->owners)
		goto fail;
	set_quota(d);
	s->quota = &d->quota;
	s->max = d->config->socket_max_clients;
	for (uint32_t i = 0; i < REFUSED_MAX; i++) {
		s->closings[i] = (struct closing){
			.work = { .run = close_one, .done = on_closed },
			.server = s,
			.next = s->free_closings,
		};
		s->free_closings = &s->closings[i];
	}
	for (uint32_t i = d->config->socket_max_clients; i-- > 0;) {
		s->peer_pool[i].next = s->free_peers;
		s->free_peers = &s->peer_pool[i];
	}
	r = 0;
	s->front.guarded = true;
	for (uint32_t i = 0; r == 0 && i < d->config->n_sockets; i++)
		r = open_listener(s, &d->config->sockets[i], text, n);
	if (r)
		goto fail;
	d->devices.hooks.lost = on_lost;
	d->devices.hooks.lost_arg = s;
	/* An intake and a leaving for each client, and sockets of refused ones. */
	r = workers_open_helpers(d->loop, 2 * d->config->socket_max_clients + REFUSED_MAX,
				 &s->front.helpers);
	if (r)
		goto fail;
	loop_poller_add(d->loop, &s->reaper);
	for (uint32_t i = 0; r == 0 && i < s->n_listeners; i++)
		r = loop_add(d->loop, &s->listeners[i].watch, EPOLLIN);
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
	loop_timer_unset(s->front.d->loop, &s->resume);
	while (s->n_listeners > 0) {
		struct listener *l = &s->listeners[--s->n_listeners];

		loop_remove(s->front.d->loop, &l->watch);
		if (s->front.guarded)
			/* otherwise the exit closes it, as closing it may block */
			(void)close(l->watch.fd);
		own_unlink(l->socket->path, &l->own);
	}
	for (struct conn *c = s->conns; c; c = c->next)
		conn_kill(c);
}

void server_close(struct server *s)
{
	if (!s)
		return;
	s->front.d->devices.hooks.lost = NULL;
	server_shutdown(s);
	(void)reap(&s->reaper);
	assert(!s->conns);
	loop_poller_remove(s->front.d->loop, &s->reaper);
	assert(!s->front.helpers || workers_lent(s->front.helpers) == 0);
	workers_close(s->front.helpers);
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

void server_count(struct server *s)
{
	struct quota *q = s->quota;
	struct intake_usage usage;

	for (int use = QUOTA_open_spaces; use <= QUOTA_allocations; use++) {
		for (uint32_t i = 0; i < q->n; i++)
			quota_give(q, (enum quota_use)use, i, q->tenant[i].used[use]);
	}
	for (const struct conn *c = s->conns; c; c = c->next) {
		conn_usage(c, &usage);
		for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
			quota_take(q, QUOTA_open_spaces, c->client.tenant,
				   c->client.mounts[i] != NULL);
		quota_take(q, QUOTA_regions, c->client.tenant, usage.regions);
		quota_take(q, QUOTA_region_bytes, c->client.tenant, usage.bytes);
		quota_take(q, QUOTA_allocations, c->client.tenant, usage.allocs);
	}
}

static bool refusal_row(const struct server *s, uint32_t i, struct conn_row *ret)
{
	const uint64_t now = loop_now(s->front.d->loop);
	const struct refusal *refusal = refusals_at(&s->front.refusals, i, now);
	if (!refusal)
		return false;
	*ret = (struct conn_row){
		.reason = refusal_reason_name(refusal->reason),
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
	struct intake_usage usage;

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
	snprintf(ret->tenant, sizeof(ret->tenant), "%.31s", c->socket_conf->tenant);
	conn_usage(c, &usage);
	ret->regions = usage.regions;
	ret->region_bytes = usage.bytes;
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++) {
		const struct mount *mount = c->client.mounts[i];

		if (!mount)
			continue;
		ret->spaces++;
		ret->memories |= mount->memories;
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
