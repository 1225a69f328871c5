/* SPDX-License-Identifier: Apache-2.0 */
/* parked.c - see parked.h. Core thread only. */
#include "parked.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/fd_store.h"
#include "daemon/base/log.h"
#include "daemon/device/devices.h"

struct parked_unit {
	struct device *device;
	char memory_name[FD_STORE_NAME], book_name[FD_STORE_NAME];
	struct gpu_book *book; /* NULL: nothing is parked */
	bool before;           /* of the process before; not matched with memory yet */
	/* of the memory of the process before: slots of one slab, taken and not given yet */
	struct gpu_claim *claims; /* NULL: there are none, or all were given */
	uint32_t next_slab, n, given;
};

struct parked {
	struct parked_conf conf;
	uint32_t claims_most;
	uint32_t n;
	struct parked_unit units[GPU_UNITS_MAX];
};

static struct gpu_book_shape shape_of(const struct parked *p, const struct parked_unit *u,
				      uint64_t bytes)
{
	struct gpu_book_shape ret = {
		.driver = u->device->driver,
		.slab_bytes = p->conf.slab_bytes,
		.bytes = bytes / p->conf.slab_bytes * p->conf.slab_bytes,
	};

	memcpy(ret.gpu, u->device->uuid, sizeof(ret.gpu));
	return ret;
}

/* --- parked, and not any more --- */

static void drop_names(const struct parked *p, const struct parked_unit *u)
{
	fd_store_drop(p->conf.fds, u->book_name);
	fd_store_drop(p->conf.fds, u->memory_name);
}

static void drop(const struct parked *p, struct parked_unit *u)
{
	free(u->claims);
	u->claims = NULL;
	if (!u->book)
		return;
	drop_names(p, u);
	gpu_book_close(u->book);
	u->book = NULL;
	u->before = false;
}

/* First the book: memory without one is of no use. */
static int park(const struct parked *p, struct parked_unit *u, const struct device_memory *memory)
{
	const struct gpu_book_shape shape = shape_of(p, u, memory->bytes);
	int r;

	if (memory->fd < 0)
		return -ENOTSUP;
	r = gpu_book_make(&shape, &u->book);
	if (r)
		return r;
	drop_names(p, u);
	r = fd_store_keep(p->conf.fds, u->book_name, gpu_book_fd(u->book));
	if (r == 0)
		r = fd_store_keep(p->conf.fds, u->memory_name, memory->fd);
	if (r)
		drop(p, u);
	return r;
}

void parked_memory(struct parked *p, uint32_t unit, const struct device_memory *memory)
{
	struct parked_unit *u = p && unit < p->n ? &p->units[unit] : NULL;
	int r = 0;

	if (u && memory->generation && memory->parked && u->before) {
		u->before = false;
		return; /* without a descriptor: it is parked as it was */
	}
	if (u)
		drop(p, u);
	if (u && memory->generation)
		r = park(p, u, memory);
	if (r)
		log_warning("GPU %u: [gpu] outlive: its memory cannot be parked: %s", unit,
			    strerror(-r));
	if (memory->fd >= 0)
		(void)close(memory->fd);
}

struct gpu_book *parked_book(const struct parked *p, uint32_t unit)
{
	const struct parked_unit *u = p && unit < p->n ? &p->units[unit] : NULL;

	return u && !u->before ? u->book : NULL;
}

void parked_leave(struct parked *p)
{
	for (uint32_t i = 0; p && i < p->n; i++)
		if (p->units[i].book)
			device_leave(p->units[i].device);
}

/* --- slots of the process before --- */

bool parked_next(struct parked *p, struct tier *t, uint32_t unit, struct gpu_claim *ret)
{
	struct parked_unit *u = p && unit < p->n ? &p->units[unit] : NULL;

	if (!u || !u->claims || !u->book || u->before)
		return false;
	while (u->given == u->n && u->next_slab < gpu_book_slabs(u->book)) {
		u->given = 0;
		u->n = gpu_reclaim(t, unit, u->next_slab++, u->claims, p->claims_most);
	}
	if (u->given < u->n) {
		*ret = u->claims[u->given++];
		return true;
	}
	free(u->claims);
	u->claims = NULL;
	return false;
}

void parked_forget(struct parked *p, struct tier *t, uint32_t unit)
{
	struct parked_unit *u = p && unit < p->n ? &p->units[unit] : NULL;

	if (!u || !u->claims || u->before)
		return;
	while (u->given < u->n)
		tier_free(t, &u->claims[u->given++].where);
	u->next_slab = UINT32_MAX;
}

/* --- life --- */

static void name(struct parked_unit *u)
{
	char hex[2 * WIRE_UUID_BYTES + 1];

	for (int i = 0; i < WIRE_UUID_BYTES; i++)
		(void)snprintf(hex + 2 * i, 3, "%02x", u->device->uuid[i]);
	(void)snprintf(u->memory_name, sizeof(u->memory_name), "gpu-%s-memory", hex);
	(void)snprintf(u->book_name, sizeof(u->book_name), "gpu-%s-book", hex);
}

/* 0: u->book and *ret_fd are what was parked. -ENOENT: nothing was. */
static int take_back(struct parked *p, struct parked_unit *u, int *ret_fd, uint64_t *ret_bytes)
{
	const int memory = fd_store_take(p->conf.fds, u->memory_name);
	const int book = fd_store_take(p->conf.fds, u->book_name);
	struct gpu_book_shape shape = shape_of(p, u, 0);
	int r = memory < 0 && book < 0 ? -ENOENT : -EINVAL;

	if (memory >= 0 && book >= 0)
		r = gpu_book_open(book, &shape, &u->book);
	if (r && book >= 0)
		(void)close(book);
	if (r == 0) {
		u->claims = calloc(p->claims_most, sizeof(*u->claims));
		r = u->claims ? 0 : -ENOMEM;
	}
	if (r && memory >= 0)
		(void)close(memory);
	*ret_fd = r ? -1 : memory;
	*ret_bytes = shape.bytes;
	return r;
}

static uint64_t wanted(const struct parked *p, uint64_t parked)
{
	return p->conf.unit_bytes == UINT64_MAX ?
		       parked :
		       p->conf.unit_bytes / p->conf.slab_bytes * p->conf.slab_bytes;
}

static void begin(struct parked *p, struct parked_unit *u)
{
	uint64_t bytes = 0;
	int fd = -1;
	const int r = take_back(p, u, &fd, &bytes);

	u->before = r == 0;
	if (r && r != -ENOENT) {
		log_info("GPU %u: what was parked of it is not of this GPU, driver and [host] "
			 "slab_bytes: it is dropped",
			 u->device->unit);
		drop_names(p, u);
	}
	/* The device zeroes memory of another size. Here no one else keeps it, so that the wanted
	 * memory has room. */
	if (r || bytes != wanted(p, bytes))
		drop(p, u);
	device_outlive(u->device, fd, bytes);
}

int parked_open(const struct parked_conf *conf, struct parked **ret)
{
	const uint64_t slots = conf->slab_bytes / 4096;
	struct parked *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->conf = *conf;
	p->claims_most = slots < TIER_MAX_SLAB_SLOTS ? (uint32_t)slots : TIER_MAX_SLAB_SLOTS;
	for (uint32_t i = 1; i < conf->devices->n && p->n < GPU_UNITS_MAX; i++) {
		struct parked_unit *u = &p->units[p->n++];

		u->device = conf->devices->all[i];
		name(u);
		begin(p, u);
	}
	*ret = p;
	return 0;
}

void parked_close(struct parked *p)
{
	for (uint32_t i = 0; p && i < p->n; i++) {
		free(p->units[i].claims);
		gpu_book_close(p->units[i].book);
	}
	free(p);
}
