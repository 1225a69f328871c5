/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - how an op runs. A request is one op; each of its blocks is a part that walks a step table. Waiting
 * for the device (or, in a store, for the parent block) is the only asynchrony.
 *
 *	store:     ADMIT -> PLACE -> ENCODE ~> COMMIT -> done	   ~> : waits
 *	               `------------^  ^ `-> PLACE (again, raw)
 *	               `-> COMMIT (already present, or failed: its turn still comes)
 *	load:      LOOKUP -> PIN -> SERVE ~> CHECK -> END
 *	                        `-> ROOM -> FETCH ~> SERVE     (away, see fetch.c)
 *	prefetch:  LOOKUP -> PIN -> END
 *	                        `-> ROOM -> FETCH ~> SERVE (verified only) ~> CHECK -> END
 *	either, of a block that is in no local tier: LOOKUP -> ... -> SERVE ~> CHECK -> KEEP ~> END (see remote.c)
 *
 * Invariants
 *   Q1 every block of an op gets exactly one status, and the op exactly one completion, after the last part let
 *      go of its page.
 *   Q2 blocks of a store are committed in chain order, each under its parent: the last committed one is
 *      leased until the next is. Where one fails, those after it fail with -ENOENT: no lookup could find them.
 *   Q3 a block becomes visible only after its image is complete and checksummed, and only for a client that lives
 *      and has not given its pages up.
 *   Q4 key and page are each read once from the arena; the entry was copied by ring_peek().
 *   Q5 parts and requests come from pools made at start; nothing is allocated here.
 */
#include "op.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>

#include "daemon/base/container_of.h"
#include "daemon/front/conn.h"
#include "daemon/store/copies.h"
#include "daemon/kvtierd.h"
#include "part.h"
#include "daemon/redis/outbox.h"
#include "daemon/nvme/writeback.h"

/* --- store --- */

static bool can_be_read(const struct kvtierd *d, uint32_t block)
{
	struct extent where;

	return blocks_nvme(d->blocks, block, &where) && nvme_readable(d->tiers[TIER_NVME], &where);
}

/* A block that is away on a device that is, too, is stored again: the bytes are here and now. */
static bool can_be_loaded(const struct kvtierd *d, uint32_t block)
{
	return blocks_host_slot(d->blocks, block) != BLOCK_NONE || can_be_read(d, block);
}

static enum verdict store_admit(struct kvtierd *d, struct part *part)
{
	struct op *q = part->op;
	uint32_t block;

	part->step = STORE_COMMIT;
	if (part->job.page >= q->mount->pages)
		part->status = -EFAULT;
	else if (q->chain_error)
		part->status = q->chain_error;
	if (part->status)
		return CONTINUE;
	block = blocks_find(d->blocks, part->job.identity.key, q->mount->space->number);
	if (block != BLOCK_NONE && can_be_loaded(d, block)) {
		lease_take(d, &part->lease, block);
		part->status = 1;	/* KVTIER_BLOCK_PRESENT */
		return CONTINUE;
	}
	part->job.codec_k = part->job.codec_v = (uint8_t)q->mount->space->codec;
	part->step = STORE_PLACE;
	return CONTINUE;
}

static enum verdict store_place(struct kvtierd *d, struct part *part)
{
	const struct space *space = part->op->mount->space;
	const bool raw = part->job.codec_k == CODEC_RAW;
	const uint32_t bytes = raw ? space->raw_shape.image_bytes : space->shape.image_bytes;
	const int r = fetch_slot(d, part, bytes);

	if (r == -EAGAIN)
		return WAIT;
	if (r) {
		part->status = r;
		part->step = STORE_COMMIT;
		return CONTINUE;
	}
	part->job.image = tier_address(d->tiers[TIER_HOST], &part->where);
	part->job.image_bytes = bytes;
	part->step = STORE_ENCODE;
	return CONTINUE;
}

void unplace(struct kvtierd *d, struct part *part)
{
	if (part->placed)
		tier_free(d->tiers[part->where.tier], &part->where);
	part->placed = false;
}

/* Workers take turns by process, as a client can have many connections. The kernel says which process connected; it
 * says 0 of one in a namespace that the daemon does not see, and then each connection has turns of its own. */
static uint32_t turn_of(const struct conn *conn)
{
	return conn->pid > 0 ? (uint32_t)conn->pid : conn->id | 1u << 31;
}

/* Whose turn the job takes, and until when. */
static void fill_turn(struct part *part)
{
	part->job.client = turn_of(part->op->conn);
	part->job.deadline_ns = part->op->sqe.deadline_ns;
}

/* The client has not allocated all of the page. */
static int sparse(const struct part *part)
{
	struct op *q = part->op;
	struct kvtierd *d = q->d;

	q->conn->sparse_blocks++;
	stats_add(q->sqe.op == WIRE_OP_STORE ? &d->stats->v.store_sparse_blocks_total :
					       &d->stats->v.load_sparse_blocks_total, 1);
	log_limited(&d->ops->log, loop_now(d->loop), LOG_LEVEL_WARNING, "client %u (pid %ld, \"%s\"): page %llu is not "
		    "allocated, and the daemon does not do that for it: libkvtier touches pages before it lends them, "
		    "another client must, and may punch no hole into them", q->conn->id, (long)q->conn->pid, q->conn->name,
		    (unsigned long long)part->job.page);
	return -EFAULT;
}

/* The device ended the job between two pieces: why, for the client. */
static bool stopped(const struct part *part, int *ret)
{
	const int early = part->op->early;

	if (part->job.status == -ETIMEDOUT)
		*ret = -ETIMEDOUT;
	else if (part->job.status == -ECANCELED)
		*ret = early ? early : -ECONNRESET;	/* cancelled by us, or given up */
	else if (part->job.status == -EFAULT)
		*ret = sparse(part);
	else
		return false;
	return true;
}

static void encode_done(struct device_job *job)
{
	struct part *part = container_of(job, struct part, job);
	struct kvtierd *d = part->op->d;

	part->step = STORE_COMMIT;
	if (job->status == -ERANGE && job->codec_k != CODEC_RAW) {
		unplace(d, part);
		job->codec_k = job->codec_v = CODEC_RAW;
		part->step = STORE_PLACE;
	} else if (job->status) {
		unplace(d, part);
		if (!stopped(part, &part->status))
			part->status = -EIO;
	}
	part_run(part);
}

static enum verdict store_encode(struct kvtierd *d, struct part *part)
{
	int r;

	(void)d;
	part->job.kind = DEVICE_ENCODE;
	part->job.done = encode_done;
	fill_turn(part);
	r = device_submit(part->op->mount->device, &part->job);
	assert(r == 0);		/* there are as many parts as the device takes jobs */
	return WAIT;
}

static void count_stored(struct kvtierd *d, const struct part *part)
{
	struct op *q = part->op;
	struct stats_values *v = &d->stats->v;

	q->conn->stored_blocks++;
	q->mount->space->stored_blocks++;
	stats_add(&v->store_blocks_total, 1);
	stats_add(&v->store_logical_bytes_total, q->mount->space->shape.logical_bytes);
	stats_add(&v->store_image_bytes_total, part->job.image_bytes);
	stats_add(&v->tiers_host_written_bytes_total, part->job.image_bytes);
	if (part->job.codec_k == CODEC_RAW && q->mount->space->codec == CODEC_FP8) {
		stats_add(&v->store_raw_blocks_total, 1);
		q->mount->space->raw_blocks++;
	}
}

/* A full table makes room as a full tier does: somebody old goes. A crowded neighbourhood (-EXFULL) is not that: only
 * the newcomer goes, or keys made to collide would empty the table. */
static int enter(struct kvtierd *d, const struct part *part, uint32_t parent, uint32_t *ret)
{
	const struct space *space = part->op->mount->space;
	const uint32_t variant = space_variant(space, (enum image_codec)part->job.codec_k);
	const uint8_t *key = part->job.identity.key;
	int r = blocks_commit(d->blocks, key, space->number, parent, variant, &part->where, ret);

	if (r == -ENOSPC && copies_make_room(d))
		r = blocks_commit(d->blocks, key, space->number, parent, variant, &part->where, ret);
	return r;
}

/* The key is there already. 1: somebody stored the same block meanwhile; 0: it was away, and now is not. */
static int meet(struct kvtierd *d, struct part *part, uint32_t parent, uint32_t *ret)
{
	const uint32_t block = blocks_find(d->blocks, part->job.identity.key, part->op->mount->space->number);

	assert(block != BLOCK_NONE);
	*ret = block;
	if (blocks_host_slot(d->blocks, block) != BLOCK_NONE) {
		unplace(d, part);
		return 1;
	}
	blocks_promote(d->blocks, block, parent == block ? BLOCK_NONE : parent, &part->where);
	/* Its device is away. If another takes writes, it gets a copy there. */
	if (!can_be_read(d, block) && nvme_writable(d->tiers[TIER_NVME], part->job.identity.key))
		copies_drop_nvme(d, block);
	return 0;
}

int part_enter(struct kvtierd *d, struct part *part, uint32_t parent, uint32_t *ret)
{
	const int r = enter(d, part, parent, ret);

	return r == -EEXIST ? meet(d, part, parent, ret) : r;
}

/* The image is ready and its parent is the tail of the chain. */
static int commit(struct kvtierd *d, struct part *part)
{
	struct op *q = part->op;
	const uint32_t parent = q->tail.held ? q->tail.block : BLOCK_NONE;
	uint32_t block = BLOCK_NONE;
	const int r = part_enter(d, part, parent, &block);

	if (r < 0) {
		unplace(d, part);
		if (r != -EXFULL)
			stats_health_set(d->stats, STATS_HEALTH_INDEX_FULL, true);
		return -ENOSPC;
	}
	if (r == 0) {
		part->placed = false;
		stats_health_set(d->stats, STATS_HEALTH_INDEX_FULL, false);
		host_set_owner(d->tiers[TIER_HOST], &part->where, block);
		count_stored(d, part);
	}
	lease_take(d, &part->lease, block);
	return r;
}

static enum verdict store_commit(struct kvtierd *d, struct part *part)
{
	struct op *q = part->op;

	fetch_leave(d, part);		/* ended early while it waited for room */
	if (q->parts != part) {
		part->waiting_turn = true;
		return WAIT;
	}
	if (part->status >= 0 && q->chain_error)
		part->status = q->chain_error;
	/* Given up: the page may have changed under the encoder, which a stopped daemon learns only now. */
	if (part->status >= 0 && (q->abandoned || ring_given_up(&q->conn->ring)))
		part->status = -ECONNRESET;
	if (part->status == 0)
		part->status = commit(d, part);
	if (part->status < 0) {
		unplace(d, part);
		lease_drop(d, &part->lease);
		if (!q->chain_error)
			q->chain_error = -ENOENT;
		return DONE;
	}
	q->fresh = part->status == 0 ? q->fresh + 1 : 0;
	copies_touch(d, part->lease.block, q->tick);
	writeback_add(d, part->lease.block);
	if (part->status == 0)
		outbox_add(d, part->lease.block);
	lease_drop(d, &q->tail);
	q->tail = part->lease;		/* the lease moves: it now holds the chain's end */
	part->lease.held = false;
	return DONE;
}

/* --- load, prefetch --- */

static enum verdict load_end(struct kvtierd *d, struct part *part)
{
	unplace(d, part);
	fetch_leave(d, part);
	remote_leave(d, part);
	lease_drop(d, &part->lease);
	return DONE;
}

/* Also where a part comes back to that stood behind another. */
static enum verdict load_lookup(struct kvtierd *d, struct part *part)
{
	struct op *q = part->op;
	const uint32_t block = blocks_find(d->blocks, part->job.identity.key, q->mount->space->number);

	part->remote_bytes = 0;
	part->step = LOAD_END;
	if (q->sqe.op == WIRE_OP_LOAD && part->job.page >= q->mount->pages) {
		part->status = -EFAULT;
	} else if ((block == BLOCK_NONE || !can_be_loaded(d, block)) &&
		   remote_wanted(d, q->mount->space, part->job.identity.key)) {
		return remote_begin(d, part);
	} else if (block == BLOCK_NONE) {
		part->status = -ENOENT;
	} else {
		lease_take(d, &part->lease, block);
		part->step = LOAD_PIN;
	}
	return CONTINUE;
}

/* Also where a part comes back to that waited for another's read. */
static enum verdict load_pin(struct kvtierd *d, struct part *part)
{
	struct op *q = part->op;
	const uint32_t block = part->lease.block;

	part->step = LOAD_END;
	if (!blocks_live(d->blocks, block)) {
		part->status = -ENOENT;
		return CONTINUE;
	}
	copies_touch(d, block, q->tick);
	if (blocks_host_slot(d->blocks, block) == BLOCK_NONE) {
		part->step = LOAD_ROOM;
		return CONTINUE;
	}
	writeback_add(d, block);
	if (q->sqe.op == WIRE_OP_LOAD) {
		const int r = host_extent(d->tiers[TIER_HOST], blocks_host_slot(d->blocks, block), &part->where);

		assert(r == 0);		/* pinned: it cannot be stale */
		part->step = LOAD_SERVE;
	}
	return CONTINUE;
}

static void served(struct device_job *job)
{
	struct part *part = container_of(job, struct part, job);

	part->step = LOAD_CHECK;
	part_run(part);
}

static enum verdict load_serve(struct kvtierd *d, struct part *part)
{
	const struct space *space = part->op->mount->space;
	struct tier *tier = d->tiers[TIER_HOST];
	int r;

	part->job.image = tier_address(tier, &part->where);
	assert(part->job.image);
	part->job.image_bytes = host_extent_bytes(tier, &part->where);
	part->job.kind = part->op->sqe.op == WIRE_OP_LOAD ? DEVICE_DECODE : DEVICE_VERIFY;
	part->job.geometry = &space->geometry;
	part->job.verify = part->fetch == FETCH_READ || d->config->host_verify == CONFIG_VERIFY_ALWAYS;
	part->job.done = served;
	fill_turn(part);
	r = device_submit(part->job.kind == DEVICE_VERIFY ? devices_cpu(&d->devices) : part->op->mount->device,
			  &part->job);
	assert(r == 0);
	return WAIT;
}

static void count_loaded(struct kvtierd *d, const struct part *part)
{
	struct op *q = part->op;
	struct stats_values *v = &d->stats->v;
	const struct space *space = q->mount->space;

	q->conn->loaded_blocks++;
	q->mount->space->loaded_blocks++;
	stats_add(&v->load_blocks_total, 1);
	stats_add(&v->load_logical_bytes_total, space->shape.logical_bytes);
	if (part->remote_bytes)
		return;		/* remote_count() */
	if (part->fetch == FETCH_READ) {
		stats_add(&v->tiers_nvme_hit_blocks_total, 1);
		return;
	}
	stats_add(&v->tiers_host_hit_blocks_total, 1);
	stats_add(&v->tiers_host_read_bytes_total, part->job.out_codec_k == CODEC_RAW ? space->raw_shape.image_bytes
										     : space->shape.image_bytes);
}

/* The copy was dropped, or is about to be. */
static void count_corrupt(struct kvtierd *d, const struct part *part)
{
	struct stats_values *v = &d->stats->v;
	const bool nvme = part->fetch == FETCH_READ;

	log_limited(&d->ops->log, loop_now(d->loop), LOG_LEVEL_ERROR, "an image %s failed its checks and was dropped "
		    "(%s %u): a miss, not data; if this repeats, test %s", nvme ? "read from NVMe" : "in the host tier",
		    nvme ? "segment" : "slab", nvme ? part->xfer.where.slot >> 16 : part->where.slot >> 16,
		    nvme ? "the disk" : "the machine's memory");
	stats_add(nvme ? &v->tiers_nvme_corrupt_blocks_total : &v->tiers_host_corrupt_blocks_total, 1);
	stats_health_set(d->stats, nvme ? STATS_HEALTH_NVME_CORRUPT : STATS_HEALTH_CORRUPT, true);
}

static enum verdict load_check(struct kvtierd *d, struct part *part)
{
	const bool load = part->op->sqe.op == WIRE_OP_LOAD, fetched = part->fetch == FETCH_READ;

	part->step = LOAD_END;
	if (part->job.status == 0) {
		if (load)
			count_loaded(d, part);
		if (part->remote_bytes) {
			remote_count(d, part);
			part->step = LOAD_KEEP;
		} else if (fetched) {
			fetch_promote(d, part);
		}
		return CONTINUE;
	}
	if (stopped(part, &part->status))
		return CONTINUE;
	if (part->remote_bytes) {
		remote_corrupt(d, part);
		part->status = -ENOENT;
		return CONTINUE;
	}
	if (fetched && fetch_again(d, part)) {
		part->step = LOAD_FETCH;
		return CONTINUE;
	}
	count_corrupt(d, part);
	if (!fetched && blocks_live(d->blocks, part->lease.block))	/* another load of it may have been quicker */
		copies_condemn(d, part->lease.block);
	part->status = -ENOENT;
	return CONTINUE;
}

/* --- the machine --- */

static enum verdict (*const steps[])(struct kvtierd *d, struct part *part) = {
	[STORE_ADMIT] = store_admit,   [STORE_PLACE] = store_place, [STORE_ENCODE] = store_encode,
	[STORE_COMMIT] = store_commit, [LOAD_LOOKUP] = load_lookup, [LOAD_PIN] = load_pin,
	[LOAD_ROOM] = load_room,       [LOAD_FETCH] = load_fetch,   [LOAD_PROBE] = load_probe,
	[LOAD_REMOTE_ROOM] = load_remote_room, [LOAD_REMOTE] = load_remote, [LOAD_SERVE] = load_serve,
	[LOAD_CHECK] = load_check,     [LOAD_KEEP] = load_keep,     [LOAD_END] = load_end,
};

void part_run(struct part *part)
{
	while (part) {
		struct op *q = part->op;
		const enum verdict v = steps[part->step](q->d, part);

		if (v == WAIT)
			return;
		if (v == CONTINUE)
			continue;
		assert(!part->placed && !part->lease.held);
		part = op_part_done(part);
		if (!part)
			op_finish_if_settled(q);
	}
}
