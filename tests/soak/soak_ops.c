/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soak_ops.c - goal: millions of ops leave the daemon as large as it was. Method: one engine keeps
 * many small ops outstanding, most of them loads whose bytes are compared now and then; descriptors
 * and resident memory are compared with the figures after the first hundredth. SOAK_OPS says how
 * many (10,000,000). Not part of `make test`: takes minutes.
 */
#include "tests/lib/lib_raw.h"

enum { CHAINS = 64, BLOCKS = 4, DEPTH = 64, PAGES = DEPTH * BLOCKS };

struct soak {
	struct daemon d;
	struct engine e;
	struct random random;
	struct kvtier_key keys[CHAINS][BLOCKS];
	uint64_t ops[DEPTH];
	uint32_t chain[DEPTH];
	bool load[DEPTH];
};

static void submit(struct soak *s, uint32_t slot)
{
	uint32_t pages[BLOCKS];

	s->chain[slot] = random_below(&s->random, CHAINS);
	s->load[slot] = random_below(&s->random, 8) != 0;
	pages_from(slot * BLOCKS, pages, BLOCKS);
	if (!s->load[slot])
		for (uint32_t i = 0; i < BLOCKS; i++)
			page_fill(&s->e, pages[i], &s->keys[s->chain[slot]][i], 0);
	assert_int_equal((s->load[slot] ? kvtier_load(s->e.space, s->keys[s->chain[slot]], pages,
						      BLOCKS, NULL, &s->ops[slot]) :
					  kvtier_store(s->e.space, s->keys[s->chain[slot]], pages,
						       BLOCKS, NULL, &s->ops[slot])),
			 0);
}

static void take(struct soak *s, uint32_t slot, bool compare)
{
	struct kvtier_result result = { .size = sizeof(result) };

	assert_int_equal(kvtier_wait(s->e.client, s->ops[slot], -1, &result), 0);
	assert_true(result.status == 0 || result.status == -ENOENT || result.status == -ENOSPC);
	for (uint32_t i = 0; compare && s->load[slot] && i < result.prefix; i++)
		assert_true(page_is(&s->e, slot * BLOCKS + i, &s->keys[s->chain[slot]][i], 0));
}

static void run(struct soak *s, uint64_t n)
{
	for (uint32_t slot = 0; slot < DEPTH; slot++)
		submit(s, slot);
	for (uint64_t i = 0; i < n; i++) {
		take(s, (uint32_t)(i % DEPTH), i % 97 == 0);
		submit(s, (uint32_t)(i % DEPTH));
	}
	for (uint32_t slot = 0; slot < DEPTH; slot++)
		take(s, slot, true);
}

TEST(millions_of_ops)
{
	const uint64_t n = env_number("SOAK_OPS", 10000000);
	static struct soak s;
	struct daemon_size size;

	s.random = random_seeded("soak_ops");
	daemon_start(&s.d, SMALL_HOST);
	engine_open(&s.e, s.d.socket, "soak", &tiny_fp8, PAGES);
	for (uint32_t i = 0; i < CHAINS; i++)
		chain_keys(&s.e, i, BLOCKS, s.keys[i]);
	run(&s, n / 100);
	size = daemon_size(&s.d);
	run(&s, n);
	printf("%llu ops: %ld KiB before, %ld KiB after\n", (unsigned long long)n, size.kib,
	       daemon_rss_kib(&s.d));
	daemon_size_check(&s.d, &size);
	assert_int_equal(daemon_stat(&s.d, "ops.outstanding"), 0);
	assert_int_equal(daemon_stat(&s.d, "leases"), 0);
	engine_close(&s.e);
	daemon_remove(&s.d);
}
