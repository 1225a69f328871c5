/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secret.c - see secret.h.
 *
 * Invariant: state_dir/secret-TENANT, 32 random bytes with mode 0600, is written once and complete,
 * by a temporary name, fsync() and link(). A crash leaves all of it or no file.
 */
#include "secret.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "base/vault.h"

static int secret_read(const char *path, uint8_t *ret, char *text, size_t n)
{
	/* not blocking: it might be a FIFO */
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	ssize_t got;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || (st.st_mode & 077)) {
		(void)close(fd);
		return text_fail(
			text, n, -EPERM,
			"%s must be a regular file with mode 0600 (it is %04o): chmod 600 it, or "
			"remove it and lose the tenant's stored prefixes",
			path, (unsigned)(st.st_mode & 07777));
	}
	got = read(fd, ret, SECRET_BYTES);
	(void)close(fd);
	if (got != SECRET_BYTES || st.st_size != SECRET_BYTES)
		return text_fail(
			text, n, -EBADMSG,
			"%s must hold exactly %d bytes (it has %lld): restore it, or remove it and "
			"lose the tenant's stored prefixes",
			path, SECRET_BYTES, (long long)st.st_size);
	return 0;
}

static int write_all_synced(const char *path, const uint8_t *bytes, size_t n)
{
	const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int error = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, bytes, n) != (ssize_t)n || fsync(fd))
		error = errno ? -errno : -EIO;
	if (close(fd) && !error)
		error = -errno;
	return error;
}

static int secret_make(const char *path, char *text, size_t n)
{
	uint8_t *secret = vault_alloc(SECRET_BYTES);
	char temporary[320];
	int r = 0;

	/* no tenant's name has a ~ */
	snprintf(temporary, sizeof(temporary), "%s~%ld", path, (long)getpid());
	(void)unlink(temporary);
	if (!secret)
		r = -ENOMEM;
	else if (getrandom(secret, SECRET_BYTES, 0) != SECRET_BYTES)
		r = -EIO;
	if (!r)
		r = write_all_synced(temporary, secret, SECRET_BYTES);
	/* link, not rename: if another daemon was first, its secret stays. */
	if (!r && link(temporary, path) && errno != EEXIST)
		r = -errno;
	(void)unlink(temporary);
	vault_free(secret, SECRET_BYTES);
	if (r)
		snprintf(text, n,
			 "cannot write the tenant's secret %s: %s; [daemon] state_dir must be "
			 "writable",
			 path, strerror(-r));
	return r;
}

int secret_load(const char *state_dir, const char *tenant, uint8_t ret[SECRET_BYTES], char *text,
		size_t n)
{
	char path[300];
	int r;

	snprintf(path, sizeof(path), "%s/secret-%s", state_dir, tenant);
	r = secret_read(path, ret, text, n);
	if (r == -ENOENT) {
		r = secret_make(path, text, n);
		if (r)
			return r;
		r = secret_read(path, ret, text, n);
	}
	if (r == -ENOENT || r == -EACCES || r == -ELOOP)
		snprintf(text, n, "cannot read the tenant's secret %s: %s", path, strerror(-r));
	return r;
}

void secret_derive(const uint8_t *shared, size_t bytes, const char *tenant,
		   uint8_t ret[SECRET_BYTES])
{
	/* its 0 is hashed, too: where it ends is then certain */
	static const char label[] = "kvtier tenant 1";
	uint8_t message[sizeof(label) + SECRET_TENANT_BYTES];
	const size_t length = strlen(tenant);
	const uint8_t *done;
	unsigned got = 0;

	assert(length <= SECRET_TENANT_BYTES && bytes <= INT_MAX);
	memcpy(message, label, sizeof(label));
	memcpy(message + sizeof(label), tenant, length);
	done = HMAC(EVP_sha256(), shared, (int)bytes, message, sizeof(label) + length, ret, &got);
	/* an end here is better than keys that no other node has */
	assert(done && got == SECRET_BYTES);
	registers_forget();
}
