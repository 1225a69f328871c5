/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_carry.h - empties a segment that is to be used again. For the files of the log
 * (nvme_log_inner.h). Core thread only.
 */
#ifndef KVTIER_NVME_CARRY_H
#define KVTIER_NVME_CARRY_H

#include "nvme_log_inner.h"

/* Carries on with the victim, or picks one if clean segments run low. Of log->step. */
void nvme_carry_step(struct nvme_log *log);

#endif
