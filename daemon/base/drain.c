/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drain.c - see drain.h. Core thread only.
 */
#include "drain.h"

#include <assert.h>
#include <stddef.h>

#include "container_of.h"

static void on_limit(struct loop_timer *timer)
{
	struct drain *drain = container_of(timer, struct drain, limit);

	drain->late(drain);
}

void drain_begin(struct drain *drain, struct loop *loop, uint64_t limit_us,
		 void (*late)(struct drain *drain), void (*done)(void *arg), void *arg)
{
	assert(!drain->done);
	*drain = (struct drain){
		.loop = loop, .limit.fire = on_limit, .late = late, .done = done, .arg = arg
	};
	loop_timer_set(loop, &drain->limit, loop_now(loop) + limit_us * 1000);
}

bool drain_is_on(const struct drain *drain)
{
	return drain->done != NULL;
}

void drain_end(struct drain *drain)
{
	void (*done)(void *arg) = drain->done;

	loop_timer_unset(drain->loop, &drain->limit);
	drain->done = NULL;
	done(drain->arg);
}
