/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pump.h - once a turn of the loop, ready parts run, and blocks are begun. Core thread only.
 */
#ifndef KVTIER_PUMP_H
#define KVTIER_PUMP_H

#include <stdbool.h>

struct ops;

void pump_start(struct ops *ops);
void pump_stop(struct ops *ops); /* NULL is fine */

#endif
