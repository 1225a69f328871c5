/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_row.h - the inside of a connection: its state, and the row in which its commands wait to be
 * sent and then for their replies. Only the files of this folder include it. All functions run on
 * the thread of the connection's loop. The files call each other in this order: redis_conn.c ->
 * redis_recv.c -> redis_row.c.
 *
 * Entries are numbered in the order of submission; entry n lies at n modulo REDIS_CONN_COMMANDS.
 *
 *	first                  unsent                  last
 *	  │ sent, reply to come  │ perhaps partly out    │
 *	  v                      v (out_at bytes)        v
 *	  [ also ended entries   | ..................... )
 *
 * Invariants
 *   R1 first <= unsent <= last. A reply belongs to entry `first`, which lies before `unsent`.
 *   R2 an ended entry (without a command) lies before `unsent`: a command that was not sent at all
 *      leaves the row when it ends.
 *   R3 only callbacks of the loop end commands. submit and cancel set a timer, which fires in the
 *      same iteration of the loop or the next; done() may call both.
 *
 * Deadlines. Each entry with a command has the command's deadline; one timer of the connection
 * looks at the earliest. An entry that ended stays for its reply, for ENDED_PATIENCE_NS
 * (redis_row.c) at most; then the connection is closed.
 */
#pragma once

#include "base/loop.h"
#include "redis_conn.h"
#include "redis_recv.h"

struct redis_row_entry {
	struct redis_command *command; /* NULL: it has ended, and its reply is thrown away */
	uint64_t bytes;                /* to send in all */
	uint32_t expects;              /* most bytes that its value may have */
	uint64_t ended_ns;
	bool canceled; /* ends as soon as it can */
};

/* The password, and the AUTH command that contains it. */
struct redis_secret {
	char password[REDIS_SECRET_BYTES];
	size_t auth_bytes;
	char auth[2 * REDIS_SECRET_BYTES + 64];
};

/* It lies in a mapping of its own that core dumps leave out, since values go through `in`. */
struct redis_conn {
	struct loop *loop;
	struct loop_watch watch; /* fd -1: closed */
	struct loop_timer timer; /* deadlines */
	struct loop_timer flush; /* sends all that was submitted in this iteration of the loop */
	struct loop_timer again; /* reads on: TLS has bytes that epoll does not know of */
	struct redis_tls_stream *tls; /* from SECURING on; may be NULL */
	char *host;                   /* until SECURING; conf.tls */
	struct redis_conn_conf conf;  /* its strings are gone after open */
	enum redis_conn_state state;
	/* of DOWN. CONNECTING: it was refused in open(), and changed() will tell */
	int why;
	char text[REDIS_TEXT_BYTES];
	struct redis_secret *secret; /* of vault.h; until UP; may be NULL */
	struct redis_command greeting;
	bool wants_writable; /* EPOLLOUT is asked for */
	bool sleeps_long;    /* TCP without TLS: woken when much of a value is there */
	int wake_bytes;      /* SO_RCVLOWAT; 0: as it was */
	uint32_t first, unsent, last;
	uint64_t out_at;  /* bytes of entry `unsent` that are out */
	EVP_MAC_CTX *mac; /* of the value that is being sent */
	/* the SET that mac belongs to, while it has begun and not ended */
	const struct redis_command *sealing;
	uint64_t unsent_bytes, expected_bytes; /* expected: of all entries, ended ones included */
	struct redis_row_entry row[REDIS_CONN_COMMANDS];
	struct redis_recv in;
};

static inline struct redis_row_entry *redis_row_at(struct redis_conn *c, uint32_t number)
{
	return &c->row[number % REDIS_CONN_COMMANDS];
}

/* There is room in the row. */
void redis_row_push(struct redis_conn *c, struct redis_command *command);
/* The first entry's reply has come in whole. The entry leaves the row, then done() runs. */
void redis_row_answered(struct redis_conn *c, int status, const struct redisReply *reply);
/* Deadlines are looked at then, or sooner. */
void redis_row_arm(struct redis_conn *c, uint64_t due_ns);
void redis_row_on_timer(struct loop_timer *timer); /* redis_conn.timer */
void redis_row_forget(struct redis_conn *c);       /* overwrites and frees the secret */
/* Closes the socket, unsets the timers, forgets the secret; all commands end with -ECONNRESET. */
void redis_row_shut(struct redis_conn *c);
/* DOWN: shut, and changed() is told. text: ours, or cleaned (redis_command.h). */
void redis_row_down(struct redis_conn *c, int why, const char *text);
/* DOWN: the socket or TLS has failed */
void redis_row_failed(struct redis_conn *c, int why);

/* Sends entries from `unsent` on, half a MiB at most. -errno: the socket, or TLS, has failed, and
 * the caller sees to it. */
int redis_row_send(struct redis_conn *c);
/* Whether the loop is to tell that the socket takes bytes. */
void redis_row_want(struct redis_conn *c, bool writable);
/* TLS: reading may leave bytes to read, or something to send */
void redis_row_after_read(struct redis_conn *c);
