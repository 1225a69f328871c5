/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - does what the lines of a case say, one after another. A case that fails says which line
 * it was in, through which definitions it came there, and what its daemons logged last.
 */
#include "scenario.h"

enum { NAMES = 64, VALUE = 2048, CALLS = 16, ROWS = 200, ARENA = 1 << 20 };

static struct name {
	char name[NAME], value[VALUE];
} names[NAMES];
static int n_names;
static const struct line *at[CALLS]; /* the line that runs, and those that called for it */
static int n_at;
static char arena[ARENA]; /* texts of these lines */
static size_t used;

/* --- failures --- */

void run_fail(const char *format, ...)
{
	const struct line *l = at[n_at - 1];
	char text[TEXT];
	va_list list;

	va_start(list, format);
	(void)vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	print_error("%s:%d: %s\n", l->file, l->number, text);
	_fail(l->file, l->number);
	abort();
}

static void tell_where(void)
{
	for (int i = n_at - 1; i >= 0; i--)
		print_error("%s %s:%d: %s\n", i == n_at - 1 ? "it was in" : "called by",
			    at[i]->file, at[i]->number, words_joined(at[i]->words, at[i]->n));
}

static void enter(const struct line *l)
{
	if (n_at == CALLS)
		run_fail("definitions and loops call each other more than %d deep", CALLS);
	at[n_at++] = l;
}

/* --- texts and names --- */

char *run_text(const char *format, ...)
{
	char *ret = arena + used;
	va_list list;
	int n;

	va_start(list, format);
	n = vsnprintf(ret, ARENA - used, format, list);
	va_end(list);
	if ((size_t)n >= ARENA - used)
		run_fail("the texts of this line are too long");
	used += (size_t)n + 1;
	return ret;
}

static void name_add(const char *name, const char *value)
{
	if (n_names == NAMES)
		run_fail("there are more than %d names", NAMES);
	if (snprintf(names[n_names].name, NAME, "%s", name) >= NAME ||
	    snprintf(names[n_names++].value, VALUE, "%s", value) >= VALUE)
		run_fail("%s, or its value, is too long", name);
}

static struct name *name_found(const char *name)
{
	for (int i = n_names - 1; i >= 0; i--)
		if (strcmp(names[i].name, name) == 0)
			return &names[i];
	return NULL;
}

void run_keep(const char *name, const char *value)
{
	struct name *there = name_found(name);

	if (!there)
		name_add(name, value);
	else if (snprintf(there->value, VALUE, "%s", value) >= VALUE)
		run_fail("the value of %s is too long", name);
}

void run_keep_number(const char *name, uint64_t n)
{
	run_keep(name, run_text("%llu", (unsigned long long)n));
}

static void expand(char *const *words, int n, struct call *ret);

/* $(TERM): the value of what stands in the brackets. */
static const char *term_replaced(const char **text)
{
	struct call inner = { 0 };
	char *words[WORDS];
	int depth = 0, n = 0;
	const char *from = *text + 1, *ret;

	do
		depth += (**text == '(') - (**text == ')');
	while (*++*text && depth > 0);
	(void)script_split(run_text("%.*s", (int)(*text - from) - 1, from), words, WORDS, &n);
	expand(words, n, &inner);
	ret = term_value(inner.words, n);
	for (int i = 0; i < n; i++)
		free(words[i]);
	return ret;
}

/* The value of what stands behind a dollar, where *text is then: $i, $dir, $d.pid; and $D.pid,
 * where $D is a daemon's name. */
static const char *replaced(const char **text)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
				      "0123456789.";
	const char *from = *text, *value, *of;
	size_t n = strspn(from, letters), first = strcspn(from, ".");
	struct name *name;

	if (*from == '(')
		return term_replaced(text);
	first = first < n ? first : n;
	name = name_found(run_text("%.*s", (int)first, from));
	value = name ? name->value : run_text("%.*s", (int)first, from);
	for (; n > first; n--) {
		of = world_name(run_text("%s%.*s", value, (int)(n - first), from + first));
		if (of) {
			*text += n;
			return of;
		}
	}
	*text += first;
	value = name ? value : world_name(value);
	if (!value)
		run_fail("there is no name $%.*s here; a dollar itself is \\$", 40, from);
	return value;
}

static char *expanded(const char *word)
{
	char text[TEXT];
	size_t n = 0;

	while (*word && n < sizeof(text) - 1) {
		const char *more = word;

		if (*word++ == '$') {
			more = replaced(&word);
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s", more);
		} else {
			text[n++] = *more == '\1' ? '$' : *more;
		}
	}
	if (n >= sizeof(text) - 1)
		run_fail("a word is longer than %d bytes", TEXT);
	text[n] = '\0';
	return run_text("%s", text);
}

static void expand(char *const *words, int n, struct call *ret)
{
	for (ret->n = 0; ret->n < n; ret->n++)
		ret->words[ret->n] = expanded(words[ret->n]);
}

/* --- a line --- */

static bool lists(const char *options, const char *name, size_t n)
{
	for (const char *word = options; *word; word += strcspn(word, " "), word += *word == ' ')
		if (strcspn(word, " ") == n && strncmp(word, name, n) == 0)
			return true;
	return false;
}

/* Options, and what stands behind =>, have places of their own. */
static void sort_out(struct call *c)
{
	const struct verb *v = c->verb;
	int n = 0;

	for (int i = 0; i < c->n && !c->arrow; i++) {
		char *word = c->words[i];
		const size_t before = strcspn(word, "=\" ");

		if (strcmp(word, "=>") == 0) {
			c->arrow = true;
			c->n_says = c->n - i - 1;
			memcpy(c->says, c->words + i + 1, (size_t)c->n_says * sizeof(c->says[0]));
		} else if (v->options && before > 0 && word[before] == '=' &&
			   !strchr("<>!", word[0]) && word[before + 1] != '=') {
			if (!lists(v->options, word, before))
				run_fail("%s has no option \"%s\"; it has: %s", v->name, word,
					 v->options);
			c->options[c->n_options++] = word;
		} else {
			c->words[n++] = word;
		}
	}
	c->n = n;
	if (n < v->least)
		run_fail("%s has too few words; it is: %s %s", v->name, v->name, v->usage);
}

static void call_make(const struct line *l, struct call *ret)
{
	*ret = (struct call){ .line = l, .verb = verb_named(l->words[0]) };
	expand(l->words + 1, l->n - 1, ret);
}

static void run_lines(const struct line *from, const struct line *end)
{
	for (const struct line *l = from; l < end; l = script_end(l)) {
		const size_t before = used;
		const struct line *define = script_heading("define", l->words[0]);
		struct call c;

		enter(l);
		call_make(l, &c);
		if (define) {
			const int first = n_names, n = define->n - 2;

			if (c.n < n)
				run_fail("%s has too few words: it has %d", l->words[0], n);
			for (int i = 0; i < n; i++)
				name_add(define->words[i + 2], text_of(c.words[i]));
			run_lines(define + 1, script_end(define));
			n_names -= n; /* what was kept meanwhile stays */
			memmove(names + first, names + first + n,
				(size_t)(n_names - first) * sizeof(names[0]));
		} else {
			sort_out(&c);
			c.verb->does(&c);
		}
		n_at--;
		used = before;
	}
}

/* --- a call's words --- */

const char *text_of(const char *word)
{
	return word[0] == '"' ? word + 1 : word;
}

uint64_t number_of(const char *word)
{
	static const char units[] = "KMG";
	const char *unit;
	char *end;
	const uint64_t n = strtoull(word, &end, 0);

	unit = *end ? strchr(units, *end) : units;
	if (word[0] < '0' || word[0] > '9' || !unit || (*end && end[1]))
		run_fail("\"%s\" is no number: 12, 4K, 1M", text_of(word));
	return *end ? n << 10 * (unit - units + 1) : n;
}

uint64_t us_of(const char *word)
{
	char *end;
	const uint64_t n = strtoull(word, &end, 10);

	if (strcmp(end, "us") == 0)
		return n;
	if (strcmp(end, "ms") == 0)
		return n * 1000;
	if (strcmp(end, "s") != 0)
		run_fail("\"%s\" is no time: 3s, 200ms, 500us", text_of(word));
	return n * 1000000;
}

int32_t status_of(const char *word)
{
	static const struct {
		const char *name;
		int32_t status;
	} more[] = { { "present", KVTIER_BLOCK_PRESENT },
		     { "clipped", KVTIER_HINT_CLIPPED },
		     { "deferred", KVTIER_HINT_DEFERRED },
		     { "rejected", KVTIER_HINT_REJECTED } };

	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++)
		if (strcmp(more[i].name, word) == 0)
			return more[i].status;
	for (int e = 1; e < 134; e++)
		if (strerrorname_np(e) && strcmp(strerrorname_np(e), word) == 0)
			return -e;
	return (int32_t)number_of(word);
}

char *words_joined(char *const *words, int n)
{
	char text[TEXT] = "";
	size_t length = 0;

	for (int i = 0; i < n && length < sizeof(text); i++)
		length += (size_t)snprintf(text + length, sizeof(text) - length, "%s%s",
					   i ? " " : "", text_of(words[i]));
	return run_text("%s", text);
}

const char *call_option(const struct call *c, const char *name)
{
	const size_t n = strlen(name);

	for (int i = 0; i < c->n_options; i++)
		if (strncmp(c->options[i], name, n) == 0 && c->options[i][n] == '=')
			return c->options[i] + n + 1;
	return NULL;
}

uint64_t call_number(const struct call *c, const char *name, uint64_t otherwise)
{
	const char *word = call_option(c, name);

	return word ? number_of(word) : otherwise;
}

int call_ms(const struct call *c, const char *name, int otherwise)
{
	const char *word = call_option(c, name);

	return word ? (int)(us_of(word) / 1000) : otherwise;
}

bool call_has(struct call *c, const char *word)
{
	for (int i = 0; i < c->n; i++)
		if (strcmp(c->words[i], word) == 0) {
			memmove(c->words + i, c->words + i + 1,
				(size_t)(--c->n - i) * sizeof(c->words[0]));
			return true;
		}
	return false;
}

bool call_is_said(const struct call *c, int code, const char *text)
{
	int i = 0;

	if (c->n_says == 0 || strchr("!\"", c->says[0][0])) {
		if (code != 0)
			return false;
	} else if (strcmp(c->says[i++], "*") != 0 && code != status_of(c->says[0])) {
		return false;
	}
	for (; i < c->n_says; i++) {
		const bool not = c->says[i][0] == '!';

		if ((strstr(text, text_of(c->says[i] + not )) == NULL) != not )
			return false;
	}
	return true;
}

void call_check(const struct call *c, int code, const char *text)
{
	if (!call_is_said(c, code, text))
		run_fail("expected => %s, seen => %d %s",
			 c->n_says ? words_joined(c->says, c->n_says) : "0", code, text);
}

void call_returned(const struct call *c, int r)
{
	call_check(c, r, r ? kvtier_last_error() : "");
}

/* --- loops --- */

static void run_block(const struct line *l)
{
	run_lines(l + 1, script_end(l));
}

void for_does(struct call *c)
{
	unsigned long long first, last;

	if (c->n == 2 && sscanf(c->words[1], "%llu..%llu", &first, &last) == 2) {
		for (; first <= last; first++) {
			run_keep_number(c->words[0], first);
			run_block(c->line);
		}
		return;
	}
	if (strcmp(c->words[1], "in") != 0)
		run_fail("a loop is: for NAME 0..9, or: for NAME in WORDS");
	for (int k = 2; k < c->n; k++) {
		run_keep(c->words[0], text_of(c->words[k]));
		run_block(c->line);
	}
}

bool run_is_so(const struct call *c, const char **ret_seen)
{
	const size_t before = used;
	bool ret;

	if (strcmp(c->words[0], "ctl") == 0) {
		const int code = ctl_run(c->words + 1, c->n - 1, ret_seen);

		ret = call_is_said(c, code, *ret_seen);
	} else {
		ret = term_is(c->words, c->n, ret_seen);
	}
	used = before; /* it is asked again and again; *ret_seen is whole until the next text */
	return ret;
}

/* The names in the condition change. */
void until_does(struct call *c)
{
	const uint64_t until_ns = now_ns() + 3 * PATIENT_MS * 1000000ull;
	const struct line *l = c->line;
	const size_t before = used;
	const char *seen;

	while (!run_is_so(c, &seen)) {
		if (now_ns() > until_ns)
			run_fail("it never became so: seen %s", seen);
		run_block(l);
		used = before;
		call_make(l, c);
		sort_out(c);
	}
}

/* --- cases --- */

struct row {
	const struct line *head;
	const char *varied; /* NULL: nothing is */
	char name[256];
	bool last, good;
};

static const struct row *row_now;
static struct random chance; /* state 0: not seeded yet */
static bool may_skip;        /* it asks whether it can run here */
static bool begun;           /* the world of a script whose cases share it */

uint32_t run_random(uint32_t below)
{
	if (!chance.state)
		chance = random_seeded(row_now->name);
	return random_below(&chance, below);
}

void run_may_skip(bool may)
{
	may_skip = may;
}

static void run_case(void **state)
{
	const struct line *together = script_heading("together", NULL),
			  *begin = together ? together : script_heading("begin", NULL),
			  *end = script_heading("end", NULL);
	struct row *row = *state;

	row_now = row;
	may_skip = false;
	at[0] = row->head;
	n_at = 1;
	if (!together || !begun) {
		n_names = 0;
		used = 0;
		chance.state = 0;
		world_begin();
		if (row->varied)
			run_keep(script_heading("vary", NULL)->words[1], row->varied);
		begun = true;
		if (begin)
			run_block(begin);
	}
	run_block(row->head);
	if (end)
		run_block(end);
	if (!together || row->last)
		world_end(); /* asserts that daemons stop well */
	row->good = true;
}

static int end_case(void **state)
{
	const struct row *row = *state;
	const bool together = script_heading("together", NULL);

	if (!row->good && !may_skip) {
		tell_where();
		world_tell();
	}
	if (!together || row->last)
		world_drop();
	return 0;
}

int run_script(const char *only)
{
	const struct line *vary = script_heading("vary", NULL);
	static struct CMUnitTest tests[ROWS];
	static struct row rows[ROWS];
	size_t n = 0;

	for (const struct line *l = script.lines; l->n > 0; l++)
		for (int i = 2;
		     l->indent == 0 && strcmp(l->words[0], "case") == 0 && i < (vary ? vary->n : 3);
		     i++) {
			struct row *row = &rows[n];

			if (only && strcmp(only, l->words[1]) != 0)
				continue;
			*row = (struct row){ .head = l, .varied = vary ? vary->words[i] : NULL };
			(void)snprintf(row->name, sizeof(row->name), vary ? "%s [%s]" : "%s",
				       l->words[1], row->varied);
			tests[n] = (struct CMUnitTest){ row->name, run_case, NULL, end_case, row };
			if (++n == ROWS)
				abort();
		}
	if (n == 0) {
		(void)fprintf(stderr, "%s: no case %s\n", script.name, only ? only : "at all");
		return 1;
	}
	rows[n - 1].last = true;
	return _cmocka_run_group_tests(script.name, tests, n, NULL, NULL) ? 1 : 0;
}
