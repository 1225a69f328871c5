/* SPDX-License-Identifier: Apache-2.0 */
/* redis_tls_inner.h - what redis_tls.c and redis_tls_stream.c share; nobody else includes it. */
#ifndef KVTIER_REDIS_TLS_INNER_H
#define KVTIER_REDIS_TLS_INNER_H

#include <openssl/ssl.h>

#include "redis_tls.h"

enum { TLS_NAME_BYTES = 256 };

struct redis_tls {
	SSL_CTX *ssl;
	BIO_METHOD *socket;
	char name[TLS_NAME_BYTES];
};

/* How OpenSSL reads and writes a stream's socket. NULL: no memory. */
BIO_METHOD *tls_stream_method(void);

#endif
