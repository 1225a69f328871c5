/* SPDX-License-Identifier: Apache-2.0 */
/*
 * front.h - the parts of the daemon that all connections share. The server makes one, connections
 * use it. Core thread only.
 */
#ifndef KVTIER_FRONT_H
#define KVTIER_FRONT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/wire.h"
#include "daemon/base/log.h"
#include "refusals.h"

struct helpers;
struct kvtierd;

struct front {
	struct kvtierd *d;
	struct helpers *helpers;
	/* Descriptors can be kept from a socket, and are until HELLO is answered. False: this
	 * kernel is older than 6.16. */
	bool guarded;
	int self; /* pidfd: by it clients see this process end; -1: this kernel makes none */
	struct log_limit log;
	uint64_t out_of_files_ns; /* when last; 0: never */
	struct refusals refusals;
	uint32_t n_alive, n_dying;                 /* connections */
	uint32_t n_beyond;                         /* open spaces beyond shares, conn_share.c */
	_Alignas(8) char buffer[WIRE_MAX_MESSAGE]; /* for one packet at a time */
};

const char *front_tenant(const struct front *front);
void front_count(const struct front *front); /* n_alive has changed */
/* A client could not be served for want of a descriptor: status tells it for ten minutes. */
void front_out_of_files(struct front *front);
void front_conn_dying(struct front *front); /* one more to free once it has drained */

#endif
