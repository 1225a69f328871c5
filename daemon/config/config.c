/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.c - reads the INI file line by line, and checks values that depend on each other.
 *
 * Invariants: each wrong line is reported, and a file with a wrong line is not used at all. Values
 * of a section that has a wrong line are not compared with others: what is missing there would make
 * mistakes that the file does not have.
 */
#include "config.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "config_redis.h"
#include "config_value.h"
#include "tiers/nvme/log/nvme_format.h"

#define BLANKS " \t\v\f\r\n"
enum { LINE_BYTES = 1024 };

struct reader {
	FILE *in;
	struct config *config;
	struct config_notes *faults;
	char section[64];        /* of the line; "": no section has begun */
	bool skips;              /* its keys, since it was reported already */
	unsigned line;           /* its number */
	bool wrong[CONFIG_ROWS]; /* [first row of a section]: a line of it is wrong */
};

#define fail(r, line, ...) config_note((r)->faults, (r)->config->file, line, __VA_ARGS__)

/* The place of the first row of a section; CONFIG_ROWS: there is no such section. */
static size_t section_row(const char *section)
{
	size_t i = 0;

	while (i < CONFIG_ROWS && strcmp(config_rows[i].section, section) != 0)
		i++;
	return i;
}

void config_note(struct config_notes *faults, const char *file, unsigned line, const char *format,
		 ...)
{
	char *at = faults->text + faults->used;
	const size_t room = CONFIG_NOTE_BYTES;
	va_list args;
	int n;

	if (faults->n++ >= CONFIG_NOTES_MOST) {
		snprintf(at, room, "\nand %u more", faults->n - CONFIG_NOTES_MOST);
		return;
	}
	n = snprintf(at, room, faults->n > 1 ? "\n" : "");
	if (file)
		n += snprintf(at + n, room - (size_t)n, line ? "%.255s:%u: " : "%.255s: ", file,
			      line);
	va_start(args, format);
	(void)vsnprintf(at + n, room - (size_t)n, format, args);
	va_end(args);
	faults->used += strlen(at);
}

bool config_next_note(const char **cursor, char ret[CONFIG_NOTE_BYTES])
{
	const size_t length = strcspn(*cursor, "\n");

	if (**cursor == '\0')
		return false;
	snprintf(ret, CONFIG_NOTE_BYTES, "%.*s", (int)length, *cursor);
	*cursor += length + ((*cursor)[length] != '\0');
	return true;
}

static bool tenant_name(const char *name)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	const size_t n = strlen(name);

	return n > 0 && n < CONFIG_NAME_BYTES && name[0] != '.' && strspn(name, letters) == n;
}

/* The NAME of "socket NAME", which is not checked yet; NULL: it is another section. */
static const char *socket_name(const char *section)
{
	static const char start[] = "socket ";

	return strncmp(section, start, sizeof(start) - 1) == 0 ? section + sizeof(start) - 1 : NULL;
}

static bool section_known(const char *section)
{
	return socket_name(section) ? tenant_name(socket_name(section)) :
				      section_row(section) < CONFIG_ROWS;
}

/* A line of this section is wrong, or was meant to be of it. */
static void spoil(struct reader *r, const char *section)
{
	const size_t i = section_row(socket_name(section) ? "socket" : section);

	if (i < CONFIG_ROWS)
		r->wrong[i] = true;
}

static bool sound(const struct reader *r, const char *section)
{
	return !r->wrong[section_row(section)];
}

static void fail_section(struct reader *r, const char *section)
{
	const char *known = NULL;
	unsigned best = 64;
	char shown[64];

	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		if (text_close_to(section, config_rows[i].section, &best))
			known = config_rows[i].section;
	}
	log_escape(section, shown, sizeof(shown));
	if (socket_name(section))
		fail(r, r->line,
		     "[%s]: a socket's name is 1 to %d letters, digits, - _ and ., and does not "
		     "begin with .",
		     shown, CONFIG_NAME_BYTES - 1);
	else if (known) {
		fail(r, r->line, "[%s]: no such section; did you mean [%s]?", shown, known);
		spoil(r, known);
	} else
		fail(r, r->line,
		     "[%s]: no such section; there are [daemon] [socket] [host] [nvme] [redis] "
		     "[codec] [device] [gpu] [hints] [index] [stats]",
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
		if (text_close_to(key, config_rows[i].key, &best))
			known = &config_rows[i];
	}
	log_escape(key, shown, sizeof(shown));
	if (socket_name(section))
		fail(r, r->line,
		     "[%s] %s: no such key; a socket has path, mode, group, tenant, share and "
		     "priority, and [socket] has the keys of all sockets together",
		     section, shown);
	else if (strcmp(section, "gpu") == 0 &&
		 (strcmp(key, "mode") == 0 || strcmp(key, "engine_bytes") == 0))
		fail(r, r->line,
		     "[gpu] %s: no such key any more: kernels run in kvtierd alone; take the "
		     "line out",
		     key);
	else if (known)
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
static bool is_list(const struct reader *r, const struct config_row *row)
{
	const void *field = (const char *)r->config + row->offset;

	return config_between(row->type)[0] != '\0' &&
	       (row->type != CONFIG_TYPE_NODES || ((const struct config_nodes *)field)->n > 0);
}

/* The value of one line, or of a list that has begun one more. */
static int take_value(struct reader *r, const struct config_row *row, bool begun, const char *value,
		      char *why, size_t n)
{
	char joined[2 * CONFIG_ENDPOINTS_BYTES];

	if (!begun)
		return config_value(row, value, r->config, why, n);
	(void)config_text(row, r->config, joined, CONFIG_ENDPOINTS_BYTES);
	snprintf(joined + strlen(joined), sizeof(joined) - strlen(joined), "%s%s",
		 joined[0] == '\0' ? "" : config_between(row->type), value);
	return config_value(row, joined, r->config, why, n);
}

/* All keys, or those of a [socket NAME]. */
static void set_defaults(struct config *config, uint32_t socket)
{
	char why[256];

	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		const struct config_row row = config_row_at(i, socket);

		if (socket > 0 && !config_row_of_sockets(&config_rows[i]))
			continue;
		/* a default that its own row refuses is a mistake in the table */
		const int r = config_value(&row, row.dflt, config, why, sizeof(why));

		assert(r == 0);
	}
}

/* The socket of this name, made if it is new. 0: there is no room for one more. */
static uint32_t socket_named(struct reader *r, const char *name)
{
	struct config *c = r->config;
	struct config_socket *socket;
	uint32_t at = 1;

	while (at < c->n_sockets && strcmp(c->sockets[at].name, name) != 0)
		at++;
	if (at < c->n_sockets)
		return at;
	if (at == CONFIG_SOCKETS_MAX)
		return 0;
	c->n_sockets++;
	set_defaults(c, at);
	socket = &c->sockets[at];
	snprintf(socket->name, sizeof(socket->name), "%s", name);
	snprintf(socket->tenant, sizeof(socket->tenant), "%s", name);
	return at;
}

static void take_key(struct reader *r, const char *key, const char *value)
{
	const char *section = r->section, *name = socket_name(section);
	const uint32_t socket = name ? socket_named(r, name) : 0;
	struct config_row row;
	unsigned *line;
	char why[256];
	size_t i = 0;

	while (i < CONFIG_ROWS && (strcmp(config_rows[i].key, key) != 0 ||
				   (name ? !config_row_of_sockets(&config_rows[i]) :
					   strcmp(config_rows[i].section, section) != 0)))
		i++;
	if (r->skips)
		return;
	if (section[0] == '\0') {
		fail(r, r->line, "a key before the first [section]");
		r->skips = true;
	} else if (name && socket == 0) {
		fail(r, r->line, "[%s]: there are %d sockets already, the most there can be",
		     section, CONFIG_SOCKETS_MAX);
	} else if (i == CONFIG_ROWS) {
		fail_key(r, section, key);
	} else {
		row = config_row_at(i, socket);
		row.section = section;
		line = &r->config->line_of[socket][i];
		if (*line != 0 && !is_list(r, &row))
			fail(r, r->line, "[%s] %s: given twice, first in line %u", section, key,
			     *line);
		else if (take_value(r, &row, *line != 0, value, why, sizeof(why)) < 0)
			fail_value(r, r->line, &row, value, why);
		*line = r->line;
	}
}

/* "[name]" */
static void take_section(struct reader *r, char *line)
{
	char *end = strchr(line, ']');

	if (!end) {
		fail(r, r->line, "a section without ]");
		return;
	}
	*end++ = '\0';
	snprintf(r->section, sizeof(r->section), "%.*s", (int)sizeof(r->section) - 1, line + 1);
	r->skips = strlen(line + 1) >= sizeof(r->section) || !section_known(r->section);
	if (*end != '\0')
		fail(r, r->line, "text after a [section]");
	else if (r->skips)
		fail_section(r, line + 1);
	else if (socket_name(r->section)) /* also without a key */
		(void)socket_named(r, socket_name(r->section));
}

static void trim_end(char *text)
{
	size_t n = strlen(text);

	while (n > 0 && strchr(BLANKS, text[n - 1]))
		n--;
	text[n] = '\0';
}

/* A line is empty, a comment, [section], or key = value, where = may be a colon. */
static void take_line(struct reader *r, char *line)
{
	char *value = line + strcspn(line, "=:");
	const uint32_t before = r->faults->n;

	if (line[0] == '\0' || line[0] == '#' || line[0] == ';')
		return;
	if (line[0] == '[') {
		take_section(r, line);
	} else if (*value == '\0') {
		fail(r, r->line, "neither [section] nor key = value");
	} else {
		*value++ = '\0';
		trim_end(line);
		take_key(r, line, value + strspn(value, BLANKS));
	}
	if (r->faults->n != before)
		spoil(r, r->section);
}

/* A # or ; behind a blank, or right behind the = or : of a key, begins a comment. */
static void trim_comment(char *line)
{
	char *c = line;

	while (*c != '\0' && ((*c != '#' && *c != ';') || c == line || !strchr(BLANKS "=:", c[-1])))
		c++;
	*c = '\0';
}

/* Reads the next line, and drops its comment, the blanks at both ends, and a byte order mark at the
 * begin of the file. A wrong line is reported and taken for an empty one. False: the file has
 * ended. */
static bool read_line(struct reader *r, char line[LINE_BYTES])
{
	const char *start = line;
	int used = 0, c = 0;
	bool nul = false;

	r->line++;
	while (c != '\n' && (c = getc(r->in)) != EOF) {
		nul |= c == '\0';
		if (used < LINE_BYTES)
			line[used++] = (char)c;
	}
	if (nul)
		fail(r, r->line, "a NUL byte");
	else if (used == LINE_BYTES)
		fail(r, r->line, "a line of more than %d bytes", LINE_BYTES - 2);
	if (nul || used == LINE_BYTES) {
		spoil(r, r->section);
		line[0] = '\0';
		return true;
	}
	line[used] = '\0';
	if (r->line == 1 && strncmp(start, "\xef\xbb\xbf", 3) == 0)
		start += 3;
	start += strspn(start, BLANKS);
	memmove(line, start, strlen(start) + 1);
	trim_comment(line);
	trim_end(line);
	return used > 0;
}

/* The line of a key; if no line gave it, the last one: a default can only be wrong through another
 * key, which has a line. */
static unsigned line_or_last(const struct reader *r, uint32_t socket, size_t i)
{
	const unsigned line = r->config->line_of[socket][i];

	return line != 0 ? line : r->line;
}

static void fail_check(struct reader *r, enum config_row_index i, const char *why)
{
	char value[CONFIG_ENDPOINTS_BYTES];

	fail_value(r, line_or_last(r, 0, i), &config_rows[i],
		   config_text(&config_rows[i], r->config, value, sizeof(value)), why);
}

/* The bytes that a store of `n` segments takes. tiers/nvme/log/nvme_format.h has their limits. */
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
	if (c->line_of[0][CONFIG_ROW_nvme_segment_bytes] == 0)
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
	enum config_row_index row = CONFIG_ROW_redis_endpoints;
	const char *fault;

	for (size_t i = 0; (fault = config_redis_fault(r->config, &i, &row)) != NULL;)
		fail(r, line_or_last(r, 0, row), "[redis] %s: %s", config_rows[row].key, fault);
}

/* The memory of the node that has least: a slab has to fit into it. */
static uint64_t least_node(const struct config_nodes *nodes)
{
	uint64_t ret = nodes->bytes;

	for (uint32_t i = 0; i < nodes->n; i++)
		if (nodes->nodes[i].bytes < ret)
			ret = nodes->nodes[i].bytes;
	return ret;
}

/* Whether another socket before this one has its tenant. */
static bool tenant_taken(const struct config *c, uint32_t socket)
{
	for (uint32_t i = 0; i < socket; i++)
		if (strcmp(c->sockets[i].tenant, c->sockets[socket].tenant) == 0)
			return true;
	return false;
}

static void check_sockets(struct reader *r)
{
	const struct config *c = r->config;
	uint32_t share = 0;
	char text[256];
	gid_t group;

	for (uint32_t i = 0; i < c->n_sockets; i++) {
		const struct config_socket *s = &c->sockets[i];
		const char *blank = i > 0 ? " " : "";
		const unsigned line = line_or_last(r, i, CONFIG_ROW_socket_tenant);

		if (!tenant_name(s->tenant))
			fail(r, line,
			     "[socket%s%s] tenant: \"%s\" has other characters than letters, "
			     "digits, - _ and ., or begins with .",
			     blank, s->name, s->tenant);
		else if (tenant_taken(c, i))
			fail(r, line,
			     "[socket%s%s] tenant: \"%s\" has another socket already; each "
			     "tenant has one",
			     blank, s->name, s->tenant);
		if (config_group("socket", s->group, &group, text, sizeof(text)))
			fail(r, line_or_last(r, i, CONFIG_ROW_socket_group), "%s", text);
		share += s->share;
		if (share > CONFIG_SHARES_MAX && share - s->share <= CONFIG_SHARES_MAX)
			fail(r, line_or_last(r, i, CONFIG_ROW_socket_share),
			     "[socket%s%s] share: all shares together are %u percent; at most %d "
			     "can be given",
			     blank, s->name, share, CONFIG_SHARES_MAX);
	}
}

static void check_stats(struct reader *r)
{
	const struct config *c = r->config;
	char text[256];
	gid_t group;

	if ((c->stats_mode & ~0644u) != 0)
		fail_check(r, CONFIG_ROW_stats_mode, "lets others write: readers need 4 alone");
	if (config_group("stats", c->stats_group, &group, text, sizeof(text)))
		fail(r, line_or_last(r, 0, CONFIG_ROW_stats_group), "%s", text);
}

static void check_tier_codec(struct reader *r, enum config_row_index i, uint32_t codec)
{
	static const enum config_codec codecs[] = {
		[CONFIG_TIER_CODEC_Q4] = CONFIG_CODEC_Q4,
		[CONFIG_TIER_CODEC_INT8V4] = CONFIG_CODEC_INT8V4,
	};

	if (codec != CONFIG_TIER_CODEC_SAME && (r->config->codec_allow >> codecs[codec] & 1) == 0)
		fail_check(r, i,
			   "is not in [codec] allow: add it there, or leave blocks as they are");
}

static void check_host(struct reader *r)
{
	struct config *c = r->config;
	const uint64_t page = c->host_huge_pages == CONFIG_HUGE_2M ? 2u << 20 : 4096;
	const uint64_t least = least_node(&c->host_bytes);

	if (c->line_of[0][CONFIG_ROW_host_slab_bytes] == 0 && c->host_slab_bytes > least)
		c->host_slab_bytes = least / page * page;
	if (least < page)
		fail_check(r, CONFIG_ROW_host_bytes,
			   "is less than one huge page of 2M ([host] huge_pages = 2m)");
	else if (c->host_slab_bytes % page != 0)
		fail_check(r, CONFIG_ROW_host_slab_bytes,
			   page == 4096 ?
				   "is not a multiple of 4096" :
				   "is not a multiple of 2M, as [host] huge_pages = 2m needs");
	else if (c->host_slab_bytes > least)
		fail_check(r, CONFIG_ROW_host_slab_bytes,
			   c->host_bytes.n ? "is more than [host] bytes of a node" :
					     "is more than [host] bytes");
}

static void check_codecs(struct reader *r)
{
	const struct config *c = r->config;

	if ((c->codec_allow >> c->codec_default & 1) == 0)
		fail_check(r, CONFIG_ROW_codec_default,
			   "is not in [codec] allow: name a default that is");
	if (sound(r, "nvme"))
		check_tier_codec(r, CONFIG_ROW_nvme_codec, c->nvme_codec);
	if (sound(r, "redis"))
		check_tier_codec(r, CONFIG_ROW_redis_codec, c->redis_codec);
}

/* The checks that look at several values. */
static void check_together(struct reader *r)
{
	static const struct {
		const char *section;
		void (*check)(struct reader *r);
	} checks[] = {
		{ "socket", check_sockets }, { "host", check_host },    { "nvme", check_nvme },
		{ "redis", check_redis },    { "codec", check_codecs }, { "stats", check_stats },
	};

	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
		if (sound(r, checks[i].section))
			checks[i].check(r);
}

int config_parse(FILE *in, const char *name, struct config *ret, struct config_notes *faults)
{
	char line[LINE_BYTES];
	struct config config;
	struct reader r = { .in = in, .config = &config, .faults = faults };

	memset(&config, 0, sizeof(config));
	memset(faults, 0, sizeof(*faults));
	config.file = name;
	config.n_sockets = 1;
	set_defaults(&config, 0);
	while (in && read_line(&r, line))
		take_line(&r, line);
	if (in && ferror(in)) {
		const int error = errno != 0 ? errno : EIO;

		memset(faults, 0, sizeof(*faults));
		config_note(faults, name, 0, "%s", strerror(error));
		return -error;
	}
	check_together(&r);
	if (faults->n > 0)
		return -EINVAL;
	*ret = config;
	return 0;
}

/* It does not block, since the path may lead to a FIFO without a writer. */
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

int config_load(const char *path, struct config *ret, struct config_notes *faults)
{
	FILE *in = NULL;
	int r;

	if (!path)
		return config_parse(NULL, "defaults", ret, faults);
	r = open_regular(path, &in);
	if (r) {
		memset(faults, 0, sizeof(*faults));
		config_note(faults, path, 0, "%s",
			    r == -EPERM ? "is no regular file, or may not be opened" :
					  strerror(-r));
		return r;
	}
	r = config_parse(in, path, ret, faults);
	(void)fclose(in);
	return r;
}

int config_group(const char *section, const char *name, gid_t *ret, char *text, size_t n)
{
	const struct group *group = name[0] != '\0' ? getgrnam(name) : NULL;
	char *end;
	const unsigned long number = strtoul(name, &end, 10);

	if (name[0] == '\0')
		return 0;
	if (!group && *end != '\0')
		return text_fail(
			text, n, -EINVAL,
			"[%s] group: there is no group \"%s\" here; groupadd it, or correct the "
			"name",
			section, name);
	*ret = group ? group->gr_gid : (gid_t)number;
	return 0;
}

/* --- figures that follow from other keys, or from the machine --- */

enum {                               /* [index] max_blocks = 0 */
       HOST_BLOCK_BYTES = 4096,      /* as if all blocks in memory were this small */
       NVME_BLOCK_BYTES = 128 << 10, /* and all on NVMe */
       MAX_BLOCKS = 256 << 20,
       DEVICE_DEPTH = 64,
       MIN_HINTED = 64, /* blocks with hints */
       MAX_HINTED = 256 << 10,
};

uint32_t config_spin_us(void)
{
	return thread_cpus() <= 2 ? 0 : 50;
}

static_assert((int)TIER_MAX_NODES == (int)CONFIG_NODES_MAX && TIER_BYTES_AUTO == CONFIG_AUTO,
	      "the same limits");

void config_host(const struct config *config, struct tier_conf *ret)
{
	*ret = (struct tier_conf){
		.bytes = config->host_bytes.bytes,
		.slab_bytes = config->host_slab_bytes,
		.huge_pages = config->host_huge_pages,
		.lock = config->host_lock,
		.n_nodes = config->host_bytes.n,
	};
	for (uint32_t i = 0; i < ret->n_nodes; i++)
		ret->nodes[i] =
			(struct tier_node){ .node = (int32_t)config->host_bytes.nodes[i].node,
					    .bytes = config->host_bytes.nodes[i].bytes };
}

uint32_t config_device_depth(void)
{
	return DEVICE_DEPTH;
}

uint32_t config_ring_entries(const struct config *config)
{
	uint32_t entries = CONFIG_RING_ENTRIES;

	while (entries > CONFIG_MAX_OPS / config->socket_max_clients)
		entries /= 2;
	return entries;
}

uint32_t config_max_hinted(const struct config *config, uint64_t host_bytes)
{
	const uint64_t quarter = config_max_blocks(config, host_bytes) / 4;

	return quarter < MIN_HINTED ? MIN_HINTED :
	       quarter < MAX_HINTED ? (uint32_t)quarter :
				      MAX_HINTED;
}

uint64_t config_max_blocks(const struct config *config, uint64_t host_bytes)
{
	const char *cursor = config->nvme_path;
	char path[CONFIG_PATH_BYTES];
	uint64_t max = host_bytes / HOST_BLOCK_BYTES;

	if (config->index_max_blocks > 0)
		return config->index_max_blocks;
	while (config_next_item(&cursor, ":", path))
		max += config->nvme_bytes / NVME_BLOCK_BYTES;
	return max < MAX_BLOCKS ? max : MAX_BLOCKS;
}

uint64_t config_fit_segment(uint64_t store_bytes, uint64_t segment_bytes)
{
	while (store_bytes < NVME_DATA_OFFSET + NVME_MIN_SEGMENTS * segment_bytes &&
	       segment_bytes / 2 >= NVME_MIN_SEGMENT_BYTES)
		segment_bytes /= 2;
	while (store_bytes > NVME_DATA_OFFSET + NVME_MAX_SEGMENTS * segment_bytes &&
	       segment_bytes * 2 <= NVME_MAX_SEGMENT_BYTES)
		segment_bytes *= 2;
	return segment_bytes;
}
