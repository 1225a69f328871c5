/* SPDX-License-Identifier: Apache-2.0 */
/*
 * script.c - reads a text into lines of words. A line that does not begin with blanks is a heading;
 * lines that are indented below another one are its block. A heading or a verb that there is not
 * ends the program before the first case, with file and line.
 *
 *	# a remark
 *	make: lane=wait			(in a remark of the first lines: facts for the build)
 *	let small = [host] bytes=1M	words that $small stands for in the lines below
 *	vary io io_uring threads	each case runs once for each word, which $io is then
 *	gpu [emulated] late=2		a driver, emulated with these settings; emulated: no other
 *	include tests/scenario/x.inc	its lines stand here
 *	define stored N			a verb of one's own; its lines have $N
 *	begin				before each case
 *	together			before the first case only: all share one world
 *	end				after each case that came to its end
 *	case the_sentence_that_it_proves
 */
#include "scenario.h"

enum { LINES = 2000, LINE_BYTES = 4096 };

struct script script;
static size_t n_lines;

static _Noreturn void wrong(const struct line *l, const char *what, const char *word)
{
	(void)fprintf(stderr, "%s:%d: %s %s\n", l->file, l->number, what, word);
	exit(1);
}

/* --- words --- */

/* The character behind a backslash; a dollar that is none of ours is kept as \1 (run.c). */
static char escaped(char c)
{
	static const char from[] = "ntre$", to[] = "\n\t\r\033\1";
	const char *at = strchr(from, c);

	return at ? to[at - from] : c;
}

/* One word from *text on, into ret; false: a quote or a bracket is left open. */
static bool take_word(const char **text, char *ret)
{
	bool quoted = false;
	int brackets = 0;

	for (; **text && (quoted || brackets || !strchr(" \t", **text)); (*text)++) {
		const char c = **text;

		if (c == '"' && !brackets) {
			quoted = !quoted;
			if (quoted && (*text)[1] && ret[-1] == '\0')
				*ret++ = '"'; /* a word in quotes */
			continue;
		}
		if (c == '\\' && (*text)[1] && !brackets) {
			*ret++ = escaped(*++*text);
			continue;
		}
		brackets += c == '(' && (brackets || ret[-1] == '$');
		brackets -= c == ')' && brackets;
		*ret++ = c;
	}
	*ret = '\0';
	return !quoted && !brackets;
}

const char *script_split(const char *text, char **words, int max, int *ret_n)
{
	char word[LINE_BYTES + 1] = "";
	const char *at = text;
	int n = 0;

	for (;;) {
		at += strspn(at, " \t");
		if (!*at || (*at == '#' && (at == text || strchr(" \t", at[-1]))))
			break;
		if (!take_word(&at, word + 1))
			return "a quote or a bracket is open at the end of the line";
		if (n == max)
			return "too many words: let a name stand for some";
		words[n] = strdup(word + 1);
		if (!words[n++])
			abort();
	}
	*ret_n = n;
	return NULL;
}

/* --- lines --- */

/* Words that a heading "let" has are put in the place of its name. */
static void put_lets(struct line *l)
{
	for (int i = 0; i < l->n; i++) {
		const struct line *let =
			l->words[i][0] == '$' ? script_heading("let", l->words[i] + 1) : NULL;
		const int more = let ? let->n - 3 : 0;

		if (!let)
			continue;
		if (l->n + more - 1 > WORDS)
			wrong(l, "too many words:", l->words[i]);
		free(l->words[i]);
		memmove(l->words + i + more, l->words + i + 1,
			(size_t)(l->n - i - 1) * sizeof(l->words[0]));
		for (int k = 0; k < more; k++)
			l->words[i + k] = strdup(let->words[3 + k]);
		l->n += more - 1;
		i += more - 1;
	}
}

static void add_line(const char *file, int number, const char *text)
{
	struct line *l = &script.lines[n_lines];
	const char *what;

	*l = (struct line){ .file = file, .number = number };
	l->indent = (int)strspn(text, " \t");
	what = script_split(text, l->words, WORDS, &l->n);
	if (what)
		wrong(l, what, "");
	if (l->n == 0)
		return;
	put_lets(l);
	if (++n_lines == LINES)
		wrong(l, "the text has too many lines: divide it", "");
	script.lines[n_lines].n = 0;
}

static void read_lines(const char *file)
{
	char text[LINE_BYTES];
	FILE *f = fopen(file, "re");
	int number = 0;
	size_t used = 0;

	if (!f) {
		(void)fprintf(stderr, "%s: %s\n", file, strerror(errno));
		exit(1);
	}
	while (fgets(text + used, (int)(sizeof(text) - used), f)) {
		number++;
		used = strcspn(text, "\n");
		if (used > 0 && text[used - 1] == '\\') { /* the next line belongs to it */
			used--;
			continue;
		}
		text[used] = '\0';
		used = 0;
		if (strncmp(text, "include ", 8) == 0)
			read_lines(strdup(text + 8));
		else
			add_line(file, number, text);
	}
	(void)fclose(f);
}

const struct line *script_heading(const char *word, const char *name)
{
	for (const struct line *l = script.lines; l->n > 0; l++)
		if (l->indent == 0 && strcmp(l->words[0], word) == 0 &&
		    (!name || (l->n > 1 && strcmp(l->words[1], name) == 0)))
			return l;
	return NULL;
}

const struct line *script_end(const struct line *l)
{
	const int indent = l->indent;

	for (l++; l->n > 0 && l->indent > indent; l++)
		;
	return l;
}

bool script_says(const char *verb)
{
	for (const struct line *l = script.lines; l->n > 0; l++)
		if (l->indent > 0 && strcmp(l->words[0], verb) == 0)
			return true;
	return false;
}

/* --- is each line one that can be done? --- */

static bool is_heading(const struct line *l)
{
	static const struct {
		const char *word;
		int least;
	} headings[] = { { "let", 3 },   { "vary", 3 },     { "gpu", 1 }, { "define", 2 },
			 { "begin", 1 }, { "together", 1 }, { "end", 1 }, { "case", 2 } };

	for (size_t i = 0; i < sizeof(headings) / sizeof(headings[0]); i++)
		if (strcmp(l->words[0], headings[i].word) == 0)
			return l->n >= headings[i].least;
	return false;
}

static void check_line(const struct line *l)
{
	const bool block = l->indent == 0 || strcmp(l->words[0], "for") == 0 ||
			   strcmp(l->words[0], "until") == 0;

	if (l->indent == 0 && !is_heading(l))
		wrong(l,
		      "no such heading: let NAME = WORDS, vary NAME WORDS, gpu, include FILE, "
		      "define VERB NAMES, begin, together, end, case NAME; verbs are indented:",
		      l->words[0]);
	if (l->indent > 0 && !verb_named(l->words[0]) && !script_heading("define", l->words[0]))
		wrong(l, "no such verb; kvt --help lists all. It is", l->words[0]);
	if (!block && script_end(l) != l + 1)
		wrong(l + 1, "lines are indented below a heading, for and until; not below",
		      l->words[0]);
}

void script_read(const char *path)
{
	const char *slash = strrchr(path, '/');
	char *name = strdup(slash ? slash + 1 : path);

	name[strcspn(name, ".")] = '\0';
	script = (struct script){ .name = name, .lines = calloc(LINES + 1, sizeof(struct line)) };
	read_lines(path);
	for (const struct line *l = script.lines; l->n > 0; l++)
		check_line(l);
}
