/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) link=client.a (the library's inner names) */
/*
 * Goal: each way of SHA-256 is the standard's, however a message is cut. Method: what NIST
 * published (the examples of FIPS 180-4, the "additional examples" for SHA-256 and the
 * byte-oriented Monte Carlo test of CAVP); then each length up to 17 blocks, whole and cut by
 * chance, against libcrypto.
 */
#include <openssl/sha.h>

#include "client/lib/base/sha256.h"
#include "tests/lib/test.h"

enum { LONGEST = 1100, CUTS = 4, CHUNK = 1 << 20 };

static sha256_way *way;

FIXTURE_DO(begin_plain, way = sha256_plain);
FIXTURE_DO(begin_best, way = sha256_best());
FIXTURE_DO(end, way = NULL);

/* The last one only where the CPU has more than the plain way. */
TEST_DOES(ways)
{
	test_group(&(struct test_group){ "plain", begin_plain, end });
	if (sha256_best() != sha256_plain)
		test_group(&(struct test_group){ "sha-ni", begin_best, end });
}

static void digest_is(const uint8_t digest[SHA256_BYTES], const char *hex)
{
	char text[2 * SHA256_BYTES + 1];

	for (size_t i = 0; i < SHA256_BYTES; i++)
		(void)snprintf(text + 2 * i, 3, "%02x", digest[i]);
	assert_string_equal(text, hex);
}

static void text_has(const char *message, const char *hex)
{
	uint8_t digest[SHA256_BYTES];
	struct sha256 sha;

	sha256_begin(&sha, way);
	sha256_add(&sha, message, strlen(message));
	sha256_end(&sha, digest);
	digest_is(digest, hex);
}

/* n bytes of one value */
static void run_has(uint8_t value, uint64_t n, const char *hex)
{
	uint8_t *chunk = malloc(CHUNK), digest[SHA256_BYTES];
	struct sha256 sha;

	assert_non_null(chunk);
	memset(chunk, value, CHUNK);
	sha256_begin(&sha, way);
	for (; n > CHUNK; n -= CHUNK)
		sha256_add(&sha, chunk, CHUNK);
	sha256_add(&sha, chunk, n);
	sha256_end(&sha, digest);
	free(chunk);
	digest_is(digest, hex);
}

TEST(examples_of_the_standard)
{
	text_has("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	text_has("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	text_has("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
		 "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
	text_has("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
		 "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
		 "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
	run_has('a', 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(additional_examples)
{
	run_has(0xbd, 1, "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b");
	text_has("\xc9\x8c\x8e\x55",
		 "7abc22c0ae5af26ce93dbb94433a0e0b2e119d014f8e7f65bd56c61ccccd9504");
	run_has(0, 55, "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7");
	run_has(0, 56, "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb");
	run_has(0, 57, "65a16cb7861335d5ace3c60718b5052e44660726da4cd13bb745381b235a1785");
	run_has(0, 64, "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b");
	run_has(0, 1000, "541b3e9daa09b20bf85fa273e5cbd3e80185aa4ec298e765db87742b70138a53");
	run_has('A', 1000, "c2e686823489ced2017f6059b8b239318b6364f6dcd835d0a519105a1eadd6e4");
	run_has('U', 1005, "f4d62ddec0f3dd90ea1380fa16a5ff8dc4c54b21740650f24afc4120903552b0");
	run_has(0, 1000000, "d29751f2649b32ff572b5e0a9f541ea660a50f94ff0beedfb0b692b924cc8025");
}

/* 2^32 bits: the length takes more than its low word. The ways do not see the length. */
TEST(length_of_more_than_32_bits)
{
	if (way != sha256_best())
		skip();
	run_has('Z', 0x20000000,
		"15a1868c12cc53951e182344277447cd0979536badcc512ad24c67e9b2d4f3dd");
}

TEST(monte_carlo)
{
	uint8_t seed[SHA256_BYTES] = { 0x6d, 0x1e, 0x72, 0xad, 0x03, 0xdd, 0xeb, 0x5d,
				       0xe8, 0x91, 0xe5, 0x72, 0xe2, 0x39, 0x6f, 0x8d,
				       0xa0, 0x15, 0xd8, 0x99, 0xef, 0x0e, 0x79, 0x50,
				       0x31, 0x52, 0xd6, 0x01, 0x0a, 0x3f, 0xe6, 0x91 };

	for (int count = 0; count < 100; count++) {
		uint8_t md[4][SHA256_BYTES];

		for (int i = 0; i < 3; i++)
			memcpy(md[i], seed, sizeof(seed));
		for (int i = 0; i < 1000; i++) {
			struct sha256 sha;

			sha256_begin(&sha, way);
			for (int part = 0; part < 3; part++)
				sha256_add(&sha, md[part], sizeof(md[part]));
			sha256_end(&sha, md[3]);
			memmove(md[0], md[1], 3 * sizeof(md[0]));
		}
		memcpy(seed, md[3], sizeof(seed));
		if (count == 0)
			digest_is(seed, "e93c330ae5447738c8aa85d71a6c80f2"
					"a58381d05872d26bdd39f1fcd4f2b788");
	}
	digest_is(seed, "6a912ba4188391a78e6f13d88ed2d14e13afce9db6f7dcbf4a48c24f3db02778");
}

/* The message lies at the very end of its memory, so that a sanitizer sees a byte read too far. */
TEST(each_length_in_any_pieces_as_libcrypto_has_it)
{
	struct random random = random_seeded("unit_sha256");

	for (size_t n = 0; n <= LONGEST; n++) {
		uint8_t *message = malloc(n + 1), expected[SHA256_BYTES], digest[SHA256_BYTES];
		uint8_t *from = message + 1;

		assert_non_null(message);
		for (size_t i = 0; i < n; i++)
			from[i] = (uint8_t)random_below(&random, 256);
		(void)SHA256(from, n, expected);
		for (int cut = 0; cut <= CUTS; cut++) {
			struct sha256 sha;
			size_t done = 0;

			sha256_begin(&sha, way);
			while (done < n) {
				const size_t most = cut ? 1 + random_below(&random, 32u << cut) : n;
				const size_t piece = most < n - done ? most : n - done;

				sha256_add(&sha, from + done, piece);
				done += piece;
				sha256_add(&sha, NULL, 0);
			}
			sha256_end(&sha, digest);
			if (memcmp(digest, expected, sizeof(digest)))
				fail_msg("%zu bytes, cut %d", n, cut);
		}
		free(message);
	}
}
