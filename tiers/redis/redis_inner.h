/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_inner.h - what the files of the Redis tier share; nobody else includes it.
 *
 *	redis.c           core thread: submit, cancel, complete, what can be asked without waiting
 *	redis_io.c        I/O thread: its loop, the mailboxes' other end, how a job ends
 *	redis_job.c       I/O thread: a job as a command, what a reply means
 *	redis_endpoint.c      I/O thread: one endpoint: breaker, trial, queue
 *	redis_link.c      I/O thread: its connections
 *	redis_topology.c  I/O thread: which endpoint has a key: endpoints, slot map, redirects
 *	redis_resolve.c   a thread per look-up of a name, which may block for minutes
 *	redis_view.c      what the I/O thread shows the core: flags, slots, rows
 *
 * A job carries one xfer and lives in a pool as large as max_in_flight, so nothing is allocated
 * under way:
 *
 *	core ─ mail.asked ─> I/O: WAITING (for a connection) ─> SENT ─reply, deadline─> ENDED ─ mail.answered ─> core
 *	                             ^                            │
 *	                             └────── DELAYED, MOVED ──────┘
 *
 * Between asked and answered a job is the I/O thread's, but for `cancelled`. `phase` is that
 * thread's alone, always.
 */
#ifndef KVTIER_REDIS_INNER_H
#define KVTIER_REDIS_INNER_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/base/loop.h"
#include "redis.h"
#include "redis_breaker.h"
#include "tiers/redis/conn/redis_conn.h"
#include "redis_hosts.h"
#include "redis_slots.h"
#include "tiers/redis/conn/redis_tls.h"

enum {
	/* Listed by the map, configured, and replicas in it that a redirect says are masters. */
	REDIS_ALL_ENDPOINTS = REDIS_MAP_ENDPOINTS + REDIS_ENDPOINTS + 16,
	REDIS_CHORES = 64,
	REDIS_CONDEMNED = 16,
	REDIS_RESOLVED = 8,		/* addresses of one name */
};
static_assert((int)REDIS_ALL_ENDPOINTS < (int)REDIS_NO_ENDPOINT, "an endpoint's number is a byte");

struct redis;
struct redis_io;
struct redis_lookup;
struct redis_endpoint;

enum redis_phase { REDIS_IDLE, REDIS_WAITING, REDIS_DELAYED, REDIS_SENT, REDIS_ENDED };

/* What a block is called in Redis, and by that whose it is. */
struct redis_name {
	char text[REDIS_PREFIX_BYTES + REDIS_TAG_BYTES + 1 + 64];
	uint32_t bytes;
	uint32_t slot;			/* in a Cluster */
	uint32_t endpoint;		/* without one */
};

struct redis_job {
	struct redis_command command;	/* first */
	struct redis_value value;	/* of a read */
	struct image_shape shape;	/* of a write */
	const struct redis_seal *seal;	/* of a write */
	struct xfer *xfer;		/* the core's; NULL: free */
	enum xfer_op op;
	uint8_t *buffer;
	struct redis_name name;
	uint64_t deadline_ns;
	atomic_bool cancelled;		/* set by the core */
	/* the I/O thread's */
	enum redis_phase phase;
	int status;			/* ENDED */
	uint32_t hops;			/* redirects followed */
	bool asking;			/* the next attempt is preceded by ASKING */
	struct redis_endpoint *endpoint;
	struct loop_timer timer;	/* WAITING: deadline. DELAYED: the next attempt */
	struct redis_job *next;		/* in a list below */
};

struct redis_jobs {
	struct redis_job *first, **last;
	uint32_t n;
};

/* A command of the tier's own. */
struct redis_chore {
	struct redis_command command;	/* first */
	struct redis_value value;
	struct redis_endpoint *endpoint;
	void (*done)(struct redis_chore *chore);
	struct redis_chore *next;	/* free */
};

/* A value to be deleted if it still is what was read. */
struct redis_condemned {
	struct redis_name name;
	uint8_t sha1[20];
	bool packed;			/* of the image in it, not of all of it */
	uint64_t length;
};

/* The mailboxes, both ways. */
struct redis_mail {
	/* guards what follows, but for the fds. Take no locks while holding this one */
	pthread_mutex_t lock;
	struct redis_jobs asked, answered;
	struct redis_condemned condemned[REDIS_CONDEMNED];
	uint32_t n_condemned;
	bool stop;			/* asked by the core */
	bool changed;			/* answered: flags or state did */
	atomic_bool any_cancelled;
	int asked_fd, answered_fd;	/* eventfds: readable while there is something */
};

enum redis_mode { REDIS_MODE_UNKNOWN, REDIS_MODE_SPREAD, REDIS_MODE_CLUSTER };
enum { REDIS_TAKES_READS = 1, REDIS_TAKES_STORES = 2 };

/* What the I/O thread shows. Slots and flags may be seen half old, half new: hints, the endpoint
 * itself decides. */
struct redis_view {
	atomic_int mode;
	atomic_int state;		/* enum tier_state */
	atomic_uint flags[REDIS_ALL_ENDPOINTS];
	_Atomic uint8_t slot[REDIS_SLOTS];	/* endpoint; CLUSTER */
	/* guards what follows. Take no locks while holding this one */
	pthread_mutex_t lock;
	struct redis_tier_status status;
	uint32_t n_rows;
	struct redis_endpoint_row rows[REDIS_ALL_ENDPOINTS];
};

/* One of an endpoint's places for a connection. */
struct redis_link {
	struct redis_endpoint *endpoint;
	struct redis_conn *conn;	/* NULL: none */
	uint64_t opened_ns, up_ns;	/* this connection; up_ns 0: not yet */
	bool opened;			/* ever */
	bool told;			/* what was on it when it died has told of a failure */
	bool stores;			/* takes SETs as well */
};

struct redis_endpoint {
	struct redis_io *io;
	bool used;
	bool seed;			/* configured */
	bool foreign;			/* is not one of cluster_hosts, as far as is known */
	/* has slots in the map; without a Cluster: is an endpoint */
	bool listed;
	char address[REDIS_ADDRESS_BYTES];
	uint32_t slots;
	/* its addresses, numeric */
	char resolved[REDIS_RESOLVED][REDIS_ADDRESS_BYTES];
	uint32_t n_resolved, at;
	struct redis_lookup *lookup;	/* under way */
	uint64_t lookup_ns;		/* begun last; 0: never */
	/* health */
	struct redis_breaker breaker;
	bool proven;			/* it has answered since it was opened */
	/* by this connection's user: not asked again until the next connect */
	bool refused_evals;
	/* what ends now ends because we close: no news of the endpoint */
	bool hushed;
	uint64_t failed_ns;		/* the turn whose failure was counted */
	uint64_t answered_ns;		/* last */
	uint64_t retry_ns;		/* no connection before this */
	uint64_t logged_ns;
	uint64_t named_ns;		/* by a redirect, last */
	struct redis_chore *trial;	/* under way */
	char text[REDIS_TEXT_BYTES];
	/* work */
	struct redis_jobs waiting;
	uint32_t n_links, in_flight;	/* jobs sent */
	struct redis_link links[REDIS_CONNECTIONS];
	struct loop_timer turn;
	struct redis_counters counters;	/* but those of living connections */
};

struct redis_topology {
	uint8_t slot[REDIS_SLOTS];	/* endpoint */
	bool wanted;			/* somebody said that the map is old */
	bool asking;			/* CLUSTER SLOTS is on its way */
	bool holes;			/* slots without an endpoint */
	uint64_t asked_ns;
	uint32_t next;			/* whom to ask */
	bool refused;			/* cluster = yes, and there is none */
	char text[REDIS_TEXT_BYTES + REDIS_ADDRESS_BYTES];
	uint32_t n_replicas;		/* of the map in force */
	char replica[REDIS_REPLICAS][REDIS_ADDRESS_BYTES];
	struct redis_map scratch;
};

/* Look-ups under way, given up ones included. */
struct redis_lookups {
	struct redis_lookup *abandoned;	/* a list */
	uint32_t n;
};

/* The I/O thread's. */
struct redis_io {
	struct redis *tier;
	struct loop *loop;
	bool stopping;
	struct loop_watch asked;
	struct loop_poller flush;	/* hands over what ended in this turn */
	struct loop_timer tick;
	struct redis_jobs ended;
	enum redis_mode mode;
	struct redis_hosts hosts;	/* whom a map may name */
	struct redis_topology topology;
	/* the first n_endpoints: as configured, in that order */
	struct redis_endpoint endpoints[REDIS_ALL_ENDPOINTS];
	struct redis_counters gone;	/* of endpoints that are */
	struct redis_lookups lookups;
	uint64_t logged_ns;		/* of all endpoints that are not configured */
	uint64_t refused_ns;		/* a redirect that was not followed was logged */
	struct redis_chore chores[REDIS_CHORES], *free_chores;
};

struct redis_login {
	char username[REDIS_SECRET_BYTES], password[REDIS_SECRET_BYTES];
};

struct redis {
	struct tier base;		/* first */
	/* constant while open; the thread reads them */
	char configured[REDIS_ENDPOINTS][REDIS_ADDRESS_BYTES];
	uint64_t configured_hash[REDIS_ENDPOINTS];
	struct redis_login *login;	/* of vault.h */
	char key_prefix[REDIS_PREFIX_BYTES];
	uint32_t n_endpoints, connections, timeout_ms, max_in_flight, max_image_bytes;
	enum redis_cluster cluster;
	char *cluster_hosts;		/* NULL: what is near the endpoints */
	uint64_t ttl_ms;
	struct redis_tls *tls;		/* NULL: none */
	struct redis_events events;
	struct redis_job *jobs;		/* max_in_flight */
	struct redis_io *io;
	struct redis_view *view;
	struct redis_mail mail;
	atomic_uint_fast64_t condemned_total;
	/* the core's */
	/* when the second began in which n_hashed images were hashed */
	uint64_t condemn_ns;
	uint32_t n_hashed;
	struct loop *loop;
	struct loop_watch answered;
	bool watching, threaded, closing;
	pthread_t thread;
	struct redis_job *free_jobs;
	struct xfer **lent;		/* by job; NULL: free */
};

/* --- redis_io.c --- */
void redis_jobs_clear(struct redis_jobs *list);
void redis_jobs_append(struct redis_jobs *list, struct redis_job *job);
struct redis_job *redis_jobs_take(struct redis_jobs *list);	/* NULL: empty */
void redis_jobs_move(struct redis_jobs *to, struct redis_jobs *from);
void redis_jobs_remove(struct redis_jobs *list, struct redis_job *job);
void redis_wake(int fd);
int  redis_io_start(struct redis *r);	/* the thread, with its loop. 0 or -errno */
void redis_io_stop(struct redis *r);	/* within one turn; what is lent stays where it was */
void redis_job_end(struct redis_io *io, struct redis_job *job, int status);
/* Routed again in 50 ms, or it ends at its deadline. */
void redis_job_delay(struct redis_io *io, struct redis_job *job);
struct redis_chore *redis_chore_take(struct redis_io *io);	/* NULL: none left */
void redis_chore_give(struct redis_io *io, struct redis_chore *chore);
uint64_t redis_io_deadline(const struct redis_io *io);	/* for what begins now */

/* --- redis_job.c --- */
/* As redis_conn_submit(), with ASKING before it where that is due. */
int  redis_job_send(struct redis_job *job, struct redis_conn *conn);
void redis_job_gave_up(struct redis_job *job);	/* DELAYED, and its deadline has come */
void redis_delete(struct redis_endpoint *endpoint, const struct redis_condemned *what);

/* --- redis_endpoint.c --- */
/* An endpoint's words for people: cut before what it repeats of a command, and withheld where the
 * password is in them. */
void redis_words(const struct redis *r, const char *words, char *ret, size_t n);
void redis_endpoint_open(struct redis_endpoint *endpoint, struct redis_io *io, const char *address);
/* ends what it has; its counters go to io->gone */
void redis_endpoint_close(struct redis_endpoint *endpoint);
/* ends it where nothing may be sent */
void redis_endpoint_submit(struct redis_endpoint *endpoint, struct redis_job *job);
/* WAITING or SENT */
void redis_endpoint_cancel(struct redis_endpoint *endpoint, struct redis_job *job);
/* -ENOTCONN: no connection is up */
int  redis_endpoint_chore(struct redis_endpoint *endpoint, struct redis_chore *chore);
int redis_chore_send(struct redis_chore *chore, struct redis_endpoint *endpoint,
		     struct redis_conn *conn);
void redis_endpoint_turn(struct redis_endpoint *endpoint);	/* does what is due */
void redis_endpoint_kick(struct redis_endpoint *endpoint);	/* its turn comes at once */
/* has answered, and its breaker is closed */
bool redis_endpoint_usable(const struct redis_endpoint *endpoint);
bool redis_endpoint_idle(const struct redis_endpoint *endpoint);
/* What an ended command says of the endpoint. */
void redis_endpoint_answered(struct redis_endpoint *endpoint);
void redis_endpoint_failed(struct redis_endpoint *endpoint, const char *why);
/* in words; it ended with -ETIMEDOUT, -ECONNRESET */
const char *redis_why(const struct redis_command *c);
void redis_endpoint_verdict(struct redis_endpoint *endpoint, enum redis_verdict verdict, bool store,
			    const char *words);
void redis_endpoint_stored(struct redis_endpoint *endpoint);

/* --- redis_link.c --- */
bool redis_link_is_up(const struct redis_link *link);
/* Of the links that are up and may take ASKING and a command of this kind, the one with the least
 * to do. NULL: none. bytes: room of a read's value. */
struct redis_link *redis_link_pick(struct redis_endpoint *endpoint, enum xfer_op op,
				   uint32_t bytes);
/* or does what must come before it, or nothing if it is too early */
void redis_link_open(struct redis_link *link);
/* The error reply that came on conn says that the endpoint has no room for it, and another one is
 * up. */
bool redis_link_was_too_many(struct redis_endpoint *endpoint, const struct redis_conn *conn,
			     const char *words);
/* closes the dead; some of their deaths are failures of the endpoint */
void redis_links_bury(struct redis_endpoint *endpoint);
/* all; what is on them ends, and is no failure */
void redis_links_close(struct redis_endpoint *endpoint);
/* takes over what a look-up found */
void redis_link_lookup(struct redis_endpoint *endpoint);
/* what it is connected to by; "": not known */
const char *redis_endpoint_numeric(const struct redis_endpoint *endpoint);
/* What an endpoint means that names itself by a port alone: with TLS as its certificate names it.
 * */
const char *redis_endpoint_itself(const struct redis_endpoint *endpoint);
void redis_endpoint_counters(const struct redis_endpoint *endpoint, struct redis_counters *ret);

/* --- redis_topology.c --- */
void redis_topology_start(struct redis_io *io);
void redis_topology_tick(struct redis_io *io);
void redis_topology_ask(struct redis_io *io);	/* if it is due; when an endpoint became usable */
void redis_route(struct redis_io *io, struct redis_job *job);	/* to its endpoint, or its end */
/* NULL: nobody */
struct redis_endpoint *redis_endpoint_of(struct redis_io *io, const struct redis_name *name);
/* true: it was one and is followed, or its end. */
bool redis_redirected(struct redis_io *io, struct redis_job *job, const char *words);
/* keep a connection to it */
bool redis_endpoint_wanted(const struct redis_endpoint *endpoint);

/* --- redis_resolve.c --- */
enum { REDIS_LOOKUP_AGAIN_MS = 1000, REDIS_LOOKUPS = 16 };
/* Numeric, or a path: *ret_address is to be connected to. */
bool redis_is_numeric(const char *address);
/* -EAGAIN: too many are under way. `seed`: of a configured endpoint, for which there is always
 * room. */
int redis_lookup_start(struct redis_lookups *all, const char *address, bool seed,
		       struct redis_lookup **ret);
/* -EINPROGRESS; or n > 0 addresses, and the look-up is freed; or another -errno, likewise. */
int redis_lookup_poll(struct redis_lookups *all, struct redis_lookup *lookup,
		      char (*ret)[REDIS_ADDRESS_BYTES], uint32_t n);
/* NULL is fine */
void redis_lookup_abandon(struct redis_lookups *all, struct redis_lookup *lookup);
void redis_lookups_reap(struct redis_lookups *all);	/* frees abandoned ones that are over */
/* to themselves, all: nobody counts them any more */
void redis_lookups_leave(struct redis_lookups *all);
bool redis_address_valid(const char *address);
/* without port and [ ]; "": a path */
void redis_address_host(const char *address, char ret[REDIS_ADDRESS_BYTES]);

/* --- redis_view.c --- */
void redis_view_flags(struct redis_io *io);	/* at each change */
void redis_view_slots(struct redis_io *io);
void redis_view_rows(struct redis_io *io);	/* at times */
void redis_counters_add(struct redis_counters *sum, const struct redis_counters *c);

#endif
