/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_gauges - goal: the state of the Redis tier reaches the stats page with its reason and its
 * severity, and goes from there when it is over. Method: gauges.c in a daemon whose other parts are
 * faked here.
 */

#include "daemon/admin/gauges.h"
#include "daemon/conn/server.h"
#include "daemon/kvtierd.h"
#include "daemon/up/up.h"
#include "tests/lib/test.h"
#include "tiers/host/host.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/redis.h"
#include "daemon/table/space_counts.h"
#include "daemon/move/hints.h"

/* --- the daemon's other parts, faked --- */

static enum tier_state fake_state;
static struct redis_tier_status fake_status;
static struct tier host, redis;

enum tier_state tier_state(const struct tier *t)
{
	return t == &redis ? fake_state : TIER_UP;
}

void redis_status(const struct tier *t, struct redis_tier_status *ret)
{
	assert_ptr_equal(t, &redis);
	*ret = fake_status;
}

void nvme_status(TEST_UNUSED const struct tier *t, TEST_UNUSED struct nvme_tier_status *ret)
{
	fail_msg("there is no NVMe tier");
}

uint64_t host_astray_bytes(const struct tier *t)
{
	assert_ptr_equal(t, &host);
	return 0;
}

void hints_gauges(TEST_UNUSED const struct hints *hints)
{
}

void spaces_count(TEST_UNUSED const struct spaces *spaces, struct spaces_count *ret)
{
	*ret = (struct spaces_count){ 0 };
}

/* A function that always says this. */
#define SAYS(value, type, name, ...) \
	type name(__VA_ARGS__)       \
	{                            \
		return value;        \
	}                            \
	struct test_macros_end_with_a_semicolon
SAYS(false, bool, nvme_row, TEST_UNUSED const struct tier *t, TEST_UNUSED uint32_t i,
     TEST_UNUSED struct nvme_disk_row *ret);
SAYS(tier == TIER_HOST ? 5 : 0, uint32_t, blocks_copies, TEST_UNUSED const struct blocks *blocks,
     enum tier_id tier);
SAYS(NULL, struct space_counts *, blocks_counts, TEST_UNUSED const struct blocks *blocks);
SAYS(0, uint32_t, counts_blocks, TEST_UNUSED const struct space_counts *counts,
     TEST_UNUSED uint32_t space);
SAYS(0, uint64_t, index_entries, TEST_UNUSED const struct index *index);
SAYS(0, uint64_t, index_crowded, TEST_UNUSED const struct index *index);
SAYS(0, uint64_t, index_memory, TEST_UNUSED const struct index *index);
SAYS(0, uint32_t, server_staged, TEST_UNUSED const struct server *server, TEST_UNUSED char *text,
     TEST_UNUSED size_t n);
SAYS(0, uint32_t, spaces_numbers, TEST_UNUSED const struct spaces *spaces);
SAYS(NULL, struct space *, space_at, TEST_UNUSED const struct spaces *spaces,
     TEST_UNUSED uint32_t number);
SAYS(-1, double, space_int8_gain, TEST_UNUSED const struct space *space);
SAYS(false, bool, nvme_up_starting, TEST_UNUSED const struct kvtierd *d);

/* --- */

static struct kvtierd d;

FIXTURE(set_up)
{
	d = (struct kvtierd){ .tables.tiers = { [TIER_HOST] = &host, [TIER_REDIS] = &redis } };
	memset(&fake_status, 0, sizeof(fake_status));
	fake_state = TIER_UP;
	if (stats_open(NULL, 1, &d.stats) < 0)
		return -1;
	stats_health_set(d.stats, STATS_HEALTH_STARTING, false);
	return 0;
}

FIXTURE_DO(tear_down, stats_close(d.stats, NULL));

TEST_EACH(set_up, tear_down);

static char *text_now(void)
{
	static char text[STATS_TEXT_BYTES];

	return stats_text_get(d.stats->redis_text, sizeof(text), text);
}

TEST(each_state_is_said_while_it_lasts)
{
	static const struct {
		enum tier_state state;
		uint64_t health;
		const char *word;
	} cases[] = {
		{ TIER_STARTING, 0, "ok" },
		{ TIER_UP, 0, "ok" },
		{ TIER_DEGRADED, 1ull << STATS_HEALTH_REDIS_DEGRADED, "warn" },
		{ TIER_READONLY, 1ull << STATS_HEALTH_REDIS_READONLY, "warn" },
		{ TIER_OFFLINE, 1ull << STATS_HEALTH_REDIS_OFFLINE, "warn" },
		{ TIER_MISCONFIGURED, 1ull << STATS_HEALTH_REDIS_MISCONFIGURED, "warn" },
		{ TIER_UP, 0, "ok" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fake_state = cases[i].state;
		gauges_sync(&d);
		assert_int_equal(d.stats->health, cases[i].health);
		assert_string_equal(stats_health_word(d.stats->health), cases[i].word);
		assert_int_equal(d.stats->v.tiers_redis_state,
				 STATS_TIER_STATE_BASE + (uint64_t)cases[i].state);
	}
}

TEST(the_reason_comes_and_goes)
{
	snprintf(fake_status.text, sizeof(fake_status.text), "a:6379: connection refused");
	gauges_sync(&d);
	assert_string_equal(text_now(), "a:6379: connection refused");
	memset(fake_status.text, 'x', sizeof(fake_status.text) - 1);
	gauges_sync(&d);
	assert_int_equal(strlen(text_now()), STATS_TEXT_BYTES - 1);
	fake_status.text[0] = '\0';
	gauges_sync(&d);
	assert_string_equal(text_now(), "");
}

TEST(counters_are_copied)
{
	const struct stats_values *v = &d.stats->v;

	fake_status.endpoints = 3;
	fake_status.usable = 2;
	fake_status.counters = (struct redis_counters){
		.timeouts_total = 12,
		.errors_total = 14,
		.refused_stores_total = 15,
		.redirects_total = 16,
		.protocol_errors_total = 18,
		.breaker_opens_total = 19,
		.reconnects_total = 20,
		.topology_total = 21,
		.forged_total = 22,
		.other_forms_total = 23,
		.refused_hosts_total = 24,
		.coded_total = 25,
		.saved_bytes_total = 27,
		.coding_full_total = 28,
	};
	gauges_sync(&d);
	assert_int_equal(v->tiers_redis_endpoints, 3);
	assert_int_equal(v->tiers_redis_usable_endpoints, 2);
	assert_int_equal(v->tiers_redis_timeouts_total, 12);
	assert_int_equal(v->tiers_redis_errors_total, 14);
	assert_int_equal(v->tiers_redis_refused_stores_total, 15);
	assert_int_equal(v->tiers_redis_redirects_total, 16);
	assert_int_equal(v->tiers_redis_protocol_errors_total, 18);
	assert_int_equal(v->tiers_redis_breaker_opens_total, 19);
	assert_int_equal(v->tiers_redis_reconnects_total, 20);
	assert_int_equal(v->tiers_redis_topology_changes_total, 21);
	assert_int_equal(v->tiers_redis_forged_blocks_total, 22);
	assert_int_equal(v->tiers_redis_other_form_blocks_total, 23);
	assert_int_equal(v->tiers_redis_refused_hosts_total, 24);
	assert_int_equal(v->tiers_redis_coded_blocks_total, 25);
	assert_int_equal(v->tiers_redis_saved_bytes_total, 27);
	assert_int_equal(v->tiers_redis_coding_full_blocks_total, 28);
}

/* Found by the tier (a header) or by the daemon (a checksum), it is not forgotten. */
TEST(times_of_ops_become_percentiles)
{
	struct stats_values *v = &d.stats->v;

	for (uint64_t us = 1; us <= 100; us++)
		histogram_add(&d.stats->v.load_duration_ns, us * 1000);
	histogram_add(&d.stats->v.store_duration_ns, 2000000);
	gauges_sync(&d);
	assert_int_equal(stats_get(&v->load_ops_total), 100);
	assert_in_range(stats_get(&v->load_p50_us), 48, 52);
	assert_in_range(stats_get(&v->load_p99_us), 95, 103);
	assert_int_equal(stats_get(&v->store_ops_total), 1);
	assert_in_range(stats_get(&v->store_p50_us), 1937, 2063);
	assert_int_equal(stats_get(&v->store_p50_us), stats_get(&v->store_p99_us));
}

TEST(damage_is_a_warning)
{
	const uint64_t corrupt = 1ull << STATS_HEALTH_REDIS_CORRUPT;

	gauges_sync(&d);
	assert_int_equal(d.stats->health, 0);
	fake_status.counters.corrupt_total = 1;
	gauges_sync(&d);
	assert_int_equal(d.stats->health, corrupt);
	fake_status.counters.corrupt_total = 0;
	stats_add(&d.stats->v.tiers_redis_corrupt_blocks_total, 1);
	gauges_sync(&d);
	assert_int_equal(d.stats->health, corrupt);
}

TEST(without_the_tier_nothing_is_said)
{
	d.tables.tiers[TIER_REDIS] = NULL;
	fake_state = TIER_OFFLINE;
	gauges_sync(&d);
	assert_int_equal(d.stats->health, 0);
	assert_int_equal(d.stats->v.tiers_redis_state, STATS_TIER_OFF);
}
