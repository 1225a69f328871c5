/* SPDX-License-Identifier: Apache-2.0 */
/* conn_message.c - see conn_message.h. */
#include "conn_message.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "daemon/base/container_of.h"
#include "daemon/base/registers.h"
#include "daemon/kvtierd.h"
#include "daemon/op/op.h"
#include "conn_leave.h"
#include "conn_share.h"
#include "packet.h"

/* Facts for people, of a HELLO of any version: its versions stand in front in all of them. */
static void note_hello(struct conn *c, const void *packet, size_t n)
{
	struct wire_hello hello = { 0 };

	memcpy(&hello, packet, n < sizeof(hello) ? n : sizeof(hello));
	if (n < offsetof(struct wire_hello, size_geometry) || hello.head.magic != WIRE_MAGIC ||
	    hello.head.type != WIRE_HELLO)
		return;
	c->version_min = hello.version_min;
	c->version_max = hello.version_max;
	if (n != sizeof(hello))
		return;
	for (size_t i = 0; i < sizeof(c->client.name) - 1 && hello.name[i] != '\0'; i++)
		c->client.name[i] =
			hello.name[i] >= ' ' && hello.name[i] <= '~' ? hello.name[i] : '?';
}

static void on_hello(struct conn *c, const void *packet, size_t n, uint32_t seq)
{
	const struct config *config = c->front->d->config;
	struct wire_hello hello;
	char text[200];

	if (c->state != CONN_GREETING) {
		conn_violate(c, seq, "a second HELLO");
		return;
	}
	if (proto_hello(packet, n, config->socket_ring_entries, config->socket_arena_blocks, &hello,
			&c->version, text, sizeof(text))) {
		conn_violate(c, seq, text);
		return;
	}
	c->state = CONN_MEETING;
	c->intake.seq = seq;
	c->intake.ring = &c->client.ring;
	c->intake.ring_entries = hello.sq_entries;
	c->intake.arena_blocks = hello.arena_blocks;
	conn_begin_intake(c);
}

static void on_rings(struct conn *c, uint32_t seq)
{
	struct loop *loop = c->front->d->loop;

	if (conn_answer_hello(c, seq)) {
		conn_kill(c);
		return;
	}
	loop_timer_unset(loop, &c->timer);
	c->state = CONN_OPEN;
	loop_poller_add(loop, &c->poller);
}

/* A helper maps regions, also regions that came without descriptors. A helper gives ranges back,
 * too, as a SPACE_OPEN does. */
static bool has_regions(const struct conn *c, const void *packet)
{
	return c->intake.parts || ((const struct wire_space_open *)packet)->n_regions > 0;
}

static void take_regions(struct conn *c, const void *packet, size_t n, uint32_t seq)
{
	if (intake_hold(&c->intake, packet, n) == 0)
		conn_begin_intake(c);
	else if (packet_error(c->socket.fd, seq, -ENOMEM,
			      "the daemon is out of memory for a packet"))
		conn_kill(c);
}

/* The regions are in mount; NULL: there are none. */
static void on_space_open(struct conn *c, const void *packet, size_t n, uint32_t seq,
			  struct mount *mount, uint32_t n_fds)
{
	struct kvtierd *d = c->front->d;
	struct wire_space_ok ok = { .head = packet_head(WIRE_SPACE_OK, sizeof(ok), seq) };
	struct proto_space_open m;
	char text[232];
	uint32_t handle = 0;
	int r = proto_space_open(packet, n, n_fds, &m, text, sizeof(text));

	if (r == -EPROTO) {
		assert(!mount); /* the helper has seen the same */
		conn_violate(c, seq, text);
		return;
	}
	if (r == 0)
		r = conn_free_handle(c, &handle, text, sizeof(text));
	if (r == 0 && !mount) /* without regions: nothing to map */
		r = mount_import(&d->devices, &m, NULL, NULL, &mount, text, sizeof(text));
	if (r == 0 && mount_is_void(mount)) {
		snprintf(text, sizeof(text), "regions: the GPU failed meanwhile, and comes back");
		r = -EBUSY;
	}
	if (r == 0)
		r = mount_open(&d->store, front_tenant(c->front), &m, mount, text, sizeof(text));
	if (r) {
		if (mount)
			conn_leave(c, mount);
		if (packet_error(c->socket.fd, seq, r, text))
			conn_kill(c);
		return;
	}
	mount->handle = handle;
	conn_put_mount(c, mount);
	conn_fill_ok(c, mount, &ok);
	if (packet_send(c->socket.fd, &ok, sizeof(ok), &mount->regions[0].made_fd,
			mount->layout.image_stride > 0 ? 1 : 0))
		conn_kill(c);
	explicit_bzero(&ok, sizeof(ok));
	registers_forget();
}

static void on_space_close(struct conn *c, const void *packet, size_t n, uint32_t seq)
{
	struct mount *mount = NULL;
	char text[200];
	uint32_t handle = 0;

	if (proto_space_close(packet, n, &handle, text, sizeof(text))) {
		conn_violate(c, seq, text);
		return;
	}
	mount = c->client.mounts[handle];
	if (!mount || mount->closing) {
		snprintf(text, sizeof(text), "space %u is not open on this connection", handle);
		conn_violate(c, seq, text);
		return;
	}
	mount->closing = true;
	mount->close_seq = seq;
	c->closing_mounts++;
	op_cancel_all(&c->client, mount);
}

void conn_finish_closing(struct conn *c)
{
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++) {
		struct mount *mount = c->client.mounts[i];

		if (!mount || !mount->closing || mount->ops > 0)
			continue;
		(void)conn_take_mount(c, i);
		c->closing_mounts--;
		mount->answer_late = mount->device != devices_cpu(&c->front->d->devices);
		if (!mount->answer_late)
			conn_say_closed(c, mount);
		conn_leave(c, mount);
		if (c->state != CONN_OPEN)
			return;
	}
}

void conn_message(struct conn *c, const void *packet, size_t n)
{
	struct wire_head head = { 0 };
	char text[200];

	if (c->state == CONN_GREETING)
		note_hello(c, packet, n);
	if (proto_head(packet, n, &head, text, sizeof(text)))
		conn_violate(c, 0, text);
	else if (head.type == WIRE_HELLO)
		on_hello(c, packet, n, head.seq);
	else if (c->state != CONN_OPEN)
		conn_violate(c, head.seq, "the first message must be HELLO");
	else if (head.type == WIRE_PARTS ||
		 (head.type == WIRE_SPACE_OPEN && has_regions(c, packet)))
		take_regions(c, packet, n, head.seq);
	else if (head.type == WIRE_SPACE_OPEN)
		on_space_open(c, packet, n, head.seq, NULL, 0);
	else if (head.type == WIRE_SPACE_CLOSE)
		on_space_close(c, packet, n, head.seq);
	else if (head.type == WIRE_ORDER)
		conn_violate(c, head.seq, "ORDER came without the file descriptor of the words");
	/* DOORBELL: waking up was all it is for; the ring is polled this turn. */
}

static void on_order(struct conn *c, uint32_t seq, struct order *order)
{
	struct wire_order_ok ok = { .head = packet_head(WIRE_ORDER_OK, sizeof(ok), seq) };
	char text[200];
	int r = conn_take_order(c, order, text, sizeof(text));

	if (r) {
		conn_leave_order(c, order);
		r = packet_error(c->socket.fd, seq, r, text);
	} else {
		memcpy(ok.device, order->device->uuid, sizeof(ok.device));
		r = packet_send(c->socket.fd, &ok, sizeof(ok), NULL, 0);
	}
	if (r)
		conn_kill(c);
}

static void on_parts(struct conn *c, uint32_t seq)
{
	const struct wire_head ok = packet_head(WIRE_PARTS_OK, sizeof(ok), seq);

	if (packet_send(c->socket.fd, &ok, sizeof(ok), NULL, 0))
		conn_kill(c);
}

void conn_intake_done(struct helper_job *job)
{
	struct conn *c = container_of(job, struct conn, intake);
	struct intake *in = &c->intake;
	const int status = in->status;

	if (status == -EAGAIN && c->state < CONN_DYING) {
		in->state = INTAKE_HELD;
		if (!c->leaving.lent) /* they have been unmapped meanwhile */
			conn_begin_intake(c);
		return;
	}
	if (status == -EAGAIN) {
		in->state = INTAKE_HELD; /* conn_end() */
		return;
	}
	in->state = INTAKE_IDLE;
	if (status == -EMFILE || status == -ENFILE)
		front_out_of_files(c->front);
	if (c->state >= CONN_DYING) {
		if (in->mount)
			conn_leave(c, in->mount);
		if (in->order)
			conn_leave_order(c, in->order);
	} else if (status == 0 && in->ring)
		on_rings(c, in->seq);
	else if (status == 0 && in->order)
		on_order(c, in->seq, in->order);
	else if (status == 0 && in->type == WIRE_PARTS)
		on_parts(c, in->seq);
	else if (status == 0)
		on_space_open(c, in->packet, in->n, in->seq, in->mount, WIRE_MAX_REGIONS);
	else if (status == -EPROTO)
		conn_violate(c, in->seq, in->text);
	else if (status == -ECONNRESET)
		conn_kill(c);
	else if (in->ring || in->seq == 0) /* there is no connection, or no request, without it */
		conn_refuse(c, in->seq, status, in->text);
	else if (packet_error(c->socket.fd, in->seq, status, in->text))
		conn_kill(c);
	intake_drop(in);
	if (c->state < CONN_DYING)
		(void)loop_modify(c->front->d->loop, &c->socket, EPOLLIN);
}
