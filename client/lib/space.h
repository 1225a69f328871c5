/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.h - one space of a client.
 *
 *  WANTED --OPEN sent--> OPENING --OK--> OPEN --closed, CLOSE sent--> CLOSING --CLOSED--> GONE
 *    ^ connection lost <----'--ERROR--> REFUSED   connection lost while CLOSING --> GONE
 *
 * A space that was open before does not stay REFUSED, as a daemon or process that is short of
 * something refuses, too: the space is WANTED again after a while. A space that is quiesced goes
 * the way of a closed one, but to QUIET; from there kvtier_space_resume() makes it WANTED, a close
 * GONE.
 */
#ifndef KVTIER_LIB_SPACE_H
#define KVTIER_LIB_SPACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvtier.h"
#include "client/wire.h"
#include "cuda.h"

struct cuda_memory;
struct cuda_order;
struct keys;
struct lent_layout;
struct populate;
struct space_layout;
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
	struct staged *staged;     /* NULL: its pages are shared, or it has none */
	struct lent_layout *lent;  /* NULL: staged, or no pages */
	struct populate *populate; /* of shared ones; may be NULL */
	/* KVTIER_CUDA, else NULL: the GPU's memory that the pages lie in, and the events and words
	 * of that GPU */
	struct cuda_memory *cuda;
	struct cuda_order *order;
	struct cuda_busy busy;       /* control */
	struct space_layout *layout; /* the arguments, kept */
	char memory[256];            /* how the pages are reached, for people; control and ring */
	bool has_pages;
	/* control */
	enum space_state state;
	bool close_wanted, quiet_wanted;
	bool orphan; /* nobody waits for its end: freed when GONE */
	/* was open before: space_id and pages must come back the same */
	bool known;
	/* OPENING: the daemon has taken PARTS, and waits for more or for the SPACE_OPEN */
	bool parts_due;
	/* OPEN at the daemon, and not here: closed again, to be opened in another way */
	bool steps_down;
	bool again;          /* WANTED on a new connection, and not opened there yet */
	bool gives_up;       /* OPENING: refused here; the daemon is to give the parts back */
	uint32_t seq;        /* of the request in flight */
	uint64_t refused_ns; /* REFUSED: since when */
	/* sent at each opening; followed by regions and segments */
	struct wire_space_open *message;
	int fds[KVTIER_MAX_REGIONS];
	size_t n_fds;
	uint8_t space_id[32];
	uint64_t pages;
	/* both locks */
	int error; /* why it was refused last; 0 when it was opened since */
	char text[256];
	uint32_t handle;
	_Atomic bool open;
	/* written before `open`; a lookup that sees half of a new key misses */
	_Atomic uint64_t index_key[2];
	_Atomic uint32_t gpus; /* likewise: wire_tiers() */
};

/* As kvtier_space_close(). No lock held. */
int space_close_until(struct kvtier_space *space, uint64_t deadline_ns);
/* in a process that did not make the space: frees memory only */
void space_disown(struct kvtier_space *space);

#endif
