/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.c - reads the INI file. libinih splits lines into section, key and value. A reader in
 * front of it counts lines, cuts comments off, and refuses lines that libinih would let pass: lines
 * cut at its buffer, text after a [section], unknown sections, lines that continue another.
 *
 * Invariants: the error names the first wrong line; a file with a wrong line is not used at all.
 * Runs once, before there are threads.
 */
#include "config.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/nvme/nvme_format.h"
#include "config_derive.h"
#include "config_redis.h"
#include "config_value.h"
#include "daemon/base/log.h"

struct reader {
	FILE *in;
	const char *name;
	struct config *config;
	unsigned line;                 /* that libinih looks at */
	unsigned line_of[CONFIG_ROWS]; /* where each key was given; 0: not */
	unsigned failed_line;          /* 0: nothing wrong so far */
	char *text;
	size_t text_bytes;
};

static void fail(struct reader *r, unsigned line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Keeps the first. */
static void fail(struct reader *r, unsigned line, const char *format, ...)
{
	va_list args;
	int used;

	if (r->failed_line != 0)
		return;
	r->failed_line = line;
	used = snprintf(r->text, r->text_bytes, "%s:%u: ", r->name, line);
	if (used < 0 || (size_t)used >= r->text_bytes)
		return;
	va_start(args, format);
	vsnprintf(r->text + used, r->text_bytes - (size_t)used, format, args);
	va_end(args);
}

/* Levenshtein's distance, for words shorter than 64; larger ones are 64 apart. */
static unsigned distance(const char *a, const char *b)
{
	const size_t la = strlen(a), lb = strlen(b);
	unsigned row[64];

	if (la >= 64 || lb >= 64)
		return 64;
	for (unsigned j = 0; j <= lb; j++)
		row[j] = j;
	for (unsigned i = 1; i <= la; i++) {
		unsigned diagonal = row[0];

		row[0] = i;
		for (unsigned j = 1; j <= lb; j++) {
			const unsigned above = row[j], replace = diagonal + (a[i - 1] != b[j - 1]);

			row[j] = (above < row[j - 1] ? above : row[j - 1]) + 1;
			if (replace < row[j])
				row[j] = replace;
			diagonal = above;
		}
	}
	return row[lb];
}

/* A third of the letters may be wrong: enough for a typo, too little for another word. */
static bool close_to(const char *word, const char *known, unsigned *best)
{
	const unsigned apart = distance(word, known);

	if (apart >= *best || apart > 1 + strlen(known) / 3)
		return false;
	*best = apart;
	return true;
}

static bool section_known(const char *section)
{
	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		if (strcmp(config_rows[i].section, section) == 0)
			return true;
	}
	return false;
}

static void fail_section(struct reader *r, const char *section)
{
	const char *known = NULL;
	unsigned best = 64;
	char shown[64];

	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		if (close_to(section, config_rows[i].section, &best))
			known = config_rows[i].section;
	}
	log_escape(section, shown, sizeof(shown));
	if (known)
		fail(r, r->line, "[%s]: no such section; did you mean [%s]?", shown, known);
	else
		fail(r, r->line,
		     "[%s]: no such section; there are [daemon] [socket] [admin] [host] [nvme] "
		     "[redis] [device] [index]",
		     shown);
}

static void fail_key(struct reader *r, const char *section, const char *key)
{
	const struct config_row *known = NULL;
	unsigned best = 64;
	char shown[64];

	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		const bool here = strcmp(config_rows[i].section, section) == 0;

		/* the same word in another section is likelier meant than a similar one in this */
		if (!here && strcmp(config_rows[i].key, key) != 0)
			continue;
		if (close_to(key, config_rows[i].key, &best))
			known = &config_rows[i];
	}
	log_escape(key, shown, sizeof(shown));
	if (known)
		fail(r, r->line, "[%s] %s: no such key; did you mean [%s] %s?", section, shown,
		     known->section, known->key);
	else
		fail(r, r->line, "[%s] %s: no such key; kvtierd --help lists them", section, shown);
}

static void fail_value(struct reader *r, unsigned line, const struct config_row *row,
		       const char *value, const char *why)
{
	char shown[96], range[128];

	fail(r, line, "[%s] %s: \"%s\" %s; allowed: %s%s", row->section, row->key,
	     log_escape(value, shown, sizeof(shown)), why, config_range(row, range, sizeof(range)),
	     row->type == CONFIG_TYPE_BYTES || row->type == CONFIG_TYPE_NODES ?
		     " (units K M G T or KiB MiB GiB TiB, powers of 1024)" :
		     "");
}

/* Lists may have lines of their own for each item. */
static bool is_list(const struct reader *r, size_t i)
{
	const struct config_row *row = &config_rows[i];
	const void *field = (const char *)r->config + row->offset;

	return row->type == CONFIG_TYPE_PATHS || row->type == CONFIG_TYPE_ENDPOINTS ||
	       row->type == CONFIG_TYPE_HOSTS ||
	       (row->type == CONFIG_TYPE_NODES && ((const struct config_nodes *)field)->n > 0);
}

/* The value of one line, or, of a list, one more. */
static int take_value(struct reader *r, size_t i, const char *value, char *why, size_t n)
{
	const char *between = config_rows[i].type == CONFIG_TYPE_PATHS ? ":" :
			      config_rows[i].type == CONFIG_TYPE_NODES ? "," :
									 " ";
	char joined[2 * CONFIG_ENDPOINTS_BYTES];

	if (r->line_of[i] == 0)
		return config_value(&config_rows[i], value, r->config, why, n);
	(void)config_text(&config_rows[i], r->config, joined, CONFIG_ENDPOINTS_BYTES);
	snprintf(joined + strlen(joined), sizeof(joined) - strlen(joined), "%s%s",
		 joined[0] == '\0' ? "" : between, value);
	return config_value(&config_rows[i], joined, r->config, why, n);
}

/* libinih's handler: 1 go on, 0 wrong. */
static int handle(void *user, const char *section, const char *key, const char *value)
{
	struct reader *r = user;
	char why[256];
	size_t i = 0;

	if (r->failed_line != 0)
		return 0;
	if (section[0] == '\0') {
		fail(r, r->line, "a key before the first [section]");
		return 0;
	}
	while (i < CONFIG_ROWS && (strcmp(config_rows[i].section, section) != 0 ||
				   strcmp(config_rows[i].key, key) != 0))
		i++;
	if (i == CONFIG_ROWS) {
		fail_key(r, section, key);
		return 0;
	}
	if (r->line_of[i] != 0 && !is_list(r, i)) {
		fail(r, r->line, "[%s] %s: given twice, first in line %u", section, key,
		     r->line_of[i]);
		return 0;
	}
	if (take_value(r, i, value, why, sizeof(why)) < 0) {
		fail_value(r, r->line, &config_rows[i], value, why);
		return 0;
	}
	r->line_of[i] = r->line;
	return 1;
}

/* "[name]" and nothing after it but a comment; libinih would ignore the rest. */
static void check_section(struct reader *r, const char *line)
{
	const size_t length = strcspn(line + 1, "]\n");
	const char *rest = line + 1 + length;
	char name[256];

	if (*rest != ']') {
		fail(r, r->line, "a section without ]");
		return;
	}
	rest += 1 + strspn(rest + 1, " \t\r\n");
	if (*rest != '\0' && *rest != ';' && *rest != '#') {
		fail(r, r->line, "text after a [section]");
		return;
	}
	snprintf(name, sizeof(name), "%.*s", (int)length, line + 1);
	if (!section_known(name))
		fail_section(r, name);
}

/* Blanks, and a byte order mark before the first line, mean nothing. libinih would take an indented
 * line for a continuation of the line before. */
static void trim_start(const struct reader *r, char *line)
{
	const char *start = line;

	if (r->line == 1 && strncmp(start, "\xef\xbb\xbf", 3) == 0)
		start += 3;
	start += strspn(start, " \t\v\f\r");
	memmove(line, start, strlen(start) + 1);
}

/* A # or ; behind a blank, or right behind the = or : of a key, begins a comment. libinih knows ;
 * behind a blank alone, and # would become part of a value: of the name of a file. */
static void trim_comment(char *line)
{
	for (char *c = line; *c != '\0'; c++) {
		if ((*c == '#' || *c == ';') && c > line && strchr(" \t=:", c[-1]) != NULL) {
			memcpy(c, "\n", 2);
			return;
		}
	}
}

/* libinih's reader: one line into str, without its leading blanks; NULL at the end or when
 * something is wrong already. */
static char *read_line(char *str, int size, void *stream)
{
	struct reader *r = stream;
	int used = 0, c = 0;

	if (r->failed_line != 0)
		return NULL;
	r->line++;
	while (c != '\n' && (c = getc(r->in)) != EOF) {
		if (c == '\0') {
			fail(r, r->line, "a NUL byte");
			return NULL;
		}
		if (used == size - 1) {
			fail(r, r->line, "a line of more than %d bytes", size - 2);
			return NULL;
		}
		str[used++] = (char)c;
	}
	if (used == 0)
		return NULL;
	str[used] = '\0';
	trim_start(r, str);
	trim_comment(str);
	if (str[0] == '[')
		check_section(r, str);
	return r->failed_line != 0 ? NULL : str;
}

static bool power_of_two(uint32_t x)
{
	return x != 0 && (x & (x - 1)) == 0;
}

static bool tenant_name(const char *name)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

	return name[0] != '.' && name[strspn(name, letters)] == '\0';
}

static void fail_check(struct reader *r, enum config_row_index i, const char *why)
{
	char value[CONFIG_ENDPOINTS_BYTES];

	/* a default can only be wrong through another key, which then has a line */
	fail_value(r, r->line_of[i] != 0 ? r->line_of[i] : r->line, &config_rows[i],
		   config_text(&config_rows[i], r->config, value, sizeof(value)), why);
}

/* Bytes that a store of `n` segments takes; their limits are tiers/nvme/nvme_format.h's. */
static uint64_t store_bytes(const struct config *c, uint64_t n)
{
	return NVME_DATA_OFFSET + n * c->nvme_segment_bytes;
}

static void check_nvme(struct reader *r)
{
	struct config *c = r->config;
	char why[192];

	if (c->nvme_segment_bytes % NVME_PAGE != 0) {
		fail_check(r, CONFIG_ROW_nvme_segment_bytes, "is not a multiple of 4096");
		return;
	}
	if (c->nvme_bytes == 0)
		return;
	if (r->line_of[CONFIG_ROW_nvme_segment_bytes] == 0)
		c->nvme_segment_bytes = config_fit_segment(c->nvme_bytes, c->nvme_segment_bytes);
	if (c->nvme_bytes < store_bytes(c, NVME_MIN_SEGMENTS)) {
		snprintf(why, sizeof(why),
			 "is less than 64K and %d segments of [nvme] segment_bytes = %" PRIu64
			 ", which a store needs: %" PRIu64 " at least (0: no NVMe tier)",
			 (int)NVME_MIN_SEGMENTS, c->nvme_segment_bytes,
			 store_bytes(c, NVME_MIN_SEGMENTS));
		fail_check(r, CONFIG_ROW_nvme_bytes, why);
	} else if (c->nvme_bytes > store_bytes(c, NVME_MAX_SEGMENTS)) {
		snprintf(why, sizeof(why),
			 "is more than 64K and %d segments of [nvme] segment_bytes = %" PRIu64
			 ", as many as a store can have: %" PRIu64 " at most",
			 (int)NVME_MAX_SEGMENTS, c->nvme_segment_bytes,
			 store_bytes(c, NVME_MAX_SEGMENTS));
		fail_check(r, CONFIG_ROW_nvme_bytes, why);
	}
}

static void check_redis(struct reader *r)
{
	enum config_row_index i = CONFIG_ROW_redis_endpoints;
	const char *fault = config_redis_fault(r->config, &i);

	if (fault)
		fail(r, r->line_of[i] != 0 ? r->line_of[i] : r->line, "[redis] %s: %s",
		     config_rows[i].key, fault);
}

/* The least share of a node: each share has to hold a slab. */
static uint64_t least_share(const struct config_nodes *nodes)
{
	uint64_t ret = nodes->bytes;

	for (uint32_t i = 0; i < nodes->n; i++)
		if (nodes->nodes[i].bytes < ret)
			ret = nodes->nodes[i].bytes;
	return ret;
}

/* Checks that need several values. */
static void check_together(struct reader *r)
{
	struct config *c = r->config;
	const uint64_t unit = c->host_huge_pages == CONFIG_HUGE_2M ? 2u << 20 : 4096;
	const uint64_t share = least_share(&c->host_bytes);

	if (r->line_of[CONFIG_ROW_host_slab_bytes] == 0 && c->host_slab_bytes > share)
		c->host_slab_bytes = share / unit * unit;
	while (c->socket_ring_entries > CONFIG_MAX_OPS / c->socket_max_clients)
		c->socket_ring_entries /= 2;
	if (share < unit)
		fail_check(r, CONFIG_ROW_host_bytes,
			   "is less than one huge page of 2M ([host] huge_pages = 2m)");
	else if (c->host_slab_bytes % unit != 0)
		fail_check(r, CONFIG_ROW_host_slab_bytes,
			   unit == 4096 ?
				   "is not a multiple of 4096" :
				   "is not a multiple of 2M, as [host] huge_pages = 2m needs");
	else if (c->host_slab_bytes > share)
		fail_check(r, CONFIG_ROW_host_slab_bytes,
			   c->host_bytes.n ? "is more than [host] bytes of a node" :
					     "is more than [host] bytes");
	else if (!power_of_two(c->socket_ring_entries))
		fail_check(r, CONFIG_ROW_socket_ring_entries, "is not a power of two");
	else if (!power_of_two(c->socket_arena_blocks))
		fail_check(r, CONFIG_ROW_socket_arena_blocks, "is not a power of two");
	else if (!tenant_name(c->socket_tenant))
		fail_check(
			r, CONFIG_ROW_socket_tenant,
			"has other characters than letters, digits, - _ and ., or begins with .");
	else
		check_nvme(r);
	check_redis(r);
}

static void set_defaults(struct config *config)
{
	char why[256];

	memset(config, 0, sizeof(*config));
	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		/* a default that its own row refuses is a mistake in the table */
		const int r = config_value(&config_rows[i], config_rows[i].dflt, config, why,
					   sizeof(why));

		assert(r == 0);
	}
}

int config_parse(FILE *in, const char *name, struct config *ret, char *text, size_t n)
{
	struct config config;
	struct reader r = {
		.in = in, .name = name, .config = &config, .text = text, .text_bytes = n
	};
	int line = 0;

	set_defaults(&config);
	if (in)
		line = ini_parse_stream(read_line, &r, handle, &r);
	if (in && ferror(in)) {
		snprintf(text, n, "%s: %s", name, strerror(errno));
		return errno != 0 ? -errno : -EIO;
	}
	if (line < 0)
		return -ENOMEM;
	/* libinih found a line that is nothing it knows, before anything found here */
	if (line > 0 && (r.failed_line == 0 || (unsigned)line < r.failed_line)) {
		r.failed_line = 0;
		fail(&r, (unsigned)line, "neither [section] nor key = value");
	}
	if (r.failed_line == 0)
		check_together(&r);
	if (r.failed_line != 0)
		return -EINVAL;
	*ret = config;
	return 0;
}

/* Not blocking: it might be a FIFO that nobody writes to. */
static int open_regular(const char *path, FILE **ret)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	int r = 0;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st))
		r = -errno;
	else if (!S_ISREG(st.st_mode))
		r = S_ISDIR(st.st_mode) ? -EISDIR : -EPERM;
	else if (!(*ret = fdopen(fd, "r")))
		r = -errno;
	if (r)
		(void)close(fd);
	return r;
}

int config_load(const char *path, struct config *ret, char *text, size_t n)
{
	FILE *in = NULL;
	int r;

	if (!path)
		return config_parse(NULL, "defaults", ret, text, n);
	r = open_regular(path, &in);
	if (r) {
		snprintf(text, n, "%s: %s", path,
			 r == -EPERM ? "is no regular file, or may not be opened" : strerror(-r));
		return r;
	}
	r = config_parse(in, path, ret, text, n);
	(void)fclose(in);
	return r;
}
