/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.c - reading the index: the reader's half of daemon/index/index.c.
 *
 * A probe reads the shape, the seq of the first bucket, its slots, and the slots of the second
 * bucket. If a slot has the key, it is a hit. If seq and shape are still what they were, it is a
 * miss. Otherwise the probe is made again.
 *
 * An entry that stays is found, even while it moves, for these reasons. All loads are acquires, all
 * stores are releases, and the writer keeps W1..W4 (head of index.c).
 *   - Hit: a slot's fingerprint changes only while its meta is 0 (W1), so the same non-zero meta
 *     before and after comparing means that the entry was there.
 *   - Moved from the first bucket to the second: a reader that misses it in the first sees its
 *     removal, hence its earlier copy in the second (W2), which is read later.
 *   - Moved from the second to the first: a reader that misses it in both read the first before it
 *     came and the second after it left. Between these the first bucket's seq moved (W3): again.
 *   - Split: a reader that misses it in the old bucket saw it leave, and so sees the new shape
 *     (W4): again.
 * So a miss means that there was a moment (the reading of the second bucket) at which the key was
 * in neither. No reader ever waits for the writer: it may be stopped or killed between any two
 * stores, and an entry that was present is found. One case remains: an entry that moved between its
 * two buckets during each of MAP_TRIES readings in a row is reported absent, once.
 */
#include "map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum {
	MAP_TRIES = 64,
	MAP_AHEAD = 16, /* keys prefetched ahead in map_probe: fills a core's miss queue */
	/* keys probed at once in map_prefix: divide by 9 for one DRAM latency */
	MAP_WAYS = 8,
};

struct map {
	uint64_t bytes, buckets;
	const struct wire_index *head;    /* the mapping */
	const struct wire_bucket *bucket; /* in it */
};

enum scan { SCAN_MISS, SCAN_HIT, SCAN_TORN };

static bool sealed(int fd, uint64_t bytes)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW;
	const int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	return seals >= 0 && (seals & wanted) == wanted && fstat(fd, &st) == 0 && st.st_size >= 0 &&
	       (uint64_t)st.st_size == bytes;
}

int map_open(int index_fd, uint64_t bytes, struct map **ret)
{
	struct map *map;
	void *base;

	if (bytes < WIRE_INDEX_OFFSET + sizeof(struct wire_bucket) || !sealed(index_fd, bytes))
		return -EPROTO;
	base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, index_fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	map = calloc(1, sizeof(*map));
	if (!map) {
		(void)munmap(base, bytes);
		return -ENOMEM;
	}
	map->bytes = bytes;
	map->buckets = (bytes - WIRE_INDEX_OFFSET) / sizeof(struct wire_bucket);
	map->head = base;
	map->bucket = (const struct wire_bucket *)(const void *)((const uint8_t *)base +
								 WIRE_INDEX_OFFSET);
	if (map->head->magic != WIRE_INDEX_MAGIC || map->head->layout != WIRE_INDEX_LAYOUT ||
	    map->head->bytes != bytes) {
		map_close(map);
		return -EPROTO;
	}
	*ret = map;
	return 0;
}

void map_close(struct map *map)
{
	if (!map)
		return;
	(void)munmap((void *)(uintptr_t)map->head, map->bytes);
	free(map);
}

const struct wire_index *map_head(const struct map *map)
{
	return map->head;
}

/* A daemon with damaged memory must not make an engine read outside the mapping. */
static bool shape_fits(const struct map *map, uint64_t shape)
{
	const uint64_t level = shape >> 32, divided = shape & 0xffffffffu;

	return level < 32 && divided < 1ull << level && (1ull << level) + divided <= map->buckets;
}

static enum scan bucket_scan(const struct wire_bucket *bucket, uint64_t print, uint32_t *ret_meta)
{
	for (uint32_t s = 0; s < WIRE_BUCKET_ENTRIES; s++) {
		uint32_t meta;

		if (__atomic_load_n(&bucket->print[s], __ATOMIC_ACQUIRE) != print)
			continue;
		meta = __atomic_load_n(&bucket->meta[s], __ATOMIC_ACQUIRE);
		if (meta >> WIRE_PLACES_SHIFT == 0 ||
		    __atomic_load_n(&bucket->print[s], __ATOMIC_ACQUIRE) != print)
			continue;
		if (__atomic_load_n(&bucket->meta[s], __ATOMIC_ACQUIRE) != meta)
			return SCAN_TORN;
		*ret_meta = meta;
		return SCAN_HIT;
	}
	return SCAN_MISS;
}

/* The key's meta, 0 when absent. */
static uint32_t probe(const struct map *map, const struct print *print)
{
	const uint64_t in_slot = wire_print_of(print->half);

	for (int i = 0; i < MAP_TRIES; i++) {
		const uint64_t shape = __atomic_load_n(&map->head->shape, __ATOMIC_ACQUIRE);
		const struct wire_bucket *first, *second;
		uint32_t seq, meta = 0;
		enum scan found;

		if (!shape_fits(map, shape))
			return 0;
		first = &map->bucket[wire_bucket_of(print->half[0], shape)];
		second = &map->bucket[wire_bucket_of(print->half[1], shape)];
		seq = __atomic_load_n(&first->seq, __ATOMIC_ACQUIRE);
		found = bucket_scan(first, in_slot, &meta);
		if (found == SCAN_MISS)
			found = bucket_scan(second, in_slot, &meta);
		if (found == SCAN_HIT)
			return meta;
		if (found == SCAN_MISS && __atomic_load_n(&first->seq, __ATOMIC_ACQUIRE) == seq &&
		    __atomic_load_n(&map->head->shape, __ATOMIC_ACQUIRE) == shape)
			return 0;
	}
	return 0;
}

/* Asks for the cache lines that probe() will read if the shape stays. */
static void prefetch(const struct map *map, const struct print *print)
{
	const uint64_t shape = __atomic_load_n(&map->head->shape, __ATOMIC_RELAXED);

	if (!shape_fits(map, shape))
		return;
	__builtin_prefetch(&map->bucket[wire_bucket_of(print->half[0], shape)]);
	__builtin_prefetch(&map->bucket[wire_bucket_of(print->half[1], shape)]);
}

void map_probe(const struct map *map, const struct fingerprint_key *index_key,
	       const struct kvtier_key *keys, size_t n, uint8_t *ret_tiers)
{
	struct print prints[MAP_AHEAD];

	for (size_t i = 0; i < n + MAP_AHEAD; i++) {
		struct print *print = &prints[i % MAP_AHEAD];

		if (i >= MAP_AHEAD)
			ret_tiers[i - MAP_AHEAD] =
				(uint8_t)(probe(map, print) >> WIRE_PLACES_SHIFT & WIRE_TIERS_MASK);
		if (i < n) {
			*print = fingerprint(index_key, keys[i].bytes);
			prefetch(map, print);
		}
	}
}

/* *lo keys are known present, key *hi absent (or the end): narrowed by probing keys at[0..n),
 * ascending. */
static void narrow(const struct map *map, const struct fingerprint_key *index_key,
		   const struct kvtier_key *keys, const size_t *at, size_t n, size_t *lo,
		   size_t *hi, struct map_ends *ends)
{
	struct print prints[MAP_WAYS + MAP_WAYS % 2];

	for (size_t i = 0; i < n; i += 2) {
		const size_t next = i + 1 < n ? i + 1 : i;

		fingerprint_pair(index_key, keys[at[i]].bytes, keys[at[next]].bytes, &prints[i]);
		prefetch(map, &prints[i]);
		prefetch(map, &prints[i + 1]);
	}
	for (size_t i = 0; i < n; i++) {
		const uint32_t found = probe(map, &prints[i]);

		if (!found) {
			*hi = at[i];
			return;
		}
		*lo = at[i] + 1;
		ends->last = found >> WIRE_PLACES_SHIFT;
		if (at[i] == 0)
			ends->first = ends->last;
	}
}

size_t map_prefix(const struct map *map, const struct fingerprint_key *index_key,
		  const struct kvtier_key *keys, size_t n, struct map_ends *ret_ends)
{
	size_t lo = 0, hi = n, at[MAP_WAYS];
	struct map_ends ends = { 0 };

	/* One round finds the common answers: all keys, and no key. */
	if (n > 0) {
		at[0] = 0;
		at[1] = n - 1;
		narrow(map, index_key, keys, at, n > 1 ? 2 : 1, &lo, &hi, &ends);
	}
	while (lo < hi) {
		const size_t ways = hi - lo < MAP_WAYS ? hi - lo : MAP_WAYS;

		for (size_t i = 0; i < ways; i++)
			at[i] = lo + (hi - lo) * (i + 1) / (ways + 1);
		narrow(map, index_key, keys, at, ways, &lo, &hi, &ends);
	}
	if (ret_ends)
		*ret_ends = ends;
	return lo;
}

/* The position of the nearest tier's bit; MAP_TIERS: there is no tier. */
static uint32_t nearest(uint32_t places, uint32_t gpus)
{
	const uint32_t tiers = wire_tiers(places, gpus);

	return tiers ? (uint32_t)__builtin_ctz(tiers) : MAP_TIERS;
}

void map_spread(const struct map *map, const struct fingerprint_key *index_key,
		const struct kvtier_key *keys, size_t n, const struct map_ends *ends, uint32_t gpus,
		uint32_t ret[MAP_TIERS])
{
	const uint32_t last = nearest(ends->last, gpus);
	uint32_t tier = nearest(ends->first, gpus);

	memset(ret, 0, MAP_TIERS * sizeof(ret[0]));
	for (size_t at = 0, changes = 0; at < n; changes++) {
		/* keys in [at, lo) have this tier; key hi, or the one behind the end, has not */
		size_t lo = at + 1, hi = n - 1;
		uint32_t next = last;

		if (tier == last || changes == MAP_TIERS)
			lo = n; /* its tiers do not follow each other, if there are more changes */
		while (lo < hi) {
			const size_t middle = lo + (hi - lo) / 2;
			const struct print print = fingerprint(index_key, keys[middle].bytes);
			const uint32_t there =
				nearest(probe(map, &print) >> WIRE_PLACES_SHIFT, gpus);

			if (there == tier || there == MAP_TIERS) { /* it was evicted just now */
				lo = middle + 1;
			} else {
				hi = middle;
				next = there;
			}
		}
		if (tier < MAP_TIERS)
			ret[tier] += (uint32_t)(lo - at);
		at = lo;
		tier = next;
	}
}
