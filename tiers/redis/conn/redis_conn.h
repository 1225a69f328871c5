/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_conn.h - one connection to one endpoint. Commands go out in the order of submission and
 * replies come back in that order. A value is moved straight between the socket and the caller's
 * memory; with TLS (redis_tls.h) it passes through OpenSSL's buffers. hiredis connects, makes
 * AUTH, and parses every reply but a value (redis_recv.c).
 *
 * All functions run on the thread of the loop that the connection was opened with, and no function
 * blocks. No memory is allocated for a command, but hiredis allocates small replies, and OpenSSL a
 * few hundred bytes while it makes a value's MAC.
 *
 *	CONNECTING ──> SECURING ──TLS──> GREETING ──AUTH──> UP ──EOF, error, C3──> DOWN
 *	     │             │                 │                                      ^
 *	     └─────────────┴─────────────────┴── refused, deadline, -WRONGPASS... ──┘
 *
 * Invariants
 *   C1 done() of a command runs exactly once, from the loop, never inside redis_conn_submit().
 *   C2 after done() neither the command nor its buffers are touched. A command that ended before
 *      its reply came (deadline, cancel) leaves an entry in the row (redis_row.h); its reply is
 *      parsed and thrown away.
 *   C3 a command whose bytes are partly out cannot be taken back: at its deadline the connection is
 *      closed.
 *   C4 a value's length is checked before its header, and its header before a byte of its body is
 *      accepted. Status 0 says that its MAC (redis_seal.h) is of a seal of the tenant's.
 *   C5 DOWN is the end. The owner closes the connection, and opens another when it likes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "redis_command.h"

struct loop;
struct redis_conn;
struct redis_tls;

enum {
	/* entries of a connection's row: commands, and entries whose command ended unanswered */
	REDIS_CONN_COMMANDS = 128,
	REDIS_SMALL_BYTES = 1 << 20, /* of a small reply; a slot map is the largest */
	REDIS_SECRET_BYTES = 512,    /* username, password; with the 0 */
};

enum redis_conn_state {
	REDIS_CONN_CONNECTING,
	REDIS_CONN_SECURING,
	REDIS_CONN_GREETING,
	REDIS_CONN_UP,
	REDIS_CONN_DOWN,
};

struct redis_conn_counters {
	uint64_t received_bytes, sent_bytes; /* of values */
	uint64_t heard_bytes;                /* all that came, of whatever */
	/* late: replies whose command had ended. protocol_errors: bytes that are no reply */
	uint64_t late, protocol_errors;
};

/* redis_conn_open() copies the strings. */
struct redis_conn_conf {
	/* "127.0.0.1:6379", "[::1]:6379", "unix:/path": no name is looked up here */
	const char *address;
	const char *username, *password; /* may be "" */
	/* outlives the connection; may be NULL. A unix: address is connected to without TLS */
	const struct redis_tls *tls;
	const struct redis_seals *seals; /* outlive the connection; may be NULL */
	const char *host;                /* with tls: the name that the certificate must have */
	uint64_t deadline_ns;            /* for all steps up to UP together */
	uint32_t max_value_bytes;        /* a longer value is refused by its length */
	/* The state changed. At DOWN all commands have ended with -ECONNRESET before, and
	 * redis_conn_why() says why. This call may not close the connection; a timer of the owner
	 * may. */
	void (*changed)(struct redis_conn *c, void *arg);
	/* A late reply came: redis_conn_expected_bytes() is less now, and no done() tells. May be
	 * NULL. */
	void (*room)(struct redis_conn *c, void *arg);
	void *arg;
	struct redis_conn_counters *counters; /* added to; outlive the connection */
};

/* -EINVAL: address; -ENOMEM; -errno of socket(). changed() tells that a connection was refused. */
int redis_conn_open(struct loop *loop, const struct redis_conn_conf *conf, struct redis_conn **ret);
/* Lent commands end with -ECONNRESET. May not be called inside done() or changed(). */
void redis_conn_close(struct redis_conn *c);
enum redis_conn_state redis_conn_state(const struct redis_conn *c);
/*
 * Why the connection is DOWN. *ret_text is a sentence about it, ours or the endpoint's:
 *	-ECONNREFUSED	also an error before any command, "max number of clients reached"
 *	-EACCES		AUTH was refused, or the endpoint does not accept our TLS
 *	-EKEYREJECTED	its certificate was not accepted; all that it has heard is a handshake
 *	-ETIMEDOUT, -ECONNRESET (EOF), -EPROTO (no Redis protocol), -errno of the socket
 */
int redis_conn_why(const struct redis_conn *c, const char **ret_text);
/* -EAGAIN: row full; -ENOTCONN: not UP */
int redis_conn_submit(struct redis_conn *c, struct redis_command *command);
/* The command ends soon with -ECANCELED (from the loop), unless it has ended already. Its buffers
 * are free then. A half-sent command (C3) ends when the rest of it is out, or at its deadline. */
void redis_conn_cancel(struct redis_command *command);
uint32_t redis_conn_in_flight(const struct redis_conn *c); /* entries in the row */
uint64_t redis_conn_unsent_bytes(const struct redis_conn *c);
/* The room of all values that were asked for and have not come whole, late ones included. */
uint64_t redis_conn_expected_bytes(const struct redis_conn *c);
const char *redis_conn_tls(const struct redis_conn *c); /* "TLSv1.3"; "": without TLS */
