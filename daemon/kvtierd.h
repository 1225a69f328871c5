/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierd.h - the daemon's parts in one struct, made in main.c and passed down. No globals
 * elsewhere. Core thread only.
 *
 * The first members are everybody's. Of the others, a comment names the room that owns the member;
 * the rooms behind "also" may use it, and no other room does.
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
#include "daemon/admin/stats.h"

struct server; /* front/server.c: the listening socket and the table of connections */
struct ops;    /* op/op.c: ops and the blocks of them in flight */
struct shares; /* op/share.c: what a client may have of parts and memory */
struct ctl;    /* admin/ctl.c: the admin socket */
struct purge;  /* store/purge.c: many blocks that go */
struct flush;  /* nvme/flush.c: all of it, and synced */
struct scrub;  /* nvme/scrub.c: reads everything back */

struct kvtierd {
	const struct config *config; /* const after start */
	struct loop *loop;
	/* mapped page; plain increments, core thread is the one writer */
	struct stats *stats;
	struct store store;     /* all but device: see store.h */
	struct devices devices; /* device; also front, op, store, nvme */
	struct ops *ops;        /* op; also front, which submits */
	struct shares *shares;  /* op */
	struct server *server;  /* front; also op and admin, which ask who is connected */
	struct ctl *ctl;        /* admin */
	struct purge *purge;    /* store; also admin */
	struct flush *flush;    /* nvme. NULL: no NVMe tier */
	struct scrub *scrub;    /* nvme. NULL: none runs */
};

#endif
