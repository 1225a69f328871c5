/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_value.h - the rows of tbl_config.h as data. It reads and writes a value as text, says
 * which values a row allows, and takes the items of a list one by one. It also prints all rows: as
 * a file, for --help, and for the man page.
 */
#pragma once

#include "config.h"

enum config_type {
	CONFIG_TYPE_BYTES,
	CONFIG_TYPE_NODES,
	CONFIG_TYPE_COUNT,
	CONFIG_TYPE_US,
	CONFIG_TYPE_SECONDS,
	CONFIG_TYPE_BOOL,
	CONFIG_TYPE_ENUM,
	CONFIG_TYPE_CHOICES,
	CONFIG_TYPE_STRING,
	CONFIG_TYPE_PATH,
	CONFIG_TYPE_PATHS,
	CONFIG_TYPE_ENDPOINTS,
	CONFIG_TYPE_HOSTS,
	CONFIG_TYPE_MODE,
};

struct config_row {
	const char *section, *key;
	enum config_type type;
	const char *dflt;
	int64_t min, max;
	bool reload; /* a reload applies it */
	const char *unit;
	const char *prose;
	size_t offset, bytes; /* of the field in struct config */
};

extern const struct config_row config_rows[CONFIG_ROWS];

/* Whether each [socket NAME] has this key, too. */
static inline bool config_row_of_sockets(const struct config_row *row)
{
	return row->offset - offsetof(struct config, sockets) < sizeof(struct config_socket);
}

/* The i-th row, as it is for the socket of this place, if sockets have it. */
static inline struct config_row config_row_at(size_t i, uint32_t socket)
{
	struct config_row row = config_rows[i];

	row.offset += socket * sizeof(struct config_socket);
	return row;
}

/* Reads a value into the row's field. 0, or -EINVAL with the reason in why (>= 256 bytes). */
int config_value(const struct config_row *row, const char *text, struct config *config, char *why,
		 size_t n);
/* Reads a number of bytes above 0 that is no key's value: "1000000", "512M", "2 GiB". */
bool config_bytes(const char *text, uint64_t *ret);
/* Says which values the row accepts, such as "64K to 64T". Returns ret. */
char *config_range(const struct config_row *row, char *ret, size_t n);
/* Writes the row's value in `config` as a file would have it. Returns ret. */
char *config_text(const struct config_row *row, const struct config *config, char *ret, size_t n);

/* The character between the items of a list; "" for a type that is no list. */
const char *config_between(enum config_type type);
/* Takes the next item of a list at *cursor, which begins as the field: a path of a PATHS value
 * (between ":"), or an endpoint with its port of an ENDPOINTS value (between " "). False: there is
 * none left. */
bool config_next_item(const char **cursor, const char *between, char ret[CONFIG_PATH_BYTES]);

/* Writes the whole configuration as a file that config_load() reads back to the same. */
void config_print(const struct config *config, FILE *out);
void config_print_help(FILE *out); /* all keys, for --help */
void config_print_man(FILE *out);  /* the same as mdoc, for kvtierd.conf.5 */
/* Writes a file with all keys, each with its help and commented out. */
void config_print_example(FILE *out);
