/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_table.c - the block table as a log sees it: its locations are the table's extents. Contract: nvme_log.h, nvme.h.
 * Core thread only.
 */
#include "nvme_disk.h"

static bool table_found(void *arg, const struct nvme_entry *entry, uint64_t location)
{
	const struct nvme_disk *d = arg;
	struct extent where;

	nvme_location_extent(location, &where);
	return d->conf->events.found(d->conf->events.arg, entry, &where);
}

static enum nvme_answer table_ask(void *arg, const struct nvme_entry *entry, uint64_t location, uint64_t *ret_tick)
{
	const struct nvme_disk *d = arg;
	struct extent where;

	nvme_location_extent(location, &where);
	return d->conf->events.ask(d->conf->events.arg, entry, &where, ret_tick);
}

static bool table_moved(void *arg, const struct nvme_entry *entry, uint64_t from, uint64_t to, uint64_t *ret_tick)
{
	const struct nvme_disk *d = arg;
	struct extent old, new;

	nvme_location_extent(from, &old);
	nvme_location_extent(to, &new);
	return d->conf->events.moved(d->conf->events.arg, entry, &old, &new, ret_tick);
}

static void table_dropped(void *arg, const struct nvme_entry *entry, uint64_t location)
{
	const struct nvme_disk *d = arg;
	struct extent where;

	nvme_location_extent(location, &where);
	d->conf->events.dropped(d->conf->events.arg, entry, &where);
}

void nvme_disk_table(struct nvme_disk *d, struct nvme_table *ret)
{
	*ret = (struct nvme_table){
		.arg = d, .found = table_found, .ask = table_ask, .moved = table_moved, .dropped = table_dropped,
	};
}
