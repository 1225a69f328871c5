/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper.c - see helper.h: workers whose number grows with the calls that block.
 */
#include "helper.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "container_of.h"
#include "loop.h"

enum {
	KEEP_IDLE = 2,           /* threads; more of them end */
	STACK_BYTES = 256 << 10, /* address space; a few pages are touched */
	/* A third of the share of core and workers, where they want the same CPU: to unmap a dead
	 * client's memory takes tens of milliseconds, and others' ops do not wait for it. With a
	 * higher nice value, openings and stops would wait for seconds where other programs have
	 * all CPUs. */
	NICER = 5,
};

struct helpers {
	struct loop *loop;
	struct workers *workers;
};

static enum work_end run(struct work *work, uint32_t thread)
{
	struct helper_job *job = container_of(work, struct helper_job, work);

	(void)thread;
	job->run(job);
	return WORK_ENDED;
}

static void done(struct work *work)
{
	struct helper_job *job = container_of(work, struct helper_job, work);

	job->done(job);
}

void helper_start(struct helpers *h, struct helper_job *job)
{
	int r;

	loop_assert_core(h->loop);
	job->work = (struct work){ .run = run, .done = done };
	r = workers_submit(h->workers, &job->work);
	assert(r == 0); /* they have no depth */
}

uint32_t helpers_busy(const struct helpers *h)
{
	return workers_lent(h->workers);
}

int helpers_open(struct loop *loop, uint32_t max_threads, struct helpers **ret)
{
	const struct workers_conf conf = {
		.loop = loop,
		.threads = max_threads,
		.keep = KEEP_IDLE,
		.stack_bytes = STACK_BYTES,
		.nicer = NICER,
	};
	struct helpers *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return -ENOMEM;
	h->loop = loop;
	r = workers_open(&conf, &h->workers);
	if (r)
		free(h);
	else
		*ret = h;
	return r;
}

void helpers_close(struct helpers *h)
{
	if (!h)
		return;
	assert(helpers_busy(h) == 0);
	workers_close(h->workers);
	free(h);
}
