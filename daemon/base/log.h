/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - messages for the operator, on standard error. Any thread; one write a message.
 *
 * Under systemd ($JOURNAL_STREAM) lines begin with <N>, the syslog priority, and carry no time;
 * elsewhere with time and level. A message is one line: control characters and bytes that are not
 * UTF-8 come out as \xNN, so nothing from outside can forge a second line or talk to a terminal.
 */
#ifndef KVTIER_LOG_H
#define KVTIER_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Before the first thread starts. Without it: info, plain. */
void log_open(enum log_level level);
bool log_shows(enum log_level level); /* else a message of it goes nowhere */

void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* For messages that an outsider can cause at will: at most 10 messages in 10 seconds per state,
 * then one message that says how many were left out. A zeroed state is ready; it belongs to one
 * thread. */
struct log_limit {
	uint64_t window_ns;
	uint32_t messages;
	uint32_t left_out;
};
void log_limited(struct log_limit *limit, uint64_t now_ns, enum log_level level, const char *format,
		 ...) __attribute__((format(printf, 4, 5)));

/* Writes text as it would be logged; cut to n with a trailing "...". Returns ret. */
char *log_escape(const char *text, char *ret, size_t n);

/* Bytes of the UTF-8 character at s that is safe to show to a terminal; 0: there is none. Reads no
 * further than the terminating NUL. */
size_t log_printable(const char *s);

#endif
