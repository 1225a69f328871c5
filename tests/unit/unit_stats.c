/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_stats - goal: the stats page shows the daemon's counts, to readers of the same version only,
 * and its health tells a stopped, silent or dead daemon apart. Method: pages in a temporary
 * directory; a child that opens one and is stopped and killed.
 */
#include "daemon/stats/stats.h"
#include "tests/lib/lib_kvtierctl.h"
#include "tiers/tier.h"

static struct stats *stats;
static const struct stats *seen; /* its map */

/* In a directory, at tool.path. */
static void open_page(void)
{
	assert_int_equal(stats_open(tool.path, clock_ns(), &stats), 0);
}

FIXTURE_DO(make_directory, scratch_make("/tmp", tool.dir, sizeof(tool.dir));
	   snprintf(tool.path, sizeof(tool.path), "%s/stats", tool.dir));

FIXTURE(remove_directory)
{
	(void)unlink(tool.path);
	return rmdir(tool.dir); /* fails when a temporary file was left behind */
}

/* In memory alone. */
FIXTURE(begin)
{
	return stats_open(NULL, clock_ns(), &stats);
}

FIXTURE_DO(end, stats_close(stats, NULL));

#define IN_A_DIRECTORY(name) TEST_WITH(name, make_directory, remove_directory)
#define IN_MEMORY(name)      TEST_WITH(name, begin, end)

TEST(fields_are_paths_with_underscores)
{
	static const struct {
		const char *path, *field;
	} names[] = {
#define STAT(p, field, kind, unit, prose) { p, #field },
#include "daemon/stats/tbl_stats.h"
	};
	char field[128];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(field, sizeof(field), "%s", names[i].path);
		for (char *dot; (dot = strchr(field, '.')) != NULL;)
			*dot = '_';
		assert_string_equal(field, names[i].field);
	}
}

TEST(counters_end_in_total_and_nothing_else_does)
{
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);

	for (size_t i = 0; i < n; i++) {
		const size_t length = strlen(rows[i].path);
		const bool total = length > 6 && strcmp(rows[i].path + length - 6, "_total") == 0;

		assert_int_equal(total, rows[i].kind == STATS_COUNTER);
	}
}

/* Else JSON would have the same object twice. */
TEST(groups_stand_together)
{
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);

	for (size_t i = 0; i < n; i++) {
		for (const char *dot = strchr(rows[i].path, '.'); dot; dot = strchr(dot + 1, '.')) {
			const size_t group = (size_t)(dot - rows[i].path) + 1;
			bool left = false;

			for (size_t j = i + 1; j < n; j++) {
				const bool in = strncmp(rows[i].path, rows[j].path, group) == 0;

				assert_false(in && left);
				left = left || !in;
			}
		}
	}
}

IN_A_DIRECTORY(readers_see_what_was_counted)
{
	open_page();
	assert_int_equal(stats_map(tool.path, &seen), 0);
	stats_add(&stats->v.store_blocks_total, 5);
	stats_add(&stats->v.store_blocks_total, 2);
	stats_set(&stats->v.tiers_host_used_bytes, 1ull << 40);
	stats_names(stats, "cpu", "a name longer than the thirty-two bytes it has room for");
	assert_int_equal(stats_get(&seen->v.store_blocks_total), 7);
	assert_int_equal(stats_get(&seen->v.tiers_host_used_bytes), 1ull << 40);
	assert_string_equal(seen->device, "cpu");
	assert_int_equal(strlen(seen->kernels), STATS_NAME_BYTES - 1);
	assert_int_equal(seen->pid, getpid());
	stats_heartbeat(stats, seen->start_monotonic_ns + 61 * 1000000000ull);
	assert_int_equal(stats_get(&seen->v.uptime_s), 61);
	stats_unmap(seen);
	stats_close(stats, tool.path);
	assert_int_equal(access(tool.path, F_OK), -1);
}

IN_A_DIRECTORY(the_file_is_private)
{
	struct stat st;
	mode_t before = umask(0);

	open_page();
	(void)umask(before);
	assert_int_equal(stat(tool.path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(st.st_size, sizeof(struct stats));
	stats_close(stats, tool.path);
}

IN_A_DIRECTORY(a_successor_leaves_old_maps_alone)
{
	struct stats *new;

	open_page();
	stats_add(&stats->v.store_blocks_total, 3);
	assert_int_equal(stats_map(tool.path, &seen), 0);
	assert_int_equal(stats_open(tool.path, clock_ns(), &new), 0);
	assert_int_equal(stats_get(&new->v.store_blocks_total), 0);
	assert_int_equal(stats_get(&seen->v.store_blocks_total), 3);
	stats_close(stats, tool.path);
	assert_int_equal(access(tool.path, F_OK), 0); /* not the old one's to remove */
	stats_unmap(seen);
	stats_close(new, tool.path);
}

IN_A_DIRECTORY(strangers_are_refused)
{
	open_page();
	stats->layout ^= 1;
	assert_int_equal(stats_map(tool.path, &seen), -EPROTO);
	stats->layout ^= 1;
	stats->magic = 0;
	assert_int_equal(stats_map(tool.path, &seen), -EPROTO);
	stats->magic = STATS_MAGIC;
	assert_int_equal(stats_map(tool.path, &seen), 0);
	stats_unmap(seen);
	assert_int_equal(truncate(tool.path, (off_t)sizeof(*stats) - 1), 0);
	assert_int_equal(stats_map(tool.path, &seen), -EPROTO);
	stats_close(stats, NULL);
	assert_int_equal(unlink(tool.path), 0);
	assert_int_equal(stats_map(tool.path, &seen), -ENOENT);
	assert_int_equal(stats_map(tool.dir, &seen), -EPROTO);
}

IN_A_DIRECTORY(failures_leave_nothing)
{
	char missing[128];

	stats = NULL;
	snprintf(missing, sizeof(missing), "%s/none/stats", tool.dir);
	assert_int_equal(stats_open(missing, 1, &stats), -ENOENT);
	assert_int_equal(mkdir(tool.path, 0700), 0);
	assert_int_equal(stats_open(tool.path, 1, &stats), -EISDIR);
	assert_null(stats);
	assert_int_equal(rmdir(tool.path), 0);
}

IN_A_DIRECTORY(a_truncated_page_is_whole_again)
{
	open_page();
	stats_add(&stats->v.store_blocks_total, 7);
	assert_int_equal(stats_keep(stats), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(truncate(tool.path, i * 4096), 0);
		/* the one that lies behind: its page is gone, and all numbers are put back */
		stats_add(&stats->v.load_duration_ns.count[5], 1);
		stats_add(&stats->v.store_blocks_total, 1);
		assert_int_equal(stats_keep(stats), 1);
		assert_int_equal(stats_keep(stats), 0);
		assert_int_equal(stats_map(tool.path, &seen), 0);
		assert_int_equal(seen->v.store_blocks_total, 8 + i);
		assert_int_equal(seen->v.load_duration_ns.count[5], 1 + i);
		stats_unmap(seen);
	}
	assert_int_equal(truncate(tool.path, 0), 0); /* and it is long again before anybody looks */
	assert_int_equal(truncate(tool.path, sizeof(*stats)), 0);
	assert_int_equal(stats_keep(stats), 1);
	assert_int_equal(stats->v.store_blocks_total, 10);
	stats_close(stats, tool.path);
	assert_int_equal(access(tool.path, F_OK), -1);
}

/* Each reason has a counter, and together they are all that were dropped. */
IN_MEMORY(blocks_that_fail_are_counted_by_reason)
{
	static const int errors[] = { -ENOSPC, -ETIMEDOUT, -ECANCELED, -ECONNRESET,
				      -ENOENT, -EFAULT,    -EIO,       -ENOSPC };
	struct stats_values *v = &stats->v;

	for (size_t i = 0; i < 8; i++)
		stats_count_dropped(v, errors[i], i == 7);
	assert_int_equal(v->store_no_room_blocks_total, 1);
	assert_int_equal(v->store_late_blocks_total, 1);
	assert_int_equal(v->store_canceled_blocks_total, 2);
	assert_int_equal(v->store_no_parent_blocks_total, 1);
	assert_int_equal(v->store_no_page_blocks_total, 1);
	assert_int_equal(v->store_error_blocks_total, 1);
	assert_int_equal(v->store_drained_blocks_total, 1);
	assert_int_equal(v->store_dropped_blocks_total, 8);
	for (size_t i = 0; i < 8; i++)
		if (errors[i] != -ENOENT) /* that block was not there */
			stats_count_failed(v, errors[i]);
	assert_int_equal(v->load_no_room_blocks_total, 2);
	assert_int_equal(v->load_late_blocks_total, 1);
	assert_int_equal(v->load_canceled_blocks_total, 2);
	assert_int_equal(v->load_no_page_blocks_total, 1);
	assert_int_equal(v->load_error_blocks_total, 1);
	assert_int_equal(v->load_failed_blocks_total, 7);
}

IN_MEMORY(health_has_words)
{
	assert_true(stats->health >> STATS_HEALTH_STARTING & 1);
	assert_string_equal(stats_health_word(stats->health), "starting");
	stats_health_set(stats, STATS_HEALTH_NVME_QUARANTINED, true);
	assert_string_equal(stats_health_word(stats->health), "starting");
	stats_health_set(stats, STATS_HEALTH_NVME_QUARANTINED, false);
	stats_health_set(stats, STATS_HEALTH_STARTING, false);
	stats_health_set(stats, STATS_HEALTH_HOST_STARTING, true);
	stats_health_set(stats, STATS_HEALTH_NVME_STARTING, true);
	assert_string_equal(stats_health_word(stats->health), "ok");
	stats_health_set(stats, STATS_HEALTH_HOST_STARTING, false);
	stats_health_set(stats, STATS_HEALTH_NVME_STARTING, false);
	assert_string_equal(stats_health_word(stats->health), "ok");
	stats_health_set(stats, STATS_HEALTH_CORRUPT, true);
	stats_health_set(stats, STATS_HEALTH_HOST_OFFLINE, true);
	assert_string_equal(stats_health_word(stats->health), "err");
	stats_health_set(stats, STATS_HEALTH_HOST_OFFLINE, false);
	assert_string_equal(stats_health_word(stats->health), "warn");
}

IN_MEMORY(texts_are_cut_to_fit)
{
	char large[STATS_TEXT_BYTES + 50], engine[STATS_NAME_BYTES], text[STATS_TEXT_BYTES];

	memset(large, 'x', sizeof(large));
	large[sizeof(large) - 1] = '\0';
	assert_string_equal(stats_text_get(stats->nvme_text, sizeof(text), text), "");
	stats_text_set(stats->nvme_engine, STATS_NAME_BYTES, large);
	stats_text_set(stats->nvme_text, STATS_TEXT_BYTES, large);
	assert_int_equal(strlen(stats_text_get(stats->nvme_engine, sizeof(engine), engine)),
			 STATS_NAME_BYTES - 1);
	assert_int_equal(strlen(stats_text_get(stats->nvme_text, sizeof(text), text)),
			 STATS_TEXT_BYTES - 1);
	stats_text_set(stats->nvme_engine, STATS_NAME_BYTES, "threads");
	stats_text_set(stats->nvme_text, STATS_TEXT_BYTES, "");
	assert_string_equal(stats_text_get(stats->nvme_engine, sizeof(engine), engine), "threads");
	assert_string_equal(stats_text_get(stats->nvme_text, sizeof(text), text), "");
}

IN_MEMORY(what_redis_has_is_no_error)
{
	static const enum stats_health_bit bits[] = {
		STATS_HEALTH_REDIS_MISCONFIGURED, STATS_HEALTH_REDIS_OFFLINE,
		STATS_HEALTH_REDIS_READONLY, STATS_HEALTH_REDIS_DEGRADED, STATS_HEALTH_REDIS_CORRUPT
	};
	char text[STATS_TEXT_BYTES];

	stats_health_set(stats, STATS_HEALTH_STARTING, false);
	for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
		stats_health_set(stats, bits[i], true);
		assert_string_equal(stats_health_word(stats->health), "warn");
		stats_health_set(stats, bits[i], false);
		assert_string_equal(stats_health_word(stats->health), "ok");
	}
	assert_string_equal(stats_text_get(stats->redis_text, sizeof(text), text), "");
	stats_text_set(stats->redis_text, STATS_TEXT_BYTES, "a:6379: connection refused");
	assert_string_equal(stats_text_get(stats->redis_text, sizeof(text), text),
			    "a:6379: connection refused");
	assert_string_equal(stats_text_get(stats->nvme_text, sizeof(text), text), "");
}

/* kvtierd writes a tier's state as its enum; the page's readers have names for each. */
TEST(every_tier_state_has_its_name)
{
	char name[32];
	const struct stats_row *rows;

	for (size_t i = stats_rows(&rows); i-- > 0;) {
		if (strcmp(rows[i].path, "tiers.redis.state") != 0)
			continue;
		assert_string_equal(stats_state_name(&rows[i], STATS_TIER_OFF, name, sizeof(name)),
				    "off");
		for (int at = TIER_STARTING; at <= TIER_MISCONFIGURED; at++) {
			const uint64_t value = STATS_TIER_STATE_BASE + (uint64_t)at;

			assert_string_equal(stats_state_name(&rows[i], value, name, sizeof(name)),
					    tier_state_name((enum tier_state)at));
		}
		return;
	}
	fail_msg("no tiers.redis.state");
}

static void *write_texts(TEST_UNUSED void *arg)
{
	char large[STATS_TEXT_BYTES];

	memset(large, 'x', sizeof(large));
	large[sizeof(large) - 1] = '\0';
	for (int i = 0; i < 5000; i++)
		stats_text_set(stats->nvme_text, STATS_TEXT_BYTES, i % 2 == 0 ? large : "yy");
	stats_text_set(stats->nvme_engine, STATS_NAME_BYTES, "end");
	stats_text_set(stats->nvme_text, STATS_TEXT_BYTES, "");
	return NULL;
}

/* Also of a page that is mapped and not copied: the last byte stays 0. */
IN_MEMORY(texts_have_an_end_while_they_change)
{
	char engine[STATS_NAME_BYTES] = "", text[STATS_TEXT_BYTES];
	pthread_t writer;

	assert_int_equal(pthread_create(&writer, NULL, write_texts, NULL), 0);
	while (strcmp(stats_text_get(stats->nvme_engine, sizeof(engine), engine), "end") != 0) {
		(void)stats_text_get(stats->nvme_text, sizeof(text), text);
		assert_int_equal(text[strspn(text, "xy")], '\0');
		assert_int_equal(__atomic_load_n(&stats->nvme_text[sizeof(text) - 1],
						 __ATOMIC_RELAXED),
				 0);
	}
	(void)pthread_join(writer, NULL);
}

IN_MEMORY(an_old_heartbeat_is_silent)
{
	const uint64_t now = stats->heartbeat_ns, silent = 1ull << STATS_HEALTH_SILENT;

	/* a start may take its time */
	assert_int_equal(stats_health(stats, now + 2600 * 1000000ull) & silent, 0);
	stats_health_set(stats, STATS_HEALTH_STARTING, false);
	assert_int_equal(stats_health(stats, now + 2400 * 1000000ull) & silent, 0);
	assert_int_equal(stats_health(stats, now + 2600 * 1000000ull) & silent, silent);
	/* ahead of the clock: from before a reboot */
	stats_heartbeat(stats, now + 10 * 1000000000ull);
	assert_int_equal(stats_health(stats, now) & silent, silent);
}

IN_MEMORY(another_namespaces_pid_means_nothing)
{
	const uint64_t now = clock_ns();

	stats_health_set(stats, STATS_HEALTH_STARTING, false);
	stats->pid_start++; /* our pid, of another process */
	assert_int_equal(stats_health(stats, now), 1ull << STATS_HEALTH_DEAD);
	stats->pid_namespace++;
	assert_int_equal(stats_health(stats, now), 0);
}

IN_A_DIRECTORY(stopped_and_dead_are_told_apart)
{
	const pid_t child = tool_child();

	assert_int_equal(stats_map(tool.path, &seen), 0);
	/* starting */
	assert_string_equal(stats_health_word(stats_health(seen, seen->heartbeat_ns)), "starting");
	tool_child_stops(child);
	assert_true(stats_health(seen, seen->heartbeat_ns) & 1ull << STATS_HEALTH_STOPPED);
	assert_string_equal(stats_health_word(stats_health(seen, seen->heartbeat_ns)), "err");
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitid(P_PID, (id_t)child, &(siginfo_t){ 0 }, WEXITED | WNOWAIT), 0);
	/* a zombie */
	assert_true(stats_health(seen, seen->heartbeat_ns) & 1ull << STATS_HEALTH_DEAD);
	assert_string_equal(stats_health_word(stats_health(seen, seen->heartbeat_ns)), "err");
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_true(stats_health(seen, seen->heartbeat_ns) & 1ull << STATS_HEALTH_DEAD);
	stats_unmap(seen);
}
