/* SPDX-License-Identifier: Apache-2.0 */
/* closer.c - see closer.h. */
#include "closer.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "container_of.h"
#include "helper.h"

struct closing {
	struct helper_job job;
	struct closer *closer;
	struct closing *next; /* free */
	int fd;
};

struct closer {
	struct helpers *helpers;
	void (*gone)(void *arg);
	void *arg;
	uint32_t room;
	struct closing *free;
	struct closing all[];
};

static void run(struct helper_job *job)
{
	(void)close(container_of(job, struct closing, job)->fd);
}

static void done(struct helper_job *job)
{
	struct closing *closing = container_of(job, struct closing, job);
	struct closer *c = closing->closer;

	closing->next = c->free;
	c->free = closing;
	c->room++;
	c->gone(c->arg);
}

int closer_open(struct helpers *helpers, uint32_t n, void (*gone)(void *arg), void *arg,
		struct closer **ret)
{
	struct closer *c = calloc(1, sizeof(*c) + n * sizeof(c->all[0]));

	if (!c)
		return -ENOMEM;
	c->helpers = helpers;
	c->gone = gone;
	c->arg = arg;
	c->room = n;
	for (uint32_t i = 0; i < n; i++) {
		c->all[i] = (struct closing){
			.job = { .run = run, .done = done },
			.closer = c,
			.next = c->free,
		};
		c->free = &c->all[i];
	}
	*ret = c;
	return 0;
}

void closer_close(struct closer *c)
{
	free(c);
}

uint32_t closer_room(const struct closer *c)
{
	return c->room;
}

void closer_take(struct closer *c, int fd)
{
	struct closing *closing = c->free;

	assert(closing);
	(void)shutdown(fd, SHUT_RDWR);
	c->free = closing->next;
	c->room--;
	closing->fd = fd;
	helper_start(c->helpers, &closing->job);
}
