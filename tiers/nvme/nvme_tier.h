/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_tier.h - what nvme.c (the tier at work) and nvme_status.c (what operators see of it) share; nobody else includes
 * it. Core thread only.
 */
#ifndef KVTIER_NVME_TIER_H
#define KVTIER_NVME_TIER_H

#include "daemon/base/loop.h"
#include "nvme_disk.h"

/* Something done on several disks, told when the last one ended. */
struct together {
	uint32_t left;		/* disks, and one for whoever starts them, */
	bool started;		/* which ends with the next tick, so that done never runs inside */
	int status;		/* the first that was not 0 */
	void (*done)(void *arg, int status);	/* NULL: none is under way */
	void *arg;
};

struct nvme {
	struct tier base;	/* first */
	struct loop *loop;
	struct nvme_tier_conf conf;
	struct loop_timer timer;
	uint32_t n;
	struct nvme_disk disks[NVME_TIER_PATHS];
	struct together purge, flush;
};

/* Sees through wrappers. */
struct nvme *nvme_of(const struct tier *t);

#endif
