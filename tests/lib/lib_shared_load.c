/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_shared_load.c - see lib_shared.h: nodes under load, while something happens to their Redis.
 */
#include "lib_shared.h"

/* --- threads: nothing here may assert, which would end the thread and not the test --- */

static bool well(struct engine *e, uint32_t page, const struct kvtier_key *key, int32_t status)
{
	if (status == 0)
		return page_is(e, page, key, 0);
	return (status == -ENOENT || status == -ENOSPC) && page_is_poison(e, page);
}

static bool load_quietly(struct engine *e, const struct kvtier_key *keys, uint32_t first,
			 uint32_t blocks, uint64_t *hits)
{
	uint32_t pages[SHARED_PAGES];
	int32_t statuses[SHARED_PAGES];
	bool good = true;

	pages_from(first, pages, blocks);
	for (uint32_t i = 0; i < blocks; i++) {
		page_poison(e, pages[i]);
		statuses[i] = -EINPROGRESS;
	}
	(void)engine_load(e, keys, pages, blocks, statuses);
	for (uint32_t i = 0; i < blocks; i++) {
		if (!well(e, pages[i], &keys[i], statuses[i])) {
			fprintf(stderr, "block %u with status %d is not right\n", i, statuses[i]);
			good = false;
		}
		*hits += statuses[i] == 0;
	}
	return good;
}

static bool store_quietly(struct engine *e, const struct kvtier_key *keys)
{
	uint32_t pages[SHARED_BLOCKS];
	int r;

	pages_from(0, pages, SHARED_BLOCKS);
	for (uint32_t i = 0; i < SHARED_BLOCKS; i++)
		page_fill(e, pages[i], &keys[i], 0);
	r = engine_store(e, keys, pages, SHARED_BLOCKS, NULL, NULL);
	if (r != 0 && r != -ENOSPC)
		fprintf(stderr, "a store ended with %d\n", r);
	return r == 0 || r == -ENOSPC;
}

static void *run(void *arg)
{
	struct shared_load *load = arg;

	for (load->good = true; load->good && !atomic_load(&load->stop); load->rounds++) {
		const struct kvtier_key *keys = load->chains[load->rounds % SHARED_CHAINS];

		load->good = load->stores ?
				     store_quietly(load->e, keys) :
				     load_quietly(load->e, keys, 0, SHARED_BLOCKS, &load->hits);
	}
	return NULL;
}

void shared_load_begin(struct shared_load *load, struct engine *e, bool stores)
{
	*load = (struct shared_load){ .e = e, .stores = stores };
	for (uint32_t i = 0; i < SHARED_CHAINS; i++)
		chain_keys(e, 1000 + i, SHARED_BLOCKS, load->chains[i]);
	assert_int_equal(pthread_create(&load->thread, NULL, run, load), 0);
}

void shared_load_end(struct shared_load *load)
{
	atomic_store(&load->stop, true);
	assert_int_equal(pthread_join(load->thread, NULL), 0);
	if (load->stores)
		printf("%llu rounds of stores\n", (unsigned long long)load->rounds);
	else
		printf("%llu rounds of loads, %llu blocks came\n", (unsigned long long)load->rounds,
		       (unsigned long long)load->hits);
	assert_true(load->good);
}

void shared_meets(const struct daemon *d, struct engine *a, struct engine *b)
{
	const uint64_t until = now_ns() + 3 * SHARED_MS * 1000000ull;
	struct kvtier_key fresh[SHARED_BLOCKS];
	int r;

	do {
		if (now_ns() > until)
			fail_msg("no chain goes from one node to the other any more");
		chain_keys(a, now_ns(), SHARED_BLOCKS, fresh);
		r = chain_store(a, fresh, SHARED_BLOCKS, SHARED_BLOCKS);
		/* little memory may be full of blocks being written */
		assert_true(r == 0 || r == -ENOSPC);
		daemon_stat_becomes(d, "tiers.redis.queued_blocks", 0, SHARED_MS);
		nap_ms(50);
	} while (chain_load(b, fresh, SHARED_BLOCKS, SHARED_BLOCKS) < SHARED_BLOCKS);
}

/* --- under full write load --- */

enum { FLOOD_QUEUE_MIB = 8, FLOOD_SLACK_MIB = 64 };

struct flood {
	struct node *node;
	struct kvtier_key own[SHARED_BLOCKS]; /* loaded so often that memory keeps it */
	long rss_kib;
	uint64_t chains;
};

static void flood_begin(struct flood *f, struct node *n, const char *endpoint, const char *write)
{
	char lines[128];

	(void)snprintf(lines, sizeof(lines), "write = %s\nmax_inflight_bytes = %dM\n", write,
		       FLOOD_QUEUE_MIB);
	node_place(n, &(struct node_conf){ .endpoints = endpoint,
					   .lines = lines,
					   .host = "bytes = 64M\nslab_bytes = 4M\n" });
	node_live(n);
	node_join(n, &large_raw);
	*f = (struct flood){ .node = n };
	chain_keys(&n->e, 1, SHARED_BLOCKS, f->own);
	assert_int_equal(chain_store(&n->e, f->own, 0, SHARED_BLOCKS), 0);
	assert_int_equal(chain_load(&n->e, f->own, 0, SHARED_BLOCKS), SHARED_BLOCKS);
	f->rss_kib = daemon_rss_kib(&n->d);
}

static void flood_round(struct flood *f)
{
	struct kvtier_key keys[SHARED_BLOCKS];
	struct engine *e = &f->node->e;
	long rss_kib;

	chain_keys(e, 2 + f->chains++, SHARED_BLOCKS, keys);
	assert_int_equal(chain_store(e, keys, SHARED_BLOCKS, SHARED_BLOCKS), 0);
	assert_int_equal(engine_lookup(e, f->own, SHARED_BLOCKS), SHARED_BLOCKS);
	assert_int_equal(chain_load(e, f->own, 0, SHARED_BLOCKS), SHARED_BLOCKS);
	rss_kib = daemon_rss_kib(&f->node->d);
	if (rss_kib > f->rss_kib + 1024 * (FLOOD_QUEUE_MIB + FLOOD_SLACK_MIB))
		fail_msg("resident memory grew from %ld to %ld KiB after %llu chains", f->rss_kib,
			 rss_kib, (unsigned long long)f->chains);
}

static void flood_end(struct flood *f)
{
	printf("%llu blocks stored; resident memory from %ld to %ld KiB\n",
	       (unsigned long long)f->chains * SHARED_BLOCKS, f->rss_kib,
	       daemon_rss_kib(&f->node->d));
	node_becomes(f->node, "up", 3 * SHARED_MS);
	node_owes_nothing(f->node);
	node_end(f->node);
}

void shared_flood(uint32_t seconds)
{
	const uint64_t until = now_ns() + seconds * 1000000000ull;
	struct shared *w = shared_world();
	static struct flood through, on_evict;

	/* Bounded: where somebody continues it, as a shell that ends does, it must not take the
	 * machine's memory. */
	redis_start(&w->redis, "--maxmemory 512mb --maxmemory-policy allkeys-lru");
	flood_begin(&through, &w->a, w->redis.address, "through");
	flood_begin(&on_evict, &w->b, w->redis.address, "on-evict");
	redis_signal(&w->redis, SIGSTOP);
	while (now_ns() < until) {
		flood_round(&through);
		flood_round(&on_evict);
	}
	redis_signal(&w->redis, SIGCONT);
	flood_end(&through);
	flood_end(&on_evict);
	redis_stop(&w->redis);
}
