/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.h - writes JSON text into a buffer of fixed size, for answers that are sent in packets.
 *
 * Text that does not fit is cut off, and `full` says so. A writer of rows remembers `used` before
 * each row and goes back to it, so that a packet holds whole rows. No function allocates memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json {
	char *text;
	/* used <= room; no terminating NUL is counted, but there is space for it */
	size_t room, used;
	bool full;
};

/* The JSON is written to text[0 .. n), n > 0. */
void json_start(struct json *json, char *text, size_t n);
/* Writes as it is: brackets, names and numbers. */
void json_print(struct json *json, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes a string in quotes. Bytes that are no printable UTF-8 are escaped, or replaced by U+FFFD,
 * so the text is always valid and harmless. */
void json_string(struct json *json, const char *text);
/* These write a member, "name":value, after a comma unless the object has just begun. */
void json_member(struct json *json, const char *name); /* the value is to follow */
void json_text(struct json *json, const char *name, const char *value);
void json_number(struct json *json, const char *name, uint64_t value);
void json_bool(struct json *json, const char *name, bool value);
void json_hex(struct json *json, const char *name, const uint8_t *bytes, size_t n); /* a string */
void json_rewind(struct json *json, size_t used);
