/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_command.c - commands in the Redis protocol. Each is an array of bulk strings, written into
 * its own text. A value is not copied: its parts stay where they are in the image and become pieces
 * of their own. Contract: redis_command.h.
 *
 * The functions are pure, on the caller's memory, and any thread may call them. Every length here
 * is our own (a name, a number). So a command that does not fit is a programmer's error.
 */
#include "redis_command.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

static size_t begin(struct redis_command *c, int words)
{
	c->n_pieces = 0;
	c->sealing = (struct redis_sealing){ 0 };
	return (size_t)snprintf(c->text, sizeof(c->text), "*%d\r\n", words);
}

/* Behind the first *at bytes of the text. */
static void put_word(struct redis_command *c, size_t *at, const char *word)
{
	const size_t room = sizeof(c->text) - *at;
	const int n = snprintf(c->text + *at, room, "$%zu\r\n%s\r\n", strlen(word), word);

	assert(n > 0 && (size_t)n < room);
	*at += (size_t)n;
}

static void add_piece(struct redis_command *c, const void *bytes, size_t n)
{
	assert(c->n_pieces < REDIS_PIECES);
	c->pieces[c->n_pieces++] =
		(struct iovec){ .iov_base = (void *)(uintptr_t)bytes, .iov_len = n };
}

void redis_command_make(struct redis_command *c, const char *const *words)
{
	size_t at;
	int n = 0;

	while (words[n])
		n++;
	at = begin(c, n);
	for (; *words; words++)
		put_word(c, &at, *words);
	add_piece(c, c->text, at);
}

int redis_command_set(struct redis_command *c, const char *name, const uint8_t *image,
		      const struct image_shape *shape, struct redis_coded coded,
		      const struct redis_seal *seal, uint64_t ttl_ms)
{
	const uint32_t header = sizeof(struct image_header),
		       image_bytes = coded.n ? header + coded.n : shape->packed_bytes;
	struct redis_envelope envelope;
	size_t at = begin(c, ttl_ms ? 5 : 3), head;
	char ttl[24];

	if (redis_envelope_make(&envelope, coded.n      ? REDIS_VALUE_CODED :
					   coded.lesser ? REDIS_VALUE_LESSER :
							  REDIS_VALUE_FORM))
		return -EIO;
	put_word(c, &at, "SET");
	put_word(c, &at, name);
	at += (size_t)snprintf(c->text + at, sizeof(c->text) - at, "$%" PRIu32 "\r\n",
			       image_bytes + (uint32_t)REDIS_SEAL_BYTES);
	c->sealing.seal = seal;
	c->sealing.envelope = c->text + at;
	memcpy(c->sealing.envelope, &envelope, sizeof(envelope));
	head = at += sizeof(envelope);
	/* only its place: redis_row.c knows the MAC when all bytes before it are on their way */
	c->sealing.mac = c->text + at;
	memset(c->sealing.mac, 0, REDIS_MAC_BYTES);
	at += REDIS_MAC_BYTES;
	c->text[at++] = '\r';
	c->text[at++] = '\n';
	if (ttl_ms) {
		(void)snprintf(ttl, sizeof(ttl), "%" PRIu64, ttl_ms);
		put_word(c, &at, "PX");
		put_word(c, &at, ttl);
	}
	/* In memory as well the scales lie right behind the header. */
	add_piece(c, c->text, head);
	add_piece(c, image, header + (coded.n ? 0 : shape->scale_bytes));
	if (coded.n)
		add_piece(c, coded.bytes, coded.n);
	else
		add_piece(c, image + shape->payload_offset, shape->payload_bytes);
	add_piece(c, c->text + head, at - head);
	return 0;
}

void redis_command_delete_if(struct redis_command *c, const char *name, const uint8_t sha1[20],
			     enum redis_part part, uint64_t length)
{
	/* the first and the last byte, as Redis counts: from 1, or from the end */
	static const char *const ends[][2] = { [REDIS_PART_WHOLE] = { "1", "-1" },
					       [REDIS_PART_IMAGE] = { "33", "-17" },
					       [REDIS_PART_FRONT] = { "1", "160" } };

	/* The script compares the length first: that is cheap, and mostly shows that somebody has
	 * stored a better value since. */
	static const char script[] =
		"if redis.call('STRLEN',KEYS[1])==tonumber(ARGV[2]) and "
		"redis.sha1hex(string.sub(redis.call('GET',KEYS[1]),ARGV[3],ARGV[4]))==ARGV[1] "
		"then return redis.call('DEL',KEYS[1]) end return 0";
	char hex[41], bytes[24];

	static_assert(sizeof(struct redis_envelope) + 1 == 33, "the image's first byte");
	static_assert(REDIS_MAC_BYTES + 1 == 17, "the image's last byte, from the end");
	static_assert(sizeof(struct redis_front) == 160, "the front's last byte");

	for (size_t i = 0; i < 20; i++)
		(void)snprintf(hex + 2 * i, 3, "%02x", sha1[i]);
	(void)snprintf(bytes, sizeof(bytes), "%" PRIu64, length);
	redis_command_make(c, (const char *const[]){ "EVAL", script, "1", name, hex, bytes,
						     ends[part][0], ends[part][1], NULL });
}

void redis_command_refresh(struct redis_command *c, const char *name, uint64_t ttl_ms)
{
	static const char script[] = "local left=redis.call('PTTL',KEYS[1]) "
				     "if left>=0 and left<ARGV[1]/2 then "
				     "return redis.call('PEXPIRE',KEYS[1],ARGV[1]) end return 0";
	char ttl[24];

	(void)snprintf(ttl, sizeof(ttl), "%" PRIu64, ttl_ms);
	redis_command_make(c, (const char *const[]){ "EVAL", script, "1", name, ttl, NULL });
}

int redis_front_check(const struct redis_front *front, const struct image_identity *identity,
		      const struct image_geometry *geometry, struct image_shape *ret)
{
	const int r = redis_envelope_check(&front->envelope);

	if (r)
		return r;
	if (front->envelope.form == REDIS_VALUE_LESSER && front->header.codec_v != CODEC_V4)
		return -EBADMSG;
	return image_header_check(&front->header, geometry, identity, ret) ? -EBADMSG : 0;
}

/* SHA-1, because endpoints have it (redis.sha1hex). The hash recognises a value that is broken
 * anyway, and is no protection. */
static void sha1_of(const void *a, size_t n_a, const void *b, size_t n_b, uint8_t ret[20])
{
	EVP_MD_CTX *sha1 = EVP_MD_CTX_new();
	bool good = sha1 && EVP_DigestInit_ex(sha1, EVP_sha1(), NULL) == 1;

	good = good && EVP_DigestUpdate(sha1, a, n_a) == 1;
	good = good && EVP_DigestUpdate(sha1, b, n_b) == 1;
	good = good && EVP_DigestFinal_ex(sha1, ret, NULL) == 1;
	EVP_MD_CTX_free(sha1);
	if (!good)
		/* no value has this hash: the value stays, which does no harm */
		memset(ret, 0, 20);
}

void redis_front_sha1(const struct redis_front *front, uint8_t ret[20])
{
	sha1_of(&front->envelope, sizeof(front->envelope), &front->header, sizeof(front->header),
		ret);
}

void redis_image_sha1(const uint8_t *image, const struct image_shape *shape, uint8_t ret[20])
{
	sha1_of(image, sizeof(struct image_header) + shape->scale_bytes,
		image + shape->payload_offset, shape->payload_bytes, ret);
}

/* --- sentences --- */

void redis_words_clean(char *ret, size_t room, const char *words, size_t n)
{
	size_t i;

	for (i = 0; i < n && i + 1 < room; i++)
		ret[i] = words[i] >= ' ' && words[i] <= '~' ? words[i] : '?';
	ret[i] = 0;
}

/* The words are cleaned, and may have been cut in the middle of the secret: so its cleaned
 * beginning is looked for. */
bool redis_words_betray(const char *words, const char *secret)
{
	char beginning[9];

	redis_words_clean(beginning, sizeof(beginning), secret, strlen(secret));
	return beginning[0] && strstr(words, beginning);
}

/* Redis repeats a command that it did not understand, and a password may be in it. */
void redis_words_show(const char *words, const char *password, char *ret, size_t n)
{
	const char *echo = strstr(words, ", with args");
	const size_t shown = echo ? (size_t)(echo - words) : strlen(words);

	(void)snprintf(ret, n, "%.*s", (int)shown, words);
	if (redis_words_betray(ret, password))
		(void)snprintf(ret, n, "an error whose words repeat the password");
}
