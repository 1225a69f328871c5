/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_command.h - a command and its reply. A command lies in its owner (a job, a chore), is
 * filled by one of the functions below, and is lent to a connection (redis_conn.h) until done()
 * ran. The functions are pure; any thread.
 */
#ifndef KVTIER_REDIS_COMMAND_H
#define KVTIER_REDIS_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "kernels/image.h"
#include "redis_words.h"
#include "tiers/redis/redis_seal.h"

struct redis_conn;
struct redisReply;

enum {
	REDIS_COMMAND_BYTES = 640, /* of a command without its value */
	REDIS_PIECES = 4,
};

/* The first bytes of a value. */
struct redis_front {
	struct redis_envelope envelope;
	struct image_header header;
};
static_assert(sizeof(struct redis_front) ==
		      sizeof(struct redis_envelope) + sizeof(struct image_header),
	      "redis_front");

/* A GET: which block the value must be, and where its image goes. */
struct redis_value {
	const struct image_identity *identity;
	const struct image_geometry *geometry;
	const struct redis_seal *seal; /* the tenant's */
	uint8_t *buffer;               /* for an image and its padding, which is zeroed */
	/* bytes there, and up to the next multiple of 4096 behind them (tier.h) */
	uint32_t room;
	/* ret: bytes of the image (status 0), or the room that it would need (-EFBIG) */
	uint32_t bytes;
	uint64_t length; /* ret: of the value as it came; 0: there was none */
	/* ret, with -EBADMSG and -EKEYREJECTED: the value's hash, if `hashed` */
	uint8_t sha1[20];
	bool hashed;
	/* sha1 is of the packed image in the value, not of the whole value */
	bool packed;
};

/* A SET: the connection seals the value while it sends it. */
struct redis_sealing {
	const struct redis_seal *seal; /* NULL: this command is no SET */
	char *envelope, *mac;          /* in the command's text */
	uint64_t done;                 /* bytes of the packed image that went through the MAC */
	bool ended;                    /* all bytes went through it, and *mac is complete */
};

struct redis_command {
	/* the caller's */
	struct iovec pieces[REDIS_PIECES]; /* the bytes to send, in order; may point into text */
	uint32_t n_pieces;
	char text[REDIS_COMMAND_BYTES];
	struct redis_value *value;    /* GET: where the bulk goes. NULL: the reply is small */
	struct redis_sealing sealing; /* SET: pieces 1 and 2 are the packed image */
	uint64_t deadline_ns;         /* CLOCK_MONOTONIC */
	void (*done)(struct redis_command *c);
	/*
	 * Set before done():
	 *	0		a reply that is no error; in `reply`, or with `value` in its buffer
	 *	-ENOENT		value: nil
	 *	-EBADMSG	value: not this block, or damaged, or no bulk
	 *	-EKEYREJECTED	value: all is right but the MAC
	 *	-ENOTSUP	value: of another form, by an older or newer kvtierd
	 *	-EFBIG		value: larger than `room`
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

/* Fill pieces and text. `name` is the value's name as redis.h has it, n bytes. */
void redis_command_get(struct redis_command *c, const char *name, size_t n);
void redis_command_exists(struct redis_command *c, const char *name, size_t n);
/* STRLEN: 0 if there is no value. */
void redis_command_length(struct redis_command *c, const char *name, size_t n);
/* GETRANGE: the first `bytes` of the value come as a small reply; fewer if the value is shorter, ""
 * if there is none. */
void redis_command_front(struct redis_command *c, const char *name, size_t n, uint32_t bytes);
/* image: complete, as in memory; its packed parts become pieces. ttl_ms 0: none. -EIO: no nonce can
 * be had. */
int redis_command_set(struct redis_command *c, const char *name, size_t n, const uint8_t *image,
		      const struct image_shape *shape, const struct redis_seal *seal,
		      uint64_t ttl_ms);
/* EVAL: deletes the value if it has this length and this SHA-1 (packed: of the image in it). The
 * reply is 1 or 0. */
void redis_command_delete_if(struct redis_command *c, const char *name, size_t n,
			     const uint8_t sha1[20], bool packed, uint64_t length);
/* Any other command, by its words: CLUSTER SLOTS, ASKING, PING, REPLICAOF... */
void redis_command_words(struct redis_command *c, const char *const *words, uint32_t n);

/* Whether envelope and header of a value are this block's; its shape. -ENOTSUP: of another form;
 * -EBADMSG. */
int redis_front_check(const struct redis_front *front, const struct image_identity *identity,
		      const struct image_geometry *geometry, struct image_shape *ret);
/* of the packed image */
void redis_image_sha1(const uint8_t *image, const struct image_shape *shape, uint8_t ret[20]);

#endif
