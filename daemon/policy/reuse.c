/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse.c - see reuse.h. A sampled key has a position: uses take positions in their order, and a
 * Fenwick tree has the bytes at each, so the bytes behind a position are O(log n). When positions
 * run out, compact() gives them out anew, from the oldest key on.
 */
#include "reuse.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	POSITIONS = REUSE_SAMPLES + REUSE_SAMPLES / 2,
	SLOTS = REUSE_SAMPLES + REUSE_SAMPLES / 2, /* of the hash table: linear probing */
	HALVING_S = 12 * 3600,
	DEEP = 5,     /* times the memory: reuse_tick() */
	SHALLOW = 64, /* keys in this part of it are sampled alike: most uses cost a hash only */
	ROOM = REUSE_SAMPLES / 8, /* that a full sample makes */
};

struct sample {
	uint64_t hash;
	uint32_t bytes;
	uint32_t used_ms, entered_ms; /* since the start, mod 2^32: 49 days */
	uint16_t position;            /* from 1 */
	uint8_t shift;                /* it stands for 2^shift keys */
	bool in_memory;
};

struct reuse {
	uint64_t seed, start_ns, now_ns, halved_ns;
	uint64_t deep_bytes; /* reuse_tick() */
	struct reuse_times times;
	uint64_t near_bytes;        /* up to this depth all keys are sampled: shift_at() */
	uint32_t shift, deep_shift; /* of the shallowest and the deepest keys */
	uint32_t n, last_position;
	uint64_t bytes; /* of all samples, for all keys */
	/* The uses of all keys, and what those of sampled keys say that these are: in all; of keys
	 * that were not known; and the others by how much memory holds them, in KiB. */
	uint64_t uses, sampled_uses, first_uses;
	struct histogram depth;
	struct sample sample[REUSE_SAMPLES];
	uint16_t slot[SLOTS]; /* the number of a sample + 1 */
	uint64_t tree[POSITIONS + 1];
};
static_assert(sizeof(struct reuse) <= 200000, "what reuse.h promises");
static_assert(POSITIONS <= UINT16_MAX, "sample.position");

int reuse_open(uint64_t seed, const struct reuse_times *times, uint64_t now_ns, struct reuse **ret)
{
	struct reuse *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->seed = seed;
	r->times = *times;
	r->near_bytes = UINT64_MAX;
	r->start_ns = r->now_ns = r->halved_ns = now_ns;
	*ret = r;
	return 0;
}

void reuse_now(struct reuse *r, uint64_t now_ns)
{
	r->now_ns = now_ns;
}

void reuse_close(struct reuse *r)
{
	free(r);
}

static uint32_t now_ms(const struct reuse *r)
{
	return (uint32_t)((r->now_ns - r->start_ns) / 1000000);
}

/* Any eight bytes of a SHA-256, as keys are, would do; a client may send other keys. */
static uint64_t hash_of(const struct reuse *r, const uint8_t key[32])
{
	uint64_t hash;

	memcpy(&hash, key, sizeof(hash));
	for (int i = 0; i < 2; i++) {
		hash = (hash ^ r->seed) * 0x9e3779b97f4a7c15u;
		hash ^= hash >> 29;
	}
	return hash;
}

/* A key with so many bytes behind it is sampled if so many bits of its hash, the highest ones, are
 * 0: one more each time that the depth is four times as much. */
static uint32_t shift_at(const struct reuse *r, uint64_t depth)
{
	const uint64_t least = r->deep_bytes / SHALLOW;
	uint32_t shift = 0;

	for (depth = depth < least ? least : depth; depth >= r->near_bytes; depth /= 4)
		shift++;
	return shift;
}

static void set_depths(struct reuse *r, uint64_t near_bytes, uint64_t deep_bytes)
{
	r->near_bytes = near_bytes;
	r->deep_bytes = deep_bytes;
	r->shift = shift_at(r, 0);
	r->deep_shift = shift_at(r, deep_bytes);
}

static bool is_sampled(uint64_t hash, uint32_t shift)
{
	return shift == 0 || hash >> (64 - shift) == 0;
}

/* The slot that names the sample of this key, or the free one where it belongs. */
static uint16_t *slot_of(struct reuse *r, uint64_t hash)
{
	uint32_t at = (uint32_t)hash % SLOTS;

	while (r->slot[at] && r->sample[r->slot[at] - 1].hash != hash)
		at = (at + 1) % SLOTS;
	return &r->slot[at];
}

/* The sample of this key. NULL: the key is not sampled, or was not used yet. */
static struct sample *find(struct reuse *r, uint64_t hash)
{
	const uint16_t slot = is_sampled(hash, r->shift) ? *slot_of(r, hash) : 0;

	return slot ? &r->sample[slot - 1] : NULL;
}

/* --- positions --- */

static uint64_t stands_for(const struct sample *s)
{
	return (uint64_t)s->bytes << s->shift;
}

static void tree_add(struct reuse *r, uint32_t position, uint64_t bytes)
{
	for (; position <= POSITIONS; position += position & -position)
		r->tree[position] += bytes;
}

static uint64_t bytes_up_to(const struct reuse *r, uint32_t position)
{
	uint64_t bytes = 0;

	for (; position > 0; position -= position & -position)
		bytes += r->tree[position];
	return bytes;
}

/* Gives out positions anew, in their order, and leaves out the samples that are none any more as
 * their depth has grown, or that no answer needs. */
static void compact(struct reuse *r)
{
	uint16_t number[POSITIONS + 1] = { 0 };
	struct sample *const old = r->sample;
	uint64_t newer = r->bytes;

	for (uint32_t i = 0; i < r->n; i++)
		number[old[i].position] = (uint16_t)(i + 1);
	r->last_position = 0;
	r->bytes = 0;
	memset(r->tree, 0, sizeof(r->tree));
	memset(r->slot, 0, sizeof(r->slot));
	for (uint32_t at = 1; at <= POSITIONS; at++) {
		struct sample *s = number[at] ? &old[number[at] - 1] : NULL;
		uint32_t shift;

		if (!s)
			continue;
		newer -= stands_for(s);
		shift = shift_at(r, newer);
		if (s->shift < shift)
			s->shift = (uint8_t)shift;
		if (!is_sampled(s->hash, s->shift) || newer > r->deep_bytes) {
			s->position = 0;
			continue;
		}
		s->position = (uint16_t)++r->last_position;
		r->tree[s->position] = stands_for(s);
		r->bytes += stands_for(s);
	}
	for (uint32_t at = 1; at <= POSITIONS; at++)
		if (at + (at & -at) <= POSITIONS)
			r->tree[at + (at & -at)] += r->tree[at];
	for (uint32_t i = 0, left = r->n, to = 0; i < left; i++) {
		if (old[i].position == 0)
			continue;
		old[to] = old[i];
		*slot_of(r, old[to].hash) = (uint16_t)(to + 1);
		r->n = ++to;
	}
	if (r->last_position == 0)
		r->n = 0;
}

/* --- events --- */

static void count_time(const struct sample *s, struct histogram *times, uint32_t ms)
{
	histogram_add_n(times, ms * 1000ull, 1ull << s->shift);
}

/* First, blocks that no answer needs leave the sample. */
static void make_room(struct reuse *r)
{
	compact(r);
	while (r->n > REUSE_SAMPLES - ROOM) {
		const uint64_t near = r->near_bytes < r->bytes ? r->near_bytes : r->bytes;

		set_depths(r, near - near / 8, r->deep_bytes);
		compact(r);
	}
}

static void count_use(struct reuse *r, const uint8_t key[32], uint32_t bytes)
{
	const uint64_t hash = hash_of(r, key);
	const struct sample *s;
	uint64_t newer;

	r->uses++;
	if (!is_sampled(hash, r->shift))
		return;
	r->sampled_uses += 1ull << r->shift;
	s = find(r, hash);
	if (!s) {
		if (is_sampled(hash, r->deep_shift))
			r->first_uses += 1ull << r->deep_shift;
		return;
	}
	newer = r->bytes - bytes_up_to(r, s->position);
	histogram_add_n(&r->depth, (newer + bytes) / 1024, 1ull << s->shift);
	count_time(s, r->times.gap, now_ms(r) - s->used_ms);
}

static void touch(struct reuse *r, const uint8_t key[32], uint32_t bytes)
{
	const uint64_t hash = hash_of(r, key);
	struct sample *s;

	if (!is_sampled(hash, r->shift))
		return;
	if (r->last_position == POSITIONS)
		compact(r);
	s = find(r, hash);
	if (s) {
		tree_add(r, s->position, -stands_for(s));
		r->bytes -= stands_for(s);
	} else {
		if (r->n == REUSE_SAMPLES)
			make_room(r);
		if (!is_sampled(hash, r->shift))
			return;
		s = &r->sample[r->n];
		*s = (struct sample){ .hash = hash };
		*slot_of(r, hash) = (uint16_t)++r->n;
	}
	s->bytes = bytes;
	s->shift = (uint8_t)r->shift;
	s->used_ms = now_ms(r);
	if (!s->in_memory)
		s->entered_ms = s->used_ms;
	s->in_memory = true;
	s->position = (uint16_t)++r->last_position;
	tree_add(r, s->position, stands_for(s));
	r->bytes += stands_for(s);
}

/* All blocks are counted, then all are touched, the last one first: leaves are evicted first. */
void reuse_chain(struct reuse *r, uint32_t n, uint32_t bytes,
		 bool (*key)(void *arg, uint32_t at, uint8_t ret[32]), void *arg)
{
	uint8_t is[32];

	for (uint32_t at = 0; at < n; at++)
		if (key(arg, at, is))
			count_use(r, is, bytes);
	for (uint32_t at = n; at > 0; at--)
		if (key(arg, at - 1, is))
			touch(r, is, bytes);
}

void reuse_leave(struct reuse *r, const uint8_t key[32])
{
	struct sample *s = find(r, hash_of(r, key));

	if (!s || !s->in_memory)
		return;
	s->in_memory = false;
	count_time(s, r->times.age, now_ms(r) - s->entered_ms);
	count_time(s, r->times.idle, now_ms(r) - s->used_ms);
}

void reuse_tick(struct reuse *r, uint64_t memory_bytes)
{
	set_depths(r, r->near_bytes, DEEP * memory_bytes);
	if (r->now_ns - r->halved_ns < HALVING_S * 1000000000ull)
		return;
	r->halved_ns = r->now_ns;
	r->uses /= 2;
	r->sampled_uses /= 2;
	r->first_uses /= 2;
	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		r->depth.count[i] /= 2;
}

/* --- answers --- */

/* What the sample says about uses, and a measure of how uncertain this is: `noise` since keys are
 * sampled at all, `thinned` since fewer are at large depths. All uses of a key are in the sample or
 * not, and a key whose uses are at half the depth is used twice as often. */
struct said {
	double uses, noise, thinned;
};

static void say(struct said *said, const struct reuse *r, double uses, double depth)
{
	const double noise = uses / (depth + 1);

	said->uses += uses;
	said->noise += noise;
	said->thinned +=
		noise *
		((double)(1ull << shift_at(r, (uint64_t)depth)) / (double)(1ull << r->shift) - 1);
}

/* Two sums of uses are known better than by what is said about each depth: the uses of all keys,
 * and what all sampled uses stand for. The most uncertain depths are corrected the most, so that
 * the sums are right. Without that, a key that is used very often and is in the sample by chance,
 * or not, would spoil the curve (SHARDS-adj corrects depth 0 alone). */
uint32_t reuse_miss_ppm(const struct reuse *r, uint64_t bytes)
{
	const double size = (double)bytes, all = (double)r->uses;
	struct said hits = { 0 }, both = { 0 };
	double misses, begin = 0;

	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
		const double end = ((double)histogram_longest(i) + 1) * 1024;
		const double part = end <= size   ? 1 :
				    begin >= size ? 0 :
						    (size - begin) / (end - begin);
		const double uses = (double)r->depth.count[i];

		say(&hits, r, uses * part, begin);
		say(&both, r, uses, begin);
		begin = end;
	}
	say(&both, r, (double)r->first_uses, (double)r->deep_bytes);
	misses = both.uses - hits.uses;
	if (both.thinned > 0)
		misses += ((double)r->sampled_uses - both.uses) * (1 - hits.thinned / both.thinned);
	if (both.noise > 0)
		misses += (all - (double)r->sampled_uses) * (1 - hits.noise / both.noise);
	if (all <= 0 || misses <= 0)
		return 0;
	return misses >= all ? 1000000 : (uint32_t)(misses / all * 1e6);
}

void reuse_working_set(const struct reuse *r, const uint32_t *window_s, uint32_t n,
		       uint64_t *ret_bytes)
{
	const uint32_t now = now_ms(r);

	memset(ret_bytes, 0, n * sizeof(*ret_bytes));
	for (uint32_t i = 0; i < r->n; i++) {
		const struct sample *s = &r->sample[i];

		for (uint32_t w = 0; w < n; w++)
			if (now - s->used_ms <= window_s[w] * 1000u)
				ret_bytes[w] += stands_for(s);
	}
}

uint64_t reuse_scale(const struct reuse *r)
{
	return 1ull << r->deep_shift;
}

uint32_t reuse_samples(const struct reuse *r)
{
	return r->n;
}
