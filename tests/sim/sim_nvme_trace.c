/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_nvme_trace - goal: the log's choice of victims costs little against exact leaf-first LRU of
 * the bytes that it can use, in hits and in writes.
 * Method: a replay of traces on a model log of segments, with the policy's own functions
 * (nvme_victim.h), at 2, 8 and 64 blocks a segment. A block goes with its parent, as the table of
 * blocks has it (blocks_lost()). Hits are the leading blocks of a request that are present. Two
 * traces are made here, of agents whose prefixes branch, and of short chats; and $KVTIER_TRACE may
 * name a file of requests, which is replayed at more sizes; the traces that are made are written to
 * $KVTIER_MADE, a directory, for tests/bench/replay.py. A case fails where a figure is worse
 * than what was reached. The bars are what the log shall reach one day.
 */
#include <string.h>

#include "tiers/nvme/log/nvme_log_inner.h"
#include "tests/lib/lib_trace.h"

enum { MAX_BLOCKS = 64, RECORD = 4096, CLEAN = 2, NOWHERE = 0xffffffff, NOBODY = 0xffffffff };

/* Points of hits that may be lost, and per mille of the stored blocks that may be written again. */
struct bar {
	uint32_t segment_blocks;
	double bar, reached;
};

struct segment {
	uint32_t used, next_free;
	uint32_t block[MAX_BLOCKS]; /* in order of writing; may have gone or moved since */
};

struct model {
	const struct requests *trace;
	uint32_t n, segment_blocks;
	struct segment *segment;
	struct nvme_heat *heat;
	struct nvme_ages ages;
	struct nvme_credit credit;
	uint32_t seed;
	/* of a block: its segment, or NOWHERE; other blocks, or NOBODY */
	uint32_t *where, *parent, *child, *sibling;
	uint64_t *tick;
	uint32_t *going; /* drop() */
	uint32_t free_head, n_free, open;
	uint64_t now, stored, carried, hits, promised;
};

/* --- the model --- */

static void open_next(struct model *m)
{
	if (m->open != NOWHERE)
		m->heat[m->open].eligible = true;
	assert_true(m->n_free > 0);
	m->open = m->free_head;
	m->free_head = m->segment[m->open].next_free;
	m->n_free--;
	m->segment[m->open].used = 0;
}

static void put(struct model *m, uint32_t block)
{
	struct segment *s;

	if (m->open == NOWHERE || m->segment[m->open].used == m->segment_blocks)
		open_next(m);
	s = &m->segment[m->open];
	s->block[s->used++] = block;
	m->where[block] = m->open;
	nvme_ages_grow(&m->ages);
	nvme_ages_put(&m->ages, &m->heat[m->open], m->tick[block]);
}

static void release(struct model *m, uint32_t segment)
{
	nvme_ages_clear(&m->ages, &m->heat[segment]);
	m->segment[segment].next_free = m->free_head;
	m->free_head = segment;
	m->n_free++;
}

static void take(struct model *m, uint32_t block)
{
	struct nvme_heat *heat = &m->heat[m->where[block]];

	nvme_ages_take(&m->ages, heat, m->tick[block]);
	if (!heat->blocks && heat->eligible)
		release(m, m->where[block]);
	m->where[block] = NOWHERE;
}

/* And all below it. */
static void drop(struct model *m, uint32_t block)
{
	uint32_t n = 0;

	m->going[n++] = block;
	while (n > 0) {
		const uint32_t at = m->going[--n];

		take(m, at);
		for (uint32_t below = m->child[at]; below != NOBODY; below = m->sibling[below])
			if (m->where[below] != NOWHERE)
				m->going[n++] = below;
	}
}

static void reclaim(struct model *m)
{
	struct nvme_candidate c[MAX_BLOCKS];
	uint64_t taken = 0;
	const uint64_t tick = nvme_credit_tick(&m->credit, &m->ages);
	const uint32_t victim = nvme_victim_pick(&m->ages, m->heat, m->n, tick, &m->seed);
	struct segment *s;
	uint32_t left;

	assert_true(victim != NVME_NO_VICTIM);
	s = &m->segment[victim];
	for (uint32_t i = 0; i < s->used; i++)
		nvme_victim_add(c, i,
				&(struct nvme_candidate){ .tick = m->tick[s->block[i]],
							  .bytes = RECORD,
							  .entry = i,
							  .live = m->where[s->block[i]] ==
								  victim });
	m->heat[victim].eligible = false;
	left = s->used;
	while (left > 0 && nvme_victim_take(c, left, tick,
					    (uint64_t)s->used * RECORD * NVME_CARRY_PERCENT / 100,
					    m->credit.bytes, &taken))
		left--;
	for (uint32_t i = 0; i < left; i++)
		if (m->where[s->block[c[i].entry]] == victim)
			drop(m, s->block[c[i].entry]);
	for (uint32_t i = s->used; i-- > left;) {
		const uint32_t block = s->block[c[i].entry];

		if (m->where[block] != victim)
			continue;
		take(m, block);
		put(m, block);
		m->credit.bytes -= RECORD;
		m->carried++;
	}
	assert_int_equal(m->heat[victim].blocks, 0);
	release(m, victim);
}

/* As kvtier_lookup() looks: at eight places at once, as if presence ended at one place. */
static size_t promise(const struct model *m, const uint32_t *ids, size_t n)
{
	size_t low = 0, high = n;

	if (n && m->where[ids[n - 1]] != NOWHERE)
		return n;
	while (low < high) {
		const size_t ways = high - low < 8 ? high - low : 8, from = low, to = high;

		for (size_t i = 1; i <= ways; i++) {
			const size_t at = from + (to - from) * i / (ways + 1);

			if (m->where[ids[at]] == NOWHERE) {
				high = at;
				break;
			}
			low = at + 1;
		}
	}
	return low;
}

static void be_child(struct model *m, uint32_t block, uint32_t parent)
{
	m->parent[block] = parent;
	m->sibling[block] = m->child[parent];
	m->child[parent] = block;
}

static void replay_one(struct model *m, const uint32_t *ids, size_t n)
{
	size_t hits = 0;

	while (hits < n && m->where[ids[hits]] != NOWHERE)
		hits++;
	m->hits += hits;
	m->promised += promise(m, ids, n);
	m->now += n;
	for (size_t i = 0; i < n; i++) {
		const uint64_t tick = m->now - i;

		if (m->where[ids[i]] != NOWHERE)
			nvme_ages_touch(&m->ages, &m->heat[m->where[ids[i]]], m->tick[ids[i]],
					tick);
		else if (i && m->parent[ids[i]] == NOBODY)
			be_child(m, ids[i], ids[i - 1]);
		m->tick[ids[i]] = tick;
	}
	for (size_t i = 0; i < n; i++) {
		if (m->where[ids[i]] != NOWHERE)
			continue;
		while (m->n_free < CLEAN)
			reclaim(m);
		put(m, ids[i]);
		nvme_credit_earn(&m->credit, RECORD);
		m->stored++;
	}
}

static bool is_hole(const struct model *m, uint32_t block)
{
	for (uint32_t at = m->parent[block]; at != NOBODY; at = m->parent[at])
		if (m->where[at] == NOWHERE)
			return true;
	return false;
}

static double hole_percent(const struct model *m)
{
	uint32_t live = 0, holes = 0;

	for (uint32_t i = 0; i < m->trace->unique; i++) {
		if (m->where[i] == NOWHERE)
			continue;
		live++;
		holes += is_hole(m, i);
	}
	return live ? 100.0 * holes / live : 0;
}

static void *array(size_t n, size_t bytes)
{
	void *ret = calloc(n, bytes);

	assert_non_null(ret);
	return ret;
}

static uint32_t *of_blocks(const struct requests *t)
{
	uint32_t *ret = array(t->unique, sizeof(*ret));

	memset(ret, 0xff, t->unique * sizeof(*ret)); /* NOWHERE, NOBODY */
	return ret;
}

/* The model has the clean segments beside the usable ones. Returns the share of blocks found. */
static double replay_log(const struct requests *t, uint32_t segments, uint32_t segment_blocks,
			 double *ret_carried, double *ret_promised, double *ret_holes)
{
	struct model m = { .trace = t,
			   .n = segments + CLEAN,
			   .segment_blocks = segment_blocks,
			   .open = NOWHERE,
			   .free_head = NOWHERE };
	size_t first = 0;

	m.segment = array(m.n, sizeof(*m.segment));
	m.heat = array(m.n, sizeof(*m.heat));
	m.where = of_blocks(t);
	m.parent = of_blocks(t);
	m.child = of_blocks(t);
	m.sibling = of_blocks(t);
	m.going = of_blocks(t);
	m.tick = array(t->unique, sizeof(*m.tick));
	nvme_credit_open(&m.credit, (uint64_t)m.n * segment_blocks * RECORD,
			 segment_blocks * RECORD);
	for (uint32_t i = m.n; i-- > 0; m.free_head = i, m.n_free++)
		m.segment[i].next_free = m.free_head;
	for (size_t r = 0; r < t->n_requests; first = t->ends[r++])
		replay_one(&m, t->ids + first, t->ends[r] - first);
	*ret_carried = (double)m.carried / (double)m.stored;
	*ret_promised = (double)(m.promised - m.hits) / (double)t->n_ids;
	*ret_holes = hole_percent(&m);
	free(m.segment);
	free(m.heat);
	free(m.where);
	free(m.parent);
	free(m.child);
	free(m.sibling);
	free(m.going);
	free(m.tick);
	return (double)m.hits / (double)t->n_ids;
}

/* `size`: percent of the trace's blocks. */
static void compare(const struct requests *t, uint32_t size, const struct bar *bars)
{
	for (int i = 0; i < 3; i++) {
		const uint32_t blocks = bars[i].segment_blocks,
			       segments = (uint32_t)((uint64_t)size * t->unique / 100 / blocks);
		double carried, promised, holes;
		const double lru = trace_lru(t, segments * blocks),
			     log = replay_log(t, segments, blocks, &carried, &promised, &holes);

		printf("room for %2u %%, %2u blocks a segment: %.4f, exact LRU %.4f\n", size,
		       blocks, log, lru);
		printf("\t%.2f points less (bar %.1f); %.1f %% written again (bar 3); a lookup "
		       "promises %.2f points more (bar 0.1); %.1f %% behind a hole (bar 1)\n",
		       100 * (lru - log), bars[i].bar, 100 * carried, 100 * promised, holes);
		assert_true(100 * (lru - log) <= bars[i].reached);
		assert_true(100 * promised <= .1 && holes <= 1);
		assert_true(carried <= .03 + (double)blocks * CLEAN / (double)t->unique);
	}
}

/* --- traces --- */

static uint64_t lot;

static uint32_t draw(uint32_t n)
{
	lot = lot * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((lot >> 33) % n);
}

/* Small numbers are more frequent: about 1 / k. */
static uint32_t draw_popular(uint32_t n)
{
	return draw(1 + draw(1 + draw(n)));
}

enum { LONGEST = 2048 };

struct session {
	uint32_t n, turns_left;
	uint32_t ids[LONGEST];
};

static void grow(struct session *s, uint32_t by, uint32_t *next)
{
	while (by-- > 0 && s->n < LONGEST)
		s->ids[s->n++] = (*next)++;
}

static void begin(struct session *s, const struct session *prefix, uint32_t turns)
{
	s->n = prefix->n;
	s->turns_left = turns;
	memcpy(s->ids, prefix->ids, prefix->n * sizeof(*s->ids));
}

/* Sessions that begin with a project's prefix, which begins with one of a few system prompts, and
 * that grow at each turn. Now and then a sub-agent branches off from the middle. */
static void make_agents(struct requests *ret, uint32_t requests)
{
	static struct session prompt[16], project[128], now[48], branch;
	uint32_t next = 0;

	for (uint32_t i = 0; i < 16; i++)
		grow(&prompt[i], 4 + draw(28), &next);
	for (uint32_t i = 0; i < 128; i++) {
		begin(&project[i], &prompt[draw_popular(16)], 0);
		grow(&project[i], 8 + draw(48), &next);
	}
	while (ret->n_requests < requests) {
		struct session *s = &now[draw(4) ? draw(12) : draw(48)];

		if (!s->turns_left)
			begin(s, &project[draw_popular(128)], 5 + draw(draw(4) ? 40 : 160));
		s->turns_left--;
		grow(s, 1 + draw(6), &next);
		trace_add(ret, s->ids, s->n);
		if (draw(12))
			continue;
		begin(&branch, s, 2 + draw(6));
		branch.n = s->n / 2 + draw(s->n / 2);
		for (; branch.turns_left > 0; branch.turns_left--) {
			grow(&branch, 1 + draw(4), &next);
			trace_add(ret, branch.ids, branch.n);
		}
	}
}

/* Users of a few system prompts who ask some questions; a quarter of all requests is about a
 * document that others ask about, too. */
static void make_chats(struct requests *ret, uint32_t requests)
{
	enum { USERS = 1000, DOCUMENTS = 500 };
	static struct session prompt[16], document[DOCUMENTS], now[USERS], once;
	uint32_t next = 0;

	for (uint32_t i = 0; i < 16; i++)
		grow(&prompt[i], 1 + draw(6), &next);
	for (uint32_t i = 0; i < DOCUMENTS; i++) {
		begin(&document[i], &prompt[draw_popular(16)], 0);
		grow(&document[i], 4 + draw(36), &next);
	}
	while (ret->n_requests < requests) {
		struct session *s = &once;

		if (draw(4) == 0) {
			begin(s, &document[draw_popular(DOCUMENTS)], 1);
		} else {
			s = &now[draw_popular(USERS)];
			if (!s->turns_left)
				begin(s, &prompt[draw_popular(16)],
				      1 + draw(3) + (draw(4) ? 0 : draw(12)));
		}
		s->turns_left--;
		grow(s, 1 + draw(8), &next);
		trace_add(ret, s->ids, s->n);
	}
}

/* One request a second. */
static void save(const struct requests *t, const char *name)
{
	size_t at = 0;
	char path[300];
	FILE *out;

	(void)snprintf(path, sizeof(path), "%s/%s.jsonl", getenv("KVTIER_MADE"), name);
	out = fopen(path, "we");
	assert_non_null(out);
	for (size_t r = 0; r < t->n_requests; r++) {
		(void)fprintf(out, "{\"timestamp\":%zu,\"hash_ids\":[%u", 1000 * r, t->ids[at]);
		while (++at < t->ends[r])
			(void)fprintf(out, ",%u", t->ids[at]);
		(void)fputs("]}\n", out);
	}
	assert_int_equal(fclose(out), 0);
}

static void compare_made(void (*make)(struct requests *ret, uint32_t requests), uint32_t requests,
			 const char *name, const struct bar *bars)
{
	struct requests t = { 0 };

	lot = 20261129;
	make(&t, requests);
	if (getenv("KVTIER_MADE"))
		save(&t, name);
	printf("seed 20261129: %zu requests, %u blocks, %zu times\n", t.n_requests, t.unique,
	       t.n_ids);
	for (uint32_t size = 3; size <= 40; size = size * 10 / 3)
		compare(&t, size, bars);
	requests_free(&t);
}

static uint64_t cpu_ns(void)
{
	struct timespec now;

	assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now), 0);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The most segments of a disk, each with records of all ages but for one with old ones alone: the
 * sample finds no worse victim than its share says. Prints what a choice costs. */
TEST(a_sample_of_all_segments_is_enough)
{
	enum { SEGMENTS = 65535, RECORDS = 8, PICKS = 200 };
	struct nvme_heat *heat = array(SEGMENTS, sizeof(*heat));
	struct nvme_ages ages = { 0 };
	uint64_t sum = 0, begin, tick = 0;
	uint32_t seed = 0;

	for (uint32_t i = 0; i < SEGMENTS * RECORDS; i++) {
		nvme_ages_grow(&ages);
		nvme_ages_put(&ages, &heat[i / RECORDS], ++tick);
		heat[i / RECORDS].eligible = true;
	}
	begin = cpu_ns();
	for (int i = 0; i < PICKS; i++) {
		const uint32_t victim =
			nvme_victim_pick(&ages, heat, SEGMENTS, nvme_ages_tick(&ages, .5), &seed);

		assert_true(victim < SEGMENTS);
		sum += victim; /* the oldest are the first */
	}
	printf("a victim of 65,535 segments: %llu us of CPU each (bar 200), the %llu. oldest\n",
	       (unsigned long long)(cpu_ns() - begin) / PICKS / 1000,
	       (unsigned long long)sum / PICKS);
	assert_true(sum / PICKS < SEGMENTS / 100);
	free(heat);
}

TEST(loses_little_on_agents)
{
	static const struct bar bars[] = { { 2, .5, .8 }, { 8, 1, 1.9 }, { 64, 2, 6.3 } };

	compare_made(make_agents, 1500, "agents", bars);
}

TEST(loses_little_on_chats)
{
	static const struct bar bars[] = { { 2, .5, .6 }, { 8, 1, 1.4 }, { 64, 2, 3.2 } };

	compare_made(make_chats, 5000, "chats", bars);
}

TEST(loses_little_on_the_trace_of_a_file)
{
	static const struct bar bars[] = { { 2, .5, .8 }, { 8, 1, 1.1 }, { 64, 2, 2.7 } };
	static const uint32_t sizes[] = { 3, 5, 10, 20, 40 };
	const char *path = getenv("KVTIER_TRACE");
	struct requests t = { 0 };
	char why[256];
	FILE *in;

	if (!path) {
		printf("KVTIER_TRACE names no trace\n");
		return;
	}
	in = fopen(path, "re");
	assert_non_null(in);
	assert_int_equal(requests_read(&t, in, NULL, NULL, why, sizeof(why)), 0);
	(void)fclose(in);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		compare(&t, sizes[i], bars);
	requests_free(&t);
}
