/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_command.h - a command and its reply. A command lies in its owner (a job, a chore). One of
 * the functions below fills it, and it is lent to a connection (redis_conn.h) until done() has run.
 * The functions are pure, and any thread may call them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "kernels/image.h"
#include "redis_seal.h"

struct redis_conn;
struct redisReply;

enum {
	REDIS_COMMAND_BYTES = 640, /* of a command without its value */
	REDIS_PIECES = 4,
	REDIS_TEXT_BYTES = 256, /* of an endpoint's sentence, with its 0 */
};

/* The first bytes of a value. */
struct redis_front {
	struct redis_envelope envelope;
	struct image_header header;
};
static_assert(sizeof(struct redis_front) ==
		      sizeof(struct redis_envelope) + sizeof(struct image_header),
	      "redis_front");

/* What a hash that recognises a value is of. */
enum redis_part {
	REDIS_PART_WHOLE,
	REDIS_PART_IMAGE, /* the packed image in it */
	/* The first bytes, whose nonce no other write has: a coded image is not kept as it came. */
	REDIS_PART_FRONT,
};

/* A GET: which block the value must be, and where its image is written. */
struct redis_value {
	const struct image_identity *identity;
	const struct image_geometry *geometry;
	const struct redis_seal *seal; /* the tenant's */
	uint8_t *buffer;               /* for an image and its padding, which is zeroed */
	/* bytes of the buffer, which goes on to the next multiple of 4096 behind them (tier.h) */
	uint32_t room;
	/* ret: bytes of the image (status 0), or the room that it would need (-EFBIG) */
	uint32_t bytes;
	uint64_t length; /* ret: of the value as it came; 0: there was no value */
	bool outdated;   /* ret, with status 0: its seal is not the one that is written */
	/* ret, with -EBADMSG and -EKEYREJECTED: the value's hash, if `hashed` */
	uint8_t sha1[20];
	bool hashed;
	enum redis_part part; /* that sha1 is of */
};

/* A SET: the connection seals the value while it sends it. */
struct redis_sealing {
	const struct redis_seal *seal; /* NULL: this command is no SET */
	char *envelope, *mac;          /* in the command's text */
	uint64_t done;                 /* bytes of header and rest that went through the MAC */
	bool ended;                    /* all bytes went through it, and *mac is complete */
};

struct redis_command {
	/* the caller's */
	struct iovec pieces[REDIS_PIECES]; /* the bytes to send, in order; may point into text */
	uint32_t n_pieces;
	char text[REDIS_COMMAND_BYTES];
	struct redis_value *value; /* GET: where the value is written. NULL: the reply is small */
	struct redis_sealing sealing; /* SET: pieces 1 and 2 are the image, packed or coded */
	uint64_t deadline_ns;         /* CLOCK_MONOTONIC */
	void (*done)(struct redis_command *c);
	/*
	 * Set before done():
	 *	0		a reply that is no error; in `reply`, or with `value` in its buffer
	 *	-ENOENT		there is no such value (nil)
	 *	-EBADMSG	the value is not this block, or it is damaged, or it is no bulk
	 *	-EKEYREJECTED	all of the value is right but the MAC
	 *	-ENOTSUP	the value is of another form, by an older or newer kvtierd
	 *	-EFBIG		the value is larger than `room`
	 *	-EREMOTEIO	an error reply, in `error`
	 *	-ETIMEDOUT, -ECANCELED, -ECONNRESET: no reply
	 */
	int status;
	const struct redisReply *reply; /* a small reply, or NULL; valid during done() */
	char error[REDIS_TEXT_BYTES];   /* of an error reply, without '-', cleaned; else "" */
	/* the connection's */
	struct redis_conn *conn;
	uint32_t number; /* of its row entry */
	bool lent;
};

/* Fill pieces and text. */

/* The words end with NULL: { "GET", name, NULL }. */
void redis_command_make(struct redis_command *c, const char *const *words);
/* The coded form of an image; n 0: the image is sent as it is, which may be a lesser one. */
struct redis_coded {
	const uint8_t *bytes;
	uint32_t n;
	bool lesser;
};
/* SET. The image is complete, as it lies in memory; its packed parts become pieces of the command,
 * or its header and its coded form. ttl_ms 0: the value stays. -EIO: the system gives no random
 * bytes. */
int redis_command_set(struct redis_command *c, const char *name, const uint8_t *image,
		      const struct image_shape *shape, struct redis_coded coded,
		      const struct redis_seal *seal, uint64_t ttl_ms);
/* EVAL: deletes the value if it still has this length, and its part this SHA-1. The reply is 1 or
 * 0. */
void redis_command_delete_if(struct redis_command *c, const char *name, const uint8_t sha1[20],
			     enum redis_part part, uint64_t length);
/* EVAL: the value stays for ttl_ms from now on, if less than half of it is left. The reply is 1 or
 * 0. */
void redis_command_refresh(struct redis_command *c, const char *name, uint64_t ttl_ms);

/* 0: envelope and header of the value are this block's, and *ret is the shape of its image.
 * -ENOTSUP: the value is of another form. -EBADMSG: it is not this block's. */
int redis_front_check(const struct redis_front *front, const struct image_identity *identity,
		      const struct image_geometry *geometry, struct image_shape *ret);
void redis_front_sha1(const struct redis_front *front, uint8_t ret[20]);
/* The SHA-1 of the packed image. */
void redis_image_sha1(const uint8_t *image, const struct image_shape *shape, uint8_t ret[20]);

/* --- an endpoint's sentences, made fit for people: it may repeat a password --- */

/* n bytes of `words` into ret, cut to `room` with the 0. A byte that is not printable ASCII becomes
 * '?'. */
void redis_words_clean(char *ret, size_t room, const char *words, size_t n);
/* Whether cleaned words repeat this secret, or its first bytes: then they may not be shown. */
bool redis_words_betray(const char *words, const char *secret);
/* Cleaned words for a log line or a status: cut where they begin to repeat a command, and replaced
 * by another sentence where the password is in them. */
void redis_words_show(const char *words, const char *password, char *ret, size_t n);
