/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - one line, one write(2), on standard error.
 *
 * Level and style are static variables; the style is set once, before there are threads. Messages
 * come from any depth of the program, from the threads of tiers, and from before there is a struct
 * kvtierd; a logger would have to be passed through every call.
 */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

static struct {
	_Atomic enum log_level level;
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
	return level <= atomic_load_explicit(&style.level, memory_order_relaxed);
}

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&style.level, level, memory_order_relaxed);
}

void log_open(enum log_level level)
{
	log_set_level(level);
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

/* Puts text in quotes; ret has room for it: two bytes for each of text, and three. */
static size_t put_quoted(const char *text, char *ret)
{
	char *at = ret;

	*at++ = '"';
	for (; *text != '\0'; text++) {
		if (*text == '"' || *text == '\\')
			*at++ = '\\';
		*at++ = *text;
	}
	*at++ = '"';
	*at = '\0';
	return (size_t)(at - ret);
}

char *log_about(char ret[LOG_ABOUT_BYTES], const char *event, long pid, uint32_t client,
		const char *name)
{
	char shown[32], quoted[2 * sizeof(shown) + 3];

	put_quoted(log_escape(name, shown, sizeof(shown)), quoted);
	snprintf(ret, LOG_ABOUT_BYTES, "%s client_pid=%ld client=%u name=%s", event, pid, client,
		 quoted);
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
	(void)gmtime_r(&now.tv_sec, &tm);
	used = strftime(line, n, "time=%Y-%m-%dT%H:%M:%S", &tm);
	return used + (size_t)snprintf(line + used, n - used, ".%03ldZ pid=%d level=%s ",
				       now.tv_nsec / 1000000, (int)getpid(), levels[level].name);
}

/* How many messages were left out since the last one, or -1: this one is, too. Threads that meet
 * here may count one message too many or too few. */
static int64_t passes(struct log_limit *limit)
{
	const uint64_t now = clock_ns(),
		       window = __atomic_load_n(&limit->window_ns, __ATOMIC_RELAXED);

	if (window == 0 || now - window >= limit_window_ns) {
		__atomic_store_n(&limit->window_ns, now, __ATOMIC_RELAXED);
		__atomic_store_n(&limit->messages, 0, __ATOMIC_RELAXED);
	}
	if (__atomic_fetch_add(&limit->messages, 1, __ATOMIC_RELAXED) < LIMIT_MESSAGES)
		return __atomic_exchange_n(&limit->left_out, 0, __ATOMIC_RELAXED);
	__atomic_fetch_add(&limit->left_out, 1, __ATOMIC_RELAXED);
	return -1;
}

void log_line(enum log_level level, struct log_limit *limit, const char *event, const char *format,
	      ...)
{
	char message[LINE_BYTES], shown[LINE_BYTES], line[2 * LINE_BYTES + LOG_ABOUT_BYTES + 256];
	int64_t left_out;
	size_t used;
	va_list args;
	int n;

	if (!log_shows(level))
		return;
	left_out = limit ? passes(limit) : 0;
	if (left_out < 0)
		return;
	va_start(args, format);
	n = vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	if (n < 0)
		return;
	used = put_prefix(level, line, 128);
	used += (size_t)snprintf(line + used, LOG_ABOUT_BYTES + 16, "event=%s ", event);
	if (left_out > 0)
		used += (size_t)snprintf(line + used, 32, "left_out=%d ", (int)left_out);
	used += (size_t)snprintf(line + used, 8, "msg=");
	used += put_quoted(log_escape(message, shown, sizeof(shown)), line + used);
	line[used++] = '\n';
	/* a log that cannot be written cannot report it either */
	if (write(STDERR_FILENO, line, used) < 0)
		return;
}
