/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_daemon.h - kvtierctl_rig.h, and a child that plays the daemon's admin socket by a
 * script.
 */
#ifndef KVTIER_TESTS_KVTIERCTL_DAEMON_H
#define KVTIER_TESTS_KVTIERCTL_DAEMON_H

#include "kvtierctl_rig.h"

struct packet {
	useconds_t after_us;
	const char *text;
};

/* A child that takes one request and answers with these packets, {0} the last; its pid. */
static pid_t play_daemon(const struct packet *script)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	char request[512];
	pid_t child;

	memcpy(address.sun_path, admin, strlen(admin));
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

static int run_with(const char *arguments, const struct packet *script)
{
	const pid_t child = play_daemon(script);
	const int status = run(arguments);

	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(unlink(admin), 0);
	return status;
}

#endif
