/* SPDX-License-Identifier: Apache-2.0 */
/* config_print.c - see config_print.h. */
#include "config_print.h"

#include <string.h>

#include "config_endpoints.h"
#include "config_value.h"
#include "daemon/base/text.h"

static bool first_of_section(size_t i)
{
	return i == 0 || strcmp(config_rows[i].section, config_rows[i - 1].section) != 0;
}

/* A line for each item: all in one may be longer than a line may be. */
static void print_list(const struct config_row *row, const char *list, FILE *out)
{
	const bool paths = row->type == CONFIG_TYPE_PATHS;
	char item[CONFIG_PATH_BYTES > CONFIG_ENDPOINT_BYTES ? CONFIG_PATH_BYTES :
							      CONFIG_ENDPOINT_BYTES];

	if (list[0] == '\0')
		fprintf(out, "%s = \n", row->key);
	while (paths ? config_paths_next(&list, item) : config_endpoints_next(&list, item))
		fprintf(out, "%s = %s\n", row->key, item);
}

static void print_nodes(const struct config_row *row, const char *list, FILE *out)
{
	for (const char *item = list; item; item = strchr(item, ',') ? strchr(item, ',') + 1 : NULL)
		fprintf(out, "%s = %.*s\n", row->key, (int)strcspn(item, ","), item);
}

void config_print(const struct config *config, FILE *out)
{
	char value[CONFIG_ENDPOINTS_BYTES];

	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		const struct config_row *row = &config_rows[i];

		if (first_of_section(i))
			fprintf(out, "%s[%s]\n", i == 0 ? "" : "\n", row->section);
		(void)config_text(row, config, value, sizeof(value));
		if (row->type == CONFIG_TYPE_PATHS || row->type == CONFIG_TYPE_ENDPOINTS ||
		    row->type == CONFIG_TYPE_HOSTS)
			print_list(row, value, out);
		else if (row->type == CONFIG_TYPE_NODES)
			print_nodes(row, value, out);
		else
			fprintf(out, "%s = %s\n", row->key, value);
	}
}

void config_print_help(FILE *out)
{
	char range[128];

	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		const struct config_row *row = &config_rows[i];

		if (first_of_section(i))
			fprintf(out, "\n  [%s]\n", row->section);
		fprintf(out, "    %s = %s    (%s)\n", row->key, row->dflt,
			config_range(row, range, sizeof(range)));
		text_wrap(out, row->prose, 0, 8, TEXT_WIDTH);
	}
}

void config_print_man(FILE *out)
{
	char range[128];

	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		const struct config_row *row = &config_rows[i];

		if (first_of_section(i))
			fprintf(out, "%s.Ss [%s]\n.Bl -tag -width Ds\n", i == 0 ? "" : ".El\n",
				row->section);
		fprintf(out, ".It Ic %s No = Ar %s\n", row->key,
			row->dflt[0] == '\0' ? "\\&" : row->dflt);
		/* a line that begins with . or ' would be a request */
		fprintf(out, "\\&%s\n.br\nAllowed: %s\n", row->prose,
			config_range(row, range, sizeof(range)));
	}
	fprintf(out, ".El\n");
}
