/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.c - see json.h.
 */
#include "json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "log.h"

void json_start(struct json *json, char *text, size_t n)
{
	assert(n > 0);
	*json = (struct json){ .text = text, .room = n - 1 };
	text[0] = '\0';
}

void json_print(struct json *json, const char *format, ...)
{
	const size_t left = json->room - json->used;
	va_list args;
	int length;

	if (json->full)
		return;
	va_start(args, format);
	length = vsnprintf(json->text + json->used, left + 1, format, args);
	va_end(args);
	if (length < 0 || (size_t)length > left)
		json->full = true;
	else
		json->used += (size_t)length;
}

/* Text of some bytes, and no format: rows of lists are made of many. */
static void put(struct json *json, const char *text, size_t n)
{
	if (json->full)
		return;
	if (n > json->room - json->used) {
		json->full = true;
		return;
	}
	memcpy(json->text + json->used, text, n);
	json->used += n;
	json->text[json->used] = '\0';
}

void json_string(struct json *json, const char *text)
{
	put(json, "\"", 1);
	while (*text != '\0') {
		const size_t length = log_printable(text);

		if (*text == '"' || *text == '\\')
			json_print(json, "\\%c", *text);
		else if (length > 0)
			put(json, text, length);
		else
			json_print(json, "\\u%04x",
				   (unsigned char)*text < 0x80 ? (unsigned char)*text : 0xfffd);
		text += length > 0 ? length : 1;
	}
	put(json, "\"", 1);
}

void json_member(struct json *json, const char *name)
{
	const bool first = json->used > 0 && json->text[json->used - 1] == '{';

	put(json, first ? "\"" : ",\"", first ? 1 : 2);
	put(json, name, strlen(name));
	put(json, "\":", 2);
}

void json_text(struct json *json, const char *name, const char *value)
{
	json_member(json, name);
	json_string(json, value);
}

void json_number(struct json *json, const char *name, uint64_t value)
{
	json_member(json, name);
	json_print(json, "%" PRIu64, value);
}

void json_bool(struct json *json, const char *name, bool value)
{
	json_member(json, name);
	put(json, value ? "true" : "false", value ? 4 : 5);
}

void json_hex(struct json *json, const char *name, const uint8_t *bytes, size_t n)
{
	static const char digits[] = "0123456789abcdef";

	json_member(json, name);
	put(json, "\"", 1);
	for (size_t i = 0; i < n; i++) {
		put(json, &digits[bytes[i] >> 4], 1);
		put(json, &digits[bytes[i] & 15], 1);
	}
	put(json, "\"", 1);
}

void json_rewind(struct json *json, size_t used)
{
	assert(used <= json->used);
	json->used = used;
	json->full = false;
	json->text[used] = '\0';
}
