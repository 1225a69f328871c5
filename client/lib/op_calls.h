/* SPDX-License-Identifier: Apache-2.0 */
/* op_calls.h - what the calls about spaces need of the calls about ops. No lock held. */
#pragma once

#include <stdint.h>

struct kvtier_client;

/* Waits until op `id` is done (0), until limit_ns (-ETIMEDOUT), or finds that there is no such op
 * (-ENOENT). Its result is not taken. */
int op_await(struct kvtier_client *c, uint64_t id, uint64_t limit_ns);
/* kvtier_cancel(), until limit_ns. */
int op_cancel(struct kvtier_client *c, uint64_t id, uint64_t limit_ns);
