/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_link.h"

#include <sched.h>

struct answer {
	int status;
	struct bench_result result;
};

const char *bench_link_rate(void)
{
	const char *given = getenv("KVTIER_BENCH_LINK");

	return given && given[0] ? given : "10gbit";
}

static int put(const char *path, const char *text)
{
	const int fd = open(path, O_WRONLY | O_CLOEXEC);
	const ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		(void)close(fd);
	return n == (ssize_t)strlen(text) ? 0 : -1;
}

/* As root, or as root of a user namespace of one's own. */
static int enter(void)
{
	char users[64], groups[64];

	(void)snprintf(users, sizeof(users), "0 %u 1", (unsigned)geteuid());
	(void)snprintf(groups, sizeof(groups), "0 %u 1", (unsigned)getegid());
	if (unshare(CLONE_NEWNET) == 0)
		return 0;
	if (unshare(CLONE_NEWUSER | CLONE_NEWNET))
		return -1;
	return put("/proc/self/setgroups", "deny") || put("/proc/self/uid_map", users) ||
			       put("/proc/self/gid_map", groups) ?
		       -1 :
		       0;
}

static void shape(void)
{
	char command[256];

	if (strspn(bench_link_rate(), "0123456789.kmgtbit") != strlen(bench_link_rate()))
		bench_fail(-EINVAL, "KVTIER_BENCH_LINK: no rate as 25gbit: %.40s",
			   bench_link_rate());
	(void)snprintf(
		command, sizeof(command),
		"PATH=$PATH:/usr/sbin:/sbin; ip link set lo up && tc qdisc add dev lo root tbf "
		"rate %s burst 4mb latency 50ms",
		bench_link_rate());
	if (enter() || system(command))
		bench_fail(-ENOTSUP,
			   "needs a network namespace (root, or user namespaces), ip and tc");
}

static bench_run_fn *run_shaped;

static void shape_and_run(const struct bench_case *self, struct bench_result *ret)
{
	shape();
	run_shaped(self, ret);
}

void bench_link_run(bench_run_fn *run, const struct bench_case *self, struct bench_result *ret)
{
	struct answer answer = { .status = -EIO };
	int ends[2];
	pid_t pid;
	ssize_t n;

	(void)fflush(stdout);
	if (pipe2(ends, O_CLOEXEC))
		bench_must(-errno);
	pid = fork();
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		run_shaped = run;
		answer.status = bench_run(shape_and_run, self, &answer.result);
		_exit(write(ends[1], &answer, sizeof(answer)) == sizeof(answer) ? 0 : 1);
	}
	(void)close(ends[1]);
	/* of one write of less than a page */
	n = pid < 0 ? -1 : read(ends[0], &answer, sizeof(answer));
	(void)close(ends[0]);
	if (pid > 0)
		(void)waitpid(pid, NULL, 0);
	if (n != (ssize_t)sizeof(answer))
		bench_must(-EIO);
	*ret = answer.result;
	if (answer.status)
		bench_fail(answer.status, "%s", answer.result.note);
}
