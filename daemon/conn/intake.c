/* SPDX-License-Identifier: Apache-2.0 */
/*
 * intake.c - the only place that touches descriptors of clients (intake.h). Helper threads run all
 * of it but intake_peek().
 *
 * A descriptor from outside can be anything. It may be the last reference to a TCP socket that
 * lingers for 10 s in close(), or to gigabytes that are freed then, or a file whose server (FUSE,
 * NFS) answers when it likes. So the core thread
 *   - receives no descriptor: it peeks at each packet, and a helper takes a packet that has
 *     descriptors;
 *   - closes no descriptor, and no socket whose queue may have unread ones: a helper does. A kernel
 *     that knows SO_PASSRIGHTS (6.16) lets no descriptor be sent before HELLO was answered, or to a
 *     client that is refused;
 *   - unmaps no region, since its mapping may be the last reference to its pages;
 *   - maps no ring, since mmap() waits for milliseconds while a helper unmaps a region.
 * The core's other calls on objects of a client cannot block: send, peek and receive on a Unix
 * socket with MSG_DONTWAIT, shutdown(), SO_PEERCRED, SO_PEERPIDFD, epoll_ctl() and close() of a
 * pidfd. Rings are memfds of the daemon itself.
 *
 * A helper that blocks holds up this connection alone: its next SPACE_OPEN, and its slot (conn.c).
 * The first call on a descriptor is F_GET_SEALS, which the kernel answers for every kind of file by
 * itself; only a memfd is used further.
 */
#include "intake.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Linux: a peek takes references of its own to the packet's files. Without a control buffer it
 * drops them again and sets MSG_CTRUNC; the packet keeps its own, so none of these is the last.
 * unit_intake.c holds the kernel to that. */
ssize_t intake_peek(int socket, bool *ret_fds)
{
	struct iovec none = { 0 };
	struct msghdr m = { .msg_iov = &none, .msg_iovlen = 1 };
	const ssize_t n = recvmsg(socket, &m, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC);

	*ret_fds = false;
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -ECONNRESET;
	*ret_fds = m.msg_flags & MSG_CTRUNC;
	return n > 0 || *ret_fds ? (n > 0 ? n : 1) : -ECONNRESET;
}

__attribute__((format(printf, 3, 4))) static int say(struct intake *in, int status,
						     const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(in->text, sizeof(in->text), format, args);
	va_end(args);
	return status;
}

static int read_head(struct intake *in)
{
	struct wire_head head;

	if (proto_head(in->packet, in->n, &head, in->text, sizeof(in->text)))
		return -EPROTO;
	in->seq = head.seq;
	in->type = head.type;
	return 0;
}

static int receive(struct intake *in)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(INTAKE_MAX_FDS * sizeof(int))];
	} control;
	struct iovec iov = { .iov_len = WIRE_MAX_MESSAGE };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.bytes,
			    .msg_controllen = sizeof(control.bytes) };
	ssize_t n;

	in->packet = malloc(WIRE_MAX_MESSAGE);
	if (!in->packet)
		return say(in, -ENOMEM, "the daemon is out of memory for a packet");
	iov.iov_base = in->packet;
	n = recvmsg(in->socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return -ECONNRESET;
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
		if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
			in->n_fds = (uint32_t)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(in->fds, CMSG_DATA(h), in->n_fds * sizeof(int));
		}
	in->n = (size_t)n;
	if (m.msg_flags & MSG_TRUNC)
		return say(in, -EPROTO, "a packet is larger than %d bytes", WIRE_MAX_MESSAGE);
	if (read_head(in))
		return -EPROTO;
	/* the buffer had room for all that a packet can carry */
	if (m.msg_flags & MSG_CTRUNC)
		return say(in, -EMFILE,
			   "the daemon has no file descriptors left: raise LimitNOFILE=");
	return 0;
}

/* What regions may take in the daemon is divided among all clients that there may be, so no client
 * can take what another one needs. */
static int check_usage(struct intake *in, uint64_t more_regions, uint64_t more_bytes)
{
	const struct intake_usage *s = &in->usage;
	const uint64_t n = s->regions + more_regions;
	uint64_t bytes;

	if (__builtin_add_overflow(s->bytes, more_bytes, &bytes))
		bytes = UINT64_MAX;
	if (n <= s->max_regions && bytes <= s->max_bytes)
		return 0;
	return say(
		in, s->waits ? -EAGAIN : -ENOSPC,
		"regions: with these the client has %llu of %llu bytes; [socket] max_clients = %u "
		"leaves it %u of %llu: lower that, or use fewer spaces",
		(unsigned long long)n, (unsigned long long)bytes, s->clients, s->max_regions,
		(unsigned long long)s->max_bytes);
}

static int take_regions(struct intake *in)
{
	struct proto_space_open m;
	uint64_t bytes = 0;
	int r = proto_space_open(in->packet, in->n, in->n_fds, in->version, &m, in->text,
				 sizeof(in->text));

	for (uint32_t i = 0; r == 0 && i < m.n_regions; i++)
		if (__builtin_add_overflow(bytes, m.regions[i].length, &bytes))
			bytes = UINT64_MAX;
	if (r == 0)
		r = check_usage(in, m.n_regions, bytes);
	if (r == 0)
		r = mount_import(in->devices, &m, in->fds, in->ranges, &in->mount, in->text,
				 sizeof(in->text));
	return r;
}

/* Ranges count as regions, which they will be. */
static int check_allocs(struct intake *in, const struct proto_allocs *m)
{
	const struct intake_usage *s = &in->usage;
	const struct ranges *had = in->ranges;
	const bool first = m->at == 0;
	const uint64_t n = (uint64_t)s->allocs + (had ? had->n_allocs : 0) + m->n_allocs;

	if (n > s->max_allocs)
		return say(in, s->waits ? -EAGAIN : -ENOSPC,
			   "allocs: with these the client has %llu allocations; [socket] "
			   "max_clients = %u leaves it %u",
			   (unsigned long long)n, s->clients, s->max_allocs);
	return check_usage(in, (had ? had->n_ranges : 0) + (first ? 1 : 0),
			   (had ? had->bytes : 0) + (first ? m->range_bytes : 0));
}

static int take_allocs(struct intake *in)
{
	struct proto_allocs m;
	int r = proto_allocs(in->packet, in->n, in->n_fds, &m, in->text, sizeof(in->text));

	if (r == 0 && m.n_allocs == 0) {
		ranges_close(in->ranges);
		in->ranges = NULL;
		return 0;
	}
	if (r == 0)
		r = check_allocs(in, &m);
	if (r == 0)
		r = ranges_add(in->devices, &in->ranges, &m, in->fds, in->text, sizeof(in->text));
	return r;
}

static int take_order(struct intake *in)
{
	uint8_t device[WIRE_UUID_BYTES];
	int r = proto_order(in->packet, in->n, in->n_fds, device, in->text, sizeof(in->text));

	if (r == 0)
		r = stream_order_import(in->devices, device, in->fds[0], &in->order, in->text,
					sizeof(in->text));
	return r;
}

static int take_in(struct intake *in)
{
	if (read_head(in))
		return -EPROTO;
	if (in->type != WIRE_SPACE_OPEN && in->type != WIRE_ORDER && in->type != WIRE_ALLOCS)
		return say(in, -EPROTO, "file descriptors came with a message that takes none");
	if (in->type != WIRE_ALLOCS && in->n_fds > WIRE_MAX_REGIONS)
		return say(in, -EPROTO, "a packet carries more than %d file descriptors",
			   WIRE_MAX_REGIONS);
	if (!in->greeted)
		return say(in, -EPROTO, "the first message must be HELLO");
	if (in->type == WIRE_ALLOCS)
		return take_allocs(in);
	return in->type == WIRE_ORDER ? take_order(in) : take_regions(in);
}

/* A SPACE_OPEN ends the ranges that it did not take; an ALLOCS that is refused ends all. */
static void end_ranges(struct intake *in, int status)
{
	if (in->type != WIRE_SPACE_OPEN && (in->type != WIRE_ALLOCS || status == 0))
		return;
	ranges_close(in->ranges);
	in->ranges = NULL;
}

/* It never returns -EAGAIN, which means that a packet is over its limits. */
static int make_rings(struct intake *in)
{
	const int r = ring_open(in->ring, in->ring_entries, in->arena_blocks);

	if (r == 0)
		return 0;
	return say(in, r == -EAGAIN ? -ENOMEM : r, "the daemon cannot make rings: %s%s",
		   strerror(-r), r == -EMFILE ? ": raise LimitNOFILE=" : "");
}

int intake_hold(struct intake *in, const void *packet, size_t n)
{
	in->packet = malloc(n);
	if (!in->packet)
		return -ENOMEM;
	memcpy(in->packet, packet, n);
	in->n = n;
	return 0;
}

enum work_end intake_run(struct work *work, uint32_t thread)
{
	struct intake *in = (struct intake *)(void *)work;
	int r = 0;

	(void)thread;
	if (in->ring)
		r = make_rings(in);
	else if (!in->packet && !in->discard)
		r = receive(in);
	if (r == 0 && !in->ring && !in->discard)
		r = take_in(in);
	in->status = r;
	if (r == -EAGAIN)
		return WORK_ENDED;
	while (in->n_fds > 0)
		(void)close(in->fds[--in->n_fds]);
	end_ranges(in, r);
	return WORK_ENDED;
}

void intake_drop(struct intake *in)
{
	free(in->packet);
	in->packet = NULL;
	in->mount = NULL;
	in->order = NULL;
	in->ring = NULL;
	in->type = 0;
	in->seq = 0;
	in->n = 0;
}

enum work_end leaving_run(struct work *work, uint32_t thread)
{
	struct leaving *l = (struct leaving *)(void *)work;

	(void)thread;
	for (struct mount *mount = l->list; mount; mount = mount->next)
		mount_unmap(mount);
	for (struct stream_order *order = l->orders, *next; order; order = next) {
		next = order->next;
		stream_order_release(order);
	}
	l->orders = NULL;
	ranges_close(l->ranges);
	l->ranges = NULL;
	if (l->ring)
		ring_close(l->ring);
	if (l->socket >= 0)
		(void)close(l->socket);
	return WORK_ENDED;
}
