/* SPDX-License-Identifier: Apache-2.0 */
#include <json-c/json.h>

#include "lib_kvtierctl.h"

#include "lib_packet.h"

struct tool tool;

int tool_set_up(TEST_UNUSED void **unused)
{
	scratch_make("/tmp", tool.dir, sizeof(tool.dir));
	snprintf(tool.path, sizeof(tool.path), "%s/stats", tool.dir);
	snprintf(tool.admin, sizeof(tool.admin), "%s/admin.sock", tool.dir);
	if (stats_open(tool.path, clock_ns(), &tool.page) < 0)
		return -1;
	tool.uptime_ns = tool.silent_ns = 0;
	stats_health_set(tool.page, STATS_HEALTH_STARTING, false);
	stats_names(tool.page, "cpu", "avx2");
	return 0;
}

int tool_tear_down(TEST_UNUSED void **unused)
{
	stats_close(tool.page, tool.path);
	(void)unlink(tool.path);
	(void)unlink(tool.admin);
	return rmdir(tool.dir);
}

int tool_command(const char *command)
{
	FILE *pipe = popen(command, "r");
	size_t n;

	assert_non_null(pipe);
	n = fread(tool.output, 1, sizeof(tool.output) - 1, pipe);
	tool.output[n] = '\0';
	return WEXITSTATUS(pclose(pipe));
}

int tool_run(const char *arguments)
{
	char command[1024];

	snprintf(command, sizeof(command), "%s --socket %s/kvtier.sock %s 2>&1", tool.program,
		 tool.dir, arguments);
	/* the page is of a daemon that lives */
	if (tool.uptime_ns > 0)
		tool.page->start_monotonic_ns = clock_ns() - tool.uptime_ns;
	stats_heartbeat(tool.page, tool.uptime_ns > 0 ?
					   tool.page->start_monotonic_ns + tool.uptime_ns :
					   clock_ns() - tool.silent_ns);
	return tool_command(command);
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

void tool_needed(void)
{
	const char *given = getenv("KVTIERCTL");
	const ssize_t n = readlink("/proc/self/exe", tool.program, sizeof(tool.program) - 32);
	char *slash;

	if (given) {
		snprintf(tool.program, sizeof(tool.program), "%s", given);
		if (access(tool.program, X_OK) == 0)
			return;
	} else if (n > 0) {
		tool.program[n] = '\0';
		for (int up = 0; up < 2 && (slash = strrchr(tool.program, '/')) != NULL; up++) {
			strcpy(slash, "/kvtierctl");
			if (access(tool.program, X_OK) == 0)
				return;
			*slash = '\0';
		}
	}
	printf("kvtierctl is not built\n");
	exit(77);
}

pid_t tool_play(const struct tool_packet *script)
{
	const int fd = packet_listen(tool.admin);
	char request[512];
	pid_t child;

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

int tool_told(const char *arguments, const char *packet, const char *second)
{
	return tool_run_with(arguments,
			     (struct tool_packet[]){ { 0, packet }, { 0, second }, { 0 } });
}

pid_t tool_child(void)
{
	int ready[2];
	pid_t child;
	char byte;

	assert_int_equal(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		struct stats *own;

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (stats_open(tool.path, clock_ns(), &own) < 0 || write(ready[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	(void)close(ready[0]);
	(void)close(ready[1]);
	return child;
}

void tool_child_stops(pid_t child)
{
	int status;

	assert_int_equal(kill(child, SIGSTOP), 0);
	assert_int_equal(waitpid(child, &status, WUNTRACED), child);
}

void tool_child_ends(pid_t child)
{
	(void)kill(child, SIGKILL);
	(void)waitpid(child, NULL, 0);
}
