/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_op.h - the table of a client's ops, from their ids to their results. The caller holds the
 * ring lock, unless the function says otherwise.
 *
 *	FREE --op_new--> RUNNING --op_finish--> DONE --op_take, op_drop--> FREE
 *
 * A RUNNING op has an entry on the wire, or is staged and between two chunks. There are RUNNING ops
 * only while there is a link, as session_lost() finishes all of them. DONE ops wait in `done`, the
 * oldest one first.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client/kvtier.h"
#include "client/abi/wire.h"

struct cuda_order;
struct kvtier_client;
struct kvtier_space;
struct link;

enum op_state { OP_FREE, OP_RUNNING, OP_DONE };

struct op {
	TAILQ_ENTRY(op) done_link;
	struct kvtier_space *space;
	uint64_t id;           /* serial << 8 | slot */
	uint64_t wire_id;      /* of its entry on the wire (not staged: id); 0: it has none */
	uint64_t cancelled_id; /* the wire_id that a CANCEL was sent for */
	uint64_t user;         /* the caller's word: kvtier_result.user */
	uint64_t deadline_ns;
	/* a number for lent_op(), if its connection ended while its pages were lent; else 0 */
	uint64_t orphan;
	uint32_t sq_at; /* where its entry lies, if it is on the wire */
	/* what the caller said: op, priority, session, turn, ttl_s, groups, action, scope */
	struct wire_sqe hints;
	enum op_state state;
	bool staged;
	struct cuda_order *order; /* KVTIER_CUDA: the words of its GPU */
	bool ordered;             /* it waits for the work of a stream */
	bool reached;             /* staged: that work is done, and all groups were given */
	bool gives;               /* a store whose groups are given by a word of `order` */
	uint32_t given;           /* a store: how many groups were given by other means */
	bool cancel;              /* no further chunk is to begin */
	bool has_parent;
	uint32_t n;
	uint32_t first;             /* of its range in the arena, if it is on the wire */
	uint32_t chunk, chunk_done; /* blocks on the wire, and blocks that were before them */
	uint32_t stage_first;
	int32_t status;
	uint32_t ok, prefix;
	uint32_t answers[WIRE_HINT_ANSWERS]; /* of a hint */
	int32_t *blocks;                     /* [KVTIER_MAX_BLOCKS] */
	struct kvtier_key *keys;             /* staged: copies, the parent last */
	uint32_t *pages;
};
TAILQ_HEAD(op_list, op);

int ops_open(struct kvtier_client *c);         /* no lock held. -ENOMEM */
void ops_close(struct kvtier_client *c);       /* no lock held; it may be half open */
int ops_stage_copies(struct kvtier_client *c); /* reserves staged_copies; control held */
void ops_event(struct kvtier_client *c);       /* makes event_fd readable */
/* -EAGAIN: all slots are in use */
int op_new(struct kvtier_client *c, struct kvtier_space *space, struct op **ret);
/* NULL: there never was such an op, or its result was taken */
struct op *op_find(struct kvtier_client *c, uint64_t id);
/* RUNNING -> DONE. rest: the status of blocks that are not done */
void op_finish(struct kvtier_client *c, struct op *op, int32_t rest);
/* To FREE: the op is DONE, or did not begin. */
void op_drop(struct kvtier_client *c, struct op *op);
/* Writes the result into the caller's struct, which has so many bytes and may be NULL, and drops
 * the op. */
void op_take(struct kvtier_client *c, struct op *op, struct kvtier_result *ret, uint32_t size);
/* Whether an op of this kind (enum wire_op) has pages: loads and stores have. */
bool op_has_pages(uint8_t kind);
uint64_t op_next_id(struct kvtier_client *c, const struct op *op);
/* Puts n blocks of an op on the wire. If pages is NULL, theirs are page, page + 1 and so on.
 * -EAGAIN: there is no room. -EPROTO. */
int op_push(struct kvtier_client *c, struct op *op, const struct kvtier_key *keys,
	    const struct kvtier_key *parent, const uint32_t *pages, uint32_t page, uint32_t n);
/* Begins the next chunk of a staged op that has no chunk on the wire, or ends the op. -EAGAIN,
 * -EPROTO. */
int op_stage(struct kvtier_client *c, struct op *op, uint64_t now);
/* Takes completions off the ring, then carries staged ops on. -EPROTO: the daemon lied, and c->lied
 * is set. */
int ops_poll(struct kvtier_client *c);
/* Whether a staged op waits for an engine's stream, which wakes no thread: ops_poll() has to
 * look. */
bool ops_wait_for_stream(const struct kvtier_client *c);
/* The connection ends. The daemon may be using the pages of ops that it has read (before sq_head).
 * These pages are put into the link's orphan, which takes the socket. False: no page was lent, and
 * the socket is still the caller's. */
bool ops_orphan(struct kvtier_client *c, struct link *link, uint32_t sq_head);
/* Ends all RUNNING ops. */
void ops_fail(struct kvtier_client *c, int32_t status);
