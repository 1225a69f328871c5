/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_fingerprint - goal: the fingerprint is SipHash-2-4-128, as published and as libcrypto has
 * it. Method: the published vector for 32 bytes, then random keys and messages against libcrypto.
 */
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "client/abi/fingerprint.h"
#include "tests/lib/test.h"

enum { ROUNDS = 2000 };

TEST(as_published)
{
	/* Key 00..0f, message 00..1f: vectors_sip128[32] of the authors' reference
	 * implementation. */
	static const uint8_t expected[16] = { 0x7c, 0x39, 0x56, 0xca, 0x5e, 0xea, 0xfc, 0x3e,
					      0x36, 0x3e, 0x9d, 0x55, 0x65, 0x46, 0xeb, 0x68 };
	uint8_t bytes[32];

	for (uint8_t i = 0; i < 32; i++)
		bytes[i] = i;
	const struct fingerprint_key key = fingerprint_key_of(bytes);
	const struct print print = fingerprint(&key, bytes);

	assert_memory_equal(&print, expected, 16);
}

TEST(as_libcrypto_has_it)
{
	EVP_MAC *mac = EVP_MAC_fetch(NULL, "SIPHASH", NULL);
	size_t size = 16, got;
	OSSL_PARAM params[] = { OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size),
				OSSL_PARAM_construct_end() };

	if (!mac)
		skip();
	for (uint64_t i = 0; i < ROUNDS; i++) {
		EVP_MAC_CTX *ctx = EVP_MAC_CTX_new(mac);
		uint8_t secret[32], bytes[32], expected[16];
		struct print pair[2];

		random_key(2 * i, secret);
		random_key(2 * i + 1, bytes);
		assert_int_equal(EVP_MAC_CTX_set_params(ctx, params), 1);
		assert_int_equal(EVP_MAC_init(ctx, secret, 16, NULL), 1);
		assert_int_equal(EVP_MAC_update(ctx, bytes, 32), 1);
		assert_int_equal(EVP_MAC_final(ctx, expected, &got, sizeof(expected)), 1);
		EVP_MAC_CTX_free(ctx);
		const struct fingerprint_key key = fingerprint_key_of(secret);
		const struct print print = fingerprint(&key, bytes);

		assert_int_equal(got, 16);
		assert_memory_equal(&print, expected, 16);
		fingerprint_pair(&key, secret, bytes, pair);
		assert_memory_equal(&pair[1], expected, 16);
		fingerprint_pair(&key, bytes, secret, pair);
		assert_memory_equal(&pair[0], expected, 16);
	}
	EVP_MAC_free(mac);
}
