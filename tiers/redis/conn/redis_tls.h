/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_tls.h - TLS to Redis: the settings that all connections share (which authorities are
 * trusted, this node's own certificate), and TLS on one connection, a stream. OpenSSL is used
 * directly and not through hiredis_ssl: the hiredis of Debian 12 lacks it, and values bypass
 * hiredis.
 *
 * A server must have a chain to tls_ca_file (or to the system's authorities), and the right name.
 * TLS is of version 1.2 or later, is not renegotiated, and keeps no session.
 *
 * A stream reads and writes like recvmsg() and sendmsg(), over a socket that does not block:
 *
 *	     plain                 records                           socket
 *	send ─────> SSL_write ───> `out`, a few records at most ───> send()
 *	recv <───── SSL_read <──── OpenSSL's buffer <─────────────── recv()
 *
 * `out` holds a copy: the caller's bytes are free at once, and cannot be taken back.
 *
 * The settings are constant while they are open, so any thread may use them. A stream is for one
 * thread at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

struct redis_tls;
struct redis_tls_stream;

/* Paths of PEM files; members are called tls_... in [redis]. NULL means the same as "". */
struct redis_tls_conf {
	const char *ca_file; /* "": the system's authorities */
	/* This node's, both or neither. The key has no passphrase and cannot be read by others. */
	const char *cert_file, *key_file;
	/* the name that a server's certificate must have. "": the host's; "*": any, needs
	 * ca_file */
	const char *name;
};

/* Reads the files, and may block. The system's authorities may be in a directory that OpenSSL looks
 * into later. -EINVAL, -EPERM, -ENOMEM, -errno of a file; text names the option and the file. */
int redis_tls_open(const struct redis_tls_conf *conf, struct redis_tls **ret, char *text, size_t n);
void redis_tls_close(struct redis_tls *tls); /* after its last stream; may be NULL */

/* --- a stream --- */

/* fd is connected, does not block, and stays the caller's. host is a name or a numeric address,
 * without port. -ENOMEM; -EINVAL: a certificate could not name this host. */
int redis_tls_stream_open(const struct redis_tls *tls, int fd, const char *host,
			  struct redis_tls_stream **ret);
void redis_tls_stream_close(struct redis_tls_stream *s); /* may be NULL */
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
