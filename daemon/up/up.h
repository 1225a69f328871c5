/* SPDX-License-Identifier: Apache-2.0 */
/*
 * up.h - brings the NVMe and the Redis tier up at the start, with the queues of what is written to
 * them, and takes them down at the end. Core thread only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvtierd;
struct redis_tier_conf;

/* Opens [nvme], unless [nvme] bytes is 0. A disk in trouble is no error: the daemon serves without
 * it, and status says why. -errno: this configuration is not possible, and text (>= 512 bytes)
 * names the option. */
int nvme_up(struct kvtierd *d, char *text, size_t n);
bool nvme_up_starting(const struct kvtierd *d); /* records are still being found */
/* Runs the loop until the records are found, for at most patience_ns, and logs how many there are.
 * -errno: the loop failed. */
int nvme_up_find(struct kvtierd *d, uint64_t patience_ns);

/* No disk has an I/O of ours, and no block is being written: nvme_down() is possible. */
bool nvme_up_idle(const struct kvtierd *d);
/* A disk has I/Os of ours, and will end them, as far as is known. */
bool nvme_up_moving(const struct kvtierd *d);
void nvme_down(struct kvtierd *d);

/* Opens the tier and the outbox, if `conf` (config_redis.h) names an endpoint. An endpoint that
 * does not answer is no error. -errno: this configuration is not possible, and text (>= 512 bytes)
 * names the option. */
int redis_up(struct kvtierd *d, struct redis_tier_conf *conf, char *text, size_t n);
/* Drops queued blocks, ends transfers that are on their way with -ECANCELED, and closes both. No op
 * is outstanding; the host tier is still open. */
void redis_down(struct kvtierd *d);
