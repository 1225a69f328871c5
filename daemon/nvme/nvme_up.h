/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_up.h - brings the NVMe tier, its write-behind queue and flush up at the start, and takes
 * them down at the end. Core thread only.
 */
#ifndef KVTIER_NVME_UP_H
#define KVTIER_NVME_UP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvtierd;

/* Opens [nvme]; does nothing where [nvme] bytes is 0. A disk in trouble is no error: the daemon
 * serves without it, and status says why. -errno, and text (>= 512 bytes) names the option: the
 * configuration cannot be. */
int nvme_up(struct kvtierd *d, char *text, size_t n);
bool nvme_up_starting(const struct kvtierd *d); /* records are still being found */
/* Runs the loop until the records are found, for at most patience_ns, and logs how many there are.
 * -errno: the loop failed. */
int nvme_up_find(struct kvtierd *d, uint64_t patience_ns);

/* No disk has anything in its hands: nvme_down() is possible. */
bool nvme_up_idle(const struct kvtierd *d);
/* A disk has something in its hands that it will end, as far as is known. */
bool nvme_up_moving(const struct kvtierd *d);
void nvme_down(struct kvtierd *d);

#endif
