/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_recv.h - the receiving side of a connection (redis_row.h); on the thread of its loop.
 * States and bounds are explained in redis_recv.c.
 */
#ifndef KVTIER_REDIS_RECV_H
#define KVTIER_REDIS_RECV_H

#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/image.h"
#include "resp.h"

struct redisReader;
struct redis_conn;
struct redis_mac;

enum { REDIS_RECV_BUFFER_BYTES = 16 << 10 }; /* more than a line: RESP_LINE_BYTES */

/* The object that the next bytes belong to. */
enum redis_recv_state {
	RECV_LINE,   /* a new reply */
	RECV_SMALL,  /* a small reply: framed by `skip`, kept in `reader` */
	RECV_HEADER, /* a value whose header is not complete */
	RECV_BODY,   /* a value that goes to its buffer, and its CR LF */
	RECV_SKIP,   /* a reply that is thrown away up to its end (skip) */
};

struct redis_recv {
	enum redis_recv_state state;
	struct resp_skip skip;
	int status; /* SKIP: of the command, when its reply has ended */
	bool push;  /* SKIP: nobody's reply */
	/* of pushes since the last reply: nobody asked for a stream of them */
	uint64_t push_bytes;
	bool hashing; /* SKIP: a value, for redis_command_delete_if() */
	uint64_t hash_left;
	EVP_MD_CTX *sha1;
	struct redisReader *reader; /* NULL: to be made */
	size_t small_bytes;         /* in the reader */
	uint64_t length;            /* HEADER, BODY: of the value */
	uint64_t body;              /* BODY: bytes behind the header that are in place */
	uint64_t maced;             /* BODY: of these, how many went through the MAC */
	struct redis_mac *mac;
	struct image_shape shape;
	uint32_t at, end; /* of bytes: the part that is not parsed yet */
	uint8_t bytes[REDIS_RECV_BUFFER_BYTES];
};

int redis_recv_open(struct redis_recv *in);   /* 0 or -ENOMEM */
void redis_recv_close(struct redis_recv *in); /* half-open is fine */
/* reads and parses the bytes that are there, half a MiB at most */
void redis_recv_turn(struct redis_conn *c);

#endif
