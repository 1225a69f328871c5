/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.h - prose in lines that fit a terminal.
 */
#ifndef KVTIER_TEXT_H
#define KVTIER_TEXT_H

#include <stdio.h>

enum { TEXT_WIDTH = 78 }; /* of help and pages */

/* Writes prose and a newline, in lines of at most `width` columns that begin with `indent` blanks.
 * The first line has `column` columns already. Lines are broken at blanks only: a word longer than
 * a line stays whole. */
void text_wrap(FILE *out, const char *prose, int column, int indent, int width);
/* Columns that text takes, of printable UTF-8: one a character. */
int text_columns(const char *text);

#endif
