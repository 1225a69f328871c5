/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.c - see conn.h. The file has, from the lowest to the highest: packets that are sent; what a
 * connection holds, and its limits; its end; control messages; its start, socket and submission
 * ring.
 *
 * A packet is sent at once or not at all. If the client does not read its replies, that is an
 * error.
 */
#include "conn.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/text.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/vault.h"
#include "base/own.h"
#include "daemon/config/config.h"
#include "daemon/kvtierd.h"
#include "daemon/op/op.h"

enum {
	PACKET_MAX_FDS = 4,
	TICK_NS = 1000000,           /* between two looks at a ring while no doorbell is heard */
	GREETING_S = 5,              /* a client that has not said HELLO by then is cut */
	MESSAGES_PER_ITERATION = 16, /* if there were so many, the next wait for a tick */
	ENTRIES_PER_ITERATION = 64,
};

/* --- packets --- */

/* seq: of the request that is answered, or 0 if there is none. */
static struct wire_head packet_head(enum wire_type type, size_t n, uint32_t seq)
{
	return (struct wire_head){
		.magic = WIRE_MAGIC,
		.type = (uint16_t)type,
		.length = (uint32_t)n,
		.seq = seq,
	};
}

/* Sends a packet with n_fds descriptors, which stay the caller's. 0 or -errno. */
static int packet_send(int socket, const void *message, size_t n, const int *fds, size_t n_fds)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(PACKET_MAX_FDS * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)message, .iov_len = n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	assert(n_fds <= PACKET_MAX_FDS);
	if (n_fds > 0) {
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.head), fds, n_fds * sizeof(int));
	}
	return sendmsg(socket, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)n ? 0 : -errno;
}

int conn_send_error(int socket, uint32_t seq, int error, const char *text)
{
	struct wire_error e = { .head = packet_head(WIRE_ERROR, sizeof(e), seq), .error = error };

	snprintf(e.text, sizeof(e.text), "%.*s", (int)sizeof(e.text) - 1, text);
	return packet_send(socket, &e, sizeof(e), NULL, 0);
}

/* --- what it holds, and what it may have --- */

static void count_regions(const struct mount *mount, struct intake_usage *ret)
{
	ret->bytes += mount->region_bytes;
	ret->regions += mount->n_regions;
	ret->allocs += mount->n_allocs;
}

/* The guarantee of one connection. */
static uint64_t guarantee_of(const struct conn *c, enum quota_use use)
{
	const struct kvtierd *d = c->front->d;

	return d->quota.guarantee[use] / d->config->socket_max_clients;
}

void conn_usage(const struct conn *c, struct intake_usage *ret)
{
	*ret = (struct intake_usage){
		.max_bytes = guarantee_of(c, QUOTA_region_bytes),
		.max_regions = (uint32_t)guarantee_of(c, QUOTA_regions),
		.max_allocs = (uint32_t)guarantee_of(c, QUOTA_allocations),
		.clients = c->front->d->config->socket_max_clients,
		.waits = c->unwanted || c->leaving.list,
	};
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		if (c->client.mounts[i])
			count_regions(c->client.mounts[i], ret);
	for (const struct mount *mount = c->unwanted; mount; mount = mount->next)
		count_regions(mount, ret);
	for (const struct mount *mount = c->leaving.list; mount; mount = mount->next)
		count_regions(mount, ret);
}

/* Whether it has regions or events of the device. */
static bool uses(const struct conn *c, const struct device *device)
{
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		if (c->client.mounts[i] && c->client.mounts[i]->device == device)
			return true;
	return stream_order_find(c->client.orders, device) != NULL;
}

/* Whether it has regions that the device has lost. */
static bool has_void(const struct conn *c, const struct device *device)
{
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		if (c->client.mounts[i] && c->client.mounts[i]->device == device &&
		    mount_is_void(c->client.mounts[i]))
			return true;
	return false;
}

static bool uses_gpu(const struct conn *c)
{
	const struct devices *devices = &c->front->d->devices;

	for (uint32_t i = 1; i < devices->n; i++)
		if (uses(c, devices->all[i]))
			return true;
	return false;
}

/* 0: the order is the connection's from now on. -EEXIST, with text: the connection has one, and the
 * order stays the caller's. */
static int take_order(struct conn *c, struct stream_order *order, char *text, size_t n)
{
	if (stream_order_find(c->client.orders, order->device))
		return text_fail(text, n, -EEXIST,
				 "order.device: this connection has an ORDER for it already");
	order->next = c->client.orders;
	c->client.orders = order;
	return 0;
}

/* The rings are made: sends HELLO_OK, and closes their descriptors, which are not needed any more.
 * 0 or -errno. */
static int answer_hello(struct conn *c, uint32_t seq)
{
	const struct kvtierd *d = c->front->d;
	struct ring *ring = &c->client.ring;
	const size_t bytes = wire_hello_ok_bytes(c->version);
	struct wire_hello_ok ok = {
		.head = packet_head(WIRE_HELLO_OK, bytes, seq),
		.version = c->version,
		.connection = c->client.id,
		.sq_entries = ring->entries,
		.cq_entries = ring->entries,
		.arena_blocks = ring->arena_blocks,
		.spin_us = config_spin_us(),
		.submit_bytes = ring->submit_bytes,
		.complete_bytes = ring->complete_bytes,
		.index_bytes = index_bytes(d->tables.index),
		.now_ns = clock_ns(),
	};
	const int fds[4] = { ring->submit_fd, ring->complete_fd, index_fd(d->tables.index),
			     c->front->self };
	int r;

	for (int t = 0; t < TIER_COUNT; t++)
		ok.tiers |= d->tables.tiers[t] ? 1u << t : 0;
	snprintf(ok.daemon_version, sizeof(ok.daemon_version), "%s", KVTIER_VERSION);
	snprintf(ok.tenant, sizeof(ok.tenant), "%.31s", c->socket_conf->tenant);
	(void)socket_pass_fds(c->socket.fd, true);
	r = packet_send(c->socket.fd, &ok, bytes, fds, fds[3] >= 0 ? 4 : 3);
	if (r == 0)
		ring_close_fds(ring);
	return r;
}

static uint32_t spaces_guaranteed(const struct conn *c)
{
	const uint64_t guarantee = guarantee_of(c, QUOTA_open_spaces);

	return guarantee > 0 ? (uint32_t)guarantee : 1;
}

static uint32_t spaces_open_on(const struct conn *c)
{
	uint32_t ret = 0;

	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		ret += c->client.mounts[i] != NULL;
	return ret;
}

static void put_mount(struct conn *c, struct mount *mount)
{
	assert(!c->client.mounts[mount->handle]);
	c->client.mounts[mount->handle] = mount;
	c->front->n_beyond += spaces_open_on(c) > spaces_guaranteed(c);
}

/* The space of this handle is closed. The handle is free then, and does not count any more. Returns
 * the mount, or NULL. */
static struct mount *take_mount(struct conn *c, uint32_t handle)
{
	struct mount *mount = c->client.mounts[handle];

	if (!mount)
		return NULL;
	c->front->n_beyond -= spaces_open_on(c) > spaces_guaranteed(c);
	c->client.mounts[handle] = NULL;
	return mount;
}

static int check_spaces(const struct conn *c, char *text, size_t n)
{
	const struct config *config = c->front->d->config;
	struct quota *quota = &c->front->d->quota;
	const uint64_t rest = quota->all[QUOTA_open_spaces] - quota->guarantee[QUOTA_open_spaces];
	const uint32_t open = spaces_open_on(c);

	if (open < spaces_guaranteed(c) || c->front->n_beyond < rest)
		return 0;
	quota_refused(quota, QUOTA_open_spaces, c->client.tenant);
	return text_fail(
		text, n, -ENOSPC,
		"%u spaces are open on this connection; with [index] max_spaces = %u and [socket] "
		"max_clients = %u it can be sure of %u, and the rest is in use",
		open, config->index_max_spaces, config->socket_max_clients, spaces_guaranteed(c));
}

/* A number for one more space. -ENOSPC with text: all numbers are taken, or the connection has all
 * the spaces that are guaranteed to it, and those beyond all guarantees are in use. */
static int free_handle(const struct conn *c, uint32_t *ret, char *text, size_t n)
{
	if (check_spaces(c, text, n))
		return -ENOSPC;
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		if (!c->client.mounts[i]) {
			*ret = i;
			return 0;
		}
	return text_fail(text, n, -ENOSPC,
			 "%d spaces are open on this connection, the most there can be",
			 WIRE_MAX_SPACES);
}

static void fill_ok(const struct conn *c, const struct mount *mount, struct wire_space_ok *ret)
{
	ret->space = mount->handle;
	ret->codec = (uint32_t)mount->space->codec;
	ret->pages = mount->pages;
	ret->image_bytes = mount->space->shape.image_bytes;
	ret->logical_bytes = mount->space->shape.logical_bytes;
	memcpy(ret->space_id, mount->space->id, sizeof(ret->space_id));
	space_salt(c->front->d->tables.spaces, mount->space, ret->salt);
	memcpy(ret->index_key, mount->space->index_key, sizeof(ret->index_key));
	ret->gpus = mount->device->unit == DEVICE_NO_UNIT ? 0 : wire_gpu_bit(mount->device->unit);
}

/* The connection wants none of its orders any more. */
static void give_up_orders(struct conn *c)
{
	while (c->client.orders) {
		struct stream_order *order = c->client.orders;

		c->client.orders = order->next;
		order->next = c->unwanted_orders;
		c->unwanted_orders = order;
	}
}

static void count_lookups(struct conn *c, struct mount *mount)
{
	struct stats_values *v = &c->front->d->stats->v;
	struct quota_tenant *tenant = &c->front->d->quota.tenant[c->client.tenant];
	struct wire_lookups n;

	ring_sample_lookups(&c->client.ring, wire_lookups_at(c->version, mount->handle), &n);
	stats_add(&v->lookup_calls_total, n.calls);
	stats_add(&v->lookup_requested_blocks_total, n.blocks);
	stats_add(&v->lookup_hit_blocks_total, n.hits);
	stats_add(&v->lookup_gpu_blocks_total, n.gpu_hits);
	stats_add(&v->lookup_host_blocks_total, n.hits - n.gpu_hits - n.nvme_hits - n.redis_hits);
	stats_add(&v->lookup_nvme_blocks_total, n.nvme_hits);
	stats_add(&v->lookup_redis_blocks_total, n.redis_hits);
	stats_add(&v->lookup_miss_blocks_total, n.blocks - n.hits);
	stats_add(&v->lookup_requested_tokens_total, n.tokens);
	stats_add(&v->lookup_hit_tokens_total, n.hit_tokens);
	tenant->looked_up += n.blocks;
	tenant->hits += n.hits;
	mount->space->looked_up_blocks += n.blocks;
	mount->space->hit_blocks += n.hits;
}

void conn_count_lookups(struct conn *c)
{
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		if (c->client.mounts[i])
			count_lookups(c, c->client.mounts[i]);
}

static void note_refused(const struct conn *c, enum refusal_reason reason, const char *why)
{
	struct stats *stats = c->front->d->stats;
	struct refusal refusal = { .at_ns = loop_now(c->front->d->loop),
				   .pid = c->client.pid,
				   .uid = c->uid,
				   .reason = reason,
				   .version_min = c->version_min,
				   .version_max = c->version_max };

	memcpy(refusal.name, c->client.name, sizeof(refusal.name));
	snprintf(refusal.why, sizeof(refusal.why), "%s", why);
	refusals_add(&c->front->refusals, &refusal);
	if (c->state < CONN_OPEN)
		refusals_count(stats, reason);
}

static void send_wake(struct conn *c)
{
	const struct wire_head wake = packet_head(WIRE_WAKE, sizeof(wake), 0);

	/* If it does not fit, the client has unread packets already, and its descriptor is
	 * readable. */
	c->client.wake = false;
	(void)packet_send(c->socket.fd, &wake, sizeof(wake), NULL, 0);
}

/* --- its end --- */

void conn_kill(struct conn *c)
{
	struct loop *loop = c->front->d->loop;

	if (c->state >= CONN_DYING)
		return;
	if (c->state == CONN_OPEN) /* its last lookups */
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
	c->front->n_alive--;
	c->front->n_dying++;
	stats_set(&c->front->d->stats->v.clients, c->front->n_alive);
}

static void cut(struct conn *c, uint32_t seq, int error, enum refusal_reason reason,
		const char *text)
{
	static const char *const did[REFUSAL_REASON_COUNT] = {
		[REFUSAL_version] = "is of another version and was refused",
		[REFUSAL_protocol] = "broke the protocol and was cut",
		[REFUSAL_resources] = "cannot be served",
	};
	char about[LOG_ABOUT_BYTES];

	log_warning(log_about(about, "client_cut", (long)c->client.pid, c->client.id,
			      c->client.name),
		    "a client of user %ld %s: %s", (long)c->uid, did[reason], text);
	note_refused(c, reason, text);
	c->end_error = error;
	c->end_seq = seq;
	snprintf(c->end_text, sizeof(c->end_text), "%s", text);
	conn_kill(c);
}

/* The client broke the protocol: -> DYING. The client and the log are told the text. */
static void violate(struct conn *c, uint32_t seq, const char *text)
{
	stats_add(&c->front->d->stats->v.protocol_errors_total, 1);
	cut(c, seq, -EPROTO, REFUSAL_protocol, text);
}

/* The daemon lacks something that the connection needs, which is not the client's fault: -> DYING.
 * The client and the log are told the text. */
static void cannot_serve(struct conn *c, uint32_t seq, int error, const char *text)
{
	cut(c, seq, error, REFUSAL_resources, text);
}

/* Stops looking at packets until an intake has ended, or for a tick. Doorbells are packets, so the
 * ring is looked at now and then meanwhile. */
static void pause_packets(struct conn *c)
{
	struct loop *loop = c->front->d->loop;

	(void)loop_modify(loop, &c->socket, 0);
	if (c->state == CONN_OPEN)
		loop_timer_set(loop, &c->timer, loop_now(loop) + TICK_NS);
}

/* A helper takes the next packet, or what the intake holds. An intake that is over the connection's
 * limits waits for regions to be unmapped; then on_left() begins it again. */
static void begin_intake(struct conn *c)
{
	c->intake.state = INTAKE_LENT;
	c->intake.greeted = c->state == CONN_OPEN;
	conn_usage(c, &c->intake.usage);
	pause_packets(c);
	workers_submit(c->front->helpers, &c->intake.work);
}

/* Its regions are for a helper to unmap; until then they count for the client. */
static void give_up(struct conn *c, struct mount *mount)
{
	mount_close(&c->front->d->tables, mount);
	mount->next = c->unwanted;
	c->unwanted = mount;
}

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

static void send_off(struct conn *c)
{
	c->leaving.list = c->unwanted;
	c->leaving.orders = c->unwanted_orders;
	c->leaving.lent = true;
	c->unwanted = NULL;
	c->unwanted_orders = NULL;
	workers_submit(c->front->helpers, &c->leaving.work);
}

/* The helper is done. */
static void on_left(struct work *work)
{
	struct conn *c = container_of(work, struct conn, leaving.work);

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
		begin_intake(c);
}

/* The pages of the mount are not touched any more, so a helper may unmap it. */
static void leave(struct conn *c, struct mount *mount)
{
	give_up(c, mount);
	if (!c->leaving.lent)
		send_off(c);
}

static void leave_order(struct conn *c, struct stream_order *order)
{
	order->next = c->unwanted_orders;
	c->unwanted_orders = order;
	if (!c->leaving.lent)
		send_off(c);
}

static void say_bye(struct conn *c)
{
	const struct wire_head bye = packet_head(WIRE_BYE, sizeof(bye), 0);

	/* a client that does not get it waits for the daemon's death */
	(void)packet_send(c->socket.fd, &bye, sizeof(bye), NULL, 0);
}

/* The client's pages are not touched any more. Says why the connection ends, if there is a reason,
 * and hangs up. A connection with regions of a GPU hangs up when they are closed, since the client
 * may free their memory only then. */
static void end(struct conn *c)
{
	assert(c->state == CONN_DYING && c->client.n_ops == 0);
	c->state = CONN_ENDED;
	if (c->end_error)
		(void)conn_send_error(c->socket.fd, c->end_seq, c->end_error, c->end_text);
	if (uses_gpu(c))
		say_bye(c);
	else if (c->intake.state == INTAKE_IDLE && !c->intake.ranges)
		(void)shutdown(c->socket.fd, SHUT_RDWR);
	give_up_orders(c);
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++) {
		struct mount *mount = take_mount(c, i);

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
		begin_intake(c);
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
	c->leaving.ranges = c->intake.ranges;
	c->intake.ranges = NULL;
	c->socket.fd = -1;
	send_off(c);
	return false;
}

void conn_lost(struct conn *c, const struct device *device, const char *why)
{
	if (c->state != CONN_OPEN || !has_void(c, device))
		return;
	c->end_error = -EIO;
	snprintf(c->end_text, sizeof(c->end_text), "%s", why);
	conn_kill(c);
}

void conn_displace(struct conn *c)
{
	c->end_error = -EBUSY;
	snprintf(c->end_text, sizeof(c->end_text),
		 "no HELLO came, and another client needs the connection");
	note_refused(c, REFUSAL_full, c->end_text);
	conn_kill(c);
}

/* --- control messages --- */

/* Takes facts for people out of a HELLO of any version, which has its versions at its begin. False:
 * the version is not served, and the connection is cut. */
static bool note_hello(struct conn *c, const void *packet, size_t n)
{
	struct wire_hello hello = { 0 };
	char text[200];

	memcpy(&hello, packet, n < sizeof(hello) ? n : sizeof(hello));
	if (n < offsetof(struct wire_hello, size_geometry) || hello.head.magic != WIRE_MAGIC ||
	    hello.head.type != WIRE_HELLO)
		return true;
	c->version_min = hello.version_min;
	c->version_max = hello.version_max;
	if (n == sizeof(hello))
		refusal_copy_name(hello.name, sizeof(c->client.name) - 1, c->client.name);
	if (proto_versions(&hello, text, sizeof(text)) == 0)
		return true;
	cut(c, hello.head.seq, -EPROTO, REFUSAL_version, text);
	return false;
}

static void on_hello(struct conn *c, const void *packet, size_t n, uint32_t seq)
{
	const struct config *config = c->front->d->config;
	struct wire_hello hello;
	char text[200];
	int r;

	if (c->state != CONN_GREETING) {
		violate(c, seq, "a second HELLO");
		return;
	}
	r = proto_hello(packet, n, config_ring_entries(config), CONFIG_ARENA_BLOCKS, &hello,
			&c->version, text, sizeof(text));
	if (r == -EPROTONOSUPPORT) {
		cut(c, seq, -EPROTO, REFUSAL_version, text);
		return;
	}
	if (r) {
		violate(c, seq, text);
		return;
	}
	c->state = CONN_MEETING;
	c->intake.seq = seq;
	c->intake.ring = &c->client.ring;
	c->intake.ring_entries = hello.sq_entries;
	c->intake.arena_blocks = hello.arena_blocks;
	c->intake.version = c->version;
	begin_intake(c);
}

static void on_rings(struct conn *c, uint32_t seq)
{
	struct loop *loop = c->front->d->loop;

	if (answer_hello(c, seq)) {
		conn_kill(c);
		return;
	}
	loop_timer_unset(loop, &c->timer);
	c->state = CONN_OPEN;
	loop_poller_add(loop, &c->poller);
}

/* Whether a helper has to take a SPACE_OPEN: helpers map regions, also those that came without
 * descriptors, and give ranges back. */
static bool has_regions(const struct conn *c, const void *packet)
{
	return c->intake.ranges || ((const struct wire_space_open *)packet)->n_regions > 0;
}

static void take_regions(struct conn *c, const void *packet, size_t n, uint32_t seq)
{
	if (intake_hold(&c->intake, packet, n) == 0)
		begin_intake(c);
	else if (conn_send_error(c->socket.fd, seq, -ENOMEM,
				 "the daemon is out of memory for a packet"))
		conn_kill(c);
}

/* mount has the regions; NULL: the SPACE_OPEN has no regions. */
static void on_space_open(struct conn *c, const void *packet, size_t n, uint32_t seq,
			  struct mount *mount, uint32_t n_fds)
{
	struct kvtierd *d = c->front->d;
	struct wire_space_ok ok = { .head = packet_head(WIRE_SPACE_OK, sizeof(ok), seq) };
	struct proto_space_open m;
	char text[232];
	uint32_t handle = 0;
	int r = proto_space_open(packet, n, n_fds, c->version, &m, text, sizeof(text));

	if (r == -EPROTO) {
		assert(!mount); /* the helper has seen the same */
		violate(c, seq, text);
		return;
	}
	if (r == 0)
		r = free_handle(c, &handle, text, sizeof(text));
	if (r == 0 && !mount) /* without regions: no helper */
		r = mount_import(&d->devices, &m, NULL, NULL, &mount, text, sizeof(text));
	if (r == 0 && mount_is_void(mount)) {
		snprintf(text, sizeof(text), "regions: the GPU failed meanwhile, and comes back");
		r = -EBUSY;
	}
	if (r == 0)
		r = mount_open(&d->tables, c->socket_conf->tenant, &m, mount, text, sizeof(text));
	if (r) {
		if (mount)
			leave(c, mount);
		if (conn_send_error(c->socket.fd, seq, r, text))
			conn_kill(c);
		return;
	}
	mount->handle = handle;
	put_mount(c, mount);
	fill_ok(c, mount, &ok);
	if (packet_send(c->socket.fd, &ok, sizeof(ok), NULL, 0))
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
	op_cancel_all(&c->client, mount);
}

/* Answers SPACE_CLOSE for mounts whose pages are not touched any more. */
static void finish_closing(struct conn *c)
{
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++) {
		struct mount *mount = c->client.mounts[i];

		if (!mount || !mount->closing || mount->ops > 0)
			continue;
		count_lookups(c, mount); /* its last ones */
		(void)take_mount(c, i);
		c->closing_mounts--;
		mount->answer_late = mount->device != devices_cpu(&c->front->d->devices);
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

	if (c->state == CONN_GREETING && !note_hello(c, packet, n))
		return;
	if (proto_head(packet, n, &head, text, sizeof(text)))
		violate(c, 0, text);
	else if (head.type == WIRE_HELLO)
		on_hello(c, packet, n, head.seq);
	else if (c->state != CONN_OPEN)
		violate(c, head.seq, "the first message must be HELLO");
	else if (head.type == WIRE_ALLOCS ||
		 (head.type == WIRE_SPACE_OPEN && has_regions(c, packet)))
		take_regions(c, packet, n, head.seq);
	else if (head.type == WIRE_SPACE_OPEN)
		on_space_open(c, packet, n, head.seq, NULL, 0);
	else if (head.type == WIRE_SPACE_CLOSE)
		on_space_close(c, packet, n, head.seq);
	else if (head.type == WIRE_ORDER)
		violate(c, head.seq, "ORDER came without the file descriptor of the words");
	/* A DOORBELL only wakes the loop, which polls the ring in this iteration. */
}

static void on_order(struct conn *c, uint32_t seq, struct stream_order *order)
{
	struct wire_order_ok ok = { .head = packet_head(WIRE_ORDER_OK, sizeof(ok), seq) };
	char text[200];
	int r = take_order(c, order, text, sizeof(text));

	if (r) {
		leave_order(c, order);
		r = conn_send_error(c->socket.fd, seq, r, text);
	} else {
		memcpy(ok.device, order->device->uuid, sizeof(ok.device));
		r = packet_send(c->socket.fd, &ok, sizeof(ok), NULL, 0);
	}
	if (r)
		conn_kill(c);
}

static void on_allocs(struct conn *c, uint32_t seq)
{
	const struct wire_head ok = packet_head(WIRE_ALLOCS_OK, sizeof(ok), seq);

	if (packet_send(c->socket.fd, &ok, sizeof(ok), NULL, 0))
		conn_kill(c);
}

/* The rings are made, or a packet with regions or descriptors is taken. */
static void on_intake_done(struct work *work)
{
	struct conn *c = container_of(work, struct conn, intake.work);
	struct intake *in = &c->intake;
	const int status = in->status;

	if (status == -EAGAIN && c->state < CONN_DYING) {
		in->state = INTAKE_HELD;
		if (!c->leaving.lent) /* they have been unmapped meanwhile */
			begin_intake(c);
		return;
	}
	if (status == -EAGAIN) {
		in->state = INTAKE_HELD; /* conn_end() */
		return;
	}
	in->state = INTAKE_IDLE;
	if (status == -EMFILE || status == -ENFILE)
		c->front->out_of_files_ns = loop_now(c->front->d->loop);
	if (status == -ENOSPC)
		quota_refused(&c->front->d->quota,
			      in->type == WIRE_ALLOCS ? QUOTA_allocations : QUOTA_regions,
			      c->client.tenant);
	if (c->state >= CONN_DYING) {
		if (in->mount)
			leave(c, in->mount);
		if (in->order)
			leave_order(c, in->order);
	} else if (status == 0 && in->ring)
		on_rings(c, in->seq);
	else if (status == 0 && in->order)
		on_order(c, in->seq, in->order);
	else if (status == 0 && in->type == WIRE_ALLOCS)
		on_allocs(c, in->seq);
	else if (status == 0)
		on_space_open(c, in->packet, in->n, in->seq, in->mount, WIRE_MAX_REGIONS);
	else if (status == -EPROTO)
		violate(c, in->seq, in->text);
	else if (status == -ECONNRESET)
		conn_kill(c);
	else if (in->ring || in->seq == 0) /* there is no connection, or no request, without it */
		cannot_serve(c, in->seq, status, in->text);
	else if (conn_send_error(c->socket.fd, in->seq, status, in->text))
		conn_kill(c);
	intake_drop(in);
	if (c->state < CONN_DYING)
		(void)loop_modify(c->front->d->loop, &c->socket, EPOLLIN);
}

/* --- its start, its socket, its ring --- */

static void on_process(struct loop_watch *watch, uint32_t events)
{
	(void)events;
	conn_kill(container_of(watch, struct conn, process));
}

/* In GREETING and MEETING it is too late now. In OPEN packets are looked at again. */
static void on_timer(struct loop_timer *timer)
{
	struct conn *c = container_of(timer, struct conn, timer);
	struct loop *loop = c->front->d->loop;

	if (c->state == CONN_OPEN && c->intake.state == INTAKE_IDLE)
		(void)loop_modify(loop, &c->socket, EPOLLIN);
	else if (c->state == CONN_OPEN)
		loop_timer_set(loop, timer, loop_now(loop) + TICK_NS);
	else if (c->state == CONN_MEETING)
		cannot_serve(c, 0, -ETIMEDOUT, "the daemon could not make rings within 5 s");
	else
		violate(c, 0, "no HELLO came within 5 s");
}

/* False: there is no further packet for now. */
static bool take_packet(struct conn *c)
{
	void *buffer = c->front->buffer;
	char text[64];
	bool fds;
	ssize_t n = intake_peek(c->socket.fd, &fds);

	if (n == 0)
		return false;
	if (n > 0 && fds) {
		begin_intake(c);
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

/* It takes a bounded number of packets. A packet costs two system calls, so a client that sends
 * doorbells without end would keep the core busy. */
static void on_socket(struct loop_watch *watch, uint32_t events)
{
	struct conn *c = container_of(watch, struct conn, socket);
	int taken = 0;

	while (taken < MESSAGES_PER_ITERATION && c->intake.state == INTAKE_IDLE && take_packet(c))
		taken++;
	if (taken == MESSAGES_PER_ITERATION && c->intake.state == INTAKE_IDLE)
		pause_packets(c);
	if (c->state < CONN_DYING && (events & (EPOLLHUP | EPOLLERR)))
		conn_kill(c);
}

void conn_look(struct conn *c)
{
	on_socket(&c->socket, 0);
}

/* Whether there was an entry, which was taken or has ended the connection. `text` is written only
 * when it is needed: while the daemon spins, this function is called every 100 ns. */
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
	/* a cancel and more layers need no completion */
	if (completions == 0 && sqe.op != WIRE_OP_CANCEL && sqe.op != WIRE_OP_LAYERS)
		return false;
	ring_advance(ring);
	r = proto_sqe(&sqe, ring->arena_blocks, text, sizeof(text));
	if (r == 0)
		r = op_start(c->front->d->ops, &c->client, &sqe, text, sizeof(text));
	if (r)
		violate(c, 0, text);
	return true;
}

static bool poll_ring(struct loop_poller *poller)
{
	struct conn *c = container_of(poller, struct conn, poller);
	uint32_t taken = 0;

	if (c->client.ring.woken > 0)
		ring_iteration(&c->client.ring);
	if (c->client.wake)
		send_wake(c);
	if (c->closing_mounts > 0)
		finish_closing(c);
	while (c->state == CONN_OPEN && taken < ENTRIES_PER_ITERATION && take_entry(c))
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
	c->intake.work = (struct work){ .run = intake_run, .done = on_intake_done };
	c->intake.socket = fd;
	c->intake.devices = &c->front->d->devices;
	c->leaving.work = (struct work){ .run = leaving_run, .done = on_left };
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
