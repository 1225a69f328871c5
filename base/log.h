/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - messages for the operator, on standard error. Any thread may call; each message is one
 * line of key=value, and one write():
 *
 *	time=2026-11-25T09:50:12.123Z pid=4711 level=warning event=client_cut client=3 msg="..."
 *
 * Under systemd ($JOURNAL_STREAM) a line begins with <N>, the syslog priority, in the place of
 * time, pid and level. Control characters and bytes that are not UTF-8 are written as \xNN, and
 * quotes in a text as \", so no text from outside can forge a line or a key, or send commands to
 * a terminal.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Call it before the first thread starts. Until then the level is info, and lines have the time. */
void log_open(enum log_level level);
void log_set_level(enum log_level level);
bool log_shows(enum log_level level); /* messages of this level are written */

/*
 * event: the message's name, one word that stays, for programs; keys and values may follow it
 * (log_about()). format: a sentence, for people. Neither has a token or a whole key of a block.
 *
 * Outsiders can cause errors and warnings at will: each place in the code that writes one lets 10
 * pass in 10 seconds. The next line of the place says left_out=N.
 */
#define log_error(event, ...)   LOG_HERE(LOG_LEVEL_ERROR, event, __VA_ARGS__)
#define log_warning(event, ...) LOG_HERE(LOG_LEVEL_WARNING, event, __VA_ARGS__)
#define log_info(event, ...)    log_line(LOG_LEVEL_INFO, NULL, event, __VA_ARGS__)
#define log_debug(event, ...)   log_line(LOG_LEVEL_DEBUG, NULL, event, __VA_ARGS__)

struct log_limit {
	uint64_t window_ns;
	uint32_t messages, left_out;
};
#define LOG_HERE(level, event, ...)                               \
	do {                                                      \
		static struct log_limit log_limit_;               \
		log_line(level, &log_limit_, event, __VA_ARGS__); \
	} while (0)
void log_line(enum log_level level, struct log_limit *limit, const char *event, const char *format,
	      ...) __attribute__((format(printf, 4, 5)));

/* An event with the client that it is about, for log_*(). name: from outside. Returns ret. */
enum { LOG_ABOUT_BYTES = 192 };
char *log_about(char ret[LOG_ABOUT_BYTES], const char *event, long pid, uint32_t client,
		const char *name);

/* Writes text to ret as it would be logged; what does not fit is cut off and ends in "...". Returns
 * ret. */
char *log_escape(const char *text, char *ret, size_t n);

/* Bytes of the UTF-8 character at s that is safe to show to a terminal; 0: it is not safe. Reads no
 * further than the terminating NUL. */
size_t log_printable(const char *s);
