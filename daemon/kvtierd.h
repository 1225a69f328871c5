/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierd.h - the whole daemon in one struct, which main.c makes instead of global variables. Core
 * thread only.
 *
 * Rooms that keep and move blocks take no struct kvtierd: move, write, verify and op get struct
 * tables, the loop and all else that they need when they are opened. The whole daemon is for
 * main.c, for conn and admin, which look at all of it, and for up, which brings tiers up. The
 * comments say which room makes a member, and which rooms use it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/table/block.h"
#include "daemon/changes/changes.h"
#include "daemon/config/config.h"
#include "daemon/device/device.h"
#include "daemon/index/index.h"
#include "base/loop.h"
#include "daemon/quota/quota.h"
#include "daemon/table/space.h"
#include "daemon/move/tables.h"
#include "daemon/stats/stats.h"

struct server; /* conn/server.c: the listening socket and the table of connections */
struct ops;    /* op/op.c: ops and the blocks of them in flight */
struct ctl;    /* admin/ctl.c: the admin socket */
struct files;  /* admin/files.c: watches the daemon's own files */
struct reload; /* admin/reload.c: reads the configuration again */
struct purge;  /* move/purge.c: removes all blocks of a tenant */
struct verify; /* verify/verify.c: reads all blocks back */

struct kvtierd {
	/* only admin/reload.c changes it, and only the values that tbl_config.h marks RELOAD */
	const struct config *config;
	struct loop *loop;
	/* the mapped page, which only the core thread writes */
	struct stats *stats;
	struct tables tables;   /* move; also write, verify, up, session, op, conn, admin */
	struct changes changes; /* table, which tells it of blocks; also admin */
	struct quota quota; /* quota; also conn, admin, and as tables.quota all that take tables */
	struct devices devices; /* device; also conn, op, verify */
	struct ops *ops;        /* op; also conn, which submits */
	struct server *server;  /* conn; also admin, which lists the connections */
	struct ctl *ctl;        /* admin */
	struct files *files;    /* admin */
	struct reload *reload;  /* admin. NULL: the daemon is still starting */
	struct purge *purge;    /* move; also admin */
	struct verify *verify;  /* admin. NULL: no check runs */
};
