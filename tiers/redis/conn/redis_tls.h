/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_tls.h - facts that all TLS connections share: which authorities are trusted, and this
 * node's own certificate. One connection's TLS is redis_tls_stream.h. Protocol and certificates are
 * OpenSSL's own, not hiredis_ssl's: the hiredis of Debian 12 has none, and values do not go through
 * hiredis.
 *
 * Constant while open; any thread.
 *
 * A server is verified: a chain to tls_ca_file (or to the system's authorities), and its name. TLS
 * 1.2 or later, no renegotiation, no session is kept.
 */
#ifndef KVTIER_REDIS_TLS_H
#define KVTIER_REDIS_TLS_H

#include <stddef.h>

struct redis_tls;

/* Paths of PEM files; members are called tls_... in [redis]. NULL is as good as "". */
struct redis_tls_conf {
	const char *ca_file; /* "": the system's authorities */
	/* This node's, both or neither. The key has no passphrase and can be read by nobody else.
	 * */
	const char *cert_file, *key_file;
	/* the name that a server's certificate must have. "": the host's; "*": any, needs
	 * ca_file */
	const char *name;
};

/* Reads the files; at start only. The system's authorities may be in a directory that OpenSSL looks
 * into later. -EINVAL, -EPERM, -ENOMEM, -errno of a file; text names the option and the file. */
int redis_tls_open(const struct redis_tls_conf *conf, struct redis_tls **ret, char *text, size_t n);
void redis_tls_close(struct redis_tls *tls); /* after its last stream. NULL is fine */

#endif
