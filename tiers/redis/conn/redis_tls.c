/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_tls.c - facts that all TLS connections to Redis share: the authorities that we trust, and
 * our own certificate. Contract: redis_tls.h. Runs once, before there are connections; our own
 * files are not looked at again (OpenSSL opens the system's directory of authorities when it needs
 * an authority).
 */
#include "redis_tls.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/vault.h"
#include "redis_tls_stream.h"

enum { READ_AHEAD_BYTES = 64 << 10, KEY_FILE_BYTES = 64 << 10 };

static const char *given(const char *text)
{
	return text ? text : "";
}

static int wrong_file(const char *option, const char *path, const char *why, int error, char *text,
		      size_t n)
{
	(void)snprintf(text, n, "[redis] %s: %s: %s", option, path, why);
	return -error;
}

/* secret: nobody but its owner and group may have access. */
static int check_file(const char *option, const char *path, bool secret, char *text, size_t n)
{
	char why[96];
	struct stat st;

	if (stat(path, &st) < 0)
		return wrong_file(option, path, strerror(errno), errno, text, n);
	if (!S_ISREG(st.st_mode))
		return wrong_file(option, path, "is no regular file", EPERM, text, n);
	if (!secret || (st.st_mode & S_IRWXO) == 0)
		return 0;
	(void)snprintf(why, sizeof(why),
		       "has mode %04o, others than its owner and group have access: chmod o= it",
		       (unsigned)(st.st_mode & 07777));
	return wrong_file(option, path, why, EPERM, text, n);
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
	r = check_file("tls_ca_file", ca_file, false, text, n);
	if (r == 0 && SSL_CTX_load_verify_file(ssl, ca_file) != 1)
		r = wrong_file("tls_ca_file", ca_file, openssl_words(), EINVAL, text, n);
	return r;
}

/* The file is read here and not by OpenSSL, whose stdio buffer is neither wiped nor left out of
 * core dumps. */
static bool use_key(SSL_CTX *ssl, const char *path)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	char *text = fd >= 0 ? vault_alloc(KEY_FILE_BYTES) : NULL;
	EVP_PKEY *key = NULL;
	ssize_t got = 1, n = 0;
	BIO *bio = NULL;
	bool good;

	while (text && got > 0 && n < KEY_FILE_BYTES) {
		got = read(fd, text + n, (size_t)(KEY_FILE_BYTES - n));
		n += got > 0 ? got : 0;
	}
	if (text && got >= 0)
		bio = BIO_new_mem_buf(text, (int)n);
	if (bio)
		key = PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL);
	good = key && SSL_CTX_use_PrivateKey(ssl, key) == 1;
	EVP_PKEY_free(key);
	(void)BIO_free(bio);
	vault_free(text, KEY_FILE_BYTES);
	if (fd >= 0)
		(void)close(fd);
	return good;
}

static int present(SSL_CTX *ssl, const char *cert_file, const char *key_file, char *text, size_t n)
{
	int r;

	if (!cert_file[0])
		return 0;
	SSL_CTX_set_default_passwd_cb(ssl, no_passphrase);
	r = check_file("tls_cert_file", cert_file, false, text, n);
	if (r == 0 && SSL_CTX_use_certificate_chain_file(ssl, cert_file) != 1)
		r = wrong_file("tls_cert_file", cert_file, openssl_words(), EINVAL, text, n);
	if (r == 0)
		r = check_file("tls_key_file", key_file, true, text, n);
	ERR_clear_error();
	if (r == 0 && !use_key(ssl, key_file))
		r = wrong_file("tls_key_file", key_file, openssl_words(), EINVAL, text, n);
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
	tls->socket = redis_tls_stream_method();
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

	if (strlen(given(conf->name)) >= REDIS_TLS_NAME_BYTES) {
		(void)snprintf(text, n, "[redis] tls_name: longer than %d bytes",
			       REDIS_TLS_NAME_BYTES - 1);
		return -EINVAL;
	}
	/* a dot at its end is not compared: nothing would be left, and OpenSSL compare nothing */
	if (strcmp(given(conf->name), ".") == 0) {
		(void)snprintf(text, n, "[redis] tls_name: \".\" is the name of no server");
		return -EINVAL;
	}
	(void)snprintf(text, n, "[redis] tls: no memory");
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
