/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.c - one connection's life: handshake, control messages, its submission ring, death.
 * (server.c listens.)
 *
 * Invariants
 *   K1 whatever a client says, at most its own connection ends: an ERROR with the sentence, then
 *      close.
 *   K2 the end of a connection is the daemon's word that it let go of the client's pages, whatever
 *      the reason. A dying connection's socket and ring are not looked at any more, but its socket
 *      stays open and silent until its last part in flight let go (milliseconds). Only then the
 *      reason is sent, and it hangs up.
 *   K3 nothing is sent that could block: what does not fit into the socket of a client that does
 *      not read its replies ends that connection.
 *   K4 what a client sent is touched here only as bytes of a packet: descriptors, regions and its
 *      socket's queue are a helper's (intake.c). A connection has at most one intake and one
 *      leaving under way, and its slot is taken until both have ended: what blocks them holds up
 *      this connection alone.
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

#include "daemon/base/container_of.h"
#include "daemon/kvtierd.h"
#include "daemon/base/log.h"
#include "daemon/op/op.h"
#include "conn_share.h"
#include "packet.h"
#include "server.h"

enum {
	MESSAGES_A_TURN = 16, /* if there were so many, the next wait for a tick */
	ENTRIES_A_TURN = 64,
	/* between two looks at the ring of a client whose doorbells nobody hears */
	TICK_NS = 1000000,
};

/* --- death --- */

void conn_kill(struct conn *c)
{
	struct loop *loop = server_daemon(c->server)->loop;

	if (c->state >= CONN_DYING)
		return;
	c->state = CONN_DYING;
	loop_timer_unset(loop, &c->timer);
	loop_poller_remove(loop, &c->poller);
	loop_remove(loop, &c->socket);
	if (c->process.fd >= 0) {
		loop_remove(loop, &c->process);
		(void)close(c->process.fd);
		c->process.fd = -1;
	}
	ops_abandon(&c->client);
	server_conn_dying(c->server);
}

/* Its regions go to a helper; until they are unmapped they count. */
static void give_up(struct conn *c, struct mount *mount)
{
	mount_close(&server_daemon(c->server)->store, mount);
	mount->next = c->unwanted;
	c->unwanted = mount;
}

static void send_off(struct conn *c)
{
	c->leaving.list = c->unwanted;
	c->leaving.orders = c->unwanted_orders;
	c->leaving.lent = true;
	c->unwanted = NULL;
	c->unwanted_orders = NULL;
	helper_start(server_helpers(c->server), &c->leaving.job);
}

static void start_intake(struct conn *c);

static void say_closed(struct conn *c, const struct mount *mount)
{
	struct wire_space_close done = {
		.head = packet_head(WIRE_SPACE_CLOSED, sizeof(done), mount->close_seq),
		.space = mount->handle,
	};

	if (packet_send(c->socket.fd, &done, sizeof(done), NULL, 0))
		conn_kill(c);
}

static bool unwanted(const struct conn *c)
{
	return c->unwanted || c->unwanted_orders;
}

static void on_left(struct helper_job *job)
{
	struct conn *c = container_of(job, struct conn, leaving);

	c->leaving.lent = false;
	for (struct mount *mount = c->leaving.list, *next; mount; mount = next) {
		next = mount->next;
		if (mount->answer_late && c->state == CONN_OPEN)
			say_closed(c, mount);
		free(mount);
	}
	c->leaving.list = NULL;
	if (unwanted(c))
		send_off(c);
	if (c->intake.state == INTAKE_HELD && c->state == CONN_OPEN)
		start_intake(c);
}

static void leave(struct conn *c, struct mount *mount)
{
	give_up(c, mount);
	if (!c->leaving.lent)
		send_off(c);
}

static void leave_order(struct conn *c, struct order *order)
{
	order->next = c->unwanted_orders;
	c->unwanted_orders = order;
	if (!c->leaving.lent)
		send_off(c);
}

/* Nobody touches a page of it any more: says why it ends, if there is a reason, and hangs up. With
 * regions of a GPU that comes when they are closed: their memory may be freed only then. */
static void end(struct conn *c)
{
	assert(c->state == CONN_DYING && c->client.n_ops == 0);
	c->state = CONN_ENDED;
	if (c->end_error)
		(void)packet_error(c->socket.fd, c->end_seq, c->end_error, c->end_text);
	if (!conn_uses_gpu(c) && c->intake.state == INTAKE_IDLE && !c->intake.parts)
		(void)shutdown(c->socket.fd, SHUT_RDWR);
	conn_give_up_orders(c);
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		if (c->client.mounts[i])
			give_up(c, c->client.mounts[i]);
	memset(c->client.mounts, 0, sizeof(c->client.mounts));
}

bool conn_end(struct conn *c)
{
	if (c->state == CONN_DYING)
		end(c);
	if (c->intake.state == INTAKE_HELD) {
		c->intake.discard = true;
		start_intake(c);
	}
	if (c->intake.state != INTAKE_IDLE || c->leaving.lent)
		return false;
	if (c->socket.fd < 0 && !unwanted(c))
		return true;
	if (!c->client.ring.submit && !unwanted(c) && server_guarded(c->server)) {
		/* before HELLO was answered no descriptor can have come */
		(void)close(c->socket.fd);
		return true;
	}
	c->leaving.socket = c->socket.fd;
	c->leaving.ring = &c->client.ring;
	c->leaving.parts = c->intake.parts;
	c->intake.parts = NULL;
	c->socket.fd = -1;
	send_off(c);
	return false;
}

void conn_lost(struct conn *c, const struct device *device, const char *why)
{
	if (c->state != CONN_OPEN || !conn_uses(c, device))
		return;
	c->end_error = -EIO;
	snprintf(c->end_text, sizeof(c->end_text), "%s", why);
	conn_kill(c);
}

/* The client broke the protocol. */
static void violate(struct conn *c, uint32_t seq, const char *text)
{
	struct kvtierd *d = server_daemon(c->server);

	stats_add(&d->stats->v.protocol_errors_total, 1);
	if (c->state < CONN_OPEN)
		stats_add(&d->stats->v.clients_refused_total, 1);
	log_limited(server_log(c->server), loop_now(d->loop), LOG_LEVEL_WARNING,
		    "client %u (pid %ld, uid %ld, \"%s\") broke the protocol and was cut: %s",
		    c->client.id, (long)c->client.pid, (long)c->uid, c->client.name, text);
	c->end_error = -EPROTO;
	c->end_seq = seq;
	snprintf(c->end_text, sizeof(c->end_text), "%s", text);
	conn_kill(c);
}

static void on_process(struct loop_watch *watch, uint32_t events)
{
	(void)events;
	conn_kill(container_of(watch, struct conn, process));
}

static void on_greeting_late(struct loop_timer *timer)
{
	struct conn *c = container_of(timer, struct conn, timer);

	violate(c, 0,
		c->state == CONN_MEETING ? "the daemon could not make rings within 5 s" :
					   "no HELLO came within 5 s");
}

/* --- control messages --- */

static bool poll_ring(struct loop_poller *poller);
static void on_tick(struct loop_timer *timer);

static void on_hello(struct conn *c, const void *packet, size_t n, uint32_t seq)
{
	const struct config *config = server_daemon(c->server)->config;
	struct wire_hello hello;
	char text[200];

	if (c->state != CONN_GREETING) {
		violate(c, seq, "a second HELLO");
		return;
	}
	if (proto_hello(packet, n, config->socket_ring_entries, config->socket_arena_blocks, &hello,
			&c->version, text, sizeof(text))) {
		violate(c, seq, text);
		return;
	}
	memcpy(c->client.name, hello.name, sizeof(c->client.name));
	c->state = CONN_MEETING;
	c->intake.seq = seq;
	c->intake.ring = &c->client.ring;
	c->intake.ring_entries = hello.sq_entries;
	c->intake.arena_blocks = hello.arena_blocks;
	start_intake(c);
}

static void on_rings(struct conn *c, uint32_t seq)
{
	struct loop *loop = server_daemon(c->server)->loop;

	if (conn_answer_hello(c, seq)) {
		conn_kill(c);
		return;
	}
	loop_timer_unset(loop, &c->timer);
	c->timer.fire = on_tick;
	c->state = CONN_OPEN;
	c->poller.poll = poll_ring;
	loop_poller_add(loop, &c->poller);
}

/* Mapping regions is a helper's, also those that came without descriptors; so is giving ranges
 * back, as a SPACE_OPEN does. */
static bool has_regions(const struct conn *c, const void *packet)
{
	return c->intake.parts || ((const struct wire_space_open *)packet)->n_regions > 0;
}

static void take_regions(struct conn *c, const void *packet, size_t n, uint32_t seq)
{
	(void)loop_modify(server_daemon(c->server)->loop, &c->socket, 0);
	if (intake_hold(&c->intake, packet, n))
		violate(c, seq, "the daemon is out of memory for a packet");
	else
		start_intake(c);
}

/* The regions are in mount; NULL: there are none. */
static void on_space_open(struct conn *c, const void *packet, size_t n, uint32_t seq,
			  struct mount *mount, uint32_t n_fds)
{
	struct kvtierd *d = server_daemon(c->server);
	struct wire_space_ok ok = { .head = packet_head(WIRE_SPACE_OK, sizeof(ok), seq) };
	struct proto_space_open m;
	char text[232];
	uint32_t handle = 0;
	int r = proto_space_open(packet, n, n_fds, &m, text, sizeof(text));

	if (r == -EPROTO) {
		assert(!mount); /* the helper has seen the same */
		violate(c, seq, text);
		return;
	}
	if (r == 0)
		r = conn_free_handle(c, &handle, text, sizeof(text));
	if (r == 0 && !mount) /* without regions: nothing to map */
		r = mount_import(&d->devices, &m, NULL, NULL, &mount, text, sizeof(text));
	if (r == 0)
		r = mount_open(&d->store, server_tenant(c->server), &m, mount, text, sizeof(text));
	if (r) {
		if (mount)
			leave(c, mount);
		if (packet_error(c->socket.fd, seq, r, text))
			conn_kill(c);
		return;
	}
	mount->handle = handle;
	c->client.mounts[handle] = mount;
	conn_fill_ok(c, mount, &ok);
	if (packet_send(c->socket.fd, &ok, sizeof(ok), NULL, 0))
		conn_kill(c);
	explicit_bzero(&ok, sizeof(ok));
}

static void on_space_close(struct conn *c, const void *packet, size_t n, uint32_t seq)
{
	struct mount *mount = NULL;
	char text[200];
	uint32_t handle = 0;

	if (proto_space_close(packet, n, &handle, text, sizeof(text))) {
		violate(c, seq, text);
		return;
	}
	mount = c->client.mounts[handle];
	if (!mount || mount->closing) {
		snprintf(text, sizeof(text), "space %u is not open on this connection", handle);
		violate(c, seq, text);
		return;
	}
	mount->closing = true;
	mount->close_seq = seq;
	c->closing_mounts++;
	ops_cancel_mount(&c->client, mount);
}

/* Answers SPACE_CLOSE for the mounts whose pages nobody touches any more. */
static void finish_closing(struct conn *c)
{
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++) {
		struct mount *mount = c->client.mounts[i];

		if (!mount || !mount->closing || mount->ops > 0)
			continue;
		c->client.mounts[i] = NULL;
		c->closing_mounts--;
		mount->answer_late =
			mount->device != devices_cpu(&server_daemon(c->server)->devices);
		if (!mount->answer_late)
			say_closed(c, mount);
		leave(c, mount);
		if (c->state != CONN_OPEN)
			return;
	}
}

static void on_message(struct conn *c, const void *packet, size_t n)
{
	struct wire_head head = { 0 };
	char text[200];

	if (proto_head(packet, n, &head, text, sizeof(text)))
		violate(c, 0, text);
	else if (head.type == WIRE_HELLO)
		on_hello(c, packet, n, head.seq);
	else if (c->state != CONN_OPEN)
		violate(c, head.seq, "the first message must be HELLO");
	else if (head.type == WIRE_PARTS ||
		 (head.type == WIRE_SPACE_OPEN && has_regions(c, packet)))
		take_regions(c, packet, n, head.seq);
	else if (head.type == WIRE_SPACE_OPEN)
		on_space_open(c, packet, n, head.seq, NULL, 0);
	else if (head.type == WIRE_SPACE_CLOSE)
		on_space_close(c, packet, n, head.seq);
	else if (head.type == WIRE_ORDER)
		violate(c, head.seq, "ORDER came without the file descriptor of the words");
	/* DOORBELL: waking up was all it is for; the ring is polled this turn. */
}

/* --- packets with descriptors --- */

/* Packets are not looked at until an intake has ended, or for a tick. Doorbells are among them: so
 * the ring is looked at now and then. */
static void let_packets_wait(struct conn *c)
{
	struct loop *loop = server_daemon(c->server)->loop;

	(void)loop_modify(loop, &c->socket, 0);
	if (c->state == CONN_OPEN)
		loop_timer_set(loop, &c->timer, loop_now(loop) + TICK_NS);
}

static void start_intake(struct conn *c)
{
	c->intake.state = INTAKE_LENT;
	c->intake.greeted = c->state == CONN_OPEN;
	conn_share(c, &c->intake.share);
	let_packets_wait(c);
	helper_start(server_helpers(c->server), &c->intake.job);
}

static void on_tick(struct loop_timer *timer)
{
	struct conn *c = container_of(timer, struct conn, timer);
	struct loop *loop = server_daemon(c->server)->loop;

	if (c->intake.state == INTAKE_IDLE)
		(void)loop_modify(loop, &c->socket, EPOLLIN);
	else
		loop_timer_set(loop, timer, loop_now(loop) + TICK_NS);
}

static void on_order(struct conn *c, uint32_t seq, struct order *order)
{
	struct wire_order_ok ok = { .head = packet_head(WIRE_ORDER_OK, sizeof(ok), seq) };
	char text[200];
	int r = conn_take_order(c, order, text, sizeof(text));

	if (r) {
		leave_order(c, order);
		r = packet_error(c->socket.fd, seq, r, text);
	} else {
		memcpy(ok.device, order->device->uuid, sizeof(ok.device));
		r = packet_send(c->socket.fd, &ok, sizeof(ok), NULL, 0);
	}
	if (r)
		conn_kill(c);
}

static void on_intake(struct helper_job *job)
{
	struct conn *c = container_of(job, struct conn, intake);
	struct intake *in = &c->intake;
	const int status = in->status;

	if (status == -EAGAIN && c->state < CONN_DYING) {
		in->state = INTAKE_HELD;
		if (!c->leaving.lent) /* they have been unmapped meanwhile */
			start_intake(c);
		return;
	}
	if (status == -EAGAIN) {
		in->state = INTAKE_HELD; /* conn_end() */
		return;
	}
	in->state = INTAKE_IDLE;
	if (c->state >= CONN_DYING) {
		if (in->mount)
			leave(c, in->mount);
		if (in->order)
			leave_order(c, in->order);
	} else if (status == 0 && in->ring)
		on_rings(c, in->seq);
	else if (status == 0 && in->order)
		on_order(c, in->seq, in->order);
	else if (status == 0 && in->type == WIRE_PARTS)
		conn_answer_parts(c, in->seq);
	else if (status == 0)
		on_space_open(c, in->packet, in->n, in->seq, in->mount, WIRE_MAX_REGIONS);
	else if (status == -EPROTO)
		violate(c, in->seq, in->text);
	else if (status == -ECONNRESET || packet_error(c->socket.fd, in->seq, status, in->text))
		conn_kill(c);
	intake_drop(in);
	if (c->state < CONN_DYING)
		(void)loop_modify(server_daemon(c->server)->loop, &c->socket, EPOLLIN);
}

/* --- receiving --- */

/* False: there is nothing more to take now. */
static bool take_packet(struct conn *c)
{
	void *buffer = server_buffer(c->server);
	char text[64];
	bool fds;
	ssize_t n = intake_peek(c->socket.fd, &fds);

	if (n == 0)
		return false;
	if (n > 0 && fds) {
		start_intake(c);
		return false;
	}
	if (n > WIRE_MAX_MESSAGE) {
		snprintf(text, sizeof(text), "a packet is larger than %d bytes", WIRE_MAX_MESSAGE);
		violate(c, 0, text);
		return false;
	}
	if (n > 0)
		n = recv(c->socket.fd, buffer, WIRE_MAX_MESSAGE, MSG_DONTWAIT);
	if (n > 0)
		on_message(c, buffer, (size_t)n);
	else
		conn_kill(c);
	return c->state < CONN_DYING;
}

/* A client that rings without end would keep the core busy: a packet is two system calls. */
static void on_socket(struct loop_watch *watch, uint32_t events)
{
	struct conn *c = container_of(watch, struct conn, socket);
	int taken = 0;

	while (taken < MESSAGES_A_TURN && c->intake.state == INTAKE_IDLE && take_packet(c))
		taken++;
	if (taken == MESSAGES_A_TURN && c->intake.state == INTAKE_IDLE)
		let_packets_wait(c);
	if (c->state < CONN_DYING && (events & (EPOLLHUP | EPOLLERR)))
		conn_kill(c);
}

void conn_look(struct conn *c)
{
	on_socket(&c->socket, 0);
}

void conn_turn_away(struct conn *c)
{
	stats_add(&server_daemon(c->server)->stats->v.clients_refused_total, 1);
	c->end_error = -EBUSY;
	snprintf(c->end_text, sizeof(c->end_text),
		 "no HELLO came, and another client needs the connection");
	conn_kill(c);
}

/* --- the ring --- */

/* Whether an entry was there, and was taken or ended the connection. Nothing is written to `text`
 * unless it is needed: while the daemon spins, this is asked every 100 ns. */
static bool take_entry(struct conn *c)
{
	struct ring *ring = &c->client.ring;
	uint32_t completions;
	struct wire_sqe sqe;
	char text[200];
	int r = ring_peek(ring, &sqe);

	if (r == 0)
		return false;
	if (r < 0 || ring_room(ring, c->client.n_ops, &completions)) {
		violate(c, 0, "sqe ring: sq_tail or cq_head is further than the ring is long");
		return true;
	}
	if (!conn_has_room(c, &sqe, completions))
		return false;
	ring_advance(ring);
	r = proto_sqe(&sqe, ring->arena_blocks, text, sizeof(text));
	if (r == 0)
		r = op_start(server_daemon(c->server)->ops, &c->client, &sqe, text, sizeof(text));
	if (r)
		violate(c, 0, text);
	return true;
}

static bool poll_ring(struct loop_poller *poller)
{
	struct conn *c = container_of(poller, struct conn, poller);
	uint32_t taken = 0;

	if (c->client.wake)
		conn_send_wake(c);
	if (c->closing_mounts > 0)
		finish_closing(c);
	while (c->state == CONN_OPEN && taken < ENTRIES_A_TURN && take_entry(c))
		taken++;
	return taken > 0;
}

int conn_start(struct conn *c, int fd, int pidfd)
{
	struct loop *loop = server_daemon(c->server)->loop;
	int r;

	c->socket = (struct loop_watch){ .fd = fd, .ready = on_socket };
	c->process = (struct loop_watch){ .fd = -1, .ready = on_process };
	c->timer.fire = on_greeting_late;
	c->intake.job = (struct helper_job){ .run = intake_run, .done = on_intake };
	c->intake.socket = fd;
	c->intake.devices = &server_daemon(c->server)->devices;
	c->leaving.job = (struct helper_job){ .run = leaving_run, .done = on_left };
	c->leaving.socket = -1;
	c->client.ring.submit_fd = c->client.ring.complete_fd = -1;
	r = loop_add(loop, &c->socket, EPOLLIN);
	if (r == 0 && pidfd >= 0) {
		c->process.fd = pidfd;
		r = loop_add(loop, &c->process, EPOLLIN);
		if (r)
			c->process.fd = -1;
	}
	if (r)
		loop_remove(loop, &c->socket);
	else
		loop_timer_set(loop, &c->timer, loop_now(loop) + GREETING_S * 1000000000ull);
	return r;
}
