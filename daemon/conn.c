/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.c - one connection's life: handshake, control messages, its submission ring, death. (server.c listens.)
 *
 * Invariants
 *   K1 whatever a client says, at most its own connection ends: an ERROR with the sentence, then close.
 *   K2 the end of a connection is the daemon's word that it let go of the client's pages, whatever the reason. A
 *      dying connection's socket and ring are not looked at any more, but its socket stays open and silent until
 *      its last part in flight let go (milliseconds). Only then the reason is sent and the socket closed.
 *   K3 nothing is sent that could block: what does not fit into the socket of a client that does not read its
 *      replies ends that connection.
 */
#include "conn.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvtierd.h"
#include "log.h"
#include "request.h"
#include "server.h"

enum {
	MESSAGES_A_TURN = 16,
	ENTRIES_A_TURN = 64,
	/* Regions of all clients together: vm.max_map_count is 65530, and each is a mapping. */
	MAX_REGIONS = 49152,
};

/* Bytes of them: regions may be sparse, and the address space has 128 TiB. */
#define MAX_REGION_BYTES (64ull << 40)

/* --- sending --- */

static int send_message(struct conn *c, const void *message, size_t n, const int *fds, size_t n_fds)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(4 * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)message, .iov_len = n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (n_fds > 0) {
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.head), fds, n_fds * sizeof(int));
	}
	return sendmsg(c->socket.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)n ? 0 : -errno;
}

static struct wire_head head_of(enum wire_type type, size_t n, uint32_t seq)
{
	return (struct wire_head){ .magic = WIRE_MAGIC, .type = (uint16_t)type, .length = (uint32_t)n, .seq = seq };
}

static int send_error(struct conn *c, uint32_t seq, int error, const char *text)
{
	struct wire_error e = { .head = head_of(WIRE_ERROR, sizeof e, seq), .error = error };

	snprintf(e.text, sizeof e.text, "%.*s", (int)sizeof e.text - 1, text);
	return send_message(c, &e, sizeof e, NULL, 0);
}

void conn_wake(struct conn *c)
{
	const struct wire_head wake = head_of(WIRE_WAKE, sizeof wake, 0);

	/* When it does not fit, unread packets lie there already, and the client's descriptor is readable. */
	if (c->state == CONN_OPEN)
		(void)send_message(c, &wake, sizeof wake, NULL, 0);
}

/* --- death --- */

void conn_kill(struct conn *c)
{
	struct loop *loop = server_daemon(c->server)->loop;

	if (c->state == CONN_DYING)
		return;
	c->state = CONN_DYING;
	loop_timer_unset(loop, &c->greeting);
	loop_poller_remove(loop, &c->poller);
	loop_remove(loop, &c->socket);
	if (c->process.fd >= 0) {
		loop_remove(loop, &c->process);
		(void)close(c->process.fd);
		c->process.fd = -1;
	}
	requests_abandon(server_daemon(c->server), c);
	server_conn_dying(c->server);
}

/* Nobody touches a page of it any more: says why it ends, if there is a reason, and closes. */
static void end(struct conn *c)
{
	assert(c->state == CONN_DYING && c->n_requests == 0);
	if (c->end_error)
		(void)send_error(c, c->end_seq, c->end_error, c->end_text);
	(void)close(c->socket.fd);
	c->socket.fd = -1;
}

/* The client broke the protocol. */
static void violate(struct conn *c, uint32_t seq, const char *text)
{
	struct kvtierd *d = server_daemon(c->server);

	stats_add(&d->stats->v.protocol_errors_total, 1);
	if (c->state == CONN_GREETING)
		stats_add(&d->stats->v.clients_refused_total, 1);
	log_limited(server_log(c->server), loop_now(d->loop), LOG_LEVEL_WARNING,
		    "client %u (pid %ld, uid %ld, \"%s\") broke the protocol and was cut: %s", c->id, (long)c->pid,
		    (long)c->uid, c->name, text);
	c->end_error = -EPROTO;
	c->end_seq = seq;
	snprintf(c->end_text, sizeof c->end_text, "%s", text);
	conn_kill(c);
}

static void on_process(struct loop_watch *watch, uint32_t events)
{
	(void)events;
	conn_kill((struct conn *)(void *)((char *)watch - offsetof(struct conn, process)));
}

static void on_greeting_late(struct loop_timer *timer)
{
	struct conn *c = (struct conn *)(void *)((char *)timer - offsetof(struct conn, greeting));

	violate(c, 0, "no HELLO came within 5 s");
}

/* --- control messages --- */

static bool poll_ring(struct loop_poller *poller);

static void on_hello(struct conn *c, const void *packet, size_t n, uint32_t seq)
{
	struct kvtierd *d = server_daemon(c->server);
	struct wire_hello_ok ok = { .head = head_of(WIRE_HELLO_OK, sizeof ok, seq) };
	struct wire_hello hello;
	char text[200];
	int fds[4], r;

	if (c->state != CONN_GREETING) {
		violate(c, seq, "a second HELLO");
		return;
	}
	r = proto_hello(packet, n, d->config->socket_ring_entries, d->config->socket_arena_blocks, &hello, &ok.version,
			text, sizeof text);
	if (r == 0) {
		r = ring_open(&c->ring, hello.sq_entries, hello.arena_blocks);
		if (r)
			snprintf(text, sizeof text, "the daemon cannot make rings: %s", strerror(-r));
	}
	if (r) {
		violate(c, seq, text);
		return;
	}
	memcpy(c->name, hello.name, sizeof c->name);
	ok.connection = c->id;
	ok.sq_entries = ok.cq_entries = c->ring.entries;
	ok.arena_blocks = c->ring.arena_blocks;
	ok.spin_us = (uint32_t)d->config->daemon_spin_us;
	ok.submit_bytes = c->ring.submit_bytes;
	ok.complete_bytes = c->ring.complete_bytes;
	ok.index_bytes = index_bytes(d->index);
	snprintf(ok.daemon_version, sizeof ok.daemon_version, "%s", KVTIER_VERSION);
	snprintf(ok.tenant, sizeof ok.tenant, "%.31s", server_tenant(c->server));
	fds[0] = c->ring.submit_fd;
	fds[1] = c->ring.complete_fd;
	fds[2] = index_fd(d->index);
	fds[3] = server_pidfd(c->server);
	if (send_message(c, &ok, sizeof ok, fds, fds[3] >= 0 ? 4 : 3)) {
		conn_kill(c);
		return;
	}
	ring_close_fds(&c->ring);
	loop_timer_unset(d->loop, &c->greeting);
	c->state = CONN_OPEN;
	c->poller.poll = poll_ring;
	loop_poller_add(d->loop, &c->poller);
}

/* What regions take of the daemon is divided among all clients there may be: none can take what another needs. */
static int check_share(const struct conn *c, const struct proto_space_open *m, char *text, size_t text_bytes)
{
	const uint32_t clients = server_daemon(c->server)->config->socket_max_clients;
	const uint64_t max_bytes = MAX_REGION_BYTES / clients;
	uint64_t bytes = 0, n = m->n_regions;

	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++) {
		bytes += c->mounts[i] ? c->mounts[i]->region_bytes : 0;
		n += c->mounts[i] ? c->mounts[i]->n_regions : 0;
	}
	for (uint32_t i = 0; i < m->n_regions; i++)
		if (__builtin_add_overflow(bytes, m->regions[i].length, &bytes))
			bytes = UINT64_MAX;
	if (n <= MAX_REGIONS / clients && bytes <= max_bytes)
		return 0;
	snprintf(text, text_bytes, "regions: with these the client has %llu of %llu bytes; [socket] max_clients = %u "
		 "leaves it %u of %llu: lower that, or use fewer spaces", (unsigned long long)n,
		 (unsigned long long)bytes, clients, MAX_REGIONS / clients, (unsigned long long)max_bytes);
	return -ENOSPC;
}

static void on_space_open(struct conn *c, const void *packet, size_t n, uint32_t seq, const int *fds, uint32_t n_fds)
{
	struct kvtierd *d = server_daemon(c->server);
	struct wire_space_ok ok = { .head = head_of(WIRE_SPACE_OK, sizeof ok, seq) };
	struct proto_space_open m;
	struct mount *mount = NULL;
	char text[232];
	uint32_t handle = 0;
	int r = proto_space_open(packet, n, n_fds, &m, text, sizeof text);

	if (r == -EPROTO) {
		violate(c, seq, text);
		return;
	}
	while (handle < WIRE_MAX_SPACES && c->mounts[handle])
		handle++;
	if (r == 0 && handle == WIRE_MAX_SPACES) {
		snprintf(text, sizeof text, "%d spaces are open on this connection, the most there can be",
			 WIRE_MAX_SPACES);
		r = -ENOSPC;
	}
	if (r == 0)
		r = check_share(c, &m, text, sizeof text);
	if (r == 0)
		r = mount_open(d, server_tenant(c->server), &m, fds, &mount, text, sizeof text);
	if (r) {
		if (send_error(c, seq, r, text))
			conn_kill(c);
		return;
	}
	mount->handle = handle;
	c->mounts[handle] = mount;
	ok.space = handle;
	ok.codec = (uint32_t)mount->space->codec;
	ok.pages = mount->pages;
	ok.image_bytes = mount->space->shape.image_bytes;
	ok.logical_bytes = mount->space->shape.logical_bytes;
	memcpy(ok.space_id, mount->space->id, sizeof ok.space_id);
	memcpy(ok.salt, mount->space->salt, sizeof ok.salt);
	memcpy(ok.index_key, mount->space->index_key, sizeof ok.index_key);
	if (send_message(c, &ok, sizeof ok, NULL, 0))
		conn_kill(c);
}

static void on_space_close(struct conn *c, const void *packet, size_t n, uint32_t seq)
{
	struct mount *mount = NULL;
	char text[200];
	uint32_t handle = 0;

	if (proto_space_close(packet, n, &handle, text, sizeof text)) {
		violate(c, seq, text);
		return;
	}
	mount = c->mounts[handle];
	if (!mount || mount->closing) {
		snprintf(text, sizeof text, "space %u is not open on this connection", handle);
		violate(c, seq, text);
		return;
	}
	mount->closing = true;
	mount->close_seq = seq;
	c->closing_mounts++;
	requests_cancel_mount(server_daemon(c->server), c, mount);
}

/* Answers SPACE_CLOSE for the mounts whose pages nobody touches any more. */
static void finish_closing(struct conn *c)
{
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++) {
		struct mount *mount = c->mounts[i];
		struct wire_space_close done = { .head = head_of(WIRE_SPACE_CLOSED, sizeof done, 0), .space = i };

		if (!mount || !mount->closing || mount->ops > 0)
			continue;
		done.head.seq = mount->close_seq;
		c->mounts[i] = NULL;
		c->closing_mounts--;
		mount_close(server_daemon(c->server), mount);
		if (send_message(c, &done, sizeof done, NULL, 0)) {
			conn_kill(c);
			return;
		}
	}
}

static void on_message(struct conn *c, const void *packet, size_t n, const int *fds, uint32_t n_fds)
{
	struct wire_head head = { 0 };
	char text[200];

	if (proto_head(packet, n, &head, text, sizeof text))
		violate(c, 0, text);
	else if (n_fds > 0 && head.type != WIRE_SPACE_OPEN)
		violate(c, head.seq, "file descriptors came with a message that takes none");
	else if (head.type == WIRE_HELLO)
		on_hello(c, packet, n, head.seq);
	else if (c->state != CONN_OPEN)
		violate(c, head.seq, "the first message must be HELLO");
	else if (head.type == WIRE_SPACE_OPEN)
		on_space_open(c, packet, n, head.seq, fds, n_fds);
	else if (head.type == WIRE_SPACE_CLOSE)
		on_space_close(c, packet, n, head.seq);
	/* DOORBELL: waking up was all it is for; the ring is polled this turn. */
}

/* --- receiving --- */

/* Receives one packet and its fds. > 0: bytes; 0: none there; -ECONNRESET: gone; -EPROTO with text. */
static ssize_t receive(struct conn *c, void *buffer, size_t room, int fds[WIRE_MAX_REGIONS], uint32_t *ret_fds,
		       char *text, size_t text_bytes)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(WIRE_MAX_REGIONS * sizeof(int))];
	} control;
	struct iovec iov = { .iov_base = buffer, .iov_len = room };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes,
			    .msg_controllen = sizeof control.bytes };
	const ssize_t n = recvmsg(c->socket.fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	*ret_fds = 0;
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -ECONNRESET;
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
		if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
			*ret_fds = (uint32_t)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(fds, CMSG_DATA(h), *ret_fds * sizeof(int));
		}
	if (n == 0)
		return -ECONNRESET;
	if (m.msg_flags & MSG_CTRUNC) {
		snprintf(text, text_bytes, "a packet carries more than %d file descriptors", WIRE_MAX_REGIONS);
		return -EPROTO;
	}
	if (m.msg_flags & MSG_TRUNC) {
		snprintf(text, text_bytes, "a packet is larger than %d bytes", WIRE_MAX_MESSAGE);
		return -EPROTO;
	}
	return n;
}

static void on_socket(struct loop_watch *watch, uint32_t events)
{
	struct conn *c = (struct conn *)(void *)((char *)watch - offsetof(struct conn, socket));

	for (int i = 0; i < MESSAGES_A_TURN && c->state != CONN_DYING; i++) {
		char text[200];
		int fds[WIRE_MAX_REGIONS];
		uint32_t n_fds;
		void *buffer = server_buffer(c->server);
		const ssize_t n = receive(c, buffer, WIRE_MAX_MESSAGE, fds, &n_fds, text, sizeof text);

		if (n > 0)
			on_message(c, buffer, (size_t)n, fds, n_fds);
		else if (n == -EPROTO)
			violate(c, 0, text);
		else if (n < 0)
			conn_kill(c);
		for (uint32_t f = 0; f < n_fds; f++)
			(void)close(fds[f]);
		if (n == 0)
			break;
	}
	if (c->state != CONN_DYING && (events & (EPOLLHUP | EPOLLERR)))
		conn_kill(c);
}

/* --- the ring --- */

/* Can this entry be taken now? A cancel needs neither an op nor a completion. */
static bool has_room(const struct conn *c, const struct wire_sqe *sqe, uint32_t completions)
{
	const struct requests *all = server_daemon(c->server)->requests;

	return sqe->op == WIRE_OP_CANCEL ||
	       (completions > 0 && requests_room(all) &&
		c->n_requests < requests_share(all, server_connections(c->server)));
}

static bool poll_ring(struct loop_poller *poller)
{
	struct conn *c = (struct conn *)(void *)((char *)poller - offsetof(struct conn, poller));
	struct kvtierd *d = server_daemon(c->server);
	uint32_t completions = 0, taken = 0;

	if (c->closing_mounts > 0)
		finish_closing(c);
	while (c->state == CONN_OPEN && taken < ENTRIES_A_TURN) {
		struct wire_sqe sqe;
		char text[200] = "sqe ring: sq_tail or cq_head is further than the ring is long";
		int r = ring_peek(&c->ring, &sqe);

		if (r == 0)
			break;
		if (r > 0)
			r = ring_room(&c->ring, c->n_requests, &completions);
		if (r == 0 && !has_room(c, &sqe, completions))
			break;
		if (r == 0) {
			ring_advance(&c->ring);
			r = proto_sqe(&sqe, c->ring.arena_blocks, text, sizeof text);
		}
		if (r == 0)
			r = request_start(d, c, &sqe, text, sizeof text);
		if (r)
			violate(c, 0, text);
		taken++;
	}
	return taken > 0;
}

int conn_start(struct conn *c, int fd, int pidfd)
{
	struct loop *loop = server_daemon(c->server)->loop;
	int r;

	c->socket = (struct loop_watch){ .fd = fd, .ready = on_socket };
	c->process = (struct loop_watch){ .fd = -1, .ready = on_process };
	c->greeting.fire = on_greeting_late;
	c->ring.submit_fd = c->ring.complete_fd = -1;
	r = loop_add(loop, &c->socket, EPOLLIN);
	if (r == 0 && pidfd >= 0) {
		c->process.fd = pidfd;
		r = loop_add(loop, &c->process, EPOLLIN);
		if (r)
			c->process.fd = -1;
	}
	if (r == 0)
		r = loop_timer_set(loop, &c->greeting, loop_now(loop) + GREETING_S * 1000000000ull);
	if (r)
		loop_remove(loop, &c->socket);
	return r;
}

void conn_free_resources(struct conn *c)
{
	end(c);
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		mount_close(server_daemon(c->server), c->mounts[i]);
	ring_close(&c->ring);
}
