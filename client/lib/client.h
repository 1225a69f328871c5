/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - a client as the library's files see it. This header is not installed, and the daemon
 * does not include it.
 *
 * A call of the public API runs on its caller's thread, as the library starts no thread. A client
 * has two locks. No call waits while it holds one of them, so no call can block another past its
 * deadline:
 *
 *	control  the socket and the session's state, the list of spaces and each one's state
 *	ring     submission, completions, op table, arenas, staging memory (copies included)
 *
 * A thread that takes both takes control first. Both are held to change `link`, `fd`, and a space's
 * `error`, `text`, `handle` and `open`; clearing `open` needs only ring.
 *
 * kvtier_lookup() takes neither lock. It counts itself into `readers` while it uses *link. A link
 * that was taken out of use is unmapped when it has no readers and no `refs`, which count the
 * threads that sleep on it. The keys of a space have a lock of their own. It is a leaf: take no
 * locks while holding it.
 *
 * Files call each other in one direction: client.c > op_calls.c > session.c > client_space.c >
 * client_op.c > staged.c. All but the last know struct kvtier_client. The files of memory/ reach
 * pages that are not shared, and know the engine's CUDA driver. Below them are the files of base/,
 * which know no client.
 *
 * Pages that are still lent over ended connections belong to the process and not to a client. They
 * are in lent.c, whose lock is a leaf below all others.
 *
 * The library believes nothing that the daemon says. It checks sizes, seals, handles, statuses and
 * op ids on private copies. A lie ends the connection (session_lost()), and every op with
 * -ECONNRESET.
 */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "client/kvtier.h"
#include "client/abi/wire.h"
#include "client/lib/base/last_error.h"
#include "client/lib/base/process.h"
#include "client/lib/memory/cuda_order.h"
#include "client_op.h"
#include "session.h"

struct link;

enum {
	CLIENT_SLICE_MS = 20,           /* how often a sleeper looks at the socket, */
	CLIENT_STREAM_SLICE_NS = 50000, /* and at a stream of the engine, if a staged op waits */
	CLIENT_GRACE_MS = 1000,   /* from an op's deadline until kvtier_wait(-1) gives up on it */
	CLIENT_TIMEOUT_MS = 5000, /* kvtier_options.timeout_ms, where it is 0 */
	CLIENT_BACKOFF_MIN_MS = 50,
	CLIENT_BACKOFF_MAX_MS = 1000,
	CLIENT_REOPEN_MS = 1000,    /* until a space that was open before is opened again */
	CLIENT_SPIN_MAX_US = 10000, /* the daemon's advice is cut to this */
	CLIENT_SQ_ENTRIES = 256,    /* what HELLO asks for, as is the next one */
	CLIENT_ARENA_BLOCKS = 32768,
	CLIENT_TIERS = KVTIER_TIER_GPU | KVTIER_TIER_HOST | KVTIER_TIER_NVME | KVTIER_TIER_REDIS,
};

struct kvtier_client {
	/* fixed after kvtier_connect() */
	char path[108];
	bool or_node; /* if no daemon is at path, RUNTIME_DIR_NODE_SOCKET becomes path */
	char name[WIRE_NAME_BYTES];
	uint32_t spin_us; /* 0: as the daemon advises; UINT32_MAX: it never spins */
	uint64_t staging_bytes;
	int epoll_fd, event_fd;
	uint64_t process; /* the one that made the client: process_ours() */

	/* control */
	pthread_mutex_t control;
	enum session_state state;
	uint32_t seq, hello_seq;
	uint64_t since_ns; /* when the state was entered */
	uint32_t backoff_ms;
	uint64_t connections;
	bool let_go; /* the daemon itself ended the connection, so it has given back all pages */
	bool shares_pids; /* the daemon is in this process's PID namespace */
	int error;        /* why the last connection ended, or could not be made */
	char text[256];
	struct kvtier_space *spaces[KVTIER_MAX_SPACES];
	struct cuda_orders orders; /* a GPU each */
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
	uint32_t staged_next;    /* slot that is asked first for a chunk */
	int32_t *statuses;       /* the memory of each op.blocks, touched as it is used */
	uint8_t *staged_copies;  /* that of op.keys and op.pages; NULL before a staged space */
	bool event_used, event_set;
	/* for ops_unlock(): entries were pushed while the daemon slept; the rings broke a rule */
	bool doorbell, lied;

	/* no lock */
	_Atomic(struct link *) link; /* NULL: the daemon is away */
	_Atomic uint32_t readers;
	_Atomic uint64_t next_look_ns; /* session_nudge() */
	_Atomic uint32_t timeout_ms;
	_Atomic uint32_t spin_advised_us;
	_Atomic uint32_t tiers; /* enum kvtier_tier, or'ed; 0: it was never connected */
};

/* Returns 0, or the error with which a call ends at once: -EINVAL if the client is NULL, -EPERM in
 * a process that did not make it. */
static inline int client_check(const struct kvtier_client *c)
{
	if (!c)
		return error_set(-EINVAL, "client is NULL");
	return process_ours(c->process) ? 0 : process_refuse();
}
