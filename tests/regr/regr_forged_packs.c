/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock,kvtierd_lying lane=wait seconds=12 */
/*
 * regr_forged_packs.c - goal: a lossless image whose packs are not what its header, its lengths and
 * its bits say is a miss, though all sums and the MAC are right: from NVMe and from Redis, for a
 * load of whole pages and by layers. Each lie is counted, other blocks are served, and the block
 * can be stored again. In host memory the decoder finds the lie: of a page that is a miss only
 * right bytes were written. Method: kvtierd_lying stores; a real kvtierd loads what it left.
 */
#include <signal.h>
#include <stdlib.h>

#include "tests/lib/lib_disk.h"
#include "tests/lib/lib_shared.h"

enum { N = 16, LAYERS = 4 };

static const char lying[] = "tests/kvtierd_lying";

static const char *const lies[] = { "sum", "lengths", "bits", "payload" };
/* For a load of whole pages, and for one by layers. */
#define EACH_LIE                                                        \
	for (size_t lie = 0; lie < sizeof(lies) / sizeof(*lies); lie++) \
		for (uint32_t groups = 0; groups <= LAYERS; groups += LAYERS)

static bool is_lie(const struct kvtier_key *key)
{
	return key->bytes[0] % 2 != 0;
}

static uint32_t count_lies(const struct kvtier_key *keys)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < N; i++)
		n += is_lie(&keys[i]);
	return n;
}

/* Every block: a miss if it lies, else right. So many groups of layers; 0: none. */
static void load_each(struct engine *e, const struct kvtier_key *keys, uint32_t groups, bool lie)
{
	for (uint32_t i = 0; i < N; i++) {
		const struct kvtier_op o = { .size = sizeof(o), .layer_groups = groups };
		int32_t status = -EINPROGRESS;
		struct kvtier_result result = { .size = sizeof(result),
						.blocks = &status,
						.blocks_max = 1 };
		const uint32_t page = N + i;
		uint64_t op;

		page_poison(e, page);
		assert_int_equal(kvtier_load(e->space, &keys[i], &page, 1, &o, &op), 0);
		for (uint32_t g = 0; g < groups; g++) {
			const int r = kvtier_wait_layers(e->client, op, g, -1);

			if (r == 0 && !page_has_layers(e, page, &keys[i], 0, 0, g + 1))
				fail_msg("block %u: group %u is not there", i, g);
			assert_true(r == 0 || (lie && is_lie(&keys[i])));
			/* the last pack is of the last layer */
			assert_false(r == 0 && g + 1 == groups && lie && is_lie(&keys[i]));
		}
		assert_int_equal(kvtier_wait(e->client, op, -1, &result), 0);
		assert_int_equal(status, lie && is_lie(&keys[i]) ? -ENOENT : 0);
		assert_true(status == 0 ? page_is(e, page, &keys[i], 0) :
					  page_is_part(e, page, &keys[i], 0));
	}
}

/* A daemon that lies, or another one over the same directories. */
static void live(struct daemon *d, const char *program, struct engine *e)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_LOSSLESS);

	d->program = program;
	daemon_restart(d);
	disk_state_becomes(d, "up", PATIENT_MS);
	engine_open(e, d->socket, "engine", &g, 2 * N);
}

static void begin(struct daemon *d, struct engine *e, const char *lie, struct kvtier_key *keys)
{
	setenv("KVTIER_TEST_LIE", lie, 1);
	daemon_place(d, true);
	daemon_configure(d, HOST("16M", "2M") "[nvme]\nbytes = 64M\nsegment_bytes = 4M\n");
	live(d, lying, e);
	chain_keys(e, 1, N, keys);
	assert_true(count_lies(keys) > 0 && count_lies(keys) < N);
	assert_int_equal(chain_store(e, keys, 0, N), 0);
}

TEST(in_host_memory)
{
	struct kvtier_key keys[N];
	struct daemon d;
	struct engine e;

	EACH_LIE
	{
		begin(&d, &e, lies[lie], keys);
		load_each(&e, keys, groups, true);
		daemon_stat_reaches(&d, "tiers.host.corrupt_blocks_total", count_lies(keys));
		engine_close(&e);
		daemon_remove(&d);
	}
}

TEST(on_nvme)
{
	struct kvtier_key keys[N];
	struct daemon d;
	struct engine e;
	char text[4096];

	EACH_LIE
	{
		begin(&d, &e, lies[lie], keys);
		(void)daemon_told(&d, "flush");
		engine_close(&e);
		daemon_signal(&d, SIGTERM);
		live(&d, NULL, &e);
		if (groups) /* verify finds them, too, and drops them */
			assert_int_equal(daemon_ctl(&d, "verify --drop", text, sizeof(text)), 1);
		load_each(&e, keys, groups, true);
		daemon_stat_becomes(&d, "tiers.nvme.corrupt_blocks_total", count_lies(keys),
				    PATIENT_MS);
		assert_int_equal(chain_store(&e, keys, 0, N), 0);
		(void)daemon_told(&d, "flush");
		(void)daemon_told(&d, "evict --all");
		load_each(&e, keys, groups, false);
		engine_close(&e);
		daemon_remove(&d);
	}
}

/* They have another program, and the machine's clock. */
static void node_begin(struct node *n, const struct redis_server *redis, const char *program)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_LOSSLESS);

	node_place(n, &(struct node_conf){ .endpoints = redis->address });
	n->d.program = program;
	n->d.beat = NULL;
	node_live(n);
	node_join(n, &g);
}

TEST(in_redis)
{
	struct kvtier_key keys[N];
	struct redis_server redis;
	struct node a, b;

	redis_needed();
	EACH_LIE
	{
		setenv("KVTIER_TEST_LIE", lies[lie], 1);
		redis_start(&redis, NULL);
		node_begin(&a, &redis, lying);
		node_begin(&b, &redis, NULL);
		chain_keys(&a.e, 1, N, keys);
		node_store_through(&a, keys, N);
		load_each(&b.e, keys, groups, true);
		daemon_stat_becomes(&b.d, "tiers.redis.corrupt_blocks_total", count_lies(keys),
				    PATIENT_MS);
		assert_int_equal(daemon_stat(&b.d, "tiers.redis.forged_blocks_total"), 0);
		/* they go, and the next store mends them */
		shared_asks_until(&redis, N - count_lies(keys), "DBSIZE");
		node_evict(&b);
		node_store_through(&b, keys, N);
		assert_int_equal(redis_ask(&redis, "DBSIZE"), N);
		node_evict(&b);
		load_each(&b.e, keys, groups, false);
		node_end(&a);
		node_end(&b);
		redis_stop(&redis);
	}
}
