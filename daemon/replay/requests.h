/* SPDX-License-Identifier: Apache-2.0 */
/*
 * requests.h - reads a file of requests that an engine served: of each, the ids of its blocks in
 * order, where equal ids mean equal blocks with equal blocks before them. A line is a JSON object:
 *
 *	Mooncake, Bailian   {"hash_ids":[1,2,3], "input_length":1500, ...}
 *	sessions            {"session":7, "keep":2, "hash_ids":[3], "timestamp":1200, ...}: the
 *	                    first `keep` ids are those of the session's request before it
 *
 * A timestamp is in milliseconds.
 *
 * The file is untrusted. It needs no daemon; one thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct ids; /* requests.c: numbers of the file, and how we number them */

/* When a request came, and its session's next one; 0: there is none. In us; requests come one after
 * the other. */
struct request_times {
	uint64_t at, next;
	uint32_t session; /* numbered from 1 */
};

/* Zeroed, it has no requests. */
struct requests {
	uint32_t *ids; /* of all requests, one after the other; numbered from 0 */
	size_t n_ids, ids_room;
	size_t *ends;                /* of each request in ids */
	struct request_times *times; /* of each request; they count if timed_sessions */
	size_t n_requests, ends_room, times_room;
	bool timed_sessions;   /* all requests have a session and a timestamp */
	uint32_t unique;       /* ids are < unique */
	uint32_t block_tokens; /* as the lengths say; 0: the file has none */
	/* of the reader */
	size_t longest;
	struct ids *numbers, *sessions;
	size_t *latest; /* of each session: its last request + 1 */
};

/* Adds the request of one line. 0; -EINVAL with a sentence; -ENOMEM. */
int requests_add_line(struct requests *r, const char *line, char *text, size_t n);
/* Reads all lines; the errors are the same, and text names the line. told: is called now and then
 * with the bytes that were read; may be NULL. */
int requests_read(struct requests *r, FILE *in, void (*told)(void *arg, uint64_t bytes), void *arg,
		  char *text, size_t n);
void requests_free(struct requests *r);
