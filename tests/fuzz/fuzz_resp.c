/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_resp.c - goal: resp_skip() ends at the same byte with the same verdict however a server's
 * bytes are cut, reads nothing beyond the given bytes, keeps less than a line back, and agrees with
 * a naive parser. Of RESP2 it accepts only bytes that hiredis takes as exactly one reply.
 * Method: replies of random trees, with random bytes, numbers at the edges, splices and cuts; each
 * piece in memory of its own of the exact size. Seed printed ($SEED sets it, $FUZZ_RUNS how many,
 * 40,000). With -DKVTIER_LIBFUZZER the same under libFuzzer. Worth most with SAN=address,undefined.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "tiers/redis/conn/resp.h"
#include "tests/lib/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct outcome {
	int verdict;
	size_t used;
};

/* --- a second opinion: all of it at once, by recursion --- */

struct naive {
	const char *text;
	size_t n, at; /* at: behind the last line or body that was good */
	uint64_t elements;
	bool resp3;
};

/* As printf writes it, and from min to max. */
static bool naive_number(const char *text, size_t n, long long min, long long max, long long *ret)
{
	char copy[32], again[32];

	if (n == 0 || n >= sizeof(copy))
		return false;
	memcpy(copy, text, n);
	copy[n] = 0;
	*ret = strtoll(copy, NULL, 10);
	(void)snprintf(again, sizeof(again), "%lld", *ret);
	return strlen(copy) == n && strcmp(copy, again) == 0 && *ret >= min && *ret <= max;
}

/* 1: the line of `max` bytes at most has *ret bytes between kind and CR LF. */
static int naive_line(const struct naive *v, size_t max, size_t *ret)
{
	for (size_t i = v->at; i < v->n && i - v->at < max; i++) {
		if (v->text[i] == '\n')
			return -EPROTO;
		if (v->text[i] != '\r')
			continue;
		if (i - v->at + 2 > max)
			return -EPROTO;
		if (i + 1 == v->n)
			return 0;
		*ret = i - v->at - 1;
		return v->text[i + 1] == '\n' ? 1 : -EPROTO;
	}
	return v->n - v->at >= max ? -EPROTO : 0;
}

static int naive_body(struct naive *v, long long bytes)
{
	for (long long i = 0; i < bytes + 2; i++, v->at++) {
		if (v->at == v->n)
			return 0;
		if (i >= bytes && v->text[v->at] != "\r\n"[i - bytes])
			return -EPROTO;
	}
	return 1;
}

static int naive_element(struct naive *v, unsigned int depth);

static int naive_elements(struct naive *v, unsigned int depth, long long n)
{
	int r = 1;

	for (long long i = 0; r == 1 && i < n; i++)
		r = naive_element(v, depth + 1);
	return r;
}

/* A value that begins with a count; line: its bytes between kind and CR LF. */
static int naive_aggregate(struct naive *v, unsigned int depth, size_t line)
{
	const char kind = v->text[v->at];
	const bool pairs = kind == '%' || kind == '|';
	long long count;

	if (!naive_number(v->text + v->at + 1, line, kind == '*' ? -1 : 0,
			  RESP_ELEMENTS / (pairs ? 2 : 1), &count))
		return -EPROTO;
	count = count < 0 ? 0 : pairs ? 2 * count : count;
	if (depth == RESP_DEPTH || v->elements + 1 + (uint64_t)count > RESP_ELEMENTS)
		return -EPROTO;
	v->elements++;
	v->at += line + 3;
	return naive_elements(v, depth, count);
}

static int naive_bulk(struct naive *v, size_t line)
{
	long long bytes;

	if (!naive_number(v->text + v->at + 1, line, v->text[v->at] == '$' ? -1 : 0,
			  (long long)RESP_BULK_BYTES, &bytes))
		return -EPROTO;
	v->elements++;
	v->at += line + 3;
	return bytes < 0 ? 1 : naive_body(v, bytes);
}

/* One of which the line is all. */
static int naive_scalar(struct naive *v, size_t line)
{
	const char kind = v->text[v->at], *text = v->text + v->at + 1;
	long long ignored;

	if ((kind == ':' && !naive_number(text, line, INT64_MIN, INT64_MAX, &ignored)) ||
	    (kind == '_' && line != 0) ||
	    (kind == '#' && (line != 1 || (*text != 't' && *text != 'f'))))
		return -EPROTO;
	v->elements++;
	v->at += line + 3;
	return 1;
}

static int naive_line_and_more(struct naive *v, unsigned int depth)
{
	const char kind = v->text[v->at];
	size_t line;
	int r;

	if (!kind || !strchr("+-:$*_#,(!=%~>|", kind))
		return -EPROTO;
	r = naive_line(v, strchr("+-,(", kind) ? RESP_LINE_BYTES : 23, &line);
	if (r <= 0)
		return r;
	v->resp3 |= strchr("+-:$*", kind) == NULL;
	if (strchr("*%~>|", kind))
		return naive_aggregate(v, depth, line);
	return strchr("$!=", kind) ? naive_bulk(v, line) : naive_scalar(v, line);
}

static int naive_element(struct naive *v, unsigned int depth)
{
	bool attribute;
	int r;

	do { /* an attribute is followed by the value that it describes */
		if (v->at == v->n)
			return 0;
		attribute = v->text[v->at] == '|';
		r = naive_line_and_more(v, depth);
	} while (r == 1 && attribute);
	return r;
}

/* --- properties --- */

/* In memory of the exact size, so that a sanitizer sees one byte too far. */
static int skip_piece(struct resp_skip *s, const char *bytes, size_t n, size_t *ret_used)
{
	char *piece = malloc(n ? n : 1);
	int r;

	assert(piece);
	memcpy(piece, bytes, n);
	r = resp_skip(s, piece, n, ret_used);
	free(piece);
	assert(*ret_used <= n);
	assert(r == 1 || r == 0 || r == -EPROTO);
	assert(r != 0 || n - *ret_used < RESP_LINE_BYTES);
	return r;
}

/* In pieces of 1 to max bytes. */
static struct outcome in_pieces(struct resp_skip *s, const char *text, size_t n, size_t max,
				struct random *random)
{
	struct outcome o = { 0, 0 };

	for (size_t have = 0; o.verdict == 0 && have < n;) {
		const size_t more = 1 + random_next(random) % max;
		size_t used;

		have = n - have > more ? have + more : n;
		o.verdict = skip_piece(s, text + o.used, have - o.used, &used);
		o.used += used;
	}
	return o;
}

/* hiredis has one reply at the last of these bytes, and none before. */
static void check_hiredis(const char *text, size_t n)
{
	redisReader *reader = redisReaderCreate();
	void *reply = NULL;

	assert(reader);
	assert(redisReaderFeed(reader, text, n - 1) == REDIS_OK);
	assert(redisReaderGetReply(reader, &reply) == REDIS_OK && !reply);
	assert(redisReaderFeed(reader, text + n - 1, 1) == REDIS_OK);
	assert(redisReaderGetReply(reader, &reply) == REDIS_OK && reply);
	assert(reader->pos == reader->len);
	freeReplyObject(reply);
	redisReaderFree(reader);
}

/* A bulk of which a reader took some of the body itself, and leaves the rest to resp_skip(). */
static void check_middle(const char *text, size_t n, struct random *random)
{
	struct resp_line line;
	struct resp_skip s;
	struct outcome o;
	uint64_t taken;

	if (resp_line(text, n, &line) != 1 || line.kind != RESP_BULK)
		return;
	taken = random_next(random) % (line.count + 2);
	resp_skip_body(&s, line.count + 2 - taken);
	o = in_pieces(&s, text + line.bytes + taken, n - line.bytes - (size_t)taken, 64, random);
	assert(o.verdict == 1 && o.used == line.count + 2 - taken);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct random random = { .state = size }; /* the cuts: the same for the same input */
	struct naive naive = { .text = (const char *)data, .n = size };
	const size_t most[] = { 1, 2, 7, 100 };
	const int verdict = naive_element(&naive, 0);
	struct resp_skip s;
	size_t used;

	resp_skip_begin(&s);
	assert(skip_piece(&s, naive.text, size, &used) == verdict && used == naive.at);
	for (size_t i = 0; i < sizeof(most) / sizeof(*most); i++) {
		struct outcome o;

		resp_skip_begin(&s);
		o = in_pieces(&s, naive.text, size, most[i], &random);
		assert(o.verdict == verdict && o.used == naive.at);
	}
	if (verdict == 1) {
		if (!naive.resp3)
			check_hiredis(naive.text, naive.at);
		check_middle(naive.text, naive.at, &random);
	}
	return 0;
}

#ifndef KVTIER_LIBFUZZER

enum { MAX_REPLY = 16384, MAX_NUMBER = 40 };

struct text {
	char bytes[MAX_REPLY];
	size_t n;
};

static void put(struct text *t, const void *bytes, size_t n)
{
	if (n > MAX_REPLY - t->n)
		n = MAX_REPLY - t->n;
	memcpy(t->bytes + t->n, bytes, n);
	t->n += n;
}

static void put_line(struct text *t, char kind, long long number)
{
	char line[MAX_NUMBER];

	put(t, line, (size_t)snprintf(line, sizeof(line), "%c%lld\r\n", kind, number));
}

/* Numbers at which arithmetic, or a limit, goes wrong. */
static long long edge(struct random *random)
{
	static const uint64_t limits[] = { 0, RESP_ELEMENTS, RESP_ELEMENTS / 2, RESP_BULK_BYTES,
					   1ull << 63 };

	if (random_below(random, 2))
		return (long long)(limits[random_below(random, 5)] + random_below(random, 3) - 1);
	return (long long)(random_next(random) >> random_below(random, 64));
}

static void put_element(struct text *t, struct random *random, unsigned int depth, bool resp3);

static void put_aggregate(struct text *t, struct random *random, char kind, unsigned int depth,
			  bool resp3)
{
	const uint32_t count = depth > RESP_DEPTH + 1 ? 0 : random_below(random, 4);

	put_line(t, kind, count);
	for (uint32_t i = 0; i < (kind == '%' || kind == '|' ? 2 * count : count); i++)
		put_element(t, random, depth + 1, resp3);
	if (kind == '|')
		put_element(t, random, depth, random_below(random, 2));
}

static void put_bulk(struct text *t, struct random *random, char kind)
{
	const uint32_t n = random_below(random, random_below(random, 8) ? 5 : 100);

	put_line(t, kind, n);
	for (uint32_t i = 0; i < n; i++)
		put(t, &"\r\n$*a0:"[random_below(random, 7)], 1);
	put(t, "\r\n", 2);
}

static void put_scalar(struct text *t, struct random *random, char kind)
{
	static const char text[] = "txERR no", truth[] = "tf";

	put(t, &kind, 1);
	if (kind == '#')
		put(t, truth + random_below(random, 2), 1);
	else if (kind != '_')
		put(t, text, random_below(random, sizeof(text)));
	put(t, "\r\n", 2);
}

static void put_element(struct text *t, struct random *random, unsigned int depth, bool resp3)
{
	static const char kinds[] = "+-:$$$***_#,(!=%~>|"; /* RESP2's first */
	const char kind = kinds[random_below(random, resp3 ? sizeof(kinds) - 1 : 9)];

	if (strchr("*$", kind) && random_below(random, 8) == 0)
		put_line(t, kind, -1);
	else if (strchr("*%~>|", kind))
		put_aggregate(t, random, kind, depth, resp3);
	else if (strchr("$!=", kind))
		put_bulk(t, random, kind);
	else if (kind == ':')
		put_line(t, kind, edge(random));
	else
		put_scalar(t, random, kind);
}

/* Overwrites from `at` on, as far as there is something. */
static void overwrite(struct text *t, size_t at, const char *bytes, size_t n)
{
	memcpy(t->bytes + at, bytes, n < t->n - at ? n : t->n - at);
}

static void mutate(struct text *t, struct random *random)
{
	for (uint32_t i = random_below(random, 3); i > 0 && t->n > 0; i--) {
		const size_t at = random_below(random, (uint32_t)t->n);
		char number[MAX_NUMBER];

		switch (random_below(random, 5)) {
		case 0:
			t->bytes[at] = (char)random_next(random);
			break;
		case 1:
			t->bytes[at] = "+-:$*_#,(!=%~>|\r\n0129?"[random_below(random, 22)];
			break;
		case 2:
			overwrite(t, at, number,
				  (size_t)snprintf(number, sizeof(number), "%lld\r\n",
						   edge(random)));
			break;
		case 3:
			t->n = at;
			break;
		default: /* splice: bytes from far behind come here */
			memmove(t->bytes + at, t->bytes + (at + t->n) / 2, t->n - (at + t->n) / 2);
		}
	}
}

/* Lines about as long as the longest, and things nested about as deep as may be. */
static void put_extreme(struct text *t, struct random *random)
{
	const uint32_t deep = RESP_DEPTH - 2 + random_below(random, 4);

	for (uint32_t i = 0; i < deep; i++)
		put_line(t, "*~>"[random_below(random, 2) ? 0 : random_below(random, 3)], 1);
	put(t, "-", 1);
	for (uint32_t i = RESP_LINE_BYTES - 6 + random_below(random, 8); i > 0; i--)
		put(t, "x", 1);
	put(t, "\r\n", 2);
}

int main(void)
{
	const uint64_t n = env_number("FUZZ_RUNS", 40000);
	struct random random = random_seeded("fuzz_resp");
	static struct text t;

	for (uint64_t i = 0; i < n; i++) {
		t.n = 0;
		if (random_below(&random, 200) == 0)
			put_extreme(&t, &random);
		else
			put_element(&t, &random, 0, random_below(&random, 2));
		put_element(&t, &random, 8, true); /* the next reply */
		mutate(&t, &random);
		(void)LLVMFuzzerTestOneInput((const uint8_t *)t.bytes, t.n);
	}
	return 0;
}
#endif
