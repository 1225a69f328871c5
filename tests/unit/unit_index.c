/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_index - the index's writer alone: inserted entries are found, removed ones are not, at every
 * size the table grows through; it fills to its promise; hostile fingerprints hurt only themselves.
 * Method: entries numbered 0..n with fingerprints that follow from the number, checked through
 * index_find().
 */

#include "daemon/index/index.h"
#include "tests/lib/test.h"

enum { MANY = 100000, TIER = 2 };

static struct print print_of(uint64_t number)
{
	struct print ret;

	memcpy(&ret, random_key_of(number).bytes, sizeof(ret));
	return ret;
}

static struct index *table;

static void open_for(uint64_t max)
{
	assert_int_equal(index_open(max, &table), 0);
}

FIXTURE_DO(open_for_many, open_for(MANY));
FIXTURE_DO(close_it, index_close(table); table = NULL);

TEST_EACH(open_for_many, close_it);
#define OPENED_BY_ITSELF(name) TEST_WITH(name, NULL, close_it)

static bool present(uint64_t number)
{
	const struct print print = print_of(number);
	uint32_t found[6];

	const uint32_t n = index_find(table, &print, found, 6);
	assert_true(n <= 1);
	if (n == 1)
		assert_int_equal(found[0], number);
	return n == 1;
}

static int insert(uint64_t number)
{
	const struct print print = print_of(number);

	return index_insert(table, &print, (uint32_t)number, TIER, (uint32_t)number);
}

static void erase(uint64_t number)
{
	const struct print print = print_of(number);

	index_remove(table, &print, (uint32_t)number);
}

TEST(finds_all_while_growing)
{
	for (uint64_t i = 0; i < MANY; i++) {
		assert_int_equal(insert(i), 0);
		if (i % 1009 == 0)
			for (uint64_t k = 0; k <= i; k++)
				assert_true(present(k));
	}
	for (uint64_t i = 0; i < MANY; i++)
		assert_true(present(i));
	assert_false(present(MANY));
	assert_int_equal(index_entries(table), MANY);
}

TEST(grows_ahead_of_what_is_expected)
{
	uint64_t i, grown;

	index_expect(table, MANY);
	for (i = 0; i < MANY / 4; i++)
		assert_int_equal(insert(i), 0);
	grown = index_memory(table);
	for (; i < MANY; i++)
		assert_int_equal(insert(i), 0);
	assert_int_equal(index_memory(table), grown);
	for (i = 0; i < MANY; i++)
		assert_true(present(i));
}

TEST(removed_is_absent_others_stay)
{
	for (uint64_t i = 0; i < MANY; i++)
		assert_int_equal(insert(i), 0);
	for (uint64_t i = 0; i < MANY; i += 3)
		erase(i);
	for (uint64_t i = 0; i < MANY; i++)
		assert_int_equal(present(i), i % 3 != 0);
}

TEST(full_is_enospc_and_recovers)
{
	for (uint64_t i = 0; i < MANY; i++)
		assert_int_equal(insert(i), 0);
	assert_int_equal(insert(MANY), -ENOSPC);
	assert_false(present(MANY));
	/* A full table goes on for ever: each round drops some and inserts as many. */
	for (uint64_t i = 0; i < MANY; i++) {
		erase(i);
		assert_int_equal(insert(MANY + i), 0);
	}
	for (uint64_t i = 0; i < MANY; i++)
		assert_true(present(MANY + i));
}

TEST(memory_is_below_20_bytes_an_entry)
{
	for (uint64_t i = 0; i < MANY; i++)
		assert_int_equal(insert(i), 0);
	assert_true(index_memory(table) - WIRE_INDEX_OFFSET <= 20ull * MANY);
}

OPENED_BY_ITSELF(memory_starts_small)
{
	open_for(1u << 26);
	assert_true(index_memory(table) < 64 * 1024);
	assert_true(index_bytes(table) > 1ull << 29);
}

/* All fingerprints name the same two buckets: 10 fit at most, the next fail, with an error of their
 * own that evicts nobody, and nobody else notices. */
TEST(crowded_buckets_hurt_only_themselves)
{
	struct print print = { { 0 } };
	uint32_t entered = 0, found[2 * WIRE_BUCKET_ENTRIES];

	for (uint64_t i = 0; i < 1000; i++)
		assert_int_equal(insert(i), 0);
	for (uint32_t i = 0; i < 5000; i++) {
		print.half[0] = (uint64_t)i << 17; /* the table has fewer buckets */
		const int r = index_insert(table, &print, MANY + i, TIER, 0);

		assert_true(r == 0 || r == -EXFULL);
		entered += r == 0;
	}
	assert_in_range(entered, 1, 2 * WIRE_BUCKET_ENTRIES);
	for (uint64_t i = 1000; i < 50000; i++)
		assert_int_equal(insert(i), 0);
	for (uint64_t i = 0; i < 50000; i++)
		assert_true(present(i));
	print.half[0] = 0;
	assert_true(index_find(table, &print, found, 2 * WIRE_BUCKET_ENTRIES) <= 1);
}

/* Equal fingerprints (of keys that differ later) are separate entries. */
OPENED_BY_ITSELF(same_fingerprint_is_told_apart_by_block)
{
	const struct print print = print_of(1);
	uint32_t found[6];

	open_for(1000);
	assert_int_equal(index_insert(table, &print, 11, TIER, 0), 0);
	assert_int_equal(index_insert(table, &print, 12, TIER, 0), 0);
	assert_int_equal(index_find(table, &print, found, 6), 2);
	index_remove(table, &print, 11);
	assert_int_equal(index_find(table, &print, found, 6), 1);
	assert_int_equal(found[0], 12);
}

/* Fingerprints that differ in a bit that an entry has are two; fingerprints that differ in another
 * bit are one. */
OPENED_BY_ITSELF(each_bit_of_an_entry_tells_keys_apart)
{
	const int bits = 32;
	const struct print print = print_of(1);
	uint32_t found[6];

	open_for(1000);
	assert_int_equal(index_insert(table, &print, 11, TIER, 0), 0);
	for (int half = 0; half < 2; half++)
		for (int bit = 0; bit < 64; bit++) {
			struct print other = print;

			other.half[half] ^= 1ull << bit;
			assert_int_equal(index_find(table, &other, found, 6), bit >= bits);
		}
}

OPENED_BY_ITSELF(clients_cannot_write_or_resize)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE;

	open_for(1000);
	const int fd = index_fd(table);
	assert_int_equal(fcntl(fd, F_GET_SEALS) & wanted, wanted);
	assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	assert_int_equal(write(fd, "x", 1), -1);
	assert_int_equal(ftruncate(fd, 0), -1);
}

OPENED_BY_ITSELF(bad_sizes_are_refused)
{
	assert_int_equal(index_open(0, &table), -EINVAL);
	assert_int_equal(index_open(UINT64_MAX, &table), -EINVAL);
}

OPENED_BY_ITSELF(smallest_table_works)
{
	open_for(1);
	assert_int_equal(insert(0), 0);
	assert_int_equal(insert(1), -ENOSPC);
	erase(0);
	assert_int_equal(insert(1), 0);
}

/* Where chance crowds a neighbourhood of a small table, more buckets help: a table takes as many
 * entries as it promises. */
OPENED_BY_ITSELF(small_tables_fill_to_the_last)
{
	struct random random = random_seeded("unit_index");

	for (int round = 0; round < 3000; round++) {
		const uint32_t max = 1 + random_below(&random, 600);

		open_for(max);
		for (uint32_t i = 0; i < max; i++) {
			const struct print print = { { random_next(&random),
						       random_next(&random) } };

			assert_int_equal(index_insert(table, &print, i, TIER, 0), 0);
		}
		(void)close_it(state);
	}
}

/* Each of the five has bucket 5 for both of its candidates, until that bucket was split. */
OPENED_BY_ITSELF(five_keys_of_one_bucket_find_room_in_a_small_table)
{
	open_for(100);
	for (uint32_t i = 0; i < 5; i++) {
		const struct print print = { { 5 + 64 * i, 5 + 64 * i } };

		assert_int_equal(index_insert(table, &print, i, TIER, 0), 0);
	}
}
