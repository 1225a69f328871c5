/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_config_redis - goal: [redis] is taken as it was meant, or refused with the line, the key and
 * the reason. Method: texts through config_parse().
 */
#include "daemon/config/config_endpoints.h"
#include "daemon/config/config_print.h"
#include "daemon/config/config_value.h"
#include "tests/lib/lib_config_redis.h"
#include "tests/lib/test.h"

static void refused(const char *key_value, const char *words)
{
	struct config c;
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
	struct config c;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(given, sizeof(given), "endpoints = %s", cases[i].given);
		config_takes(given, &c);
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
	struct config c;

	snprintf(given, sizeof(given), "endpoints = unix:/%0106d", 0);
	config_takes(given, &c);
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
	struct config c;
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
	for (cursor = c.redis_endpoints; config_endpoints_next(&cursor, item); n++) {
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
	struct config a, b;
	char given[300];
	FILE *out;

	snprintf(given, sizeof(given), "endpoints = %0180d\nendpoints = [::1] unix:/x", 0);
	config_takes(given, &a);
	out = fmemopen(file, sizeof(file), "w");
	config_print(&a, out);
	(void)fclose(out);
	assert_int_equal(config_of(file, &b), 0);
	assert_memory_equal(&a, &b, sizeof(a));
}

TEST(lines_add_up)
{
	struct config c;

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
	struct config c;

	refused("cluster_hosts = cache-a:6379", "entries are hosts, without port");
	refused("cluster_hosts = 10.0.0.0/33", "length is not 0 to 32");
	refused("cluster_hosts = cache/8", "whose address is none");
	refused("cluster_hosts = a,b", "no name, address or network");
	refused("cluster_hosts = 10.0.0.0/8\ncluster = no",
		"[redis] cluster_hosts: is set, and [redis] cluster is no");
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
	struct config c;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		config_takes(cases[i].given, &c);
		assert_int_equal(c.redis_ttl, cases[i].want);
	}
	refused("ttl = 3651d", "out of range");
	refused("ttl = 1w", "unknown unit");
	refused("ttl = 5ms", "unknown unit");
	refused("ttl = -1", "out of range");
}

TEST(tls_is_all_of_it_or_nothing)
{
	struct config c;

	config_takes("tls = no", &c);
	config_takes("tls = yes", &c);
	config_takes("tls = yes\ntls_ca_file = /ca\ntls_name = *", &c);
	config_takes(
		"tls = yes\ntls_cert_file = /cert\ntls_key_file = /key\ntls_name = redis.example",
		&c);
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
	struct config c;

	config_takes("key_prefix =", &c);
	assert_string_equal(c.redis_key_prefix, "");
	config_takes("key_prefix = a:b/{c}*", &c);
	assert_string_equal(c.redis_key_prefix, "a:b/{c}*");
	refused("key_prefix = a b", "has a blank");
	refused("key_prefix = \xc3\xa4", "not printable");
	refused("key_prefix = 0123456789012345678901234567890123456789012345678901234567890123",
		"is 64 bytes long");
}

TEST(a_name_needs_a_password)
{
	struct config c;

	config_takes("username = kvtier\npassword_file = /etc/p", &c);
	config_takes("password_file = /etc/p", &c);
	refused("username = kvtier", "needs [redis] password_file");
	refused("username = a b", "has a blank");
	refused("password_file = p", "does not begin with /");
}
