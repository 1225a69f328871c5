/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the steps of a block that is stored (task.h), for task.c. Core thread only.
 */
#ifndef KVTIER_STORE_H
#define KVTIER_STORE_H

#include <stdbool.h>

#include "task.h"

struct op;
struct task;

enum step store_admit(struct task *task);
enum step store_place(struct task *task);
enum step store_encode(struct task *task);
enum step store_commit(struct task *task);
/* Whether no block of the op may begin now, since as many jobs of its process wait for layers in
 * the device as may. */
bool store_must_wait(const struct op *op);

#endif
