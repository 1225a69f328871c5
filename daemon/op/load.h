/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - the steps of a block that is loaded or prefetched (step.h), for pump.c. Core thread
 * only.
 */
#ifndef KVTIER_LOAD_H
#define KVTIER_LOAD_H

#include "step.h"

struct ops;
struct op;
struct part;

enum verdict load_lookup(struct ops *ops, struct part *part);
enum verdict load_bring(struct ops *ops, struct part *part);
enum verdict load_serve(struct ops *ops, struct part *part);
enum verdict load_check(struct ops *ops, struct part *part);
enum verdict load_keep(struct ops *ops, struct part *part);
enum verdict load_end(struct ops *ops, struct part *part);
/* The next block of the op would have to be brought, and too many parts wait for that: so that a
 * disk or server that stalls does not get all of them, and what is in memory is still served. */
bool load_must_wait(const struct op *op);

#endif
