/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_node_socket.c - goal: an engine whose user has no kvtierd finds the node's in /run/kvtier, if
 * it may connect there, and else is told what to do; one that was connected stays with its daemon.
 * Method: in a mount namespace with a /run of its own, where /run/kvtier is a daemon's directory,
 * processes of other users connect to the default. Needs root.
 */
#include <grp.h>
#include <sys/mount.h>

#include "tests/lib/lib.h"
#include "tests/lib/lib_scratch.h"

enum { USER = 20001, GROUP = 20002, TEXT = 512 };

static struct daemon node;
static char home[SCRATCH_BYTES]; /* a runtime directory of USER */

TEST_BEGIN
{
	if (geteuid() == 0 && unshare(CLONE_NEWNS) == 0 &&
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	    mount("run", "/run", "tmpfs", 0, NULL) == 0)
		return;
	printf("skipped: no mount namespace here\n");
	exit(77);
}

FIXTURE(begin)
{
	(void)unsetenv("KVTIER_SOCKET");
	daemon_start(&node, SMALL_HOST "[socket]\nmode = 0660\ngroup = 20002\n");
	assert_int_equal(chmod(node.dir, 0755) || mkdir("/run/kvtier", 0755), 0);
	assert_int_equal(mount(node.dir, "/run/kvtier", NULL, MS_BIND, NULL), 0);
	scratch_make("/tmp", home, sizeof(home));
	return chown(home, USER, USER) || setenv("XDG_RUNTIME_DIR", home, 1);
}

FIXTURE(end)
{
	(void)umount("/run/kvtier");
	(void)rmdir("/run/kvtier");
	daemon_remove(&node);
	scratch_remove(home);
	return 0;
}

TEST_EACH(begin, end);

/* What an engine of USER, in this group too, is told: by kvtier_status() when it is connected. */
static const char *told(gid_t group)
{
	static char text[TEXT];
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		struct kvtier_client *client;

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (setgroups(1, &group) || setgid(USER) || setuid(USER))
			_exit(1);
		if (kvtier_connect(NULL, &client))
			(void)snprintf(text, TEXT, "%s", kvtier_last_error());
		else
			(void)kvtier_status(client, text, TEXT);
		_exit(write(ends[1], text, TEXT) != TEXT);
	}
	(void)close(ends[1]);
	assert_int_equal(read(ends[0], text, TEXT), TEXT);
	(void)close(ends[0]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	return text;
}

TEST(a_member_of_the_group_is_served)
{
	assert_string_equal(told(GROUP), "connected to /run/kvtier/kvtier.sock");
	(void)unsetenv("XDG_RUNTIME_DIR");
	assert_string_equal(told(GROUP), "connected to /run/kvtier/kvtier.sock");
}

TEST(another_user_is_told_how_to_become_one)
{
	assert_non_null(strstr(told(USER), "cannot connect to /run/kvtier/kvtier.sock: Permission "
					   "denied; `usermod -aG kvtier USER`"));
}

TEST(a_socket_that_a_dead_kvtierd_left_does_not_hide_it)
{
	char path[SCRATCH_BYTES + 8];
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	(void)snprintf(path, sizeof(path), "%s/kvtier", home);
	assert_int_equal(mkdir(path, 0755), 0);
	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/kvtier.sock", path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(chmod(address.sun_path, 0666) || close(fd), 0);
	assert_string_equal(told(GROUP), "connected to /run/kvtier/kvtier.sock");
}

TEST(where_there_is_no_daemon_at_all_both_places_are_named)
{
	const char *text;

	assert_int_equal(umount("/run/kvtier"), 0);
	text = told(GROUP);
	assert_non_null(strstr(text, home));
	assert_non_null(strstr(text, "no daemon is at /run/kvtier/kvtier.sock, either"));
	(void)unsetenv("XDG_RUNTIME_DIR");
	text = told(GROUP);
	assert_non_null(strstr(text, "there is no /tmp/kvtier-20001 and no /run/kvtier/"));
}

TEST(kvtierctl_finds_it_too)
{
	char command[640], text[TEXT];

	(void)snprintf(command, sizeof(command),
		       "setpriv --reuid %d --regid %d --clear-groups %s/kvtierctl stats 2>&1", USER,
		       USER, build_dir());
	assert_int_not_equal(shell(command, text, sizeof(text)), 0);
	assert_non_null(strstr(text, "/run/kvtier/stats"));
}

/* Its keys are salted by the daemon that it knows. */
TEST(a_client_that_was_connected_stays_with_its_daemon)
{
	struct kvtier_client *client = NULL;
	struct daemon own;
	char text[TEXT], path[128];
	int end;

	daemon_start(&own, SMALL_HOST "[socket]\nmode = 0666\n");
	(void)snprintf(path, sizeof(path), "%s/kvtier", home);
	assert_int_equal(chmod(own.dir, 0755) || symlink(own.dir, path), 0);
	if (seteuid(USER) == 0)
		(void)kvtier_connect(NULL, &client);
	daemon_signal(&own, SIGKILL);
	AWAIT(kvtier_status(client, text, TEXT) == 0 && strstr(text, "cannot connect"));
	end = strncmp(text, "not connected: cannot connect to ", 33) ||
	      strncmp(text + 33, home, strlen(home));
	kvtier_close(client);
	assert_int_equal(seteuid(0), 0);
	assert_int_equal(end, 0);
	daemon_remove(&own);
}
