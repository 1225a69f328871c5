/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_nvme_trace - goal: the log's choice of victims costs little against exact leaf-first LRU of
 * the bytes that it can use, in hits and in writes.
 * Method: a replay of traces on a model log of segments, with the policy's own functions
 * (nvme_victim.h), at 2, 8 and 64 blocks a segment. A block goes with its parent, as the table of
 * blocks has it (blocks_lost()). Hits are the leading blocks of a request that are present. Two
 * traces are made here, of agents whose prefixes branch, and of short chats; and $KVTIER_TRACE may
 * name a file of requests, which is replayed at more sizes; the traces that are made are written to
 * $KVTIER_MADE, a directory, for tests/bench/replay.py. A case fails where a figure is over its
 * bar.
 */
#include <string.h>

#include "tiers/nvme/log/nvme_victim.h"
#include "tests/lib/lib_trace.h"

enum { MAX_BLOCKS = 64, RECORD = 4096, NOWHERE = 0xffffffff, NOBODY = 0xffffffff };

/* Points of hits that may be lost. */
struct bar {
	uint32_t segment_blocks;
	double points;
};

static const struct bar bars[] = { { 2, .5 }, { 8, 1 }, { 64, 2 } };

struct segment {
	uint32_t block[MAX_BLOCKS]; /* in order of places, or NOBODY */
	bool kept[MAX_BLOCKS];      /* when it was a victim: such a place takes no other block */
};

struct model {
	const struct requests *trace;
	uint32_t n, segment_blocks;
	struct segment *segment;
	struct nvme_heat *heat;
	struct nvme_ages ages;
	/* of a block: its segment, or NOWHERE; other blocks, or NOBODY */
	uint32_t *where, *parent, *child, *sibling;
	uint64_t *tick;
	uint32_t *going;                   /* drop() */
	uint32_t fresh, open, ready, next; /* never used yet; segments; a place in the open one */
	uint64_t now, stored, victims, runs, hits, promised;
};

/* --- the model --- */

static void take(struct model *m, uint32_t block)
{
	struct segment *s = &m->segment[m->where[block]];

	nvme_ages_take(&m->ages, m->where[block], m->tick[block], RECORD);
	for (uint32_t i = 0; i < m->segment_blocks; i++)
		if (s->block[i] == block)
			s->block[i] = NOBODY;
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

/* The records of a victim that are colder than the rest make room. */
static uint32_t victim(struct model *m)
{
	uint64_t tick;
	const uint32_t ret = nvme_victim_pick(&m->ages, m->segment_blocks * RECORD, &tick);
	struct segment *s = &m->segment[ret];
	uint32_t coldest = NOBODY;
	bool free = false;

	assert_true(ret != NVME_NO_VICTIM);
	for (uint32_t i = 0; i < m->segment_blocks; i++)
		if (s->block[i] != NOBODY && m->tick[s->block[i]] < tick)
			drop(m, s->block[i]);
	for (uint32_t i = 0; i < m->segment_blocks; i++) {
		const uint32_t block = s->block[i];

		free = free || block == NOBODY;
		if (block != NOBODY && (coldest == NOBODY || m->tick[block] < m->tick[coldest]))
			coldest = block;
	}
	if (!free)
		drop(m, coldest);
	m->victims++;
	for (uint32_t i = 0; i < m->segment_blocks; i++)
		s->kept[i] = s->block[i] != NOBODY;
	return ret;
}

/* One segment is ready before it is needed. */
static void open_next(struct model *m)
{
	if (m->open != NOWHERE)
		nvme_ages_seal(&m->ages, m->open,
			       (uint64_t)m->segment_blocks * RECORD - m->heat[m->open].bytes);
	m->open = m->ready;
	m->ready = m->fresh < m->n ? m->fresh++ : victim(m);
	m->next = 0;
}

static void put(struct model *m, uint32_t block)
{
	const uint32_t open = m->open, behind = m->next;

	for (;;) {
		const struct segment *s = &m->segment[m->open];

		while (m->next < m->segment_blocks && s->kept[m->next])
			m->next++;
		if (m->next < m->segment_blocks)
			break;
		open_next(m);
	}
	m->runs += m->open != open || m->next != behind || !behind;
	m->segment[m->open].block[m->next++] = block;
	m->where[block] = m->open;
	nvme_ages_put(&m->ages, m->open, m->tick[block], RECORD);
	m->stored++;
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
			nvme_ages_touch(&m->ages, m->where[ids[i]], m->tick[ids[i]], tick);
		else if (i && m->parent[ids[i]] == NOBODY)
			be_child(m, ids[i], ids[i - 1]);
		m->tick[ids[i]] = tick;
	}
	for (size_t i = 0; i < n; i++)
		if (m->where[ids[i]] == NOWHERE)
			put(m, ids[i]);
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

/* Spans lose no record, and a segment's are those that are there. */
static void check_ages(const struct model *m)
{
	uint64_t all = 0, by_span = 0;

	for (uint32_t i = 0; i < m->n; i++) {
		uint32_t live = 0;

		for (uint32_t k = 0; k < m->segment_blocks; k++)
			live += m->segment[i].block[k] != NOBODY;
		assert_int_equal(m->heat[i].blocks, live);
		assert_int_equal(m->heat[i].bytes, (uint64_t)live * RECORD);
		all += live;
	}
	for (uint32_t i = 0; i < m->ages.spans; i++)
		by_span += m->ages.in[m->ages.order[i]];
	assert_int_equal(m->ages.all, all);
	assert_int_equal(by_span, all);
}

struct result {
	double found, promised, holes; /* shares of blocks; per cent */
	double victims, run;           /* victims for each stored block; blocks a write */
};

static struct result replay_log(const struct requests *t, uint32_t segments,
				uint32_t segment_blocks)
{
	struct model m = { .trace = t,
			   .n = segments,
			   .segment_blocks = segment_blocks,
			   .open = 0,
			   .ready = 1,
			   .fresh = 2 };
	struct result ret;
	size_t first = 0;

	m.segment = array(m.n, sizeof(*m.segment));
	m.heat = array(m.n, sizeof(*m.heat));
	m.where = of_blocks(t);
	m.parent = of_blocks(t);
	m.child = of_blocks(t);
	m.sibling = of_blocks(t);
	m.going = of_blocks(t);
	m.tick = array(t->unique, sizeof(*m.tick));
	for (uint32_t i = 0; i < m.n; i++)
		memset(m.segment[i].block, 0xff, sizeof(m.segment[i].block)); /* NOBODY */
	nvme_ages_open(&m.ages, m.heat, m.n);
	for (size_t r = 0; r < t->n_requests; first = t->ends[r++])
		replay_one(&m, t->ids + first, t->ends[r] - first);
	check_ages(&m);
	ret = (struct result){ .found = (double)m.hits / (double)t->n_ids,
			       .promised = (double)(m.promised - m.hits) / (double)t->n_ids,
			       .holes = hole_percent(&m),
			       .victims = (double)m.victims / (double)m.stored,
			       .run = (double)m.stored / (double)m.runs };
	free(m.segment);
	free(m.heat);
	free(m.where);
	free(m.parent);
	free(m.child);
	free(m.sibling);
	free(m.going);
	free(m.tick);
	return ret;
}

/* `size`: percent of the trace's blocks. */
static void compare(const struct requests *t, uint32_t size)
{
	for (int i = 0; i < 3; i++) {
		const uint32_t blocks = bars[i].segment_blocks,
			       segments = (uint32_t)((uint64_t)size * t->unique / 100 / blocks);
		const double lru = trace_lru(t, segments * blocks);
		const struct result log = replay_log(t, segments, blocks);

		printf("room for %2u %%, %2u blocks a segment: %.4f, exact LRU %.4f\n", size,
		       blocks, log.found, lru);
		printf("\t%.2f points less (bar %.1f); a victim for %.1f blocks, %.1f blocks a "
		       "write; a lookup promises %.2f points more (bar 0.1); %.1f %% behind a hole "
		       "(bar 1)\n",
		       100 * (lru - log.found), bars[i].points, 1 / log.victims, log.run,
		       100 * log.promised, log.holes);
		assert_true(100 * (lru - log.found) <= bars[i].points);
		assert_true(100 * log.promised <= .1 && log.holes <= 1);
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
			 const char *name)
{
	struct requests t = { 0 };

	lot = 20261129;
	make(&t, requests);
	if (getenv("KVTIER_MADE"))
		save(&t, name);
	printf("seed 20261129: %zu requests, %u blocks, %zu times\n", t.n_requests, t.unique,
	       t.n_ids);
	for (uint32_t size = 3; size <= 40; size = size * 10 / 3)
		compare(&t, size);
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
	struct nvme_ages ages;
	uint64_t sum = 0, begin, tick = 0, cold;

	nvme_ages_open(&ages, heat, SEGMENTS);
	for (uint32_t i = 0; i < SEGMENTS; i++) {
		for (int k = 0; k < RECORDS; k++)
			nvme_ages_put(&ages, i, ++tick, RECORD);
		nvme_ages_seal(&ages, i, 0);
	}
	begin = cpu_ns();
	for (int i = 0; i < PICKS; i++) {
		const uint32_t victim = nvme_victim_pick(&ages, RECORDS * RECORD, &cold);

		assert_true(victim < SEGMENTS);
		sum += victim; /* the oldest are the first */
	}
	printf("a victim of 65,535 segments: %llu us of CPU each (bar 200), the %llu. oldest\n",
	       (unsigned long long)(cpu_ns() - begin) / PICKS / 1000,
	       (unsigned long long)sum / PICKS);
	assert_true(sum / PICKS < SEGMENTS / 100);
	free(heat);
}

/* At a start the log tells of all bytes that have no record. */
TEST(a_tail_that_is_shorter_than_a_record_makes_no_victim)
{
	struct nvme_heat heat[2] = { 0 };
	struct nvme_ages ages;
	uint64_t cold;

	nvme_ages_open(&ages, heat, 2);
	for (uint64_t tick = 1; tick <= 4; tick++)
		nvme_ages_put(&ages, tick < 3, tick, RECORD); /* segment 1 is the older one */
	nvme_ages_seal(&ages, 0, RECORD - 1);
	nvme_ages_seal(&ages, 1, 0);
	assert_int_equal(nvme_victim_pick(&ages, 3 * RECORD, &cold), 1);
}

TEST(loses_little_on_agents)
{
	compare_made(make_agents, 1500, "agents");
}

TEST(loses_little_on_chats)
{
	compare_made(make_chats, 5000, "chats");
}

TEST(loses_little_on_the_trace_of_a_file)
{
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
		compare(&t, sizes[i]);
	requests_free(&t);
}
