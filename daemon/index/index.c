/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c - the writer's half of the shared table of present keys. client/lib/base/map.c has the
 * reader's half, and the proof that a stable entry is always found. Core thread only.
 *
 * A hash table that grows by linear hashing: one bucket is split per 4.4 inserts, so no insert ever
 * pays for a rehash, no reader notices, and memory follows the number of blocks. Each key may lie
 * in two buckets; when both are full a breadth-first search finds the shortest chain of entries to
 * shift to their other bucket. That keeps buckets 89 % full: an entry takes 64/(5 * .89) + 20/(5 *
 * .89) = 18.9 bytes.
 *
 * Readers rely on
 *   W1 a used slot's fingerprint never changes; a slot is emptied (meta = 0) before it gets another
 *      one, and its meta is written after its fingerprint. So every change of a slot is one 32-bit
 *      store of meta.
 *   W2 an entry that moves is published in its new place before it is removed from the old one.
 *   W3 a bucket's seq moves after an entry was published in it, before anything is removed on
 *      account of it.
 *   W4 a split publishes the new bucket, then the shape, and only then empties the old bucket's
 *      slots.
 * All stores are releases, so "after" holds on every CPU; on x86 they are plain moves.
 */
#include "index.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/reserve.h"

enum {
	MORE_ROOM = 64,      /* buckets split for one insert that found no room */
	SMALL_BUCKETS = 512, /* of a table that is small: 32 KiB */
	/* of slots, before a bucket is split. With a quarter split, the other buckets get twice
	 * their share. Up to 90 no search was seen to fail, but it takes longer */
	LOAD_PERCENT = 89,
	AHEAD = 8,            /* buckets split for one insert while more entries are expected */
	LEVEL_FIRST = 6,      /* 64 buckets: one page */
	LEVEL_LAST = 31,      /* a bucket number fits 32 bits */
	SEARCH_BUCKETS = 512, /* looked at by one search for room, at most */
};

struct index {
	int fd;
	uint64_t bytes; /* of the memfd */
	uint64_t max_entries, max_buckets;
	uint64_t entries, buckets;  /* in use */
	uint64_t expected;          /* entries; the table grows towards them */
	uint64_t crowded;           /* blocks that found no room in their neighbourhood */
	uint64_t shape;             /* private copy of head->shape */
	struct wire_index *head;    /* the mapping */
	struct wire_bucket *bucket; /* in it */
	uint32_t *block;            /* private: block number of bucket b, slot s at 4 * b + s */
};

/* A step on the way from a key's candidate buckets to a free slot. An entry of each step's bucket
 * could move to the bucket of the next step. */
struct search_step {
	uint32_t bucket;
	int16_t from;  /* step that led here, -1: a candidate itself */
	uint16_t slot; /* in that step's bucket: the entry that could come here */
};

/* The candidate bucket of a slot's entry, by one half of its fingerprint. */
static uint64_t candidate_of(const struct wire_bucket *bucket, uint32_t slot, int half,
			     uint64_t shape)
{
	return wire_bucket_of(bucket->print[slot] >> 32 * half & 0xffffffffu, shape);
}
static_assert(LEVEL_LAST < 32, "an entry has 32 bits of each half");

static uint32_t meta_of(uint32_t places, uint32_t generation)
{
	assert(places > 0 && places < 1u << (32 - WIRE_PLACES_SHIFT));
	return places << WIRE_PLACES_SHIFT | (generation & WIRE_GENERATION_MASK);
}

static bool slot_used(const struct wire_bucket *bucket, uint32_t slot)
{
	return bucket->meta[slot] >> WIRE_PLACES_SHIFT != 0;
}

static bool slot_has(const struct wire_bucket *bucket, uint32_t slot, uint64_t print)
{
	return bucket->print[slot] == print && slot_used(bucket, slot);
}

static int slot_free(const struct wire_bucket *bucket)
{
	for (int s = 0; s < WIRE_BUCKET_ENTRIES; s++)
		if (!slot_used(bucket, (uint32_t)s))
			return s;
	return -1;
}

static uint32_t *slot_block(const struct index *index, uint64_t bucket, uint32_t slot)
{
	return &index->block[bucket * WIRE_BUCKET_ENTRIES + slot];
}

/* Publishes an entry in an empty slot (W1, W3). */
static void slot_write(struct index *index, uint64_t b, uint32_t slot, uint64_t print,
		       uint32_t meta, uint32_t block)
{
	struct wire_bucket *bucket = &index->bucket[b];

	assert(!slot_used(bucket, slot));
	__atomic_store_n(&bucket->print[slot], print, __ATOMIC_RELEASE);
	__atomic_store_n(&bucket->meta[slot], meta, __ATOMIC_RELEASE);
	__atomic_store_n(&bucket->seq, bucket->seq + 1, __ATOMIC_RELEASE);
	*slot_block(index, b, slot) = block;
}

static void slot_clear(struct index *index, uint64_t b, uint32_t slot)
{
	assert(slot_used(&index->bucket[b], slot));
	__atomic_store_n(&index->bucket[b].meta[slot], 0, __ATOMIC_RELEASE);
}

static void slot_copy(struct index *index, uint64_t from, uint32_t from_slot, uint64_t to,
		      uint32_t to_slot)
{
	const struct wire_bucket *bucket = &index->bucket[from];

	slot_write(index, to, to_slot, bucket->print[from_slot], bucket->meta[from_slot],
		   *slot_block(index, from, from_slot));
}

static int map_shared(struct index *index)
{
	index->fd = memfd_create("kvtier-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (index->fd < 0)
		return -errno;
	if (ftruncate(index->fd, (off_t)index->bytes) < 0)
		return -errno;
	/* Before FUTURE_WRITE: no other mapping will ever write then. */
	void *base = mmap(NULL, index->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
			  index->fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	index->head = base;
	index->bucket = (struct wire_bucket *)(void *)((uint8_t *)base + WIRE_INDEX_OFFSET);
	if (fcntl(index->fd, F_ADD_SEALS,
		  F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0)
		return -errno;
	return 0;
}

static uint64_t side_bytes(const struct index *index)
{
	return index->max_buckets * WIRE_BUCKET_ENTRIES * sizeof(uint32_t);
}

static int head_fill(struct index *index)
{
	struct wire_index *head = index->head;

	if (getrandom(&head->epoch, sizeof(head->epoch), 0) != sizeof(head->epoch))
		return -EIO;
	head->magic = WIRE_INDEX_MAGIC;
	head->layout = WIRE_INDEX_LAYOUT;
	head->bytes = index->bytes;
	head->max_level = (uint32_t)(63 - __builtin_clzll(index->max_buckets));
	head->shape = index->shape;
	return 0;
}

int index_open(uint64_t max_entries, struct index **ret)
{
	const uint64_t first = 1ull << LEVEL_FIRST;
	struct index *index;
	int r = -EINVAL;

	if (max_entries == 0 || max_entries > 1ull << LEVEL_LAST)
		return -EINVAL;
	index = calloc(1, sizeof(*index));
	if (!index)
		return -ENOMEM;
	index->fd = -1;
	index->max_entries = max_entries;
	/* With some to spare, for small tables that are full: see index_insert(). */
	index->max_buckets =
		max_entries * 100 / (WIRE_BUCKET_ENTRIES * LOAD_PERCENT) + 1 + 4 * MORE_ROOM;
	index->buckets = first;
	index->shape = (uint64_t)LEVEL_FIRST << 32;
	index->bytes = WIRE_INDEX_OFFSET + index->max_buckets * sizeof(struct wire_bucket);
	index->bytes = (index->bytes + 4095) & ~4095ull;
	r = map_shared(index);
	if (r < 0)
		goto fail;
	index->block = reserve(side_bytes(index));
	r = index->block ? head_fill(index) : -ENOMEM;
	if (r < 0)
		goto fail;
	*ret = index;
	return 0;
fail:
	index_close(index);
	return r;
}

void index_close(struct index *index)
{
	if (!index)
		return;
	unreserve(index->block, side_bytes(index));
	if (index->head)
		(void)munmap(index->head, index->bytes);
	if (index->fd >= 0)
		(void)close(index->fd);
	free(index);
}

/* Where the entry of this block lies; false: it has no entry. */
static bool entry_of(const struct index *index, const struct print *print, uint32_t block,
		     uint64_t *ret_bucket, uint32_t *ret_slot)
{
	for (int i = 0; i < 2; i++) {
		const uint64_t b = wire_bucket_of(print->half[i], index->shape);

		for (uint32_t s = 0; s < WIRE_BUCKET_ENTRIES; s++) {
			if (!slot_used(&index->bucket[b], s) || *slot_block(index, b, s) != block)
				continue;
			*ret_bucket = b;
			*ret_slot = s;
			return true;
		}
	}
	return false;
}

void index_soon(const struct index *index, const struct print *print)
{
	for (int i = 0; i < 2; i++) {
		const uint64_t b = wire_bucket_of(print->half[i], index->shape);

		__builtin_prefetch(&index->bucket[b], 1);
		__builtin_prefetch(slot_block(index, b, 0), 1);
	}
}

uint32_t index_find(const struct index *index, const struct print *print, uint32_t *ret,
		    uint32_t max)
{
	const uint64_t b[2] = { wire_bucket_of(print->half[0], index->shape),
				wire_bucket_of(print->half[1], index->shape) };
	const uint64_t wanted = wire_print_of(print->half);
	uint32_t n = 0;

	for (int i = 0; i < (b[0] == b[1] ? 1 : 2); i++) {
		const struct wire_bucket *bucket = &index->bucket[b[i]];

		for (uint32_t s = 0; s < WIRE_BUCKET_ENTRIES && n < max; s++)
			if (slot_has(bucket, s, wanted))
				ret[n++] = *slot_block(index, b[i], s);
	}
	return n;
}

/* Divides the next bucket in turn with a new one behind the last (W4). Never fails: the leaving
 * entries fit. */
static void split(struct index *index)
{
	const uint64_t level = index->shape >> 32, old = index->shape & 0xffffffffu;
	const uint64_t new = (1ull << level) + old;
	const uint64_t shape = old + 1 == 1ull << level ? (level + 1) << 32 : index->shape + 1;
	bool leaves[WIRE_BUCKET_ENTRIES] = { false };
	uint32_t n = 0;

	for (uint32_t s = 0; s < WIRE_BUCKET_ENTRIES; s++) {
		if (!slot_used(&index->bucket[old], s))
			continue;
		const uint64_t b0 = candidate_of(&index->bucket[old], s, 0, shape);
		const uint64_t b1 = candidate_of(&index->bucket[old], s, 1, shape);

		if (b0 == old || b1 == old)
			continue;
		assert(b0 == new || b1 == new);
		leaves[s] = true;
		slot_copy(index, old, s, new, n++);
	}
	index->shape = shape;
	index->buckets++;
	__atomic_store_n(&index->head->shape, shape, __ATOMIC_RELEASE);
	for (uint32_t s = 0; s < WIRE_BUCKET_ENTRIES; s++)
		if (leaves[s])
			slot_clear(index, old, s);
}

static void grow(struct index *index)
{
	const uint64_t next = index->entries + 1,
		       wanted = index->expected > next ? index->expected : next;

	for (int i = 0; i < AHEAD && index->buckets < index->max_buckets &&
			wanted * 100 > index->buckets * WIRE_BUCKET_ENTRIES * LOAD_PERCENT;
	     i++)
		split(index);
}

void index_expect(struct index *index, uint64_t entries)
{
	index->expected = index->entries + entries;
}

/* Adds the buckets that the entries of step `at` could go to instead, and asks for their cache
 * lines, since the search waits for little else; returns the number of steps. */
static uint32_t search_widen(const struct index *index, struct search_step *steps, uint32_t n,
			     uint32_t at)
{
	const uint64_t here = steps[at].bucket;

	for (uint32_t s = 0; s < WIRE_BUCKET_ENTRIES && n < SEARCH_BUCKETS; s++) {
		const struct wire_bucket *bucket = &index->bucket[here];
		const uint64_t b0 = candidate_of(bucket, s, 0, index->shape);
		const uint64_t other = b0 == here ? candidate_of(bucket, s, 1, index->shape) : b0;

		if (other == here)
			continue;
		__builtin_prefetch(&index->bucket[other]);
		steps[n++] = (struct search_step){ .bucket = (uint32_t)other,
						   .from = (int16_t)at,
						   .slot = (uint16_t)s };
	}
	return n;
}

/* Shifts entries along the way, last first, so that each finds its place free; leaves a free slot
 * in a candidate bucket. No bucket is on the way twice: a shorter way would have been found
 * before. */
static void search_shift(struct index *index, const struct search_step *steps, uint32_t at,
			 uint32_t free_slot, uint64_t *ret_bucket, uint32_t *ret_slot)
{
	while (steps[at].from >= 0) {
		const struct search_step *from = &steps[steps[at].from];

		slot_copy(index, from->bucket, steps[at].slot, steps[at].bucket, free_slot);
		slot_clear(index, from->bucket, steps[at].slot);
		free_slot = steps[at].slot;
		at = (uint32_t)steps[at].from;
	}
	*ret_bucket = steps[at].bucket;
	*ret_slot = free_slot;
}

static int make_room(struct index *index, const struct print *print, uint64_t *ret_bucket,
		     uint32_t *ret_slot)
{
	struct search_step steps[SEARCH_BUCKETS];
	uint32_t n = 0;

	for (int i = 0; i < 2; i++)
		steps[n++] = (struct search_step){
			.bucket = (uint32_t)wire_bucket_of(print->half[i], index->shape), .from = -1
		};
	for (uint32_t at = 0; at < n; at++) {
		const int slot = slot_free(&index->bucket[steps[at].bucket]);

		if (slot >= 0) {
			search_shift(index, steps, at, (uint32_t)slot, ret_bucket, ret_slot);
			return 0;
		}
		n = search_widen(index, steps, n, at);
	}
	return -EXFULL;
}

static void count(struct index *index, uint64_t entries)
{
	index->entries = entries;
	__atomic_store_n(&index->head->entries, entries, __ATOMIC_RELAXED);
}

/* More than 40 % of the slots are in use, or the table is small: five keys, each with one bucket
 * for both of its candidates, are not rare there, and only a split of that bucket parts them. */
static bool crowded(const struct index *index)
{
	return index->buckets < SMALL_BUCKETS ||
	       index->entries * 100 > index->buckets * WIRE_BUCKET_ENTRIES * 40;
}

int index_insert(struct index *index, const struct print *print, uint32_t block, uint32_t places,
		 uint32_t generation)
{
	uint64_t bucket;
	uint32_t slot;
	int r;

	if (index->entries >= index->max_entries)
		return -ENOSPC;
	grow(index);
	r = make_room(index, print, &bucket, &slot);
	/* In a small table chance alone can fill a neighbourhood, and more buckets then help.
	 * Against fingerprints made to collide they do not: crowded() ends it before the table
	 * grows far. */
	for (int i = 0; r < 0 && i < MORE_ROOM * (index->buckets < SMALL_BUCKETS ? 4 : 1) &&
			index->buckets < index->max_buckets && crowded(index);
	     i++) {
		split(index);
		r = make_room(index, print, &bucket, &slot);
	}
	if (r < 0) {
		index->crowded++;
		return r;
	}
	slot_write(index, bucket, slot, wire_print_of(print->half), meta_of(places, generation),
		   block);
	count(index, index->entries + 1);
	return 0;
}

void index_update(struct index *index, const struct print *print, uint32_t block, uint32_t places,
		  uint32_t generation)
{
	uint64_t bucket = 0;
	uint32_t slot = 0;
	const bool found = entry_of(index, print, block, &bucket, &slot);

	assert(found);
	__atomic_store_n(&index->bucket[bucket].meta[slot], meta_of(places, generation),
			 __ATOMIC_RELEASE);
}

void index_remove(struct index *index, const struct print *print, uint32_t block)
{
	uint64_t bucket = 0;
	uint32_t slot = 0;
	const bool found = entry_of(index, print, block, &bucket, &slot);

	assert(found);
	slot_clear(index, bucket, slot);
	count(index, index->entries - 1);
}

int index_fd(const struct index *index)
{
	return index->fd;
}

uint64_t index_bytes(const struct index *index)
{
	return index->bytes;
}

struct wire_index *index_head(struct index *index)
{
	return index->head;
}

uint64_t index_entries(const struct index *index)
{
	return index->entries;
}

uint64_t index_crowded(const struct index *index)
{
	return index->crowded;
}

uint64_t index_memory(const struct index *index)
{
	const uint64_t bucket_bytes =
		sizeof(struct wire_bucket) + WIRE_BUCKET_ENTRIES * sizeof(uint32_t);

	return sizeof(*index) + WIRE_INDEX_OFFSET + index->buckets * bucket_bytes;
}
