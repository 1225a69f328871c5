/* SPDX-License-Identifier: Apache-2.0 */
/* submit.h - calls about ops. No lock held. */
#ifndef KVTIER_LIB_SUBMIT_H
#define KVTIER_LIB_SUBMIT_H

#include <stdint.h>

struct kvtier_client;

/* As kvtier_cancel(). */
int submit_cancel(struct kvtier_client *c, uint64_t id, uint64_t limit_ns);

#endif
