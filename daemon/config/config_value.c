/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_value.c - see config_value.h.
 *
 * Invariant: config_value(config_text(x)) gives x back, for every type (tests/unit/unit_config.c).
 */
#include "config_value.h"

#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "tiers/redis/redis_hosts.h"

enum { START, RELOAD }; /* the column `when` */
#define ROW(section, key, TYPE, dflt, min, max, unit, when, prose, member) \
	{ section,                                                         \
	  key,                                                             \
	  CONFIG_TYPE_##TYPE,                                              \
	  dflt,                                                            \
	  min,                                                             \
	  max,                                                             \
	  (when) == RELOAD,                                                \
	  unit,                                                            \
	  prose,                                                           \
	  offsetof(struct config, member),                                 \
	  sizeof(((struct config *)0)->member) },
#define CONFIG(section, key, ...) ROW(#section, #key, __VA_ARGS__, section##_##key)
#define SOCKET(key, ...)          ROW("socket", #key, __VA_ARGS__, sockets[0].key)
const struct config_row config_rows[CONFIG_ROWS] = {
#include "tbl_config.h"
};

struct suffix {
	const char *text;
	int64_t factor;
};

static const struct suffix suffixes_bytes[] = {
	{ "", 1 },
	{ "K", 1LL << 10 },
	{ "M", 1LL << 20 },
	{ "G", 1LL << 30 },
	{ "T", 1LL << 40 },
	{ "B", 1 },
	{ "KiB", 1LL << 10 },
	{ "MiB", 1LL << 20 },
	{ "GiB", 1LL << 30 },
	{ "TiB", 1LL << 40 },
	{ NULL, 0 },
};
static const struct suffix suffixes_us[] = {
	{ "", 1 }, { "us", 1 }, { "ms", 1000 }, { "s", 1000000 }, { NULL, 0 },
};
static const struct suffix suffixes_seconds[] = {
	{ "", 1 }, { "s", 1 }, { "m", 60 }, { "h", 3600 }, { "d", 86400 }, { NULL, 0 },
};
static const struct suffix suffixes_none[] = { { "", 1 }, { NULL, 0 } };

static const struct suffix *suffixes_of(enum config_type type)
{
	switch (type) {
	case CONFIG_TYPE_BYTES:
	case CONFIG_TYPE_NODES:
		return suffixes_bytes;
	case CONFIG_TYPE_US:
		return suffixes_us;
	case CONFIG_TYPE_SECONDS:
		return suffixes_seconds;
	default:
		return suffixes_none;
	}
}

/* Reads digits and a suffix of the table. -EINVAL with a reason; -ERANGE: it does not fit into 64
 * bits. */
static int parse_number(const char *text, const struct suffix *suffix, int base, int64_t *ret,
			char *why, size_t n)
{
	const char *digits = *text == '-' ? text + 1 : text;
	char *end;
	long long value;

	/* strtoll alone would also take blanks, '+' and "0x" */
	if (!isdigit((unsigned char)*digits) ||
	    (digits[0] == '0' && tolower((unsigned char)digits[1]) == 'x'))
		return text_fail(why, n, -EINVAL, "is not a number");
	errno = 0;
	value = strtoll(text, &end, base);
	if (errno == ERANGE)
		return -ERANGE;
	while (*end == ' ' || *end == '\t')
		end++;
	while (suffix->text && strcmp(suffix->text, end) != 0)
		suffix++;
	if (!suffix->text) {
		char shown[32];

		return text_fail(why, n, -EINVAL, "has an unknown unit \"%s\"",
				 log_escape(end, shown, sizeof(shown)));
	}
	return __builtin_mul_overflow(value, suffix->factor, ret) ? -ERANGE : 0;
}

bool config_bytes(const char *text, uint64_t *ret)
{
	int64_t value;
	char why[64];

	if (parse_number(text, suffixes_bytes, 10, &value, why, sizeof(why)) < 0 || value <= 0)
		return false;
	*ret = (uint64_t)value;
	return true;
}

/* Position of text in "a|b|c", or -1. */
static int64_t choice_find(const char *choices, const char *text)
{
	const size_t length = strlen(text);
	int64_t position = 0;

	for (const char *at = choices; at; position++) {
		const size_t here = strcspn(at, "|");

		if (here == length && memcmp(at, text, here) == 0)
			return position;
		at = at[here] == '|' ? at + here + 1 : NULL;
	}
	return -1;
}

static void choice_name(const char *choices, uint64_t position, char *ret, size_t n)
{
	while (position-- > 0 && strchr(choices, '|') != NULL)
		choices = strchr(choices, '|') + 1;
	snprintf(ret, n, "%.*s", (int)strcspn(choices, "|"), choices);
}

/* "a c" of "a|b|c": the bits 1 << position. */
static int value_choices(const struct config_row *row, const char *text, uint32_t *ret, char *why,
			 size_t n)
{
	uint32_t bits = 0;
	char word[32];

	for (text += strspn(text, " \t"); *text != '\0'; text += strspn(text, " \t")) {
		const size_t length = strcspn(text, " \t");
		int64_t position;

		snprintf(word, sizeof(word), "%.*s", (int)length, text);
		position = length < sizeof(word) ? choice_find(row->unit, word) : -1;
		if (position < 0)
			return text_fail(why, n, -EINVAL, "has a word that is none of the choices");
		bits |= 1u << position;
		text += length;
	}
	if (bits == 0)
		return text_fail(why, n, -EINVAL, "names none of the choices");
	*ret = bits;
	return 0;
}

/* Writes the choices of these bits. Returns ret. */
static char *choices_text(const struct config_row *row, uint32_t bits, char *ret, size_t n)
{
	char name[32];
	size_t used = 0;

	for (uint32_t i = 0; bits >> i != 0 && used < n; i++) {
		if ((bits >> i & 1) == 0)
			continue;
		choice_name(row->unit, i, name, sizeof(name));
		used += (size_t)snprintf(ret + used, n - used, "%s%s", used ? " " : "", name);
	}
	return ret;
}

static int value_string(const struct config_row *row, const char *text, char *field, char *why,
			size_t n)
{
	const size_t length = strlen(text);

	if ((int64_t)length < row->min || (int64_t)length > row->max)
		return text_fail(why, n, -EINVAL, "is %zu bytes long", length);
	for (const char *c = text; *c != '\0'; c++)
		if (iscntrl((unsigned char)*c))
			return text_fail(why, n, -EINVAL, "has a control character in it");
	if (row->type == CONFIG_TYPE_PATH && length > 0 && text[0] != '/')
		return text_fail(why, n, -EINVAL, "does not begin with /");
	memcpy(field, text, length + 1);
	return 0;
}

/* BYTES and COUNT may be auto where the row's unit has a second word. */
static bool may_be_auto(const struct config_row *row)
{
	return (row->type == CONFIG_TYPE_BYTES || row->type == CONFIG_TYPE_NODES ||
		row->type == CONFIG_TYPE_COUNT) &&
	       strchr(row->unit, '|') != NULL;
}

static int value_number(const struct config_row *row, const char *text, int64_t *ret, char *why,
			size_t n)
{
	int r;

	if (row->type == CONFIG_TYPE_ENUM) {
		*ret = choice_find(row->unit, text);
		snprintf(why, n, "is none of the choices");
		return *ret < 0 ? -EINVAL : 0;
	}
	if (row->type == CONFIG_TYPE_BOOL) {
		*ret = choice_find("no|yes|false|true", text);
		snprintf(why, n, "is neither yes nor no");
		return *ret < 0 ? -EINVAL : 0;
	}
	if (may_be_auto(row) && strcmp(text, "auto") == 0) {
		*ret = (int64_t)CONFIG_AUTO;
		return 0;
	}
	r = parse_number(text, suffixes_of(row->type), row->type == CONFIG_TYPE_MODE ? 8 : 10, ret,
			 why, n);
	if (r == -ERANGE || (r == 0 && (*ret < row->min || *ret > row->max)))
		return text_fail(why, n, -EINVAL, "is out of range");
	return r;
}

/* Reads one item of several, such as "1:4G". */
static int value_node(const struct config_row *row, char *item, struct config_nodes *nodes,
		      char *why, size_t n)
{
	struct config_node *last = &nodes->nodes[nodes->n];
	char *bytes = strchr(item, ':');
	int64_t node = 0, number = 0;
	int r;

	snprintf(why, n, "has an item that is no NODE:BYTES, with a node of 0 to %d",
		 (int)CONFIG_NODE_MOST);
	if (!bytes)
		return -EINVAL;
	*bytes++ = '\0';
	if (parse_number(item, suffixes_none, 10, &node, (char[64]){ "" }, 64) || node < 0 ||
	    node > CONFIG_NODE_MOST)
		return -EINVAL;
	r = value_number(row, bytes, &number, why, n);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < nodes->n; i++)
		if (nodes->nodes[i].node == (uint32_t)node)
			return text_fail(why, n, -EINVAL, "has node %u twice", (unsigned)node);
	if (nodes->n == CONFIG_NODES_MAX)
		return text_fail(why, n, -EINVAL, "has more than 16 nodes");
	if ((uint64_t)number == CONFIG_AUTO || (int64_t)nodes->bytes + number > row->max)
		return text_fail(why, n, -EINVAL, "is out of range");
	last->node = (uint32_t)node;
	last->bytes = (uint64_t)number;
	nodes->n++;
	nodes->bytes += (uint64_t)number;
	return 0;
}

static int value_nodes(const struct config_row *row, const char *text, struct config_nodes *ret,
		       char *why, size_t n)
{
	char copy[512], *rest = copy, *item;
	struct config_nodes nodes;
	int64_t number = 0;
	int r = 0;

	memset(&nodes, 0, sizeof(nodes));
	if (!strpbrk(text, ":,")) {
		r = value_number(row, text, &number, why, n);
		nodes.bytes = (uint64_t)number;
	} else if (snprintf(copy, sizeof(copy), "%s", text) >= (int)sizeof(copy)) {
		r = text_fail(why, n, -EINVAL, "is longer than 511 bytes");
	} else {
		while (r == 0 && (item = strsep(&rest, ",")) != NULL)
			r = value_node(row, item + strspn(item, " \t"), &nodes, why, n);
	}
	if (r == 0)
		memcpy(ret, &nodes, sizeof(nodes));
	return r;
}

/* --- lists: paths, endpoints, hosts --- */

enum { DIGITS_OF_A_PORT = 5 };

/* A port may be left out. */
static const char *port_fault(const char *port)
{
	const size_t digits = *port == ':' ? strspn(port + 1, "0123456789") : 0;
	long number;

	if (*port == '\0')
		return NULL;
	if (digits == 0 || digits > DIGITS_OF_A_PORT || port[1 + digits] != '\0')
		return "has a port in it that is no number";
	number = strtol(port + 1, NULL, 10);
	return number < 1 || number > 65535 ? "has a port in it that is not 1 to 65535" : NULL;
}

static const char *unix_fault(const char *path)
{
	if (*path != '/')
		return "has unix: in it without a path that begins with /";
	return strlen(path) > CONFIG_SUN_PATH_MAX ?
		       "has a unix: path of more than 107 bytes in it" :
		       NULL;
}

/* "[v6]" or "[v6]:port"; *ret_port: the text behind the ]. */
static const char *v6_fault(const char *item, const char **ret_port)
{
	const size_t length = strcspn(item + 1, "]");
	char address[INET6_ADDRSTRLEN];
	struct in6_addr binary;

	if (item[1 + length] != ']' || length >= sizeof(address))
		return "has [ in it without an IPv6 address and ]";
	memcpy(address, item + 1, length);
	address[length] = '\0';
	*ret_port = item + length + 2;
	return inet_pton(AF_INET6, address, &binary) == 1 ?
		       NULL :
		       "has something in [ ] that is no IPv6 address";
}

static const char *host_fault(const char *item, const char **ret_port)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	const size_t length = strspn(item, letters);

	*ret_port = item + length;
	if (length == 0 || (item[length] != '\0' && item[length] != ':'))
		return "has something in it that is none of host:port, [v6]:port, unix:/path";
	return strchr(item + length + (item[length] != '\0'), ':') ?
		       "has an IPv6 address in it that is not in [ ], or a port too many" :
		       NULL;
}

/* Says why an item is no endpoint. NULL: it is one, and has its port now. */
static const char *endpoint_fault(char item[CONFIG_ENDPOINT_BYTES])
{
	const char *port = "", *fault;

	for (const char *c = item; *c != '\0'; c++) {
		if (iscntrl((unsigned char)*c))
			return "has a control character in it";
	}
	if (strstr(item, "://"))
		return "has a URL in it: give host:port alone; rediss:// is [redis] tls = yes, and "
		       "a password stands in [redis] password_file";
	if (strchr(item, ','))
		return "has a comma in it: put blanks between endpoints, or a line for each";
	if (strncmp(item, "unix:", 5) == 0) {
		fault = unix_fault(item + 5);
		port = NULL;
	} else {
		fault = item[0] == '[' ? v6_fault(item, &port) : host_fault(item, &port);
		if (!fault)
			fault = port_fault(port);
	}
	if (fault || !port || *port != '\0')
		return fault;
	if (strlen(item) + strlen(":6379") >= CONFIG_ENDPOINT_BYTES)
		return "has an endpoint of more than 255 bytes in it";
	strcat(item, ":6379");
	return NULL;
}

static const char *path_fault(const char *item)
{
	if (item[0] == '\0')
		return "has an empty path in it";
	return item[0] == '/' ? NULL : "has a path in it that does not begin with /";
}

const char *config_between(enum config_type type)
{
	switch (type) {
	case CONFIG_TYPE_PATHS:
		return ":";
	case CONFIG_TYPE_NODES:
		return ",";
	case CONFIG_TYPE_ENDPOINTS:
	case CONFIG_TYPE_HOSTS:
		return " ";
	default:
		return "";
	}
}

bool config_next_item(const char **cursor, const char *between, char ret[CONFIG_PATH_BYTES])
{
	const size_t length = strcspn(*cursor, between);

	if (**cursor == '\0')
		return false;
	assert(length < CONFIG_PATH_BYTES);
	memcpy(ret, *cursor, length);
	ret[length] = '\0';
	*cursor += length + ((*cursor)[length] != '\0');
	return true;
}

static bool listed(const char *list, const char *between, const char *item)
{
	char other[CONFIG_PATH_BYTES];

	while (config_next_item(&list, between, other)) {
		if (strcmp(other, item) == 0)
			return true;
	}
	return false;
}

static_assert((int)CONFIG_PATH_BYTES == (int)CONFIG_ENDPOINT_BYTES &&
		      (int)CONFIG_PATHS_MAX == (int)CONFIG_ENDPOINTS_MAX,
	      "paths and endpoints have the same bounds");

/* The items one by one, with one `between` between them. Paths have exactly one in the text, too;
 * others have blanks. */
static int value_list(const struct config_row *row, const char *text, char *field, char *why,
		      size_t n)
{
	static struct redis_hosts known; /* large; config_load() has one thread at a time */
	const bool paths = row->type == CONFIG_TYPE_PATHS, hosts = row->type == CONFIG_TYPE_HOSTS;
	const char *between = config_between(row->type), *noun = paths ? "path" : "endpoint";
	char list[CONFIG_ENDPOINTS_BYTES] = "", item[CONFIG_PATH_BYTES];
	const char *fault = NULL;
	size_t used = 0;
	int items = 0;

	if (hosts) {
		memset(&known, 0, sizeof(known));
		fault = redis_hosts_parse(text, &known);
	}
	for (bool more = *text != '\0'; more && !fault; more = *text++ != '\0') {
		const size_t length = strcspn(text, paths ? between : " \t");

		if (length == 0 && !paths)
			continue;
		if (length >= sizeof(item))
			return text_fail(why, n, -EINVAL, "has %s of more than 255 bytes in it",
					 paths ? "a path" : "an endpoint");
		snprintf(item, sizeof(item), "%.*s", (int)length, text);
		fault = hosts ? NULL : paths ? path_fault(item) : endpoint_fault(item);
		if (!hosts && !fault && listed(list, between, item))
			return text_fail(why, n, -EINVAL, "has the same %s twice", noun);
		if (!hosts && !fault && ++items > CONFIG_PATHS_MAX)
			return text_fail(why, n, -EINVAL, "has more than %d %ss",
					 (int)CONFIG_PATHS_MAX, noun);
		if (used + strlen(item) + 2 > sizeof(list))
			return text_fail(why, n, -EINVAL, "is longer than %d bytes", (int)row->max);
		used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s",
					 used > 0 ? between : "", item);
		text += length;
	}
	return fault ? text_fail(why, n, -EINVAL, "%s", fault) :
		       value_string(row, list, field, why, n);
}

/* --- any value --- */

int config_value(const struct config_row *row, const char *text, struct config *config, char *why,
		 size_t n)
{
	void *field = (char *)config + row->offset;
	int64_t number = 0;
	int r;

	switch (row->type) {
	case CONFIG_TYPE_STRING:
	case CONFIG_TYPE_PATH:
		return value_string(row, text, field, why, n);
	case CONFIG_TYPE_PATHS:
	case CONFIG_TYPE_ENDPOINTS:
	case CONFIG_TYPE_HOSTS:
		return value_list(row, text, field, why, n);
	case CONFIG_TYPE_NODES:
		return value_nodes(row, text, field, why, n);
	case CONFIG_TYPE_CHOICES:
		return value_choices(row, text, field, why, n);
	default:
		r = value_number(row, text, &number, why, n);
	}
	if (r < 0)
		return r;
	switch (row->type) {
	case CONFIG_TYPE_BYTES:
		*(uint64_t *)field = (uint64_t)number;
		break;
	case CONFIG_TYPE_BOOL:
		*(bool *)field = number % 2;
		break;
	default:
		*(uint32_t *)field = (uint32_t)number;
	}
	return 0;
}

/* Writes it with the largest suffix that divides it. */
static char *bytes_text(uint64_t bytes, char *ret, size_t n)
{
	static const char units[] = " KMGT";
	int unit = 0;

	if (bytes == CONFIG_AUTO) {
		snprintf(ret, n, "auto");
		return ret;
	}
	while (unit < 4 && bytes != 0 && bytes % 1024 == 0) {
		bytes /= 1024;
		unit++;
	}
	snprintf(ret, n, unit == 0 ? "%" PRIu64 : "%" PRIu64 "%c", bytes, units[unit]);
	return ret;
}

/* Writes "8G", or "0:8G,1:4G". */
static char *nodes_text(const struct config_nodes *nodes, char *ret, size_t n)
{
	char bytes[32];
	size_t used = 0;

	if (nodes->n == 0)
		return bytes_text(nodes->bytes, ret, n);
	for (uint32_t i = 0; i < nodes->n && used < n; i++)
		used += (size_t)snprintf(ret + used, n - used, "%s%" PRIu32 ":%s", i ? "," : "",
					 nodes->nodes[i].node,
					 bytes_text(nodes->nodes[i].bytes, bytes, sizeof(bytes)));
	return ret;
}

char *config_range(const struct config_row *row, char *ret, size_t n)
{
	char low[32], high[32];

	switch (row->type) {
	case CONFIG_TYPE_BYTES:
	case CONFIG_TYPE_NODES:
		snprintf(ret, n, "%s to %s%s%s", bytes_text((uint64_t)row->min, low, sizeof(low)),
			 bytes_text((uint64_t)row->max, high, sizeof(high)),
			 may_be_auto(row) ? ", or auto" : "",
			 row->type == CONFIG_TYPE_NODES ?
				 ", or NODE:BYTES of at most 16 nodes, ',' between or a line for "
				 "each" :
				 "");
		break;
	case CONFIG_TYPE_BOOL:
	case CONFIG_TYPE_ENUM:
		snprintf(ret, n, "%s", row->unit);
		break;
	case CONFIG_TYPE_CHOICES:
		snprintf(ret, n, "some of %s, blanks between", row->unit);
		break;
	case CONFIG_TYPE_MODE:
		snprintf(ret, n, "%04o to %04o, octal", (unsigned)row->min, (unsigned)row->max);
		break;
	case CONFIG_TYPE_STRING:
		snprintf(ret, n, "%d to %d characters", (int)row->min, (int)row->max);
		break;
	case CONFIG_TYPE_PATH:
		snprintf(ret, n, "an absolute path of at most %d bytes", (int)row->max);
		break;
	case CONFIG_TYPE_PATHS:
		snprintf(ret, n,
			 "at most %d absolute paths, ':' between them or a line for each, together "
			 "at most %d bytes",
			 (int)CONFIG_PATHS_MAX, (int)row->max);
		break;
	case CONFIG_TYPE_ENDPOINTS:
		snprintf(ret, n,
			 "at most %d of host:port, [v6]:port, unix:/path, blanks between or a line "
			 "for each",
			 (int)CONFIG_ENDPOINTS_MAX);
		break;
	case CONFIG_TYPE_HOSTS:
		snprintf(ret, n,
			 "names, .domains, addresses, networks such as 10.0.0.0/8, blanks between, "
			 "together at most %d bytes",
			 (int)row->max);
		break;
	default:
		snprintf(ret, n, "%" PRId64 " to %" PRId64 " %.*s%s", row->min, row->max,
			 (int)strcspn(row->unit, "|"), row->unit,
			 may_be_auto(row) ? ", or auto" : "");
	}
	return ret;
}

char *config_text(const struct config_row *row, const struct config *config, char *ret, size_t n)
{
	const void *field = (const char *)config + row->offset;

	switch (row->type) {
	case CONFIG_TYPE_BYTES:
		return bytes_text(*(const uint64_t *)field, ret, n);
	case CONFIG_TYPE_NODES:
		return nodes_text(field, ret, n);
	case CONFIG_TYPE_BOOL:
		snprintf(ret, n, "%s", *(const bool *)field ? "yes" : "no");
		break;
	case CONFIG_TYPE_ENUM:
		choice_name(row->unit, *(const uint32_t *)field, ret, n);
		break;
	case CONFIG_TYPE_CHOICES:
		return choices_text(row, *(const uint32_t *)field, ret, n);
	case CONFIG_TYPE_STRING:
	case CONFIG_TYPE_PATH:
	case CONFIG_TYPE_PATHS:
	case CONFIG_TYPE_ENDPOINTS:
	case CONFIG_TYPE_HOSTS:
		snprintf(ret, n, "%s", (const char *)field);
		break;
	case CONFIG_TYPE_MODE:
		snprintf(ret, n, "%04o", *(const uint32_t *)field);
		break;
	case CONFIG_TYPE_US:
	case CONFIG_TYPE_COUNT:
	case CONFIG_TYPE_SECONDS:
		if (*(const uint32_t *)field == CONFIG_COUNT_AUTO)
			snprintf(ret, n, "auto");
		else
			snprintf(ret, n, "%" PRIu32, *(const uint32_t *)field);
		break;
	}
	return ret;
}

/* --- all of them --- */

static bool first_of_section(size_t i)
{
	return i == 0 || strcmp(config_rows[i].section, config_rows[i - 1].section) != 0;
}

/* Prints a line for each item of a list, since all in one line may be too long for the reader. */
static void print_key(const struct config_row *row, const char *value, FILE *out)
{
	do {
		const size_t length = strcspn(value, config_between(row->type));

		fprintf(out, "%s = %.*s\n", row->key, (int)length, value);
		value += length + (value[length] != '\0');
	} while (*value != '\0');
}

/* All keys, or those of a [socket NAME]. */
static void print_keys(const struct config *config, uint32_t socket, FILE *out)
{
	char value[CONFIG_ENDPOINTS_BYTES];

	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		const struct config_row row = config_row_at(i, socket);

		if (socket > 0 && !config_row_of_sockets(&config_rows[i]))
			continue;
		if (socket == 0 && first_of_section(i))
			fprintf(out, "%s[%s]\n", i == 0 ? "" : "\n", row.section);
		print_key(&row, config_text(&row, config, value, sizeof(value)), out);
	}
}

void config_print(const struct config *config, FILE *out)
{
	print_keys(config, 0, out);
	for (uint32_t i = 1; i < config->n_sockets; i++) {
		fprintf(out, "\n[socket %s]\n", config->sockets[i].name);
		print_keys(config, i, out);
	}
}

void config_print_help(FILE *out)
{
	char range[128];

	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		const struct config_row *row = &config_rows[i];

		if (first_of_section(i))
			fprintf(out, "\n  [%s]\n", row->section);
		fprintf(out, "    %s = %s    (%s%s)\n", row->key, row->dflt,
			config_range(row, range, sizeof(range)), row->reload ? "; reload" : "");
		text_wrap(out, row->prose, 0, 8, TEXT_WIDTH);
	}
}

/* Writes prose in lines that begin with `lead`. Lines of mdoc have none; there, a line that begins
 * with . or ' would be a request. */
static void print_lines(const char *prose, const char *lead, FILE *out)
{
	char lines[4096] = "";
	FILE *f = fmemopen(lines, sizeof(lines), "w");

	if (!f)
		return;
	text_wrap(f, prose, 0, 0, TEXT_WIDTH - (int)strlen(lead));
	(void)fclose(f);
	for (const char *line = lines; *line != '\0'; line += strcspn(line, "\n") + 1)
		fprintf(out, "%s%s%.*s\n", lead,
			lead[0] == '\0' && (*line == '.' || *line == '\'') ? "\\&" : "",
			(int)strcspn(line, "\n"), line);
}

void config_print_example(FILE *out)
{
	char range[128];

	print_lines(
		"kvtierd.conf - every key of kvtierd with its default. Take the # from in front of "
		"a key, and give it another value. kvtierd --config FILE --check-config names "
		"each mistake. Sizes have units K M G T; times us ms s, and s m h d. A reload "
		"(systemctl reload kvtierd, kvtierctl config reload) applies the keys that say so; "
		"the others need a restart. Made by kvtierd --example-config.",
		"# ", out);
	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		const struct config_row *row = &config_rows[i];

		fputs("\n", out);
		if (first_of_section(i))
			fprintf(out, "[%s]\n\n", row->section);
		print_lines(row->prose, "# ", out);
		fprintf(out, "# Allowed: %s%s\n#%s =%s%s\n",
			config_range(row, range, sizeof(range)),
			row->reload ? "\n# A reload applies it." : "", row->key,
			row->dflt[0] == '\0' ? "" : " ", row->dflt);
	}
}

/* The bytes of the first sentence: to its . or ? or !, and a ) or " behind that, before a blank. */
static size_t sentence_bytes(const char *prose)
{
	for (const char *end = prose; (end = strpbrk(end, ".?!")) != NULL;) {
		end++;
		end += strspn(end, ")\"");
		if (*end == ' ')
			return (size_t)(end - prose);
	}
	return strlen(prose);
}

/* Writes each sentence in lines of its own, as mdoc wants it. */
static void print_mdoc(const char *prose, FILE *out)
{
	char sentence[2048];

	while (*prose != '\0') {
		const size_t n = sentence_bytes(prose);

		snprintf(sentence, sizeof(sentence), "%.*s", (int)n, prose);
		print_lines(sentence, "", out);
		prose += n + strspn(prose + n, " ");
	}
}

void config_print_man(FILE *out)
{
	char range[192];

	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		const struct config_row *row = &config_rows[i];

		if (first_of_section(i))
			fprintf(out, "%s.Ss [%s]\\&\n.Bl -tag -width Ds\n", i == 0 ? "" : ".El\n",
				row->section);
		fprintf(out, ".It Ic %s No = Ar %s\\&\n", row->key, row->dflt);
		print_mdoc(row->prose, out);
		snprintf(range, sizeof(range), "Allowed: ");
		(void)config_range(row, range + strlen(range), sizeof(range) - strlen(range));
		fputs(".br\n", out);
		print_lines(range, "", out);
		if (row->reload)
			fputs(".br\nA reload applies it.\n", out);
	}
	fprintf(out, ".El\n");
}
