/* SPDX-License-Identifier: Apache-2.0 */
/* bench_link.c - see bench_link.h. */
#include "bench_link.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

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

static int shape(struct bench_result *ret)
{
	char command[256];

	if (strspn(bench_link_rate(), "0123456789.kmgtbit") != strlen(bench_link_rate())) {
		(void)snprintf(ret->note, sizeof(ret->note),
			       "KVTIER_BENCH_LINK: no rate as 25gbit: %.40s", bench_link_rate());
		return -EINVAL;
	}
	(void)snprintf(
		command, sizeof(command),
		"PATH=$PATH:/usr/sbin:/sbin; ip link set lo up && tc qdisc add dev lo root tbf "
		"rate %s burst 4mb latency 50ms",
		bench_link_rate());
	if (enter() == 0 && system(command) == 0)
		return 0;
	(void)snprintf(ret->note, sizeof(ret->note),
		       "needs a network namespace (root, or user namespaces), ip and tc");
	return -ENOTSUP;
}

int bench_link_run(int (*run)(const struct bench_case *self, struct bench_result *ret),
		   const struct bench_case *self, struct bench_result *ret)
{
	struct answer answer = { .status = -EIO };
	int ends[2];
	pid_t pid;
	ssize_t n;

	(void)fflush(stdout);
	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		answer.status = shape(&answer.result);
		if (answer.status == 0)
			answer.status = run(self, &answer.result);
		_exit(write(ends[1], &answer, sizeof(answer)) == sizeof(answer) ? 0 : 1);
	}
	(void)close(ends[1]);
	/* of one write of less than a page */
	n = pid < 0 ? -1 : read(ends[0], &answer, sizeof(answer));
	(void)close(ends[0]);
	if (pid > 0)
		(void)waitpid(pid, NULL, 0);
	if (n != (ssize_t)sizeof(answer))
		return -EIO;
	*ret = answer.result;
	return answer.status;
}
