/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) link=client.a (the library's inner names) */
/*
 * Goal: the key chain is as kvtier.h says, so that every client and every version computes the same
 * keys. Method: constants made by another implementation (Python's hashlib: k = sha256(k +
 * struct.pack("<4I", ...)), from k = bytes(range(32)), tokens 1000, 1001, ...), and properties of
 * the chain.
 */

#include "client/lib/base/keys.h"
#include "tests/lib/test.h"

static const char *const expected[] = {
	"fd2730c328098153917721e90477e2240ff5fbaf625381a81bad9c8da72600a7",
	"e66b60a10de2ef9c8c0d76ec37cd672193169ea831eb378c25aa71a42ebbf55f",
	"4a5fdc2f0f4b1a97faf896e45854db5fcd992169c98b19cfa8c255172c7def5c",
};

static struct keys *keys;
static uint32_t tokens[14];

FIXTURE(begin)
{
	uint8_t salt[32];

	for (uint32_t i = 0; i < 14; i++)
		tokens[i] = 1000 + i;
	for (uint8_t i = 0; i < 32; i++)
		salt[i] = i;
	assert_int_equal(keys_open(4, &keys), 0);
	keys_salt(keys, salt);
	return 0;
}

FIXTURE_DO(end, keys_close(keys));

TEST_EACH(begin, end);

static void hex_equal(const struct kvtier_key *key, const char *hex)
{
	char text[65];

	for (int i = 0; i < 32; i++)
		(void)snprintf(text + 2 * i, 3, "%02x", key->bytes[i]);
	assert_string_equal(text, hex);
}

TEST(chain_is_that_of_another_implementation)
{
	struct kvtier_key ret[3];
	size_t n = 3;

	assert_int_equal(keys_chain(keys, NULL, tokens, 12, ret, &n), 0);
	assert_int_equal(n, 3);
	for (int i = 0; i < 3; i++)
		hex_equal(&ret[i], expected[i]);
}

TEST(parent_continues_the_chain)
{
	struct kvtier_key first, rest[2];
	size_t n = 1;

	assert_int_equal(keys_chain(keys, NULL, tokens, 4, &first, &n), 0);
	n = 2;
	assert_int_equal(keys_chain(keys, &first, tokens + 4, 8, rest, &n), 0);
	hex_equal(&rest[1], expected[2]);
}

TEST(tail_that_fills_no_block_has_no_key)
{
	struct kvtier_key ret[4];
	size_t n = 4;

	assert_int_equal(keys_chain(keys, NULL, tokens, 14, ret, &n), 0);
	assert_int_equal(n, 3);
	n = 0;
	assert_int_equal(keys_chain(keys, NULL, tokens, 3, ret, &n), 0);
	assert_int_equal(n, 0);
}

TEST(short_room_is_refused_and_nothing_written)
{
	struct kvtier_key ret[3];
	size_t n = 2;

	memset(ret, 0xa5, sizeof(ret));
	assert_int_equal(keys_chain(keys, NULL, tokens, 12, ret, &n), -ENOSPC);
	assert_int_equal(n, 2);
	for (size_t i = 0; i < sizeof(ret); i++)
		assert_int_equal(((const uint8_t *)ret)[i], 0xa5);
	assert_non_null(strstr(kvtier_last_error(), "3 keys"));
}

TEST(parent_may_lie_in_the_output)
{
	struct kvtier_key ret[2];
	size_t n = 1;

	assert_int_equal(keys_chain(keys, NULL, tokens, 4, ret, &n), 0);
	assert_int_equal(keys_chain(keys, &ret[0], tokens + 4, 4, ret, &n), 0);
	hex_equal(&ret[0], expected[1]);
}
