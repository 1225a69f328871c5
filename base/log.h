/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - messages for the operator, on standard error. Any thread may call; each message is one
 * write().
 *
 * Under systemd ($JOURNAL_STREAM) a line begins with <N>, the syslog priority, and carries no time.
 * Elsewhere a line begins with time and level. A message is one line: control characters and bytes
 * that are not UTF-8 are written as \xNN, so no text from outside can forge a second line or send
 * commands to a terminal.
 */
#ifndef KVTIER_LOG_H
#define KVTIER_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Call it before the first thread starts. Until then the level is info, and lines have the time. */
void log_open(enum log_level level);
bool log_shows(enum log_level level); /* messages of this level are written */

void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A limit for messages that an outsider can cause at will: it lets 10 of them pass in 10
 * seconds, and then one that says how many were left out. A zeroed struct is ready for use, by
 * one thread. */
struct log_limit {
	uint64_t window_ns;
	uint32_t messages;
	uint32_t left_out;
};
void log_limited(struct log_limit *limit, uint64_t now_ns, enum log_level level, const char *format,
		 ...) __attribute__((format(printf, 4, 5)));

/* Writes text to ret as it would be logged; what does not fit is cut off and ends in "...". Returns
 * ret. */
char *log_escape(const char *text, char *ret, size_t n);

/* Bytes of the UTF-8 character at s that is safe to show to a terminal; 0: it is not safe. Reads no
 * further than the terminating NUL. */
size_t log_printable(const char *s);

#endif
