/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent.c - the pages that a daemon may still touch although their ops have ended.
 *
 *  connection up --session_lost()--> grave: socket, pidfd, pages --hang-up, death--> forgotten
 *                     `-- nothing was lent, or the daemon closed first: no grave
 *
 * A page is lent from its op's submission until one of three events: the op's completion was read,
 * the connection that it was lent over has ended, or its daemon is dead. A daemon closes a
 * connection only after it let go of all its pages (wire.h). When this side gives a connection up,
 * because the daemon stands still or lies, it keeps a grave: the socket, shut down for writing, and
 * a list of the pages that were lent over it. Graves belong to the process, not to a client: they
 * outlive kvtier_close(). A page in a grave is not lent again, over any connection.
 *
 * A daemon that is killed hangs up, too, and a GPU may then still write to pages in its memory: the
 * kernel closes the socket and the driver's descriptors in an order of its own. Such pages are free
 * by the hang-up only after the daemon's BYE (wire.h), else by its death, which comes last.
 *
 * A page is known by its memory (device and inode of each region's memfd, or the address in a GPU's
 * memory), its layout and its index. Pages of one layout are compared by index. Where another
 * layout covers the same bytes, each of its pages counts as the lent one. Staged pages are never in
 * a grave: the daemon writes into a memfd of the library, which is made anew for each connection.
 *
 * One lock guards all of it. It is a leaf: take no locks while holding it. A grave is made with its
 * connection, so that nothing can fail when it is needed.
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

#include "error.h"
#include "socket.h"

struct lent_layout {
	LIST_ENTRY(lent_layout) link; /* of open spaces */
	bool open;
	uint32_t refs; /* the space, and parts of graves */
	size_t n_places, n_segments;
	struct lent_place places[KVTIER_MAX_REGIONS];
	struct wire_segment segments[];
};

/* Pages of one op. */
struct part {
	struct lent_layout *layout;
	uint64_t op;
	uint32_t first, n;
};

struct grave {
	LIST_ENTRY(grave) link;
	int fd, pidfd; /* pidfd -1: none */
	int32_t pid;   /* of the daemon; 0: not known */
	bool on_gpu;   /* some pages are in a GPU's memory */
	bool bye;      /* the daemon's BYE was read */
	uint64_t serial;
	uint32_t n_parts, n_pages, room;
	struct part parts[KVTIER_MAX_OPS];
	uint32_t pages[]; /* of each part: ascending, once each */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
LIST_HEAD(layout_list, lent_layout);
LIST_HEAD(grave_list, grave);
static struct layout_list layouts = LIST_HEAD_INITIALIZER(layouts);
static struct grave_list graves = LIST_HEAD_INITIALIZER(graves);
static uint64_t serials;
_Atomic uint32_t lent_graves;

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

/* --- a grave's life --- */

int grave_open(uint32_t room, int pidfd, struct grave **ret)
{
	/* Its memory is touched only when the grave is used. */
	struct grave *grave = calloc(1, sizeof(*grave) + (size_t)room * sizeof(grave->pages[0]));

	if (!grave)
		return error_set(-ENOMEM, "out of memory");
	grave->fd = -1;
	grave->pidfd = pidfd;
	grave->room = room;
	*ret = grave;
	return 0;
}

static int compare(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

void grave_add(struct grave *grave, struct lent_layout *layout, uint64_t op, const uint32_t *pages,
	       uint32_t n)
{
	uint32_t *to = &grave->pages[grave->n_pages], kept = 0;

	/* Ops in flight have no more slots than the arena has. */
	assert(grave->n_parts < KVTIER_MAX_OPS && n <= grave->room - grave->n_pages);
	memcpy(to, pages, n * sizeof(*pages));
	qsort(to, n, sizeof(*to), compare);
	for (uint32_t i = 0; i < n; i++)
		if (!kept || to[kept - 1] != to[i])
			to[kept++] = to[i];
	lent_lock();
	layout->refs++;
	grave->on_gpu |= layout_in(layout, LENT_CUDA, LENT_CUDA);
	lent_unlock();
	grave->parts[grave->n_parts++] =
		(struct part){ .layout = layout, .op = op, .first = grave->n_pages, .n = kept };
	grave->n_pages += kept;
}

/* Lock held. */
static void grave_free(struct grave *grave)
{
	for (uint32_t i = 0; i < grave->n_parts; i++)
		layout_drop(grave->parts[i].layout);
	if (grave->pidfd >= 0)
		(void)close(grave->pidfd);
	if (grave->fd >= 0)
		(void)close(grave->fd);
	free(grave);
}

void grave_close(struct grave *grave)
{
	if (!grave)
		return;
	lent_lock();
	grave_free(grave);
	lent_unlock();
}

/* Takes all packets that came before the hang-up. */
static bool heard_bye(struct grave *grave)
{
	struct packet packet;

	while (!grave->bye && socket_receive(grave->fd, &packet) == 0) {
		grave->bye = packet.head.type == WIRE_BYE;
		packet_close(&packet);
	}
	return grave->bye;
}

/* Has the daemon let go? Its hang-up says so, or its death. */
static bool grave_ended(struct grave *grave)
{
	struct pollfd p[2] = { { .fd = grave->fd }, { .fd = grave->pidfd, .events = POLLIN } };

	if (grave->n_parts == 0)
		return true;
	if (poll(p, 2, 0) <= 0)
		return false;
	if (p[1].revents & POLLIN)
		return true;
	return (p[0].revents & POLLHUP) && (!grave->on_gpu || grave->pidfd < 0 || heard_bye(grave));
}

/* The daemon's number in this PID namespace: from the pidfd, else the number of the process that
 * made the socket. */
static int32_t daemon_pid(const struct grave *grave)
{
	struct ucred peer = { 0 };
	socklen_t n = sizeof(peer);
	char path[64], line[128];
	long pid = 0;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", grave->pidfd);
	f = grave->pidfd >= 0 ? fopen(path, "re") : NULL;
	while (f && !pid && fgets(line, sizeof(line), f))
		if (strncmp(line, "Pid:", 4) == 0)
			pid = strtol(line + 4, NULL, 10);
	if (f)
		(void)fclose(f);
	if (pid <= 0 && getsockopt(grave->fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0)
		pid = peer.pid;
	return pid > 0 && pid <= INT32_MAX ? (int32_t)pid : 0;
}

uint64_t grave_bury(struct grave *grave, int fd)
{
	uint64_t serial = 0;

	grave->fd = fd;
	if (!grave_ended(grave)) {
		(void)shutdown(fd, SHUT_WR); /* the daemon sees it when it goes on */
		grave->pid = daemon_pid(grave);
	}
	lent_lock();
	if (grave_ended(grave)) {
		grave_free(grave);
	} else {
		serial = grave->serial = ++serials;
		LIST_INSERT_HEAD(&graves, grave, link);
		(void)atomic_fetch_add(&lent_graves, 1);
	}
	lent_unlock();
	return serial;
}

/* Lock held. */
static void look(void)
{
	struct grave *grave, *next;

	for (grave = LIST_FIRST(&graves); grave; grave = next) {
		next = LIST_NEXT(grave, link);
		if (!grave_ended(grave))
			continue;
		LIST_REMOVE(grave, link);
		grave_free(grave);
		(void)atomic_fetch_sub(&lent_graves, 1);
	}
}

void lent_look(void)
{
	if (!atomic_load(&lent_graves))
		return;
	lent_lock();
	look();
	lent_unlock();
}

/* In a forked child, with the lock held: the parent waits for the daemon's word. No shutdown(): it
 * would end the socket that the parent shares. */
void lent_child(void)
{
	while (!LIST_EMPTY(&graves)) {
		struct grave *grave = LIST_FIRST(&graves);

		LIST_REMOVE(grave, link);
		grave_free(grave);
	}
	atomic_store(&lent_graves, 0);
	lent_unlock();
}

/* --- questions --- */

/* Lock held. The first of these pages that is lent over an ended connection; NULL: none. */
static const struct grave *find(const struct lent_layout *layout, const uint32_t *pages, size_t n,
				uint32_t *ret)
{
	const struct grave *grave;

	LIST_FOREACH(grave, &graves, link)
	for (uint32_t i = 0; i < grave->n_parts; i++) {
		const struct part *part = &grave->parts[i];
		const bool same = layouts_same(layout, part->layout);

		if (!same && !layouts_overlap(layout, part->layout))
			continue;
		for (size_t k = 0; k < n; k++) {
			*ret = pages[k];
			if (!same || bsearch(&pages[k], &grave->pages[part->first], part->n,
					     sizeof(*pages), compare))
				return grave;
		}
	}
	return NULL;
}

int lent_check(const struct lent_layout *layout, const uint32_t *pages, size_t n)
{
	const struct grave *grave;
	uint32_t page = 0;
	int32_t pid = 0;

	lent_lock();
	grave = find(layout, pages, n, &page);
	if (grave) {
		look();
		grave = find(layout, pages, n, &page);
	}
	if (grave)
		pid = grave->pid;
	lent_unlock();
	if (!grave)
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
	const struct grave *grave;
	uint32_t n = 0;

	if (!serial)
		return 0;
	lent_lock();
	look();
	LIST_FOREACH(grave, &graves, link)
	for (uint32_t i = 0; grave->serial == serial && i < grave->n_parts; i++)
		if (grave->parts[i].op == op)
			n = grave->parts[i].n;
	lent_unlock();
	return n;
}

uint32_t lent_space(const struct lent_layout *layout)
{
	const struct grave *grave;
	uint32_t n = 0;

	if (!layout)
		return 0;
	lent_lock();
	look();
	LIST_FOREACH(grave, &graves, link)
	for (uint32_t i = 0; i < grave->n_parts; i++)
		if (layouts_same(layout, grave->parts[i].layout))
			n += grave->parts[i].n;
	lent_unlock();
	return n;
}

void lent_wait(struct lent_wait *ret)
{
	const struct grave *grave;

	*ret = (struct lent_wait){ 0 };
	lent_lock();
	look();
	ret->connections = atomic_load(&lent_graves);
	if (!LIST_EMPTY(&graves))
		ret->pid = LIST_FIRST(&graves)->pid; /* the latest one */
	LIST_FOREACH(grave, &graves, link)
	for (uint32_t i = 0; i < grave->n_parts; i++)
		ret->pages += grave->parts[i].n;
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
	const struct grave *grave;

	lent_lock();
	look();
	LIST_FOREACH(grave, &graves, link)
	for (uint32_t i = 0; i < grave->n_parts; i++)
		for (uint32_t k = 0; k < grave->parts[i].n; k++) {
			const struct part *part = &grave->parts[i];
			struct kvtier_lent lent = { .op = part->op,
						    .daemon = grave->pid,
						    .ended = 1 };

			lent_fill(part->layout, grave->pages[part->first + k], &lent);
			put(arg, at++, &lent);
		}
	lent_unlock();
	return at;
}

/* --- memory taken back --- */

/* True: nothing of the layout is left. */
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
	for (struct grave *grave = LIST_FIRST(&graves); grave; grave = LIST_NEXT(grave, link)) {
		uint32_t kept = 0;

		for (uint32_t i = 0; i < grave->n_parts; i++) {
			if (layout_forget(grave->parts[i].layout, device, inode))
				layout_drop(grave->parts[i].layout);
			else
				grave->parts[kept++] = grave->parts[i];
		}
		grave->n_parts = kept;
	}
	look();
	lent_unlock();
}
