/* SPDX-License-Identifier: Apache-2.0 */
/* conn_leave.c - see conn_leave.h. */
#include "conn_leave.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/container_of.h"
#include "daemon/base/log.h"
#include "daemon/kvtierd.h"
#include "daemon/op/op.h"
#include "conn_share.h"
#include "packet.h"

void conn_kill(struct conn *c)
{
	struct loop *loop = c->front->d->loop;

	if (c->state >= CONN_DYING)
		return;
	if (c->state == CONN_OPEN) /* its last ones */
		conn_count_lookups(c);
	c->state = CONN_DYING;
	loop_timer_unset(loop, &c->timer);
	loop_poller_remove(loop, &c->poller);
	loop_remove(loop, &c->socket);
	if (c->process.fd >= 0) {
		loop_remove(loop, &c->process);
		(void)close(c->process.fd);
		c->process.fd = -1;
	}
	op_abandon_all(&c->client);
	front_conn_dying(c->front);
}

static void cut(struct conn *c, uint32_t seq, int error, const char *why, const char *text)
{
	struct kvtierd *d = c->front->d;

	if (c->state < CONN_OPEN)
		stats_add(&d->stats->v.clients_refused_total, 1);
	log_limited(&c->front->log, loop_now(d->loop), LOG_LEVEL_WARNING,
		    "client %u (pid %ld, uid %ld, \"%s\") %s: %s", c->client.id,
		    (long)c->client.pid, (long)c->uid, c->client.name, why, text);
	conn_refused(c, text);
	c->end_error = error;
	c->end_seq = seq;
	snprintf(c->end_text, sizeof(c->end_text), "%s", text);
	conn_kill(c);
}

void conn_violate(struct conn *c, uint32_t seq, const char *text)
{
	stats_add(&c->front->d->stats->v.protocol_errors_total, 1);
	cut(c, seq, -EPROTO, "broke the protocol and was cut", text);
}

void conn_refuse(struct conn *c, uint32_t seq, int error, const char *text)
{
	cut(c, seq, error, "cannot be served", text);
}

void conn_pause(struct conn *c)
{
	struct loop *loop = c->front->d->loop;

	(void)loop_modify(loop, &c->socket, 0);
	if (c->state == CONN_OPEN)
		loop_timer_set(loop, &c->timer, loop_now(loop) + CONN_TICK_NS);
}

void conn_begin_intake(struct conn *c)
{
	c->intake.state = INTAKE_LENT;
	c->intake.greeted = c->state == CONN_OPEN;
	conn_share(c, &c->intake.share);
	conn_pause(c);
	helper_start(c->front->helpers, &c->intake.job);
}

/* Its regions go to a helper; until they are unmapped they count. */
static void give_up(struct conn *c, struct mount *mount)
{
	mount_close(&c->front->d->store, mount);
	mount->next = c->unwanted;
	c->unwanted = mount;
}

void conn_say_closed(struct conn *c, const struct mount *mount)
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

static void send_off(struct conn *c)
{
	c->leaving.list = c->unwanted;
	c->leaving.orders = c->unwanted_orders;
	c->leaving.lent = true;
	c->unwanted = NULL;
	c->unwanted_orders = NULL;
	helper_start(c->front->helpers, &c->leaving.job);
}

void conn_left(struct helper_job *job)
{
	struct conn *c = container_of(job, struct conn, leaving);

	c->leaving.lent = false;
	for (struct mount *mount = c->leaving.list, *next; mount; mount = next) {
		next = mount->next;
		if (mount->answer_late && c->state == CONN_OPEN)
			conn_say_closed(c, mount);
		free(mount);
	}
	c->leaving.list = NULL;
	if (unwanted(c))
		send_off(c);
	if (c->intake.state == INTAKE_HELD && c->state == CONN_OPEN)
		conn_begin_intake(c);
}

void conn_leave(struct conn *c, struct mount *mount)
{
	give_up(c, mount);
	if (!c->leaving.lent)
		send_off(c);
}

void conn_leave_order(struct conn *c, struct order *order)
{
	order->next = c->unwanted_orders;
	c->unwanted_orders = order;
	if (!c->leaving.lent)
		send_off(c);
}

static void say_bye(struct conn *c)
{
	const struct wire_head bye = packet_head(WIRE_BYE, sizeof(bye), 0);

	/* a client that does not hear it waits for the daemon's death */
	(void)packet_send(c->socket.fd, &bye, sizeof(bye), NULL, 0);
}

/* Nobody touches a page of it any more: says why it ends, if there is a reason, and hangs up. With
 * regions of a GPU that comes when they are closed: their memory may be freed only then. */
static void end(struct conn *c)
{
	assert(c->state == CONN_DYING && c->client.n_ops == 0);
	c->state = CONN_ENDED;
	if (c->end_error)
		(void)packet_error(c->socket.fd, c->end_seq, c->end_error, c->end_text);
	if (conn_uses_gpu(c))
		say_bye(c);
	else if (c->intake.state == INTAKE_IDLE && !c->intake.parts)
		(void)shutdown(c->socket.fd, SHUT_RDWR);
	conn_give_up_orders(c);
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++) {
		struct mount *mount = conn_take_mount(c, i);

		if (mount)
			give_up(c, mount);
	}
}

bool conn_end(struct conn *c)
{
	if (c->state == CONN_DYING)
		end(c);
	if (c->intake.state == INTAKE_HELD) {
		c->intake.discard = true;
		conn_begin_intake(c);
	}
	if (c->intake.state != INTAKE_IDLE || c->leaving.lent)
		return false;
	if (c->socket.fd < 0 && !unwanted(c))
		return true;
	if (!c->client.ring.submit && !unwanted(c) && c->front->guarded) {
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
	if (c->state != CONN_OPEN || !conn_has_void(c, device))
		return;
	c->end_error = -EIO;
	snprintf(c->end_text, sizeof(c->end_text), "%s", why);
	conn_kill(c);
}

void conn_turn_away(struct conn *c)
{
	stats_add(&c->front->d->stats->v.clients_refused_total, 1);
	c->end_error = -EBUSY;
	snprintf(c->end_text, sizeof(c->end_text),
		 "no HELLO came, and another client needs the connection");
	conn_refused(c, c->end_text);
	conn_kill(c);
}
