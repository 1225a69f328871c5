/* SPDX-License-Identifier: Apache-2.0 */

#include "lib_hostile.h"
#include "lib_raw.h"

/* DEEDS_MS: on a busy machine the hostile client, which is nice, comes to its deeds late. */
enum { BLOCKS = 16, CHAINS = 32, ROUNDS_LEAST = 20, QUIET_MS = 60000, DEEDS_MS = 400000 };

struct beside {
	struct daemon d;
	struct engine e;
	struct hostile hostile;
	struct random random;
	uint64_t rounds, loads, misses;
};

/* A load may miss blocks that others pushed out, from the first miss to the end; loaded blocks are
 * right. */
static void load(struct beside *b, const struct kvtier_key *keys, uint64_t salt)
{
	uint32_t pages[BLOCKS];
	int32_t status[BLOCKS];
	int r;

	pages_from(BLOCKS, pages, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_poison(&b->e, pages[i]);
	r = engine_load(&b->e, keys, pages, BLOCKS, status);
	if (r && r != -ENOENT)
		fail_msg("a load ended with %d (%s), round %llu", r, strerror(-r),
			 (unsigned long long)b->rounds);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		if (status[i] != 0 && status[i] != -ENOENT)
			fail_msg("block %u of a load: %d (%s)", i, status[i], strerror(-status[i]));
		assert_true(status[i] ? page_is_poison(&b->e, pages[i]) :
					page_is(&b->e, pages[i], &keys[i], salt));
		b->misses += status[i] != 0;
	}
	b->loads += BLOCKS;
}

/* A chain is always of the same bytes, whichever round stored it. */
static void round_of(struct beside *b)
{
	const uint64_t chain = random_below(&b->random, CHAINS);
	struct kvtier_key keys[BLOCKS];
	uint32_t pages[BLOCKS];
	int32_t status[BLOCKS];
	int r;

	chain_keys(&b->e, chain, BLOCKS, keys);
	pages_from(0, pages, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_fill(&b->e, pages[i], &keys[i], chain);
	r = engine_store(&b->e, keys, pages, BLOCKS, NULL, status);
	if (r)
		fail_msg("a store ended with %d (%s), round %llu", r, strerror(-r),
			 (unsigned long long)b->rounds);
	for (uint32_t i = 0; i < BLOCKS; i++)
		if (status[i] < 0)
			fail_msg("block %u of a store: %d (%s)", i, status[i],
				 strerror(-status[i]));
	assert_in_range(engine_lookup(&b->e, keys, BLOCKS), 0, BLOCKS);
	load(b, keys, chain);
	b->rounds++;
}

static void tell(const struct beside *b)
{
	printf("%llu rounds, %llu of %llu loaded blocks missed; hostile: %llu ops",
	       (unsigned long long)b->rounds, (unsigned long long)b->misses,
	       (unsigned long long)b->loads,
	       (unsigned long long)atomic_load(&b->hostile.tally->ops));
	for (int i = 0; i < HOSTILE_DEEDS; i++)
		printf(", %s %llu", hostile_deed_name((enum hostile_deed)i),
		       (unsigned long long)atomic_load(&b->hostile.tally->deeds[i]));
	printf("\n");
}

static bool all_done(const struct hostile *h)
{
	for (int i = 0; i < HOSTILE_DEEDS; i++)
		if (atomic_load(&h->tally->deeds[i]) == 0)
			return false;
	return true;
}

void hostile_beside(const char *test, uint32_t seconds)
{
	const uint64_t until = now_ns() + seconds * 1000000000ull,
		       patience = until + DEEDS_MS * 1000000ull;
	static struct beside b;

	b = (struct beside){ .random = random_seeded(test) };
	daemon_start(&b.d, HOST("64M", "2M") "verify = always\n");
	engine_open(&b.e, b.d.socket, "honest", &tiny_fp8, 2 * BLOCKS);
	assert_int_equal(hostile_start(&b.hostile, b.d.socket, random_next(&b.random)), 0);
	while (now_ns() < until ||
	       ((b.rounds < ROUNDS_LEAST || !all_done(&b.hostile)) && now_ns() < patience))
		round_of(&b);
	tell(&b);
	assert_true(all_done(&b.hostile));
	assert_true(b.rounds >= ROUNDS_LEAST);
	hostile_stop(&b.hostile);
	daemon_stat_becomes(&b.d, "clients", 1, QUIET_MS); /* its remains go */
	daemon_stat_becomes(&b.d, "ops.outstanding", 0, QUIET_MS);
	daemon_stat_becomes(&b.d, "leases", 0, QUIET_MS);
	round_of(&b);
	assert_int_equal(daemon_stat(&b.d, "tiers.host.corrupt_blocks_total"), 0);
	engine_close(&b.e);
	daemon_remove(&b.d);
	hostile_free(&b.hostile);
}
