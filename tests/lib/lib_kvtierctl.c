/* SPDX-License-Identifier: Apache-2.0 */
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

#include "lib_kvtierctl.h"

struct tool tool;

uint64_t tool_now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int tool_set_up(void **unused)
{
	(void)unused;
	scratch_make("/tmp", tool.dir, sizeof(tool.dir));
	snprintf(tool.path, sizeof(tool.path), "%s/stats", tool.dir);
	snprintf(tool.admin, sizeof(tool.admin), "%s/admin.sock", tool.dir);
	if (stats_open(tool.path, tool_now_ns(), &tool.page) < 0)
		return -1;
	tool.uptime_ns = 0;
	stats_health_set(tool.page, STATS_HEALTH_STARTING, false);
	stats_names(tool.page, "cpu", "avx2");
	return 0;
}

int tool_tear_down(void **unused)
{
	(void)unused;
	stats_close(tool.page, tool.path);
	(void)unlink(tool.path);
	(void)unlink(tool.admin);
	return rmdir(tool.dir);
}

int tool_run(const char *arguments)
{
	char command[1024];
	size_t n;
	FILE *pipe;

	snprintf(command, sizeof(command), "%s --socket %s/kvtier.sock %s 2>&1", tool.program,
		 tool.dir, arguments);
	/* the page is of a daemon that lives */
	if (tool.uptime_ns > 0)
		tool.page->start_monotonic_ns = tool_now_ns() - tool.uptime_ns;
	stats_heartbeat(tool.page, tool.uptime_ns > 0 ?
					   tool.page->start_monotonic_ns + tool.uptime_ns :
					   tool_now_ns());
	pipe = popen(command, "r");
	assert_non_null(pipe);
	n = fread(tool.output, 1, sizeof(tool.output) - 1, pipe);
	tool.output[n] = '\0';
	return WEXITSTATUS(pclose(pipe));
}

void tool_says(const char *words)
{
	if (!strstr(tool.output, words))
		fail_msg("\"%s\" is not in: %s", words, tool.output);
}

char *tool_json_at(const char *where)
{
	struct json_object *at = json_tokener_parse(tool.output), *root = at;
	static char value[256];
	char words[128];

	assert_non_null(root);
	snprintf(words, sizeof(words), "%s", where);
	for (char *word = strtok(words, "."); word; word = strtok(NULL, ".")) {
		if (!json_object_object_get_ex(at, word, &at))
			fail_msg("no %s in: %s", where, tool.output);
	}
	snprintf(value, sizeof(value), "%s", json_object_get_string(at));
	json_object_put(root);
	return value;
}

bool tool_find(void)
{
	const char *given = getenv("KVTIERCTL");
	const ssize_t n = readlink("/proc/self/exe", tool.program, sizeof(tool.program) - 32);
	char *slash;

	if (given) {
		snprintf(tool.program, sizeof(tool.program), "%s", given);
		return access(tool.program, X_OK) == 0;
	}
	if (n <= 0)
		return false;
	tool.program[n] = '\0';
	for (int up = 0; up < 2 && (slash = strrchr(tool.program, '/')) != NULL; up++) {
		strcpy(slash, "/kvtierctl");
		if (access(tool.program, X_OK) == 0)
			return true;
		*slash = '\0';
	}
	return false;
}

pid_t tool_play(const struct tool_packet *script)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	char request[512];
	pid_t child;

	memcpy(address.sun_path, tool.admin, strlen(tool.admin));
	assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 8), 0);
	child = fork();
	if (child == 0) {
		const int asker = accept(fd, NULL, NULL);

		if (asker < 0 || recv(asker, request, sizeof(request), 0) <= 0)
			_exit(1);
		for (; script->text; script++) {
			(void)usleep(script->after_us);
			(void)send(asker, script->text, strlen(script->text), MSG_NOSIGNAL);
		}
		_exit(0);
	}
	(void)close(fd);
	return child;
}

int tool_run_with(const char *arguments, const struct tool_packet *script)
{
	const pid_t child = tool_play(script);
	const int status = tool_run(arguments);

	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(unlink(tool.admin), 0);
	return status;
}
