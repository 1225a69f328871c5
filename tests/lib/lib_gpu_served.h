/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_gpu_served.h - a daemon, the first GPU, and an engine with pages there: what cases of a
 * program have, each of them anew.
 */
#pragma once

#include "lib_gpu_engine.h"

extern struct daemon d;
extern struct gpu gpu;
extern struct gpu_engine ge;
extern CUstream engine_stream;
extern struct gpu_gate gate; /* in front of the engine's stream; it is open */

/* A daemon with this configuration (NULL: the case has started it), and an engine, whose pages are
 * reached as `words` say. */
void gpu_served_begin(const char *config, const struct kvtier_geometry *geometry, uint32_t pages,
		      enum gpu_memory_kind kind, const char *words);
void gpu_served_close(void);
/* The same, as the end of a case: the driver's report has no complaint. */
int gpu_served_end(void **state);

/* Ops of pages first.., as they are, with these options (NULL: none). Their results. */
uint64_t gpu_store_op(const struct kvtier_key *keys, uint32_t first, uint32_t n,
		      const struct kvtier_op *o);
uint64_t gpu_load_op(const struct kvtier_key *keys, uint32_t first, uint32_t n,
		     const struct kvtier_op *o);
struct kvtier_result gpu_op_result(uint64_t op);
/* The first pages have these blocks, in the engine's copy on the host. */
void gpu_pages_are(const struct kvtier_key *keys, uint32_t n);
