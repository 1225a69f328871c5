/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_map - the client's reader over a real index: prefixes of every length, batches, metadata,
 * and memory that is not an index. Method: an index in this process, keys by number; the answer is
 * known for each.
 */

#include "client/lib/base/map.h"
#include "daemon/index/index.h"
#include "tests/lib/test.h"

enum { MAX = 10000, TIERS = 6 };

static const struct fingerprint_key index_key = { { 0x0123456789abcdefu, 0xfedcba9876543210u } };

struct fixture {
	struct index *index;
	struct map *map;
	struct kvtier_key *keys;
};

static struct fixture f;

FIXTURE(set_up)
{
	if (index_open(MAX, &f.index) < 0 ||
	    map_open(index_fd(f.index), index_bytes(f.index), &f.map) < 0)
		return -1;
	f.keys = calloc(MAX, sizeof(*f.keys));
	for (uint64_t i = 0; f.keys && i < MAX; i++)
		random_key(i, f.keys[i].bytes);
	return f.keys ? 0 : -1;
}

FIXTURE(tear_down)
{
	map_close(f.map);
	index_close(f.index);
	free(f.keys);
	return 0;
}

TEST_EACH(set_up, tear_down);

static void insert(uint32_t number)
{
	const struct print print = fingerprint(&index_key, f.keys[number].bytes);

	assert_int_equal(index_insert(f.index, &print, number, TIERS, 100 + number), 0);
}

static void prefix_is_exact(size_t n, size_t present)
{
	const size_t last = present < n ? present : n;
	struct map_ends ends;

	assert_int_equal(map_prefix(f.map, &index_key, f.keys, n, &ends), last);
	assert_int_equal(ends.first, last ? TIERS : 0);
	assert_int_equal(ends.last, last ? TIERS : 0);
}

/* Every number present, against every length up to a few rounds of the search, then some long
 * ones. */
TEST(prefix_of_every_length)
{
	for (uint32_t present = 0; present <= 200; present++) {
		for (size_t n = 0; n <= 200; n++)
			prefix_is_exact(n, present);
		insert(present);
	}
	for (uint32_t present = 201; present < MAX; present++) {
		if (present % 97 == 0) {
			prefix_is_exact(MAX, present);
			prefix_is_exact(present + 1, present);
		}
		insert(present);
	}
	prefix_is_exact(8192, MAX);
}

TEST(outputs_may_be_null)
{
	insert(0);
	assert_int_equal(map_prefix(f.map, &index_key, f.keys, 2, NULL), 1);
}

TEST(probe_answers_each_key_on_its_own)
{
	uint8_t tiers[MAX];

	for (uint32_t i = 0; i < MAX; i += 3)
		insert(i);
	for (size_t n = 0; n < 40; n++) {
		memset(tiers, 0xee, sizeof(tiers));
		map_probe(f.map, &index_key, f.keys, n, tiers);
		for (size_t i = 0; i < n; i++)
			assert_int_equal(tiers[i], i % 3 ? 0 : TIERS);
		assert_int_equal(tiers[n], 0xee);
	}
	map_probe(f.map, &index_key, f.keys, MAX, tiers);
	for (size_t i = 0; i < MAX; i++)
		assert_int_equal(tiers[i], i % 3 ? 0 : TIERS);
}

TEST(removed_and_updated_are_seen)
{
	struct map_ends ends;

	const struct print print = fingerprint(&index_key, f.keys[0].bytes);

	insert(0);
	index_update(f.index, &print, 0, 9, 0x1abcdef);
	assert_int_equal(map_prefix(f.map, &index_key, f.keys, 1, &ends), 1);
	assert_int_equal(ends.last, 9);
	index_remove(f.index, &print, 0);
	assert_int_equal(map_prefix(f.map, &index_key, f.keys, 1, &ends), 0);
}

/* A copy in the memory of a GPU counts for that GPU's engines; host memory counts for all. */
TEST(a_gpus_copy_is_seen_from_that_gpu_alone)
{
	const uint32_t host = KVTIER_TIER_HOST, gpu = KVTIER_TIER_GPU;
	struct map_ends ends;
	uint32_t places;

	const struct print print = fingerprint(&index_key, f.keys[0].bytes);

	insert(0);
	index_update(f.index, &print, 0, wire_places(gpu | host, 1u << 1 | 1u << 7), 1);
	assert_int_equal(map_prefix(f.map, &index_key, f.keys, 1, &ends), 1);
	places = ends.first;
	assert_int_equal(places, ends.last);
	for (uint32_t unit = 0; unit < WIRE_GPU_BITS; unit++)
		assert_int_equal(wire_tiers(places, wire_gpu_bit(unit)),
				 unit == 1 || unit == 7 ? gpu | host : host);
	assert_int_equal(wire_tiers(places, 0), host);
	/* of more GPUs than bits each has a bit of its own GPU's, at least */
	places = wire_places(gpu | host, 1u << (WIRE_GPU_BITS + 2));
	assert_int_equal(wire_tiers(places, wire_gpu_bit(WIRE_GPU_BITS + 2)), gpu | host);
	assert_int_equal(wire_tiers(places, wire_gpu_bit(3)), host);
}

static void in_tier(uint32_t number, uint32_t tiers)
{
	const struct print print = fingerprint(&index_key, f.keys[number].bytes);

	index_update(f.index, &print, number, wire_places(tiers, tiers & KVTIER_TIER_GPU), 1);
}

static void spreads(size_t n, uint32_t gpu, uint32_t host, uint32_t nvme)
{
	struct map_ends ends;
	uint32_t from[MAP_TIERS];

	assert_int_equal(map_prefix(f.map, &index_key, f.keys, n, &ends), n);
	map_spread(f.map, &index_key, f.keys, n, &ends, wire_gpu_bit(0), from);
	assert_int_equal(from[0], gpu);
	assert_int_equal(from[1], host);
	assert_int_equal(from[2], nvme);
	assert_int_equal(from[3], 0);
}

/* Every way in which blocks of a GPU, of host memory and of NVMe can follow each other. */
TEST(tiers_that_follow_each_other_are_counted_exactly)
{
	enum { N = 23 };

	for (uint32_t i = 0; i < N; i++)
		insert(i);
	spreads(0, 0, 0, 0);
	for (uint32_t host = 0; host <= N; host++) {
		for (uint32_t nvme = host; nvme <= N; nvme++) {
			for (uint32_t i = 0; i < N; i++)
				in_tier(i, i < host ? KVTIER_TIER_GPU | KVTIER_TIER_HOST :
					   i < nvme ? KVTIER_TIER_HOST | KVTIER_TIER_NVME :
						      KVTIER_TIER_NVME);
			spreads(N, host, nvme - host, N - nvme);
			for (uint32_t n = 0; n < N; n++)
				spreads(n, n < host ? n : host,
					n < host ? 0 : (n < nvme ? n : nvme) - host,
					n < nvme ? 0 : n - nvme);
		}
	}
}

/* The counts of a chain whose tiers are mixed are not exact, but they are of all its blocks. */
TEST(mixed_tiers_are_all_counted)
{
	static const uint32_t tiers[] = { KVTIER_TIER_GPU | KVTIER_TIER_HOST, KVTIER_TIER_HOST,
					  KVTIER_TIER_NVME };
	struct random random = random_seeded("unit_map");

	for (uint32_t i = 0; i < 200; i++)
		insert(i);
	for (int round = 0; round < 200; round++) {
		const size_t n = 1 + random_below(&random, 200);
		struct map_ends ends;
		uint32_t from[MAP_TIERS];

		for (uint32_t i = 0; i < n; i++)
			in_tier(i, tiers[random_below(&random, 3)]);
		assert_int_equal(map_prefix(f.map, &index_key, f.keys, n, &ends), n);
		map_spread(f.map, &index_key, f.keys, n, &ends, wire_gpu_bit(0), from);
		assert_int_equal(from[0] + from[1] + from[2] + from[3], n);
	}
}

/* A reader with another space's index key finds nothing of this space. */
TEST(another_index_key_finds_nothing)
{
	const struct fingerprint_key other = { { index_key.k[0] ^ 1, index_key.k[1] } };
	uint8_t tiers[200];

	for (uint32_t i = 0; i < 200; i++)
		insert(i);
	assert_int_equal(map_prefix(f.map, &index_key, f.keys, 200, NULL), 200);
	assert_int_equal(map_prefix(f.map, &other, f.keys, 200, NULL), 0);
	map_probe(f.map, &other, f.keys, 200, tiers);
	for (uint32_t i = 0; i < 200; i++)
		assert_int_equal(tiers[i], 0);
}

/* A memfd like the daemon's, but for a case's changes. */
static int forge(uint64_t bytes, int seals, uint32_t magic, uint64_t bytes_said)
{
	const struct wire_index head = { .magic = magic,
					 .layout = WIRE_INDEX_LAYOUT,
					 .bytes = bytes_said };
	const int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(pwrite(fd, &head, sizeof(head), 0), sizeof(head));
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

TEST(other_memory_is_refused)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	const uint64_t size = 8192;
	const int bad[] = {
		/* could shrink under the reader */
		forge(size, 0, WIRE_INDEX_MAGIC, size),
		forge(size, F_SEAL_GROW, WIRE_INDEX_MAGIC, size),
		forge(size, seals, 0x12345678, size),
		forge(size, seals, WIRE_INDEX_MAGIC, size + 4096),
		/* not the size that was announced */
		forge(size + 4096, seals, WIRE_INDEX_MAGIC, size),
		forge(4096, seals, WIRE_INDEX_MAGIC, size),
		open("/dev/zero", O_RDONLY | O_CLOEXEC),
		-1,
	};
	struct map *map = NULL;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(map_open(bad[i], size, &map), -EPROTO);
		if (bad[i] >= 0)
			(void)close(bad[i]);
	}
	assert_int_equal(map_open(0, 4096, &map), -EPROTO);
	assert_null(map);
}

/* A daemon gone mad writes any shape: nothing outside the mapping is read, and the answer is
 * "absent". */
TEST(wild_shapes_read_nothing_outside)
{
	struct wire_index *head = index_head(f.index);
	const uint64_t shape = head->shape;
	const uint64_t wild[] = {
		UINT64_MAX, 40ull << 32, 31ull << 32, 6ull << 32 | 64, 12ull << 32 | 4095, 1,
	};

	insert(0);
	for (size_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++) {
		head->shape = wild[i];
		assert_int_equal(map_prefix(f.map, &index_key, f.keys, MAX, NULL), 0);
	}
	head->shape = shape;
	assert_int_equal(map_prefix(f.map, &index_key, f.keys, 1, NULL), 1);
}
