/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbox.c - write-behind to Redis. Contract: outbox.h. Core thread only.
 *
 *  write = through:  a block was stored ──────> queued ──turn──> probed ──not there──> written
 *  write = auto:     it was used again ───────────┤                  │                    │
 *  write = on-evict: a block leaves memory ───> queued with its slot │                    │
 *						   │                  v                    v
 *	  dropped, counted <──no room: the oldest ─┘                over: there, done, or trouble
 *
 *	outbox_drain: each queued block takes this way; at the limit the rest is dropped
 *
 * Invariants
 *   X1 the bytes that are queued and on their way are <= max_inflight_bytes; an entry that does not
 *      fit drops the oldest ones. No op waits for Redis: a store was answered before, an eviction
 *      goes on. A block on its way keeps its memory, by a lease or by its slot: an eighth of memory
 *      at most, or one block.
 *   X2 a block that is queued behind a store is not pinned. At its turn it may be gone, or its
 *      number may be another block's, whose value is just as good. On its way it is leased, so it
 *      is neither evicted nor moved.
 *   X3 an inherited slot belongs to its entry until it is freed here, and has no owner in the host
 *      tier.
 *   X4 the probe (EXISTS) costs a round trip and saves a value: nodes that share a Redis mostly
 *      store the same prefixes. Where a block was not there, the block stored behind it in its
 *      chain is not either, and is written without one: so a block waits for its parent's answer.
 *   X5 a drain ends: each entry is written, or refused at once where its endpoint takes no stores,
 *      or given up after timeout_ms, or the limit comes first. Blocks in memory that were never
 *      queued are not written by a drain: that may be hundreds of GiB.
 */
#include "outbox.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/stats/stats.h"
#include "base/list.h"
#include "daemon/config/config.h"
#include "daemon/move/copies.h"
#include "daemon/move/lesser.h"
#include "daemon/table/space.h"
#include "daemon/move/tables.h"
#include "base/log.h"
#include "base/loop.h"

enum { QUEUE = 1 << 16 };   /* entries; bytes are the bound that matters */
enum { OFFERED = 1 << 16 }; /* a block that falls out of it costs one more EXISTS */

/* write = auto. In simulations of a chat trace over 10 and 100 nodes, the bytes that nodes read
 * from Redis were 2 to 15 percent of the bytes they stored where each conversation has its node,
 * and 17 to 47 where it has none. */
enum { WINDOW_BLOCKS = 256, SHARE_SLOWNESS = 8, FIRST_PERMILLE = 200, THROUGH_PERMILLE = 167 };

struct outbox_entry {
	uint32_t block; /* BLOCK_NONE: inherited */
	uint32_t bytes;
	struct extent slot;            /* inherited */
	uint32_t codec;                /* inherited: xfer.codec */
	const struct redis_seal *seal; /* its tenant's */
};

struct outbox_write {
	struct xfer x; /* first: done() gets back to us */
	struct outbox *outbox;
	struct outbox_entry entry;
	struct lease lease; /* not for an inherited one */
	struct image_identity identity;
	uint8_t *image;
	/* its block, BLOCK_NONE: inherited, and whether Redis did not have it. Kept while it is
	 * free, so that the block's child finds it */
	uint32_t block;
	bool absent;
	struct list link; /* free */
};

struct outbox {
	struct tables *tables;
	struct tier *tier;
	struct loop *loop;
	const struct config *config;
	struct loop_poller poller;
	bool stopping;
	uint32_t head, count, in_flight;
	uint64_t bytes;      /* of entries in the queue and on their way */
	uint64_t sent_bytes; /* on their way */
	/* Bytes read from Redis for 1,000 bytes stored here: a mean in which recent windows of
	 * WINDOW_BLOCKS stored blocks count most; and the window that is under way. */
	int64_t read_permille;
	uint64_t window_blocks, window_bytes, read_before;
	/* a drain: its limit, and whom to tell at its end; NULL: no drain is under way */
	struct loop_timer limit;
	void (*drained)(void *arg);
	void *drained_arg;
	/* in a drain: gone by their turn, or not taken by their endpoint */
	uint32_t unwritten_blocks;
	uint64_t unwritten_bytes;
	struct list free; /* that ended first, first */
	struct outbox_write outgoing[OUTBOX_WRITES];
	struct outbox_entry queue[QUEUE];
	/* block + 1, at its number modulo OFFERED: it was queued when it was used again */
	uint32_t offered[OFFERED];
};

bool outbox_holds(const struct outbox *o, uint32_t block)
{
	for (uint32_t i = 0; o && i < OUTBOX_WRITES; i++)
		if (o->outgoing[i].lease.held && o->outgoing[i].lease.block == block)
			return true;
	return false;
}

uint32_t outbox_waiting(const struct outbox *o)
{
	return o ? o->count + o->in_flight : 0;
}

/* --- the queue --- */

static void tell(const struct outbox *o)
{
	stats_set(&o->tables->stats->v.tiers_redis_queued_blocks, outbox_waiting(o));
	stats_set(&o->tables->stats->v.tiers_redis_queued_bytes, o->bytes);
}

static void forget(struct outbox *o, const struct outbox_entry *entry)
{
	if (entry->block == BLOCK_NONE)
		extents_free(o->tables, &entry->slot);
	o->bytes -= entry->bytes;
	tell(o);
}

static struct outbox_entry dequeue(struct outbox *o)
{
	const struct outbox_entry entry = o->queue[o->head];

	o->head = (o->head + 1) % QUEUE;
	o->count--;
	tell(o);
	return entry;
}

/* A drain says at its end how many these were. */
static void count_unwritten(struct outbox *o, const struct outbox_entry *entry)
{
	if (!o->drained)
		return;
	o->unwritten_blocks++;
	o->unwritten_bytes += entry->bytes;
}

/* Whether the entry gave a slot back. */
static bool drop_oldest(struct outbox *o)
{
	const struct outbox_entry entry = dequeue(o);

	count_unwritten(o, &entry);
	forget(o, &entry);
	stats_add(&o->tables->stats->v.tiers_redis_dropped_blocks_total, 1);
	return entry.block == BLOCK_NONE;
}

static void append(struct outbox *o, const struct outbox_entry *entry)
{
	o->queue[(o->head + o->count++) % QUEUE] = *entry;
	tell(o);
}

/* Afterwards there are at most `max` bytes. -ENOSPC: the entry does not fit beside the entries on
 * their way. Else how many slots were given back. */
static int enqueue(struct outbox *o, const struct outbox_entry *entry, uint64_t max)
{
	int slots = 0;

	if (o->sent_bytes + entry->bytes > max) {
		stats_add(&o->tables->stats->v.tiers_redis_dropped_blocks_total, 1);
		return -ENOSPC;
	}
	while (o->count > 0 && (o->count == QUEUE || o->bytes + entry->bytes > max))
		slots += drop_oldest(o);
	o->bytes += entry->bytes;
	append(o, entry);
	return slots;
}

static uint64_t max_bytes(const struct outbox *o)
{
	return (uint64_t)o->config->redis_max_inflight_bytes;
}

static uint64_t eighth_of_memory(const struct outbox *o)
{
	return tables_host(o->tables)->capacity_bytes / 8;
}

/* NULL: no engine has opened the block's space since the start, so its tenant is not known. */
static const struct redis_seal *seal_of(const struct outbox *o, uint32_t block)
{
	const struct space *space =
		space_at(o->tables->spaces, blocks_space(o->tables->blocks, block));

	return space ? space->seal : NULL;
}

/* The image's codec in Redis (xfer.codec); that of a lesser image is its own. */
static uint32_t codec_of(const struct outbox *o, uint32_t block, const struct extent *where)
{
	const uint32_t codec = lesser_codec(o->tables, block, TIER_REDIS);

	return codec ? codec : lesser_own(o->tables, block, where);
}

static bool is_writable(const struct outbox *o, uint32_t block)
{
	const struct redis_seal *seal = seal_of(o, block);
	const struct tier_name name = { .key = blocks_key(o->tables->blocks, block), .seal = seal };

	if (seal && tier_writable(o->tier, &name))
		return true;
	stats_add(&o->tables->stats->v.tiers_redis_skipped_blocks_total, 1);
	return false;
}

/* A block of so many bytes was stored. */
static void measure(struct outbox *o, uint32_t bytes)
{
	struct stats_values *v = &o->tables->stats->v;
	const uint64_t read = stats_get(&v->tiers_redis_read_bytes_total),
		       came = read - o->read_before;
	int64_t now;

	o->window_bytes += bytes;
	if (++o->window_blocks < WINDOW_BLOCKS)
		return;
	now = came < o->window_bytes ? (int64_t)(came * 1000 / o->window_bytes) : 1000;
	o->read_permille += (now - o->read_permille) / SHARE_SLOWNESS;
	stats_set(&v->tiers_redis_read_percent, (uint64_t)o->read_permille / 10);
	o->read_before = read;
	o->window_blocks = o->window_bytes = 0;
}

/* When blocks are written now: through, on-evict, off. */
static enum config_redis_write when(const struct outbox *o)
{
	const enum config_redis_write write = (enum config_redis_write)o->config->redis_write;

	if (write != CONFIG_REDIS_WRITE_AUTO)
		return write;
	return o->read_permille < THROUGH_PERMILLE ? CONFIG_REDIS_WRITE_ON_EVICT :
						     CONFIG_REDIS_WRITE_THROUGH;
}

static void offer(struct outbox *o, uint32_t block, uint32_t bytes)
{
	const struct outbox_entry entry = { .block = block,
					    .bytes = bytes,
					    .seal = seal_of(o, block) };

	if (bytes && is_writable(o, block))
		(void)enqueue(o, &entry, max_bytes(o));
}

void outbox_add(struct outbox *o, uint32_t block)
{
	const uint32_t bytes = o ? copies_image_bytes(o->tables, block) : 0;

	if (!bytes || o->stopping)
		return;
	o->offered[block % OFFERED] = 0;
	measure(o, bytes);
	if (when(o) == CONFIG_REDIS_WRITE_THROUGH)
		offer(o, block, bytes);
}

void outbox_use(struct outbox *o, uint32_t block)
{
	if (!o || o->stopping || o->config->redis_write != CONFIG_REDIS_WRITE_AUTO ||
	    when(o) != CONFIG_REDIS_WRITE_ON_EVICT || o->offered[block % OFFERED] == block + 1 ||
	    blocks_host_slot(o->tables->blocks, block) == BLOCK_NONE)
		return;
	o->offered[block % OFFERED] = block + 1;
	offer(o, block, copies_image_bytes(o->tables, block));
}

/* At most an eighth of memory, so that stores find room beside the blocks on their way. */
enum mover_heir outbox_inherit(void *outbox, uint32_t block, const struct extent *slot)
{
	struct outbox *o = outbox;
	const uint64_t eighth = eighth_of_memory(o), max = max_bytes(o);
	const uint32_t bytes = extents_bytes(o->tables, slot);
	const struct outbox_entry entry = { .block = BLOCK_NONE,
					    .slot = *slot,
					    .codec = codec_of(o, block, slot),
					    .bytes = bytes,
					    .seal = seal_of(o, block) };
	int r;

	if (o->stopping || when(o) != CONFIG_REDIS_WRITE_ON_EVICT || !is_writable(o, block))
		return MOVER_NO_HEIR;
	r = enqueue(o, &entry, eighth < max ? eighth : max);
	if (r < 0)
		return MOVER_NO_HEIR;
	return r > 0 ? MOVER_SWAPPED : MOVER_TAKEN;
}

bool outbox_give_back(struct outbox *o, uint32_t n)
{
	bool worked = false;

	while (o && n-- > 0 && o->count > 0 && o->queue[o->head].block == BLOCK_NONE)
		worked = drop_oldest(o);
	return worked;
}

void outbox_disinherit(void *outbox)
{
	struct outbox *o = outbox;
	const uint32_t n = o->count;

	for (uint32_t i = 0; i < n; i++) {
		const struct outbox_entry entry = dequeue(o);

		if (entry.block == BLOCK_NONE)
			forget(o, &entry);
		else
			append(o, &entry);
	}
}

/* --- one value --- */

static void end(struct outbox_write *out, uint64_t *count)
{
	struct outbox *o = out->outbox;

	stats_add(count, 1);
	o->sent_bytes -= out->entry.bytes;
	o->in_flight--;
	forget(o, &out->entry);
	lease_drop(o->tables, &out->lease);
	list_add(&o->free, &out->link);
}

/* The block is not in memory any more. */
static void gone(struct outbox_write *out)
{
	count_unwritten(out->outbox, &out->entry);
	end(out, &out->outbox->tables->stats->v.tiers_redis_dropped_blocks_total);
}

/* The block's endpoint takes no stores, or did not answer. */
static void skip(struct outbox_write *out)
{
	struct outbox *o = out->outbox;
	struct stats_values *v = &o->tables->stats->v;
	const bool stop = o->stopping || o->drained;

	count_unwritten(o, &out->entry);
	end(out,
	    stop ? &v->tiers_redis_dropped_blocks_total : &v->tiers_redis_skipped_blocks_total);
}

static void written(struct xfer *x)
{
	struct outbox_write *out = (struct outbox_write *)(void *)x;
	struct stats_values *v = &out->outbox->tables->stats->v;

	if (x->status) {
		skip(out);
		return;
	}
	stats_add(&v->tiers_redis_written_bytes_total, x->bytes);
	stats_add(&v->tiers_redis_requantised_blocks_total, x->codec != 0);
	end(out, &v->tiers_redis_written_blocks_total);
}

static void write_value(struct outbox_write *out)
{
	struct xfer *x = &out->x;

	x->op = XFER_WRITE;
	x->buffer = out->image;
	x->bytes = out->entry.bytes;
	x->codec = out->entry.codec;
	x->done = written;
	if (tier_submit(out->outbox->tier, x))
		skip(out);
}

static void probed(struct xfer *x)
{
	struct outbox_write *out = (struct outbox_write *)(void *)x;
	struct outbox *o = out->outbox;
	struct stats_values *v = &o->tables->stats->v;

	/* purged meanwhile */
	if (out->entry.block != BLOCK_NONE && !blocks_live(o->tables->blocks, out->entry.block))
		gone(out);
	else if (x->status == 0)
		end(out, &v->tiers_redis_present_blocks_total);
	else if (o->stopping ||
		 (x->status != -ENOENT && x->status != -EACCES && x->status != -EREMOTEIO))
		skip(out);
	else { /* not there; or the user may not EXISTS, but perhaps SET */
		out->absent = true;
		write_value(out);
	}
}

/* The write that has, or had, the parent of the queue's first block; NULL: none has. */
static const struct outbox_write *of_parent(const struct outbox *o)
{
	const uint32_t block = o->queue[o->head].block;
	const bool live = block != BLOCK_NONE && blocks_live(o->tables->blocks, block);
	const uint32_t parent = live ? blocks_parent(o->tables->blocks, block) : BLOCK_NONE;

	for (uint32_t i = 0; i < OUTBOX_WRITES && parent != BLOCK_NONE; i++)
		if (o->outgoing[i].block == parent)
			return &o->outgoing[i];
	return NULL;
}

/* The image of the entry, if it is still there; its block is leased then. */
static uint8_t *image_of(struct outbox *o, struct outbox_write *out)
{
	struct tables *tables = o->tables;
	struct extent where = out->entry.slot;
	const uint32_t block = out->entry.block;

	if (block == BLOCK_NONE)
		return extents_address(tables, &where);
	if (!blocks_live(tables->blocks, block) || !extents_in_host(tables, block, &where) ||
	    copies_image_bytes(tables, block) != out->entry.bytes)
		return NULL;
	lease_take(tables, &out->lease, block);
	out->entry.codec = codec_of(o, block, &where);
	return extents_address(tables, &where);
}

static void start(struct outbox *o)
{
	const struct outbox_write *parent = of_parent(o);
	struct outbox_write *out = container_of(o->free.next, struct outbox_write, link);
	const struct image_header *header;
	const bool absent = parent && parent->absent;

	list_remove(&out->link);
	o->in_flight++;
	out->entry = dequeue(o);
	out->block = out->entry.block;
	out->absent = absent;
	o->sent_bytes += out->entry.bytes;
	out->image = image_of(o, out);
	if (!out->image) {
		gone(out);
		return;
	}
	header = (const void *)out->image;
	memcpy(out->identity.key, header->key, sizeof(out->identity.key));
	memcpy(out->identity.space_id, header->space_id, sizeof(out->identity.space_id));
	memset(&out->x, 0, sizeof(out->x));
	out->x.op = XFER_PROBE;
	out->x.behind = true;
	out->x.seal = out->entry.seal;
	out->x.identity = &out->identity;
	out->x.done = probed;
	if (absent)
		write_value(out);
	else if (tier_submit(o->tier, &out->x))
		skip(out);
}

/* --- a stop --- */

void outbox_stop(struct outbox *o)
{
	if (!o)
		return;
	o->stopping = true;
	while (o->count > 0)
		(void)drop_oldest(o);
}

static void end_drain(struct outbox *o, const char *why)
{
	const uint32_t blocks = o->unwritten_blocks + o->count + o->in_flight;
	void (*drained)(void *arg) = o->drained;

	if (blocks > 0)
		log_warning(
			"redis_drain",
			"%s: %u blocks (%llu bytes) that were queued for Redis are not known to be "
			"written",
			why, blocks, (unsigned long long)(o->unwritten_bytes + o->bytes));
	outbox_stop(o);
	loop_timer_unset(o->loop, &o->limit);
	o->drained = NULL;
	drained(o->drained_arg);
}

static void late(struct loop_timer *limit)
{
	end_drain(container_of(limit, struct outbox, limit), "[daemon] stop_us is over");
}

void outbox_drain(struct outbox *o, void (*done)(void *arg), void *arg)
{
	if (!o || (o->count == 0 && o->in_flight == 0)) {
		outbox_stop(o);
		done(arg);
		return;
	}
	log_info("redis_drain",
		 "writing what is queued for Redis, %u blocks (%llu bytes), at most %d ms",
		 o->count + o->in_flight, (unsigned long long)o->bytes,
		 o->config->daemon_stop_us / 1000);
	o->drained = done;
	o->drained_arg = arg;
	o->limit.fire = late;
	loop_timer_set(o->loop, &o->limit,
		       loop_now(o->loop) + (uint64_t)o->config->daemon_stop_us * 1000);
}

/* --- life --- */

static bool may_start(const struct outbox *o)
{
	const struct outbox_write *parent;

	if (o->count == 0 || list_empty(&o->free) || o->stopping)
		return false;
	parent = of_parent(o);
	if (parent && parent->x.in_flight && !parent->absent)
		return false;
	return o->in_flight == 0 || o->sent_bytes + o->queue[o->head].bytes <= eighth_of_memory(o);
}

static bool poll(struct loop_poller *poller)
{
	struct outbox *o = container_of(poller, struct outbox, poller);
	bool worked = false;

	for (uint32_t i = 0; i < OUTBOX_WRITES && may_start(o); i++) {
		start(o);
		worked = true;
	}
	if (o->drained && o->count == 0 && o->in_flight == 0)
		end_drain(o, "they left memory, or an endpoint takes no stores or does not answer");
	return worked;
}

int outbox_open(struct tables *tables, struct tier *tier, struct loop *loop,
		const struct config *config, struct outbox **ret)
{
	struct outbox *o = calloc(1, sizeof(*o));

	if (!o)
		return -ENOMEM;
	o->tables = tables;
	o->tier = tier;
	o->loop = loop;
	o->config = config;
	o->read_permille = FIRST_PERMILLE;
	o->poller.poll = poll;
	list_open(&o->free);
	for (uint32_t i = 0; i < OUTBOX_WRITES; i++) {
		o->outgoing[i].outbox = o;
		o->outgoing[i].block = BLOCK_NONE;
		list_add(&o->free, &o->outgoing[i].link);
	}
	loop_poller_add(o->loop, &o->poller);
	*ret = o;
	return 0;
}

void outbox_close(struct outbox *o)
{
	if (!o)
		return;
	assert(o->in_flight == 0 && o->count == 0 && o->bytes == 0);
	loop_poller_remove(o->loop, &o->poller);
	free(o);
}
