/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - one line, one write(2), on standard error.
 *
 * Level and style are static variables, which are set once, before there are threads. Messages come
 * from any depth of the program, from the threads of tiers, and from before there is a struct
 * kvtierd; a logger would have to be passed through every call.
 */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
	enum log_level level;
	bool journal; /* <N> prefixes, no time */
} style = { LOG_LEVEL_INFO, false };

enum { LINE_BYTES = 1024, LIMIT_MESSAGES = 10 };
static const uint64_t limit_window_ns = 10ull * 1000000000;

static const struct {
	const char *prefix, *name;
} levels[] = {
	[LOG_LEVEL_ERROR] = { "<3>", "error" },
	[LOG_LEVEL_WARNING] = { "<4>", "warning" },
	[LOG_LEVEL_INFO] = { "<6>", "info" },
	[LOG_LEVEL_DEBUG] = { "<7>", "debug" },
};

bool log_shows(enum log_level level)
{
	return level <= style.level;
}

void log_open(enum log_level level)
{
	style.level = level;
	style.journal = getenv("JOURNAL_STREAM") != NULL;
}

size_t log_printable(const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	size_t length;

	if (s[0] < 0x80)
		return s[0] >= 0x20 && s[0] != 0x7f ? 1 : 0;
	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		length = 2;
	else if (s[0] >= 0xe0 && s[0] <= 0xef)
		length = 3;
	else if (s[0] >= 0xf0 && s[0] <= 0xf4)
		length = 4;
	else
		return 0;
	for (size_t i = 1; i < length; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	}
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
	    (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	/* C1: some terminals obey them */
	if ((s[0] == 0xc2 && s[1] < 0xa0) ||
	    /* line ends, direction changes */
	    (s[0] == 0xe2 && s[1] == 0x80 && s[2] >= 0xa8 && s[2] <= 0xae))
		return 0;
	return length;
}

char *log_escape(const char *text, char *ret, size_t n)
{
	const char *s = text;
	size_t used = 0;

	if (n == 0)
		return ret;
	while (*s != '\0') {
		const size_t length = log_printable(s), takes = length != 0 ? length : 4;

		if (used + takes + 4 > n) { /* room for "..." and the end */
			used += (size_t)snprintf(ret + used, n - used, "...");
			return ret;
		}
		if (length != 0)
			memcpy(ret + used, s, length);
		else
			snprintf(ret + used, 5, "\\x%02x", (unsigned char)*s);
		used += takes;
		s += length != 0 ? length : 1;
	}
	ret[used] = '\0';
	return ret;
}

static size_t put_prefix(enum log_level level, char *line, size_t n)
{
	struct timespec now;
	struct tm tm;
	size_t used;

	if (style.journal)
		return (size_t)snprintf(line, n, "%s", levels[level].prefix);
	(void)clock_gettime(CLOCK_REALTIME, &now);
	(void)localtime_r(&now.tv_sec, &tm);
	used = strftime(line, n, "%Y-%m-%d %H:%M:%S", &tm);
	return used + (size_t)snprintf(line + used, n - used,
				       ".%03ld kvtierd[%d] %s: ", now.tv_nsec / 1000000,
				       (int)getpid(), levels[level].name);
}

static void log_line(enum log_level level, const char *format, va_list args)
{
	char message[LINE_BYTES], line[LINE_BYTES + 128];
	size_t used;

	if (level > style.level)
		return;
	if (vsnprintf(message, sizeof(message), format, args) < 0)
		return;
	used = put_prefix(level, line, sizeof(line));
	log_escape(message, line + used, sizeof(line) - used - 1);
	used += strlen(line + used);
	line[used++] = '\n';
	/* a log that cannot be written cannot report it either */
	if (write(STDERR_FILENO, line, used) < 0)
		return;
}

#define LOG_FUNCTION(name, level)              \
	void name(const char *format, ...)     \
	{                                      \
		va_list args;                  \
                                               \
		va_start(args, format);        \
		log_line(level, format, args); \
		va_end(args);                  \
	}
LOG_FUNCTION(log_error, LOG_LEVEL_ERROR)
LOG_FUNCTION(log_warning, LOG_LEVEL_WARNING)
LOG_FUNCTION(log_info, LOG_LEVEL_INFO)
LOG_FUNCTION(log_debug, LOG_LEVEL_DEBUG)

void log_limited(struct log_limit *limit, uint64_t now_ns, enum log_level level, const char *format,
		 ...)
{
	va_list args;

	if (level > style.level)
		return;
	if (limit->window_ns == 0 || now_ns - limit->window_ns >= limit_window_ns) {
		if (limit->left_out > 0)
			log_warning("%u messages like the next one were left out", limit->left_out);
		*limit = (struct log_limit){ .window_ns = now_ns };
	}
	if (limit->messages >= LIMIT_MESSAGES) {
		limit->left_out++;
		return;
	}
	limit->messages++;
	va_start(args, format);
	log_line(level, format, args);
	va_end(args);
}
