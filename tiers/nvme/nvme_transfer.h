/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_transfer.h - an xfer of the tier as a read or an append of one disk's log. A disk has as
 * many transfers as its I/O engine takes I/Os. A read can be given up: its xfer ends at once, with
 * x->kept, and its transfer stays with the disk until the disk is done with the buffer; then
 * events.release() gives the buffer's slot back. Core thread only.
 */
#ifndef KVTIER_NVME_TRANSFER_H
#define KVTIER_NVME_TRANSFER_H

#include "nvme_disk.h"

struct nvme_transfer {
	union { /* first: done() gets back to us */
		struct nvme_read read;
		struct nvme_append append;
	} io;
	struct nvme_disk *disk;
	struct xfer *x;     /* NULL: given up */
	struct extent home; /* of that xfer */
	bool lent, is_read, cancelled;
	struct nvme_transfer *next_free;
};

int nvme_transfers_open(struct nvme_disk *d, uint32_t n);     /* -ENOMEM */
void nvme_transfers_close(struct nvme_disk *d);               /* none is lent */
int nvme_transfer_start(struct nvme_disk *d, struct xfer *x); /* as tier_submit() */
/* True: the xfer is a read of this disk; the next poll ends it. */
bool nvme_transfer_cancel(struct nvme_disk *d, struct xfer *x);
/* Reads on their way end with `status` now, and their buffers are kept: all reads, or only the
 * cancelled ones. */
void nvme_transfers_give_up(struct nvme_disk *d, bool all, int status);

#endif
