/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_account.h - the log's memory, which records live in which segment, and the write budget. For
 * the files of the log (nvme_log_inner.h). Core thread only.
 */
#ifndef KVTIER_NVME_ACCOUNT_H
#define KVTIER_NVME_ACCOUNT_H

#include "nvme_log_inner.h"

/* zeroed, page-aligned, counted; NULL */
void *nvme_reserve(struct nvme_log *log, uint64_t bytes);
/* The location of this record, under the segment's generation of now. */
uint64_t nvme_location_make(const struct nvme_log *log, uint32_t segment,
			    const struct nvme_entry *entry);
void nvme_account(struct nvme_log *log, uint32_t segment, const struct nvme_entry *entry,
		  uint64_t tick);
/* SEALED or DRAINING, and nothing there is worth keeping: FREE, its locations stale. */
void nvme_segment_release(struct nvme_log *log, uint32_t segment);
/* a live record that was not carried over */
void nvme_count_dropped(struct nvme_log *log, uint32_t segment);
bool nvme_budget_allows(struct nvme_log *log, uint64_t bytes);
/* The bucket as it goes into a header; and as the newest header had it, at a start: the records
 * behind that are paid for one by one. */
void nvme_budget_tell(const struct nvme_log *log, struct nvme_budget *ret);
void nvme_budget_recall(struct nvme_log *log, const struct nvme_budget *budget);
void nvme_budget_pay(struct nvme_log *log, uint64_t bytes);
void nvme_charge(struct nvme_log *log, uint64_t bytes); /* written: counted, and off the budget */

#endif
