/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_space.h - the spaces of a client, and their states at the daemon.
 *
 *  WANTED --OPEN sent--> OPENING --OK--> OPEN --closed, CLOSE sent--> CLOSING --CLOSED--> GONE
 *    ^ connection lost <----'--ERROR--> REFUSED   connection lost while CLOSING --> GONE
 *
 * A space that was open before does not stay REFUSED: the daemon or this process may only have been
 * short of something, so the space is WANTED again after a while. A space that is quiesced takes
 * the way of a closed one, but ends in QUIET. From there kvtier_space_resume() makes it WANTED, and
 * a close makes it GONE.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvtier.h"
#include "client/abi/wire.h"
#include "client.h"
#include "client/lib/base/pages.h"
#include "client/lib/memory/cuda.h"

struct cuda_memory;
struct cuda_order;
struct keys;
struct lent_layout;
struct populate;
struct packet;
struct staged;

enum space_state {
	SPACE_WANTED,
	SPACE_OPENING,
	SPACE_OPEN,
	SPACE_REFUSED,
	SPACE_CLOSING,
	SPACE_QUIET,
	SPACE_GONE
};

struct kvtier_space {
	struct kvtier_client *client;
	struct keys *keys;
	struct staged *staged;     /* NULL: its pages are shared, or it has no pages */
	struct lent_layout *lent;  /* NULL: its pages are staged, or it has no pages */
	struct populate *populate; /* of shared host memory; may be NULL */
	/* KVTIER_CUDA, else NULL: the GPU's memory that has the pages, and the words of that GPU */
	struct cuda_memory *cuda;
	struct cuda_order *order;
	struct cuda_busy busy; /* control */
	/* control and ring: how the pages are reached, and the same for people */
	enum kvtier_reach reach;
	char memory[256];
	bool has_pages;
	/* control */
	enum space_state state;
	bool close_wanted, quiet_wanted;
	bool orphan; /* no call waits for its end, so it is freed when it is GONE */
	/* it was open before, so space_id and pages must come back the same */
	bool known;
	/* OPENING: the daemon has taken ALLOCS, and waits for more or for SPACE_OPEN */
	bool allocs_due;
	bool again;    /* WANTED on a new connection, and not opened there yet */
	bool gives_up; /* OPENING: refused here, and the daemon is to give back the allocations */
	uint32_t seq;  /* of the request in flight */
	uint64_t refused_ns; /* REFUSED: since when */
	/* sent at each opening; followed by regions and segments */
	struct wire_space_open *message;
	int fds[KVTIER_MAX_REGIONS];
	size_t n_fds;
	uint8_t space_id[32];
	uint64_t pages;
	/* both locks */
	int error; /* why it was refused last; 0 if it was opened since */
	char text[256];
	_Atomic uint32_t handle;
	_Atomic bool open;
	/* written before `open`; a lookup that sees half of a new key finds no block */
	_Atomic uint64_t index_key[2];
	_Atomic uint32_t gpus; /* written before `open`: see wire_tiers() */
	/* the arguments of its opening; kvtier_space_resume() may change the regions */
	struct space_layout layout;
};

/* Control is held in all of these. */
void space_free(struct kvtier_space *space); /* may be NULL */
/* Makes what the space's pages need according to its layout, and gives it back. */
int space_memory_open(struct kvtier_space *space);
void space_memory_close(struct kvtier_space *space);
/* Takes the space off the client's list. */
void space_unlist(struct kvtier_client *c, const struct kvtier_space *space);
/* Has the space closed at the daemon, whose answers may come late, and then freed. The caller does
 * not touch it again. */
void space_orphan(struct kvtier_client *c, struct kvtier_space *space);
/* Sends the messages that are due. -errno: the connection is lost. */
int spaces_advance(struct kvtier_client *c);
/* The connection was lost. */
void spaces_lost(struct kvtier_client *c);
/* Takes a reply to a request about a space: 0, or -EPROTO with kvtier_last_error(). */
int spaces_reply(struct kvtier_client *c, const struct packet *packet);

/* client_check() for a call on a space. */
static inline int space_check(const struct kvtier_space *space)
{
	return space ? client_check(space->client) : error_set(-EINVAL, "space is NULL");
}
