/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storage.h - brings the NVMe tier up from the configuration, and takes it down. Core thread only.
 */
#ifndef KVTIER_STORAGE_H
#define KVTIER_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvtierd;

/* Opens [nvme], or does nothing where bytes is 0. What is wrong with a disk is not an error here: the daemon serves
 * without it, and status says why. -errno with text: the configuration cannot be. */
int  storage_open(struct kvtierd *d, char *text, size_t n);
bool storage_starting(const struct kvtierd *d);		/* records are still being found */
/* Runs the loop until they are, at most so long, and logs what there is. -errno: the loop failed. */
int  storage_find(struct kvtierd *d, uint64_t patience_ns);

/* What a disk in trouble was given before is synced only when it is back: a flush waits for it. One that is out for
 * good, or was never up, has nothing of ours. */
bool storage_answers(const struct kvtierd *d);
uint32_t storage_budget_percent(const struct kvtierd *d);	/* left of the write budget's reserve; 100: there is none */

/* At a clean stop, when no op is left: writes what is only in memory, up to [nvme] drain_us. Then `done` runs, once,
 * from the loop. */
void storage_drain(struct kvtierd *d, void (*done)(void *arg), void *arg);
bool storage_idle(const struct kvtierd *d);	/* nothing is in the hands of a disk: storage_close() is possible */
void storage_close(struct kvtierd *d);

#endif
