/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_value.c - see config_value.h.
 *
 * Invariant: config_value(config_text(x)) gives x back, for every type (tests/unit/unit_config.c).
 */
#include "config_value.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "config_endpoints.h"
#include "daemon/base/log.h"

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

/* Digits, then a suffix of the table. -EINVAL with a reason; -ERANGE: does not fit into 64 bits. */
static int parse_number(const char *text, const struct suffix *suffix, int base, int64_t *ret,
			char *why, size_t n)
{
	const char *digits = *text == '-' ? text + 1 : text;
	char *end;
	long long value;

	/* strtoll alone would also take blanks, '+' and "0x" */
	if (!isdigit((unsigned char)*digits) ||
	    (digits[0] == '0' && tolower((unsigned char)digits[1]) == 'x')) {
		snprintf(why, n, "is not a number");
		return -EINVAL;
	}
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

		snprintf(why, n, "has an unknown unit \"%s\"",
			 log_escape(end, shown, sizeof(shown)));
		return -EINVAL;
	}
	return __builtin_mul_overflow(value, suffix->factor, ret) ? -ERANGE : 0;
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

static int parse_bool(const char *text, bool *ret)
{
	const bool yes = strcmp(text, "yes") == 0 || strcmp(text, "true") == 0;

	if (!yes && strcmp(text, "no") != 0 && strcmp(text, "false") != 0)
		return -EINVAL;
	*ret = yes;
	return 0;
}

static int value_string(const struct config_row *row, const char *text, char *field, char *why,
			size_t n)
{
	const size_t length = strlen(text);

	if ((int64_t)length < row->min || (int64_t)length > row->max) {
		snprintf(why, n, "is %zu bytes long", length);
		return -EINVAL;
	}
	for (const char *c = text; *c != '\0'; c++) {
		if (iscntrl((unsigned char)*c)) {
			snprintf(why, n, "has a control character in it");
			return -EINVAL;
		}
	}
	if (row->type == CONFIG_TYPE_PATH && length > 0 && text[0] != '/') {
		snprintf(why, n, "does not begin with /");
		return -EINVAL;
	}
	memcpy(field, text, length + 1);
	return 0;
}

bool config_paths_next(const char **cursor, char ret[CONFIG_PATH_BYTES])
{
	const size_t length = strcspn(*cursor, ":");

	if (**cursor == '\0')
		return false;
	assert(length < CONFIG_PATH_BYTES);
	memcpy(ret, *cursor, length);
	ret[length] = '\0';
	*cursor += length + ((*cursor)[length] == ':');
	return true;
}

/* Whether the list that ends at `end` has this item. */
static bool listed(const char *list, const char *end, const char *item, size_t length)
{
	while (list < end) {
		const size_t here = strcspn(list, ":");

		if (here == length && memcmp(list, item, length) == 0)
			return true;
		list += here + 1;
	}
	return false;
}

/* Why one item of a list of paths is none; NULL: it is. */
static const char *path_fault(const char *item, size_t length)
{
	if (length == 0)
		return "has an empty path in it";
	if (item[0] != '/')
		return "has a path in it that does not begin with /";
	if (length >= CONFIG_PATH_BYTES)
		return "has a path of more than 255 bytes in it";
	return NULL;
}

static int value_paths(const struct config_row *row, const char *text, char *field, char *why,
		       size_t n)
{
	const char *item = text, *fault = NULL;
	int items = 0, r = 0;

	while (*text != '\0' && !fault) {
		const size_t length = strcspn(item, ":");

		fault = path_fault(item, length);
		if (!fault && listed(text, item, item, length))
			fault = "has the same path twice";
		if (!fault && ++items > CONFIG_PATHS_MAX)
			fault = "has more than 16 paths";
		if (item[length] == '\0')
			break;
		item += length + 1;
	}
	if (!fault)
		r = value_string(row, text, field, why, n);
	else
		snprintf(why, n, "%s", fault);
	return !fault ? r : -EINVAL;
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
	if (may_be_auto(row) && strcmp(text, "auto") == 0) {
		*ret = (int64_t)CONFIG_AUTO;
		return 0;
	}
	r = parse_number(text, suffixes_of(row->type), row->type == CONFIG_TYPE_MODE ? 8 : 10, ret,
			 why, n);
	if (r == -ERANGE || (r == 0 && (*ret < row->min || *ret > row->max))) {
		snprintf(why, n, "is out of range");
		r = -EINVAL;
	}
	return r;
}

/* "1:4G", one item of several. */
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
		if (nodes->nodes[i].node == (uint32_t)node) {
			snprintf(why, n, "has node %u twice", (unsigned)node);
			return -EINVAL;
		}
	if (nodes->n == CONFIG_NODES_MAX || (uint64_t)number == CONFIG_AUTO ||
	    (int64_t)nodes->bytes + number > row->max) {
		snprintf(why, n, "%s",
			 nodes->n == CONFIG_NODES_MAX ? "has more than 16 nodes" :
							"is out of range");
		return -EINVAL;
	}
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
		snprintf(why, n, "is longer than 511 bytes");
		r = -EINVAL;
	} else {
		while (r == 0 && (item = strsep(&rest, ",")) != NULL)
			r = value_node(row, item + strspn(item, " \t"), &nodes, why, n);
	}
	if (r == 0)
		memcpy(ret, &nodes, sizeof(nodes));
	return r;
}

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
		return value_paths(row, text, field, why, n);
	case CONFIG_TYPE_ENDPOINTS:
		return config_endpoints_value(text, field, why, n);
	case CONFIG_TYPE_HOSTS:
		return config_hosts_value(text, field, why, n);
	case CONFIG_TYPE_NODES:
		return value_nodes(row, text, field, why, n);
	case CONFIG_TYPE_BOOL:
		snprintf(why, n, "is neither yes nor no");
		return parse_bool(text, field);
	default:
		r = value_number(row, text, &number, why, n);
	}
	if (r < 0)
		return r;
	switch (row->type) {
	case CONFIG_TYPE_BYTES:
		*(uint64_t *)field = (uint64_t)number;
		break;
	case CONFIG_TYPE_US:
		*(int32_t *)field = (int32_t)number;
		break;
	default:
		*(uint32_t *)field = (uint32_t)number;
	}
	return 0;
}

/* With the largest suffix that divides it. */
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

/* "8G", or "0:8G,1:4G". */
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
		snprintf(ret, n, "%" PRId32, *(const int32_t *)field);
		break;
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
