/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_recv.h - the receiving side of a connection (redis_row.h). States and bounds are explained
 * in redis_recv.c. All functions run on the thread of the connection's loop.
 */
#pragma once

#include <hiredis/hiredis.h>
#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/form.h"
#include "redis_command.h"

struct redis_conn;

enum {
	REDIS_RECV_BUFFER_BYTES = 16 << 10,
	/* of chunks of a coded image, until they are whole: more than one of the largest and all
	 * that may be in the buffer above */
	REDIS_RECV_STAGE_BYTES = 192 << 10,
};

/* The object that the next bytes belong to. */
enum redis_recv_state {
	RECV_LINE,   /* a new reply */
	RECV_SMALL,  /* a reply that hiredis parses */
	RECV_HEADER, /* a value whose header is not complete */
	RECV_BODY,   /* a value for its buffer, and its CR LF */
	RECV_SKIP,   /* a value that is thrown away, and its CR LF */
};

struct redis_recv {
	enum redis_recv_state state;
	redisReader *reader;
	redisReplyObjectFunctions functions; /* the reader's, with bounds on arrays */
	uint32_t small_bytes;                /* SMALL: of this reply */
	uint64_t length;                     /* of the value */
	int status;                          /* SKIP: of the command, when its reply has ended */
	uint64_t left;                       /* SKIP: bytes of the value still to come */
	bool hashing;                        /* SKIP: for redis_command_delete_if() */
	EVP_MD_CTX *sha1;
	uint64_t body;  /* BODY: bytes behind the header that are in place, or came into stage */
	uint64_t maced; /* BODY: of these, how many went through the MAC */
	EVP_MAC_CTX *mac[REDIS_SEALS_EACH]; /* BODY: the first `macs`, one under each seal */
	uint32_t macs;
	struct image_shape shape;
	/* BODY: a coded image. `staged` bytes in stage are no whole chunk yet. */
	bool coded;
	struct form_unpack unpack;
	struct redis_front front;
	uint32_t staged;
	uint8_t *stage; /* of vault_buffer(); NULL: none has come so far */
	const struct codec_kernels *kernels;
	uint32_t at, end; /* of bytes: the part that is not parsed yet */
	uint8_t bytes[REDIS_RECV_BUFFER_BYTES];
};

int redis_recv_open(struct redis_recv *in);   /* 0 or -ENOMEM */
void redis_recv_close(struct redis_recv *in); /* may be half-open */
/* Reads and parses the bytes that are there, half a MiB at most. */
void redis_recv_poll(struct redis_conn *c);
