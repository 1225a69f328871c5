/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_tls_stream.h - TLS on one connection, over a socket that does not block. Reading and
 * writing look like recvmsg() and sendmsg(), so that a connection can have either. One thread at a
 * time.
 *
 *	     plain                 records                           socket
 *	send ─────> SSL_write ───> `out`, a few records at most ───> send()
 *	recv <───── SSL_read <──── OpenSSL's buffer <─────────────── recv()
 *
 * `out` holds a copy: the caller's bytes are free at once, and cannot be taken back.
 */
#ifndef KVTIER_REDIS_TLS_STREAM_H
#define KVTIER_REDIS_TLS_STREAM_H

#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

struct redis_tls_stream;

enum { REDIS_TLS_NAME_BYTES = 256 };

/* The settings that streams are made of. redis_tls.c fills it; others have a pointer to it. */
struct redis_tls {
	SSL_CTX *ssl;
	struct bio_method_st *socket;
	char name[REDIS_TLS_NAME_BYTES]; /* as in struct redis_tls_conf */
};

/* How OpenSSL reads and writes a stream's socket; for redis_tls_open(). NULL: no memory. */
struct bio_method_st *redis_tls_stream_method(void);

/* fd: connected, not blocking; stays the caller's. host: a name or a numeric address, without port.
 * -ENOMEM, -EINVAL: no host that a certificate could name. */
int redis_tls_stream_open(const struct redis_tls *tls, int fd, const char *host,
			  struct redis_tls_stream **ret);
void redis_tls_stream_close(struct redis_tls_stream *s); /* NULL is fine */
/*
 * 1: done. 0: not yet; to be called again when the socket has bytes, or when it takes some if
 * redis_tls_stream_unsent(). -EKEYREJECTED: its certificate is of no authority that we trust, or of
 * another name. -EACCES: it refuses us, or speaks no TLS. With both a person has to change
 * something. -ECONNRESET, -EPROTO, -errno.
 */
int redis_tls_stream_handshake(struct redis_tls_stream *s);
/* Bytes read into iov, as many as there are; 0: the end; -1 with errno: EAGAIN, EACCES (our
 * certificate), EPROTO... */
ssize_t redis_tls_stream_recv(struct redis_tls_stream *s, const struct iovec *iov, size_t n);
/* The last recv() filled iov, or has an error to tell. So there may be more, of which epoll does
 * not know. */
bool redis_tls_stream_pending(const struct redis_tls_stream *s);
/* Bytes taken, 0 if n is; -1 with errno: EAGAIN... A byte that was taken is out, or in `out`. */
ssize_t redis_tls_stream_send(struct redis_tls_stream *s, const struct iovec *iov, size_t n);
/* `out` is not empty: wait for EPOLLOUT, then send */
bool redis_tls_stream_unsent(const struct redis_tls_stream *s);
/* half a message has come: recv() before send() */
bool redis_tls_stream_must_read(const struct redis_tls_stream *s);
const char *redis_tls_stream_words(const struct redis_tls_stream *s);   /* of the last error; "" */
const char *redis_tls_stream_version(const struct redis_tls_stream *s); /* "TLSv1.3" */

#endif
