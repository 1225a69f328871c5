/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_conn_inner.h - what the files of a connection share: redis_conn.c (the row of places,
 * deadlines, the end), redis_open.c (connecting, TLS, AUTH), redis_send.c (sending) and
 * redis_recv.c (receiving). Everything on the loop's thread.
 *
 * The row: places are numbered in the order of submission, a place's number modulo
 * REDIS_CONN_COMMANDS is its index.
 *
 *	first                    unsent                     last
 *	  │ sent, reply to come    │ this one partly out       │
 *	  v                        v (out_at bytes), or not    v
 *	  [ ... ended ones too ... | ........................ )
 */
#ifndef KVTIER_REDIS_CONN_INNER_H
#define KVTIER_REDIS_CONN_INNER_H

#include <openssl/evp.h>

#include "daemon/base/loop.h"
#include "redis_conn.h"
#include "redis_tls.h"
#include "resp.h"

struct redisReader;

enum {
	RECV_BUFFER_BYTES = 16 << 10,	/* more than a line: RESP_LINE_BYTES */
	RECV_TURN_BYTES = 512 << 10,	/* read at one go; then others have their turn */
	RECV_WAKE_BYTES = 512 << 10,	/* of a body that are waited for */
};

/* What the next bytes belong to. */
enum recv_state {
	RECV_LINE,	/* a new reply */
	RECV_SMALL,	/* one that is framed (skip) and kept in the reader */
	RECV_HEADER,	/* a value whose header is not complete */
	RECV_BODY,	/* a value that goes to its buffer, and its CR LF */
	RECV_SKIP,	/* something that is thrown away up to its end (skip) */
};

struct recv {
	enum recv_state state;
	struct resp_skip skip;
	int status;			/* SKIP: of the command, when its reply has ended */
	bool push;			/* SKIP: nobody's reply */
	/* of such since the last reply: nobody asked for a stream of them */
	uint64_t push_bytes;
	bool hashing;			/* SKIP: a value, for redis_command_delete_if() */
	uint64_t hash_left;
	EVP_MD_CTX *sha1;
	struct redisReader *reader;	/* NULL: to be made */
	size_t small_bytes;		/* in the reader */
	uint64_t length;		/* HEADER, BODY: of the value */
	uint64_t body;			/* BODY: bytes behind the header that are in place */
	uint64_t maced;			/* BODY: of those, what went through the MAC */
	struct redis_mac *mac;
	struct image_shape shape;
	uint32_t at, end;		/* of bytes: what is not parsed yet */
	uint8_t bytes[RECV_BUFFER_BYTES];
};

struct place {
	struct redis_command *command;	/* NULL: it has ended, its reply is nobody's */
	uint64_t bytes;			/* to send in all */
	uint32_t expects;		/* bytes of a value, at most as they were asked for */
	uint64_t ended_ns;
	bool canceled;			/* ends as soon as it can */
};

/* The password, and the AUTH command with it. */
struct redis_secret {
	char password[REDIS_SECRET_BYTES];
	size_t auth_bytes;
	char auth[2 * REDIS_SECRET_BYTES + 64];
};

/* a mapping of its own, left out of core dumps: values go through `in` */
struct redis_conn {
	struct loop *loop;
	struct loop_watch watch;	/* fd -1: none */
	struct loop_timer timer;	/* deadlines */
	/* sends what was submitted in this turn of the loop, all at once */
	struct loop_timer flush;
	struct loop_timer again;	/* reads on: TLS has bytes that epoll does not know of */
	struct tls_stream *tls;		/* from SECURING on, or NULL: there is none */
	char *host;			/* until then; conf.tls */
	struct redis_conn_conf conf;	/* its strings are gone after open */
	enum redis_conn_state state;
	/* DOWN; CONNECTING: refused already, to be told from the loop */
	int why;
	char text[REDIS_TEXT_BYTES];
	struct redis_secret *secret;	/* of vault.h; until UP, or NULL: there is none */
	struct redis_command greeting;
	bool wants_writable;		/* EPOLLOUT is asked for */
	bool sleeps_long;		/* TCP without TLS: woken when much of a value is there */
	int wake_bytes;			/* SO_RCVLOWAT; 0: as it was */
	uint32_t first, unsent, last;
	uint64_t out_at;		/* bytes of place `unsent` that are out */
	struct redis_mac *mac;		/* of the value that goes out */
	const struct redis_command *sealing;	/* whose it is, while it has begun and not ended */
	uint64_t unsent_bytes, expected_bytes;	/* expected: of all places, ended ones included */
	struct place places[REDIS_CONN_COMMANDS];
	struct recv in;
	struct redis_conn_counters counters;
};

static inline struct place *conn_place(struct redis_conn *c, uint32_t number)
{
	return &c->places[number % REDIS_CONN_COMMANDS];
}

/* Endpoint's words, or others', into ret: cut, and nothing in it that a terminal or a log would
 * mind. */
void conn_words(char *ret, size_t room, const char *words, size_t n);
/* The connection is over: all commands end, changed() is told. text: ours, or conn_words()ed. */
void conn_down(struct redis_conn *c, int why, const char *text);
/* The reply of the first place has been taken in whole; it is gone from the row before done() runs.
 * */
void conn_answered(struct redis_conn *c, int status, const struct redisReply *reply);

/* Callbacks, and that there is no socket yet. */
void conn_prepare(struct redis_conn *c);
/* Puts a command into the row, where there is a place. */
void conn_push(struct redis_conn *c, struct redis_command *command);
/* deadlines are looked at then, or sooner */
void conn_arm(struct redis_conn *c, uint64_t due_ns);
void conn_failed(struct redis_conn *c, int why);	/* DOWN: the socket, or TLS, has said so */

/* redis_open.c */
void conn_connected(struct redis_conn *c);	/* or refused: the socket knows */
void conn_secure(struct redis_conn *c);		/* SECURING: goes on */
void conn_forget_secret(struct redis_conn *c);

/* redis_send.c */
void conn_send(struct redis_conn *c);		/* what is unsent, SEND_TURN_BYTES at most */
/* whether to be told that the socket takes bytes */
void conn_want(struct redis_conn *c, bool writable);
/* after reading: there may be more, and something to send */
void conn_tls_read(struct redis_conn *c);

/* redis_recv.c */
int  recv_open(struct recv *in);		/* 0 or -ENOMEM */
void recv_close(struct recv *in);		/* half-open is fine */
/* reads and parses what is there, RECV_TURN_BYTES at most */
void recv_turn(struct redis_conn *c);
/* what is coming in for the first place is nobody's any more */
void recv_abandon(struct redis_conn *c);

#endif
