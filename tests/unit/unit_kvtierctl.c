/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) lane=wait */
/*
 * unit_kvtierctl - goal: kvtierctl's output and exit status are as promised to scripts and people,
 * in any state of the daemon. Method: the built program, run against a stats page made here (a
 * child plays the daemon where it must be stopped or dead) and against an admin socket that never
 * answers.
 */
#include "tests/lib/lib_kvtierctl.h"
#include "tests/lib/lib_packet.h"

/* Scripts rely on this: a name, once shipped, stays. */
static const char *const names[] = {
	"schema_version",
	"uptime_s",
	"health",
	"lookup.requested_blocks_total",
	"lookup.hit_blocks_total",
	"store.blocks_total",
	"store.dropped_blocks_total",
	"store.logical_bytes_total",
	"store.image_bytes_total",
	"store.raw_blocks_total",
	"store.present_blocks_total",
	"load.blocks_total",
	"load.failed_blocks_total",
	"load.missed_blocks_total",
	"load.logical_bytes_total",
	"load.ops_total",
	"load.p50_us",
	"load.p99_us",
	"store.ops_total",
	"store.p50_us",
	"store.p99_us",
	"clients",
	"leases",
	"ops.outstanding",
	"ops.timed_out_total",
	"ops.canceled_total",
	"clients_total",
	"clients_refused_total",
	"protocol_errors_total",
	"spaces",
	"index.entries",
	"index.bytes",
	"prefetch.blocks_total",
	"prefetch.missed_blocks_total",
	"tiers.host.demoted_blocks_total",
	"tiers.host.promoted_blocks_total",
	"tiers.nvme.engine",
	"tiers.nvme.text",
	"tiers.nvme.write_amplification_percent",
	"tiers.nvme.residency_s",
	"tiers.redis.text",
	"tiers.redis.endpoints",
	"tiers.redis.usable_endpoints",
	"tiers.redis.queued_blocks",
	"tiers.redis.queued_bytes",
	"tiers.redis.written_blocks_total",
	"tiers.redis.present_blocks_total",
	"tiers.redis.dropped_blocks_total",
	"tiers.redis.skipped_blocks_total",
	"tiers.redis.miss_blocks_total",
	"tiers.redis.forged_blocks_total",
	"tiers.redis.other_form_blocks_total",
	"tiers.redis.timeouts_total",
	"tiers.redis.errors_total",
	"tiers.redis.refused_stores_total",
	"tiers.redis.refused_hosts_total",
	"tiers.redis.redirects_total",
	"tiers.redis.topology_changes_total",
	"tiers.redis.protocol_errors_total",
	"tiers.redis.breaker_opens_total",
	"tiers.redis.reconnects_total",
};
static const char *const tiers[] = { "gpu", "host", "nvme", "redis" };
static const char *const of_tier[] = {
	"state",
	"hit_blocks_total",
	"read_bytes_total",
	"written_bytes_total",
	"corrupt_blocks_total",
	/* Redis lacks those from here on */
	"capacity_bytes",
	"used_bytes",
	"blocks",
	"evicted_blocks_total",
};

TEST_WITH(json_has_every_promised_name, tool_set_up, tool_tear_down)
{
	char name[128];

	assert_int_equal(tool_run("stats --json"), 0);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		(void)tool_json_at(names[i]);
	for (size_t t = 0; t < 4; t++) {
		for (size_t i = 0; i < (t == 3 ? 5 : sizeof(of_tier) / sizeof(of_tier[0])); i++) {
			snprintf(name, sizeof(name), "tiers.%s.%s", tiers[t], of_tier[i]);
			(void)tool_json_at(name);
		}
	}
}

TEST_WITH(json_has_the_values, tool_set_up, tool_tear_down)
{
	stats_add(&tool.page->v.store_blocks_total, 7);
	stats_set(&tool.page->v.tiers_host_used_bytes, UINT64_MAX);
	stats_set(&tool.page->v.tiers_host_state, STATS_TIER_STATE_BASE + 1);
	stats_health_set(tool.page, STATS_HEALTH_CORRUPT, true);
	assert_int_equal(tool_run("stats --json"), 0);
	assert_string_equal(tool_json_at("store.blocks_total"), "7");
	assert_string_equal(tool_json_at("tiers.host.used_bytes"), "18446744073709551615");
	assert_string_equal(tool_json_at("tiers.host.state"), "up");
	assert_string_equal(tool_json_at("tiers.nvme.state"), "off");
	assert_string_equal(tool_json_at("health"), "warn");
	assert_non_null(strstr(tool_json_at("health_reasons"), "corrupt_blocks"));
}

TEST_WITH(the_nvme_tier_has_words, tool_set_up, tool_tear_down)
{
	stats_text_set(tool.page->nvme_engine, STATS_NAME_BYTES, "threads");
	stats_text_set(tool.page->nvme_text, STATS_TEXT_BYTES, "/dev/x: \"no\" \033[31m");
	stats_health_set(tool.page, STATS_HEALTH_NVME_QUARANTINED, true);
	assert_int_equal(tool_run("stats --json -f tiers.nvme.text -f tiers.nvme.engine"), 0);
	assert_string_equal(
		tool.output,
		"{\"tiers\":{\"nvme\":{\"engine\":\"threads\",\"text\":\"/dev/x: \\\"no\\\" "
		"\\u001b[31m\"}}}\n");
	assert_int_equal(tool_run("stats --all"), 0);
	tool_says("nvme: threads; /dev/x: ");
	assert_int_equal(tool_run("status"), 2);
	tool_says("nvme_quarantined");
	tool_says("kvtierctl format PATH --bytes N");
	tool_says("nvme: threads; /dev/x: \"no\" \\x1b[31m");
	assert_int_equal(tool_run("status --json"), 2);
	assert_string_equal(tool_json_at("nvme.engine"), "threads");
	assert_string_equal(tool_json_at("nvme.text"), "/dev/x: \"no\" \033[31m");
	stats_text_set(tool.page->nvme_engine, STATS_NAME_BYTES, "");
	stats_text_set(tool.page->nvme_text, STATS_TEXT_BYTES, "");
	assert_int_equal(tool_run("status"), 2);
	assert_null(strstr(tool.output, "nvme: "));
}

TEST_WITH(a_filter_shows_only_what_matches, tool_set_up, tool_tear_down)
{
	assert_int_equal(tool_run("stats --json -f 'index.[be]*' -f leases"), 0);
	assert_string_equal(tool.output, "{\"leases\":0,\"index\":{\"entries\":0,\"bytes\":0}}\n");
	assert_int_equal(tool_run("stats -f 'tiers.host.*'"), 0);
	tool_says("tiers.host.used_bytes");
	assert_null(strstr(tool.output, "tiers.gpu"));
	assert_int_equal(tool_run("stats -f nothing"), 64);
	tool_says("matches no name");
}

TEST_WITH(list_explains_every_name, tool_set_up, tool_tear_down)
{
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);

	assert_int_equal(tool_run("stats --list"), 0);
	for (size_t i = 0; i < n; i++) {
		tool_says(rows[i].path);
		tool_says(rows[i].prose);
	}
}

TEST_WITH(status_is_ok_warn_or_err, tool_set_up, tool_tear_down)
{
	assert_int_equal(tool_run("status"), 0);
	assert_memory_equal(tool.output, "OK: kvtierd", 11);
	stats_health_set(tool.page, STATS_HEALTH_KERNELS_REF, true);
	assert_int_equal(tool_run("status"), 1);
	assert_memory_equal(tool.output, "WARN: ", 6);
	tool_says("slow_kernels");
	tool_says("AVX2");
	stats_health_set(tool.page, STATS_HEALTH_HOST_OFFLINE, true);
	assert_int_equal(tool_run("status"), 2);
	assert_memory_equal(tool.output, "ERR: ", 5);
	assert_int_equal(tool_run("status --json"), 2);
	assert_string_equal(tool_json_at("status"), "err");
	tool_says("{\"code\":\"host_offline\",\"severity\":\"err\",\"next_step\":");
}

TEST_WITH(a_start_is_a_state_of_its_own, tool_set_up, tool_tear_down)
{
	stats_health_set(tool.page, STATS_HEALTH_STARTING, true);
	assert_int_equal(tool_run("status"), 4);
	assert_memory_equal(tool.output, "STARTING: kvtierd", 17);
	tool_says("NOTE starting");
	assert_int_equal(tool_run("status --json"), 4);
	assert_string_equal(tool_json_at("status"), "starting");
	tool_says("{\"code\":\"starting\",\"severity\":\"note\",\"next_step\":");
	stats_health_set(tool.page, STATS_HEALTH_STARTING, false);
}

TEST_WITH(what_is_still_coming_is_ok, tool_set_up, tool_tear_down)
{
	stats_health_set(tool.page, STATS_HEALTH_HOST_STARTING, true);
	stats_health_set(tool.page, STATS_HEALTH_NVME_STARTING, true);
	assert_int_equal(tool_run("status"), 0);
	assert_memory_equal(tool.output, "OK: kvtierd", 11);
	tool_says("NOTE host_starting");
	tool_says("NOTE nvme_starting");
	stats_health_set(tool.page, STATS_HEALTH_HOST_STARTING, false);
	stats_health_set(tool.page, STATS_HEALTH_NVME_STARTING, false);
}

TEST_WITH(a_stopped_daemon_is_called_so, tool_set_up, tool_tear_down)
{
	const pid_t child = tool_child();

	tool_child_stops(child);
	assert_int_equal(tool_run("status"), 2);
	assert_memory_equal(tool.output, "ERR STOPPED: ", 13);
	tool_says("kill -CONT");
	assert_int_equal(tool_run("stats"), 0);
	tool_says("ERR STOPPED: ");
	tool_says("kill -CONT");
	assert_int_equal(tool_run("stats --all"), 0);
	tool_says("ERR STOPPED: ");
	tool_child_ends(child);
}

TEST_WITH(a_dead_daemon_is_called_so, tool_set_up, tool_tear_down)
{
	const pid_t child = tool_child();

	tool_child_ends(child);
	assert_int_equal(tool_run("status"), 2);
	assert_memory_equal(tool.output, "ERR DEAD: ", 10);
	tool_says("systemctl restart");
	assert_int_equal(tool_run("stats --json"), 0);
	assert_string_equal(tool_json_at("health"), "err");
}

/* Listens beside the page, as a daemon or systemd does. */
static int listen_beside(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", tool.dir, name);
	return packet_listen(path);
}

static void forget(int fd, const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", tool.dir, name);
	assert_int_equal(unlink(path), 0);
	(void)close(fd);
}

TEST_WITH(ready_is_a_daemon_that_serves_and_can_be_connected, tool_set_up, tool_tear_down)
{
	int fd;

	assert_int_equal(tool_run("status --ready"), 3); /* status itself says OK */
	tool_says("not ready: ");
	tool_says("/kvtier.sock: No such file");
	fd = listen_beside("kvtier.sock");
	assert_int_equal(tool_run("status --ready"), 0);
	assert_string_equal(tool.output, "ready: engines can connect\n");
	assert_int_equal(tool_run("status --ready --json"), 0);
	assert_string_equal(tool.output, "{\"ready\":true}\n");
	stats_health_set(tool.page, STATS_HEALTH_STARTING, true); /* systemd holds the socket */
	assert_int_equal(tool_run("status --ready"), 4);
	tool_says("not ready: starting: ");
	stats_health_set(tool.page, STATS_HEALTH_STARTING, false);
	stats_health_set(tool.page, STATS_HEALTH_STOPPING, true);
	assert_int_equal(tool_run("status --ready --json"), 1);
	assert_string_equal(tool_json_at("exit"), "1");
	stats_health_set(tool.page, STATS_HEALTH_STOPPING, false);
	stats_health_set(tool.page, STATS_HEALTH_HOST_OFFLINE, true); /* engines are served */
	assert_int_equal(tool_run("status --ready"), 0);
	forget(fd, "kvtier.sock");
}

TEST_WITH(ready_needs_the_socket_of_every_tenant, tool_set_up, tool_tear_down)
{
	const int fd = listen_beside("kvtier.sock"), other = listen_beside("acme.sock");
	char path[128];

	snprintf(path, sizeof(path), "%s/acme.sock", tool.dir);
	stats_text_set(tool.page->sockets[1], STATS_TEXT_BYTES, path);
	assert_int_equal(tool_run("status --ready"), 0);
	forget(other, "acme.sock");
	assert_int_equal(tool_run("status --ready"), 3);
	tool_says("/acme.sock: No such file");
	forget(fd, "kvtier.sock");
}

TEST_WITH(a_socket_where_nobody_accepts_is_not_ready, tool_set_up, tool_tear_down)
{
	const int fd = listen_beside("kvtier.sock"); /* a backlog of a few */
	int waiting[64], n = 0;
	char path[128];

	snprintf(path, sizeof(path), "%s/kvtier.sock", tool.dir);
	do
		waiting[n] = packet_dial(path, 1);
	while (waiting[n] >= 0 && ++n < 64);
	assert_in_range(n, 1, 63);
	assert_int_equal(tool_run("status --ready"), 3);
	tool_says("engines wait there, and are not accepted");
	while (n-- > 0)
		(void)close(waiting[n]);
	forget(fd, "kvtier.sock");
}

TEST_WITH(live_is_a_daemon_that_starts_or_moves, tool_set_up, tool_tear_down)
{
	pid_t child;

	assert_int_equal(tool_run("status --live"), 0);
	assert_string_equal(tool.output, "live: the daemon moves\n");
	stats_health_set(tool.page, STATS_HEALTH_HOST_OFFLINE, true);
	assert_int_equal(tool_run("status --live"), 0);
	stats_health_set(tool.page, STATS_HEALTH_STARTING, true);
	tool.silent_ns = 60 * 1000000000ull;
	assert_int_equal(tool_run("status --live --json"), 0);
	assert_string_equal(tool.output, "{\"live\":true}\n");
	assert_int_equal(tool_run("status"), 4);
	stats_health_set(tool.page, STATS_HEALTH_STARTING, false);
	assert_int_equal(tool_run("status --live"), 2);
	tool_says("not live: silent: ");
	tool.silent_ns = 0;
	child = tool_child();
	tool_child_stops(child);
	assert_int_equal(tool_run("status --live"), 2);
	tool_says("not live: stopped: ");
	tool_child_ends(child);
	assert_int_equal(tool_run("status --live --json"), 2);
	assert_string_equal(tool_json_at("exit"), "2");
	assert_int_equal(tool_run("status --live --ready"), 64);
}

TEST_WITH(no_daemon_is_3, tool_set_up, tool_tear_down)
{
	stats_close(tool.page, tool.path);
	assert_int_equal(stats_open(NULL, clock_ns(), &tool.page), 0);
	assert_int_equal(tool_run("status"), 3);
	tool_says("no kvtierd runs at");
	assert_int_equal(tool_run("stats"), 3);
	assert_int_equal(tool_run("clients"), 3);
	tool_says("no kvtierd answers at");
	assert_int_equal(tool_run("version"), 3);
	tool_says("not running");
}

TEST_WITH(an_error_is_json_where_json_is_asked_for, tool_set_up, tool_tear_down)
{
	static const struct {
		const char *arguments, *exit, *words;
	} wrong[] = {
		{ "clients --json", "3", "no kvtierd answers at" },
		{ "--json flush", "3", "no kvtierd answers at" },
		{ "evict --json --bytes", "64", "--bytes needs a value" },
		{ "fly --json", "64", "no such command" },
		{ "--json", "64", "a command is missing" },
		{ "format --json /nowhere/at/all --bytes 8M", "1", "/nowhere/at/all" },
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(tool_run(wrong[i].arguments), atoi(wrong[i].exit));
		assert_int_equal(tool.output[0], '{');
		assert_string_equal(tool_json_at("exit"), wrong[i].exit);
		assert_non_null(strstr(tool_json_at("error"), wrong[i].words));
	}
	assert_int_equal(tool_told("evict --all --json", "!no \"room\"\033", NULL), 1);
	assert_string_equal(tool_json_at("error"), "no \"room\"\\x1b");
}

TEST_WITH(a_page_of_another_version_tells_which, tool_set_up, tool_tear_down)
{
	stats_text_set(tool.page->version, STATS_NAME_BYTES, "9.9\033");
	tool.page->layout++;
	assert_int_equal(tool_run("version"), 0);
	tool_says("kvtierctl " KVTIER_VERSION "\nkvtierd   9.9\\x1b, pid ");
	assert_int_equal(tool_run("version --json"), 0);
	assert_string_equal(tool_json_at("kvtierd"), "9.9\033");
	assert_int_equal(tool_run("status"), 3);
	tool_says("is the stats page of kvtierd 9.9");
	tool.page->pid_start++; /* our pid, of another process */
	assert_int_equal(tool_run("version"), 3);
	tool_says("not running");
	tool.page->layout--;
}

TEST_WITH(a_page_that_tells_nothing_and_a_socket_that_answers, tool_set_up, tool_tear_down)
{
	const int fd = packet_listen(tool.admin);

	tool.page->magic++;
	assert_int_equal(tool_run("version"), 1);
	tool_says("does not tell its version");
	tool.page->magic--;
	(void)close(fd);
}

/* Runs kvtierctl as another user, who may find the files and not read them. */
static int run_as_nobody(const char *arguments)
{
	char command[1024];

	snprintf(command, sizeof(command),
		 "setpriv --reuid 65534 --clear-groups %s --socket %s/kvtier.sock %s 2>&1",
		 tool.program, tool.dir, arguments);
	return tool_command(command);
}

TEST_WITH(another_user_is_told_of_permission, tool_set_up, tool_tear_down)
{
	static const char *const commands[] = { "status", "stats", "version", "clients", "flush" };
	const int fd = packet_listen(tool.admin);

	if (geteuid() != 0)
		skip(); /* only root becomes another user */
	assert_int_equal(chmod(tool.dir, 0755), 0);
	assert_int_equal(chmod(tool.admin, 0600), 0);
	if (run_as_nobody("--version") != 0)
		skip(); /* the program lies where that user may not look */
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		assert_int_equal(run_as_nobody(commands[i]), 77);
		tool_says("permission denied: ");
		tool_says("sudo kvtierctl ");
	}
	(void)close(fd);
}

TEST_WITH(the_version_of_kvtierctl_needs_no_daemon, tool_set_up, tool_tear_down)
{
	assert_int_equal(tool_run("--version"), 0);
	assert_string_equal(tool.output, "kvtierctl " KVTIER_VERSION "\n");
}

TEST_WITH(a_command_that_is_mistyped_is_guessed, tool_set_up, tool_tear_down)
{
	assert_int_equal(tool_run("stat"), 64);
	tool_says("stat: no such command; did you mean stats?");
	assert_int_equal(tool_run("flsuh"), 64);
	tool_says("did you mean flush?");
	assert_int_equal(tool_run("bicycle"), 64);
	assert_null(strstr(tool.output, "did you mean"));
}

/* All fit on a terminal of 24 lines, with the prompt. */
TEST_WITH(without_a_command_there_is_a_short_list_of_all, tool_set_up, tool_tear_down)
{
	static const char *const commands[] = {
#define CTL(name, where, arguments, prose, example) " " #name,
#include "daemon/admin/tbl_ctl.h"
	};
	int lines = 0;

	assert_int_equal(tool_run(""), 64);
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		tool_says(commands[i]);
	tool_says("kvtierctl status");
	for (const char *at = tool.output; (at = strchr(at, '\n')) != NULL; at++)
		lines++;
	assert_in_range(lines, 10, 22);
}

TEST_WITH(usage_is_64, tool_set_up, tool_tear_down)
{
	static const char *const wrong[] = {
		"",
		"fly",
		"--fly status",
		"status now",
		"stats --watch",
		"evict --bytes",
		"evict --all --all",
		"evict --all now",
		"evict --fly",
		"flush -f x",
		"hint",
		"clients all",
		"stats -f",
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		if (tool_run(wrong[i]) != 64)
			fail_msg("not 64: %s", wrong[i]);
		tool_says("usage: kvtierctl");
	}
}

TEST_WITH(usage_is_64_also_if_the_daemon_says_so, tool_set_up, tool_tear_down)
{
	assert_int_equal(tool_told("evict", "?evict takes either\033", NULL), 64);
	tool_says("kvtierctl: evict takes either\\x1b\nusage: kvtierctl evict --all |");
}

TEST_WITH(help_teaches_with_an_example, tool_set_up, tool_tear_down)
{
	static const char *const commands[] = {
#define CTL(name, where, arguments, prose, example) #name,
#include "daemon/admin/tbl_ctl.h"
	};
	char arguments[64];

	assert_int_equal(tool_run("--help"), 0);
	tool_says("example:");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		snprintf(arguments, sizeof(arguments), "%s --help", commands[i]);
		assert_int_equal(tool_run(arguments), 0);
		tool_says("example:\n  kvtierctl ");
	}
}

/* Connects, since a backlog is the kernel's, and is never answered. */
TEST_WITH(an_admin_socket_that_is_silent_is_explained, tool_set_up, tool_tear_down)
{
	const int fd = packet_listen(tool.admin);
	const pid_t child = tool_child();

	tool_child_stops(child);
	assert_int_equal(tool_run("clients"), 3);
	tool_says("does not answer");
	tool_says("stopped");
	tool_child_ends(child);
	(void)close(fd);
}

TEST_BEGIN
{
	tool_needed();
}
