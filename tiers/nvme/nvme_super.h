/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_super.h - superblocks: saved; the start of a log. For the files of the log
 * (nvme_log_inner.h). Core thread only.
 */
#ifndef KVTIER_NVME_SUPER_H
#define KVTIER_NVME_SUPER_H

#include "nvme_log_inner.h"

/* Writes both copies of log->super, each synced; then done() runs. One save at a time. */
void nvme_super_save(struct nvme_log *log, void (*done)(struct nvme_log *log, int status));
/* How many segments a store of so many bytes has. */
uint64_t nvme_segments_in(uint64_t bytes, uint32_t segment_bytes);
/* The start is over: UP, or FAILED with a text (NULL: the text that is there), and table.ready() is
 * told. */
void nvme_log_started(struct nvme_log *log, int status, const char *text);

#endif
