/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_recover.h - finding the records on the disk when the log is opened. For the files of the log
 * (nvme_log_inner.h). Core thread only.
 */
#ifndef KVTIER_NVME_RECOVER_H
#define KVTIER_NVME_RECOVER_H

#include "nvme_log_inner.h"

/* The superblock is good and saved. Reads the segments; then done() runs, once (text: why, or "").
 * -ENOMEM: done() does not run. */
int nvme_recover_segments(struct nvme_log *log,
			  void (*done)(struct nvme_log *log, int status, const char *text));
void nvme_recovery_free(struct nvme_log *log); /* its memory, if there is any */

#endif
