/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib.c - the daemon side of lib.h: a real kvtierd in a directory of its own, watched with
 * deadlines.
 */
#include "daemon/stats/stats.h"
#include "lib.h"
#include "lib_scratch.h"

#include <dirent.h>

#include <json-c/json.h>

const char *build_dir(void)
{
	static char dir[512];
	const ssize_t n = dir[0] ? 0 : readlink("/proc/self/exe", dir, sizeof(dir) - 1);

	if (n > 0) { /* BUILD/tests/program */
		*strrchr(dir, '/') = 0;
		*strrchr(dir, '/') = 0;
	}
	return dir;
}

static bool tuned;

void daemon_tuned(const char *kernels, unsigned depth)
{
	char number[16];

	tuned = true;
	(void)snprintf(number, sizeof(number), "%u", depth);
	(void)(kernels ? setenv("KVTIER_TEST_KERNELS", kernels, 1) :
			 unsetenv("KVTIER_TEST_KERNELS"));
	(void)(depth ? setenv("KVTIER_TEST_DEPTH", number, 1) : unsetenv("KVTIER_TEST_DEPTH"));
}

void daemon_spawn(struct daemon *d)
{
	char program[600];

	snprintf(program, sizeof(program), "%s/%s", build_dir(),
		 d->program ? d->program :
		 tuned      ? "tests/kvtierd_tuned" :
			      "kvtierd");
	d->pid = fork();
	if (d->pid == 0) {
		char log[128];

		snprintf(log, sizeof(log), "%s/log", d->dir);
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (freopen(log, "a", stderr) == NULL)
			_exit(126);
		if (d->enter)
			d->enter();
		execl(program, "kvtierd", "--config", d->config, (char *)NULL);
		_exit(127);
	}
	if (d->pid < 0)
		fail_msg("fork: %s", strerror(errno));
}

static void show_log(const struct daemon *d)
{
	char path[128], line[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/log", d->dir);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		fprintf(stderr, "# kvtierd: %s", line);
	if (f)
		fclose(f);
}

static void await_serving(struct daemon *d)
{
	const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;

	for (;;) {
		struct kvtier_client *client;
		int status;

		if (client_dial(d->socket, "probe", 5000, &client) == 0) {
			kvtier_close(client);
			return;
		}
		if (waitpid(d->pid, &status, WNOHANG) == d->pid) {
			d->pid = 0;
			show_log(d);
			fail_msg("kvtierd ended at start with status 0x%x", (unsigned)status);
		}
		if (now_ns() > until) {
			show_log(d);
			fail_msg("kvtierd does not serve after %d ms: %s", PATIENT_MS,
				 kvtier_last_error());
		}
		nap_ms(2);
	}
}

/* --- where it lives --- */

static bool takes_direct_io(const char *dir)
{
	char path[200];
	int fd;

	(void)snprintf(path, sizeof(path), "%.150s/kvtier-direct-XXXXXX", dir);
	fd = mkstemp(path);
	if (fd < 0)
		return false;
	(void)unlink(path);
	if (fcntl(fd, F_SETFL, O_DIRECT)) {
		(void)close(fd);
		return false;
	}
	(void)close(fd);
	return true;
}

const char *disk_dir(void)
{
	const char *given = getenv("TMPDIR");

	if (given && strlen(given) < 100 && takes_direct_io(given))
		return given;
	return takes_direct_io("/var/tmp") ? "/var/tmp" : NULL;
}

void daemon_place(struct daemon *d, bool on_disk)
{
	*d = (struct daemon){ 0 };
	scratch_make("/tmp", d->dir, sizeof(d->dir));
	(void)snprintf(d->socket, sizeof(d->socket), "%s/kvtier.sock", d->dir);
	(void)snprintf(d->config, sizeof(d->config), "%s/kvtierd.conf", d->dir);
	if (!on_disk)
		return;
	if (!disk_dir())
		fail_msg("no directory for O_DIRECT: set TMPDIR to one on a disk");
	scratch_make(disk_dir(), d->disk, sizeof(d->disk));
}

void daemon_configure(struct daemon *d, const char *config)
{
	/* the disk of a busy machine may take longer than a disk should */
	const char *nvme = strstr(config, "stall_us") ? "" : "[nvme]\nstall_us = 600s\n";
	FILE *f = fopen(d->config, "we");

	if (!f)
		fail_msg("%s: %s", d->config, strerror(errno));
	if (!strstr(config, "[nvme]"))
		nvme = "[nvme]\nbytes = 0\n";
	(void)fprintf(f, "[daemon]\nruntime_dir = %s\nstate_dir = %s\n%s\n%s", d->dir,
		      d->disk[0] ? d->disk : d->dir, config, nvme);
	(void)fclose(f);
}

void daemon_start(struct daemon *d, const char *config)
{
	daemon_place(d, strstr(config, "[nvme]") != NULL);
	daemon_configure(d, config);
	daemon_restart(d);
}

void daemon_restart(struct daemon *d)
{
	assert_int_equal(d->pid, 0);
	daemon_spawn(d);
	await_serving(d);
}

int daemon_wait(struct daemon *d, int timeout_ms)
{
	const uint64_t until = now_ns() + (uint64_t)timeout_ms * 1000000u;
	int status = 0;

	for (;;) {
		const pid_t got = waitpid(d->pid, &status, WNOHANG);

		if (got == d->pid)
			break;
		if (now_ns() > until) {
			show_log(d);
			kill(d->pid, SIGKILL);
			fail_msg("kvtierd does not end within %d ms", timeout_ms);
		}
		nap_ms(2);
	}
	d->pid = 0;
	return status;
}

void daemon_signal(struct daemon *d, int signal)
{
	if (kill(d->pid, signal))
		fail_msg("kill: %s", strerror(errno));
	if (signal == SIGSTOP && waitpid(d->pid, NULL, WUNTRACED) != d->pid)
		fail_msg("waitpid: %s", strerror(errno));
	if (signal == SIGKILL)
		(void)daemon_wait(d, PATIENT_MS);
	if (signal == SIGTERM) {
		const int status = daemon_wait(d, PATIENT_MS);

		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
			show_log(d);
			fail_msg("kvtierd stopped with status 0x%x", (unsigned)status);
		}
	}
}

void daemon_remove(struct daemon *d)
{
	if (d->pid) {
		(void)kill(d->pid, SIGCONT);
		daemon_signal(d, SIGTERM);
	}
	scratch_remove(d->dir);
	if (d->disk[0])
		scratch_remove(d->disk);
	*d = (struct daemon){ 0 };
}

/* All that it says is read; the first of it is returned. */
static void take(FILE *f, char *ret, size_t n)
{
	char rest[4096];

	ret[fread(ret, 1, n - 1, f)] = 0;
	while (fread(rest, 1, sizeof(rest), f) > 0)
		;
}

int shell(const char *command, char *ret, size_t n)
{
	FILE *f = popen(command, "r");
	int status;

	if (!f)
		fail_msg("popen: %s", strerror(errno));
	take(f, ret, n);
	status = pclose(f);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Likewise a command whose words need no shell, which costs as much as the command. */
static int run(char *command, char *ret, size_t n)
{
	char *words[32] = { NULL }, *save = NULL;
	int ends[2], status = -1;
	pid_t child = -1;
	FILE *f;

	words[0] = strtok_r(command, " ", &save);
	for (size_t i = 1; i < 31 && words[i - 1]; i++)
		words[i] = strtok_r(NULL, " ", &save);
	if (pipe2(ends, O_CLOEXEC) == 0)
		child = fork();
	if (child < 0)
		fail_msg("%s: %s", words[0], strerror(errno));
	if (child == 0) {
		(void)dup2(ends[1], STDOUT_FILENO);
		(void)dup2(ends[1], STDERR_FILENO);
		execv(words[0], words);
		_exit(127);
	}
	(void)close(ends[1]);
	f = fdopen(ends[0], "r");
	take(f, ret, n);
	(void)fclose(f);
	(void)TEMP_FAILURE_RETRY(waitpid(child, &status, 0));
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int daemon_ctl(const struct daemon *d, const char *arguments, char *ret, size_t n)
{
	const bool plain = !strpbrk(arguments, "'\"`$\\|&;<>()*?[~#");
	char command[1024];

	snprintf(command, sizeof(command), "%s/kvtierctl --socket %s %s%s", build_dir(), d->socket,
		 arguments, plain ? "" : " 2>&1");
	return plain ? run(command, ret, n) : shell(command, ret, n);
}

const char *daemon_told(const struct daemon *d, const char *arguments)
{
	static char text[65536];

	if (daemon_ctl(d, arguments, text, sizeof(text)) != 0)
		fail_msg("kvtierctl %s: %s", arguments, text);
	return text;
}

/* The numbers of the stats page are read here as kvtierctl reads them: tests look often. */
static const struct stats_row *row_at(const char *path)
{
	const struct stats_row *rows;

	for (size_t i = stats_rows(&rows); i > 0; i--)
		if (strcmp(rows[i - 1].path, path) == 0)
			return &rows[i - 1];
	return NULL;
}

static uint64_t row_value(const struct daemon *d, const struct stats_row *row)
{
	const struct stats *stats;
	char path[80];
	uint64_t value;
	int r;

	(void)snprintf(path, sizeof(path), "%s/stats", d->dir);
	r = stats_map(path, &stats);
	if (r)
		fail_msg("%s: %s", path, strerror(-r));
	value = stats_value(stats, row);
	stats_unmap(stats);
	return value;
}

/* The value at a dotted path of `kvtierctl stats --json`; *ret_root is to be put. */
static struct json_object *stat_at(const struct daemon *d, const char *path,
				   struct json_object **ret_root)
{
	struct json_object *at = json_tokener_parse(daemon_told(d, "stats --json"));
	char copy[128];

	*ret_root = at;
	(void)snprintf(copy, sizeof(copy), "%s", path);
	for (char *save = NULL, *name = strtok_r(copy, ".", &save); name;
	     name = strtok_r(NULL, ".", &save))
		if (!json_object_object_get_ex(at, name, &at))
			fail_msg("stats has no %s", path);
	return at;
}

/* The sum of a column of a list: "disks:read_bytes". */
static uint64_t list_sum(const struct daemon *d, const char *path)
{
	const char *column = strchr(path, ':') + 1;
	struct json_object *root, *rows = NULL, *value;
	uint64_t sum = 0;
	char command[128];

	(void)snprintf(command, sizeof(command), "%.*s --json", (int)(column - path - 1), path);
	root = json_tokener_parse(daemon_told(d, command));
	command[column - path - 1] = '\0';
	(void)json_object_object_get_ex(root, command, &rows);
	for (size_t i = 0; rows && i < json_object_array_length(rows); i++) {
		if (!json_object_object_get_ex(json_object_array_get_idx(rows, i), column, &value))
			fail_msg("%s has no %s", command, column);
		sum += json_object_get_uint64(value);
	}
	json_object_put(root);
	return sum;
}

uint64_t daemon_stat(const struct daemon *d, const char *path)
{
	const struct stats_row *row = row_at(path);

	if (strchr(path, ':'))
		return list_sum(d, path);
	if (!row)
		fail_msg("stats has no %s", path);
	return row_value(d, row);
}

void daemon_word(const struct daemon *d, const char *path, char *ret, size_t n)
{
	const struct stats_row *row = row_at(path);
	struct json_object *root;

	if (row && row->kind == STATS_STATE) {
		(void)stats_state_name(row, row_value(d, row), ret, n);
	} else if (row) {
		(void)snprintf(ret, n, "%llu", (unsigned long long)row_value(d, row));
	} else {
		(void)snprintf(ret, n, "%s", json_object_get_string(stat_at(d, path, &root)));
		json_object_put(root);
	}
}

struct look look_at(const struct daemon *d, int timeout_ms)
{
	return (struct look){ .d = d, .until_ns = now_ns() + (uint64_t)timeout_ms * 1000000u };
}

/* A heartbeat for the looks 1, 2, 4, 8...: nothing that is under way grows much older by it. */
bool look_again(struct look *look)
{
	if (now_ns() > look->until_ns)
		return false;
	look->looks++;
	if (look->d->beat && (look->looks & (look->looks - 1)) == 0)
		look->d->beat();
	else
		nap_ms(10);
	return true;
}

void daemon_stat_becomes(const struct daemon *d, const char *path, uint64_t value, int timeout_ms)
{
	struct look look = look_at(d, timeout_ms);
	uint64_t now;

	while ((now = daemon_stat(d, path)) != value)
		if (!look_again(&look))
			fail_msg("%s is %llu, not %llu, after %d ms", path, (unsigned long long)now,
				 (unsigned long long)value, timeout_ms);
}

void daemon_stat_reaches(const struct daemon *d, const char *path, uint64_t value)
{
	struct look look = look_at(d, PATIENT_MS);
	uint64_t now;

	while ((now = daemon_stat(d, path)) < value)
		if (!look_again(&look))
			fail_msg("%s is %llu, and does not reach %llu", path,
				 (unsigned long long)now, (unsigned long long)value);
}

static int lines_with(const char *path, const char *word)
{
	char line[2048];
	int n = 0;
	FILE *f = fopen(path, "re");

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, word) != NULL;
	if (f)
		(void)fclose(f);
	return n;
}

int daemon_log_lines(const struct daemon *d, const char *word)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/log", d->dir);
	return lines_with(path, word);
}

int daemon_maps(const struct daemon *d, const char *word)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/maps", d->pid);
	return lines_with(path, word);
}

void daemon_maps_become(const struct daemon *d, const char *word, int lines, int timeout_ms)
{
	const uint64_t until = now_ns() + (uint64_t)timeout_ms * 1000000u;
	int now;

	while ((now = daemon_maps(d, word)) != lines) {
		if (now_ns() > until)
			fail_msg("the daemon has %d mappings of %s, not %d, after %d ms", now, word,
				 lines, timeout_ms);
		nap_ms(1);
	}
}

/* A line of /proc/PID/status that begins so; -1: there is none. */
static long status_kib(const struct daemon *d, const char *name)
{
	char path[64], line[256];
	long kib = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", d->pid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, name, strlen(name)) == 0)
			kib = strtol(line + strlen(name), NULL, 10);
	if (f)
		fclose(f);
	return kib;
}

long daemon_rss_kib(const struct daemon *d)
{
	return status_kib(d, "RssAnon:") + status_kib(d, "RssShmem:");
}

long daemon_mapped_kib(const struct daemon *d)
{
	return status_kib(d, "VmSize:");
}

int daemon_fds(const struct daemon *d)
{
	char path[64];
	DIR *dir;
	int n = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", d->pid);
	dir = opendir(path);
	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n - 2;
}

int daemon_fds_settled(const struct daemon *d)
{
	int least = daemon_fds(d);

	for (int ms = 0; ms < 300; ms += 10) {
		const int now = daemon_fds(d);

		if (now < least) {
			least = now;
			ms = 0;
		}
		nap_ms(10);
	}
	return least;
}

void daemon_fds_fall_to(const struct daemon *d, int fds, int timeout_ms)
{
	const uint64_t until = now_ns() + (uint64_t)timeout_ms * 1000000;

	while (daemon_fds(d) > fds) {
		if (now_ns() > until)
			fail_msg("the daemon has %d descriptors, not %d", daemon_fds(d), fds);
		nap_ms(2);
	}
}
