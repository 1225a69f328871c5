/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_tls.h - certificates for tests, made by openssl(1) in a directory of their own: an authority,
 * a server's certificate by it (for "localhost" and 127.0.0.1), one for another name, a client's;
 * and another authority with a client of its own.
 */
#pragma once

#include <stddef.h>

#include "tiers/redis/conn/redis_tls.h"

enum { TLS_PATH = 200 };

struct tls_files {
	char dir[TLS_PATH - 20];
	char ca[TLS_PATH], other_ca[TLS_PATH];
	char server[TLS_PATH], server_key[TLS_PATH];
	char elsewhere[TLS_PATH], elsewhere_key[TLS_PATH]; /* for "elsewhere.example" */
	char named[TLS_PATH], named_key[TLS_PATH];         /* for "localhost", not its address */
	char client[TLS_PATH], client_key[TLS_PATH];
	char stranger[TLS_PATH], stranger_key[TLS_PATH]; /* of the other authority */
	struct redis_tls_conf conf;                      /* of a client that is welcome */
};

void tls_make(struct tls_files *f);
void tls_remove(struct tls_files *f); /* NULL-safe on a zeroed one */
/* Group fixtures: the files of a group of tests. */
extern struct tls_files tls_group;
int tls_group_make(void **state);
int tls_group_remove(void **state);
/* redis-server's options for the server's certificate; lib_redis then has TLS on s->port, and
 * nothing else there. */
const char *tls_options(const struct tls_files *f);
const char *tls_options_with(const char *cert, const char *key, const char *ca);
