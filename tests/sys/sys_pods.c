/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait no=address (LeakSanitizer finds no thread of a PID namespace not its own) */
/*
 * sys_pods.c - goal: kvtierd and an engine in two pods of a node (systemd/kubernetes) need no
 * namespace of the host: memory crosses by the socket, and the daemon sees the engine's end though
 * it has no number for its process. Method: a kvtierd with PID, network, IPC and UTS namespaces of
 * its own; engines with others, and with user and mount namespaces in which they are root and
 * find the socket's directory as /run/kvtier. Skipped where such namespaces cannot be made.
 */
#include <grp.h>
#include <sys/mount.h>

#include "tests/lib/lib.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

enum { NOBODY = 65534, SKIPPED = 77, SPACES = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS };

static struct daemon d;

/* Shared by engine and test. */
static struct {
	_Atomic bool ready, go;
} * seen;

static void daemon_enter(void)
{
	if (unshare(SPACES))
		_exit(SKIPPED);
}

FIXTURE(begin)
{
	const int own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);

	seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(seen, MAP_FAILED);
	daemon_place(&d, false);
	daemon_configure(&d, SMALL_HOST "[socket]\nmode = 0666\n");
	d.enter = daemon_enter;
	if (unshare(CLONE_NEWPID)) {
		print_message("no PID namespace: %s\n", strerror(errno));
		daemon_remove(&d);
		skip();
	}
	daemon_restart(&d);
	assert_int_equal(setns(own, CLONE_NEWPID), 0);
	(void)close(own);
	assert_int_equal(chmod(d.dir, 0711), 0);
	return 0;
}

FIXTURE(end)
{
	daemon_remove(&d);
	(void)munmap(seen, sizeof(*seen));
	return 0;
}

TEST_EACH(begin, end);

/* --- a pod --- */

static bool writes(const char *path, const char *text)
{
	const int fd = open(path, O_WRONLY | O_CLOEXEC);
	const bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		(void)close(fd);
	return ok;
}

/* Root of a user namespace, who is another user outside; the next child is in a PID namespace. */
static bool namespaces_enter(void)
{
	char uids[32], gids[32];

	if (geteuid() == 0 && (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) ||
			       setresuid(NOBODY, NOBODY, NOBODY)))
		return false;
	/* another user's /proc belongs to root until then, and its parent's death is forgotten */
	(void)prctl(PR_SET_DUMPABLE, 1);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)snprintf(uids, sizeof(uids), "0 %u 1", (unsigned)geteuid());
	(void)snprintf(gids, sizeof(gids), "0 %u 1", (unsigned)getegid());
	return unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | SPACES) == 0 &&
	       writes("/proc/self/setgroups", "deny") && writes("/proc/self/uid_map", uids) &&
	       writes("/proc/self/gid_map", gids);
}

/* An empty /run, in which only the socket's directory is, as a volume is mounted. */
static bool volume_mount(void)
{
	return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("none", "/run", "tmpfs", 0, NULL) == 0 && mkdir("/run/kvtier", 0700) == 0 &&
	       mount(d.dir, "/run/kvtier", NULL, MS_BIND, NULL) == 0;
}

/* Goes on in a child, which ends with this process; this process ends as the child does. */
static void go_on_in_child(void)
{
	const pid_t pid = fork();
	int status = 0;

	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		return;
	}
	(void)waitpid(pid, &status, 0);
	_exit(pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

/* Runs the engine as a process of a pod, and returns the pod. */
static pid_t pod_start(void (*engine)(void))
{
	pid_t pid;

	seen->ready = seen->go = false;
	(void)fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid > 0)
		return pid;
	(void)unsetenv("KVTIER_SOCKET");
	if (!namespaces_enter())
		_exit(SKIPPED);
	go_on_in_child(); /* the first process of the pod, which outlives the engine */
	if (!volume_mount())
		_exit(SKIPPED);
	go_on_in_child();
	engine();
	_exit(0);
}

static int pod_end(pid_t pod)
{
	int status;

	assert_int_equal(waitpid(pod, &status, 0), pod);
	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
		print_message("no such namespaces here\n");
		skip();
	}
	return status;
}

/* --- cases --- */

static void stores_and_hits(void)
{
	engine_works(NULL);
}

TEST(an_engine_of_another_pod_stores_and_hits)
{
	assert_int_equal(pod_end(pod_start(stores_and_hits)), 0);
}

static void stays(void)
{
	struct engine e;

	engine_open(&e, NULL, "pod", &tiny_raw, 4);
	atomic_store(&seen->ready, true);
	for (;;)
		(void)pause();
}

/* Waits until its engine is ready. */
static pid_t pod_of(void (*engine)(void))
{
	const pid_t pod = pod_start(engine);
	siginfo_t info = { 0 };

	AWAIT(atomic_load(&seen->ready) ||
	      (waitid(P_PID, (id_t)pod, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid));
	if (!atomic_load(&seen->ready))
		fail_msg("the pod ended with 0x%x", (unsigned)pod_end(pod));
	return pod;
}

/* SO_PEERCRED has no number for a process of a PID namespace that is not below the daemon's, and
 * says who the user is outside of the user namespace. */
TEST(an_operator_sees_an_engine_of_another_pod)
{
	const pid_t pod = pod_of(stays);
	const char *said = daemon_told(&d, "clients --json");
	char words[64];

	(void)snprintf(words, sizeof(words), "\"pid\":0,\"uid\":%u,",
		       geteuid() == 0 ? NOBODY : (unsigned)geteuid());
	if (!strstr(said, words) || !strstr(said, "\"name\":\"pod\"") ||
	    !strstr(said, "\"path\":\"shared\""))
		fail_msg("expected %s in: %s", words, said);
	assert_int_equal(kill(pod, SIGKILL), 0);
	(void)pod_end(pod);
	daemon_stat_becomes(&d, "clients", 0, PATIENT_MS);
}

/* Only a pidfd tells of this engine's end: a fork of it has the socket. */
static void leaves_a_fork(void)
{
	struct engine e;

	if (fork() == 0) {
		engine_open(&e, NULL, "pod", &tiny_raw, 4);
		if (fork() == 0)
			for (;;)
				(void)pause();
		atomic_store(&seen->ready, true);
		AWAIT(atomic_load(&seen->go));
		_exit(0);
	}
	for (;;)
		(void)pause();
}

static bool kernel_has_peer_pidfd(void)
{
	int pair[2], pidfd;
	socklen_t n = sizeof(pidfd);
	bool ret;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	ret = getsockopt(pair[0], SOL_SOCKET, SO_PEERPIDFD, &pidfd, &n) == 0;
	if (ret)
		(void)close(pidfd);
	(void)close(pair[0]);
	(void)close(pair[1]);
	return ret;
}

TEST(the_end_of_an_engine_of_another_pod_is_seen)
{
	pid_t pod;

	if (!kernel_has_peer_pidfd()) {
		print_message("this kernel has no SO_PEERPIDFD\n");
		skip();
	}
	pod = pod_of(leaves_a_fork);
	daemon_stat_becomes(&d, "clients", 1, PATIENT_MS);
	atomic_store(&seen->go, true);
	daemon_stat_becomes(&d, "clients", 0, PATIENT_MS);
	assert_int_equal(kill(pod, SIGKILL), 0);
	(void)pod_end(pod);
}
