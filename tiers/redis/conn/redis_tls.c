/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_tls.c - TLS to Redis. Contract: redis_tls.h. This node's files are read once, before there
 * are connections. OpenSSL opens the system's directory of authorities later, when it needs an
 * authority.
 *
 * A stream:
 *
 *	closed ──handshake──> open ──recv: the server's end──> ended
 *	            └──────────┴──error──> failed: `error` and `words` stay
 *
 * Invariants
 *   T1 SSL_write() is called only when `out` has room for a whole record, so it never has to be
 *      repeated with the same bytes: a command that was given up before it went out can leave the
 *      row (redis_row.c).
 *   T2 a stream that failed or ended stays so: each call says it again.
 *   T3 a server makes us keep no more than OpenSSL's buffers and `out`: where its own demands (key
 *      updates) fill that up while it does not read, the stream fails.
 *   T4 no call lasts as long as a server pleases: OpenSSL reads on by itself over messages that
 *      bring no data, so the bytes that it may read in one call are bounded.
 */
#include "redis_tls.h"

#include <assert.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "base/vault.h"
#include "redis_address.h"

enum {
	NAME_BYTES = 256,
	KEY_FILE_BYTES = 64 << 10,
	READ_AHEAD_BYTES = 64 << 10,
	RECORD_BYTES = SSL3_RT_MAX_PLAIN_LENGTH,
	RECORD_ROOM = SSL3_RT_MAX_PACKET_SIZE,
	OUT_RECORDS = 4,       /* a send() each */
	SPARE_BYTES = 4096,    /* for messages of OpenSSL's own */
	CALL_BYTES = 64 << 10, /* one call of OpenSSL reads about so much at most */
	WORDS_BYTES = 256,
};

struct redis_tls {
	SSL_CTX *ssl;
	BIO_METHOD *socket;    /* how OpenSSL reads and writes a stream's socket */
	char name[NAME_BYTES]; /* as in struct redis_tls_conf */
};

struct redis_tls_stream {
	SSL *ssl;
	int fd;
	/* the last read emptied the socket, or CALL_BYTES came: epoll tells of more */
	bool dry;
	bool must_read;    /* before anything can be written */
	size_t call_bytes; /* read in the call under way */
	bool ended;
	bool shaken;  /* the handshake is over */
	int error;    /* errno; 0 */
	int os_error; /* of the socket, in the call under way */
	char host[NAME_BYTES], words[WORDS_BYTES];
	size_t out_at, out_end;
	uint8_t plain[RECORD_BYTES]; /* small pieces put together */
	uint8_t out[OUT_RECORDS * RECORD_ROOM + SPARE_BYTES];
};

/* --- the socket, as OpenSSL sees it --- */

static int socket_read(BIO *bio, char *bytes, int n)
{
	struct redis_tls_stream *s = BIO_get_data(bio);
	ssize_t got;

	BIO_clear_retry_flags(bio);
	if (s->call_bytes >= CALL_BYTES) { /* T4 */
		BIO_set_retry_read(bio);
		return -1;
	}
	got = recv(s->fd, bytes, (size_t)n, MSG_DONTWAIT);
	if (got > 0) {
		s->call_bytes += (size_t)got;
		return (int)got;
	}
	if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		BIO_set_retry_read(bio);
	else
		s->os_error = got < 0 ? errno : ECONNRESET;
	return -1;
}

static int socket_write(BIO *bio, const char *bytes, int n)
{
	struct redis_tls_stream *s = BIO_get_data(bio);
	const size_t room = sizeof(s->out) - s->out_end;
	const size_t taken = (size_t)n < room ? (size_t)n : room;

	BIO_clear_retry_flags(bio);
	if (taken == 0) {
		BIO_set_retry_write(bio);
		return -1;
	}
	memcpy(s->out + s->out_end, bytes, taken);
	s->out_end += taken;
	return (int)taken;
}

static long socket_control(BIO *bio, int command, long number, void *pointer)
{
	(void)bio;
	(void)number;
	(void)pointer;
	return command == BIO_CTRL_FLUSH; /* the caller of OpenSSL sends `out` */
}

/* NULL: no memory. */
static BIO_METHOD *stream_method(void)
{
	BIO_METHOD *ret = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "socket of a stream");

	if (ret) {
		BIO_meth_set_read(ret, socket_read);
		BIO_meth_set_write(ret, socket_write);
		BIO_meth_set_ctrl(ret, socket_control);
	}
	return ret;
}

/* --- the settings --- */

static const char *given(const char *text)
{
	return text ? text : "";
}

static int wrong_file(const char *option, const char *path, const char *why, int error, char *text,
		      size_t n)
{
	return text_fail(text, n, -error, "[redis] %s: %s: %s", option, path, why);
}

/* OpenSSL would wait for the writer of a FIFO. */
static int check_file(const char *option, const char *path, char *text, size_t n)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return wrong_file(option, path, strerror(errno), errno, text, n);
	return S_ISREG(st.st_mode) ? 0 :
				     wrong_file(option, path, "is no regular file", EPERM, text, n);
}

/* Without this OpenSSL would ask for a passphrase on the terminal. */
static int no_passphrase(char *buffer, int size, int writing, void *arg)
{
	(void)buffer;
	(void)size;
	(void)writing;
	(void)arg;
	return -1;
}

static const char *openssl_words(void)
{
	const char *words = ERR_reason_error_string(ERR_peek_error());

	return words ? words : "OpenSSL does not take it";
}

static int trust(SSL_CTX *ssl, const char *ca_file, char *text, size_t n)
{
	int r;

	if (!ca_file[0])
		return SSL_CTX_set_default_verify_paths(ssl) == 1 ? 0 : -ENOMEM;
	r = check_file("tls_ca_file", ca_file, text, n);
	if (r == 0 && SSL_CTX_load_verify_file(ssl, ca_file) != 1)
		r = wrong_file("tls_ca_file", ca_file, openssl_words(), EINVAL, text, n);
	return r;
}

/* The file is read here and not by OpenSSL, whose stdio buffer is neither wiped nor left out of
 * core dumps. */
static int use_key(SSL_CTX *ssl, const char *path, char *text, size_t n)
{
	char *pem = vault_alloc(KEY_FILE_BYTES), why[128] = "no memory";
	EVP_PKEY *key = NULL;
	BIO *bio = NULL;
	size_t bytes;
	int r = pem ? vault_read(path, pem, KEY_FILE_BYTES, &bytes, why, sizeof(why)) : -ENOMEM;

	if (r == 0)
		bio = BIO_new_mem_buf(pem, (int)bytes);
	if (bio)
		key = PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL);
	if (r)
		(void)wrong_file("tls_key_file", path, why, 0, text, n);
	else if (!key || SSL_CTX_use_PrivateKey(ssl, key) != 1)
		r = wrong_file("tls_key_file", path, openssl_words(), EINVAL, text, n);
	EVP_PKEY_free(key);
	(void)BIO_free(bio);
	vault_free(pem, KEY_FILE_BYTES);
	return r;
}

static int present(SSL_CTX *ssl, const char *cert_file, const char *key_file, char *text, size_t n)
{
	int r;

	if (!cert_file[0])
		return 0;
	SSL_CTX_set_default_passwd_cb(ssl, no_passphrase);
	r = check_file("tls_cert_file", cert_file, text, n);
	if (r == 0 && SSL_CTX_use_certificate_chain_file(ssl, cert_file) != 1)
		r = wrong_file("tls_cert_file", cert_file, openssl_words(), EINVAL, text, n);
	ERR_clear_error();
	if (r == 0)
		r = use_key(ssl, key_file, text, n);
	/* OpenSSL has compared key and certificate only if they are of one kind. */
	if (r == 0 && SSL_CTX_check_private_key(ssl) != 1)
		r = wrong_file("tls_key_file", key_file, "not the key of tls_cert_file", EINVAL,
			       text, n);
	return r;
}

static int configure(struct redis_tls *tls, const struct redis_tls_conf *conf, char *text, size_t n)
{
	int r;

	tls->ssl = SSL_CTX_new(TLS_client_method());
	tls->socket = stream_method();
	if (!tls->ssl || !tls->socket ||
	    SSL_CTX_set_min_proto_version(tls->ssl, TLS1_2_VERSION) != 1)
		return -ENOMEM;
	SSL_CTX_set_verify(tls->ssl, SSL_VERIFY_PEER, NULL);
	(void)SSL_CTX_set_options(tls->ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
	(void)SSL_CTX_set_session_cache_mode(tls->ssl, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_read_ahead(tls->ssl, 1);
	SSL_CTX_set_default_read_buffer_len(tls->ssl, READ_AHEAD_BYTES);
	r = trust(tls->ssl, given(conf->ca_file), text, n);
	return r ? r : present(tls->ssl, given(conf->cert_file), given(conf->key_file), text, n);
}

int redis_tls_open(const struct redis_tls_conf *conf, struct redis_tls **ret, char *text, size_t n)
{
	struct redis_tls *tls;
	int r;

	if (strlen(given(conf->name)) >= NAME_BYTES)
		return text_fail(text, n, -EINVAL, "[redis] tls_name: longer than %d bytes",
				 NAME_BYTES - 1);
	/* a dot at its end is not compared: "" would be left, which OpenSSL does not compare */
	if (strcmp(given(conf->name), ".") == 0)
		return text_fail(text, n, -EINVAL,
				 "[redis] tls_name: \".\" is the name of no server");
	(void)text_fail(text, n, 0, "[redis] tls: no memory");
	tls = calloc(1, sizeof(*tls));
	if (!tls)
		return -ENOMEM;
	ERR_clear_error();
	(void)snprintf(tls->name, sizeof(tls->name), "%s", given(conf->name));
	r = configure(tls, conf, text, n);
	if (r)
		redis_tls_close(tls);
	else
		*ret = tls;
	return r;
}

void redis_tls_close(struct redis_tls *tls)
{
	if (!tls)
		return;
	SSL_CTX_free(tls->ssl);
	BIO_meth_free(tls->socket);
	free(tls);
}

/* --- what a stream sends --- */

/* 0: all is out. -EAGAIN: not yet. */
static int flush(struct redis_tls_stream *s)
{
	while (s->out_at < s->out_end) {
		const ssize_t n = send(s->fd, s->out + s->out_at, s->out_end - s->out_at,
				       MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0)
			return errno == EWOULDBLOCK || errno == EINTR ? -EAGAIN : -errno;
		s->out_at += (size_t)n;
	}
	s->out_at = s->out_end = 0;
	return 0;
}

/* --- errors --- */

static int fail(struct redis_tls_stream *s, int error, const char *words)
{
	if (!s->error) {
		s->error = error;
		(void)snprintf(s->words, sizeof(s->words), "%s", words);
	}
	return -s->error;
}

/* An alert that a person has to act on. With TLS 1.3 a server looks at our certificate when the
 * handshake is over for us. */
static bool is_refusal(int reason)
{
	switch (reason - SSL_AD_REASON_OFFSET) {
	case SSL_AD_HANDSHAKE_FAILURE:
	case SSL_AD_PROTOCOL_VERSION:
	case SSL_AD_INSUFFICIENT_SECURITY:
	case SSL_AD_UNRECOGNIZED_NAME:
	case SSL_AD_BAD_CERTIFICATE:
	case SSL_AD_UNSUPPORTED_CERTIFICATE:
	case SSL_AD_CERTIFICATE_REVOKED:
	case SSL_AD_CERTIFICATE_EXPIRED:
	case SSL_AD_CERTIFICATE_UNKNOWN:
	case SSL_AD_UNKNOWN_CA:
	case SSL_AD_ACCESS_DENIED:
	case SSL3_AD_NO_CERTIFICATE:
	case SSL_AD_CERTIFICATE_REQUIRED:
		return true;
	default:
		return false;
	}
}

static int not_verified(struct redis_tls_stream *s, long result)
{
	char words[WORDS_BYTES];

	if (result == X509_V_ERR_HOSTNAME_MISMATCH || result == X509_V_ERR_IP_ADDRESS_MISMATCH)
		(void)snprintf(words, sizeof(words),
			       "its certificate is not one for %.100s: see [redis] tls_name",
			       s->host);
	else
		(void)snprintf(words, sizeof(words),
			       "its certificate: %.100s: see [redis] tls_ca_file",
			       X509_verify_cert_error_string(result));
	return fail(s, EKEYREJECTED, words);
}

static int protocol_failed(struct redis_tls_stream *s)
{
	const long verified = SSL_get_verify_result(s->ssl);
	const unsigned long error = ERR_peek_error();
	const int number = ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0;
	const char *reason = ERR_reason_error_string(error);
	char words[WORDS_BYTES];

	if (!s->shaken && verified != X509_V_OK)
		return not_verified(s, verified);
	if (is_refusal(number)) {
		(void)snprintf(words, sizeof(words),
			       "it refuses us (%.100s): see [redis] tls_cert_file",
			       reason ? reason : "alert");
		return fail(s, EACCES, words);
	}
	(void)snprintf(words, sizeof(words), "TLS: %.100s%s",
		       reason ? reason : "an error that OpenSSL has no words for",
		       s->shaken || number >= SSL_AD_REASON_OFFSET ? "" :
								     "; is this its TLS port?");
	return fail(s,
		    s->shaken                      ? EPROTO :
		    number >= SSL_AD_REASON_OFFSET ? ECONNABORTED :
						     EACCES,
		    words);
}

/*
 * The meaning of `r`, which a call of OpenSSL returned. -EAGAIN: more is needed from the socket. 0:
 * the server has ended the stream. Another -errno: the stream has failed.
 */
static int meaning(struct redis_tls_stream *s, int r)
{
	switch (SSL_get_error(s->ssl, r)) {
	case SSL_ERROR_WANT_READ:
		return -EAGAIN;
	case SSL_ERROR_ZERO_RETURN:
		return 0;
	case SSL_ERROR_WANT_WRITE: /* T3 */
		return fail(s, EPROTO, "TLS: the endpoint does not read what it is sent");
	case SSL_ERROR_SSL:
		if (!s->os_error)
			return protocol_failed(s);
		break;
	default:
		break;
	}
	if (s->os_error == ECONNRESET && !s->shaken)
		return fail(s, ECONNRESET,
			    "closed in the middle of the TLS handshake; is this its TLS port?");
	return fail(s, s->os_error ? s->os_error : EPROTO, s->os_error ? "" : "TLS");
}

static void begin(struct redis_tls_stream *s)
{
	ERR_clear_error();
	s->os_error = 0;
	s->call_bytes = 0;
}

/* --- a stream --- */

/* The name that the certificate must have, and that the server is told. */
static bool name_it(struct redis_tls_stream *s, const char *name)
{
	if (redis_host_numeric(s->host))
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(s->ssl), s->host) == 1;
	if (strcmp(name, "*") != 0 && SSL_set1_host(s->ssl, s->host) != 1)
		return false;
	return SSL_set_tlsext_host_name(s->ssl, s->host) == 1;
}

static int begin_stream(struct redis_tls_stream *s, const struct redis_tls *tls, const char *host)
{
	const bool any = strcmp(tls->name, "*") == 0;
	BIO *bio = BIO_new(tls->socket);

	if (!bio)
		return -ENOMEM;
	BIO_set_data(bio, s);
	BIO_set_init(bio, 1);
	s->ssl = SSL_new(tls->ssl);
	if (!s->ssl) {
		BIO_free(bio);
		return -ENOMEM;
	}
	SSL_set_bio(s->ssl, bio, bio);
	SSL_set_connect_state(s->ssl);
	(void)snprintf(s->host, sizeof(s->host), "%s", tls->name[0] && !any ? tls->name : host);
	/* an absolute name ends with a dot, which no certificate has */
	if (s->host[0] && s->host[strlen(s->host) - 1] == '.')
		s->host[strlen(s->host) - 1] = 0;
	if (!any && !s->host[0])
		return -EINVAL; /* OpenSSL would not compare it */
	if (any && redis_host_numeric(s->host))
		return 0; /* there is no name to compare with, or to send */
	return name_it(s, tls->name) ? 0 : -ENOMEM;
}

int redis_tls_stream_open(const struct redis_tls *tls, int fd, const char *host,
			  struct redis_tls_stream **ret)
{
	struct redis_tls_stream *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->fd = fd;
	ERR_clear_error();
	r = begin_stream(s, tls, host);
	if (r)
		redis_tls_stream_close(s);
	else
		*ret = s;
	return r;
}

void redis_tls_stream_close(struct redis_tls_stream *s)
{
	if (!s)
		return;
	SSL_free(s->ssl);
	free(s);
}

int redis_tls_stream_handshake(struct redis_tls_stream *s)
{
	int r, flushed;

	if (s->error)
		return -s->error;
	begin(s);
	r = SSL_do_handshake(s->ssl);
	flushed = flush(s); /* an alert is sent as well: it tells the server why */
	if (r == 1) {
		s->shaken = true;
	} else {
		r = meaning(s, r);
		if (r == 0)
			r = fail(s, ECONNRESET, "closed in the middle of the TLS handshake");
		if (r != -EAGAIN)
			return r;
		r = 0;
	}
	return flushed && flushed != -EAGAIN ? fail(s, -flushed, "") : r;
}

/* Like SSL_read(), but never negative. 0: no more; `dry`, `ended` or `error` says why. */
static int read_some(struct redis_tls_stream *s, void *bytes, size_t n)
{
	int r;

	begin(s);
	r = SSL_read(s->ssl, bytes, n > INT32_MAX ? INT32_MAX : (int)n);
	if (r > 0)
		return r;
	r = meaning(s, r);
	s->dry = r == -EAGAIN;
	s->ended = r == 0;
	return 0;
}

ssize_t redis_tls_stream_recv(struct redis_tls_stream *s, const struct iovec *iov, size_t n)
{
	ssize_t sum = 0;

	s->dry = s->must_read = false;
	for (size_t i = 0; i < n; i++)
		for (size_t at = 0; at < iov[i].iov_len;) {
			const int r = s->error || s->ended ?
					      0 :
					      read_some(s, (uint8_t *)iov[i].iov_base + at,
							iov[i].iov_len - at);

			if (r == 0)
				goto done;
			at += (size_t)r;
			sum += r;
		}
done:
	if (sum > 0 || s->ended)
		return sum;
	if (s->error == ECONNRESET)
		return 0;
	errno = s->error ? s->error : EAGAIN;
	return -1;
}

bool redis_tls_stream_pending(const struct redis_tls_stream *s)
{
	return !s->dry;
}

/* The next record's plain bytes, n of them, from iov on: where they lie, or put together. */
static const void *next_record(struct redis_tls_stream *s, const struct iovec *iov, size_t n,
			       size_t at, size_t *ret_bytes)
{
	size_t used = 0;

	if (iov->iov_len - at >= RECORD_BYTES) {
		*ret_bytes = RECORD_BYTES;
		return (const uint8_t *)iov->iov_base + at;
	}
	for (size_t i = 0; i < n && used < RECORD_BYTES; i++, at = 0) {
		const size_t left = iov[i].iov_len - at,
			     take = left < RECORD_BYTES - used ? left : RECORD_BYTES - used;

		memcpy(s->plain + used, (const uint8_t *)iov[i].iov_base + at, take);
		used += take;
	}
	*ret_bytes = used;
	return s->plain;
}

/* Makes as many records as `out` takes from the bytes behind the first `done` of iov. 0, or
 * -errno. */
static int seal(struct redis_tls_stream *s, const struct iovec *iov, size_t n, size_t *done,
		size_t all)
{
	while (*done < all && sizeof(s->out) - s->out_end >= RECORD_ROOM + SPARE_BYTES) {
		size_t at = *done, i = 0, bytes;
		const void *plain;
		int r;

		while (at >= iov[i].iov_len)
			at -= iov[i++].iov_len;
		plain = next_record(s, iov + i, n - i, at, &bytes);
		begin(s);
		r = SSL_write(s->ssl, plain, (int)bytes);
		if (plain == s->plain)
			explicit_bzero(s->plain, bytes); /* a password may be among them */
		if (r <= 0) {
			r = meaning(s, r);
			s->must_read = r == -EAGAIN; /* no byte was taken: T1 holds */
			return r == 0 ? fail(s, EPROTO, "TLS: the endpoint cannot be written to") :
					r;
		}
		assert((size_t)r == bytes); /* T1 */
		*done += bytes;
	}
	return 0;
}

ssize_t redis_tls_stream_send(struct redis_tls_stream *s, const struct iovec *iov, size_t n)
{
	size_t done = 0, all = 0;
	int r = s->error ? -s->error : flush(s);

	for (size_t i = 0; i < n; i++)
		all += iov[i].iov_len;
	while (r == 0 && done < all) {
		r = seal(s, iov, n, &done, all);
		if (r == 0)
			r = flush(s);
	}
	if (r == 0 || done > 0) /* an error of the socket comes again with the next call */
		return (ssize_t)done;
	errno = -r;
	return -1;
}

bool redis_tls_stream_must_read(const struct redis_tls_stream *s)
{
	return s->must_read;
}

bool redis_tls_stream_unsent(const struct redis_tls_stream *s)
{
	return s->out_at < s->out_end;
}

const char *redis_tls_stream_words(const struct redis_tls_stream *s)
{
	return s->words;
}

const char *redis_tls_stream_version(const struct redis_tls_stream *s)
{
	return SSL_get_version(s->ssl);
}
