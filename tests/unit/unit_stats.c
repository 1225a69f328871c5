/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_stats - goal: the stats page shows the daemon's counts, to readers of the same version only,
 * and its health tells a stopped, silent or dead daemon apart. Method: pages in a temporary
 * directory; a child that opens one and is stopped and killed.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/stats/stats.h"
#include "tests/lib/lib_scratch.h"
#include "tiers/tier.h"

static char directory[SCRATCH_BYTES], path[96];

static int make_directory(void **unused)
{
	(void)unused;
	scratch_make("/tmp", directory, sizeof(directory));
	snprintf(path, sizeof(path), "%s/stats", directory);
	return 0;
}

static int remove_directory(void **unused)
{
	(void)unused;
	(void)unlink(path);
	return rmdir(directory); /* fails when a temporary file was left behind */
}

static uint64_t now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct stats *open_page(void)
{
	struct stats *stats;

	assert_int_equal(stats_open(path, now_ns(), &stats), 0);
	return stats;
}

static void fields_are_paths_with_underscores(void **unused)
{
	static const struct {
		const char *path, *field;
	} names[] = {
#define STAT(p, field, kind, unit, prose) { p, #field },
#include "daemon/stats/tbl_stats.h"
	};
	char field[128];

	(void)unused;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(field, sizeof(field), "%s", names[i].path);
		for (char *dot; (dot = strchr(field, '.')) != NULL;)
			*dot = '_';
		assert_string_equal(field, names[i].field);
	}
}

static void counters_end_in_total_and_nothing_else_does(void **unused)
{
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);

	(void)unused;
	for (size_t i = 0; i < n; i++) {
		const size_t length = strlen(rows[i].path);
		const bool total = length > 6 && strcmp(rows[i].path + length - 6, "_total") == 0;

		assert_int_equal(total, rows[i].kind == STATS_COUNTER);
	}
}

/* Else JSON would have the same object twice. */
static void groups_stand_together(void **unused)
{
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);

	(void)unused;
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

static void readers_see_what_was_counted(void **unused)
{
	struct stats *stats = open_page();
	const struct stats *seen;

	(void)unused;
	assert_int_equal(stats_map(path, &seen), 0);
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
	stats_close(stats, path);
	assert_int_equal(access(path, F_OK), -1);
}

static void the_file_is_private(void **unused)
{
	struct stats *stats;
	struct stat st;
	mode_t before = umask(0);

	(void)unused;
	stats = open_page();
	(void)umask(before);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(st.st_size, sizeof(struct stats));
	stats_close(stats, path);
}

static void a_successor_leaves_old_maps_alone(void **unused)
{
	struct stats *old = open_page(), *new;
	const struct stats *seen;

	(void)unused;
	stats_add(&old->v.store_blocks_total, 3);
	assert_int_equal(stats_map(path, &seen), 0);
	assert_int_equal(stats_open(path, now_ns(), &new), 0);
	assert_int_equal(stats_get(&new->v.store_blocks_total), 0);
	assert_int_equal(stats_get(&seen->v.store_blocks_total), 3);
	stats_close(old, path);
	assert_int_equal(access(path, F_OK), 0); /* not the old one's to remove */
	stats_unmap(seen);
	stats_close(new, path);
}

static void strangers_are_refused(void **unused)
{
	struct stats *stats = open_page();
	const struct stats *seen;

	(void)unused;
	stats->layout ^= 1;
	assert_int_equal(stats_map(path, &seen), -EPROTO);
	stats->layout ^= 1;
	stats->magic = 0;
	assert_int_equal(stats_map(path, &seen), -EPROTO);
	stats->magic = STATS_MAGIC;
	assert_int_equal(stats_map(path, &seen), 0);
	stats_unmap(seen);
	assert_int_equal(truncate(path, (off_t)sizeof(*stats) - 1), 0);
	assert_int_equal(stats_map(path, &seen), -EPROTO);
	stats_close(stats, NULL);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(stats_map(path, &seen), -ENOENT);
	assert_int_equal(stats_map(directory, &seen), -EPROTO);
}

static void failures_leave_nothing(void **unused)
{
	struct stats *stats = NULL;
	char missing[128];

	(void)unused;
	snprintf(missing, sizeof(missing), "%s/none/stats", directory);
	assert_int_equal(stats_open(missing, 1, &stats), -ENOENT);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(stats_open(path, 1, &stats), -EISDIR);
	assert_null(stats);
	assert_int_equal(rmdir(path), 0);
}

static void a_truncated_page_is_whole_again(void **unused)
{
	struct stats *stats = open_page();
	const struct stats *seen;

	(void)unused;
	stats_add(&stats->v.store_blocks_total, 7);
	assert_int_equal(stats_keep(stats), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(truncate(path, i * 4096), 0);
		stats_add(&stats->v.store_blocks_total, 1);
		stats_add(&stats->load_times.count[5], 1);
		assert_int_equal(stats_keep(stats), 1);
		assert_int_equal(stats_keep(stats), 0);
		assert_int_equal(stats_map(path, &seen), 0);
		assert_int_equal(seen->v.store_blocks_total, 8 + i);
		assert_int_equal(seen->load_times.count[5], 1 + i);
		stats_unmap(seen);
	}
	assert_int_equal(truncate(path, 0), 0); /* and it is long again before anybody looks */
	assert_int_equal(truncate(path, sizeof(*stats)), 0);
	assert_int_equal(stats_keep(stats), 1);
	assert_int_equal(stats->v.store_blocks_total, 10);
	stats_close(stats, path);
	assert_int_equal(access(path, F_OK), -1);
}

static void health_has_words(void **unused)
{
	struct stats *stats;

	(void)unused;
	assert_int_equal(stats_open(NULL, now_ns(), &stats), 0);
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
	stats_close(stats, NULL);
}

static void texts_are_cut_to_fit(void **unused)
{
	char large[STATS_TEXT_BYTES + 50], engine[STATS_NAME_BYTES], text[STATS_TEXT_BYTES];
	struct stats *stats;

	(void)unused;
	memset(large, 'x', sizeof(large));
	large[sizeof(large) - 1] = '\0';
	assert_int_equal(stats_open(NULL, now_ns(), &stats), 0);
	assert_string_equal(stats_text_get(stats->nvme_text, sizeof(text), text), "");
	stats_nvme_text(stats, large, large);
	assert_int_equal(strlen(stats_text_get(stats->nvme_engine, sizeof(engine), engine)),
			 STATS_NAME_BYTES - 1);
	assert_int_equal(strlen(stats_text_get(stats->nvme_text, sizeof(text), text)),
			 STATS_TEXT_BYTES - 1);
	stats_nvme_text(stats, "threads", "");
	assert_string_equal(stats_text_get(stats->nvme_engine, sizeof(engine), engine), "threads");
	assert_string_equal(stats_text_get(stats->nvme_text, sizeof(text), text), "");
	stats_close(stats, NULL);
}

static void what_redis_has_is_no_error(void **unused)
{
	static const enum stats_health_bit bits[] = {
		STATS_HEALTH_REDIS_MISCONFIGURED, STATS_HEALTH_REDIS_OFFLINE,
		STATS_HEALTH_REDIS_READONLY, STATS_HEALTH_REDIS_DEGRADED, STATS_HEALTH_REDIS_CORRUPT
	};
	char text[STATS_TEXT_BYTES];
	struct stats *stats;

	(void)unused;
	assert_int_equal(stats_open(NULL, now_ns(), &stats), 0);
	stats_health_set(stats, STATS_HEALTH_STARTING, false);
	for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
		stats_health_set(stats, bits[i], true);
		assert_string_equal(stats_health_word(stats->health), "warn");
		stats_health_set(stats, bits[i], false);
		assert_string_equal(stats_health_word(stats->health), "ok");
	}
	assert_string_equal(stats_text_get(stats->redis_text, sizeof(text), text), "");
	stats_redis_text(stats, "a:6379: connection refused");
	assert_string_equal(stats_text_get(stats->redis_text, sizeof(text), text),
			    "a:6379: connection refused");
	assert_string_equal(stats_text_get(stats->nvme_text, sizeof(text), text), "");
	stats_close(stats, NULL);
}

/* kvtierd writes a tier's state as its enum; the page's readers have names for each. */
static void every_tier_state_has_its_name(void **unused)
{
	char name[32];
	const struct stats_row *rows;

	(void)unused;
	for (size_t i = stats_rows(&rows); i-- > 0;) {
		if (strcmp(rows[i].path, "tiers.redis.state") != 0)
			continue;
		assert_string_equal(stats_state_name(&rows[i], STATS_TIER_OFF, name, sizeof(name)),
				    "off");
		for (int state = TIER_STARTING; state <= TIER_MISCONFIGURED; state++) {
			const uint64_t value = STATS_TIER_STATE_BASE + (uint64_t)state;

			assert_string_equal(stats_state_name(&rows[i], value, name, sizeof(name)),
					    tier_state_name((enum tier_state)state));
		}
		return;
	}
	fail_msg("no tiers.redis.state");
}

static void *write_texts(void *arg)
{
	struct stats *stats = arg;
	char large[STATS_TEXT_BYTES];

	memset(large, 'x', sizeof(large));
	large[sizeof(large) - 1] = '\0';
	for (int i = 0; i < 5000; i++)
		stats_nvme_text(stats, "io_uring", i % 2 == 0 ? large : "yy");
	stats_nvme_text(stats, "end", "");
	return NULL;
}

/* Also of a page that is mapped and not copied: the last byte stays 0. */
static void texts_have_an_end_while_they_change(void **unused)
{
	char engine[STATS_NAME_BYTES] = "", text[STATS_TEXT_BYTES];
	struct stats *stats;
	pthread_t writer;

	(void)unused;
	assert_int_equal(stats_open(NULL, now_ns(), &stats), 0);
	assert_int_equal(pthread_create(&writer, NULL, write_texts, stats), 0);
	while (strcmp(stats_text_get(stats->nvme_engine, sizeof(engine), engine), "end") != 0) {
		(void)stats_text_get(stats->nvme_text, sizeof(text), text);
		assert_int_equal(text[strspn(text, "xy")], '\0');
		assert_int_equal(__atomic_load_n(&stats->nvme_text[sizeof(text) - 1],
						 __ATOMIC_RELAXED),
				 0);
	}
	(void)pthread_join(writer, NULL);
	stats_close(stats, NULL);
}

static void an_old_heartbeat_is_silent(void **unused)
{
	struct stats *stats;
	const uint64_t now = now_ns(), silent = 1ull << STATS_HEALTH_SILENT;

	(void)unused;
	assert_int_equal(stats_open(NULL, now, &stats), 0);
	/* a start may take its time */
	assert_int_equal(stats_health(stats, now + 2600 * 1000000ull) & silent, 0);
	stats_health_set(stats, STATS_HEALTH_STARTING, false);
	assert_int_equal(stats_health(stats, now + 2400 * 1000000ull) & silent, 0);
	assert_int_equal(stats_health(stats, now + 2600 * 1000000ull) & silent, silent);
	/* ahead of the clock: from before a reboot */
	stats_heartbeat(stats, now + 10 * 1000000000ull);
	assert_int_equal(stats_health(stats, now) & silent, silent);
	stats_close(stats, NULL);
}

static void another_namespaces_pid_means_nothing(void **unused)
{
	struct stats *stats;
	const uint64_t now = now_ns();

	(void)unused;
	assert_int_equal(stats_open(NULL, now, &stats), 0);
	stats_health_set(stats, STATS_HEALTH_STARTING, false);
	stats->pid_start++; /* our pid, of another process */
	assert_int_equal(stats_health(stats, now), 1ull << STATS_HEALTH_DEAD);
	stats->pid_namespace++;
	assert_int_equal(stats_health(stats, now), 0);
	stats_close(stats, NULL);
}

static void stopped_and_dead_are_told_apart(void **unused)
{
	const struct stats *seen;
	int ready[2], status;
	char byte;
	pid_t child;

	(void)unused;
	assert_int_equal(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		struct stats *stats;

		if (stats_open(path, now_ns(), &stats) < 0 || write(ready[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	(void)close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	(void)close(ready[0]);
	assert_int_equal(stats_map(path, &seen), 0);
	/* starting */
	assert_string_equal(stats_health_word(stats_health(seen, seen->heartbeat_ns)), "starting");
	assert_int_equal(kill(child, SIGSTOP), 0);
	assert_int_equal(waitpid(child, &status, WUNTRACED), child);
	assert_true(stats_health(seen, seen->heartbeat_ns) & 1ull << STATS_HEALTH_STOPPED);
	assert_string_equal(stats_health_word(stats_health(seen, seen->heartbeat_ns)), "err");
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitid(P_PID, (id_t)child, &(siginfo_t){ 0 }, WEXITED | WNOWAIT), 0);
	/* a zombie */
	assert_true(stats_health(seen, seen->heartbeat_ns) & 1ull << STATS_HEALTH_DEAD);
	assert_string_equal(stats_health_word(stats_health(seen, seen->heartbeat_ns)), "err");
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(stats_health(seen, seen->heartbeat_ns) & 1ull << STATS_HEALTH_DEAD);
	stats_unmap(seen);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fields_are_paths_with_underscores),
		cmocka_unit_test(counters_end_in_total_and_nothing_else_does),
		cmocka_unit_test(groups_stand_together),
		cmocka_unit_test_setup_teardown(a_truncated_page_is_whole_again, make_directory,
						remove_directory),
		cmocka_unit_test_setup_teardown(readers_see_what_was_counted, make_directory,
						remove_directory),
		cmocka_unit_test_setup_teardown(the_file_is_private, make_directory,
						remove_directory),
		cmocka_unit_test_setup_teardown(a_successor_leaves_old_maps_alone, make_directory,
						remove_directory),
		cmocka_unit_test_setup_teardown(strangers_are_refused, make_directory,
						remove_directory),
		cmocka_unit_test_setup_teardown(failures_leave_nothing, make_directory,
						remove_directory),
		cmocka_unit_test(health_has_words),
		cmocka_unit_test(texts_are_cut_to_fit),
		cmocka_unit_test(what_redis_has_is_no_error),
		cmocka_unit_test(every_tier_state_has_its_name),
		cmocka_unit_test(texts_have_an_end_while_they_change),
		cmocka_unit_test(an_old_heartbeat_is_silent),
		cmocka_unit_test(another_namespaces_pid_means_nothing),
		cmocka_unit_test_setup_teardown(stopped_and_dead_are_told_apart, make_directory,
						remove_directory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1;
}
