/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_conn.h - one connection to one endpoint: commands go out in order, replies come back in
 * order, bulk values go straight between socket and caller's memory (recvmsg, writev), with TLS
 * (redis_tls.h) through OpenSSL's buffers; hiredis connects, formats AUTH and turns small replies
 * into trees. Everything on the thread of the loop it was opened with; nothing blocks; nothing is
 * allocated per command but by hiredis for small replies, and by OpenSSL a few hundred bytes for a
 * moment, where the key of a value's MAC is made.
 *
 *	CONNECTING ──connected──> SECURING ──TLS──> GREETING ──AUTH──> UP ──error, EOF, protocol, deadline of a
 *	     │                       │                 │                      half-sent command──> DOWN
 *	     └───────────────────────┴─────────────────┴── refused, deadline, -WRONGPASS... ───────────^
 *
 * Invariants
 *   C1 done() of a command runs exactly once, from the loop, never inside redis_conn_submit().
 *   C2 after done() neither its buffers nor it are touched: a command that ended before its reply
 *      came (deadline, cancel) leaves a place in the row, whose reply is parsed and thrown away.
 *   C3 a command whose bytes are partly out cannot be taken back: when its deadline comes the
 *      connection is closed.
 *   C4 a value's header is checked before a byte of its body is accepted; its length before
 *      anything. It has come (status 0) only if its MAC (redis_seal.h) is that of its tenant.
 *   C5 from DOWN on nothing happens any more; the owner closes it, and opens another when its
 *      policy says so.
 */
#ifndef KVTIER_REDIS_CONN_H
#define KVTIER_REDIS_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "kernels/image.h"
#include "tiers/redis/redis.h"
#include "tiers/redis/redis_seal.h"

struct loop;
struct redis_conn;
struct redisReply;
struct redis_tls;

enum {
	/* on their way on one connection, places of ended ones included */
	REDIS_CONN_COMMANDS = 128,
	REDIS_COMMAND_BYTES = 640,	/* of a command without its value */
	REDIS_SMALL_BYTES = 1 << 20,	/* of a small reply: a slot map, not more */
	REDIS_PIECES = 4,
};

enum redis_conn_state {
	REDIS_CONN_CONNECTING,
	REDIS_CONN_SECURING,
	REDIS_CONN_GREETING,
	REDIS_CONN_UP,
	REDIS_CONN_DOWN,
};

/* What a value begins with. */
struct redis_front {
	struct redis_envelope envelope;
	struct image_header header;
};
static_assert(sizeof(struct redis_front) ==
		      sizeof(struct redis_envelope) + sizeof(struct image_header),
	      "redis_front");

/* Where a GET's value goes. */
struct redis_value {
	const struct image_identity *identity;
	const struct image_geometry *geometry;
	const struct redis_seal *seal;	/* whose */
	uint8_t *buffer;		/* an image's, with its padding, which is zeroed */
	/* bytes there, and up to the next multiple of 4096 behind them (as in tier.h) */
	uint32_t room;
	/* ret: image_bytes of what came (status 0), or would need (-EFBIG) */
	uint32_t bytes;
	uint64_t length;		/* ret: of the value as it came; 0: there was none */
	/* ret, status -EBADMSG, -EKEYREJECTED: of the value, if `hashed` */
	uint8_t sha1[20];
	bool hashed;
	bool packed;			/* it is that of the packed image in it, not of the whole */
};

/* A SET's value is sealed while it goes out. */
struct redis_sealing {
	const struct redis_seal *seal;	/* NULL: there is none */
	char *envelope, *mac;		/* in the command's text */
	uint64_t done;			/* bytes of the packed image that went through the MAC */
	bool ended;			/* and *mac is complete */
};

/* Embedded in its owner, lent from submit until done ran. */
struct redis_command {
	/* the caller's */
	struct iovec pieces[REDIS_PIECES];	/* what is sent, in order; may point into text */
	uint32_t n_pieces;
	char text[REDIS_COMMAND_BYTES];
	struct redis_value *value;	/* GET: where the bulk goes. NULL: a small reply */
	struct redis_sealing sealing;	/* SET: pieces 1 and 2 are the packed image */
	uint64_t deadline_ns;		/* CLOCK_MONOTONIC */
	void (*done)(struct redis_command *c);
	/* set before done. 0: there is a reply that is no error (NULL if value). -ENOENT: value,
	 * nil. -EBADMSG: value, but not this block, or damaged, or not a bulk. -EKEYREJECTED: as it
	 * should be, but for its MAC. -ENOTSUP: of another form. -EFBIG. -EREMOTEIO: error: an
	 * error reply. -ETIMEDOUT, -ECANCELED, -ECONNRESET. */
	int status;
	const struct redisReply *reply;	/* small, or NULL; valid during done */
	char error[REDIS_TEXT_BYTES];	/* of an error reply, without '-', cut; "" */
	/* the connection's */
	struct redis_conn *conn;
	uint32_t place;
	bool lent;
};

struct redis_conn_conf {
	/* The strings are not looked at again once open has returned. */
	/* numeric "127.0.0.1:6379", "[::1]:6379", or "unix:/path": nothing is resolved here */
	const char *address;
	const char *username, *password;	/* "" : none */
	/* outlives the connection; NULL: none. A unix: address has none in any case */
	const struct redis_tls *tls;
	const char *host;		/* tls: whose certificate is wanted */
	uint64_t deadline_ns;		/* for all up to UP together */
	uint32_t max_value_bytes;	/* a longer value is refused by its length */
	/* State changed; at DOWN status and text of redis_conn_why() tell, and all commands ended
	 * with -ECONNRESET before. May not close the connection; a timer of the owner's may. */
	void (*changed)(struct redis_conn *c, void *arg);
	/* redis_conn_expected_bytes() is less now, though no done() tells: a reply came late. NULL:
	 * nobody wants to know. */
	void (*room)(struct redis_conn *c, void *arg);
	void *arg;
};

struct redis_conn_counters {
	/* of values (GET bodies accepted, SET pieces outside text) */
	uint64_t received_bytes, sent_bytes;
	uint64_t late, protocol_errors;
};

/* -EINVAL: address; -ENOMEM; -errno of socket(). A refused connection is told through changed(). */
int redis_conn_open(struct loop *loop, const struct redis_conn_conf *conf, struct redis_conn **ret);
/* ends what is lent with -ECONNRESET; not inside done() or changed() */
void redis_conn_close(struct redis_conn *c);
enum redis_conn_state redis_conn_state(const struct redis_conn *c);
/* Why DOWN: -ECONNREFUSED (also: an error nobody asked for, "max number of clients reached"; text:
 * the endpoint's words), -ETIMEDOUT, -ECONNRESET (EOF), -EPROTO, -EACCES (text: the endpoint's
 * words, or why there is no TLS)... */
int  redis_conn_why(const struct redis_conn *c, const char **ret_text);
/* Whether an endpoint's words, as they come from here, repeat this password, or begin to: then
 * nobody is to see them. */
bool redis_words_betray(const char *words, const char *secret);
/* 0; -EAGAIN: no place; -ENOTCONN: not UP. */
int  redis_conn_submit(struct redis_conn *c, struct redis_command *command);
/* It ends soon with -ECANCELED (from the loop), unless it has ended; its buffers are free then. C3:
 * one that is half sent ends when the rest of it is out, or at its deadline. */
void redis_conn_cancel(struct redis_command *command);
uint32_t redis_conn_in_flight(const struct redis_conn *c);	/* places in use */
uint64_t redis_conn_unsent_bytes(const struct redis_conn *c);
/* of values asked for, late ones included */
uint64_t redis_conn_expected_bytes(const struct redis_conn *c);
void redis_conn_counters(const struct redis_conn *c, struct redis_conn_counters *ret);
const char *redis_conn_tls(const struct redis_conn *c);	/* "TLSv1.3"; "": none */

/* --- commands: fill pieces and text; name: as redis.h has it, n bytes --- */

void redis_command_get(struct redis_command *c, const char *name, size_t n);
void redis_command_exists(struct redis_command *c, const char *name, size_t n);
/* The first `bytes` of the value, as a small reply: a string, shorter if the value is, "" if there
 * is none. */
void redis_command_front(struct redis_command *c, const char *name, size_t n, uint32_t bytes);
/* image: complete, as in memory; its packed parts become pieces. ttl_ms 0: none. -EIO: no nonce can
 * be had. */
int redis_command_set(struct redis_command *c, const char *name, size_t n, const uint8_t *image,
		      const struct image_shape *shape, const struct redis_seal *seal,
		      uint64_t ttl_ms);
/* Deletes the value if it (packed: the image in it) has this SHA-1, and it this length: EVAL.
 * Reply: 1 or 0. */
void redis_command_delete_if(struct redis_command *c, const char *name, size_t n,
			     const uint8_t sha1[20], bool packed, uint64_t length);
/* envelope and header of a value are this block's; its shape. -ENOTSUP: of another form; -EBADMSG.
 * */
int  redis_front_check(const struct redis_front *front, const struct image_identity *identity,
		       const struct image_geometry *geometry, struct image_shape *ret);
/* Any other, of words: CLUSTER SLOTS, ASKING, PING, REPLICAOF... */
void redis_command_words(struct redis_command *c, const char *const *words, uint32_t n);
/* Of the packed image. */
void redis_image_sha1(const uint8_t *image, const struct image_shape *shape, uint8_t ret[20]);

#endif
