/* SPDX-License-Identifier: Apache-2.0 */
/*
 * terms.c - what a line can compare: a number, a text in quotes, a number or word of `kvtierctl
 * stats` by its path, or one of the terms in this file's table. A + B - C * D is worked out from
 * the left.
 */
#include "scenario.h"

#include "tests/lib/lib_io_faults.h"

static const char *number(uint64_t n)
{
	return run_text("%llu", (unsigned long long)n);
}

/* --- blocks and engines --- */

/* How many of the blocks a lookup of one alone finds, in this tier (0: in any). */
static const char *one_by_one(char *const *words, uint32_t tier)
{
	struct its_engine *e = thing_named(THING_ENGINE, words[0]);
	struct kvtier_key *keys;
	struct spec spec;
	uint32_t found = 0;

	spec_read(words[1], e, &spec);
	keys = spec_keys(&spec, spec.first);
	for (uint32_t i = 0; i < spec.n; i++) {
		struct kvtier_hit hit = { .size = sizeof(hit) };

		if (kvtier_lookup(e->e.space, &keys[i], 1, &hit) == 0)
			found += hit.blocks == 1 && (!tier || hit.tiers & tier);
	}
	free(keys);
	return number(found);
}

static const char *found_value(char *const *words)
{
	return one_by_one(words, 0);
}

static const char *host_value(char *const *words)
{
	return one_by_one(words, KVTIER_TIER_HOST);
}

static struct kvtier_hit hit_of(char *const *words)
{
	struct its_engine *e = thing_named(THING_ENGINE, words[0]);
	struct kvtier_hit ret = { .size = sizeof(ret) };
	struct kvtier_key *keys;
	struct spec spec;
	int r;

	spec_read(words[1], e, &spec);
	keys = spec_keys(&spec, spec.first);
	r = kvtier_lookup(e->e.space, keys, spec.n, &ret);
	free(keys);
	if (r)
		run_fail("kvtier_lookup: %d, %s", r, kvtier_last_error());
	return ret;
}

static const char *lookup_value(char *const *words)
{
	return number(hit_of(words).blocks);
}

static const char *tiers_value(char *const *words)
{
	const uint32_t tiers = hit_of(words).tiers;
	char *ret = run_text("%s%s%s", tiers & KVTIER_TIER_GPU ? "gpu+" : "",
			     tiers & KVTIER_TIER_HOST ? "host+" : "",
			     tiers & KVTIER_TIER_NVME ? "nvme+" : "");

	if (*ret)
		ret[strlen(ret) - 1] = '\0';
	return ret;
}

static const char *whole_value(char *const *words)
{
	struct its_engine *e = thing_named(THING_ENGINE, words[0]);
	struct kvtier_key *keys;
	struct spec spec;
	uint32_t whole = 0;

	spec_read(words[1], e, &spec);
	keys = spec_keys(&spec, spec.first);
	for (uint32_t i = 0; i < spec.n && i < e->e.pages; i++) {
		pages_come(e, i);
		whole += page_is(&e->e, i, &keys[i], 0);
	}
	free(keys);
	return number(whole);
}

static const char *lack_value(char *const *words)
{
	const struct op *op = thing_named(THING_OP, words[0]);
	const struct engine *e = &op->e->e;
	const size_t layer = e->page_bytes / e->geometry.layers;
	uint32_t lacking = 0;

	for (uint32_t i = 0; i < op->n; i++) {
		const uint8_t *end = e->memory + (op->pages[i] + 1) * e->page_bytes;

		lacking += end[-1] == 0xa5 && end[-(ptrdiff_t)layer] == 0xa5;
	}
	return number(lacking);
}

/* What an op of one block ends with, or why it is not taken. */
static const char *answer_value(char *const *words)
{
	struct its_engine *e = thing_named(THING_ENGINE, words[1]);
	const struct kvtier_key key = spec_key(words[2], e);
	const uint32_t page = 0;
	int r;

	engine_is_current(e);
	page_fill(&e->e, page, &key, 0);
	pages_go(e, page);
	r = strcmp(words[0], "store") == 0 ? engine_store(&e->e, &key, &page, 1, NULL, NULL) :
					     engine_load(&e->e, &key, &page, 1, NULL);
	return r ? strerrorname_np(-r) : "0";
}

static const char *key_value(char *const *words)
{
	const struct kvtier_key key = spec_key(words[1], thing_named(THING_ENGINE, words[0]));
	char text[2 * sizeof(key.bytes) + 1];

	for (size_t i = 0; i < sizeof(key.bytes); i++)
		(void)snprintf(text + 2 * i, 3, "%02x", key.bytes[i]);
	return run_text("%s", text);
}

static const char *print_value(char *const *words)
{
	return run_text("%.32s", key_value(words));
}

static const char *value_value(char *const *words)
{
	const struct kvtier_key key = spec_key(words[1], thing_named(THING_ENGINE, words[0]));
	char name[SHARED_NAME];

	shared_name("", &key, name);
	return run_text("%s", name);
}

/* --- programs and servers --- */

static const char *log_value(char *const *words)
{
	const struct its_daemon *d = thing_named(THING_DAEMON, words[0]);

	return number((uint32_t)daemon_log_lines(&d->d, text_of(words[1])));
}

static const char *maps_value(char *const *words)
{
	const struct its_daemon *d = thing_named(THING_DAEMON, words[0]);

	return number((uint32_t)daemon_maps(&d->d, text_of(words[1])));
}

static const char *ended_value(char *const *words)
{
	const struct its_daemon *d = thing_named(THING_DAEMON, words[0]);
	siginfo_t its = { 0 };

	(void)waitid(P_PID, (id_t)d->d.pid, &its, WEXITED | WNOHANG | WNOWAIT);
	return number(its.si_pid != 0);
}

static const char *sh_value(char *const *words)
{
	char text[TEXT];
	const int code = shell(text_of(words[0]), text, sizeof(text));

	text[strcspn(text, "\n")] = '\0';
	if (code != 0)
		run_fail("%s: exit status %d, %s", text_of(words[0]), code, text);
	return run_text("%s", text);
}

static const char *redis_value(char *const *words)
{
	const struct its_server *s = thing_named(THING_SERVER, words[0]);
	char text[TEXT];

	redis_say(s->r, text, sizeof(text), "%s", text_of(words[1]));
	return run_text("%s", text);
}

static const char *info_value(char *const *words)
{
	const struct its_server *s = thing_named(THING_SERVER, words[0]);
	static char text[16384];
	const char *field = text_of(words[1]), *at;

	redis_say(s->r, text, sizeof(text), "INFO everything");
	at = strstr(text, field);
	at = at ? at + strlen(field) + 1 : "0";
	return run_text("%.*s", (int)strcspn(at, ",\r\n"), at);
}

static const char *held_value(TEST_UNUSED char *const *words)
{
	return number(io_held());
}

static const char *transfers_value(TEST_UNUSED char *const *words)
{
	return number(io_transfers());
}

static const char *random_value(char *const *words)
{
	return number(run_random((uint32_t)number_of(words[0])));
}

const struct term terms[] = {
	{ "lookup", "E BLOCKS", 2, "leading blocks that a lookup finds", lookup_value },
	{ "found", "E BLOCKS", 2, "blocks that lookups find, each by one of its own", found_value },
	{ "host", "E BLOCKS", 2, "how many of these are in host memory", host_value },
	{ "tiers", "E BLOCKS", 2, "where a lookup finds them: \"nvme\", \"host+nvme\"",
	  tiers_value },
	{ "whole", "E BLOCKS", 2, "pages 0... that hold these blocks now", whole_value },
	{ "lack", "OP", 1, "pages of a load that have no byte of the last layer yet", lack_value },
	{ "answer", "load|store E BLOCK", 3, "what an op of the block ends with: 0 or \"ENOENT\"",
	  answer_value },
	{ "key", "E BLOCK", 2, "its key, in hexadecimal digits", key_value },
	{ "print", "E BLOCK", 2, "their first 32, by which the index knows a block", print_value },
	{ "value", "E BLOCK", 2, "the name of its value in Redis, without [redis] key_prefix",
	  value_value },
	{ "log", "D WORDS", 2, "lines of the daemon's log that have these words", log_value },
	{ "maps", "D WORDS", 2, "lines of the daemon's /proc/PID/maps that have them", maps_value },
	{ "ended", "D", 1, "1 once the daemon's process has ended, else 0", ended_value },
	{ "sh", "COMMAND", 1, "the first line that this command of the shell says", sh_value },
	{ "redis", "R COMMAND", 2, "the server's reply, numbers in digits", redis_value },
	{ "info", "R FIELD", 2, "a field of INFO, such as cmdstat_get:calls; 0 if it has none",
	  info_value },
	{ "driver_for", "N", 1, "the oldest driver, 12000, for kernels of compute capability N",
	  driver_for_value },
	{ "notes", "KIND WORDS", 2, "lines of the driver's report: violation, leak, note",
	  notes_value },
	{ "held", "", 0, "transfers that the faulty disk holds", held_value },
	{ "transfers", "", 0, "transfers of the faulty disk since its last plan", transfers_value },
	{ "random", "N", 1, "a number below N; SEED repeats it", random_value },
	{ NULL, NULL, 0, NULL, NULL },
};

const struct term *term_named(const char *word)
{
	for (const struct term *t = terms; t->name; t++)
		if (strcmp(t->name, word) == 0)
			return t;
	return NULL;
}

/* A number or word of `kvtierctl stats --json`, of the daemon named before its first dot. */
static const char *stat_value(const char *word)
{
	const size_t dot = strcspn(word, ".");
	const struct its_daemon *d = thing_found(THING_DAEMON, run_text("%.*s", (int)dot, word));
	char text[TEXT];

	if (d && word[dot])
		word += dot + 1;
	else
		d = daemon_first();
	if (strchr(word, ':')) /* the sum over the rows of a list */
		return number(daemon_stat(&d->d, word));
	daemon_word(&d->d, word, text, sizeof(text));
	return run_text("%s", text);
}

/* --- several --- */

/* The term at words[*i], which is then the word behind it. */
static const char *one(char *const *words, int n, int *i)
{
	const char *word = words[(*i)++];
	const struct term *t = term_named(word);
	int at = *i;

	if (word[0] == '"')
		return word + 1;
	if (word[0] >= '0' && word[0] <= '9')
		return number(number_of(word));
	if (!t)
		return stat_value(word);
	*i += t->arity;
	if (*i > n)
		run_fail("%s has too few words; it is: %s %s", t->name, t->name, t->usage);
	return t->value(words + at);
}

static bool numeric(const char *text, long long *ret)
{
	char *end;

	*ret = strtoll(text, &end, 10);
	return end > text && !*end;
}

const char *term_value(char *const *words, int n)
{
	const char *ret;
	int i = 0;

	if (n == 0)
		run_fail("a value is missing here");
	ret = one(words, n, &i);
	while (i < n) {
		const char *sign = words[i++];
		long long a, b;

		if (i == n || !strchr("+-*/%", sign[0]) || sign[1])
			run_fail("\"%s\" stands where + - * / %% and a value may stand", sign);
		if (!numeric(ret, &a) || !numeric(one(words, n, &i), &b) ||
		    (strchr("/%", sign[0]) && !b))
			run_fail("%s %s cannot be worked out", ret, sign);
		a = *sign == '+' ? a + b :
		    *sign == '-' ? a - b :
		    *sign == '*' ? a * b :
		    *sign == '/' ? a / b :
				   a % b;
		ret = run_text("%lld", a);
	}
	return ret;
}

static bool is_sign(const char *word)
{
	return (strchr("=!<>", word[0]) && word[0] && strlen(word) <= 2) ||
	       strcmp(word, "has") == 0 || strcmp(word, "lacks") == 0;
}

static bool compare(const char *a, const char *sign, const char *b)
{
	long long x, y;
	int order;

	if (sign[0] == 'h' || sign[0] == 'l')
		return (strstr(a, b) != NULL) == (sign[0] == 'h');
	if (numeric(a, &x) && numeric(b, &y))
		order = x < y ? -1 : x > y;
	else if (strchr("=!", sign[0]))
		order = strcmp(a, b);
	else
		run_fail("\"%s\" %s \"%s\": one of them is no number", a, sign, b);
	switch (sign[0]) {
	case '=':
		return order == 0;
	case '!':
		return order != 0;
	case '<':
		return order < 0 || (sign[1] && order == 0);
	default:
		return order > 0 || (sign[1] && order == 0);
	}
}

bool term_is(char *const *words, int n, const char **ret_seen)
{
	int i = 0;

	while (i < n && !is_sign(words[i]))
		i++;
	if (i == 0 || i + 1 >= n)
		run_fail("a comparison is missing: A == B, with == != < <= > >= has lacks");
	*ret_seen = term_value(words, i);
	return compare(*ret_seen, words[i], term_value(words + i + 1, n - i - 1));
}

void term_check(char *const *words, int n, uint64_t seen, uint64_t otherwise)
{
	const char *wanted = n > 1 ? term_value(words + 1, n - 1) : number(otherwise);

	if (n == 1 && strcmp(words[0], "any") == 0)
		return;
	if (n == 1 || (n > 1 && !is_sign(words[0])))
		run_fail("\"%s\" stands where a comparison may stand: == 5, >= 3, any", words[0]);
	if (!compare(number(seen), n ? words[0] : "==", wanted))
		run_fail("expected %s %s blocks, seen %llu", n ? words[0] : "==", wanted,
			 (unsigned long long)seen);
}
