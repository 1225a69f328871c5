/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_engine.c - engines, and ops whose pages and statuses are looked at. */
#include "scenario.h"

#include "tests/lib/lib_apart.h"

/* --- engines --- */

static struct kvtier_geometry geometry_of(struct call *c)
{
	const uint32_t codec = call_has(c, "default")  ? KVTIER_CODEC_DEFAULT :
			       call_has(c, "fp8")      ? KVTIER_CODEC_FP8 :
			       call_has(c, "int8")     ? KVTIER_CODEC_INT8 :
			       call_has(c, "lossless") ? KVTIER_CODEC_LOSSLESS :
			       call_has(c, "q4")       ? KVTIER_CODEC_Q4 :
			       call_has(c, "int8v4")   ? KVTIER_CODEC_INT8V4 :
							 KVTIER_CODEC_RAW;
	struct kvtier_geometry g =
		call_has(c, "large") ? large_geometry(codec) : tiny_geometry(codec);
	const char *model = call_option(c, "model");

	(void)call_has(c, "raw");
	(void)call_has(c, "tiny");
	g.model = model ? model : g.model;
	g.extras = call_option(c, "extras");
	g.layers = (uint32_t)call_number(c, "layers", g.layers);
	g.kv_heads = (uint32_t)call_number(c, "heads", g.kv_heads);
	g.block_tokens = (uint32_t)call_number(c, "tokens", g.block_tokens);
	g.head_dim_k = g.head_dim_v = (uint32_t)call_number(c, "dim", g.head_dim_k);
	return g;
}

/* Behind => stands what connecting is refused with, or opening the space. */
static void is_refused(const struct call *c, const char *socket, uint32_t timeout_ms,
		       const struct kvtier_geometry *g)
{
	struct kvtier_client *client = NULL;
	struct kvtier_space *space = NULL;
	int r = client_dial(socket, NULL, timeout_ms, &client);

	if (r == 0)
		r = kvtier_space_open(client, g, NULL, 0, NULL, 0, &space);
	call_returned(c, r);
	if (space)
		(void)kvtier_space_close(space);
	if (client)
		kvtier_close(client);
}

void engine_does(struct call *c)
{
	const char *on = call_option(c, "on"), *memory = call_option(c, "memory");
	struct its_daemon *d = on ? thing_named(THING_DAEMON, on) : daemon_first();
	const char *socket = call_option(c, "socket") ? call_option(c, "socket") : d->d.socket;
	const uint32_t timeout_ms = (uint32_t)call_ms(c, "timeout", 0),
		       pages = (uint32_t)call_number(c, "pages", 64);
	const bool staged = call_has(c, "staged"), apart = call_has(c, "apart");
	struct kvtier_geometry g = geometry_of(c);
	struct its_engine *its;

	if (c->n > 1)
		run_fail("\"%s\" stands where tiny, large, raw, fp8, int8, lossless, q4, int8v4, "
			 "default, staged, apart may stand",
			 c->words[1]);
	if (c->arrow) {
		is_refused(c, socket, timeout_ms, &g);
		return;
	}
	its = thing_new(THING_ENGINE, c->words[0]);
	if (its->e.client)
		run_fail("%s is open: close it first", c->words[0]);
	its->of = d;
	clients_apart(apart);
	if (memory)
		engine_on_gpu(its, (uint32_t)call_number(c, "gpu", 0), socket, &g, pages, memory);
	else if (staged)
		engine_open_staged(&its->e, socket, "engine", &g, pages,
				   call_number(c, "staging", 1 << 20));
	else
		engine_open(&its->e, socket, "engine", &g, pages);
	clients_apart(false);
	/* the words of this line do not stay */
	its->e.geometry.model = its->e.geometry.extras = NULL;
	if (timeout_ms && kvtier_set_timeout(its->e.client, timeout_ms))
		run_fail("kvtier_set_timeout: %s", kvtier_last_error());
}

void close_does(struct call *c)
{
	struct its_engine *its = thing_named(THING_ENGINE, c->words[0]);

	if (call_has(c, "space"))
		(void)kvtier_space_close(its->e.space);
	else
		engine_gone(its);
}

/* --- pages --- */

/* A few values of each plane of a large page: NaNs with payloads, infinities, zeros, denormals, the
 * least and the largest. They are in a row that lossless does not choose its base by. */
static void fill_odd(uint8_t *page, size_t bytes)
{
	static const uint16_t odd[] = { 0x7fc0, 0xffff, 0x7f81, 0xffa5, 0x7f80, 0xff80, 0x8000,
					0x0000, 0x0001, 0x807f, 0x0080, 0x8080, 0x7f7f, 0xff7f };

	for (size_t at = 512; at + sizeof(odd) <= bytes; at += 16384)
		memcpy(page + at, odd, sizeof(odd));
}

/* Bytes that no codec makes less of, from the key. */
static void fill_noise(uint8_t *page, size_t bytes, const struct kvtier_key *key)
{
	uint64_t word;

	memcpy(&word, key->bytes, sizeof(word));
	for (size_t at = 0; at + sizeof(word) <= bytes; at += sizeof(word)) {
		word = word * 0x5851f42d4c957f2du + 0x14057b7ef767814fu;
		memcpy(page + at, &word, sizeof(word));
	}
}

/* Values that four bits hold: -7.5, -6.5 ... 7.5, all of them in 16 tokens of each channel, and in
 * 16 channels of each token. */
static void fill_sixteen(const struct engine *e, uint8_t *page, const struct kvtier_key *key)
{
	const size_t row = (size_t)e->geometry.kv_heads * e->geometry.head_dim_k;

	for (size_t i = 0; i < e->page_bytes / 2; i++) {
		const float value =
			(float)((i / row * 5 + i % row * 3 + key->bytes[0]) & 15) - 7.5f;
		uint32_t bits;

		memcpy(&bits, &value, sizeof(bits));
		page[2 * i] = (uint8_t)(bits >> 16);
		page[2 * i + 1] = (uint8_t)(bits >> 24);
	}
}

/* The page as a store has it. fill=0x7f: all bytes of a page are that; fill=random: values of
 * [1, 2) in BF16, which no load compares; nan=3: the first value of block 3 is one that FP8 cannot
 * hold. */
static void fill_page(const struct call *c, const struct op *op, uint32_t i)
{
	static const uint16_t nan = 0x7fc0;
	struct engine *e = &op->e->e;
	const char *how = call_option(c, "fill");
	uint8_t *page = e->memory + op->pages[i] * e->page_bytes;
	uint16_t value;

	if (!how || strcmp(how, "odd") == 0)
		page_fill(e, op->pages[i], &op->keys[i], op->salt);
	if (how && strcmp(how, "odd") == 0)
		fill_odd(page, e->page_bytes);
	else if (how && strcmp(how, "noise") == 0)
		fill_noise(page, e->page_bytes, &op->keys[i]);
	else if (how && strcmp(how, "sixteen") == 0)
		fill_sixteen(e, page, &op->keys[i]);
	else if (how && strcmp(how, "random") == 0)
		for (size_t at = 0; at < e->page_bytes; at += sizeof(value)) {
			value = (uint16_t)(0x3f80 + run_random(128));
			memcpy(page + at, &value, sizeof(value));
		}
	else if (how)
		memset(page, (int)call_number(c, "fill", 0), e->page_bytes);
	if (call_number(c, "nan", op->n) == i)
		memcpy(page, &nan, sizeof(nan));
}

static bool page_is_filled(const struct call *c, const struct op *op, uint32_t i)
{
	const struct engine *e = &op->e->e;
	uint8_t *page = e->memory + op->pages[i] * e->page_bytes, *seen = malloc(e->page_bytes);
	bool ret;

	assert_non_null(seen);
	memcpy(seen, page, e->page_bytes);
	fill_page(c, op, i);
	ret = memcmp(page, seen, e->page_bytes) == 0;
	free(seen);
	return ret;
}

static void check_page(const struct call *c, const struct op *op, uint32_t i)
{
	const char *miss = call_option(c, "miss");
	const struct engine *e = &op->e->e;
	const int32_t status = op->statuses[i];
	bool good;

	if (op->pages[i] < e->pages)
		pages_come(op->e, op->pages[i]);
	if (op->pages[i] >= e->pages)
		good = status != 0;
	else if (status == 0)
		good = page_is_filled(c, op, i);
	else
		good = op->part ? page_is_part(e, op->pages[i], &op->keys[i], op->salt) :
				  page_is_poison(e, op->pages[i]);
	if (!good)
		run_fail("block %u with status %d: its page holds the wrong bytes", i, status);
	if (status != 0 && miss && status != status_of(miss))
		run_fail("block %u has status %d, not %s", i, status, miss);
}

/* poison E FIRST..LAST; untouched E FIRST..LAST */
void pages_does(struct call *c)
{
	struct its_engine *its = thing_named(THING_ENGINE, c->words[0]);
	uint32_t from, to;

	if (sscanf(c->words[1], "%u..%u", &from, &to) != 2 || to >= its->e.pages)
		run_fail("\"%s\" are no pages of %s: FIRST..LAST, of 0..%u", c->words[1], its->name,
			 its->e.pages - 1);
	for (; from <= to; from++)
		if (strcmp(c->verb->name, "poison") == 0) {
			page_poison(&its->e, from);
			pages_go(its, from);
		} else {
			pages_come(its, from);
			if (!page_is_poison(&its->e, from))
				run_fail("page %u was touched", from);
		}
}

/* --- ops --- */

static enum kvtier_op_kind kind_of(const char *word)
{
	return strcmp(word, "store") == 0    ? KVTIER_STORE :
	       strcmp(word, "load") == 0     ? KVTIER_LOAD :
	       strcmp(word, "prefetch") == 0 ? KVTIER_PREFETCH :
					       KVTIER_HINT;
}

static uint32_t action_of(const char *word)
{
	static const char *const names[] = { "retain",  "pin",        "demote", "prefetch",
					     "release", "superseded", "ended" };

	for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(word, names[i]) == 0)
			return KVTIER_HINT_RETAIN + i;
	return (uint32_t)number_of(word);
}

/* A store is under the block before its first one, unless it says something else. */
static bool parent_of(const struct call *c, const struct op *op, const struct spec *s,
		      uint64_t chain, struct kvtier_key *ret)
{
	const char *said = call_option(c, "parent");
	struct kvtier_key *key;
	struct spec before = *s;

	if (said ? strcmp(said, "none") == 0 : op->kind != KVTIER_STORE || s->runs[0].from == 0)
		return false;
	if (said) {
		*ret = spec_key(said, op->e);
		return true;
	}
	before.runs[0].to = --before.runs[0].from;
	before.n_runs = before.n = before.runs[0].times = 1;
	key = spec_keys(&before, s->n_runs > 1 ? s->runs[0].chain : chain);
	*ret = *key;
	free(key);
	return true;
}

/* at=4: pages 4, 5, ...; at=40,64,41: these, also pages that there are not. */
static void prepare(const struct call *c, struct op *op, const struct kvtier_key *keys, uint32_t n)
{
	const char *at = call_option(c, "at");
	uint32_t page = 0;

	op->n = n;
	op->salt = call_number(c, "salt", 0);
	op->groups = (uint32_t)call_number(c, "groups", 1);
	op->keys = calloc(n + 1, sizeof(*op->keys));
	op->statuses = calloc(n + 1, sizeof(*op->statuses));
	op->pages = calloc(n + 1, sizeof(*op->pages));
	memcpy(op->keys, keys, n * sizeof(*keys));
	for (uint32_t i = 0; i < n; i++) {
		char *end = NULL;

		if (at && *at) {
			page = (uint32_t)strtoul(at, &end, 10);
			at = *end == ',' ? end + 1 : end;
		}
		op->pages[i] = page++;
	}
}

/* Pages are filled for a store, unless fill=no, and poisoned for a load. */
static void fill(const struct call *c, struct op *op)
{
	const char *how = call_option(c, "fill");

	for (uint32_t i = 0; i < op->n; i++) {
		if (op->pages[i] >= op->e->e.pages)
			continue;
		if (op->kind == KVTIER_LOAD)
			page_poison(&op->e->e, op->pages[i]);
		else if (!how || strcmp(how, "no") != 0)
			fill_page(c, op, i);
		pages_go(op->e, op->pages[i]);
	}
}

static int32_t priority_of(const struct call *c)
{
	const char *said = call_option(c, "priority");

	return said ? (int32_t)strtol(said, NULL, 10) : 0;
}

static int submit(struct call *c, struct op *op, const struct kvtier_key *parent)
{
	const uint32_t scope = op->kind != KVTIER_HINT ? 0 :
			       call_has(c, "revision") ? KVTIER_HINT_REVISION :
			       op->n > 0               ? KVTIER_HINT_KEYS :
							 KVTIER_HINT_SESSION;
	const struct kvtier_op o = {
		.size = sizeof(o),
		.kind = op->kind,
		.keys = op->n > 0 ? op->keys : NULL,
		.pages = op->pages,
		.n = call_number(c, "n", op->n),
		.parent = parent,
		.timeout_ms = (uint32_t)call_ms(c, "timeout", 0),
		.layer_groups = (uint32_t)call_number(c, "groups", 0),
		/* stream=its: behind the work that is in it */
		.stream = op->e->on_gpu && call_option(c, "stream") ? op->e->on.gpu->stream : NULL,
		.session = call_number(c, "session", 0),
		.turn_number = (uint32_t)call_number(c, "turn", 0),
		.ttl_s = (uint32_t)call_number(c, "ttl", 0),
		.priority = priority_of(c),
		.action = op->action,
		.scope = (uint32_t)call_number(c, "scope", scope),
		.expected_back_s = (uint32_t)call_number(c, "expected_back", 0),
	};

	engine_is_current(op->e);
	if (op->kind == KVTIER_STORE || op->kind == KVTIER_LOAD)
		fill(c, op);
	return kvtier_submit(op->e->e.space, &o, &op->id);
}

/* Its result, or the error of the wait. */
static int take(struct op *op, int timeout_ms)
{
	op->result = (struct kvtier_result){ .size = sizeof(op->result),
					     .blocks = op->statuses,
					     .blocks_max = op->n };
	return kvtier_wait(op->e->e.client, op->id, timeout_ms, &op->result);
}

/* --- what became of an op --- */

/* each=clipped,ENOENT: the statuses of its blocks. */
static void check_each(const char *each, const struct op *op)
{
	char *rest = NULL, *at = strtok_r(run_text("%s", each), ",", &rest);

	for (uint32_t i = 0; at; at = strtok_r(NULL, ",", &rest), i++)
		if (i >= op->n || op->statuses[i] != status_of(at))
			run_fail("block %u has status %d, not %s", i,
				 i < op->n ? op->statuses[i] : 0, at);
}

/* Where an answer is said, those that are not are 0. */
static void check_answers(const struct call *c, const struct op *op)
{
	static const char *const names[] = { "accepted", "clipped", "deferred", "rejected",
					     "missing" };
	bool said = false;

	for (int i = 0; i < 5; i++)
		said |= call_option(c, names[i]) != NULL;
	for (int i = 0; said && i < 5; i++)
		if (op->result.answers[i] != call_number(c, names[i], 0))
			run_fail("%u blocks are %s", op->result.answers[i], names[i]);
	if (call_option(c, "each"))
		check_each(call_option(c, "each"), op);
}

/* Returns how many blocks came, or were stored. */
static uint32_t look_at_op(const struct call *c, const struct op *op)
{
	const struct kvtier_result *result = &op->result;
	const char *is = call_option(c, "is"), *all = call_option(c, "all");
	uint32_t came = 0;

	is = is ? is : op->kind == KVTIER_STORE ? "0" : "any";
	if (strcmp(is, "any") != 0 && result->status != status_of(is))
		run_fail("the op ended with %d, not %s (%s)", result->status, is,
			 kvtier_last_error());
	for (uint32_t i = 0; i < op->n; i++) {
		if (all && op->statuses[i] != status_of(all))
			run_fail("block %u has status %d, not %s", i, op->statuses[i], all);
		if (op->kind == KVTIER_LOAD)
			check_page(c, op, i);
		came += op->statuses[i] >= 0;
	}
	check_answers(c, op);
	if (result->n != call_number(c, "count", op->n > 0 ? op->n : result->n) ||
	    result->ok != call_number(c, "ok", op->n > 0 ? came : result->ok))
		run_fail("the op says that it had %u blocks, and %u are ok; %u of %u are",
			 result->n, result->ok, came, op->n);
	run_keep_number("prefix", result->prefix);
	return op->kind == KVTIER_PREFETCH ? result->prefix : came;
}

static uint32_t whole_op(struct call *c, struct op *op, const struct kvtier_key *parent)
{
	int r = submit(c, op, parent);
	uint32_t came = op->n;

	if (r == 0 && !c->arrow)
		r = take(op, -1);
	if (r || c->arrow)
		call_returned(c, r);
	else
		came = look_at_op(c, op);
	op_free(op);
	return came;
}

/* store, load, prefetch E BLOCKS; hint E ACTION [BLOCKS] */
void op_does(struct call *c)
{
	const bool each = call_has(c, "each"), part = call_has(c, "part");
	const enum kvtier_op_kind kind = kind_of(c->verb->name);
	const int blocks = kind == KVTIER_HINT ? 2 : 1;
	struct its_engine *e = thing_named(THING_ENGINE, c->words[0]);
	uint64_t came = 0, all = 0;
	struct spec s = { 0 };
	uint32_t n;

	if (c->n > blocks && strcmp(c->words[blocks], "revision") != 0)
		spec_read(c->words[blocks], e, &s);
	n = each ? 1 : s.n;
	for (uint64_t chain = s.first; chain <= s.last; chain++) {
		struct kvtier_key *keys = spec_keys(&s, chain), parent;
		uint32_t i = 0;

		do {
			struct op op = { .e = e, .kind = kind, .part = part };
			const bool under = parent_of(c, &op, &s, chain, &parent);

			if (kind == KVTIER_HINT)
				op.action = action_of(c->words[1]);
			prepare(c, &op, keys + i, n);
			came += whole_op(c, &op, under ? &parent : NULL);
			i += n;
		} while (i < s.n);
		free(keys);
		all += s.n;
	}
	run_keep_number("came", came);
	if (kind != KVTIER_HINT)
		term_check(c->words + 2, c->n - 2, came, all);
}

void begin_does(struct call *c)
{
	struct its_engine *e = thing_named(THING_ENGINE, c->words[2]);
	struct op *op = thing_new(THING_OP, c->words[0]);
	struct kvtier_key *keys, parent;
	struct spec s;
	bool under;
	int r;

	if (op->e)
		run_fail("%s is under way: wait for it first", op->name);
	op->e = e;
	op->kind = kind_of(c->words[1]);
	spec_read(c->words[3], e, &s);
	keys = spec_keys(&s, s.first);
	prepare(c, op, keys, s.n);
	free(keys);
	under = parent_of(c, op, &s, s.first, &parent);
	r = submit(c, op, under ? &parent : NULL);
	call_returned(c, r);
	if (r)
		op_free(op);
}

void wait_does(struct call *c)
{
	struct op *op = thing_named(THING_OP, c->words[0]);
	uint32_t came;
	int r;

	op->part = call_has(c, "part");
	r = take(op, call_ms(c, "timeout", -1));
	if (r || c->arrow) {
		call_returned(c, r);
		return;
	}
	came = look_at_op(c, op);
	run_keep_number("came", came);
	term_check(c->words + 1, c->n - 1, came, op->n);
	op_free(op);
}

void cancel_does(struct call *c)
{
	struct op *op = thing_named(THING_OP, c->words[0]);

	call_returned(c, kvtier_cancel(op->e->e.client, op->id + call_number(c, "plus", 0),
				       call_ms(c, "timeout", PATIENT_MS)));
}

/* --- layer groups --- */

static uint32_t first_layer(const struct op *op, uint32_t group)
{
	return op->e->e.geometry.layers * group / op->groups;
}

void layers_does(struct call *c)
{
	struct op *op = thing_named(THING_OP, c->words[0]);
	const uint32_t group = (uint32_t)number_of(c->words[1]);
	const uint64_t until_ns = now_ns() + PATIENT_MS * 1000000ull;
	struct kvtier_client *client = op->e->e.client;
	int r;

	do
		r = call_option(c, "stream") ?
			    kvtier_stream_wait(client, op->id, group, NULL) :
			    kvtier_wait_layers(client, op->id, group,
					       call_ms(c, "timeout", PATIENT_MS));
	while (r == -ETIMEDOUT && !call_option(c, "timeout") && now_ns() < until_ns);
	call_returned(c, r);
}

void group_does(struct call *c)
{
	struct op *op = thing_named(THING_OP, c->words[0]);
	const uint32_t group = (uint32_t)number_of(c->words[1]);

	for (uint32_t i = 0; i < op->n; i++) {
		pages_come(op->e, op->pages[i]);
		if (!page_has_layers(&op->e->e, op->pages[i], &op->keys[i], op->salt,
				     first_layer(op, group), first_layer(op, group + 1)))
			run_fail("group %u is said to be there, and block %u has other bytes",
				 group, i);
	}
}

/* give OP GROUP fills the group before it is given; given OP GROUPS only says so. */
void give_does(struct call *c)
{
	struct op *op = thing_named(THING_OP, c->words[0]);
	const uint32_t fills = strcmp(c->verb->name, "give") == 0,
		       group = (uint32_t)number_of(c->words[1]);

	for (uint32_t i = 0; fills && i < op->n; i++) {
		page_fill_layers(&op->e->e, op->pages[i], &op->keys[i], op->salt,
				 first_layer(op, group), first_layer(op, group + 1));
		pages_go(op->e, op->pages[i]);
	}
	call_returned(c, kvtier_store_layers(op->e->e.client, op->id, group + fills,
					     call_option(c, "stream") ? op : NULL));
}

/* --- beside the test --- */

static void load_and_stay(struct its_engine *its, const struct kvtier_key *keys, uint32_t n)
{
	struct kvtier_geometry g = its->e.geometry;
	struct engine e;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	g.model = tiny_geometry(KVTIER_CODEC_RAW).model;
	engine_open(&e, its->of->d.socket, "engine", &g, its->e.pages);
	(void)chain_load_begin(&e, keys, 0, n, 0);
	for (;;)
		(void)pause();
}

void process_does(struct call *c)
{
	struct its_engine *e = thing_named(THING_ENGINE, c->words[1]);
	struct kvtier_key *keys;
	struct spec s;
	pid_t pid;

	spec_read(c->words[2], e, &s);
	keys = spec_keys(&s, s.first);
	pid = fork();
	if (pid == 0)
		load_and_stay(e, keys, s.n);
	free(keys);
	if (pid < 0)
		run_fail("fork: %s", strerror(errno));
	run_keep_number(c->words[0], (uint64_t)pid);
}

void traffic_does(struct call *c)
{
	const bool stores = strcmp(c->words[1], "stores") == 0;
	struct its_engine *e = thing_named(THING_ENGINE, c->words[2]);
	struct its_traffic *t = thing_new(THING_TRAFFIC, c->words[0]);

	shared_load_begin(&t->load, &e->e, stores);
}

void calm_does(struct call *c)
{
	struct its_traffic *t = thing_named(THING_TRAFFIC, c->words[0]);

	memset(t->name, 0, sizeof(t->name));
	shared_load_end(&t->load);
	run_keep_number("came", t->load.hits);
}
