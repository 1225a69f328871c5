/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resp.h - framing of the Redis protocol (RESP2, and RESP3's types, so that an unexpected one can
 * be stepped over): where a reply begins and ends, with bounds on everything an endpoint can make
 * long. Pure: no I/O, no allocation, any thread. A caller that wants a tree of a small reply feeds
 * the framed bytes to hiredis.
 */
#ifndef KVTIER_RESP_H
#define KVTIER_RESP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	RESP_LINE_BYTES = 4096,  /* of a line with its CR LF: errors, numbers, lengths */
	RESP_DEPTH = 8,          /* nested arrays, maps, sets, pushes, attributes */
	RESP_ELEMENTS = 1 << 20, /* of one reply, nested ones included */
};

/* The value's length of a bulk string: at most this. */
#define RESP_BULK_BYTES ((uint64_t)512 << 20)

enum resp_kind {
	RESP_SIMPLE = '+',
	RESP_ERROR = '-',
	RESP_INTEGER = ':',
	RESP_BULK = '$',
	RESP_ARRAY = '*',
	RESP_NIL = '_',
	RESP_BOOL = '#',
	RESP_DOUBLE = ',',
	RESP_BIG = '(',
	RESP_BULK_ERROR = '!',
	RESP_VERBATIM = '=',
	RESP_MAP = '%',
	RESP_SET = '~',
	RESP_PUSH = '>',
	RESP_ATTRIBUTE = '|',
};

/* The first line of an element. */
struct resp_line {
	enum resp_kind kind; /* "$-1" and "*-1" are RESP_NIL */
	uint32_t bytes;      /* of the line, CR LF included */
	/* BULK, BULK_ERROR, VERBATIM: bytes of the body (CR LF follow it). ARRAY, SET, PUSH:
	 * elements. MAP, ATTRIBUTE: elements, twice the pairs. */
	uint64_t count;
	int64_t integer; /* INTEGER; BOOL: 1 or 0 */
	/* SIMPLE, ERROR...: in the caller's buffer, not terminated */
	const char *text;
	uint32_t text_bytes;
};

/* 1: *ret is set. 0: the line is not complete yet; n is less than RESP_LINE_BYTES then. -EPROTO: it
 * is none, too long (as soon as that shows), has a CR or LF inside or a number that Redis would not
 * write so ("007", "+1", "-0"). Streamed strings and aggregates ("$?", "*?") are -EPROTO. The
 * answer to a prefix of a line, but for 0, is the answer to the line. */
int resp_line(const void *bytes, size_t n, struct resp_line *ret);

/*
 * Steps over one whole reply of any types, which comes in pieces. Attributes before a reply are
 * part of it. A push is a reply of its own, which no command asked for; its first byte tells it.
 * Where the pieces are cut changes nothing. hiredis accepts each reply that is accepted here and
 * has RESP2's types alone. Work: a line that comes in pieces is looked at again with each piece, at
 * most RESP_LINE_BYTES; no other byte is looked at twice, and bodies not at all.
 */
struct resp_skip {
	uint64_t body;     /* bytes of a bulk, with its CR LF, still to come */
	uint64_t elements; /* seen of this reply */
	uint32_t depth;
	uint64_t left[RESP_DEPTH]; /* elements still to come at each level */
	bool attribute[RESP_DEPTH];
};

void resp_skip_begin(struct resp_skip *s);
/* Takes bytes; *ret_used of them are done with. 1: the reply has ended there, and s is as after
 * begin. 0: more is needed; the bytes that are left over (less than RESP_LINE_BYTES) come again,
 * with more behind them. -EPROTO: the fault is at *ret_used, and s is of no use any more. */
int resp_skip(struct resp_skip *s, const void *bytes, size_t n, size_t *ret_used);

/* Begins in the middle of a bulk's body: so many bytes of it and its CR LF are still to come, at
 * least 1. */
void resp_skip_body(struct resp_skip *s, uint64_t body_left_with_crlf);

#endif
