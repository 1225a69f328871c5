/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_store.h - descriptors that the service manager keeps for the next kvtierd: systemd's file
 * descriptor store, by hand. They are sent to $NOTIFY_SOCKET with a name each, survive the process
 * however it ends, and come back to the next one as $LISTEN_FDS, with their names in
 * $LISTEN_FDNAMES. Core thread only.
 *
 *	fd_store_keep ──> kept ── the next process: fd_store_open ──> given ── fd_store_take ──> its
 *	                   └────────── fd_store_drop: gone               └─ fd_store_settle: gone
 *
 * A descriptor that was taken is still kept, too, until it is dropped by name. Nobody answers: a
 * manager that keeps none (FileDescriptorStoreMax=0) says nothing.
 */
#ifndef KVTIER_FD_STORE_H
#define KVTIER_FD_STORE_H

#include <stdbool.h>
#include <stdint.h>

struct notify;

enum { FD_STORE_MOST = 64, FD_STORE_NAME = 64 };

struct fd_store {
	const struct notify *notify;
	uint32_t n; /* given to this process and not taken yet */
	struct {
		int fd;
		char name[FD_STORE_NAME];
	} given[FD_STORE_MOST];
};

/* Takes over the descriptors of $LISTEN_FDS, if $LISTEN_PID is this process, and clears these
 * variables: once, before anything opens a descriptor. Beyond FD_STORE_MOST, or with a name that is
 * too long: closed. */
void fd_store_open(struct fd_store *store, const struct notify *notify);
/* There is a manager to send to. */
bool fd_store_can_keep(const struct fd_store *store);
/* The first one of this name, the caller's from now on; -1: none. */
int fd_store_take(struct fd_store *store, const char *name);
/* The manager keeps a duplicate, besides any others of this name; fd stays the caller's. 0, or
 * -errno: it was not sent. */
int fd_store_keep(const struct fd_store *store, const char *name, int fd);
/* The manager lets go of all of this name. */
void fd_store_drop(const struct fd_store *store, const char *name);
/* A descriptor that no part took is of no use: it is closed here, and dropped there. */
void fd_store_settle(struct fd_store *store);

#endif
