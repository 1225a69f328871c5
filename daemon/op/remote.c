/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.c - a part of a load or prefetch whose block is in no local tier, or on a device that is out, brings it from
 * Redis. Core thread only.
 *
 *	LOOKUP ──absent──> REMOTE_ROOM ──slot──> REMOTE ~value~> SERVE ~verified~> CHECK ──> KEEP ──> END
 *	   │                ^ │    ^               │  larger than thought               ^ │
 *	   └─prefetch─> PROBE ┘    ├───────────────┘                    its turn ───────┘ └ waits for the block before it
 *	   ^              │ └ not there: END; in a prefetch also for those behind it that have not begun to read
 *	   └──── BEHIND <─┴────────┘ an older part brings it; until that one ends
 *
 * Invariants
 *   M1 what comes from Redis is nobody's but the part's until its header was compared with key, space and geometry (the
 *      tier) and its checksum verified (the job that serves it).
 *   M2 it is kept as a block only under the block before it in its chain, so blocks of an op are kept in order: a part
 *      waits in KEEP for the one before, never for one behind. Without its parent a block is served and not kept.
 *   M3 any trouble of Redis is a miss (-ENOENT), each time it is asked within [redis] timeout_ms: once or twice for the
 *      part itself, and as long BEHIND others that were given up (remote_begin()). The op's own deadline and cancel end
 *      the wait as in fetch.c, whose list the part stands in.
 *   M4 of parts that want the same absent block of the same space at the same time the first leads: it brings it, the
 *      others stand BEHIND it and look again when it ended. If Redis did not have it, or did not answer, they have a
 *      miss, too: asking once more would take as long. If it was given up, the oldest of them leads. If it could not be
 *      kept, or is here and waits in KEEP for what those need not wait for, each brings its own.
 *   M5 a part stands only behind an older one: of an op that began before its own, or further in front in its own. So
 *      a part that waits for a part, which is BEHIND or in KEEP, always waits for an older one: there is no cycle,
 *      and the oldest of all waits for none. What it waits for (room, a read, a job) ends by itself. Where a younger
 *      one leads already, the older one leads, too: the second to come finds the block there, and lets go of its own.
 *   M6 nothing is evicted before the value's header has come and is good: a load takes a slot at once only where one is
 *      free. Else it goes by PROBE first, at the price of a round trip; so keys that nobody has, and values that are no
 *      such block, cost nobody a block. (A user who may GET and not GETRANGE has room made as if the block were there;
 *      that is counted.)
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "daemon/base/container_of.h"
#include "tiers/redis/redis.h"
#include "daemon/config/config.h"
#include "daemon/front/conn.h"
#include "daemon/store/copies.h"
#include "daemon/kvtierd.h"
#include "part.h"
#include "daemon/nvme/writeback.h"

enum { TURN = 16 };	/* parts that go on in one turn of the loop: each looks at the whole list */

/* What is behind it in a prefetch could not be kept. */
static void ends_here(const struct part *part)
{
	struct op *q = part->op;

	if (part->at < q->remote_end)
		q->remote_end = part->at;
}

static enum verdict miss(struct kvtierd *d, struct part *part)
{
	ends_here(part);
	stats_add(&d->stats->v.tiers_redis_miss_blocks_total, 1);
	part->status = -ENOENT;
	part->step = LOAD_END;
	return CONTINUE;
}

bool remote_wanted(const struct kvtierd *d, const struct space *space, const uint8_t key[32])
{
	return d->tiers[TIER_REDIS] && redis_readable(d->tiers[TIER_REDIS], space->seal, key);
}

enum verdict remote_begin(struct kvtierd *d, struct part *part)
{
	const uint64_t patience_ns = (uint64_t)d->config->redis_timeout_ms * 1000000;
	struct op *q = part->op;

	part->lease.block = BLOCK_NONE;
	part->remote_bytes = q->mount->space->shape.image_bytes;
	/* Others gave up before it one by one, perhaps: that must not go on for ever. */
	if (part->missed || (!part->leads && part->behind_ns && loop_now(d->loop) - part->behind_ns >= patience_ns))
		return miss(d, part);
	part->step = q->sqe.op == WIRE_OP_PREFETCH ? LOAD_PROBE : LOAD_REMOTE_ROOM;
	return CONTINUE;
}

/* --- one for many --- */

static bool is_older(const struct part *part, const struct part *than)
{
	const uint64_t a = part->op->tick, b = than->op->tick;

	return a < b || (a == b && part->at < than->at);
}

/* To be kept it waits for no other block of its op. */
static bool has_turn(const struct part *part)
{
	return part->at == 0 || !op_part_runs(part->op, part->at - 1);
}

static struct part *leader_of(const struct ops *all, const struct part *part)
{
	struct part *other = all->fetches;

	/* One that is BEHIND may yet find the block in memory, and then tells nobody. */
	while (other && !(other->leads && other->fetch != FETCH_BEHIND && other->remote_bytes && other->status == 0 &&
			  is_older(other, part) && !(other->waiting_turn && has_turn(part)) &&
			  other->op->mount->space == part->op->mount->space &&
			  memcmp(other->job.identity.key, part->job.identity.key, sizeof part->job.identity.key) == 0))
		other = other->fetch_next;
	return other;
}

/* False: nobody older brings it; the part does. */
static bool stands_behind(struct kvtierd *d, struct part *part)
{
	if (part->leads)
		return false;
	part->leader = leader_of(d->ops, part);
	if (!part->leader) {
		part->leads = true;
		return false;
	}
	if (!part->behind_ns)
		part->behind_ns = loop_now(d->loop);
	fetch_list(d->ops, part, FETCH_BEHIND);
	return true;
}

/* They run later: one of them may end, and wake others, and so on. */
void remote_leave(struct kvtierd *d, struct part *part)
{
	for (struct part *other = part->remote_bytes ? d->ops->fetches : NULL; other; other = other->fetch_next) {
		if (other->fetch != FETCH_BEHIND || other->leader != part)
			continue;
		other->leader = NULL;
		other->missed = part->missed;
		other->leads = part->unkept;
	}
}

/* It waits for its turn: whoever need not wait with it brings the block itself. */
static void let_go(const struct ops *all, const struct part *part)
{
	for (struct part *other = all->fetches; other; other = other->fetch_next) {
		if (other->fetch != FETCH_BEHIND || other->leader != part || !has_turn(other))
			continue;
		other->leader = NULL;
		other->leads = true;
	}
}

static struct part *oldest_left(const struct ops *all)
{
	struct part *ret = NULL;

	for (struct part *part = all->fetches; part; part = part->fetch_next)
		if (part->fetch == FETCH_BEHIND && !part->leader && (!ret || is_older(part, ret)))
			ret = part;
	return ret;
}

/* The oldest first, so that the others can stand behind it. */
bool remote_retry(struct ops *all)
{
	struct part *part = oldest_left(all);
	const bool worked = part != NULL;

	for (int i = 0; i < TURN && part; i++, part = oldest_left(all)) {
		fetch_leave(all->d, part);
		part->step = LOAD_LOOKUP;
		part_run(part);
	}
	return worked;
}

/* --- transfers --- */

static enum verdict submit(struct kvtierd *d, struct part *part, enum xfer_op op, void (*done)(struct xfer *x))
{
	struct xfer *x = &part->xfer;

	memset(x, 0, sizeof *x);
	x->op = op;
	x->identity = &part->job.identity;
	x->geometry = &part->op->mount->space->geometry;
	x->seal = part->op->mount->space->seal;
	x->done = done;
	if (op == XFER_READ) {
		x->home = part->where;
		x->buffer = tier_address(d->tiers[TIER_HOST], &part->where);
		x->bytes = part->remote_bytes;
	}
	if (part->op->early || tier_submit(d->tiers[TIER_REDIS], x))
		return miss(d, part);
	fetch_list(d->ops, part, FETCH_READING);
	return WAIT;
}

static void probed(struct xfer *x)
{
	struct part *part = container_of(x, struct part, xfer);
	struct op *q = part->op;
	const bool refused = x->status == -EACCES || x->status == -EREMOTEIO;

	if (x->status == 0)
		part->remote_bytes = x->bytes;
	if (x->status == -EBADMSG)
		stats_add(&q->d->stats->v.tiers_redis_corrupt_blocks_total, 1);
	fetch_leave(q->d, part);
	part->step = LOAD_REMOTE_ROOM;
	part->asked = true;
	if (part->status < 0) {		/* ended early meanwhile */
		part->step = LOAD_END;
	} else if (refused && q->sqe.op == WIRE_OP_LOAD) {
		stats_add(&q->d->stats->v.tiers_redis_unasked_blocks_total, 1);
	} else if (x->status) {
		/* A user who may not ask, but perhaps read: that goes for this op alone. */
		part->missed = !refused;
		(void)miss(q->d, part);
	}
	part_run(part);
}

enum verdict load_probe(struct kvtierd *d, struct part *part)
{
	if (part->op->sqe.op == WIRE_OP_PREFETCH && part->at > part->op->remote_end)
		return miss(d, part);
	return stands_behind(d, part) ? WAIT : submit(d, part, XFER_PROBE, probed);
}

/* What a prefix ends before is of no use. */
enum verdict load_remote_room(struct kvtierd *d, struct part *part)
{
	struct op *q = part->op;
	int r;

	if (part->status == 0 && q->early)
		part->status = q->early;
	if (part->status || (q->sqe.op == WIRE_OP_PREFETCH && part->at > q->remote_end)) {
		if (part->status == 0)
			return miss(d, part);
		part->step = LOAD_END;
		return CONTINUE;
	}
	if (stands_behind(d, part))
		return WAIT;
	if (!part->asked && !fetch_free_slot(d, part, part->remote_bytes)) {
		part->step = LOAD_PROBE;
		return CONTINUE;
	}
	r = part->placed ? 0 : fetch_slot(d, part, part->remote_bytes);
	if (r == -EAGAIN)
		return WAIT;
	part->step = r ? LOAD_END : LOAD_REMOTE;
	part->status = r;
	return CONTINUE;
}

/* Its codec is the space's, or raw where that could not hold it. What else has a good header was not made by a kvtierd
 * for this space: it may be less exact than the space promises. */
static bool is_of_space(const struct part *part)
{
	const struct image_header *header = (const void *)part->xfer.buffer;

	return header->codec_k == header->codec_v &&
	       (header->codec_k == CODEC_RAW || header->codec_k == part->op->mount->space->codec);
}

static void received(struct xfer *x)
{
	struct part *part = container_of(x, struct part, xfer);
	struct kvtierd *d = part->op->d;
	const bool first = part->remote_bytes == part->op->mount->space->shape.image_bytes;

	if (part->status == 0 && x->status == 0 && is_of_space(part)) {
		part->fetch = FETCH_READ;
		part->step = LOAD_SERVE;
		part_run(part);
		return;
	}
	if (part->status == 0 && x->status == 0)
		remote_corrupt(d, part);
	unplace(d, part);
	fetch_leave(d, part);
	if (part->status == 0 && x->status == -EFBIG && first && x->bytes > part->remote_bytes) {
		part->remote_bytes = x->bytes;		/* stored raw: its codec could not hold it */
		part->asked = true;
		part->step = LOAD_REMOTE_ROOM;
	} else if (part->status == 0) {
		if (x->status == -EBADMSG)
			stats_add(&d->stats->v.tiers_redis_corrupt_blocks_total, 1);
		part->missed = true;
		(void)miss(d, part);
	} else {
		part->step = LOAD_END;
	}
	part_run(part);
}

enum verdict load_remote(struct kvtierd *d, struct part *part)
{
	return submit(d, part, XFER_READ, received);
}

/* --- after it --- */

void remote_corrupt(struct kvtierd *d, struct part *part)
{
	part->missed = true;
	ends_here(part);
	stats_add(&d->stats->v.tiers_redis_corrupt_blocks_total, 1);
	redis_condemn(d->tiers[TIER_REDIS], part->xfer.seal, part->xfer.buffer, part->xfer.bytes);
}

void remote_count(struct kvtierd *d, const struct part *part)
{
	if (part->op->sqe.op == WIRE_OP_LOAD)	/* what a prefetch brings is a hit of memory's, later */
		stats_add(&d->stats->v.tiers_redis_hit_blocks_total, 1);
	stats_add(&d->stats->v.tiers_redis_read_bytes_total, part->xfer.bytes);
}

/* The parent is there, and leased: room in a full table is not made by dropping it. Or there is none. */
static bool take_parent(struct kvtierd *d, const struct part *part, struct lease *ret)
{
	const struct op *q = part->op;
	uint32_t parent;

	if (part->at == 0 && !(q->sqe.flags & WIRE_SQE_HAS_PARENT))
		return true;
	parent = blocks_find(d->blocks, part->before, q->mount->space->number);
	if (parent == BLOCK_NONE)
		return false;
	lease_take(d, ret, parent);
	return true;
}

/* Where it is already, away or not, a copy of it has this codec, and so this size. */
static bool fits(const struct kvtierd *d, const struct part *part)
{
	const struct space *space = part->op->mount->space;
	const uint32_t block = blocks_find(d->blocks, part->job.identity.key, space->number);

	return block == BLOCK_NONE ||
	       blocks_variant(d->blocks, block) == space_variant(space, (enum image_codec)part->job.codec_k);
}

/* 0: it is here now. -ENOENT: without the one before it nobody would find it. -ENOSPC. */
static int keep(struct kvtierd *d, struct part *part)
{
	const struct image_header *header = (const void *)part->job.image;
	struct lease parent = { .block = BLOCK_NONE };
	uint32_t block;
	int r;

	part->job.codec_k = header->codec_k;	/* as verified */
	if (!fits(d, part))
		return 0;
	if (!take_parent(d, part, &parent))
		return -ENOENT;
	r = part_enter(d, part, parent.block, &block);
	lease_drop(d, &parent);
	if (r < 0)
		return r;
	if (r == 0) {
		part->placed = false;
		host_set_owner(d->tiers[TIER_HOST], &part->where, block);
	}
	copies_touch(d, block, part->op->tick);
	writeback_add(d, block);
	return 0;
}

/* Whoever looks it up now finds it in memory. */
static bool is_here(const struct kvtierd *d, const struct part *part)
{
	const uint32_t block = blocks_find(d->blocks, part->job.identity.key, part->op->mount->space->number);

	return block != BLOCK_NONE && blocks_host_slot(d->blocks, block) != BLOCK_NONE;
}

enum verdict load_keep(struct kvtierd *d, struct part *part)
{
	struct op *q = part->op;
	int r = 0;

	if (part->waiting_turn)
		q->n_waiting--;
	part->waiting_turn = part->at > 0 && op_part_runs(q, part->at - 1);
	if (part->waiting_turn) {
		q->n_waiting++;
		let_go(d->ops, part);
		return WAIT;
	}
	if (!q->abandoned) {
		r = keep(d, part);
		part->unkept = !is_here(d, part);
	}
	if (r && q->sqe.op == WIRE_OP_PREFETCH)		/* a load was served all the same */
		part->status = r;
	part->step = LOAD_END;
	return CONTINUE;
}
