/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: the Redis tier in a Cluster. Values lie where the slot map says. Redirects are followed no
 * further than they lead. In a failover or a resharding with transfers under way every xfer ends,
 * and found values are whole. Method: six real redis-servers, made and changed by CLUSTER commands;
 * the changes come from a second thread.
 */
#include "tests/lib/lib_redis_tier.h"

#include "tiers/redis/redis_slots.h"

static struct redis_cluster_rig rig;
static struct kit kit;

enum { BLOCKS = 300, ID_BYTES = 64 };

FIXTURE_DO(start_rig, redis_cluster_start(&rig, NULL));

FIXTURE_DO(stop_rig, redis_cluster_stop(&rig));

FIXTURE_DO(free_kit, kit_free(&kit));

TEST_EACH(NULL, free_kit);

static void open_kit(uint32_t seed)
{
	kit_init(&kit, KIT_SMALL);
	kit.conf.connections = 2;
	kit_start_at(&kit, rig.server[seed].address);
}

/* The first block from `block` on whose slot this master has (three equal shares at first). */
static uint32_t block_of(uint32_t master, uint32_t block)
{
	while (kit_slot_of(block) * 3 / REDIS_SLOTS != master)
		block++;
	return block;
}

static void tell(uint32_t server, const char *command, uint32_t slot, const char *what)
{
	char text[256];

	redis_say(&rig.server[server], text, sizeof(text), "CLUSTER SETSLOT %u %s%s", slot, command,
		  what);
	assert_string_equal(text, "OK");
}

static void id_of(uint32_t server, char ret[ID_BYTES])
{
	redis_say(&rig.server[server], ret, ID_BYTES, "CLUSTER MYID");
}

/* --- a Cluster that stands still --- */

TEST(values_are_spread_by_slot)
{
	struct redis_tier_status status;
	uint32_t slots = 0, found = 0;

	open_kit(0);
	kit_store_all(&kit, 0, BLOCKS);
	for (uint32_t i = 0; i < 3; i++) {
		const long long n = redis_ask(&rig.server[i], "DBSIZE");

		assert_true(n > BLOCKS / 6);
		found += (uint32_t)n;
		slots += kit_row(&kit, i).slots;
	}
	assert_int_equal(found, BLOCKS);
	assert_int_equal(slots, REDIS_SLOTS);
	status = kit_status(&kit);
	assert_true(status.cluster);
	assert_int_equal(status.endpoints, 3);
	assert_int_equal(status.usable, 3);
	assert_int_equal(status.counters.redirects_total, 0);
	assert_int_equal(kit_load_each(&kit, 0, BLOCKS, false), BLOCKS);
}

TEST(a_replica_will_do_as_a_seed)
{
	open_kit(4);
	kit_store_all(&kit, 0, 50);
	assert_int_equal(kit_load_each(&kit, 0, 50, false), 50);
}

/* --- redirects --- */

/* A slot on its way: a value that has left its old place is asked for at the new one. */
TEST(ask_and_moved_are_followed)
{
	const uint32_t block = block_of(0, 2000), slot = kit_slot_of(block);
	struct redis_counters before, after;
	char from[ID_BYTES], to[ID_BYTES];

	open_kit(1);
	id_of(0, from);
	id_of(1, to);
	tell(1, "IMPORTING ", slot, from);
	tell(0, "MIGRATING ", slot, to);
	before = kit_counters(&kit);
	assert_int_equal(kit_store(&kit, block), 0); /* new: -ASK */
	assert_int_equal(kit_load(&kit, block), 0);  /* likewise */
	after = kit_counters(&kit);
	assert_int_equal(after.redirects_total - before.redirects_total, 2);
	tell(1, "NODE ", slot, to);
	tell(0, "NODE ", slot, to);
	assert_int_equal(kit_load(&kit, block), 0); /* -MOVED */
	assert_int_equal(kit_load(&kit, block), 0); /* known by now */
	assert_int_equal(kit_counters(&kit).redirects_total - after.redirects_total, 1);
}

/* Two that say of each other that they have it. */
TEST(a_circle_ends)
{
	const uint32_t block = block_of(2, 3000), slot = kit_slot_of(block);
	char first[ID_BYTES], third[ID_BYTES];
	struct redis_counters before;

	open_kit(0);
	id_of(0, first);
	id_of(2, third);
	before = kit_counters(&kit);
	tell(2, "NODE ", slot, first);
	assert_int_equal(kit_load(&kit, block), -EREMOTEIO);
	assert_int_equal(kit_counters(&kit).redirects_total - before.redirects_total, 6);
	assert_int_equal(tier_state(kit.tier), TIER_UP);
	tell(2, "NODE ", slot, third);
	assert_int_equal(kit_store(&kit, block), 0);
	assert_int_equal(kit_load(&kit, block), 0);
}

/* --- changes with transfers under way --- */

struct change {
	void (*what)(void);
	atomic_bool over;
};

static void *run_change(void *arg)
{
	struct change *change = arg;

	change->what();
	atomic_store(&change->over, true);
	return NULL;
}

/* Loads, stores and probes until the change is over; how many loads were whole. Lost ends fail in
 * the kit. */
static uint32_t busy_during(struct change *change, struct random *random)
{
	struct kit_slot *slots[32];
	uint32_t n = 0, whole = 0;
	int r;

	while (!atomic_load(&change->over)) {
		for (n = 0; n < 32; n++) {
			const enum xfer_op op = XFER_READ + random_below(random, 3);

			slots[n] = kit_try(&kit, op, random_below(random, BLOCKS), &r);
			if (!slots[n])
				break;
		}
		if (n == 0)
			kit_run_ms(&kit, 5);
		while (n > 0) {
			r = kit_settle(&kit, slots[--n]);
			assert_true(r != -EILSEQ && r != -EBADMSG);
			whole += r == 0 && slots[n]->x.op == XFER_READ;
		}
	}
	return whole;
}

static void change_under_load(void (*what)(void))
{
	struct random random = random_seeded("fault_redis_cluster");
	struct change change = { .what = what };
	pthread_t thread;

	open_kit(0);
	kit_store_all(&kit, 0, BLOCKS);
	assert_int_equal(pthread_create(&thread, NULL, run_change, &change), 0);
	assert_true(busy_during(&change, &random) > 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

static void reshard(void)
{
	redis_cluster_move(&rig, 0, 1, 1500);
	redis_cluster_move(&rig, 2, 0, 1500);
}

/* Somewhat later than a server's -MOVED: at most once a second. */
static bool asked_again(struct kit *k, TEST_UNUSED void *arg)
{
	return kit_status(k).counters.topology_total >= 2;
}

TEST(a_resharding_loses_nothing)
{
	struct redis_counters before, after;

	change_under_load(reshard);
	assert_int_equal(kit_load_each(&kit, 0, BLOCKS, false), BLOCKS);
	after = kit_counters(&kit);
	assert_true(after.redirects_total > 0);
	assert_true(kit_until(&kit, asked_again, NULL));
	before = kit_counters(&kit);
	/* the map is known again */
	assert_int_equal(kit_load_each(&kit, 0, BLOCKS, false), BLOCKS);
	assert_int_equal(kit_counters(&kit).redirects_total, before.redirects_total);
}

static void fail_over(void)
{
	(void)redis_cluster_failover(&rig, 1);
}

TEST(a_failover_is_followed)
{
	change_under_load(fail_over);
	kit_until_state(&kit, TIER_UP);
	assert_int_equal(kit_load_each(&kit, 0, BLOCKS, false), BLOCKS);
	assert_true(kit_counters(&kit).redirects_total > 0);
}

/* All of them, and the dead one is none of them any more. */
static bool all_usable(struct kit *k, void *arg)
{
	const struct redis_server *dead = arg;
	struct redis_endpoint_row row;

	for (uint32_t i = 0; redis_endpoint_row(k->tier, i, &row); i++)
		if (strcmp(row.address, dead->address) == 0)
			return false;
	return kit_status(k).usable == 3 && tier_state(k->tier) == TIER_UP;
}

static void kill_a_master(void)
{
	redis_kill(&rig.server[2]);
	(void)redis_cluster_failover(&rig, 2);
}

TEST(a_master_that_dies_is_replaced)
{
	change_under_load(kill_a_master);
	assert_true(kit_until(&kit, all_usable, &rig.server[2]));
	kit_store_all(&kit, 0, BLOCKS);
	assert_int_equal(kit_load_each(&kit, 0, BLOCKS, false), BLOCKS);
}

TEST_GROUP(start_rig, stop_rig);
TEST_FIRST(redis_needed());
