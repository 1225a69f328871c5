/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_redis.h - real redis-servers for tests, started and killed by them; and a server that replies
 * as a script tells it to. All in a directory of their own under $TMPDIR or /tmp, on a Unix socket
 * and on loopback (a port that was free); all die with the test (PR_SET_PDEATHSIG). A wait has an
 * end and then fails the test.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tiers/redis/conn/redis_seal.h"

enum { REDIS_TEST_PATH = 200, REDIS_TEST_ADDRESS = 64, REDIS_CLUSTER_SERVERS = 6 };

struct redis_server {
	pid_t pid;
	uint16_t port; /* loopback */
	char dir[REDIS_TEST_PATH];
	char socket[REDIS_TEST_PATH];  /* "unix:" not included */
	char address[REDIS_TEST_PATH]; /* "127.0.0.1:port" */
	char options[1024];            /* as given to redis_start() */
	bool cluster;
};

/* Exits with 77 and says so where there is no redis-server, unless $KVTIER_NEED_REDIS is set: then
 * it fails. */
void redis_needed(void);
/* options: as on redis-server's command line, "--maxmemory 10mb --requirepass x"; NULL: none. With
 * --tls-cert-file the port is for TLS (lib_tls.h), the socket never is. No persistence. Returns
 * when it answers PING (or refuses it for want of a password). */
void redis_start(struct redis_server *s, const char *options);
void redis_restart(struct redis_server *s);                  /* the same port and options, empty */
void redis_signal(const struct redis_server *s, int signal); /* SIGSTOP, SIGCONT */
void redis_kill(struct redis_server *s);                     /* kill -9; may be restarted */
/* and its directory is gone; NULL-safe on a zeroed one */
void redis_stop(struct redis_server *s);

/* Sends words, returns the reply as text: strings as they are, integers in digits, nil "(nil)",
 * errors "-ERR ...", arrays one element a line. Blocks at most 10 s. ret of n bytes, cut. */
void redis_say(const struct redis_server *s, char *ret, size_t n, const char *format, ...)
	__attribute__((format(printf, 4, 5))); /* words separated by blanks */
long long redis_ask(const struct redis_server *s, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* A value of any bytes; key of text. redis_get: bytes copied at most n; -1: nil. */
void redis_put(const struct redis_server *s, const char *key, const void *value, size_t n);
long redis_get(const struct redis_server *s, const char *key, void *ret, size_t n);
/* The first key that matches, into ret; false: none. */
bool redis_any_key(const struct redis_server *s, const char *pattern, char *ret, size_t n);

/* --- values --- */

/* Of tests that have no daemon. */
static const struct redis_seal redis_test_seal = { .key = "a key of tests, of them alone",
						   .tag = "feedfacefeedface" };
/* The value of a packed image of n bytes on a server. Returns its size: REDIS_SEAL_BYTES more. */
size_t redis_sealed(const struct redis_seal *seal, const uint8_t *packed, size_t n, uint8_t *ret);
/* The same of n bytes, header first, that are of this form, or are said to be. */
size_t redis_sealed_as(const struct redis_seal *seal, uint16_t form, const uint8_t *bytes, size_t n,
		       uint8_t *ret);

/* Three masters, each with a replica, all slots served. */
struct redis_cluster_rig {
	struct redis_server server[REDIS_CLUSTER_SERVERS]; /* 0..2 masters at first */
};
/* About 10 s. options: more of them, of all; NULL: none. */
void redis_cluster_start(struct redis_cluster_rig *rig, const char *options);
void redis_cluster_stop(struct redis_cluster_rig *rig);
/* Moves n slots that `from` has to `to`, keys included (MIGRATE), as redis-cli --cluster reshard
 * does. */
void redis_cluster_move(struct redis_cluster_rig *rig, uint32_t from, uint32_t to,
			uint32_t n_slots);
/* A replica of this master takes over (CLUSTER FAILOVER TAKEOVER); returns its number. */
uint32_t redis_cluster_failover(struct redis_cluster_rig *rig, uint32_t master);

/* --- a server that lies --- */

/* Its step at one command after another of all its connections; it repeats the last step. */
struct fake_step {
	/* bytes to send; NULL: nothing, ever. "\1": the value that the last SET stored, as a
	 * bulk */
	const char *reply;
	size_t bytes;      /* of reply; 0: strlen */
	size_t cut;        /* > 0: send so many bytes and close */
	uint32_t delay_ms; /* before it */
	bool held;         /* sent when fake_release() lets it */
	bool endless;      /* sends reply again and again until the client closes */
};

struct fake_server {
	pid_t pid;
	uint16_t port;
	char address[REDIS_TEST_PATH];
	/* that took a step, so far; shared memory: read with __atomic_load_n() */
	uint32_t *commands;
	uint32_t *connections;
	uint32_t *released; /* fake_release() */
};

/* A socket that listens on a free port of loopback. ret_port may be NULL. */
int fake_listen(char address[REDIS_TEST_ADDRESS], uint16_t *ret_port);
/* A child process. It answers AUTH with +OK, and CLUSTER with -ERR (both not steps) unless
 * `raw`. */
void fake_start(struct fake_server *s, const struct fake_step *steps, uint32_t n, bool raw);
/* So many more of the steps that are held may be sent, in the order in which they were taken. */
void fake_release(struct fake_server *s, uint32_t steps);
uint32_t fake_commands(const struct fake_server *s);
void fake_stop(struct fake_server *s);
