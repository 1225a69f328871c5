/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turn.h - ops with blocks to begin, in the order in which they get their turn: processes one after
 * another, one block a turn, and so the ops of each process. Core thread only.
 *
 * So neither a long op nor many of them, on however many connections, delay another process's by
 * more than the blocks already in flight.
 */
#ifndef KVTIER_TURN_H
#define KVTIER_TURN_H

#include <stdbool.h>

struct op;
struct ops;
struct peer;

void turn_open(struct ops *ops);
void turn_add(struct op *op);    /* at the end of its process's queue; in none before */
void turn_remove(struct op *op); /* in none: nothing happens */
/* there is an op that was not passed over since turn_look_again() */
bool turn_any(const struct ops *ops);
struct peer *turn_peer(const struct ops *ops); /* whose turn it is; turn_any() */
struct op *turn_op(const struct ops *ops);     /* its first op */
/* its first op leaves the queue; the process goes to the end */
struct op *turn_take(struct ops *ops);
/* none of its ops may begin a block now; it goes to the end */
void turn_pass_peer(struct ops *ops);
/* this op may not: it goes to the end of its process's queue */
void turn_pass(struct op *op);
/* something began or ended: ops that were passed over may go on */
void turn_look_again(struct ops *ops);

#endif
