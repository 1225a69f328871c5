/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=calloc,aligned_alloc,pthread_create,eventfd,epoll_ctl,socket,bind,listen,stat */
/* make: wrap=nvme_up,writeback_open,server_open */
/*
 * kvtierd_halfway.c - what makes of kvtierd one whose start fails: from when its NVMe disks are
 * open (or, without NVMe, would be) until it serves, the call that KVTIER_TEST_CALL numbers is
 * refused. When it serves all the same, it ends as by SIGTERM, and says "no such call" if it made
 * fewer calls. Before all that it waits while the file KVTIER_TEST_HOLD is there. For
 * fault_start.c; never installed.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/conn/server.h"
#include "daemon/kvtierd.h"
#include "daemon/up/up.h"
#include "daemon/write/writeback.h"
#include "lib_refuse.h"

enum { ERROR = EMLINK /* no code here makes it up */ };

REFUSABLE(0, NULL, void *, calloc, (size_t n, size_t bytes), (n, bytes))
REFUSABLE(0, NULL, void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes))
REFUSABLE(0, ERROR, int, pthread_create,
	  (pthread_t * ret, const pthread_attr_t *attr, void *(*run)(void *), void *arg),
	  (ret, attr, run, arg))
REFUSABLE(0, -1, int, eventfd, (unsigned value, int flags), (value, flags))
REFUSABLE(0, -1, int, epoll_ctl, (int epoll, int op, int fd, struct epoll_event *event),
	  (epoll, op, fd, event))
REFUSABLE(0, -1, int, socket, (int domain, int type, int protocol), (domain, type, protocol))
REFUSABLE(0, -1, int, bind, (int fd, const struct sockaddr *at, socklen_t n), (fd, at, n))
REFUSABLE(0, -1, int, listen, (int fd, int backlog), (fd, backlog))
REFUSABLE(0, -1, int, stat, (const char *path, struct stat *ret), (path, ret))

static void begin(void)
{
	const char *call = getenv("KVTIER_TEST_CALL");

	refuse(REFUSE_ANY, call ? atoi(call) : REFUSE_FOREVER, 1, ERROR);
}

/* The first call after the disks were opened. */
REAL(int, writeback_open, (const struct writeback_conf *conf, struct writeback **ret))
{
	begin();
	return __real_writeback_open(conf, ret);
}

REAL(int, nvme_up, (struct kvtierd * d, char *text, size_t n))
{
	const char *hold = getenv("KVTIER_TEST_HOLD");

	while (hold && access(hold, F_OK) == 0)
		(void)usleep(1000);
	if (d->config->nvme_bytes == 0)
		begin();
	return __real_nvme_up(d, text, n);
}

REAL(int, server_open, (struct kvtierd * d, struct server **ret, char *text, size_t n))
{
	const int r = __real_server_open(d, ret, text, n);

	if (r == 0 && !refuse_came())
		fprintf(stderr, "no such call\n");
	refuse_nothing();
	if (r == 0)
		(void)kill(getpid(), SIGTERM);
	return r;
}
