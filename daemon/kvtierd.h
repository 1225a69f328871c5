/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierd.h - the daemon's parts in one struct, made in main.c. No globals elsewhere. Core thread
 * only.
 *
 * Rooms that keep and move blocks take no struct kvtierd: store, nvme, redis and op get struct
 * store, the loop and all else that they need when they are opened. The whole daemon is for main.c,
 * for front and admin, which look at all of it, and for the two files that bring a tier up.
 */
#ifndef KVTIER_KVTIERD_H
#define KVTIER_KVTIERD_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/block.h"
#include "daemon/config/config.h"
#include "daemon/device/devices.h"
#include "daemon/store/index.h"
#include "daemon/base/loop.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "daemon/stats/stats.h"

struct server; /* front/server.c: the listening socket and the table of connections */
struct ops;    /* op/ops.c: ops and the blocks of them in flight */
struct ctl;    /* admin/ctl.c: the admin socket */
struct files;  /* admin/files.c: whether its own files are where they were */
struct purge;  /* store/purge.c: many blocks that go */
struct flush;  /* nvme/flush.c: all of it, and synced */
struct scrub;  /* nvme/scrub.c: reads everything back */

struct kvtierd {
	const struct config *config; /* const after start */
	struct loop *loop;
	/* mapped page; plain increments: the core thread alone writes */
	struct stats *stats;
	struct store store;     /* store; also op, nvme, redis, front, shared, admin: see there */
	struct devices devices; /* device; also front, op, nvme */
	struct ops *ops;        /* op; also front, which submits */
	struct server *server;  /* front; also admin, which lists the connections */
	struct ctl *ctl;        /* admin */
	struct files *files;    /* admin */
	struct purge *purge;    /* store; also admin */
	struct flush *flush;    /* nvme. NULL: no NVMe tier */
	struct scrub *scrub;    /* nvme. NULL: none runs */
};

#endif
