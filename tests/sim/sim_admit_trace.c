/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_admit_trace - second-miss admission is worth it on a public trace: with a write budget of a
 * quarter of the bytes that would be written without one, it hits more than writing the first
 * blocks until the budget is gone. Method: replay of Mooncake's conversation trace (JSONL;
 * $KVTIER_TRACE names the file, skipped when absent) over a host tier and a larger NVMe tier, both
 * leaf-first LRU by evict.c. Hits are the leading blocks of a request that are in either. Every
 * stored block is asked about once, as it is stored. The budget flows in with the requests, through
 * a bucket that starts full, as the log's does.
 */
#include "daemon/write/writeback.h"
#include "daemon/table/evict.h"
#include "tests/lib/lib_trace.h"

enum policy { EVERYTHING, FIRST_COME, SECOND_MISS };

/* A tier as evict.c sees it: the blocks here, and room for more. */
struct level {
	struct evict *evict;
	bool *here;
	uint32_t room;
};

struct replay {
	enum policy policy;
	struct level host, nvme;
	struct admit *admit;
	double bucket, bucket_full, per_request; /* blocks that may be written */
	uint64_t writes, hits;
};

static struct level level(const struct requests *t, double share)
{
	struct level ret = { .here = calloc(t->unique, sizeof(bool)),
			     .room = (uint32_t)(share * t->unique + .5) };

	assert_non_null(ret.here);
	assert_int_equal(evict_open(t->unique, 1, NULL, 1, &ret.evict), 0);
	return ret;
}

static void level_end(struct level *level)
{
	evict_close(level->evict);
	free(level->here);
}

/* Under its parent, if that is here; false: nothing can go for it. */
static bool level_add(struct level *level, uint32_t id, uint32_t parent, uint64_t tick)
{
	if (!level->room) {
		const uint32_t victim = evict_victim(level->evict, 0, 0, EVICT_USUAL);

		if (victim == EVICT_NONE)
			return false;
		(void)evict_remove(level->evict, victim);
		level->here[victim] = false;
		level->room++;
	}
	level->room--;
	level->here[id] = true;
	evict_add(level->evict, id,
		  parent != EVICT_NONE && level->here[parent] ? parent : EVICT_NONE, 0, tick);
	return true;
}

static bool admitted(struct replay *r, uint32_t id, uint32_t parent)
{
	const bool parent_there = parent == EVICT_NONE || r->nvme.here[parent];

	switch (r->policy) {
	case EVERYTHING:
		return parent_there;
	case FIRST_COME:
		return parent_there && r->bucket >= 1;
	default:
		return admit_ask(r->admit, random_key_of(id).bytes,
				 (uint32_t)(100 * r->bucket / r->bucket_full), parent_there) &&
		       r->bucket >= 1;
	}
}

static void write_behind(struct replay *r, uint32_t id, uint32_t parent, uint64_t tick)
{
	if (r->nvme.here[id] || !admitted(r, id, parent) || !level_add(&r->nvme, id, parent, tick))
		return;
	evict_pin(r->nvme.evict, id); /* as all of its chain, until the request ends */
	r->bucket--;
	r->writes++;
}

static void replay_one(struct replay *r, const uint32_t *ids, size_t n, uint64_t tick)
{
	size_t hits = 0, done = 0;

	while (hits < n && (r->host.here[ids[hits]] || r->nvme.here[ids[hits]]))
		hits++;
	for (; done < n; done++) {
		const uint32_t id = ids[done], parent = done ? ids[done - 1] : EVICT_NONE;
		const bool stored = done >= hits;

		if (!r->host.here[id] && !level_add(&r->host, id, parent, tick))
			break;
		evict_touch(r->host.evict, id, tick);
		evict_pin(r->host.evict, id);
		if (r->nvme.here[id]) {
			evict_touch(r->nvme.evict, id, tick);
			evict_pin(r->nvme.evict, id);
		} else if (stored) {
			write_behind(r, id, parent, tick);
		}
	}
	for (size_t i = 0; i < done; i++) {
		evict_unpin(r->host.evict, ids[i]);
		if (r->nvme.here[ids[i]])
			evict_unpin(r->nvme.evict, ids[i]);
	}
	r->hits += hits;
	r->bucket += r->per_request;
	if (r->bucket > r->bucket_full)
		r->bucket = r->bucket_full;
}

/* budget: blocks in all; bucket_share of it at the start. Returns the hit rate. */
static double replay(const struct requests *t, enum policy policy, double nvme_share, double budget,
		     double bucket_share, uint64_t *ret_writes)
{
	struct replay r = { .policy = policy,
			    .host = level(t, .05),
			    .nvme = level(t, nvme_share),
			    .bucket = budget * bucket_share,
			    .bucket_full = budget * bucket_share,
			    .per_request = budget * (1 - bucket_share) / (double)t->n_requests };
	size_t first = 0;

	r.admit = calloc(1, sizeof(*r.admit));
	assert_non_null(r.admit);
	for (size_t i = 0; i < t->n_requests; i++) {
		replay_one(&r, t->ids + first, t->ends[i] - first, i + 1);
		first = t->ends[i];
	}
	free(r.admit);
	level_end(&r.host);
	level_end(&r.nvme);
	*ret_writes = r.writes;
	return (double)r.hits / (double)t->n_ids;
}

TEST(second_miss_is_better_than_first_come)
{
	static const double nvme_shares[] = { .1, .2, .5, 1 }, bucket_shares[] = { .04, .25, 1 };
	const struct requests *t = *state;

	for (size_t i = 0; i < sizeof(nvme_shares) / sizeof(*nvme_shares); i++) {
		uint64_t all, first, second;
		const double no_budget = replay(t, EVERYTHING, nvme_shares[i], 0, 1, &all);

		for (size_t j = 0; j < sizeof(bucket_shares) / sizeof(*bucket_shares); j++) {
			const double budget = (double)all / 4, share = bucket_shares[j];
			const double come =
				replay(t, FIRST_COME, nvme_shares[i], budget, share, &first);
			const double miss =
				replay(t, SECOND_MISS, nvme_shares[i], budget, share, &second);

			printf("nvme %3.0f %%, bucket %3.0f %% of the budget: hit rate %.4f "
			       "without a budget (%" PRIu64 " writes), first come %.4f (%" PRIu64
			       "), second miss %.4f (%" PRIu64 ")\n",
			       100 * nvme_shares[i], 100 * share, no_budget, all, come, first, miss,
			       second);
			assert_true((double)first <= budget + 1 && (double)second <= budget + 1);
			assert_true(miss > come);
		}
	}
}

TRACE_TEST;
