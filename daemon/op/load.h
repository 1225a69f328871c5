/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - the steps of a block that is loaded or prefetched (step.h), for step.c. Core thread
 * only.
 */
#ifndef KVTIER_LOAD_H
#define KVTIER_LOAD_H

#include "step.h"

struct op;
struct walker;

enum step load_lookup(struct walker *w);
enum step load_bring(struct walker *w);
enum step load_serve(struct walker *w);
enum step load_check(struct walker *w);
enum step load_keep(struct walker *w);
enum step load_end(struct walker *w);
/* The next block of the op would have to be brought, and too many parts wait for that: so that a
 * disk or endpoint that stalls does not get all of them, and blocks in memory are still served. */
bool load_must_wait(const struct op *op);

#endif
