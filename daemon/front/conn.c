/* SPDX-License-Identifier: Apache-2.0 */
/* conn.c - see conn.h: its start, its socket, its submission ring. */
#include "conn.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "daemon/base/container_of.h"
#include "daemon/kvtierd.h"
#include "daemon/op/op.h"
#include "conn_leave.h"
#include "conn_message.h"
#include "conn_share.h"

enum {
	GREETING_S = 5,       /* a client that has not said HELLO by then is cut */
	MESSAGES_A_TURN = 16, /* if there were so many, the next wait for a tick */
	ENTRIES_A_TURN = 64,
};

static void on_process(struct loop_watch *watch, uint32_t events)
{
	(void)events;
	conn_kill(container_of(watch, struct conn, process));
}

/* GREETING, MEETING: it is too late. OPEN: packets are looked at again. */
static void on_timer(struct loop_timer *timer)
{
	struct conn *c = container_of(timer, struct conn, timer);
	struct loop *loop = c->front->d->loop;

	if (c->state == CONN_OPEN && c->intake.state == INTAKE_IDLE)
		(void)loop_modify(loop, &c->socket, EPOLLIN);
	else if (c->state == CONN_OPEN)
		loop_timer_set(loop, timer, loop_now(loop) + CONN_TICK_NS);
	else if (c->state == CONN_MEETING)
		conn_refuse(c, 0, -ETIMEDOUT, "the daemon could not make rings within 5 s");
	else
		conn_violate(c, 0, "no HELLO came within 5 s");
}

/* False: there is nothing more to take now. */
static bool take_packet(struct conn *c)
{
	void *buffer = c->front->buffer;
	char text[64];
	bool fds;
	ssize_t n = intake_peek(c->socket.fd, &fds);

	if (n == 0)
		return false;
	if (n > 0 && fds) {
		conn_begin_intake(c);
		return false;
	}
	if (n > WIRE_MAX_MESSAGE) {
		snprintf(text, sizeof(text), "a packet is larger than %d bytes", WIRE_MAX_MESSAGE);
		conn_violate(c, 0, text);
		return false;
	}
	if (n > 0)
		n = recv(c->socket.fd, buffer, WIRE_MAX_MESSAGE, MSG_DONTWAIT);
	if (n > 0)
		conn_message(c, buffer, (size_t)n);
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
		conn_pause(c);
	if (c->state < CONN_DYING && (events & (EPOLLHUP | EPOLLERR)))
		conn_kill(c);
}

void conn_look(struct conn *c)
{
	on_socket(&c->socket, 0);
}

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
		conn_violate(c, 0, "sqe ring: sq_tail or cq_head is further than the ring is long");
		return true;
	}
	/* a cancel and more layers need no completion */
	if (completions == 0 && sqe.op != WIRE_OP_CANCEL && sqe.op != WIRE_OP_LAYERS)
		return false;
	ring_advance(ring);
	r = proto_sqe(&sqe, ring->arena_blocks, text, sizeof(text));
	if (r == 0)
		r = op_start(c->front->d->ops, &c->client, &sqe, text, sizeof(text));
	if (r)
		conn_violate(c, 0, text);
	return true;
}

static bool poll_ring(struct loop_poller *poller)
{
	struct conn *c = container_of(poller, struct conn, poller);
	uint32_t taken = 0;

	if (c->client.ring.woken > 0)
		ring_turn(&c->client.ring);
	if (c->client.wake)
		conn_send_wake(c);
	if (c->closing_mounts > 0)
		conn_finish_closing(c);
	while (c->state == CONN_OPEN && taken < ENTRIES_A_TURN && take_entry(c))
		taken++;
	return taken > 0;
}

int conn_start(struct conn *c, int fd, int pidfd)
{
	struct loop *loop = c->front->d->loop;
	int r;

	c->socket = (struct loop_watch){ .fd = fd, .ready = on_socket };
	c->process = (struct loop_watch){ .fd = -1, .ready = on_process };
	c->timer.fire = on_timer;
	c->poller.poll = poll_ring;
	c->intake.job = (struct helper_job){ .run = intake_run, .done = conn_intake_done };
	c->intake.socket = fd;
	c->intake.devices = &c->front->d->devices;
	c->leaving.job = (struct helper_job){ .run = leaving_run, .done = conn_left };
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
