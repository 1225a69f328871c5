/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.c - see text.h.
 */
#include "text.h"

#include <stdarg.h>
#include <string.h>

int text_fail(char *text, size_t n, int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(text, n, format, args);
	va_end(args);
	return error;
}

/* The bytes of a UTF-8 character after its first take no column. */
static int columns_of(const char *text, size_t n)
{
	int columns = 0;

	for (size_t i = 0; i < n; i++)
		columns += (text[i] & 0xc0) != 0x80;
	return columns;
}

int text_columns(const char *text)
{
	return columns_of(text, strlen(text));
}

void text_wrap(FILE *out, const char *prose, int column, int indent, int width)
{
	bool first = true; /* of its line: only the indent stands before it */

	for (;;) {
		int blanks = (int)strspn(prose, " ");
		const size_t bytes = strcspn(prose + blanks, " ");
		const int columns = columns_of(prose + blanks, bytes);

		if (bytes == 0)
			break;
		if (!first && blanks + columns > width - column) {
			fputc('\n', out);
			column = 0;
			first = true;
		}
		if (first)
			blanks = 0;
		if (column < indent && first)
			blanks = indent - column;
		fprintf(out, "%*s%.*s", blanks, "", (int)bytes, prose + strspn(prose, " "));
		column += blanks + columns;
		prose += strspn(prose, " ") + bytes;
		first = false;
	}
	fputc('\n', out);
}

/* Levenshtein's distance of two words; 64 if one has 64 letters or more. */
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

bool text_close_to(const char *word, const char *known, unsigned *best)
{
	const unsigned apart = distance(word, known);

	if (apart >= *best || apart > 1 + strlen(known) / 3)
		return false;
	*best = apart;
	return true;
}
