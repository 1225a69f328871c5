/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: the seal of a value is as daemon/IMAGE.md says, so that another version, or another
 * program, makes the same; it does not depend on the pieces it is made in; every bit counts.
 * Method: HMAC-SHA-256 of OpenSSL's other interface and a Poly1305 by hand, on random values; a
 * value with a known MAC.
 */

#include <openssl/evp.h>

#include "kernels/image.h"
#include "tests/lib/test.h"
#include "tiers/redis/conn/redis_seal.h"

enum { MOST = 5000, HASH = 32 };

/* --- by hand --- */

static void hmac(const void *key, size_t key_bytes, const void *message, size_t n,
		 uint8_t ret[HASH])
{
	EVP_PKEY *pkey = EVP_PKEY_new_mac_key(EVP_PKEY_HMAC, NULL, key, (int)key_bytes);
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	size_t got = HASH;

	assert_int_equal(EVP_DigestSignInit(ctx, NULL, EVP_sha256(), NULL, pkey), 1);
	assert_int_equal(EVP_DigestSign(ctx, ret, &got, message, n), 1);
	EVP_MD_CTX_free(ctx);
	EVP_PKEY_free(pkey);
}

/* RFC 8439, 2.5.1, in 26-bit limbs. */
static void poly1305(const uint8_t key[32], const uint8_t *message, size_t n, uint8_t ret[16])
{
	uint64_t r[5], h[5] = { 0 }, d[5], t[4], carry = 0;
	uint32_t w[4];

	memcpy(w, key, 16);
	r[0] = w[0] & 0x3ffffff;
	r[1] = (w[0] >> 26 | (uint64_t)w[1] << 6) & 0x3ffff03;
	r[2] = (w[1] >> 20 | (uint64_t)w[2] << 12) & 0x3ffc0ff;
	r[3] = (w[2] >> 14 | (uint64_t)w[3] << 18) & 0x3f03fff;
	r[4] = w[3] >> 8 & 0x00fffff;
	for (size_t at = 0; at < n; at += 16) {
		uint8_t block[17] = { 0 };
		const size_t take = n - at < 16 ? n - at : 16;

		memcpy(block, message + at, take);
		block[take] = 1;
		memcpy(w, block, 16);
		h[0] += w[0] & 0x3ffffff;
		h[1] += (w[0] >> 26 | (uint64_t)w[1] << 6) & 0x3ffffff;
		h[2] += (w[1] >> 20 | (uint64_t)w[2] << 12) & 0x3ffffff;
		h[3] += (w[2] >> 14 | (uint64_t)w[3] << 18) & 0x3ffffff;
		h[4] += w[3] >> 8 | (uint32_t)block[16] << 24;
		for (int i = 0; i < 5; i++) {
			d[i] = 0;
			for (int j = 0; j < 5; j++)
				d[i] += h[j] * (j <= i ? r[i - j] : 5 * r[5 + i - j]);
		}
		for (int i = 0; i < 5; i++) {
			d[i] += carry;
			carry = d[i] >> 26;
			h[i] = d[i] & 0x3ffffff;
		}
		h[0] += carry * 5;
		carry = 0;
	}
	for (int round = 0; round < 3; round++) { /* whole carries */
		for (int i = 0; i < 4; i++) {
			h[i + 1] += h[i] >> 26;
			h[i] &= 0x3ffffff;
		}
		h[0] += (h[4] >> 26) * 5;
		h[4] &= 0x3ffffff;
	}
	{
		uint64_t g[5], over = 5;

		for (int i = 0; i < 5; i++) {
			g[i] = h[i] + over;
			over = g[i] >> 26;
			g[i] &= 0x3ffffff;
		}
		if (over) /* h >= 2^130 - 5 */
			memcpy(h, g, sizeof(h));
	}
	t[0] = (h[0] | h[1] << 26) & 0xffffffff;
	t[1] = (h[1] >> 6 | h[2] << 20) & 0xffffffff;
	t[2] = (h[2] >> 12 | h[3] << 14) & 0xffffffff;
	t[3] = (h[3] >> 18 | h[4] << 8) & 0xffffffff;
	memcpy(w, key + 16, 16);
	carry = 0;
	for (int i = 0; i < 4; i++) {
		uint32_t word;

		carry += t[i] + w[i];
		word = (uint32_t)carry;
		memcpy(ret + 4 * i, &word, 4);
		carry >>= 32;
	}
}

/* --- the seal --- */

static void random_bytes(struct random *random, void *ret, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((uint8_t *)ret)[i] = (uint8_t)(random_next(random) >> 32);
}

static void mac_of(const struct redis_seal *seal, const struct redis_envelope *envelope,
		   const struct image_header *header, const uint8_t *rest, size_t n,
		   struct random *pieces, uint8_t ret[REDIS_MAC_BYTES])
{
	EVP_MAC_CTX *mac = redis_mac_open();

	assert_non_null(mac);
	if (random_below(pieces, 2)) { /* another one was begun and given up */
		assert_true(redis_mac_begin(mac, seal, envelope, header));
		assert_true(redis_mac_add(mac, "abc", 3));
	}
	assert_true(redis_mac_begin(mac, seal, envelope, header));
	for (size_t at = 0; at < n;) {
		const size_t piece = random_below(pieces, (uint32_t)(n - at) + 1);

		assert_true(redis_mac_add(mac, rest + at, piece));
		at += piece;
	}
	assert_true(redis_mac_end(mac, ret));
	EVP_MAC_CTX_free(mac);
}

TEST(it_is_as_written)
{
	struct random random = random_seeded("it_is_as_written");
	static uint8_t rest[MOST];

	for (int i = 0; i < 500; i++) {
		const size_t n = random_below(&random, i < 100 ? 40 : MOST);
		struct {
			struct redis_envelope envelope;
			struct image_header header;
		} front;
		uint8_t secret[32], once[HASH], name[HASH], want[16], have[16];
		struct redis_seal seal;

		random_bytes(&random, secret, sizeof(secret));
		random_bytes(&random, &front, sizeof(front));
		random_bytes(&random, rest, n);
		if (i % 10 == 0)
			memset(rest, 0xff, n); /* sums near the modulus */
		redis_seal_derive(secret, sizeof(secret), &seal);
		hmac(secret, sizeof(secret), "kvtier redis mac 2", 19, once);
		assert_memory_equal(once, seal.key, HASH);
		hmac(secret, sizeof(secret), "kvtier redis name 2", 20, name);
		for (size_t k = 0; k < 8; k++) {
			char hex[3];

			(void)snprintf(hex, sizeof(hex), "%02x", name[k]);
			assert_memory_equal(hex, seal.tag + 2 * k, 2);
		}
		hmac(seal.key, sizeof(seal.key), &front, sizeof(front), once);
		poly1305(once, rest, n, want);
		mac_of(&seal, &front.envelope, &front.header, rest, n, &random, have);
		assert_memory_equal(have, want, sizeof(want));
		assert_true(redis_mac_equal(have, want));
	}
}

/* RFC 8439, 2.5.2: the Poly1305 by hand is right. */
TEST(the_one_by_hand)
{
	static const uint8_t key[32] = {
		0x85, 0xd6, 0xbe, 0x78, 0x57, 0x55, 0x6d, 0x33, 0x7f, 0x44, 0x52,
		0xfe, 0x42, 0xd5, 0x06, 0xa8, 0x01, 0x03, 0x80, 0x8a, 0xfb, 0x0d,
		0xb2, 0xfd, 0x4a, 0xbf, 0xf6, 0xaf, 0x41, 0x49, 0xf5, 0x1b,
	};
	static const uint8_t want[16] = {
		0xa8, 0x06, 0x1d, 0xc1, 0x30, 0x51, 0x36, 0xc6,
		0xc2, 0x2b, 0x8b, 0xaf, 0x0c, 0x01, 0x27, 0xa9,
	};
	static const char message[] = "Cryptographic Forum Research Group";
	uint8_t have[16];

	poly1305(key, (const uint8_t *)message, sizeof(message) - 1, have);
	assert_memory_equal(have, want, sizeof(want));
}

TEST(every_bit_counts)
{
	struct random random = random_seeded("every_bit_counts");
	struct {
		struct redis_seal seal;
		struct redis_envelope envelope;
		struct image_header header;
		uint8_t rest[77];
	} v;
	uint8_t before[16], after[16];

	random_bytes(&random, &v, sizeof(v));
	mac_of(&v.seal, &v.envelope, &v.header, v.rest, sizeof(v.rest), &random, before);
	for (size_t bit = 0; bit < 8 * (offsetof(__typeof__(v), rest) + sizeof(v.rest)); bit++) {
		if (bit / 8 >= offsetof(struct redis_seal, tag) && bit / 8 < sizeof(v.seal))
			continue; /* of the name */
		((uint8_t *)&v)[bit / 8] ^= (uint8_t)(1 << bit % 8);
		mac_of(&v.seal, &v.envelope, &v.header, v.rest, sizeof(v.rest), &random, after);
		assert_false(redis_mac_equal(before, after));
		((uint8_t *)&v)[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
}

TEST(envelopes)
{
	struct redis_envelope one, other;

	assert_int_equal(redis_envelope_make(&one, REDIS_VALUE_FORM), 0);
	assert_int_equal(redis_envelope_make(&other, REDIS_VALUE_FORM), 0);
	assert_memory_not_equal(one.nonce, other.nonce, sizeof(one.nonce));
	assert_int_equal(redis_envelope_check(&one), 0);
	one.form = REDIS_VALUE_CODED;
	assert_int_equal(redis_envelope_check(&one), 0);
	one.form = REDIS_VALUE_LESSER;
	assert_int_equal(redis_envelope_check(&one), 0);
	one.form++;
	assert_int_equal(redis_envelope_check(&one), -ENOTSUP);
	other.reserved1 = 1;
	assert_int_equal(redis_envelope_check(&other), -EBADMSG);
	other.magic = IMAGE_MAGIC;
	assert_int_equal(redis_envelope_check(&other), -ENOTSUP);
	other.magic = 0;
	assert_int_equal(redis_envelope_check(&other), -EBADMSG);
}
