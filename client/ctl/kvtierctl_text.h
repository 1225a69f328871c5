/* SPDX-License-Identifier: Apache-2.0 */
/* kvtierctl_text.h - numbers, times, tables and progress for people. */
#ifndef KVTIERCTL_TEXT_H
#define KVTIERCTL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t clock_ns(void);                               /* CLOCK_MONOTONIC */
char *text_bytes(uint64_t bytes, char *ret, size_t n); /* "1.5 GiB" */
char *text_age(uint64_t seconds, char *ret, size_t n); /* "3h 2m" */
uint64_t whole_number(double value);                   /* cut to the type's range */
bool parse_bytes(const char *text, uint64_t *ret);     /* 512M, 1GiB; > 0 */
/* with quotes, to stdout; at most 300 bytes */
void print_json_string(const char *text);

/* One line on stderr, written over itself, when that is a terminal and it takes over two seconds.
 * All else zero. */
struct progress {
	const char *what;
	uint64_t start_ns, shown_ns;
};
/* total 0: unknown */
void progress_show(struct progress *progress, uint64_t done, uint64_t total, const char *unit);
void progress_end(struct progress *progress); /* takes the line away */

/* A table with aligned columns: cells are copied, escaped for the terminal, and printed by
 * table_print. */
struct table;
struct table *table_new(size_t columns);
void table_cell(struct table *table, const char *text);   /* NULL: "?" */
void table_print(struct table *table, const bool *right); /* columns to align right; frees */

#endif
