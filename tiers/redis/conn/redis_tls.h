/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_tls.h - TLS to Redis servers, over sockets that do not block. OpenSSL has protocol and
 * certificates; reading and writing look like recvmsg() and sendmsg(), so that a connection can
 * have either. Not hiredis_ssl: the hiredis of Debian 12 has none, and values do not go through
 * hiredis.
 *
 *	struct redis_tls	what all connections share: trust, our certificate. Constant while open; any thread
 *	struct tls_stream	of one connection; one thread
 *
 *	     plain                 records                          socket
 *	send ─────> SSL_write ───> `out`, OUT_RECORDS at most ───> send()	what is in `out` is a copy: the caller's bytes
 *	recv <───── SSL_read <──── OpenSSL's buffer <───────────── recv()	are free at once, and cannot be taken back
 *
 * Servers are verified: a chain to tls_ca_file (or to what the system trusts), and the name. TLS
 * 1.2 or later, no renegotiation, no session is kept.
 */
#ifndef KVTIER_REDIS_TLS_H
#define KVTIER_REDIS_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

struct redis_tls;
struct tls_stream;

/* Paths of PEM files, and what each is called in [redis]. NULL is as good as "". */
struct redis_tls_conf {
	const char *ca_file;		/* "": what the system trusts */
	/* ours, both or neither; the key without passphrase, and nobody else's to read */
	const char *cert_file, *key_file;
	/* that a server's certificate must have. "": the host's; "*": any, needs ca_file */
	const char *name;
};

/* -EINVAL, -EPERM, -ENOMEM, -errno of a file; text names the option and the file. Reads the files:
 * at start only. What the system trusts may be in a directory that OpenSSL looks into later. */
int  redis_tls_open(const struct redis_tls_conf *conf, struct redis_tls **ret, char *text, size_t n);
void redis_tls_close(struct redis_tls *tls);	/* after its last stream. NULL is fine */

/* fd: connected, not blocking; stays the caller's. host: a name or a numeric address, without port.
 * -ENOMEM. */
int  tls_stream_open(const struct redis_tls *tls, int fd, const char *host, struct tls_stream **ret);
void tls_stream_close(struct tls_stream *s);	/* NULL is fine */
/*
 * 1: done. 0: not yet; to be called again when the socket has bytes, or takes some if
 * tls_stream_unsent(). -EACCES: one side refuses the other, or it is not TLS: somebody has to
 * change something; -ECONNRESET, -EPROTO, -errno.
 */
int  tls_stream_handshake(struct tls_stream *s);
/* Bytes read into iov, as many as there are; 0: the end; -1 with errno: EAGAIN, EACCES (our
 * certificate), EPROTO... */
ssize_t tls_stream_recv(struct tls_stream *s, const struct iovec *iov, size_t n);
/* Whether the last recv() ended because iov was full, or has an error to tell: epoll may not know
 * of what is left. */
bool tls_stream_pending(const struct tls_stream *s);
/* Bytes taken, 0 if n is; -1 with errno: EAGAIN... What was taken is out, or in `out`. */
ssize_t tls_stream_send(struct tls_stream *s, const struct iovec *iov, size_t n);
/* `out` is not empty: wait for EPOLLOUT, then send again */
bool tls_stream_unsent(const struct tls_stream *s);
/* it takes nothing before recv(): half a message has come */
bool tls_stream_must_read(const struct tls_stream *s);
const char *tls_stream_words(const struct tls_stream *s);	/* of the last error; "" */
const char *tls_stream_version(const struct tls_stream *s);	/* "TLSv1.3" */

#endif
