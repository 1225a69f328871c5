/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_config_redis - goal: [redis] is taken as it was meant, or refused with the line, the key and
 * the reason; files with secrets are read whole, only by users who may, and their contents get into
 * no message. Method: texts through config_parse(), and files in a temporary directory through
 * config_redis().
 */
#include "daemon/config/config_value.h"
#include "daemon/config/config_redis.h"
#include "tests/lib/lib_scratch.h"
#include "tests/lib/test.h"

static struct config c; /* the case's */
static char config_message[1024];
static struct config_notes faults;

static int config_of(const char *file, struct config *ret)
{
	FILE *in = fmemopen((void *)(uintptr_t)file, strlen(file), "r");
	int r;

	assert_non_null(in);
	r = config_parse(in, "test.conf", ret, &faults);
	snprintf(config_message, sizeof(config_message), "%.1000s", faults.text);
	(void)fclose(in);
	return r;
}

/* The last message has these words. */
static void config_says(const char *words)
{
	if (!strstr(config_message, words))
		fail_msg("\"%s\" is not in: %s", words, config_message);
}

/* Lines of [redis], which must be fine. */
static void config_takes(const char *key_value)
{
	char file[1024];

	snprintf(file, sizeof(file), "[redis]\n%s\n", key_value);
	if (config_of(file, &c) != 0)
		fail_msg("%s", config_message);
}

static void refused(const char *key_value, const char *words)
{
	char file[1024];

	snprintf(file, sizeof(file), "[redis]\n%s\n", key_value);
	assert_int_equal(config_of(file, &c), -EINVAL);
	config_says("test.conf:2: [redis] ");
	config_says(words);
}

/* --- endpoints --- */

TEST(endpoints_have_a_port_when_read)
{
	static const struct {
		const char *given, *want;
	} cases[] = {
		{ "", "" },
		{ "cache", "cache:6379" },
		{ "cache-1.example.org:7000", "cache-1.example.org:7000" },
		{ "10.0.0.7", "10.0.0.7:6379" },
		{ "[::1]", "[::1]:6379" },
		{ "[fe80:1::2]:65535", "[fe80:1::2]:65535" },
		{ "unix:/run/redis/redis.sock", "unix:/run/redis/redis.sock" },
		{ "a\tb:1   [::1]:2", "a:6379 b:1 [::1]:2" },
	};
	char given[256];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(given, sizeof(given), "endpoints = %s", cases[i].given);
		config_takes(given);
		assert_string_equal(c.redis_endpoints, cases[i].want);
	}
}

TEST(what_is_no_endpoint_is_refused)
{
	static const struct {
		const char *given, *words;
	} cases[] = {
		{ "a:", "a port in it that is no number" },
		{ "a:x", "a port in it that is no number" },
		{ "a:80x", "a port in it that is no number" },
		{ "a:-1", "a port in it that is no number" },
		{ "a:+1", "a port in it that is no number" },
		{ "a:0", "not 1 to 65535" },
		{ "a:65536", "not 1 to 65535" },
		{ "a:123456", "a port in it that is no number" },
		{ "::1", "none of host:port" },
		{ "fe80::1", "not in [ ]" },
		{ "a:1:2", "not in [ ]" },
		{ "[::1", "without an IPv6 address and ]" },
		{ "[]", "no IPv6 address" },
		{ "[10.0.0.1]", "no IPv6 address" },
		{ "[::1]x", "a port in it that is no number" },
		{ "redis://a", "a URL in it" },
		{ "a/b", "none of host:port" },
		{ "a,b", "a comma in it" },
		{ "unix:redis.sock", "unix: in it without a path" },
		{ "unix:", "unix: in it without a path" },
		{ "a a", "same endpoint twice" },
		{ "a b a:6379", "same endpoint twice" },
		{ "a\033[31m", "a control character" },
	};
	char given[256];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(given, sizeof(given), "endpoints = %s", cases[i].given);
		refused(given, cases[i].words);
		config_says("allowed: at most 16 of host:port, [v6]:port, unix:/path");
	}
}

TEST(a_unix_path_fits_into_an_address)
{
	char given[256];

	snprintf(given, sizeof(given), "endpoints = unix:/%0106d", 0);
	config_takes(given);
	assert_int_equal(strlen(c.redis_endpoints), strlen("unix:") + 107);
	snprintf(given, sizeof(given), "endpoints = unix:/%0107d", 0);
	refused(given, "more than 107 bytes");
}

/* The largest that is allowed, through the parser and back. */
TEST(sixteen_long_ones_fit)
{
	const struct config_row *row = &config_rows[CONFIG_ROW_redis_endpoints];
	char value[16 * 256 + 8] = "", item[CONFIG_ENDPOINT_BYTES], why[256];
	const char *cursor;
	int n = 0;

	memset(&c, 0, sizeof(c));
	for (int i = 0; i < 16; i++) {
		memset(item, 'x', sizeof(item));
		snprintf(item, 3, "%c.", 'a' + i);
		item[2] = 'x';
		memcpy(item + 250, ":6379", 6);
		snprintf(value + strlen(value), sizeof(value) - strlen(value), "%s%s",
			 i == 0 ? "" : " ", item);
	}
	assert_int_equal(strlen(value), 4095);
	assert_int_equal(config_value(row, value, &c, why, sizeof(why)), 0);
	assert_string_equal(c.redis_endpoints, value);
	for (cursor = c.redis_endpoints; config_next_item(&cursor, " ", item); n++) {
		assert_int_equal(strlen(item), 255);
		assert_int_equal(item[0], 'a' + n);
	}
	assert_int_equal(n, 16);
	strcat(value, " q");
	assert_int_equal(config_value(row, value, &c, why, sizeof(why)), -EINVAL);
	assert_non_null(strstr(why, "more than 16"));
	/* one byte more, with its port or without */
	memset(value, 'x', 256);
	value[251] = '\0';
	assert_int_equal(config_value(row, value, &c, why, sizeof(why)), -EINVAL);
	assert_non_null(strstr(why, "more than 255"));
	value[251] = 'x';
	value[256] = '\0';
	assert_int_equal(config_value(row, value, &c, why, sizeof(why)), -EINVAL);
	value[250] = '\0';
	assert_int_equal(config_value(row, value, &c, why, sizeof(why)), 0);
}

/* A line each: together they may be longer than a line may be. */
TEST(what_is_printed_is_read_back)
{
	static char file[16384];
	struct config again;
	char given[300];
	FILE *out;

	snprintf(given, sizeof(given), "endpoints = %0180d\nendpoints = [::1] unix:/x", 0);
	config_takes(given);
	out = fmemopen(file, sizeof(file), "w");
	config_print(&c, out);
	(void)fclose(out);
	assert_int_equal(config_of(file, &again), 0);
	memcpy(again.line_of, c.line_of, sizeof(c.line_of));
	assert_memory_equal(&c, &again, sizeof(c));
}

TEST(lines_add_up)
{
	assert_int_equal(config_of("[redis]\nendpoints = a\nendpoints =\nendpoints = b:1 c\n", &c),
			 0);
	assert_string_equal(c.redis_endpoints, "a:6379 b:1 c:6379");
	assert_int_equal(config_of("[redis]\nendpoints = a\nendpoints = a\n", &c), -EINVAL);
	config_says("test.conf:3:");
	assert_int_equal(config_of("[redis]\nttl = 1s\nttl = 2s\n", &c), -EINVAL);
	config_says("given twice");
}

/* --- the other keys --- */

TEST(hosts_of_a_cluster)
{
	refused("cluster_hosts = cache-a:6379", "entries are hosts, without port");
	refused("cluster_hosts = 10.0.0.0/33", "length is not 0 to 32");
	refused("cluster_hosts = cache/8", "whose address is not valid");
	refused("cluster_hosts = a,b", "no name, address or network");
	assert_int_equal(
		config_of("[redis]\ncluster_hosts = a  10.0.0.0/8\ncluster_hosts = .b fd00::/8\n",
			  &c),
		0);
	assert_string_equal(c.redis_cluster_hosts, "a 10.0.0.0/8 .b fd00::/8");
}

TEST(a_time_to_live_has_units)
{
	static const struct {
		const char *given;
		uint32_t want;
	} cases[] = {
		{ "ttl = 0s", 0 },
		{ "ttl = 90", 90 },
		{ "ttl = 90s", 90 },
		{ "ttl = 5m", 300 },
		{ "ttl = 12h", 43200 },
		{ "ttl = 7 d", 604800 },
		{ "ttl = 3650d", 315360000 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		config_takes(cases[i].given);
		assert_int_equal(c.redis_ttl, cases[i].want);
	}
	refused("ttl = 3651d", "out of range");
	refused("ttl = 1w", "unknown unit");
	refused("ttl = 5ms", "unknown unit");
	refused("ttl = -1", "out of range");
}

TEST(tls_is_all_of_it_or_nothing)
{
	config_takes("tls = no");
	config_takes("tls = yes");
	config_takes("tls = yes\ntls_ca_file = /ca\ntls_name = *");
	config_takes(
		"tls = yes\ntls_cert_file = /cert\ntls_key_file = /key\ntls_name = redis.example");
	refused("tls_ca_file = /ca", "[redis] tls_ca_file: is set, and [redis] tls is no");
	refused("tls_cert_file = /cert\ntls_key_file = /key",
		"[redis] tls_cert_file: is set, and [redis] tls is no");
	refused("tls_name = x", "[redis] tls_name: is set, and [redis] tls is no");
	refused("tls_cert_file = /cert\ntls = yes",
		"[redis] tls_cert_file: needs [redis] tls_key_file");
	refused("tls_key_file = /key\ntls = yes",
		"[redis] tls_key_file: needs [redis] tls_cert_file");
	refused("tls_name = *\ntls = yes", "[redis] tls_name: * needs [redis] tls_ca_file");
	refused("tls_name = .b\ntls = yes", "[redis] tls_name: begins with a dot");
	refused("tls_name = a b\ntls = yes", "[redis] tls_name: has a blank in it");
}

TEST(a_prefix_is_one_plain_word)
{
	config_takes("key_prefix =");
	assert_string_equal(c.redis_key_prefix, "");
	config_takes("key_prefix = a:b/{c}*");
	assert_string_equal(c.redis_key_prefix, "a:b/{c}*");
	refused("key_prefix = a b", "has a blank");
	refused("key_prefix = \xc3\xa4", "not printable");
	refused("key_prefix = 0123456789012345678901234567890123456789012345678901234567890123",
		"is 64 bytes long");
}

TEST(a_name_needs_a_password)
{
	config_takes("username = kvtier\npassword_file = /etc/p");
	config_takes("password_file = /etc/p");
	refused("username = kvtier", "needs [redis] password_file");
	refused("username = a b", "has a blank");
	refused("password_file = p", "does not begin with /");
}

/* --- files --- */

static char directory[SCRATCH_BYTES], path[96];
static struct config_redis *redis;

FIXTURE_DO(make_directory, scratch_make("/tmp", directory, sizeof(directory));
	   snprintf(path, sizeof(path), "%s/file", directory));

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
	config_takes(given);
	memset(config_message, 0, sizeof(config_message));
	r = config_redis(&c, redis, &conf, config_message, sizeof(config_message));
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
		assert_int_equal(redis->shared.n, 0);
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
		assert_int_equal(redis->shared.n, cases[i].want == 0 ? cases[i].bytes : 0);
		assert_memory_equal(redis->shared.bytes, bytes, redis->shared.n);
		if (cases[i].want < 0)
			config_says("must have 32 to 512");
	}
}

TEST(one_or_two_files_seal)
{
	char other[128], given[600];

	snprintf(other, sizeof(other), "%s.other", path);
	put("0123456789abcdef0123456789abcdef", 32, 0600);
	assert_int_equal(rename(path, other), 0);
	put("fedcba9876543210fedcba9876543210+", 33, 0600);
	snprintf(given, sizeof(given), "secret_file = %s\nseal_files = %s:%s", other, path, other);
	config_takes(given);
	redis_anew();
	assert_int_equal(config_redis(&c, redis, &conf, config_message, sizeof(config_message)), 0);
	assert_int_equal(redis->sealing[0].n, 33);
	assert_int_equal(redis->sealing[1].n, 32);
	assert_memory_equal(redis->sealing[1].bytes, redis->shared.bytes, 32);
	assert_ptr_equal(conf.seals, &redis->seals);
	put("short", 5, 0600);
	redis_anew();
	assert_int_equal(config_redis(&c, redis, &conf, config_message, sizeof(config_message)),
			 -EBADMSG);
	config_says("[redis] seal_files: ");
	(void)unlink(other);
	refused("seal_files = /a:/b:/c\nsecret_file = /s", "names more than two files");
	refused("seal_files = /a", "needs [redis] secret_file");
}

/* --- the tier's settings --- */

static void callback(TEST_UNUSED void *arg)
{
}

TEST(the_tier_gets_what_was_configured)
{
	char given[512];

	put("xyzzy\n", 6, 0600);
	snprintf(given, sizeof(given),
		 "endpoints = a [::1]:7 unix:/s\nusername = kvtier\npassword_file = "
		 "%s\nkey_prefix = p:\n"
		 "ttl = 1h\ntimeout_ms = 250",
		 path);
	config_takes(given);
	redis_anew();
	conf = (struct redis_tier_conf){ .max_in_flight = 5, .events = { .changed = callback } };
	assert_int_equal(config_redis(&c, redis, &conf, config_message, sizeof(config_message)), 0);
	assert_int_equal(conf.n_endpoints, 3);
	assert_string_equal(conf.endpoints[0], "a:6379");
	assert_string_equal(conf.endpoints[1], "[::1]:7");
	assert_string_equal(conf.endpoints[2], "unix:/s");
	assert_string_equal(conf.username, "kvtier");
	assert_string_equal(conf.password, "xyzzy");
	assert_string_equal(conf.key_prefix, "p:");
	assert_int_equal(conf.ttl_ms, 3600000);
	assert_int_equal(conf.connections, 4);
	assert_int_equal(conf.timeout_ms, 250);
	/* the caller's */
	assert_int_equal(conf.max_in_flight, 5);
	assert_ptr_equal(conf.events.changed, callback);
}

TEST(without_endpoints_there_is_no_tier)
{
	char given[512];

	put("0123456789abcdef0123456789abcdef", 32, 0600);
	/* a password for nobody is not looked for; the secret counts all the same */
	snprintf(given, sizeof(given), "password_file = /nonexistent\nsecret_file = %s", path);
	config_takes(given);
	redis_anew();
	assert_int_equal(config_redis(&c, redis, &conf, config_message, sizeof(config_message)), 0);
	assert_int_equal(conf.n_endpoints, 0);
	assert_int_equal(redis->shared.n, 32);
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
