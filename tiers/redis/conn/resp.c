/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resp.c - framing of the Redis protocol. Contract: resp.h. Source: Redis serialization protocol
 * specification (RESP2, RESP3). Numbers are taken as Redis writes them and hiredis accepts them: no
 * plus, no leading zero, no -0; so hiredis parses every reply that passes here, too.
 */
#include "resp.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

enum { NUMBER_LINE_BYTES = 1 + 20 + 2 }; /* kind, sign and 19 digits, CR LF */

/* The bytes between an element's kind and its CR LF. */
enum content {
	CONTENT_TEXT,
	CONTENT_NUMBER,
	CONTENT_LENGTH, /* of a body that follows */
	CONTENT_COUNT,  /* of elements that follow */
	CONTENT_PAIRS,
	CONTENT_TRUTH,
	CONTENT_NOTHING,
	CONTENT_WRONG,
};

static enum content content_of(uint8_t kind)
{
	switch (kind) {
	case RESP_SIMPLE:
	case RESP_ERROR:
	case RESP_DOUBLE:
	case RESP_BIG:
		return CONTENT_TEXT;
	case RESP_INTEGER:
		return CONTENT_NUMBER;
	case RESP_BULK:
	case RESP_BULK_ERROR:
	case RESP_VERBATIM:
		return CONTENT_LENGTH;
	case RESP_ARRAY:
	case RESP_SET:
	case RESP_PUSH:
		return CONTENT_COUNT;
	case RESP_MAP:
	case RESP_ATTRIBUTE:
		return CONTENT_PAIRS;
	case RESP_BOOL:
		return CONTENT_TRUTH;
	case RESP_NIL:
		return CONTENT_NOTHING;
	default:
		return CONTENT_WRONG;
	}
}

/* 1: the line's first CR LF begins at *ret. 0: not there yet. A CR or LF alone is -EPROTO, as is a
 * line beyond max. */
static int line_end(const char *line, size_t n, size_t max, uint32_t *ret)
{
	const size_t window = n < max ? n : max;
	const char *cr = memchr(line, '\r', window);

	if (memchr(line, '\n', cr ? (size_t)(cr - line) : window))
		return -EPROTO;
	if (!cr || cr + 1 == line + window)
		return window == max ? -EPROTO : 0;
	if (cr[1] != '\n')
		return -EPROTO;
	*ret = (uint32_t)(cr - line);
	return 1;
}

static bool decimal(const char *text, size_t n, int64_t *ret)
{
	const bool negative = n > 0 && text[0] == '-';
	const char *digits = text + negative;
	int64_t value = 0; /* at or below 0, because the negative numbers reach further */

	n -= negative;
	if (n == 0 || (digits[0] == '0' && (n > 1 || negative)))
		return false;
	for (size_t i = 0; i < n; i++)
		if (digits[i] < '0' || digits[i] > '9' ||
		    __builtin_mul_overflow(value, 10, &value) ||
		    __builtin_sub_overflow(value, digits[i] - '0', &value))
			return false;
	if (!negative && value == INT64_MIN)
		return false;
	*ret = negative ? value : -value;
	return true;
}

/* A length or count goes to line->count. -1 is a nil, which RESP2 has in two kinds. */
static int take_count(struct resp_line *line, uint64_t max, uint32_t factor)
{
	int64_t value;

	if (!decimal(line->text, line->text_bytes, &value))
		return -EPROTO;
	if (value == -1 && (line->kind == RESP_BULK || line->kind == RESP_ARRAY)) {
		line->kind = RESP_NIL;
		return 1;
	}
	if (value < 0 || (uint64_t)value > max / factor)
		return -EPROTO;
	line->count = (uint64_t)value * factor;
	return 1;
}

static int take_truth(struct resp_line *line)
{
	if (line->text_bytes != 1 || (line->text[0] != 't' && line->text[0] != 'f'))
		return -EPROTO;
	line->integer = line->text[0] == 't';
	return 1;
}

static int take_content(struct resp_line *line, enum content content)
{
	switch (content) {
	case CONTENT_TEXT:
		return 1;
	case CONTENT_NUMBER:
		return decimal(line->text, line->text_bytes, &line->integer) ? 1 : -EPROTO;
	case CONTENT_LENGTH:
		return take_count(line, RESP_BULK_BYTES, 1);
	case CONTENT_COUNT:
		return take_count(line, RESP_ELEMENTS, 1);
	case CONTENT_PAIRS:
		return take_count(line, RESP_ELEMENTS, 2);
	case CONTENT_TRUTH:
		return take_truth(line);
	case CONTENT_NOTHING:
		return line->text_bytes == 0 ? 1 : -EPROTO;
	default:
		return -EPROTO;
	}
}

int resp_line(const void *bytes, size_t n, struct resp_line *ret)
{
	const char *p = bytes;
	struct resp_line line = { 0 };
	enum content content;
	uint32_t end = 0;
	int r;

	if (n == 0)
		return 0;
	content = content_of((uint8_t)p[0]);
	if (content == CONTENT_WRONG)
		return -EPROTO;
	r = line_end(p, n, content == CONTENT_TEXT ? RESP_LINE_BYTES : NUMBER_LINE_BYTES, &end);
	if (r <= 0)
		return r;
	line.kind = (enum resp_kind)p[0];
	line.bytes = end + 2;
	line.text = p + 1;
	line.text_bytes = end - 1;
	r = take_content(&line, content);
	if (r == 1)
		*ret = line;
	return r;
}

void resp_skip_begin(struct resp_skip *s)
{
	*s = (struct resp_skip){ 0 };
}

void resp_skip_body(struct resp_skip *s, uint64_t body_left_with_crlf)
{
	assert(body_left_with_crlf > 0);
	resp_skip_begin(s);
	s->body = body_left_with_crlf;
	s->elements = 1;
}

/* An element is complete. So is each aggregate whose last element it was. ret: whether the reply is
 * complete. */
static bool element_ends(struct resp_skip *s)
{
	while (s->depth > 0) {
		const uint32_t top = s->depth - 1;

		if (--s->left[top] > 0)
			return false;
		s->depth = top;
		if (s->attribute[top])
			/* an attribute is no element: the element that it describes comes now */
			return false;
	}
	return true;
}

/* 1: the element ends with the body. *ret_used is set in any case. */
static int skip_body(struct resp_skip *s, const char *p, size_t n, size_t *ret_used)
{
	const uint64_t inner = s->body > 2 ? s->body - 2 : 0;
	size_t used = inner < n ? (size_t)inner : n;

	s->body -= used;
	for (; used < n && s->body > 0; used++, s->body--)
		if (p[used] != (s->body == 2 ? '\r' : '\n')) {
			*ret_used = used;
			return -EPROTO;
		}
	*ret_used = used;
	return s->body == 0;
}

/* 1: the aggregate is empty, and so complete. */
static int open_aggregate(struct resp_skip *s, const struct resp_line *line)
{
	if (s->depth == RESP_DEPTH || line->count > RESP_ELEMENTS - s->elements)
		return -EPROTO;
	if (line->kind == RESP_NIL)
		return 1;
	if (line->count == 0)
		return line->kind != RESP_ATTRIBUTE;
	s->left[s->depth] = line->count;
	s->attribute[s->depth] = line->kind == RESP_ATTRIBUTE;
	s->depth++;
	return 0;
}

/* 1: the element ends with its line. 0: a body or elements follow. */
static int begin_element(struct resp_skip *s, uint8_t kind, const struct resp_line *line)
{
	if (s->elements == RESP_ELEMENTS)
		return -EPROTO;
	s->elements++;
	/* not line->kind: hiredis refuses a "*-1", too, that is nested too deep */
	switch (content_of(kind)) {
	case CONTENT_COUNT:
	case CONTENT_PAIRS:
		return open_aggregate(s, line);
	case CONTENT_LENGTH:
		s->body = line->kind == RESP_NIL ? 0 : line->count + 2;
		return s->body == 0;
	default:
		return 1;
	}
}

/* The same; 0 with nothing used: the line is not complete. */
static int skip_line(struct resp_skip *s, const char *p, size_t n, size_t *ret_used)
{
	struct resp_line line;
	int r = resp_line(p, n, &line);

	*ret_used = 0;
	if (r <= 0)
		return r;
	r = begin_element(s, (uint8_t)p[0], &line);
	if (r >= 0)
		*ret_used = line.bytes;
	return r;
}

int resp_skip(struct resp_skip *s, const void *bytes, size_t n, size_t *ret_used)
{
	const char *p = bytes;

	*ret_used = 0;
	while (*ret_used < n) {
		size_t used;
		const int r = s->body > 0 ? skip_body(s, p + *ret_used, n - *ret_used, &used) :
					    skip_line(s, p + *ret_used, n - *ret_used, &used);

		*ret_used += used;
		if (r < 0)
			return r;
		if (r == 1 && element_ends(s)) {
			resp_skip_begin(s);
			return 1;
		}
		if (used == 0)
			break;
	}
	return 0;
}
