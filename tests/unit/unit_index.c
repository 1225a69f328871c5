/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_index - the index's writer alone: inserted entries are found, removed ones are not, at every
 * size the table grows through; it fills to its promise; hostile fingerprints hurt only themselves.
 * Method: entries numbered 0..n with fingerprints that follow from the number, checked through
 * index_find().
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/store/index.h"
#include "tests/lib/random.h"
#include "tests/lib/test.h"

enum { MANY = 100000, TIER = 2 };

static struct print print_of(uint64_t number)
{
	struct print ret;
	uint8_t key[32];

	random_key(number, key);
	memcpy(&ret, key, sizeof(ret));
	return ret;
}

static bool present(const struct index *index, uint64_t number)
{
	const struct print print = print_of(number);
	uint32_t found[6];

	const uint32_t n = index_find(index, &print, found, 6);
	assert_true(n <= 1);
	if (n == 1)
		assert_int_equal(found[0], number);
	return n == 1;
}

static int insert(struct index *index, uint64_t number)
{
	const struct print print = print_of(number);

	return index_insert(index, &print, (uint32_t)number, TIER, (uint32_t)number);
}

static void erase(struct index *index, uint64_t number)
{
	const struct print print = print_of(number);

	index_remove(index, &print, (uint32_t)number);
}

TEST(finds_all_while_growing)
{
	struct index *index;

	assert_int_equal(index_open(MANY, &index), 0);
	for (uint64_t i = 0; i < MANY; i++) {
		assert_int_equal(insert(index, i), 0);
		if (i % 1009 == 0)
			for (uint64_t k = 0; k <= i; k++)
				assert_true(present(index, k));
	}
	for (uint64_t i = 0; i < MANY; i++)
		assert_true(present(index, i));
	assert_false(present(index, MANY));
	assert_int_equal(index_entries(index), MANY);
	index_close(index);
}

TEST(removed_is_absent_others_stay)
{
	struct index *index;

	assert_int_equal(index_open(MANY, &index), 0);
	for (uint64_t i = 0; i < MANY; i++)
		assert_int_equal(insert(index, i), 0);
	for (uint64_t i = 0; i < MANY; i += 3)
		erase(index, i);
	for (uint64_t i = 0; i < MANY; i++)
		assert_int_equal(present(index, i), i % 3 != 0);
	index_close(index);
}

TEST(full_is_enospc_and_recovers)
{
	struct index *index;

	assert_int_equal(index_open(MANY, &index), 0);
	for (uint64_t i = 0; i < MANY; i++)
		assert_int_equal(insert(index, i), 0);
	assert_int_equal(insert(index, MANY), -ENOSPC);
	assert_false(present(index, MANY));
	/* A full table goes on for ever: each round drops some and inserts as many. */
	for (uint64_t i = 0; i < MANY; i++) {
		erase(index, i);
		assert_int_equal(insert(index, MANY + i), 0);
	}
	for (uint64_t i = 0; i < MANY; i++)
		assert_true(present(index, MANY + i));
	index_close(index);
}

TEST(memory_is_below_20_bytes_an_entry)
{
	struct index *index;

	assert_int_equal(index_open(MANY, &index), 0);
	for (uint64_t i = 0; i < MANY; i++)
		assert_int_equal(insert(index, i), 0);
	assert_true(index_memory(index) - WIRE_INDEX_OFFSET <= 20ull * MANY);
	index_close(index);
}

TEST(memory_starts_small)
{
	struct index *index;

	assert_int_equal(index_open(1u << 26, &index), 0);
	assert_true(index_memory(index) < 64 * 1024);
	assert_true(index_bytes(index) > 1ull << 29);
	index_close(index);
}

/* All fingerprints name the same two buckets: 10 fit at most, the next fail, with an error of their
 * own that evicts nobody, and nobody else notices. */
TEST(crowded_buckets_hurt_only_themselves)
{
	struct index *index;
	struct print print = { { 0 } };
	uint32_t entered = 0, found[2 * WIRE_BUCKET_ENTRIES];

	assert_int_equal(index_open(MANY, &index), 0);
	for (uint64_t i = 0; i < 1000; i++)
		assert_int_equal(insert(index, i), 0);
	for (uint32_t i = 0; i < 5000; i++) {
		print.half[0] = (uint64_t)i << 17; /* the table has fewer buckets */
		const int r = index_insert(index, &print, MANY + i, TIER, 0);

		assert_true(r == 0 || r == -EXFULL);
		entered += r == 0;
	}
	assert_in_range(entered, 1, 2 * WIRE_BUCKET_ENTRIES);
	for (uint64_t i = 1000; i < 50000; i++)
		assert_int_equal(insert(index, i), 0);
	for (uint64_t i = 0; i < 50000; i++)
		assert_true(present(index, i));
	print.half[0] = 0;
	assert_true(index_find(index, &print, found, 2 * WIRE_BUCKET_ENTRIES) <= 1);
	index_close(index);
}

/* Equal fingerprints (of keys that differ later) are separate entries. */
TEST(same_fingerprint_is_told_apart_by_block)
{
	struct index *index;
	const struct print print = print_of(1);
	uint32_t found[6];

	assert_int_equal(index_open(1000, &index), 0);
	assert_int_equal(index_insert(index, &print, 11, TIER, 0), 0);
	assert_int_equal(index_insert(index, &print, 12, TIER, 0), 0);
	assert_int_equal(index_find(index, &print, found, 6), 2);
	index_remove(index, &print, 11);
	assert_int_equal(index_find(index, &print, found, 6), 1);
	assert_int_equal(found[0], 12);
	index_close(index);
}

/* Fingerprints that differ in a bit that an entry has are two; fingerprints that differ in another
 * bit are one. */
TEST(each_bit_of_an_entry_tells_keys_apart)
{
	const int bits = 32;
	const struct print print = print_of(1);
	struct index *index;
	uint32_t found[6];

	assert_int_equal(index_open(1000, &index), 0);
	assert_int_equal(index_insert(index, &print, 11, TIER, 0), 0);
	for (int half = 0; half < 2; half++)
		for (int bit = 0; bit < 64; bit++) {
			struct print other = print;

			other.half[half] ^= 1ull << bit;
			assert_int_equal(index_find(index, &other, found, 6), bit >= bits);
		}
	index_close(index);
}

TEST(clients_cannot_write_or_resize)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE;
	struct index *index;

	assert_int_equal(index_open(1000, &index), 0);
	const int fd = index_fd(index);
	assert_int_equal(fcntl(fd, F_GET_SEALS) & wanted, wanted);
	assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	assert_int_equal(write(fd, "x", 1), -1);
	assert_int_equal(ftruncate(fd, 0), -1);
	index_close(index);
}

TEST(bad_sizes_are_refused)
{
	struct index *index;

	assert_int_equal(index_open(0, &index), -EINVAL);
	assert_int_equal(index_open(UINT64_MAX, &index), -EINVAL);
}

TEST(smallest_table_works)
{
	struct index *index;

	assert_int_equal(index_open(1, &index), 0);
	assert_int_equal(insert(index, 0), 0);
	assert_int_equal(insert(index, 1), -ENOSPC);
	erase(index, 0);
	assert_int_equal(insert(index, 1), 0);
	index_close(index);
}

/* Where chance crowds a neighbourhood of a small table, more buckets help: a table takes as many
 * entries as it promises. */
TEST(small_tables_fill_to_the_last)
{
	struct random random = random_seeded("unit_index");

	for (int round = 0; round < 3000; round++) {
		const uint32_t max = 1 + random_below(&random, 600);
		struct index *index;

		assert_int_equal(index_open(max, &index), 0);
		for (uint32_t i = 0; i < max; i++) {
			const struct print print = { { random_next(&random),
						       random_next(&random) } };

			assert_int_equal(index_insert(index, &print, i, TIER, 0), 0);
		}
		index_close(index);
	}
}

/* Each of the five has bucket 5 for both of its candidates, until that bucket was split. */
TEST(five_keys_of_one_bucket_find_room_in_a_small_table)
{
	struct index *index;

	assert_int_equal(index_open(100, &index), 0);
	for (uint32_t i = 0; i < 5; i++) {
		const struct print print = { { 5 + 64 * i, 5 + 64 * i } };

		assert_int_equal(index_insert(index, &print, i, TIER, 0), 0);
	}
	index_close(index);
}
