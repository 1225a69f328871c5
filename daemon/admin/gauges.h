/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gauges.h - puts the present state of the daemon into the stats page. Core thread only.
 */
#pragma once

struct kvtierd;

/* all gauges, and the health bits that follow from them; every heartbeat */
void gauges_sync(struct kvtierd *d);
