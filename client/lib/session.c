/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - the connection to the daemon: a state machine that never waits (diagram in
 * session.h).
 *
 * Any call of the library may advance it. A reply has the seq of its request. So any thread may
 * take it off the socket, and the thread that waits for it sees that the state has changed.
 */
#include "session.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"
#include "client/abi/runtime_dir.h"
#include "base/clock.h"
#include "client/lib/base/client_ring.h"
#include "client/lib/base/last_error.h"
#include "client/lib/base/lent.h"
#include "client/lib/base/socket.h"
#include "client/lib/memory/cuda_order.h"
#include "client_op.h"
#include "client_space.h"

enum {
	PACKETS_A_CALL = 64, /* a daemon that never stops talking must not keep a caller here */
	LOOK_EVERY_MS = 1,   /* while not all is open */
	STABLE_MS = 5000,    /* a connection that lasted this long resets the backoff */
};

static void state_enter(struct kvtier_client *c, enum session_state state, uint64_t now)
{
	c->state = state;
	c->since_ns = now;
}

/* Waits longer after each connection that did not last. */
static void backoff(struct kvtier_client *c, uint64_t now)
{
	const bool lasted = c->state == SESSION_UP && now - c->since_ns >= ms_to_ns(STABLE_MS);

	c->backoff_ms = lasted ? 0 : 2 * c->backoff_ms;
	if (c->backoff_ms < CLIENT_BACKOFF_MIN_MS)
		c->backoff_ms = CLIENT_BACKOFF_MIN_MS;
	if (c->backoff_ms > CLIENT_BACKOFF_MAX_MS)
		c->backoff_ms = CLIENT_BACKOFF_MAX_MS;
	state_enter(c, SESSION_AWAY, now);
	atomic_store(&c->next_look_ns, now + ms_to_ns(c->backoff_ms));
}

void session_reap(struct kvtier_client *c)
{
	if (atomic_load(&c->readers))
		return; /* another time */
	for (struct link **at = &c->retired; *at;) {
		struct link *link = *at;
		uint32_t refs;

		(void)pthread_mutex_lock(&c->ring);
		refs = link->refs;
		(void)pthread_mutex_unlock(&c->ring);
		if (refs) {
			at = &link->next;
			continue;
		}
		*at = link->next;
		link_close(link);
	}
}

void session_lost(struct kvtier_client *c, int error, const char *why)
{
	bool orphaned = false;
	struct link *link;

	if (c->state == SESSION_AWAY)
		return;
	c->error = error;
	if (why != c->text)
		(void)snprintf(c->text, sizeof(c->text), "%s", why);
	(void)pthread_mutex_lock(&c->ring);
	link = atomic_load(&c->link);
	atomic_store(&c->link, NULL);
	for (size_t i = 0; i < KVTIER_MAX_SPACES; i++)
		if (c->spaces[i])
			atomic_store(&c->spaces[i]->open, false);
	(void)epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, c->fd,
			NULL); /* closing is not enough where a fork holds it */
	if (link) {
		const uint32_t read = ring_withdraw(link);

		orphaned = !c->let_go && ops_orphan(c, link, read);
	}
	if (!orphaned) {
		(void)shutdown(c->fd, SHUT_RDWR); /* likewise */
		(void)close(c->fd);
	}
	c->fd = -1;
	c->let_go = false;
	ops_fail(c, -ECONNRESET);
	(void)pthread_mutex_unlock(&c->ring);
	if (link) {
		link->next = c->retired;
		c->retired = link;
	}
	backoff(c, clock_ns());
	spaces_lost(c);
	cuda_orders_lost(&c->orders);
	session_reap(c);
}

void session_cut(struct kvtier_client *c, uint64_t serial, int error, const char *why)
{
	(void)pthread_mutex_lock(&c->control);
	if (c->connections == serial)
		session_lost(c, error, why);
	(void)pthread_mutex_unlock(&c->control);
}

static int hello_send(struct kvtier_client *c, int fd)
{
	struct wire_hello hello = {
		.head = { .magic = WIRE_MAGIC,
			  .type = WIRE_HELLO,
			  .length = sizeof(hello),
			  .seq = ++c->seq },
		.version_min = WIRE_VERSION_MIN,
		.version_max = WIRE_VERSION_MAX,
		.size_geometry = sizeof(struct wire_geometry),
		.size_region = sizeof(struct wire_region),
		.size_segment = sizeof(struct wire_segment),
		.size_sqe = sizeof(struct wire_sqe),
		.size_cqe = sizeof(struct wire_cqe),
		.sq_entries = CLIENT_SQ_ENTRIES,
		.arena_blocks = CLIENT_ARENA_BLOCKS,
	};

	int rc;

	c->hello_seq = c->seq;
	memcpy(hello.name, c->name, sizeof(hello.name));
	rc = socket_send(fd, &hello, sizeof(hello), NULL, 0);
	/* refused before it was heard: the reason lies in the socket */
	return rc == -ECONNRESET ? 0 : rc;
}

/* A user who has no daemon is served by the node's. A client that was connected stays with its
 * daemon. */
static int dial(struct kvtier_client *c, int *ret)
{
	int rc = socket_connect(c->path, ret), node;

	if (!c->or_node || c->connections > 0 || (rc != -ENOENT && rc != -ECONNREFUSED))
		return rc;
	node = socket_connect(RUNTIME_DIR_NODE_SOCKET, ret);
	if (node == -ENOENT || node == -ECONNREFUSED)
		return rc;
	strcpy(c->path, RUNTIME_DIR_NODE_SOCKET);
	return node;
}

/* What can be done about dial()'s error, or "". */
static const char *remedy(const struct kvtier_client *c, int error)
{
	const bool of_node = strcmp(c->path, RUNTIME_DIR_NODE_SOCKET) == 0;

	if (of_node && error == -EACCES)
		return "; `usermod -aG kvtier USER` lets a user in, from the next login on";
	if (c->or_node && !of_node && (error == -ENOENT || error == -ECONNREFUSED))
		return "; no daemon is at " RUNTIME_DIR_NODE_SOCKET
		       ", either: start kvtierd, or set KVTIER_SOCKET";
	return "";
}

static void session_connect(struct kvtier_client *c, uint64_t now)
{
	struct epoll_event event = { .events = EPOLLIN };
	int fd, rc;

	session_reap(c);
	lent_look();
	if (atomic_load(&lent_orphans) >= LENT_ORPHANS_MAX) {
		c->error = -EBUSY;
		(void)snprintf(
			c->text, sizeof(c->text),
			"%d connections of this process ended with pages lent still, the most "
			"there may be: end the daemons that stand still",
			LENT_ORPHANS_MAX);
		backoff(c, now);
		return;
	}
	rc = dial(c, &fd);
	if (!rc) {
		rc = hello_send(c, fd);
		if (!rc && epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &event))
			rc = -errno;
		if (rc)
			(void)close(fd);
	}
	if (rc) {
		c->error = rc;
		(void)snprintf(c->text, sizeof(c->text), "cannot connect to %s: %s%s", c->path,
			       strerrordesc_np(-rc), remedy(c, rc));
		backoff(c, now);
		return;
	}
	(void)pthread_mutex_lock(&c->ring);
	c->fd = fd;
	(void)pthread_mutex_unlock(&c->ring);
	c->connections++;
	state_enter(c, SESSION_GREETING, now);
}

/* Another kind of descriptor is not believed. Without a pidfd the end of the connection is all that
 * tells of the daemon's end. */
static bool is_pidfd(int fd)
{
	char path[64], name[64];
	ssize_t n;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, name, sizeof(name) - 1);
	if (n < 0)
		return false;
	name[n] = 0;
	return strcmp(name, "anon_inode:[pidfd]") == 0 || strncmp(name, "pidfd:[", 7) == 0;
}

/* Whether the daemon is in this process's PID namespace: the process that made the socket has a
 * number here, and the daemon's pidfd has a number here and in no namespace below. The pidfd alone
 * is not enough, because /proc, which tells its numbers, may be that of a namespace above. */
static bool shares_pids(int pidfd, int fd)
{
	struct ucred peer = { 0 };
	socklen_t n = sizeof(peer);
	char path[64], line[256];
	int numbers = 0;
	FILE *f;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) || peer.pid <= 0)
		return false;
	if (pidfd < 0)
		return true;
	(void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		char *at = line + 6, *end;

		if (strncmp(line, "NSpid:", 6) != 0)
			continue;
		for (; strtol(at, &end, 10) > 0; at = end)
			numbers++;
	}
	if (f)
		(void)fclose(f);
	return numbers == 1;
}

/* The daemon looked at its clock between the sending of our HELLO and the reading of its answer. If
 * that allows the two clocks to be one, they are one: only a time namespace makes them differ. */
static void compare_clocks(struct link *link, uint64_t sent_ns, uint64_t daemon_ns,
			   uint64_t read_ns)
{
	const int64_t least = (int64_t)(daemon_ns - read_ns), most = (int64_t)(daemon_ns - sent_ns);
	const bool same = least <= 0 && most >= 0;

	link->ahead_least_ns = same ? 0 : least;
	link->ahead_most_ns = same ? 0 : most;
}

/* Takes HELLO_OK, and maps the memfds that came with it. */
static int hello_ok(struct kvtier_client *c, struct packet *packet)
{
	const struct wire_hello_ok *ok = &packet->hello_ok;
	struct link *link;
	int pidfd = -1, rc;

	if (c->state != SESSION_GREETING || ok->head.seq != c->hello_seq || packet->n_fds < 3 ||
	    packet->n_fds > 4)
		return error_set(-EPROTO, "HELLO_OK out of order, or not with 3 or 4 descriptors");
	rc = link_open(ok, packet->fds, &link);
	if (rc)
		return rc;
	if (packet->n_fds == 4 && is_pidfd(packet->fds[3]))
		pidfd = packet->fds[3];
	rc = orphan_open(link->arena_blocks, pidfd, &link->orphan);
	if (rc) {
		link_close(link);
		return rc;
	}
	packet->n_fds -= pidfd >= 0; /* taken */
	link->serial = c->connections;
	if (ok->head.length == sizeof(*ok)) /* an older daemon does not tell its time */
		compare_clocks(link, c->since_ns, ok->now_ns, clock_ns());
	c->shares_pids = shares_pids(pidfd, c->fd);
	atomic_store(&c->spin_advised_us, ok->spin_us);
	atomic_store(&c->tiers, ok->tiers & CLIENT_TIERS);
	(void)pthread_mutex_lock(&c->ring);
	atomic_store(&c->link, link);
	__atomic_store_n(&link->submit->magic, WIRE_MAGIC, __ATOMIC_RELAXED);
	__atomic_store_n(&link->submit->want_wake, c->event_used, __ATOMIC_SEQ_CST);
	(void)pthread_mutex_unlock(&c->ring);
	state_enter(c, SESSION_UP, clock_ns());
	return 0;
}

/* An ERROR with the number of one of our requests concerns that request alone. Any other announces
 * the end of the connection. */
static int error_reply(struct kvtier_client *c, struct packet *packet)
{
	struct wire_error *e = &packet->error;

	e->text[sizeof(e->text) - 1] = 0;
	for (char *p = e->text; *p; p++)
		if (*p < ' ' || *p > '~')
			*p = '?';
	if (e->error >= 0 || e->error < -4095)
		return error_set(-EPROTO, "the daemon's ERROR carries %d, which is no error",
				 e->error);
	if (c->state == SESSION_UP && e->head.seq && !spaces_reply(c, packet))
		return 0;
	c->let_go = true;
	return error_set(e->error, "kvtierd: %s", e->text);
}

/* The daemon sent WAKE. A thread that polls event_fd must see it, even if another thread has
 * emptied the socket. */
static int wake(struct kvtier_client *c)
{
	struct link *link;

	(void)pthread_mutex_lock(&c->ring);
	link = atomic_load(&c->link);
	if (link) {
		__atomic_store_n(&link->submit->want_wake, 0, __ATOMIC_SEQ_CST);
		ops_event(c);
	}
	(void)pthread_mutex_unlock(&c->ring);
	return link ? 0 : error_set(-EPROTO, "WAKE before HELLO_OK");
}

static int packet_dispatch(struct kvtier_client *c, struct packet *packet)
{
	if (packet->n_fds && packet->head.type != WIRE_HELLO_OK)
		return error_set(-EPROTO, "descriptors with a message of type %u",
				 packet->head.type);
	switch (packet->head.type) {
	case WIRE_HELLO_OK:
		return hello_ok(c, packet);
	case WIRE_ERROR:
		return error_reply(c, packet);
	case WIRE_WAKE:
		return wake(c);
	case WIRE_BYE:
		c->let_go = true; /* the hang-up comes when its handles are closed */
		return 0;
	default:
		return spaces_reply(c, packet);
	}
}

static void session_dispatch(struct kvtier_client *c)
{
	struct packet packet;

	for (int i = 0; i < PACKETS_A_CALL && c->state != SESSION_AWAY; i++) {
		int rc = socket_receive(c->fd, &packet);

		if (rc == -EAGAIN)
			return;
		if (rc == -EPROTO) {
			session_lost(
				c, rc,
				"the daemon sent something that is no message of this protocol");
			return;
		}
		if (rc == -EMFILE) {
			session_lost(
				c, rc,
				"this process has no descriptors left for the daemon's memory");
			return;
		}
		if (rc) {
			session_lost(c, rc, "the daemon closed the connection");
			return;
		}
		rc = packet_dispatch(c, &packet);
		packet_close(&packet);
		if (rc)
			session_lost(c, rc, kvtier_last_error());
	}
}

void session_advance(struct kvtier_client *c, uint64_t now)
{
	if (c->state == SESSION_AWAY) {
		if (now >= atomic_load(&c->next_look_ns))
			session_connect(c, now);
		return;
	}
	session_dispatch(c);
	/* Not "now - since": another thread may have connected after this one read the clock. */
	if (c->state == SESSION_GREETING && now > c->since_ns + ms_to_ns(c->timeout_ms)) {
		(void)snprintf(c->text, sizeof(c->text), "no answer on %s in %u ms", c->path,
			       c->timeout_ms);
		session_lost(c, -ETIMEDOUT, c->text);
	}
	if (c->state == SESSION_UP) {
		const int rc = spaces_advance(c);

		if (rc)
			session_lost(c, rc, "the daemon closed the connection");
	}
	if (c->state != SESSION_AWAY)
		atomic_store(&c->next_look_ns, now + ms_to_ns(LOOK_EVERY_MS));
	if (c->retired)
		session_reap(c);
	lent_look();
}

void session_nudge(struct kvtier_client *c)
{
	const uint64_t now = clock_ns();

	if (now < atomic_load_explicit(&c->next_look_ns, memory_order_relaxed))
		return;
	if (pthread_mutex_trylock(&c->control))
		return; /* somebody is at it */
	session_advance(c, now);
	(void)pthread_mutex_unlock(&c->control);
}

void session_pause(struct kvtier_client *c, uint64_t deadline)
{
	const uint64_t now = clock_ns();
	uint64_t ms = deadline > now ? (deadline - now) / 1000000u + 1 : 0;
	struct pollfd p = { .events = POLLIN };

	/* Another thread may close it meanwhile: then this waits a slice, or not at all, and looks
	 * again. */
	(void)pthread_mutex_lock(&c->ring);
	p.fd = c->fd;
	(void)pthread_mutex_unlock(&c->ring);
	if (ms > CLIENT_SLICE_MS)
		ms = CLIENT_SLICE_MS;
	(void)poll(&p, 1, (int)ms);
}

void session_doorbell(struct kvtier_client *c, uint64_t serial)
{
	const struct wire_head bell = { .magic = WIRE_MAGIC,
					.type = WIRE_DOORBELL,
					.length = sizeof(bell) };
	int rc = 0;

	(void)pthread_mutex_lock(&c->ring);
	if (c->fd >= 0)
		rc = socket_send(c->fd, &bell, sizeof(bell), NULL, 0);
	(void)pthread_mutex_unlock(&c->ring);
	/* A full socket holds enough to wake it. */
	if (rc && rc != -EAGAIN)
		session_cut(c, serial, rc, "the daemon closed the connection");
}
