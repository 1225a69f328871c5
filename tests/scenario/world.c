/* SPDX-License-Identifier: Apache-2.0 */
/* world.c - what a case has. Each kind of thing has a row of places, found by name. */
#include "scenario.h"

#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_scratch.h"

enum { TAIL_LINES = 12 };

struct world world;

/* --- places --- */

#define ROW(row) row, sizeof((row)[0]), sizeof(row) / sizeof((row)[0])

static const struct {
	void *row;
	size_t size, n;
	const char *what, *how; /* how to come by one */
} kinds[] = {
	[THING_DAEMON] = { ROW(world.daemons), "daemon", "daemon" },
	[THING_ENGINE] = { ROW(world.engines), "engine", "engine" },
	[THING_SERVER] = { ROW(world.servers), "Redis", "redis" },
	[THING_FAKE] = { ROW(world.fakes), "scripted server", "fake" },
	[THING_TRAFFIC] = { ROW(world.traffics), "traffic", "traffic" },
	[THING_OP] = { ROW(world.ops), "op under way", "begin" },
};

void *thing_found(enum kind kind, const char *name)
{
	for (size_t i = 0; i < kinds[kind].n; i++) {
		char *at = (char *)kinds[kind].row + i * kinds[kind].size;

		if (strcmp(at, name) == 0) /* a thing begins with its name */
			return at;
	}
	return NULL;
}

void *thing_named(enum kind kind, const char *name)
{
	void *ret = *name ? thing_found(kind, name) : NULL;

	if (!ret)
		run_fail("no %s has the name \"%s\": see the verb %s", kinds[kind].what, name,
			 kinds[kind].how);
	return ret;
}

void *thing_new(enum kind kind, const char *name)
{
	char *ret = thing_found(kind, name);

	if (!ret)
		ret = thing_found(kind, "");
	if (!ret)
		run_fail("a case may have %zu of the kind %s at most", kinds[kind].n,
			 kinds[kind].what);
	(void)snprintf(ret, NAME, "%s", name);
	return ret;
}

struct its_daemon *daemon_first(void)
{
	return thing_named(THING_DAEMON, world.daemons[0].name);
}

void op_free(struct op *op)
{
	free(op->keys);
	free(op->pages);
	free(op->statuses);
	memset(op, 0, sizeof(*op));
}

void engine_gone(struct its_engine *e)
{
	for (size_t i = 0; i < OPS; i++)
		if (world.ops[i].e == e)
			op_free(&world.ops[i]);
	if (e->on_gpu) {
		engine_is_current(e);
		gpu_engine_close(&e->on);
	} else if (e->e.client) {
		engine_close(&e->e);
	}
	memset(e, 0, sizeof(*e));
}

/* --- its beginning and its end --- */

void world_begin(void)
{
	scratch_make("/tmp", world.dir, sizeof(world.dir));
}

static void engines_and_daemons_end(bool good)
{
	for (size_t i = 0; i < ENGINES; i++)
		engine_gone(&world.engines[i]);
	for (size_t i = 0; i < DAEMONS; i++)
		if (world.daemons[i].name[0]) {
			daemon_remove(&world.daemons[i].d);
			memset(&world.daemons[i], 0, sizeof(world.daemons[i]));
		}
	gpus_close(good);
}

void world_end(void)
{
	for (size_t i = 0; i < SERVERS; i++)
		if (world.servers[i].r && world.servers[i].r->pid > 0)
			redis_signal(world.servers[i].r, SIGCONT);
	engines_and_daemons_end(true);
}

static void server_ends(struct its_server *s)
{
	if (s->cluster && s->r == &s->cluster->server[0]) {
		redis_cluster_stop(s->cluster);
		free(s->cluster);
	} else if (s->r && !s->cluster) {
		redis_stop(s->r);
		free(s->r);
	}
}

void world_drop(void)
{
	if (world.hurries)
		clock_hurry(false);
	for (size_t i = 0; i < TRAFFICS; i++)
		if (world.traffics[i].name[0])
			shared_load_end(&world.traffics[i].load);
	for (size_t i = 0; i < DAEMONS; i++)
		if (world.daemons[i].d.pid > 0)
			daemon_signal(&world.daemons[i].d, SIGKILL);
	engines_and_daemons_end(false);
	for (size_t i = 0; i < SERVERS; i++)
		server_ends(&world.servers[i]);
	for (size_t i = 0; i < FAKES; i++)
		if (world.fakes[i].f.pid > 0)
			fake_stop(&world.fakes[i].f);
	if (world.dir[0])
		scratch_remove(world.dir);
	memset(&world, 0, sizeof(world));
}

void world_tell(void)
{
	char command[256], text[TEXT];

	for (size_t i = 0; i < DAEMONS; i++) {
		(void)snprintf(command, sizeof(command), "tail -n %d %s/log", TAIL_LINES,
			       world.daemons[i].d.dir);
		if (world.daemons[i].name[0] && shell(command, text, sizeof(text)) == 0)
			print_error("the last lines of %s's log:\n%s", world.daemons[i].name, text);
	}
}

/* --- d.dir and the like --- */

static const char *reached(const struct its_engine *e)
{
	char text[TEXT];

	if (kvtier_space_memory(e->e.space, text, sizeof(text)) < 0)
		run_fail("kvtier_space_memory: %s", kvtier_last_error());
	return run_text("%s", text);
}

static const char *count(const uint32_t *n)
{
	return run_text("%u", __atomic_load_n(n, __ATOMIC_ACQUIRE));
}

#define IS(word) (strcmp(what, word) == 0)

const char *world_name(const char *name)
{
	const char *dot = strrchr(name, '.'), *what = dot ? dot + 1 : name,
		   *of = run_text("%.*s", dot ? (int)(dot - name) : 0, name);
	const struct its_daemon *d = *of ? thing_found(THING_DAEMON, of) : NULL;
	const struct its_server *s = *of ? thing_found(THING_SERVER, of) : NULL;
	const struct its_fake *f = *of ? thing_found(THING_FAKE, of) : NULL;
	const struct its_engine *e = *of ? thing_found(THING_ENGINE, of) : NULL;

	return !dot && IS("dir")      ? world.dir :
	       !dot && IS("build")    ? build_dir() :
	       !dot                   ? gpu_name(name) :
	       d && IS("dir")         ? d->d.dir :
	       d && IS("disk")        ? d->d.disk :
	       d && IS("socket")      ? d->d.socket :
	       d && IS("config")      ? d->d.config :
	       d && IS("pid")         ? run_text("%d", (int)d->d.pid) :
	       s && IS("address")     ? s->r->address :
	       s && IS("socket")      ? s->r->socket :
	       s && IS("port")        ? run_text("%u", s->r->port) :
	       f && IS("address")     ? f->f.address :
	       f && IS("connections") ? count(f->f.connections) :
	       f && IS("commands")    ? count(f->f.commands) :
	       e && IS("reached")     ? reached(e) :
	       e && IS("lent")        ? run_text("%d", kvtier_lent(e->e.client, NULL, 0)) :
					NULL;
}

/* --- blocks --- */

static void spec_run(const char *text, struct spec *s)
{
	unsigned long long first, last;
	unsigned from, to;
	const char *slash = strchr(text, '/');
	const char *times = strchr(text, '*');
	const int chains = sscanf(text, "%llu..%llu", &first, &last),
		  blocks = slash ? sscanf(slash + 1, "%u..%u", &from, &to) : 0;
	const uint32_t n = times ? (uint32_t)strtoul(times + 1, NULL, 10) : 1;

	if (chains < 1 || blocks < 1)
		run_fail("\"%s\" names no blocks: CHAIN/FIRST..LAST", text);
	last = chains == 1 ? first : last;
	to = blocks == 1 ? from : to;
	if (last < first || to < from || s->n_runs == SPEC_RUNS)
		run_fail("\"%s\" ends before it begins, or has too many commas before it", text);
	s->first = first;
	s->last = last;
	s->runs[s->n_runs].chain = first;
	s->runs[s->n_runs].from = from;
	s->runs[s->n_runs].times = n;
	s->runs[s->n_runs++].to = to;
	s->n += (to - from + 1) * n;
}

void spec_read(const char *word, struct its_engine *e, struct spec *ret)
{
	const char *colon = strchr(word, ':');
	char *rest = NULL;

	*ret = (struct spec){ .keys_of = e };
	if (colon)
		ret->keys_of =
			thing_named(THING_ENGINE, run_text("%.*s", (int)(colon - word), word));
	for (char *at = strtok_r(run_text("%s", colon ? colon + 1 : word), ",", &rest); at;
	     at = strtok_r(NULL, ",", &rest))
		spec_run(at, ret);
	if (ret->n == 0 || ret->n > KVTIER_MAX_BLOCKS)
		run_fail("\"%s\" are %u blocks: 1 to %d", word, ret->n, KVTIER_MAX_BLOCKS);
	if (ret->n_runs > 1)
		ret->last = ret->first;
}

struct kvtier_key *spec_keys(const struct spec *s, uint64_t chain)
{
	struct kvtier_key *ret = calloc(s->n + 1, sizeof(*ret)), *at = ret;

	for (uint32_t i = 0; i < s->n_runs; i++) {
		const uint32_t end = s->runs[i].to + 1, n = end - s->runs[i].from;
		struct kvtier_key *all = calloc(end, sizeof(*all));

		chain_keys(&s->keys_of->e, s->n_runs > 1 ? s->runs[i].chain : chain, end, all);
		for (uint32_t k = 0; k < s->runs[i].times; k++, at += n)
			memcpy(at, all + s->runs[i].from, n * sizeof(*at));
		free(all);
	}
	return ret;
}

struct kvtier_key spec_key(const char *word, struct its_engine *e)
{
	struct kvtier_key ret, *keys;
	struct spec spec;

	spec_read(word, e, &spec);
	if (spec.n != 1 || spec.first != spec.last)
		run_fail("\"%s\" is not one block: CHAIN/NUMBER", word);
	keys = spec_keys(&spec, spec.first);
	ret = *keys;
	free(keys);
	return ret;
}
