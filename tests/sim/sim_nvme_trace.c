/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_nvme_trace - goal: the log's choice of victims costs little against exact LRU of the same
 * bytes, in hits (at most 2.5 points) and in writes (carry-over at most 10 % of the stored bytes).
 * Method: replay of Mooncake's conversation trace (JSONL; $KVTIER_TRACE names the file, skipped
 * when absent) on a model log of segments, with the policy's own functions, beside leaf-first LRU
 * by block. Hits are the leading blocks of a request that are present.
 */
#include "tiers/nvme/log/nvme_log_inner.h"
#include "tests/lib/lib_trace.h"

enum { SEGMENT_BLOCKS = 64, NOWHERE = 0xffffffff };

struct segment {
	uint32_t used, next_free;
	uint32_t block[SEGMENT_BLOCKS]; /* in order of writing; may have gone or moved since */
};

struct model {
	uint32_t n;
	struct segment *segment;
	struct nvme_heat *heat;
	uint32_t *scratch;
	uint32_t *where; /* of a block: segment, or NOWHERE */
	uint64_t *tick;
	uint32_t free_head, n_free, open;
	uint64_t stored, carried;
};

static void open_next(struct model *m)
{
	if (m->open != NOWHERE)
		m->heat[m->open].eligible = true;
	assert_true(m->n_free > 0);
	m->open = m->free_head;
	m->free_head = m->segment[m->open].next_free;
	m->n_free--;
	m->segment[m->open].used = 0;
	m->heat[m->open] = (struct nvme_heat){ 0 };
}

static void put(struct model *m, uint32_t block)
{
	struct segment *s;

	if (m->open == NOWHERE || m->segment[m->open].used == SEGMENT_BLOCKS)
		open_next(m);
	s = &m->segment[m->open];
	s->block[s->used++] = block;
	m->where[block] = m->open;
	m->heat[m->open].blocks++;
	m->heat[m->open].tick_sum += m->tick[block];
}

static void take(struct model *m, uint32_t block)
{
	struct nvme_heat *heat = &m->heat[m->where[block]];

	heat->blocks--;
	heat->tick_sum -= m->tick[block];
	m->where[block] = NOWHERE;
}

static void reclaim(struct model *m)
{
	struct nvme_candidate c[SEGMENT_BLOCKS];
	const uint32_t victim = nvme_victim_pick(m->heat, m->n);
	const uint64_t middle = nvme_victim_middle(m->heat, m->n, m->scratch);
	struct segment *s;

	assert_true(victim != NVME_NO_VICTIM);
	s = &m->segment[victim];
	for (uint32_t i = 0; i < s->used; i++)
		c[i] = (struct nvme_candidate){ .tick = m->tick[s->block[i]],
						.bytes = 1,
						.entry = i,
						.live = m->where[s->block[i]] == victim };
	m->heat[victim].eligible = false;
	(void)nvme_victim_carry(c, s->used, middle, s->used * NVME_CARRY_PERCENT / 100);
	for (uint32_t i = 0; i < s->used; i++) {
		const uint32_t block = s->block[c[i].entry];

		if (!c[i].live)
			continue;
		take(m, block);
		if (!c[i].carry)
			continue;
		put(m, block);
		m->carried++;
	}
	assert_int_equal(m->heat[victim].blocks, 0);
	s->next_free = m->free_head;
	m->free_head = victim;
	m->n_free++;
}

static size_t replay_one(struct model *m, const uint32_t *ids, size_t n, uint64_t tick)
{
	size_t hits = 0;

	while (hits < n && m->where[ids[hits]] != NOWHERE)
		hits++;
	for (size_t i = 0; i < n; i++) {
		if (m->where[ids[i]] != NOWHERE) {
			m->heat[m->where[ids[i]]].tick_sum += tick - m->tick[ids[i]];
			m->tick[ids[i]] = tick;
		}
	}
	for (size_t i = 0; i < n; i++) {
		if (m->where[ids[i]] != NOWHERE)
			continue;
		while (m->n_free < 2)
			reclaim(m);
		m->tick[ids[i]] = tick;
		put(m, ids[i]);
		m->stored++;
	}
	return hits;
}

static double replay_log(const struct requests *t, uint32_t blocks, double *ret_carried)
{
	struct model m = { .n = blocks / SEGMENT_BLOCKS, .open = NOWHERE, .free_head = NOWHERE };
	size_t first = 0, hits = 0;

	m.segment = calloc(m.n, sizeof(*m.segment));
	m.heat = calloc(m.n, sizeof(*m.heat));
	m.scratch = calloc(m.n, sizeof(*m.scratch));
	m.where = malloc(t->unique * sizeof(*m.where));
	m.tick = calloc(t->unique, sizeof(*m.tick));
	assert_true(m.segment && m.heat && m.scratch && m.where && m.tick);
	memset(m.where, 0xff, t->unique * sizeof(*m.where));
	for (uint32_t i = m.n; i-- > 0; m.free_head = i, m.n_free++)
		m.segment[i].next_free = m.free_head;
	for (size_t r = 0; r < t->n_requests; r++) {
		hits += replay_one(&m, t->ids + first, t->ends[r] - first, r + 1);
		first = t->ends[r];
	}
	*ret_carried = (double)m.carried / (double)m.stored;
	free(m.segment);
	free(m.heat);
	free(m.scratch);
	free(m.where);
	free(m.tick);
	return (double)hits / (double)t->n_ids;
}

TEST(loses_little_against_exact_lru)
{
	static const double shares[] = { .05, .10, .20, .40 };
	const struct requests *t = *state;

	for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
		const uint32_t blocks = (uint32_t)(shares[i] * t->unique);
		double carried;
		const double lru = trace_lru(t, blocks), log = replay_log(t, blocks, &carried);

		printf("capacity %5.1f %% (%u blocks): hit rate %.4f, exact LRU %.4f; carried over "
		       "%.1f %%\n",
		       100 * shares[i], blocks, log, lru, 100 * carried);
		assert_true(log >= lru - .025);
		assert_true(carried <= .10);
	}
}

TRACE_TEST;
