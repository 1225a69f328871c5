/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the steps of a block that is stored (step.h), for pump.c. Core thread only.
 */
#ifndef KVTIER_OP_STORE_H
#define KVTIER_OP_STORE_H

#include "step.h"

struct ops;
struct part;

enum verdict store_admit(struct ops *ops, struct part *part);
enum verdict store_place(struct ops *ops, struct part *part);
enum verdict store_encode(struct ops *ops, struct part *part);
enum verdict store_commit(struct ops *ops, struct part *part);

#endif
