/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_config_redis_files - goal: files with secrets are read whole, only by users who may, and
 * their contents get into no message. The tier is opened with the configured values. Method: files
 * in a temporary directory through config_redis().
 */
#include "tests/lib/lib_config_redis.h"
#include "tests/lib/lib_scratch.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- files --- */

static char directory[SCRATCH_BYTES], path[96];
static struct config_redis *redis;

FIXTURE(make_directory)
{
	scratch_make("/tmp", directory, sizeof(directory));
	snprintf(path, sizeof(path), "%s/file", directory);
	return 0;
}

FIXTURE(remove_directory)
{
	(void)unlink(path);
	config_redis_close(redis);
	redis = NULL;
	return rmdir(directory);
}

TEST_EACH(make_directory, remove_directory);

static void put(const char *bytes, size_t n, mode_t mode)
{
	const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, n), n);
	assert_int_equal(fchmod(fd, mode), 0);
	(void)close(fd);
}

static struct config config;
static struct redis_tier_conf conf;

static void redis_anew(void)
{
	config_redis_close(redis);
	redis = config_redis_new();
	assert_non_null(redis);
}

/* With `option` naming the file; whatever comes of it, the message has nothing of what the file
 * has. */
static int read_files(const char *option, const char *never_said)
{
	char given[512];
	int r;

	redis_anew();
	memset(&conf, 0, sizeof(conf));
	snprintf(given, sizeof(given), "endpoints = a b:1\n%s = %s", option, path);
	config_takes(given, &config);
	memset(config_message, 0, sizeof(config_message));
	r = config_redis(&config, redis, &conf, config_message, sizeof(config_message));
	if (never_said)
		assert_null(memmem(config_message, sizeof(config_message), never_said,
				   strlen(never_said)));
	if (r < 0) {
		config_says(option);
		config_says(path);
	}
	return r;
}

#define PASSWORD(bytes) (put(bytes, sizeof(bytes) - 1, 0600), read_files("password_file", "xyzzy"))

TEST(the_first_line_is_the_password)
{
	assert_int_equal(PASSWORD("xyzzy"), 0);
	assert_string_equal(conf.password, "xyzzy");
	assert_int_equal(PASSWORD("xyzzy\n"), 0);
	assert_string_equal(conf.password, "xyzzy");
	assert_int_equal(PASSWORD("xyzzy\r\n"), 0);
	assert_string_equal(conf.password, "xyzzy");
	assert_int_equal(PASSWORD(" xyzzy 1 \nmore\n"), 0);
	assert_string_equal(conf.password, " xyzzy 1 ");
}

TEST(what_is_no_password_is_refused)
{
	char large[600];

	assert_int_equal(PASSWORD(""), -EBADMSG);
	config_says("is empty");
	assert_int_equal(PASSWORD("\nxyzzy\n"), -EBADMSG);
	assert_int_equal(PASSWORD("xyzzy\0xyzzy\n"), -EBADMSG);
	config_says("NUL");
	memset(large, 'x', sizeof(large));
	put(large, 511, 0600);
	assert_int_equal(read_files("password_file", "xxx"), 0);
	assert_int_equal(strlen(conf.password), 511);
	large[511] = '\n';
	put(large, sizeof(large), 0600);
	assert_int_equal(read_files("password_file", "xxx"), 0);
	assert_int_equal(strlen(conf.password), 511);
	large[511] = 'x';
	put(large, 512, 0600);
	assert_int_equal(read_files("password_file", "xxx"), -EBADMSG);
	put(large, sizeof(large), 0600);
	assert_int_equal(read_files("password_file", "xxx"), -EBADMSG);
	config_says("longer than 511 bytes");
}

TEST(others_may_have_no_access)
{
	static const mode_t good[] = { 0400, 0600, 0440, 0640 }, bad[] = { 0644, 0604, 0602, 0601 };

	for (size_t i = 0; i < 4; i++) {
		put("xyzzy", 5, good[i]);
		assert_int_equal(read_files("password_file", "xyzzy"), 0);
		put("xyzzy", 5, bad[i]);
		assert_int_equal(read_files("password_file", "xyzzy"), -EPERM);
		config_says("others than its owner and group");
		assert_string_equal(redis->password, "");
		put("0123456789abcdef0123456789abcdef", 32, bad[i]);
		assert_int_equal(read_files("secret_file", "0123"), -EPERM);
		assert_int_equal(redis->shared_bytes, 0);
	}
}

TEST(what_is_no_file_is_refused)
{
	assert_int_equal(read_files("password_file", NULL), -ENOENT);
	config_says("No such file");
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(read_files("password_file", NULL), -EPERM);
	config_says("no regular file");
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	/* and does not wait for a writer */
	assert_int_equal(read_files("secret_file", NULL), -EPERM);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("elsewhere", path), 0);
	assert_int_equal(read_files("secret_file", NULL), -ENOENT);
}

/* As Kubernetes mounts secrets. */
TEST(a_link_to_a_good_file_is_good)
{
	char target[128];

	snprintf(target, sizeof(target), "%s.target", path);
	put("xyzzy", 5, 0400);
	assert_int_equal(rename(path, target), 0);
	assert_int_equal(symlink(target, path), 0);
	assert_int_equal(read_files("password_file", "xyzzy"), 0);
	assert_string_equal(conf.password, "xyzzy");
	assert_int_equal(unlink(target), 0);
}

TEST(a_shared_secret_has_32_to_512_bytes)
{
	static const struct {
		size_t bytes;
		int want;
	} cases[] = {
		{ 0, -EBADMSG }, { 31, -EBADMSG }, { 32, 0 }, { 512, 0 }, { 513, -EBADMSG },
	};
	char bytes[513];

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (char)(i * 7 + i / 256); /* zeros and line ends are part of it */
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		put(bytes, cases[i].bytes, 0600);
		assert_int_equal(read_files("secret_file", NULL), cases[i].want);
		assert_int_equal(redis->shared_bytes, cases[i].want == 0 ? cases[i].bytes : 0);
		assert_memory_equal(redis->shared, bytes, redis->shared_bytes);
		if (cases[i].want < 0)
			config_says("must have 32 to 512");
	}
}

/* --- the tier's settings --- */

static void callback(void *arg)
{
	(void)arg;
}

TEST(the_tier_gets_what_was_configured)
{
	char given[512];

	put("xyzzy\n", 6, 0600);
	snprintf(given, sizeof(given),
		 "endpoints = a [::1]:7 unix:/s\ncluster = no\nusername = kvtier\npassword_file = "
		 "%s\nkey_prefix = p:\n"
		 "ttl = 1h\nconnections = 7\ntimeout_ms = 250",
		 path);
	config_takes(given, &config);
	redis_anew();
	conf = (struct redis_tier_conf){ .max_in_flight = 5,
					 .max_image_bytes = 6,
					 .events = { .changed = callback } };
	assert_int_equal(config_redis(&config, redis, &conf, config_message,
				      sizeof(config_message)),
			 0);
	assert_int_equal(conf.n_endpoints, 3);
	assert_string_equal(conf.endpoints[0], "a:6379");
	assert_string_equal(conf.endpoints[1], "[::1]:7");
	assert_string_equal(conf.endpoints[2], "unix:/s");
	assert_int_equal(conf.cluster, REDIS_CLUSTER_NO);
	assert_string_equal(conf.username, "kvtier");
	assert_string_equal(conf.password, "xyzzy");
	assert_string_equal(conf.key_prefix, "p:");
	assert_int_equal(conf.ttl_ms, 3600000);
	assert_int_equal(conf.connections, 7);
	assert_int_equal(conf.timeout_ms, 250);
	/* the caller's */
	assert_int_equal(conf.max_in_flight, 5);
	assert_int_equal(conf.max_image_bytes, 6);
	assert_ptr_equal(conf.events.changed, callback);
}

TEST(without_endpoints_there_is_no_tier)
{
	char given[512];

	put("0123456789abcdef0123456789abcdef", 32, 0600);
	/* a password for nobody is not looked for; the secret counts all the same */
	snprintf(given, sizeof(given), "password_file = /nonexistent\nsecret_file = %s", path);
	config_takes(given, &config);
	redis_anew();
	assert_int_equal(config_redis(&config, redis, &conf, config_message,
				      sizeof(config_message)),
			 0);
	assert_int_equal(conf.n_endpoints, 0);
	assert_int_equal(redis->shared_bytes, 32);
	assert_string_equal(config_message, "");
}

TEST(what_is_likely_a_mistake_is_a_warning)
{
	put("0123456789abcdef0123456789abcdef", 32, 0600);
	assert_int_equal(read_files("key_prefix = {kv}:\nsecret_file", "0123"), 0);
	config_says("hash tag");
	assert_null(strstr(config_message, "secret_file"));
	assert_int_equal(read_files("key_prefix = {}{kv}:\nsecret_file", "0123"), 0);
	assert_string_equal(config_message, ""); /* an empty first one counts as none */
	assert_int_equal(read_files("key_prefix = {kv}:\ncluster = no\nsecret_file", "0123"), 0);
	assert_string_equal(config_message, "");
	assert_int_equal(read_files("key_prefix = {kv}:\npassword_file", "0123"), 0);
	config_says("secret_file is not set");
	config_says("hash tag");
	assert_int_equal(read_files("tls = yes\nsecret_file", "0123"), 0);
	assert_string_equal(config_message, "");
	assert_int_equal(read_files("endpoints = unix:/run/redis.sock\ntls = yes\nsecret_file",
				    "0123"),
			 0);
	assert_string_equal(config_message, "[redis] tls is yes, but not for unix: endpoints");
}
