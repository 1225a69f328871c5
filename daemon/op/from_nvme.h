/* SPDX-License-Identifier: Apache-2.0 */
/* from_nvme.h - a flight's source: NVMe. */
#ifndef KVTIER_FROM_NVME_H
#define KVTIER_FROM_NVME_H

#include "flight.h"

extern const struct source_ops from_nvme;

#endif
