/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent.c - the pages that a daemon may still touch although their ops have ended.
 *
 *  connection up --session_lost()--> orphan: socket, pidfd, pages --hang-up, death--> forgotten
 *                     `-- no page was lent, or the daemon closed first: no orphan
 *
 * A page is lent from its op's submission until the op's completion was read, the connection that
 * it was lent over has ended, or its daemon is dead. A daemon closes a connection only after it has
 * given back all pages (wire.h). This side gives a connection up when the daemon stands still or
 * lies. It then keeps an orphan: the socket, which is shut down for writing, and a list of the
 * pages that were lent over it. Orphans belong to the process and not to a client, so they outlive
 * kvtier_close(). A page in an orphan is lent over no other connection.
 *
 * A daemon that is killed hangs up too. But a GPU may then still write to pages in its memory,
 * because the kernel closes the socket and the driver's descriptors in an order of its own. So a
 * hang-up frees such pages only after the daemon's BYE (wire.h). Else its death does, which comes
 * last.
 *
 * A page is known by its memory (device and inode of each region's memfd, or the address in a GPU's
 * memory), its layout and its index. Pages of one layout are compared by index. If another layout
 * covers the same bytes, each of its pages counts as the lent one. Staged pages are never in an
 * orphan, because the daemon writes into a memfd of the library, which is made anew for each
 * connection.
 *
 * One lock guards all of this. It is a leaf: take no locks while holding it. An orphan is made with
 * its connection, so that making it cannot fail when it is needed.
 */
#include "lent.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "last_error.h"
#include "socket.h"

struct lent_layout {
	LIST_ENTRY(lent_layout) link; /* of open spaces */
	bool open;
	uint32_t refs; /* the space, and ops of orphans */
	size_t n_places, n_segments;
	struct lent_place places[KVTIER_MAX_REGIONS];
	struct wire_segment segments[];
};

/* Pages of one op. */
struct lent_op {
	struct lent_layout *layout;
	uint64_t op;
	uint32_t first, n;
};

struct orphan {
	LIST_ENTRY(orphan) link;
	int fd, pidfd; /* pidfd -1: not known */
	int32_t pid;   /* of the daemon; 0: not known */
	bool on_gpu;   /* some pages are in a GPU's memory */
	bool bye;      /* the daemon's BYE was read */
	uint64_t serial;
	uint32_t n_ops, n_pages, room;
	struct lent_op ops[KVTIER_MAX_OPS];
	uint32_t pages[]; /* of each op: ascending, once each */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
LIST_HEAD(layout_list, lent_layout);
LIST_HEAD(orphan_list, orphan);
static struct layout_list layouts = LIST_HEAD_INITIALIZER(layouts);
static struct orphan_list orphans = LIST_HEAD_INITIALIZER(orphans);
static uint64_t serials;
_Atomic uint32_t lent_orphans;

void lent_lock(void)
{
	(void)pthread_mutex_lock(&lock);
}

void lent_unlock(void)
{
	(void)pthread_mutex_unlock(&lock);
}

/* --- layouts --- */

int lent_place_of(int fd, const struct kvtier_region *region, struct lent_place *ret)
{
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	*ret = (struct lent_place){ st.st_dev, st.st_ino, region->offset, region->length };
	return 0;
}

int lent_layout_open(const struct lent_place *places, size_t n_places,
		     const struct wire_segment *segments, size_t n_segments,
		     struct lent_layout **ret)
{
	struct lent_layout *layout = calloc(1, sizeof(*layout) + n_segments * sizeof(*segments));

	if (!layout)
		return error_set(-ENOMEM, "out of memory");
	assert(n_places <= KVTIER_MAX_REGIONS);
	layout->refs = 1;
	layout->open = true;
	layout->n_places = n_places;
	layout->n_segments = n_segments;
	memcpy(layout->segments, segments, n_segments * sizeof(*segments));
	memcpy(layout->places, places, n_places * sizeof(*places));
	lent_lock();
	LIST_INSERT_HEAD(&layouts, layout, link);
	lent_unlock();
	*ret = layout;
	return 0;
}

/* Lock held. */
static void layout_drop(struct lent_layout *layout)
{
	if (--layout->refs == 0)
		free(layout);
}

void lent_layout_close(struct lent_layout *layout)
{
	if (!layout)
		return;
	lent_lock();
	LIST_REMOVE(layout, link);
	layout->open = false;
	layout_drop(layout);
	lent_unlock();
}

static bool places_overlap(const struct lent_place *a, const struct lent_place *b)
{
	return a->inode && a->inode == b->inode && a->device == b->device &&
	       a->offset < b->offset + b->length && b->offset < a->offset + a->length;
}

static bool layouts_overlap(const struct lent_layout *a, const struct lent_layout *b)
{
	for (size_t i = 0; i < a->n_places; i++)
		for (size_t k = 0; k < b->n_places; k++)
			if (places_overlap(&a->places[i], &b->places[k]))
				return true;
	return false;
}

static bool layouts_same(const struct lent_layout *a, const struct lent_layout *b)
{
	return a == b ||
	       (a->n_places == b->n_places && a->n_segments == b->n_segments &&
		!memcmp(a->places, b->places, a->n_places * sizeof(a->places[0])) &&
		!memcmp(a->segments, b->segments, a->n_segments * sizeof(a->segments[0])));
}

static bool layout_in(const struct lent_layout *layout, uint64_t device, uint64_t inode)
{
	for (size_t i = 0; i < layout->n_places; i++)
		if (layout->places[i].device == device && layout->places[i].inode == inode)
			return true;
	return false;
}

bool lent_memory_open(uint64_t device, uint64_t inode)
{
	const struct lent_layout *layout;
	bool found = false;

	lent_lock();
	LIST_FOREACH(layout, &layouts, link)
	found |= layout_in(layout, device, inode);
	lent_unlock();
	return found;
}

/* --- an orphan's life --- */

int orphan_open(uint32_t room, int pidfd, struct orphan **ret)
{
	/* Its memory is touched only when the orphan is used. */
	struct orphan *orphan =
		calloc(1, sizeof(*orphan) + (size_t)room * sizeof(orphan->pages[0]));

	if (!orphan)
		return error_set(-ENOMEM, "out of memory");
	orphan->fd = -1;
	orphan->pidfd = pidfd;
	orphan->room = room;
	*ret = orphan;
	return 0;
}

static int compare(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

void orphan_add(struct orphan *orphan, struct lent_layout *layout, uint64_t op,
		const uint32_t *pages, uint32_t n)
{
	uint32_t *to = &orphan->pages[orphan->n_pages], kept = 0;

	/* Ops in flight have no more slots than the arena has. */
	assert(orphan->n_ops < KVTIER_MAX_OPS && n <= orphan->room - orphan->n_pages);
	memcpy(to, pages, n * sizeof(*pages));
	qsort(to, n, sizeof(*to), compare);
	for (uint32_t i = 0; i < n; i++)
		if (!kept || to[kept - 1] != to[i])
			to[kept++] = to[i];
	lent_lock();
	layout->refs++;
	orphan->on_gpu |= layout_in(layout, LENT_CUDA, LENT_CUDA);
	lent_unlock();
	orphan->ops[orphan->n_ops++] =
		(struct lent_op){ .layout = layout, .op = op, .first = orphan->n_pages, .n = kept };
	orphan->n_pages += kept;
}

/* Lock held. */
static void orphan_free(struct orphan *orphan)
{
	for (uint32_t i = 0; i < orphan->n_ops; i++)
		layout_drop(orphan->ops[i].layout);
	if (orphan->pidfd >= 0)
		(void)close(orphan->pidfd);
	if (orphan->fd >= 0)
		(void)close(orphan->fd);
	free(orphan);
}

void orphan_close(struct orphan *orphan)
{
	if (!orphan)
		return;
	lent_lock();
	orphan_free(orphan);
	lent_unlock();
}

/* Takes all packets that came before the hang-up. */
static bool heard_bye(struct orphan *orphan)
{
	struct packet packet;

	while (!orphan->bye && socket_receive(orphan->fd, &packet) == 0) {
		orphan->bye = packet.head.type == WIRE_BYE;
		packet_close(&packet);
	}
	return orphan->bye;
}

/* Has the daemon given back the pages? Its hang-up says so, or its death. */
static bool orphan_ended(struct orphan *orphan)
{
	struct pollfd p[2] = { { .fd = orphan->fd }, { .fd = orphan->pidfd, .events = POLLIN } };

	if (orphan->n_ops == 0)
		return true;
	if (poll(p, 2, 0) <= 0)
		return false;
	if (p[1].revents & POLLIN)
		return true;
	return (p[0].revents & POLLHUP) &&
	       (!orphan->on_gpu || orphan->pidfd < 0 || heard_bye(orphan));
}

/* The daemon's number in this PID namespace: from the pidfd, else the number of the process that
 * made the socket. */
static int32_t daemon_pid(const struct orphan *orphan)
{
	struct ucred peer = { 0 };
	socklen_t n = sizeof(peer);
	char path[64], line[128];
	long pid = 0;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", orphan->pidfd);
	f = orphan->pidfd >= 0 ? fopen(path, "re") : NULL;
	while (f && !pid && fgets(line, sizeof(line), f))
		if (strncmp(line, "Pid:", 4) == 0)
			pid = strtol(line + 4, NULL, 10);
	if (f)
		(void)fclose(f);
	if (pid <= 0 && getsockopt(orphan->fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0)
		pid = peer.pid;
	return pid > 0 && pid <= INT32_MAX ? (int32_t)pid : 0;
}

uint64_t orphan_keep(struct orphan *orphan, int fd)
{
	uint64_t serial = 0;

	orphan->fd = fd;
	if (!orphan_ended(orphan)) {
		(void)shutdown(fd, SHUT_WR); /* the daemon sees it when it goes on */
		orphan->pid = daemon_pid(orphan);
	}
	lent_lock();
	if (orphan_ended(orphan)) {
		orphan_free(orphan);
	} else {
		serial = orphan->serial = ++serials;
		LIST_INSERT_HEAD(&orphans, orphan, link);
		(void)atomic_fetch_add(&lent_orphans, 1);
	}
	lent_unlock();
	return serial;
}

/* Lock held. */
static void look(void)
{
	struct orphan *orphan, *next;

	for (orphan = LIST_FIRST(&orphans); orphan; orphan = next) {
		next = LIST_NEXT(orphan, link);
		if (!orphan_ended(orphan))
			continue;
		LIST_REMOVE(orphan, link);
		orphan_free(orphan);
		(void)atomic_fetch_sub(&lent_orphans, 1);
	}
}

void lent_look(void)
{
	if (!atomic_load(&lent_orphans))
		return;
	lent_lock();
	look();
	lent_unlock();
}

/* In a forked child, with the lock held: the parent waits for the daemon's word. No shutdown(): it
 * would end the socket that the parent shares. */
void lent_child(void)
{
	while (!LIST_EMPTY(&orphans)) {
		struct orphan *orphan = LIST_FIRST(&orphans);

		LIST_REMOVE(orphan, link);
		orphan_free(orphan);
	}
	atomic_store(&lent_orphans, 0);
	lent_unlock();
}

/* --- questions --- */

/* Lock held. The first of these pages that is lent over an ended connection; or NULL. */
static const struct orphan *find(const struct lent_layout *layout, const uint32_t *pages, size_t n,
				 uint32_t *ret)
{
	const struct orphan *orphan;

	LIST_FOREACH(orphan, &orphans, link)
	for (uint32_t i = 0; i < orphan->n_ops; i++) {
		const struct lent_op *given = &orphan->ops[i];
		const bool same = layouts_same(layout, given->layout);

		if (!same && !layouts_overlap(layout, given->layout))
			continue;
		for (size_t k = 0; k < n; k++) {
			*ret = pages[k];
			if (!same || bsearch(&pages[k], &orphan->pages[given->first], given->n,
					     sizeof(*pages), compare))
				return orphan;
		}
	}
	return NULL;
}

int lent_check(const struct lent_layout *layout, const uint32_t *pages, size_t n)
{
	const struct orphan *orphan;
	uint32_t page = 0;
	int32_t pid = 0;

	lent_lock();
	orphan = find(layout, pages, n, &page);
	if (orphan) {
		look();
		orphan = find(layout, pages, n, &page);
	}
	if (orphan)
		pid = orphan->pid;
	lent_unlock();
	if (!orphan)
		return 0;
	return error_set(
		-EBUSY,
		"page %u is lent still: kvtierd (pid %d) may be using it for an op whose "
		"connection was cut. It is free when that daemon answers or ends (systemd ends one "
		"that stands still for 30 s), or by kvtier_memory_take_back()",
		page, (int)pid);
}

uint32_t lent_op(uint64_t serial, uint64_t op)
{
	const struct orphan *orphan;
	uint32_t n = 0;

	if (!serial)
		return 0;
	lent_lock();
	look();
	LIST_FOREACH(orphan, &orphans, link)
	for (uint32_t i = 0; orphan->serial == serial && i < orphan->n_ops; i++)
		if (orphan->ops[i].op == op)
			n = orphan->ops[i].n;
	lent_unlock();
	return n;
}

uint32_t lent_space(const struct lent_layout *layout)
{
	const struct orphan *orphan;
	uint32_t n = 0;

	if (!layout)
		return 0;
	lent_lock();
	look();
	LIST_FOREACH(orphan, &orphans, link)
	for (uint32_t i = 0; i < orphan->n_ops; i++)
		if (layouts_same(layout, orphan->ops[i].layout))
			n += orphan->ops[i].n;
	lent_unlock();
	return n;
}

void lent_wait(struct lent_wait *ret)
{
	const struct orphan *orphan;

	*ret = (struct lent_wait){ 0 };
	lent_lock();
	look();
	ret->connections = atomic_load(&lent_orphans);
	if (!LIST_EMPTY(&orphans))
		ret->pid = LIST_FIRST(&orphans)->pid; /* the latest one */
	LIST_FOREACH(orphan, &orphans, link)
	for (uint32_t i = 0; i < orphan->n_ops; i++)
		ret->pages += orphan->ops[i].n;
	lent_unlock();
}

void lent_fill(const struct lent_layout *layout, uint32_t page, struct kvtier_lent *ret)
{
	const struct wire_segment *s = &layout->segments[0];
	const struct lent_place *place = &layout->places[s->region];

	ret->page = page;
	ret->memory = place->inode;
	ret->offset = place->offset + s->offset + page * s->page_stride;
}

size_t lent_list(size_t at, void (*put)(void *arg, size_t at, const struct kvtier_lent *lent),
		 void *arg)
{
	const struct orphan *orphan;

	lent_lock();
	look();
	LIST_FOREACH(orphan, &orphans, link)
	for (uint32_t i = 0; i < orphan->n_ops; i++)
		for (uint32_t k = 0; k < orphan->ops[i].n; k++) {
			const struct lent_op *given = &orphan->ops[i];
			struct kvtier_lent lent = { .op = given->op,
						    .daemon = orphan->pid,
						    .ended = 1 };

			lent_fill(given->layout, orphan->pages[given->first + k], &lent);
			put(arg, at++, &lent);
		}
	lent_unlock();
	return at;
}

/* --- memory taken back --- */

/* True: the layout has no memory left. */
static bool layout_forget(struct lent_layout *layout, uint64_t device, uint64_t inode)
{
	bool left = false;

	for (size_t i = 0; i < layout->n_places; i++) {
		if (layout->places[i].device == device && layout->places[i].inode == inode)
			layout->places[i] = (struct lent_place){ 0 };
		left |= layout->places[i].inode != 0;
	}
	return !left;
}

void lent_forget(uint64_t device, uint64_t inode)
{
	lent_lock();
	for (struct orphan *orphan = LIST_FIRST(&orphans); orphan;
	     orphan = LIST_NEXT(orphan, link)) {
		uint32_t kept = 0;

		for (uint32_t i = 0; i < orphan->n_ops; i++) {
			if (layout_forget(orphan->ops[i].layout, device, inode))
				layout_drop(orphan->ops[i].layout);
			else
				orphan->ops[kept++] = orphan->ops[i];
		}
		orphan->n_ops = kept;
	}
	look();
	lent_unlock();
}
