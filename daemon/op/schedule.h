/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.h - decides which op begins its next block. Processes take turns, one block each, and so
 * do the ops of a process. It also limits the parts and the host memory of a process
 * (daemon/quota/tbl_quota.h). So a long op, or many ops on any number of connections, delay the ops
 * of another process by no more than the blocks already in flight. Core thread only. See
 * schedule.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;
struct op;
struct ops;
struct part;
struct peer;

void schedule_open(struct ops *ops);

/* --- who is next --- */

void schedule_add(struct op *op);    /* puts it last in its process's queue; it was in no queue */
void schedule_remove(struct op *op); /* the op may be in no queue */
/* A part is free, and an op was not passed over since schedule_look_again(). */
bool schedule_may_begin(const struct ops *ops);
/* The first op of the process that is next leaves the queue. NULL: the process has as many
 * parts as it may, and its ops were passed over. Either way the process is last from now on. */
struct op *schedule_take(struct ops *ops);
/* This op may begin no block now: it is the last of its process's queue. */
void schedule_pass(struct op *op);
/* A block began or ended: ops that were passed over may go on. */
void schedule_look_again(struct ops *ops);

/* --- how much a process may have --- */

/* The process has as many parts as it may: no block of it is begun now. */
bool schedule_parts_used(const struct ops *ops, const struct peer *peer);
/* With this op's next block, the process would have more host memory in flight than it may. The op
 * may go on when a part of the process has ended. */
bool schedule_memory_used(const struct ops *ops, const struct op *q);
/* The process has as many jobs that wait for layers in a device as it may: half of its parts, and
 * half of the device's jobs. The other half is left to its loads, which the layers may be waiting
 * for. */
bool schedule_waiting_used(const struct op *q);

/* op.c tells when ops and blocks begin and end. */
void schedule_op_started(struct ops *ops, const struct op *q);
void schedule_client_cut(struct client *client); /* it begins no op any more */
void schedule_op_ended(struct ops *ops, struct op *q);
void schedule_part_begun(struct ops *ops, struct part *part);
void schedule_part_ended(struct ops *ops, struct part *part);

/* Computes the guarantees of spaces (counts_guarantee()) anew, if that is due. */
void schedule_guarantee(struct ops *ops);
