/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_command.c - commands in the Redis protocol. Each is an array of bulk strings, written into
 * its own text. A value is not copied: its parts stay where they are in the image and become pieces
 * of their own. Contract: redis_command.h.
 *
 * Pure functions on the caller's memory: any thread. Every length here is our own (a name, a
 * number). So a command that does not fit is a programmer's error.
 */
#include "redis_command.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct text {
	char *bytes;
	size_t n, room;
};

static void put(struct text *t, const void *bytes, size_t n)
{
	assert(n <= t->room - t->n);
	memcpy(t->bytes + t->n, bytes, n);
	t->n += n;
}

__attribute__((format(printf, 2, 3))) static void put_format(struct text *t, const char *format,
							     ...)
{
	char line[64];
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	assert(n > 0 && (size_t)n < sizeof(line));
	put(t, line, (size_t)n);
}

static void put_bulk(struct text *t, const void *bytes, size_t n)
{
	put_format(t, "$%zu\r\n", n);
	put(t, bytes, n);
	put(t, "\r\n", 2);
}

static void put_word(struct text *t, const char *word)
{
	put_bulk(t, word, strlen(word));
}

static void put_number(struct text *t, uint64_t number)
{
	char digits[24];
	const int n = snprintf(digits, sizeof(digits), "%" PRIu64, number);

	put_bulk(t, digits, (size_t)n);
}

static struct text command_begin(struct redis_command *c, uint32_t words)
{
	struct text t = { .bytes = c->text, .room = sizeof(c->text) };

	c->n_pieces = 0;
	c->sealing = (struct redis_sealing){ 0 };
	put_format(&t, "*%" PRIu32 "\r\n", words);
	return t;
}

static void add_piece(struct redis_command *c, const void *bytes, size_t n)
{
	assert(c->n_pieces < REDIS_PIECES);
	c->pieces[c->n_pieces++] =
		(struct iovec){ .iov_base = (void *)(uintptr_t)bytes, .iov_len = n };
}

static void command_of_name(struct redis_command *c, const char *word, const char *name, size_t n)
{
	struct text t = command_begin(c, 2);

	put_word(&t, word);
	put_bulk(&t, name, n);
	add_piece(c, t.bytes, t.n);
}

void redis_command_get(struct redis_command *c, const char *name, size_t n)
{
	command_of_name(c, "GET", name, n);
}

void redis_command_exists(struct redis_command *c, const char *name, size_t n)
{
	command_of_name(c, "EXISTS", name, n);
}

void redis_command_length(struct redis_command *c, const char *name, size_t n)
{
	command_of_name(c, "STRLEN", name, n);
}

void redis_command_front(struct redis_command *c, const char *name, size_t n, uint32_t bytes)
{
	struct text t = command_begin(c, 4);

	put_word(&t, "GETRANGE");
	put_bulk(&t, name, n);
	put_number(&t, 0);
	put_number(&t, bytes - 1);
	add_piece(c, t.bytes, t.n);
}

int redis_command_set(struct redis_command *c, const char *name, size_t n, const uint8_t *image,
		      const struct image_shape *shape, const struct redis_seal *seal,
		      uint64_t ttl_ms)
{
	/* only its place: redis_send.c knows the MAC when all bytes before it are on their way */
	static const uint8_t mac[REDIS_MAC_BYTES];
	struct text t = command_begin(c, ttl_ms ? 5 : 3);
	struct redis_envelope envelope;
	size_t head;

	if (redis_envelope_make(&envelope))
		return -EIO;
	put_word(&t, "SET");
	put_bulk(&t, name, n);
	put_format(&t, "$%" PRIu32 "\r\n", shape->packed_bytes + REDIS_SEAL_BYTES);
	c->sealing.seal = seal;
	c->sealing.envelope = t.bytes + t.n;
	put(&t, &envelope, sizeof(envelope));
	head = t.n;
	c->sealing.mac = t.bytes + t.n;
	put(&t, mac, sizeof(mac));
	put(&t, "\r\n", 2);
	if (ttl_ms) {
		put_word(&t, "PX");
		put_number(&t, ttl_ms);
	}
	/* In memory, too, the scales lie right behind the header. */
	add_piece(c, t.bytes, head);
	add_piece(c, image, sizeof(struct image_header) + shape->scale_bytes);
	add_piece(c, image + shape->payload_offset, shape->payload_bytes);
	add_piece(c, t.bytes + head, t.n - head);
	return 0;
}

void redis_command_delete_if(struct redis_command *c, const char *name, size_t n,
			     const uint8_t sha1[20], bool packed, uint64_t length)
{
	/* The script compares the length first: that is cheap, and mostly shows that somebody has
	 * stored a better value since. */
	static const char script[] =
		"if redis.call('STRLEN',KEYS[1])==tonumber(ARGV[2]) and "
		"redis.sha1hex(string.sub(redis.call('GET',KEYS[1]),ARGV[3],ARGV[4]))==ARGV[1] "
		"then return redis.call('DEL',KEYS[1]) end return 0";
	struct text t = command_begin(c, 8);
	char hex[41];

	static_assert(REDIS_MAC_BYTES + 1 == 17, "the image's last byte, from the end");

	for (size_t i = 0; i < 20; i++)
		(void)snprintf(hex + 2 * i, 3, "%02x", sha1[i]);
	put_word(&t, "EVAL");
	put_word(&t, script);
	put_word(&t, "1");
	put_bulk(&t, name, n);
	put_bulk(&t, hex, 40);
	put_number(&t, length);
	put_number(&t, packed ? sizeof(struct redis_envelope) + 1 : 1);
	put_word(&t, packed ? "-17" : "-1");
	add_piece(c, t.bytes, t.n);
}

void redis_command_words(struct redis_command *c, const char *const *words, uint32_t n)
{
	struct text t = command_begin(c, n);

	for (uint32_t i = 0; i < n; i++)
		put_word(&t, words[i]);
	add_piece(c, t.bytes, t.n);
}

int redis_front_check(const struct redis_front *front, const struct image_identity *identity,
		      const struct image_geometry *geometry, struct image_shape *ret)
{
	const int r = redis_envelope_check(&front->envelope);

	if (r)
		return r;
	return image_header_check(&front->header, geometry, identity, ret) ? -EBADMSG : 0;
}

/* SHA-1, because endpoints have it (redis.sha1hex). The hash recognises a value that is broken
 * anyway; it protects nothing. */
void redis_image_sha1(const uint8_t *image, const struct image_shape *shape, uint8_t ret[20])
{
	EVP_MD_CTX *sha1 = EVP_MD_CTX_new();
	bool good = sha1 && EVP_DigestInit_ex(sha1, EVP_sha1(), NULL) == 1;

	good = good &&
	       EVP_DigestUpdate(sha1, image, sizeof(struct image_header) + shape->scale_bytes) == 1;
	good = good &&
	       EVP_DigestUpdate(sha1, image + shape->payload_offset, shape->payload_bytes) == 1;
	good = good && EVP_DigestFinal_ex(sha1, ret, NULL) == 1;
	EVP_MD_CTX_free(sha1);
	if (!good)
		/* no value has this hash: the value stays, which does no harm */
		memset(ret, 0, 20);
}
