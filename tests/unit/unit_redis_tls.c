/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: files of [redis] tls_* that cannot be used are refused at start, by option, path and
 * reason, and nothing asks on a terminal. Method: files made by openssl(1), spoilt one by one.
 */
#include "tests/lib/lib_tls.h"
#include "tests/lib/test.h"

static struct redis_tls_conf conf;

FIXTURE_DO(all_is_good, conf = tls_group.conf);

TEST_EACH(all_is_good, NULL);

/* conf is, for this reason; then it is good again. */
static void refused(int error, const char *option, const char *words)
{
	struct redis_tls *tls = NULL;
	char text[512] = "";

	assert_int_equal(redis_tls_open(&conf, &tls, text, sizeof(text)), -error);
	assert_null(tls);
	if (!strstr(text, option) || !strstr(text, words))
		fail_msg("neither \"%s\" nor \"%s\": %s", option, words, text);
	conf = tls_group.conf;
}

TEST(good_ones_are_taken)
{
	const struct redis_tls_conf trust_alone = { .ca_file = tls_group.ca };
	const struct redis_tls_conf nothing = { .ca_file = NULL };
	struct redis_tls *tls;
	char text[512];

	assert_int_equal(redis_tls_open(&tls_group.conf, &tls, text, sizeof(text)), 0);
	redis_tls_close(tls);
	assert_int_equal(redis_tls_open(&trust_alone, &tls, text, sizeof(text)), 0);
	redis_tls_close(tls);
	assert_int_equal(redis_tls_open(&nothing, &tls, text, sizeof(text)), 0);
	redis_tls_close(tls);
	redis_tls_close(NULL);
}

TEST(files_that_are_not_there)
{
	conf.ca_file = "/nowhere/ca.pem";
	refused(ENOENT, "[redis] tls_ca_file: /nowhere/ca.pem", "No such file");
	conf.cert_file = "/nowhere/cert.pem";
	refused(ENOENT, "[redis] tls_cert_file: /nowhere/cert.pem", "No such file");
	conf.key_file = "/nowhere/key.pem";
	refused(ENOENT, "[redis] tls_key_file: /nowhere/key.pem", "No such file");
}

TEST(files_with_something_else)
{
	char path[TLS_PATH];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/nonsense", tls_group.dir);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_true(fputs("nonsense\n", f) >= 0);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(path, 0600), 0);
	conf.ca_file = path;
	refused(EINVAL, "[redis] tls_ca_file: ", path);
	conf.cert_file = path;
	refused(EINVAL, "[redis] tls_cert_file: ", path);
	conf.key_file = path;
	refused(EINVAL, "[redis] tls_key_file: ", path);
}

/* Opening a pipe would wait for a writer. */
TEST(a_pipe_is_not_waited_for)
{
	char path[TLS_PATH];

	(void)snprintf(path, sizeof(path), "%s/pipe", tls_group.dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	conf.ca_file = path;
	refused(EPERM, "[redis] tls_ca_file: ", "is no regular file");
	conf.key_file = path;
	refused(EPERM, "[redis] tls_key_file: ", "is no regular file");
}

TEST_DO(anothers_key, conf.key_file = tls_group.server_key;
	refused(EINVAL, "[redis] tls_key_file: ", "key values mismatch"));

/* Of another kind than the certificate. */
TEST(a_key_of_another_kind)
{
	char path[TLS_PATH], command[3 * TLS_PATH];

	(void)snprintf(path, sizeof(path), "%s/rsa.key", tls_group.dir);
	(void)snprintf(command, sizeof(command), "openssl genrsa -out %s 2048 2>/dev/null", path);
	assert_int_equal(system(command), 0);
	assert_int_equal(chmod(path, 0600), 0);
	conf.key_file = path;
	refused(EINVAL, "[redis] tls_key_file: ", path);
}

TEST(a_key_that_all_can_read)
{
	conf.cert_file = tls_group.server;
	conf.key_file = tls_group.server_key;
	assert_int_equal(chmod(tls_group.server_key, 0644), 0);
	refused(EPERM, "[redis] tls_key_file: ",
		"has mode 0644, others than its owner and group have access");
	assert_int_equal(chmod(tls_group.server_key, 0640), 0);
}

TEST(a_key_with_a_passphrase)
{
	char path[TLS_PATH], command[3 * TLS_PATH];

	(void)snprintf(path, sizeof(path), "%s/locked.key", tls_group.dir);
	(void)snprintf(command, sizeof(command),
		       "openssl pkcs8 -topk8 -in %s -out %s -passout pass:secret",
		       tls_group.client_key, path);
	assert_int_equal(system(command), 0);
	assert_int_equal(chmod(path, 0600), 0);
	conf.key_file = path;
	refused(EINVAL, "[redis] tls_key_file: ", path);
}

TEST(a_name_too_long)
{
	char name[300];

	memset(name, 'a', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
	conf.name = name;
	refused(EINVAL, "[redis] tls_name", "longer than 255 bytes");
}

TEST_DO(a_name_of_nobody, conf.name = ".";
	refused(EINVAL, "[redis] tls_name", "the name of no server"));

TEST_GROUP(tls_group_make, tls_group_remove);
