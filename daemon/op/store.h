/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the steps of a block that is stored (step.h), for step.c. Core thread only.
 */
#ifndef KVTIER_OP_STORE_H
#define KVTIER_OP_STORE_H

#include <stdbool.h>

#include "step.h"

struct op;
struct walker;

enum step store_admit(struct walker *w);
enum step store_place(struct walker *w);
enum step store_encode(struct walker *w);
enum step store_commit(struct walker *w);
/* Its device waits for layers, and for as many of its process as it may: no block begins now. */
bool store_must_wait(const struct op *op);

#endif
