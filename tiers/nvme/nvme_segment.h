/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_segment.h - the life of a segment, and the log's own I/O. For the files of the log
 * (nvme_log_inner.h). Core thread only.
 */
#ifndef KVTIER_NVME_SEGMENT_H
#define KVTIER_NVME_SEGMENT_H

#include "nvme_log_inner.h"

/* Fills in an I/O of the log's own, before it is tried or started. The caller sets done and
 * owner. */
void nvme_io_set(struct nvme_io *io, struct nvme_log *log, enum io_kind kind, uint64_t offset,
		 uint8_t *buffer, uint32_t bytes);
int nvme_io_try(struct nvme_io *io); /* 0: on its way. -errno of the medium: nothing happened */
/* Now, or when the queue has room. done() runs in any case, with io->op.status. */
void nvme_io_start(struct nvme_io *io);
void nvme_io_retry(struct nvme_log *log); /* I/Os that wait for room in the queue */
/* Of log->step: a flush, footers, the next segment to be READY. */
void nvme_segment_step(struct nvme_log *log);
/* The identity that a header, footer or tag of this segment must name until the segment is used
 * again. */
void nvme_identify(const struct nvme_log *log, uint32_t segment, struct nvme_identity *ret);
/* The segment is full: SEALED, with so many entries in its footer. */
void nvme_segment_sealed(struct nvme_log *log, uint32_t segment, uint32_t entries);
/* READY becomes the open one. False: none is, or no buffer for its footer. */
bool nvme_fill_open(struct nvme_log *log);
void nvme_fill_close(struct nvme_log *log); /* the open one, if any */

#endif
