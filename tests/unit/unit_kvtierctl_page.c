/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_kvtierctl_page.c - goal: the page of `kvtierctl stats` agrees with the numbers, in at most
 * 80 columns. Method: a stats page with known numbers, and the whole text compared.
 */
#include "tests/lib/lib_kvtierctl.h"

static void put(uint64_t *value, uint64_t to)
{
	stats_set(value, to);
}

static void times(struct histogram *histogram, uint64_t fast_ns, uint64_t slow_ns)
{
	for (int i = 0; i < 98; i++)
		histogram_add(histogram, fast_ns);
	for (int i = 0; i < 2; i++)
		histogram_add(histogram, slow_ns);
}

static void assert_fits(void)
{
	int columns = 0;

	for (const char *at = tool.output, *line = tool.output; *at != '\0'; at++) {
		columns = *at == '\n' ? 0 : columns + ((*at & 0xc0) != 0x80);
		line = *at == '\n' ? at + 1 : line;
		if (columns > 80)
			fail_msg("more than 80 columns: %.*s", (int)strcspn(line, "\n"), line);
	}
}

static void is(const char *want)
{
	const char *pid = strstr(tool.output, "pid ");
	char line[128];

	/* all but the line with the pid is fixed */
	assert_non_null(pid);
	snprintf(line, sizeof(line),
		 "OK: kvtierd " KVTIER_VERSION ", pid %d, up 1m 2s, device cpu, kernels avx2\n",
		 (int)getpid());
	assert_true(strlen(tool.output) > strlen(line));
	assert_memory_equal(tool.output, line, strlen(line));
	assert_string_equal(tool.output + strlen(line), want);
	assert_fits();
}

TEST_EACH(tool_set_up, tool_tear_down);

TEST(before_anything_it_says_so)
{
	tool.uptime_ns = 62000000000;
	put(&tool.page->v.tiers_host_state, STATS_TIER_STATE_BASE + 1);
	put(&tool.page->v.tiers_host_capacity_bytes, 1ull << 30);
	assert_int_equal(tool_run("stats"), 0);
	is("\n"
	   "Nothing was loaded, stored or looked up since the start 1m 2s ago.\n"
	   "\n"
	   "TIER  STATE  HITS  SHARE  READ  WRITTEN   FILL       OF\n"
	   "host  up        0      -   0 B      0 B  0.0 %  1.0 GiB\n"
	   "\n"
	   "0 clients, 0 spaces, 0 ops under way, 0 blocks in use, 0 blocks known\n");
}

static void known_numbers(void)
{
	struct stats_values *v = &tool.page->v;

	tool.uptime_ns = 62000000000;
	times(&tool.page->v.load_duration_ns, 80000, 1200000);
	put(&v->load_blocks_total, 10802);
	put(&v->load_missed_blocks_total, 1543);
	put(&v->load_logical_bytes_total, 10802ull << 20);
	put(&v->lookup_requested_blocks_total, 14000);
	put(&v->lookup_hit_blocks_total, 12320);
	put(&v->lookup_host_blocks_total, 12000);
	put(&v->lookup_nvme_blocks_total, 320);
	put(&v->lookup_miss_blocks_total, 1680);
	put(&v->lookup_minute_requested_blocks, 100);
	put(&v->lookup_minute_hit_blocks, 50);
	put(&v->store_blocks_total, 2345678);
	put(&v->store_logical_bytes_total, 2345678ull << 20);
	put(&v->tiers_host_state, STATS_TIER_STATE_BASE + 1);
	put(&v->tiers_host_capacity_bytes, 1ull << 30);
	put(&v->tiers_host_used_bytes, 1ull << 29);
	put(&v->tiers_host_hit_blocks_total, 10000);
	put(&v->tiers_host_read_bytes_total, 5ull << 30);
	put(&v->tiers_nvme_state, STATS_TIER_STATE_BASE + 2);
	put(&v->tiers_nvme_capacity_bytes, 8ull << 30);
	put(&v->tiers_nvme_used_bytes, 8ull << 30);
	put(&v->tiers_nvme_hit_blocks_total, 800);
	put(&v->tiers_nvme_written_bytes_total, 1023ull << 40);
	put(&v->tiers_redis_state, STATS_TIER_STATE_BASE + 5);
	put(&v->tiers_redis_endpoints, 3);
	put(&v->tiers_redis_hit_blocks_total, 2);
	put(&v->clients, 1);
	put(&v->spaces, 2);
	put(&v->leases, 7);
	put(&v->ops_outstanding, 12);
	put(&v->index_entries, 12345);
}

TEST(known_numbers_are_a_known_page)
{
	known_numbers();
	times(&tool.page->v.store_duration_ns, 900, 3500000000);
	put(&tool.page->v.store_dropped_blocks_total, 12);
	put(&tool.page->v.tiers_nvme_queued_blocks, 34);
	put(&tool.page->v.hints_accepted_blocks_total, 42);
	put(&tool.page->v.hints_missing_blocks_total, 1);
	put(&tool.page->v.hints_noted_blocks, 41);
	put(&tool.page->v.hints_sessions, 1);
	put(&tool.page->v.hints_kept_bytes, 3 << 20);
	assert_int_equal(tool_run("stats"), 0);
	is("  hits of lookups: 50.0 % in the last minute, - in the last hour, 88.0 % since\n"
	   "  the start\n"
	   "  redis: misconfigured, 0 of 3 endpoints usable\n"
	   "\n"
	   "Since the start 1m 2s ago:\n"
	   "\n"
	   "       OPS  BLOCKS     RATE     BYTES        RATE\n"
	   "load   100   10802    174/s  10.5 GiB   174 MiB/s\n"
	   "store  100   2.3 M  37834/s   2.2 TiB  36.9 GiB/s\n"
	   "\n"
	   "TIMES           COUNT     P50     P90     P99\n"
	   "store.duration    100  912 ns  912 ns   3.6 s\n"
	   "load.duration     100   80 µs   80 µs  1.2 ms\n"
	   "\n"
	   "Hit rate: 88.0 % of 14000 blocks that were looked up: host 85.7 %, nvme 2.2 %,\n"
	   "missing 12.0 %\n"
	   "Hints: 42 accepted, 1 missing\n"
	   "12 blocks were offered and not kept.\n"
	   "34 blocks wait to be written to NVMe.\n"
	   "\n"
	   "TIER   STATE           HITS   SHARE     READ   WRITTEN     FILL       OF\n"
	   "host   up             10000  81.0 %  5.0 GiB       0 B   50.0 %  1.0 GiB\n"
	   "nvme   degraded         800   6.4 %      0 B  1023 TiB  100.0 %  8.0 GiB\n"
	   "redis  misconfigured      2   0.0 %      0 B       0 B        -        -\n"
	   "\n"
	   "1 client, 2 spaces, 12 ops under way, 7 blocks in use, 12345 blocks known\n"
	   "41 blocks with hints, 1 session, 3.0 MiB retained or pinned\n");
}

TEST(json_has_the_buckets_of_times)
{
	histogram_add(&tool.page->v.load_duration_ns, 3);
	times(&tool.page->v.load_duration_ns, 16, 1 << 20);
	assert_int_equal(tool_run("stats --json -f load.duration_ns"), 0);
	tool_says("{\"load\":{\"duration_ns\":{\"count\":101,\"sum\":2164259,\"p50\":16,\"p90\":16,"
		  "\"p99\":1081344,\"buckets\":[[3,1],[16,98],[1114111,2]]}}}");
	assert_int_equal(tool_run("stats --all -f load.duration_ns"), 0);
	tool_says("load.duration_ns  101  p50 16 ns, p90 16 ns, p99 1.1 ms");
}

/* Each number as large as it can be, and all that can be wrong. */
TEST(nothing_makes_a_line_too_long)
{
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);
	char words[STATS_TEXT_BYTES];

	tool.uptime_ns = 1000000000;
	for (size_t i = 0; i < n; i++)
		put((uint64_t *)(void *)((char *)&tool.page->v + rows[i].offset),
		    rows[i].kind == STATS_STATE ? STATS_TIER_STATE_BASE + 5 : UINT64_MAX / 3);
	for (unsigned bit = 0; bit < STATS_HEALTH_COUNT; bit++)
		stats_health_set(tool.page, (enum stats_health_bit)bit, true);
	memset(words, 'x', sizeof(words));
	for (size_t i = 9; i < sizeof(words); i += 10)
		words[i] = ' ';
	words[sizeof(words) - 1] = '\0';
	stats_text_set(tool.page->nvme_engine, STATS_NAME_BYTES, "io_uring+threads");
	stats_text_set(tool.page->nvme_text, STATS_TEXT_BYTES, words);
	stats_text_set(tool.page->redis_text, STATS_TEXT_BYTES, words);
	stats_text_set(tool.page->clients_text, STATS_TEXT_BYTES, words);
	stats_text_set(tool.page->refused_text, STATS_TEXT_BYTES, words);
	stats_names(tool.page, "a device with a long name......",
		    "kernels that have a long name.......");
	times(&tool.page->v.load_duration_ns, UINT64_MAX, 999999);
	assert_int_equal(tool_run("stats"), 0);
	assert_fits();
	for (unsigned bit = 0; bit < STATS_HEALTH_COUNT; bit++)
		tool_says(stats_health_row((enum stats_health_bit)bit)->name);
	tool_says("ERR");
	tool_says("tiers.nvme.corrupt_blocks_total");
}

TEST(the_list_is_behind_all)
{
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);

	assert_int_equal(tool_run("stats --all"), 0);
	for (size_t i = 0; i < n; i++)
		tool_says(rows[i].path);
	assert_int_equal(tool_run("stats"), 0);
	assert_null(strstr(tool.output, "tiers.host.used_bytes"));
	put(&tool.page->v.load_p99_us, 1200);
	assert_int_equal(tool_run("stats --json"), 0);
	assert_string_equal(tool_json_at("load.p99_us"), "1200");
}

TEST_FIRST(tool_needed());
