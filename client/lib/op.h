/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.h - the op table: from id to result. Everything here is under the ring lock, but ops_open(),
 * ops_close() and ops_stage_copies().
 *
 *	FREE --op_new--> RUNNING --op_finish--> DONE --op_take, op_drop--> FREE
 *
 * A RUNNING op has an sqe on the wire, or is staged and between chunks. There are RUNNING ops only
 * while there is a link: session_lost() finishes them all. DONE ops wait in `done`, oldest first.
 */
#ifndef KVTIER_LIB_OP_H
#define KVTIER_LIB_OP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client/kvtier.h"
#include "client/wire.h"

struct cuda_order;
struct kvtier_client;
struct kvtier_space;
struct link;

enum op_state { OP_FREE, OP_RUNNING, OP_DONE };

struct op {
	TAILQ_ENTRY(op) done_link;
	struct kvtier_space *space;
	uint64_t id;           /* serial << 8 | slot */
	uint64_t wire_id;      /* of its sqe on the wire (not staged: id); 0: none */
	uint64_t cancelled_id; /* wire_id that a CANCEL was sent for */
	uint64_t deadline_ns;
	/* its connection ended while its pages were lent: a number for lent_op(); else 0 */
	uint64_t grave;
	uint32_t sq_at; /* where its sqe lies, if it is on the wire */
	/* op, priority, session, turn, ttl_s, groups, action, scope */
	struct wire_sqe hints;
	enum op_state state;
	bool staged;
	struct cuda_order *order; /* KVTIER_CUDA: the events and words of its GPU */
	bool ordered;             /* the op comes after the work of a stream */
	bool reached;             /* staged: that work is done, and all groups were given */
	bool gives;               /* a store whose groups are given by a word of `order` */
	uint32_t given;           /* a store: groups that were given otherwise */
	bool kernel;              /* engine mode: kernels of ours have its pages */
	bool cancel;              /* start no further chunk */
	bool has_parent;
	uint32_t n;
	uint32_t first;             /* arena range on the wire */
	uint32_t chunk, chunk_done; /* blocks on the wire, blocks before them */
	uint32_t stage_first, stage_n;
	int32_t status;
	uint32_t ok, prefix;
	uint32_t answers[WIRE_HINT_ANSWERS]; /* of a hint */
	int32_t *blocks;                     /* [KVTIER_MAX_BLOCKS] */
	struct kvtier_key *keys;             /* staged: copies, the parent last */
	uint32_t *pages;
};
TAILQ_HEAD(op_list, op);

int ops_open(struct kvtier_client *c);         /* -ENOMEM; no lock */
void ops_close(struct kvtier_client *c);       /* half-open is fine; no lock */
int ops_stage_copies(struct kvtier_client *c); /* reserves staged_copies; control held */
void ops_event(struct kvtier_client *c);       /* makes event_fd readable */
/* -EAGAIN */
int op_new(struct kvtier_client *c, struct kvtier_space *space, struct op **ret);
/* the slot of this id, with any op or none in it */
struct op *op_at(struct kvtier_client *c, uint64_t id);
/* NULL: there is none, or its result was taken */
struct op *op_find(struct kvtier_client *c, uint64_t id);
/* rest: the status of blocks that are not done */
void op_finish(struct kvtier_client *c, struct op *op, int32_t rest);
void op_drop(struct kvtier_client *c, struct op *op); /* DONE or never started -> FREE */
/* takes the result, then drops the op */
void op_take(struct kvtier_client *c, struct op *op, struct kvtier_result *ret);
/* Of this kind (enum wire_op): loads and stores. */
bool op_has_pages(uint8_t kind);
uint64_t op_next_id(struct kvtier_client *c, const struct op *op);
/* the op is on the wire, with pages that the daemon itself touches */
bool op_lends(const struct op *op);
/* The connection ends. Pages of ops that the daemon has read (before sq_head), and may be using, go
 * into the link's grave, which takes the socket. False: no page was lent, and the socket is still
 * the caller's. */
bool ops_bury(struct kvtier_client *c, struct link *link, uint32_t sq_head);
void ops_fail(struct kvtier_client *c, int32_t status);

#endif
