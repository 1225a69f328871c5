/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_trace.h - a public trace of requests for replays, read as `kvtierctl replay` does.
 */
#pragma once

#include "daemon/replay/requests.h"
#include "test.h"

/* In a test whose cases need the trace of $KVTIER_TRACE, which is their *state. Without a trace the
 * test is skipped. */
#define TRACE_TEST                          \
	TEST_GROUP(trace_begin, trace_end); \
	TEST_BEGIN                          \
	{                                   \
		trace_needed();             \
	}                                   \
	struct test_macros_end_with_a_semicolon
void trace_needed(void);
int trace_begin(void **state);
int trace_end(void **state);

/* The share of block ids found, with room for so many blocks: blocks in front of the first absent
 * one of a request count. The least recent leaf is evicted (evict.h). */
double trace_lru(const struct requests *t, uint32_t room);

/* A request of n ids, behind those that are there. t begins zeroed. */
void trace_add(struct requests *t, const uint32_t *ids, size_t n);

/* A sample of the trace's keys (policy/reuse.h) says hit rates for half, the same, twice and four
 * times this room. With each of 20 seeds they are those of trace_lru() within two percentage
 * points. */
void trace_assert_sampled(const struct requests *t, uint32_t room);
