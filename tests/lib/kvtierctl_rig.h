/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_rig.h - what unit_kvtierctl*.c share: a directory with a stats page, and the built
 * program run there. That is $KVTIERCTL, or lies in the test's directory or the one above.
 */
#ifndef KVTIER_TESTS_KVTIERCTL_RIG_H
#define KVTIER_TESTS_KVTIERCTL_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <json-c/json.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/admin/stats.h"
#include "lib_scratch.h"

static char program[512], directory[SCRATCH_BYTES], path[96], admin[96];
static char output[1 << 16];
static struct stats *page;
/* not 0: run() makes the page that of a daemon that has been up for just so long */
static uint64_t uptime_ns;

static uint64_t now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int rig_setup(void **unused)
{
	(void)unused;
	scratch_make("/tmp", directory, sizeof(directory));
	snprintf(path, sizeof(path), "%s/stats", directory);
	snprintf(admin, sizeof(admin), "%s/admin.sock", directory);
	if (stats_open(path, now_ns(), &page) < 0)
		return -1;
	uptime_ns = 0;
	stats_health_set(page, STATS_HEALTH_STARTING, false);
	stats_names(page, "cpu", "avx2");
	return 0;
}

static int rig_teardown(void **unused)
{
	(void)unused;
	stats_close(page, path);
	(void)unlink(path);
	(void)unlink(admin);
	return rmdir(directory);
}

/* Exit status; what it wrote to either stream is in `output`. */
static int run(const char *arguments)
{
	char command[1024];
	size_t n;
	FILE *pipe;

	snprintf(command, sizeof(command), "%s --socket %s/kvtier.sock %s 2>&1", program, directory,
		 arguments);
	/* the page is of a daemon that lives */
	if (uptime_ns > 0)
		page->start_monotonic_ns = now_ns() - uptime_ns;
	stats_heartbeat(page, uptime_ns > 0 ? page->start_monotonic_ns + uptime_ns : now_ns());
	pipe = popen(command, "r");
	assert_non_null(pipe);
	n = fread(output, 1, sizeof(output) - 1, pipe);
	output[n] = '\0';
	return WEXITSTATUS(pclose(pipe));
}

static void says(const char *words)
{
	if (!strstr(output, words))
		fail_msg("\"%s\" is not in: %s", words, output);
}

/* The value at a path of the JSON text in `output`. */
static char *json_at(const char *where)
{
	struct json_object *at = json_tokener_parse(output), *root = at;
	static char value[256];
	char words[128];

	assert_non_null(root);
	snprintf(words, sizeof(words), "%s", where);
	for (char *word = strtok(words, "."); word; word = strtok(NULL, ".")) {
		if (!json_object_object_get_ex(at, word, &at))
			fail_msg("no %s in: %s", where, output);
	}
	snprintf(value, sizeof(value), "%s", json_object_get_string(at));
	json_object_put(root);
	return value;
}

static bool find_program(void)
{
	const char *given = getenv("KVTIERCTL");
	const ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 32);
	char *slash;

	if (given) {
		snprintf(program, sizeof(program), "%s", given);
		return access(program, X_OK) == 0;
	}
	if (n <= 0)
		return false;
	program[n] = '\0';
	for (int up = 0; up < 2 && (slash = strrchr(program, '/')) != NULL; up++) {
		strcpy(slash, "/kvtierctl");
		if (access(program, X_OK) == 0)
			return true;
		*slash = '\0';
	}
	return false;
}

#endif
