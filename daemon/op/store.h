/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the steps of a block that is stored (task.h), for task.c. Core thread only.
 */
#pragma once

#include "task.h"

struct task;

enum step store_admit(struct task *task);
enum step store_place(struct task *task);
enum step store_encode(struct task *task);
enum step store_commit(struct task *task);
