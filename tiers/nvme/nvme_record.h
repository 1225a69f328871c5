/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_record.h - appends of the log's own; nvme_log.h declares the appends of callers. For the
 * files of the log (nvme_log_inner.h). Core thread only.
 */
#ifndef KVTIER_NVME_RECORD_H
#define KVTIER_NVME_RECORD_H

#include "nvme_log_inner.h"

/* As nvme_log_append() for a record whose entry is complete but for its place. carry: for the log
 * itself; -ENOSPC: no clean segment at all. */
int nvme_append_start(struct nvme_log *log, struct nvme_append *append, struct nvme_entry *entry,
		      bool carry);

#endif
