/* SPDX-License-Identifier: Apache-2.0 */
/* lib_keeper.c - see lib_keeper.h. */
#include "lib_keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib.h"

enum { MOST = 32, ABOVE = 100 };

static struct {
	pthread_t thread;
	int socket;
	struct sockaddr_un address;
	socklen_t address_bytes;
	pthread_mutex_t lock; /* guards the fields below */
	pthread_cond_t heard;
	uint64_t settled;
	uint32_t n;
	struct {
		int fd;
		char name[128];
	} kept[MOST];
} k = { .lock = PTHREAD_MUTEX_INITIALIZER, .heard = PTHREAD_COND_INITIALIZER };

static bool ends_so(const char *name, const char *end)
{
	const size_t n = strlen(name), m = strlen(end);

	return n >= m && strcmp(name + n - m, end) == 0;
}

/* --- messages; with the lock held --- */

static void keep(const char *name, int fd)
{
	if (k.n == MOST)
		fail_msg("more descriptors than a test keeps");
	(void)snprintf(k.kept[k.n].name, sizeof(k.kept[0].name), "%s", name);
	k.kept[k.n++].fd = fd;
}

static void let_go(const char *name)
{
	for (uint32_t i = 0; i < k.n;) {
		if (strcmp(k.kept[i].name, name) != 0) {
			i++;
			continue;
		}
		(void)close(k.kept[i].fd);
		memmove(&k.kept[i], &k.kept[i + 1], (--k.n - i) * sizeof(k.kept[0]));
	}
}

static void hear(char *text, int fd)
{
	const char *name = "";
	bool store = false, gone = false;
	char *rest = NULL;

	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		store |= strcmp(line, "FDSTORE=1") == 0;
		gone |= strcmp(line, "FDSTOREREMOVE=1") == 0;
		if (strncmp(line, "FDNAME=", 7) == 0)
			name = line + 7;
		if (strcmp(line, "X_TEST_SETTLED=1") == 0) {
			k.settled++;
			(void)pthread_cond_broadcast(&k.heard);
		}
	}
	if (gone)
		let_go(name);
	if (store && fd >= 0)
		keep(name, fd);
	else if (fd >= 0)
		(void)close(fd);
}

static void *listen_all(void *arg)
{
	(void)arg;
	for (;;) {
		union {
			struct cmsghdr head;
			char space[CMSG_SPACE(sizeof(int))];
		} control;
		char text[1024];
		struct iovec to = { text, sizeof(text) - 1 };
		struct msghdr m = { .msg_iov = &to,
				    .msg_iovlen = 1,
				    .msg_control = &control,
				    .msg_controllen = sizeof(control) };
		const ssize_t n = recvmsg(k.socket, &m, MSG_CMSG_CLOEXEC);
		const struct cmsghdr *head = n < 0 ? NULL : CMSG_FIRSTHDR(&m);
		int fd = -1;

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return NULL;
		if (head && head->cmsg_type == SCM_RIGHTS)
			memcpy(&fd, CMSG_DATA(head), sizeof(fd));
		text[n] = '\0';
		(void)pthread_mutex_lock(&k.lock);
		hear(text, fd);
		(void)pthread_mutex_unlock(&k.lock);
	}
}

static void say(const char *text)
{
	const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (sendto(fd, text, strlen(text), 0, (const struct sockaddr *)&k.address,
		   k.address_bytes) < 0)
		fail_msg("the keeper does not hear: %s", strerror(errno));
	(void)close(fd);
}

/* --- life --- */

void keeper_open(void)
{
	char name[64];
	int r;

	k.socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	(void)snprintf(name, sizeof(name), "@kvtier-test-keeper.%d", (int)getpid());
	k.address.sun_family = AF_UNIX;
	memcpy(k.address.sun_path, name, strlen(name));
	k.address.sun_path[0] = '\0';
	k.address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
	if (bind(k.socket, (const struct sockaddr *)&k.address, k.address_bytes))
		fail_msg("bind: %s", strerror(errno));
	(void)setenv("NOTIFY_SOCKET", name, 1);
	r = pthread_create(&k.thread, NULL, listen_all, NULL);
	if (r)
		fail_msg("pthread_create: %s", strerror(r));
}

void keeper_close(void)
{
	keeper_settle();
	(void)shutdown(k.socket, SHUT_RDWR);
	(void)pthread_join(k.thread, NULL);
	(void)close(k.socket);
	(void)unsetenv("NOTIFY_SOCKET");
	while (k.n > 0)
		(void)close(k.kept[--k.n].fd);
}

void keeper_settle(void)
{
	uint64_t before;

	(void)pthread_mutex_lock(&k.lock);
	before = k.settled;
	(void)pthread_mutex_unlock(&k.lock);
	say("X_TEST_SETTLED=1");
	(void)pthread_mutex_lock(&k.lock);
	while (k.settled == before)
		(void)pthread_cond_wait(&k.heard, &k.lock);
	(void)pthread_mutex_unlock(&k.lock);
}

/* Nobody holds the lock: keeper_settle() came before. */
void keeper_enter(void)
{
	char names[MOST * 130] = "", number[16];
	int above[MOST];

	for (uint32_t i = 0; i < k.n; i++) {
		above[i] = fcntl(k.kept[i].fd, F_DUPFD_CLOEXEC, ABOVE);
		(void)strcat(names, i ? ":" : "");
		(void)strcat(names, k.kept[i].name);
	}
	for (uint32_t i = 0; i < k.n; i++)
		(void)dup2(above[i], 3 + (int)i);
	(void)snprintf(number, sizeof(number), "%u", k.n);
	(void)setenv("LISTEN_FDS", number, 1);
	(void)snprintf(number, sizeof(number), "%d", (int)getpid());
	(void)setenv("LISTEN_PID", number, 1);
	(void)setenv("LISTEN_FDNAMES", names, 1);
}

/* --- kept descriptors --- */

/* MOST: there are not so many. With the lock held. */
static uint32_t find(const char *end, uint32_t which)
{
	for (uint32_t i = 0; i < k.n; i++)
		if (ends_so(k.kept[i].name, end) && which-- == 0)
			return i;
	return MOST;
}

uint32_t keeper_count(const char *end)
{
	uint32_t n = 0;

	keeper_settle();
	(void)pthread_mutex_lock(&k.lock);
	while (find(end, n) < MOST)
		n++;
	(void)pthread_mutex_unlock(&k.lock);
	return n;
}

int keeper_fd(const char *end, uint32_t which)
{
	uint32_t i;
	int ret;

	keeper_settle();
	(void)pthread_mutex_lock(&k.lock);
	i = find(end, which);
	ret = i < MOST ? fcntl(k.kept[i].fd, F_DUPFD_CLOEXEC, 0) : -1;
	(void)pthread_mutex_unlock(&k.lock);
	return ret;
}

void keeper_add(const char *name, int fd)
{
	(void)pthread_mutex_lock(&k.lock);
	keep(name, fd);
	(void)pthread_mutex_unlock(&k.lock);
}

const char *keeper_name(const char *end, uint32_t which)
{
	static char name[128];
	uint32_t i;

	(void)pthread_mutex_lock(&k.lock);
	i = find(end, which);
	(void)snprintf(name, sizeof(name), "%s", i < MOST ? k.kept[i].name : "");
	(void)pthread_mutex_unlock(&k.lock);
	return name;
}
