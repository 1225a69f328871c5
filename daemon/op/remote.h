/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.h - the Redis tier as the daemon sees it: opened and closed here, read by loads and prefetches (remote.c),
 * written behind stores or evictions (outbox.c). Core thread only.
 */
#ifndef KVTIER_REMOTE_H
#define KVTIER_REMOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/store/mover.h"

struct kvtierd;
struct outbox;
struct redis_tier_conf;

/* What [redis] asks for (config_redis.h); nothing where it names no endpoint. text says what is wrong. */
int  remote_open(struct kvtierd *d, struct redis_tier_conf *conf, char *text, size_t n);
/* Transfers on their way end first. No op is outstanding, the host tier is still open. */
void remote_close(struct kvtierd *d);

/* The first part of what the daemon asks of Redis is one xfer a part and these. */
enum { OUTBOX_WRITES = 32 };

int  outbox_open(struct kvtierd *d, struct outbox **ret);	/* -ENOMEM */
void outbox_stop(struct outbox *o);	/* takes and starts nothing any more. NULL is fine, here and below */
/* At a clean stop, when no op is left or is waited for any more: what is queued is written, up to [redis] drain_us, as
 * far as servers take it; what was not is said in one line and dropped. Then `done` runs, once, here or from the loop,
 * and it is stopped. */
void outbox_drain(struct outbox *o, void (*done)(void *arg), void *arg);
void outbox_close(struct outbox *o);	/* nothing on its way */
/* A block was stored: [redis] write = through puts it in the queue. */
void outbox_add(struct kvtierd *d, uint32_t block);
/* A block leaves host memory (the mover's heir): write = on-evict puts it in the queue, slot and all. */
enum mover_heir outbox_inherit(void *outbox, uint32_t block, const struct extent *slot);
/* Nothing else makes room any more: drops the n oldest that wait with their slots; false: there is none. */
bool outbox_give_back(struct outbox *o, uint32_t n);
void outbox_drop_held(struct outbox *o);	/* a purge: what was inherited is not written any more */
uint32_t outbox_in_flight(const struct outbox *o);
bool outbox_holds(const struct kvtierd *d, uint32_t block);	/* it is leased, being written */

#endif
