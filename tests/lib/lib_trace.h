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
	uint32_t *ends;		/* of each request in ids */
	size_t n_requests;
	uint32_t unique;	/* ids are < unique */
};

bool trace_read(const char *path, struct trace *ret);	/* false: no such file, or path is NULL */
void trace_free(struct trace *trace);

#endif
