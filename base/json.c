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

void json_string(struct json *json, const char *text)
{
	json_print(json, "\"");
	while (*text != '\0') {
		const size_t length = log_printable(text);

		if (*text == '"' || *text == '\\')
			json_print(json, "\\%c", *text);
		else if (length > 0)
			json_print(json, "%.*s", (int)length, text);
		else
			json_print(json, "\\u%04x",
				   (unsigned char)*text < 0x80 ? (unsigned char)*text : 0xfffd);
		text += length > 0 ? length : 1;
	}
	json_print(json, "\"");
}

void json_member(struct json *json, const char *name)
{
	const bool first = json->used > 0 && json->text[json->used - 1] == '{';

	json_print(json, "%s\"%s\":", first ? "" : ",", name);
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
	json_print(json, "%s", value ? "true" : "false");
}

void json_hex(struct json *json, const char *name, const uint8_t *bytes, size_t n)
{
	json_member(json, name);
	json_print(json, "\"");
	for (size_t i = 0; i < n; i++)
		json_print(json, "%02x", bytes[i]);
	json_print(json, "\"");
}

void json_rewind(struct json *json, size_t used)
{
	assert(used <= json->used);
	json->used = used;
	json->full = false;
	json->text[used] = '\0';
}
