/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.h - sentences for people: why something failed, words that were meant, and prose in
 * lines that fit a terminal.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

/* Writes the sentence into text[0 .. n), cut to fit, and returns `error`. text may be NULL if n is
 * 0. */
int text_fail(char *text, size_t n, int error, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

enum { TEXT_WIDTH = 78 }; /* of help and pages */

/* Writes prose and a newline, in lines of at most `width` columns that begin with `indent` blanks.
 * The first line has `column` columns already. Lines are broken at blanks only: a word longer than
 * a line stays whole. */
void text_wrap(FILE *out, const char *prose, int column, int indent, int width);
/* Whether `word` is likelier meant for `known` than for a word before it: it is nearer than *best
 * (64 at first), which becomes its distance. A third of the letters may be wrong, and one more:
 * that allows a typo, and not another word. */
bool text_close_to(const char *word, const char *known, unsigned *best);
/* The columns that printable UTF-8 text takes, one for each character. */
int text_columns(const char *text);
