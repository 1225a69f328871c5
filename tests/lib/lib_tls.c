/* SPDX-License-Identifier: Apache-2.0 */
/* lib_tls.c - contract: lib_tls.h. */
#include "lib_scratch.h"
#include "lib_tls.h"
#include "test.h"

static void run(const char *command)
{
	if (system(command) != 0)
		fail_msg("%s", command);
}

/* A key and a certificate: by itself, or by an authority. */
static void make(const struct tls_files *f, const char *name, const char *by, const char *also,
		 char *ret_cert, char *ret_key)
{
	char command[1400], authority[2 * TLS_PATH + 40] = "";

	(void)snprintf(ret_cert, TLS_PATH, "%s/%s.pem", f->dir, name);
	(void)snprintf(ret_key, TLS_PATH, "%s/%s.key", f->dir, name);
	if (by)
		(void)snprintf(authority, sizeof(authority), "-CA %s/%s.pem -CAkey %s/%s.key",
			       f->dir, by, f->dir, by);
	(void)snprintf(
		command, sizeof(command),
		"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
		"-subj /CN=%s %s %s -out %s -keyout %s >%s/said 2>&1 || { cat %s/said; exit 1; }",
		name, authority, also, ret_cert, ret_key, f->dir, f->dir);
	run(command);
	assert_int_equal(chmod(ret_key, 0600), 0);
}

void tls_make(struct tls_files *f)
{
	char key[TLS_PATH];

	memset(f, 0, sizeof(*f));
	scratch_make(scratch_parent("/tmp"), f->dir, sizeof(f->dir));
	make(f, "ca", NULL, "", f->ca, key);
	make(f, "other-ca", NULL, "", f->other_ca, key);
	make(f, "server", "ca", "-addext subjectAltName=DNS:localhost,IP:127.0.0.1", f->server,
	     f->server_key);
	make(f, "elsewhere", "ca", "-addext subjectAltName=DNS:elsewhere.example", f->elsewhere,
	     f->elsewhere_key);
	make(f, "named", "ca", "-addext subjectAltName=DNS:localhost", f->named, f->named_key);
	make(f, "client", "ca", "", f->client, f->client_key);
	make(f, "stranger", "other-ca", "", f->stranger, f->stranger_key);
	f->conf = (struct redis_tls_conf){ .ca_file = f->ca,
					   .cert_file = f->client,
					   .key_file = f->client_key };
}

void tls_remove(struct tls_files *f)
{
	if (!f->dir[0])
		return;
	scratch_remove(f->dir);
	memset(f, 0, sizeof(*f));
}

const char *tls_options_with(const char *cert, const char *key, const char *ca)
{
	static char ret[3 * TLS_PATH + 80];

	(void)snprintf(ret, sizeof(ret),
		       "--tls-cert-file %s --tls-key-file %s --tls-ca-cert-file %s", cert, key, ca);
	return ret;
}

struct tls_files tls_group;

int tls_group_make(TEST_UNUSED void **state)
{
	tls_make(&tls_group);
	return 0;
}

int tls_group_remove(TEST_UNUSED void **state)
{
	tls_remove(&tls_group);
	return 0;
}

const char *tls_options(const struct tls_files *f)
{
	return tls_options_with(f->server, f->server_key, f->ca);
}
