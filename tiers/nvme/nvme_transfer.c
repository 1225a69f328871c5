/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_transfer.c - see nvme_transfer.h. Core thread only.
 *
 *	free ──start──> lent ──────────────────────────── done ──> free, the xfer ends
 *	                  └── given up: the xfer ends, kept ──done──> free, release(home)
 */
#include "nvme_transfer.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int nvme_transfers_open(struct nvme_disk *d, uint32_t n)
{
	d->transfers = calloc(n, sizeof(*d->transfers));
	if (!d->transfers)
		return -ENOMEM;
	d->n_transfers = n;
	for (uint32_t i = n; i-- > 0;) {
		d->transfers[i].disk = d;
		d->transfers[i].next_free = d->free;
		d->free = &d->transfers[i];
	}
	return 0;
}

void nvme_transfers_close(struct nvme_disk *d)
{
	for (uint32_t i = 0; i < d->n_transfers; i++)
		assert(!d->transfers[i].lent);
	free(d->transfers);
	d->transfers = d->free = NULL;
	d->n_transfers = 0;
}

/* Frees the transfer. Returns its xfer; NULL: the xfer was given up. */
static struct xfer *retire(struct nvme_transfer *t)
{
	struct xfer *x = t->x;

	assert(t->lent);
	t->disk->cancels -= t->cancelled;
	t->x = NULL;
	t->lent = t->cancelled = false;
	t->next_free = t->disk->free;
	t->disk->free = t;
	return x;
}

static void read_done(struct nvme_read *read)
{
	struct nvme_transfer *t = (struct nvme_transfer *)(void *)read;
	const struct nvme_events *events = &t->disk->conf->events;
	const struct extent home = t->home;
	struct xfer *x = retire(t);

	if (!x) {
		if (events->release)
			events->release(events->arg, &home);
		return;
	}
	if (!read->status)
		memcpy(x->record.parent, read->parent, sizeof(x->record.parent));
	tier_complete(x, read->status);
}

static void append_done(struct nvme_append *append)
{
	struct nvme_transfer *t = (struct nvme_transfer *)(void *)append;
	struct xfer *x = retire(t);

	if (!append->status)
		nvme_location_extent(append->location, &x->where);
	tier_complete(x, append->status);
}

static int start_read(struct nvme_transfer *t, struct xfer *x)
{
	struct nvme_read *read = &t->io.read;

	memset(read, 0, sizeof(*read));
	read->location = nvme_extent_location(&x->where);
	read->buffer = x->buffer;
	read->bytes = x->bytes;
	read->done = read_done;
	return nvme_log_read(t->disk->log, read);
}

static int start_append(struct nvme_transfer *t, struct xfer *x)
{
	struct nvme_disk *d = t->disk;
	struct nvme_append *append = &t->io.append;
	struct nvme_counters before, after;
	int r;

	memset(append, 0, sizeof(*append));
	append->image = x->buffer;
	append->bytes = x->bytes;
	append->tick = x->record.tick;
	append->done = append_done;
	memcpy(append->owner, x->record.owner, sizeof(append->owner));
	memcpy(append->parent, x->record.parent, sizeof(append->parent));
	nvme_log_counters(d->log, &before);
	r = nvme_log_append(d->log, append);
	nvme_log_counters(d->log, &after);
	if (r == -EAGAIN) {
		d->refused_budget = after.refused_budget != before.refused_budget;
		d->refused = !d->refused_budget;
	}
	return r;
}

int nvme_transfer_start(struct nvme_disk *d, struct xfer *x)
{
	struct nvme_transfer *t = d->free;
	int r;

	if (!t) {
		d->refused = d->refused || x->op == XFER_WRITE;
		return -EAGAIN;
	}
	r = x->op == XFER_READ ? start_read(t, x) : start_append(t, x);
	if (r)
		return r;
	d->free = t->next_free;
	t->x = x;
	t->home = x->home;
	t->lent = true;
	t->cancelled = false;
	t->is_read = x->op == XFER_READ;
	return 0;
}

bool nvme_transfer_cancel(struct nvme_disk *d, struct xfer *x)
{
	for (uint32_t i = 0; i < d->n_transfers; i++) {
		struct nvme_transfer *t = &d->transfers[i];

		if (!t->lent || t->x != x)
			continue;
		if (!t->is_read)
			return false;
		d->cancels += !t->cancelled;
		t->cancelled = true;
		return true;
	}
	return false;
}

/* The owner of an xfer that ends here may start and cancel other xfers: each transfer is looked at
 * afresh. */
void nvme_transfers_give_up(struct nvme_disk *d, bool all, int status)
{
	for (uint32_t i = 0; i < d->n_transfers; i++) {
		struct nvme_transfer *t = &d->transfers[i];
		struct xfer *x = t->x;

		if (!t->lent || !x || !t->is_read || !(all || t->cancelled))
			continue;
		d->cancels -= t->cancelled;
		t->cancelled = false;
		t->x = NULL;
		x->kept = true;
		tier_complete(x, status);
	}
}
