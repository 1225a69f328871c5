/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - libkvtier's inside. Not installed; the daemon includes none of it.
 *
 * A call of the public API runs on its caller's thread; the library has no others. A client has two
 * locks. No call waits while it holds one, so no call can block another past its deadline:
 *
 *	control  the socket and the session's state, the list of spaces and each one's state
 *	ring     submission, completions, op table, arenas, staging memory (copies included)
 *
 * Order: control before ring. `link`, `fd` and a space's `error`, `text`, `handle` and `open`
 * change with both held (a close needs only ring to clear `open`).
 *
 * kvtier_lookup() takes neither lock. It counts itself into `readers` around its use of *link. A
 * link that was taken out of use is unmapped when it has neither readers nor `refs` (threads asleep
 * on it). The keys of a space have a lock of their own, a leaf: take no locks while holding it.
 *
 * Nearly all files work on struct kvtier_client, which is here; client.c defines public calls only.
 * Files call each other in one direction: client.c > space.c > submit.c, progress.c > turn.c >
 * session.c > spaces.c; below them chunk.c, op.c and the files that serve these.
 *
 * Pages that are still lent over ended connections belong to the process, not to a client: lent.c.
 * Its lock is a leaf below all of these.
 *
 * The library believes nothing that the daemon says. It checks sizes, seals, handles, statuses and
 * op ids on a private copy. A lie ends the connection (session_lost()), which completes every op
 * with -ECONNRESET.
 */
#ifndef KVTIER_LIB_CLIENT_H
#define KVTIER_LIB_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "client/kvtier.h"
#include "client/wire.h"
#include "cuda_order.h"
#include "op.h"
#include "session.h"

struct link;

enum {
	CLIENT_SLICE_MS = 20, /* a sleeper looks at the socket this often */
	/* and so often at an engine's stream that a staged op waits for */
	CLIENT_STREAM_SLICE_NS = 50000,
	/* so long after an op's deadline kvtier_wait(-1) gives up on the op */
	CLIENT_GRACE_MS = 1000,
	CLIENT_TIMEOUT_MS = 5000, /* kvtier_options.timeout_ms, where it is 0 */
	CLIENT_BACKOFF_MIN_MS = 50,
	CLIENT_BACKOFF_MAX_MS = 1000,
	CLIENT_REOPEN_MS = 1000,    /* until a space that was open before is opened again */
	CLIENT_SPIN_MAX_US = 10000, /* the daemon's advice is cut to this */
	CLIENT_SQ_ENTRIES = 256,    /* wished for in HELLO */
	CLIENT_ARENA_BLOCKS = 32768,
	CLIENT_TIERS = KVTIER_TIER_GPU | KVTIER_TIER_HOST | KVTIER_TIER_NVME | KVTIER_TIER_REDIS,
};

struct kvtier_client {
	/* fixed after kvtier_connect() */
	char path[108];
	char name[WIRE_NAME_BYTES];
	uint32_t spin_us; /* 0: as the daemon advises; UINT32_MAX: none */
	uint64_t staging_bytes;
	uint32_t gpu_mode; /* enum kvtier_gpu_mode; 0: as the daemon advises */
	int epoll_fd, event_fd;
	uint64_t process; /* that made it: process_ours() */

	/* control */
	pthread_mutex_t control;
	enum session_state state;
	uint32_t seq, hello_seq;
	uint64_t since_ns; /* when the state was entered */
	uint32_t backoff_ms;
	uint64_t connections;
	/* the daemon said why it ends the connection: no page is lent any more */
	bool let_go;
	uint32_t gpu_mode_advised;
	bool shares_pids; /* the daemon is in this process's PID namespace */
	int error;        /* why the last connection ended, or could not be made */
	char text[256];
	struct kvtier_space *spaces[KVTIER_MAX_SPACES];
	struct cuda_order *orders[CUDA_ORDERS_MAX]; /* a GPU each; changed with ring held, too */
	struct link *retired;

	/* control and ring */
	int fd;

	/* ring */
	pthread_mutex_t ring;
	struct op ops[KVTIER_MAX_OPS];
	uint16_t free_slots[KVTIER_MAX_OPS];
	uint32_t n_free;
	uint64_t op_serial;
	struct op_list done;
	uint32_t staged_running; /* RUNNING ops that are staged */
	uint32_t staged_turn;    /* slot that is asked first for a chunk */
	int32_t *statuses;       /* lazily touched backing of op.blocks */
	/* of op.keys and op.pages; NULL before the first staged space */
	uint8_t *staged_copies;
	bool event_used, event_set;
	/* an sqe was pushed while the daemon slept: see ops_unlock() */
	bool doorbell;
	bool lied; /* the rings broke the rules: see ops_unlock() */

	/* no lock */
	_Atomic(struct link *) link; /* NULL: the daemon is away */
	_Atomic uint32_t readers;
	_Atomic uint64_t next_look_ns; /* session_nudge() */
	_Atomic uint32_t timeout_ms;
	_Atomic uint32_t spin_advised_us;
	_Atomic uint32_t tiers; /* enum kvtier_tier, or'ed; 0: no daemon has said */
};

#endif
