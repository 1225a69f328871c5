/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_trace.h - a public trace of requests (JSONL, "hash_ids": the block ids of each) for replays.
 */
#ifndef KVTIER_TESTS_LIB_TRACE_H
#define KVTIER_TESTS_LIB_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Requests as runs in one array of block ids. */
struct trace {
	uint32_t *ids;
	size_t n_ids, room;
	uint32_t *ends; /* of each request in ids */
	size_t n_requests;
	uint32_t unique; /* ids are < unique */
};

bool trace_read(const char *path, struct trace *ret); /* false: no such file, or path is NULL */
void trace_free(struct trace *trace);

/* main() of a test with one case, whose *state is the trace of $KVTIER_TRACE: its exit status, 77
 * without a trace. */
int trace_run(const char *name, void (*test)(void **state));

/* The share of block ids found, with room for so many blocks: blocks in front of the first absent
 * one of a request count. The least recent leaf is evicted (evict.h). */
double trace_lru(const struct trace *t, uint32_t room);

#endif
