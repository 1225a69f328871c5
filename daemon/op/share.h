/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.h - a process's share of the parts, of host memory in flight, and of the host memory that
 * is guaranteed to its open spaces: so that one process's haste is not another's loss, on however
 * many connections. Core thread only. See share.c.
 */
#ifndef KVTIER_SHARE_H
#define KVTIER_SHARE_H

#include <stdbool.h>
#include <stdint.h>

struct client;
struct ops;
struct part;
struct peer;
struct op;
struct shares;

int shares_open(struct shares **ret);
void shares_close(struct shares *shares); /* NULL is fine */

/* The process is at its share of the parts: no block of it is begun now. */
bool share_of_parts_is_used(const struct ops *ops, const struct peer *peer);
/* Likewise of host memory, as far as this op's next block goes. It may when a part of the process
 * has ended. */
bool share_of_memory_is_used(const struct ops *ops, const struct op *q);

/* Likewise of the jobs that a device holds until a client has given it more layers: half of the
 * process's parts and of the device's jobs at most. So its loads go on: the layers may wait
 * for them. */
bool share_of_waiting_is_used(const struct op *q);

/* op.c tells when ops and blocks begin and end. */
void share_op_started(struct ops *ops, const struct op *q);
void share_client_cut(struct client *client); /* it begins no op any more */
void share_op_ended(struct ops *ops, struct op *q);
void share_part_begun(struct ops *ops, struct part *part);
void share_part_ended(struct ops *ops, struct part *part);

/* Bytes of host memory by space number that only their own space takes (place_may_take()), and the
 * part of all numbers of blocks (copies_enter()). */
const uint64_t *share_guaranteed(struct ops *ops);

#endif
