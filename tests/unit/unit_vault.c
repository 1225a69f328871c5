/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: secrets and private keys of OpenSSL are in one place, which is locked and is left out of
 * core dumps; a piece that is given back is wiped; where the place is full there is another one of
 * the same kind. Method: the flags of mappings, from smaps.
 */
#include "base/vault.h"
#include "tests/lib/test.h"

#include <openssl/bn.h>
#include <openssl/crypto.h>

enum { PIECES = 8, PIECE = 700, MANY = 400, LARGE = 64 << 10 };

struct mapping {
	uintptr_t begin, end;
	char flags[512];
};

/* The mapping that has p. */
static struct mapping mapping_of(const void *p)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	struct mapping m = { 0 };
	char line[512];

	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		uintptr_t begin, end;

		if (sscanf(line, "%lx-%lx ", &begin, &end) == 2 && strchr(line, '-') < line + 20)
			m = (struct mapping){ .begin = begin, .end = end };
		if (strncmp(line, "VmFlags:", 8) == 0 && (uintptr_t)p >= m.begin &&
		    (uintptr_t)p < m.end) {
			(void)snprintf(m.flags, sizeof(m.flags), "%s", line);
			break;
		}
	}
	(void)fclose(f);
	assert_true(m.flags[0]);
	return m;
}

static void is_hidden(const struct mapping *m)
{
	struct rlimit limit;

	assert_non_null(strstr(m->flags, " dd"));
	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	if (limit.rlim_cur >= 8u << 20)
		assert_non_null(strstr(m->flags, " lo"));
}

TEST(secrets_and_keys_are_in_one_place)
{
	void *pieces[PIECES];
	BIGNUM *key = BN_secure_new();
	struct mapping place;

	assert_non_null(key);
	assert_int_equal(BN_set_bit(key, 255), 1);
	pieces[0] = vault_alloc(PIECE);
	place = mapping_of(pieces[0]);
	is_hidden(&place);
	for (int i = 1; i < PIECES; i++) {
		pieces[i] = vault_alloc(PIECE);
		assert_in_range((uintptr_t)pieces[i], place.begin, place.end - PIECE);
	}
	/* where OpenSSL puts private keys */
	assert_true(BN_get_flags(key, BN_FLG_SECURE));
	for (int i = 0; i < PIECES; i++)
		vault_free(pieces[i], PIECE);
	pieces[0] = OPENSSL_secure_malloc(PIECE);
	assert_in_range((uintptr_t)pieces[0], place.begin, place.end - PIECE);
	OPENSSL_secure_free(pieces[0]);
	BN_clear_free(key);
}

TEST(what_is_given_back_is_wiped)
{
	const char secret[] = "correct horse battery staple";
	char *first = vault_alloc(PIECE), *held = vault_alloc(PIECE);

	assert_non_null(first);
	memcpy(first + 100, secret, sizeof(secret));
	vault_free(first, PIECE);
	/* the place is still mapped */
	assert_memory_not_equal(first + 100, secret, sizeof(secret));
	vault_free(held, PIECE);
	vault_free(NULL, PIECE);
}

TEST(a_full_place_is_not_the_end)
{
	static char *pieces[MANY];
	static const char zeroes[PIECE];
	const struct mapping place = mapping_of(pieces[0] = vault_alloc(LARGE));
	bool elsewhere = false;

	for (int i = 1; i < MANY; i++) {
		pieces[i] = vault_alloc(PIECE);
		assert_non_null(pieces[i]);
		assert_memory_equal(pieces[i], zeroes, PIECE);
		memset(pieces[i], i, PIECE);
		if ((uintptr_t)pieces[i] < place.begin || (uintptr_t)pieces[i] >= place.end) {
			const struct mapping other = mapping_of(pieces[i]);

			is_hidden(&other);
			elsewhere = true;
		}
	}
	assert_true(elsewhere);
	for (int i = 1; i < MANY; i++) {
		assert_int_equal((uint8_t)pieces[i][PIECE - 1], (uint8_t)i);
		vault_free(pieces[i], PIECE);
	}
	vault_free(pieces[0], LARGE);
}

TEST_FIRST((void)vault_open());
