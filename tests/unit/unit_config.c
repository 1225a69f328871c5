/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_config - goal: a configuration is either taken whole and as written, or refused with the
 * line, the key and the allowed values. Method: texts through config_parse(); directories made
 * below a temporary one.
 */

#include "daemon/config/config.h"
#include "daemon/config/config_place.h"
#include "daemon/config/config_value.h"
#include "tests/lib/lib_scratch.h"
#include "tests/lib/test.h"

static struct config c;            /* the case's */
static struct config_notes faults; /* of the last file */
static char text[1024];

static int parse(const char *file, struct config *ret)
{
	FILE *in = fmemopen((void *)(uintptr_t)file, strlen(file), "r");
	int r;

	if (file[0] == '\0') /* fmemopen takes no empty buffers */
		return config_load(NULL, ret, &faults);
	assert_non_null(in);
	r = config_parse(in, "test.conf", ret, &faults);
	(void)fclose(in);
	return r;
}

/* The file is refused and the message says each of the words. */
#define REFUSED(file, ...) refused(file, (const char *const[]){ __VA_ARGS__, NULL })

static void refused(const char *file, const char *const *words)
{
	struct config config, untouched;

	memset(&config, 0x5a, sizeof(config));
	untouched = config;
	assert_int_equal(parse(file, &config), -EINVAL);
	assert_memory_equal(&config, &untouched, sizeof(config));
	for (const char *at = faults.text; *at != '\0'; at++)
		/* the file's words cannot talk to a terminal */
		assert_true((unsigned char)*at >= 0x20 || *at == '\n');
	for (; *words; words++) {
		if (!strstr(faults.text, *words))
			fail_msg("\"%s\" is not in: %s", *words, faults.text);
	}
}

/* The file is refused with these messages, which are all there are. */
static void refused_as(const char *file, const char *messages)
{
	assert_int_equal(parse(file, &c), -EINVAL);
	assert_string_equal(faults.text, messages);
}

TEST(defaults)
{
	assert_int_equal(parse("", &c), 0);
	assert_int_equal(c.host_bytes.bytes, 1ull << 30);
	assert_int_equal(c.host_slab_bytes, 64u << 20);
	assert_int_equal(c.host_huge_pages, CONFIG_HUGE_THP);
	assert_int_equal(c.host_bytes.n, 0);
	assert_int_equal(c.host_verify, CONFIG_VERIFY_ONCE);
	assert_false(c.host_lock);
	assert_int_equal(c.sockets[0].mode, 0600);
	assert_string_equal(c.sockets[0].tenant, "default");
	assert_int_equal(c.socket_max_clients, 256);
	assert_int_equal(c.daemon_stop_us, 10000000);
	assert_string_equal(c.nvme_path, "");
	assert_int_equal(c.nvme_bytes, 8ull << 30);
	assert_int_equal(c.nvme_segment_bytes, 64u << 20);
	assert_int_equal(c.nvme_queue_depth, 32);
	assert_int_equal(c.nvme_write_budget_bytes_per_day, 0);
	assert_int_equal(c.nvme_io, CONFIG_NVME_IO_AUTO);
	assert_int_equal(c.nvme_stall_us, 5000000);
	assert_string_equal(c.redis_endpoints, "");
	assert_string_equal(c.redis_key_prefix, "kvtier:");
	assert_int_equal(c.redis_write, CONFIG_REDIS_WRITE_THROUGH);
	assert_int_equal(c.redis_timeout_ms, 1000);
	assert_int_equal(c.redis_max_inflight_bytes, 64u << 20);
	assert_int_equal(c.redis_ttl, 0);
	assert_int_equal(config_ring_entries(&c), 256);
}

TEST(every_type_is_read)
{
	assert_int_equal(
		parse("# a comment\n[daemon]\nstop_us = 2ms\nlog_level=debug ; and why\n\n"
		      "[socket]\nmode = 0660\ngroup = root\npath: /tmp/x.sock\n"
		      "[host]\nbytes = 3 GiB\nslab_bytes = 131072\nlock = yes\n"
		      "verify = always\nhuge_pages=no\n[device]\nworkers = 3\n"
		      "[nvme]\npath = /dev/a:/b/c\npath: /d\nio = threads\n"
		      "[redis]\nendpoints = a  b:1\nendpoints = unix:/c\nttl = 12h\nwrite = "
		      "on-evict\n",
		      &c),
		0);
	assert_int_equal(c.daemon_stop_us, 2000);
	assert_int_equal(c.daemon_log_level, 3);
	assert_int_equal(c.sockets[0].mode, 0660);
	assert_string_equal(c.sockets[0].group, "root");
	assert_string_equal(c.sockets[0].path, "/tmp/x.sock");
	assert_int_equal(c.host_bytes.bytes, 3ull << 30);
	assert_int_equal(c.host_slab_bytes, 131072);
	assert_true(c.host_lock);
	assert_int_equal(c.host_verify, CONFIG_VERIFY_ALWAYS);
	assert_int_equal(c.host_huge_pages, CONFIG_HUGE_NO);
	assert_int_equal(c.device_workers, 3);
	assert_string_equal(c.nvme_path, "/dev/a:/b/c:/d");
	assert_int_equal(c.nvme_io, CONFIG_NVME_IO_THREADS);
	assert_string_equal(c.redis_endpoints, "a:6379 b:1 unix:/c");
	assert_int_equal(c.redis_ttl, 12 * 3600);
	assert_int_equal(c.redis_write, CONFIG_REDIS_WRITE_ON_EVICT);
}

TEST(every_row_takes_its_bounds)
{
	char value[64], why[256];

	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		const struct config_row *row = &config_rows[i];
		const int64_t bounds[] = { row->min, row->max, row->min - 1, row->max + 1 };

		if (row->type == CONFIG_TYPE_STRING || row->type == CONFIG_TYPE_PATH ||
		    row->type == CONFIG_TYPE_PATHS || row->type == CONFIG_TYPE_ENDPOINTS ||
		    row->type == CONFIG_TYPE_HOSTS || row->type == CONFIG_TYPE_BOOL ||
		    row->type == CONFIG_TYPE_ENUM || row->type == CONFIG_TYPE_CHOICES)
			continue;
		for (int b = 0; b < 4; b++) {
			snprintf(value, sizeof(value),
				 row->type == CONFIG_TYPE_MODE ? "%llo" : "%lld",
				 (long long)bounds[b]);
			assert_int_equal(config_value(row, value, &c, why, sizeof(why)),
					 b < 2 ? 0 : -EINVAL);
		}
	}
}

TEST(unknown_words)
{
	REFUSED("[hots]\nbytes = 1G\n", "test.conf:1:", "[hots]", "did you mean [host]");
	REFUSED("[weather]\n", "test.conf:1:", "no such section", "[host]");
	REFUSED("[host]\n\nbyte = 1G\n",
		"test.conf:3:", "[host] byte:", "did you mean [host] bytes");
	REFUSED("[host]\nmax_clients = 3\n", "did you mean [socket] max_clients");
	REFUSED("[host]\nzebra = 3\n", "no such key", "--help");
	REFUSED("[gpu]\nmode = engine\nengine_bytes = 64M\n",
		"test.conf:2:", "test.conf:3:", "in kvtierd alone; take the line out");
	REFUSED("bytes = 1G\n[host]\n", "test.conf:1:", "before the first [section]");
}

TEST(bad_values)
{
	REFUSED("[host]\nbytes = 12Q\n", "test.conf:2:", "[host] bytes", "unknown unit \"Q\"",
		"64K to 64T");
	REFUSED("[host]\nbytes = 1GB\n", "unknown unit \"GB\"");
	REFUSED("[host]\nbytes = 1K\n", "out of range", "64K to 64T");
	REFUSED("[host]\nbytes = 99999999999999999999\n", "out of range");
	REFUSED("[host]\nbytes = 9999999999999T\n", "out of range");
	REFUSED("[host]\nbytes = -1\n", "out of range");
	REFUSED("[host]\nbytes = 0x10000\n", "not a number");
	REFUSED("[host]\nbytes =\n", "not a number");
	REFUSED("[host]\nlock = maybe\n", "neither yes nor no", "yes|no");
	REFUSED("[host]\nhuge_pages = th\n", "none of the choices", "no|thp|2m");
	REFUSED("[host]\nhuge_pages = no|thp\n", "none of the choices");
	REFUSED("[socket]\nmode = 0680\n", "octal");
	REFUSED("[socket]\nmode = 01777\n", "out of range");
	REFUSED("[socket]\nmax_clients = 0\n", "1 to 4096 clients");
	REFUSED("[socket]\npath = kvtier.sock\n", "does not begin with /");
	REFUSED("[socket]\ntenant =\n", "1 to 31 characters");
	REFUSED("[host]\nbytes = 1G \033[31m\n", "\\x1b");
}

TEST(codecs_are_words_and_the_default_is_one_of_them)
{
	assert_int_equal(parse("", &c), 0);
	assert_int_equal(c.codec_allow, (1 << CONFIG_CODECS) - 1);
	assert_int_equal(c.codec_default, CONFIG_CODEC_FP8);
	assert_int_equal(parse("[codec]\nallow = lossless  raw\ndefault = lossless\n", &c), 0);
	assert_int_equal(c.codec_allow, 1 << CONFIG_CODEC_RAW | 1 << CONFIG_CODEC_LOSSLESS);
	assert_int_equal(c.codec_default, CONFIG_CODEC_LOSSLESS);
	REFUSED("[codec]\nallow = raw fp9\n", "test.conf:2:", "[codec] allow", "none of the",
		"raw|fp8|int8|lossless");
	REFUSED("[codec]\nallow = raw,fp8\n", "[codec] allow", "blanks between");
	REFUSED("[codec]\nallow =\n", "[codec] allow", "names none");
	REFUSED("[codec]\nallow = raw lossless\n", "[codec] default", "\"fp8\"",
		"not in [codec] allow");
}

TEST(values_that_do_not_fit_together)
{
	REFUSED("[host]\nslab_bytes = 65537\n", "test.conf:2:", "[host] slab_bytes",
		"multiple of 4096");
	REFUSED("[host]\nslab_bytes = 1M\nhuge_pages = 2m\n", "multiple of 2M");
	REFUSED("[host]\nslab_bytes = 1M\nbytes = 512K\n", "more than [host] bytes");
	REFUSED("[socket]\ntenant = ../root\n", "[socket] tenant", "letters");
	assert_int_equal(parse("[host]\nbytes = 1M\n", &c), 0);
	/* the default follows; a given one is never changed */
	assert_int_equal(c.host_slab_bytes, 1u << 20);
}

/* What follows from other keys, or from the machine. */
TEST(figures_that_nobody_sets)
{
	assert_int_equal(parse("[socket]\nmax_clients = 4096\n", &c), 0);
	assert_int_equal(config_ring_entries(&c), 16);
	assert_int_equal(parse("[socket]\nmax_clients = 300\n[index]\nmax_blocks = 512\n", &c), 0);
	assert_int_equal(config_ring_entries(&c), 128);
	assert_int_equal(config_max_hinted(&c, 1 << 20), 128);
	assert_int_equal(parse("[nvme]\nbytes = 0\n", &c), 0);
	assert_int_equal(config_max_hinted(&c, 1 << 20), 64);
	assert_int_equal(config_max_hinted(&c, 1ull << 40), 256 << 10);
}

TEST(paths_are_a_list)
{
	static const char names[] = "abcdefghijklmnop";
	char value[CONFIG_PATH_BYTES + 64], path[CONFIG_PATH_BYTES], why[256];
	const struct config_row *row = &config_rows[CONFIG_ROW_nvme_path];
	const char *cursor;
	int n = 0;

	REFUSED("[nvme]\npath = store\n", "test.conf:2:", "[nvme] path", "does not begin with /",
		"at most 16");
	REFUSED("[nvme]\npath = /a:b\n", "does not begin with /");
	REFUSED("[nvme]\npath = /a::/b\n", "an empty path");
	REFUSED("[nvme]\npath = /a:\n", "an empty path");
	REFUSED("[nvme]\npath = :/a\n", "an empty path");
	REFUSED("[nvme]\npath = /a:/ab:/a\n", "same path twice");
	REFUSED("[nvme]\npath = /a:/b\npath = /b\n",
		"test.conf:3:", "\"/b\" has the same path twice");
	memset(&c, 0, sizeof(c));
	value[0] = '\0';
	for (int i = 0; i < 16; i++)
		snprintf(value + strlen(value), sizeof(value) - strlen(value), "%s/%c",
			 i == 0 ? "" : ":", names[i]);
	assert_int_equal(config_value(row, value, &c, why, sizeof(why)), 0);
	for (cursor = c.nvme_path; config_next_item(&cursor, ":", path); n++) {
		assert_int_equal(strlen(path), 2);
		assert_int_equal(path[1], names[n]);
	}
	assert_int_equal(n, 16);
	strcat(value, ":/q");
	assert_int_equal(config_value(row, value, &c, why, sizeof(why)), -EINVAL);
	assert_non_null(strstr(why, "more than 16"));
	memset(value, 'x', CONFIG_PATH_BYTES);
	value[0] = '/';
	value[CONFIG_PATH_BYTES - 1] = '\0';
	assert_int_equal(config_value(row, value, &c, why, sizeof(why)), 0);
	value[CONFIG_PATH_BYTES - 1] = 'x';
	value[CONFIG_PATH_BYTES] = '\0';
	assert_int_equal(config_value(row, value, &c, why, sizeof(why)), -EINVAL);
	assert_non_null(strstr(why, "more than 255"));
}

TEST(segments_fit_the_store)
{
	REFUSED("[nvme]\nsegment_bytes = 65537\n", "test.conf:2:", "[nvme] segment_bytes",
		"multiple of 4096");
	REFUSED("[nvme]\nbytes = 256M\nsegment_bytes = 64M\n", "[nvme] bytes",
		"4 segments of [nvme] segment_bytes", "268500992 at least");
	REFUSED("[nvme]\nbytes = 256K\n", "test.conf:2:", "[nvme] bytes", "327680 at least");
	REFUSED("[nvme]\nbytes = 1T\nsegment_bytes = 1M\n", "65535 segments", "at most");
	REFUSED("[nvme]\nbytes = 64T\n", "65535 segments of [nvme] segment_bytes = 268435456");
	assert_int_equal(parse("[nvme]\nbytes = 268500992\nsegment_bytes = 64M\n", &c), 0);
	/* no tier: nothing to fit */
	assert_int_equal(parse("[nvme]\nbytes = 0\nsegment_bytes = 256M\n", &c), 0);
	/* the default follows, in both directions */
	assert_int_equal(parse("[nvme]\nbytes = 256M\n", &c), 0);
	assert_int_equal(c.nvme_segment_bytes, 32u << 20);
	assert_int_equal(parse("[nvme]\nbytes = 320K\n", &c), 0);
	assert_int_equal(c.nvme_segment_bytes, 64u << 10);
	assert_int_equal(parse("[nvme]\nbytes = 8T\n", &c), 0);
	assert_int_equal(c.nvme_segment_bytes, 256u << 20);
}

TEST(each_mistake_is_named)
{
	refused_as("[host]\nslab_bytes = 70001\nhuge_pages = x\n[socket]\nmax_clients = 0\n"
		   "[nvme]\nbytes = 256K\n",
		   "test.conf:3: [host] huge_pages: \"x\" is none of the choices; allowed: "
		   "no|thp|2m\n"
		   "test.conf:5: [socket] max_clients: \"0\" is out of range; allowed: 1 to 4096 "
		   "clients\n"
		   "test.conf:7: [nvme] bytes: \"256K\" is less than 64K and 4 segments of [nvme] "
		   "segment_bytes = 65536, which a store needs: 327680 at least (0: no NVMe tier); "
		   "allowed: 0 to 64T (units K M G T or KiB MiB GiB TiB, powers of 1024)");
	REFUSED("[redis]\ntls_ca_file = /a\nusername = a b\n",
		"test.conf:2: [redis] tls_ca_file: is set",
		"test.conf:3: [redis] username: has a blank",
		"test.conf:3: [redis] username: needs");
	REFUSED("[socket]\nshare = 70\n[socket a]\nshare = 10\ngroup = no such\n[socket b]\n"
		"share = 2\ntenant = a\n",
		"test.conf:4: [socket a] share: all shares together are 80",
		"test.conf:5: [socket] group: there is no group",
		"test.conf:8: [socket b] tenant: \"a\" has another");
	assert_int_equal(faults.n, 3);
}

/* One mistake is one message. */
TEST(no_mistake_follows_from_another)
{
	refused_as("a = 1\nb = 2\n", "test.conf:1: a key before the first [section]");
	refused_as("[codec]\nalow = raw lossless\ndefault = lossless\n[nvme]\ncodec = q4\n",
		   "test.conf:2: [codec] alow: no such key; did you mean [codec] allow?");
	refused_as("[redi]\ntls = yes\nendpoint = a\n[redis]\ntls_ca_file = /a\n",
		   "test.conf:1: [redi]: no such section; did you mean [redis]?");
	refused_as("[host]\nbytes = 1M\nslab_bytes = 70001\nbytes = 2M\n",
		   "test.conf:4: [host] bytes: given twice, first in line 2");
}

TEST(twenty_mistakes_are_named_and_the_rest_counted)
{
	char file[512] = "[host]\n";

	for (int i = 0; i < 19; i++)
		strcat(file, "x = 1\n");
	assert_int_equal(parse(strcat(file, "y = 1\n"), &c), -EINVAL);
	assert_non_null(strstr(faults.text, "test.conf:21: [host] y"));
	assert_null(strstr(faults.text, "more"));
	assert_int_equal(parse(strcat(file, "z = 1\nz = 2\n"), &c), -EINVAL);
	assert_int_equal(faults.n, 22);
	assert_string_equal(strrchr(faults.text, '\n'), "\nand 2 more");
}

TEST(the_example_is_the_default)
{
	char file[32768] = "", *out = file;
	FILE *example = fmemopen(file, sizeof(file), "w");
	struct config defaults;

	config_print_example(example);
	(void)fclose(example);
	assert_int_equal(parse("", &defaults), 0);
	assert_int_equal(parse(file, &c), 0); /* all keys are comments */
	c.file = defaults.file;
	assert_memory_equal(&c, &defaults, sizeof(c));
	for (const char *in = file; *in != '\0'; in++)
		if (*in != '#' || in[1] == ' ')
			*out++ = *in;
	*out = '\0';
	assert_int_equal(parse(file, &c), 0);
	for (size_t i = 0; i < CONFIG_ROWS; i++)
		assert_true(c.line_of[0][i] > 0);
	memset(c.line_of, 0, sizeof(c.line_of));
	c.file = defaults.file;
	assert_memory_equal(&c, &defaults, sizeof(c));
}

TEST_DO(duplicates, REFUSED("[host]\nbytes = 1G\n[socket]\nmode = 0600\n[host]\nbytes = 2G\n",
			    "test.conf:6:", "given twice", "line 2"));

TEST(each_named_socket_is_another_tenants)
{
	assert_int_equal(parse("[socket]\nmode = 0660\n[socket acme]\n[socket b.2]\npath = /tmp/b\n"
			       "tenant = team\ngroup = root\n[socket]\nmax_clients = 8\n",
			       &c),
			 0);
	assert_int_equal(c.n_sockets, 3);
	assert_int_equal(c.sockets[0].mode, 0660);
	assert_string_equal(c.sockets[0].tenant, "default");
	assert_int_equal(c.socket_max_clients, 8);
	assert_string_equal(c.sockets[1].tenant,
			    "acme"); /* all else as of [socket] without a key */
	assert_int_equal(c.sockets[1].mode, 0600);
	assert_string_equal(c.sockets[1].path, "");
	assert_string_equal(c.sockets[2].tenant, "team");
	assert_string_equal(c.sockets[2].path, "/tmp/b");
	assert_string_equal(c.sockets[2].group, "root");
	assert_string_equal(c.sockets[2].name, "b.2");
}

TEST(what_a_named_socket_cannot_have)
{
	char many[1024] = "";

	for (int i = 0; i < CONFIG_SOCKETS_MAX; i++)
		snprintf(many + strlen(many), 64, "[socket s%d]\nmode = 0600\n", i);
	REFUSED(many, "test.conf:32:", "16 sockets already");
	REFUSED("[socket a b]\n", "test.conf:1:", "a socket's name is 1 to 31");
	REFUSED("[socket .a]\n", "a socket's name");
	REFUSED("[socket ]\n", "a socket's name");
	REFUSED("[socket 12345678901234567890123456789012]\n", "a socket's name");
	REFUSED("[socket a]\nmode = 0600\n[socket a]\nmode = 0660\n", "test.conf:4:", "given twice",
		"line 2");
	REFUSED("[socket a]\nmode = 9\n", "test.conf:2:", "[socket a] mode", "0 to 0777");
	REFUSED("[socket a]\nmax_clients = 9\n", "test.conf:2:", "[socket a] max_clients",
		"a socket has path, mode");
	REFUSED("[socket default]\n", "has another socket already");
	REFUSED("[socket a]\n[socket b]\ntenant = a\n", "test.conf:3:", "\"a\" has another socket");
	REFUSED("[socket a]\ntenant = a/b\n", "test.conf:2:", "other characters");
	REFUSED("[socket a]\ntenant = a b\n", "test.conf:2:", "other characters");
	REFUSED("[socket a]\ntenant = a~1\n", "test.conf:2:", "other characters");
	REFUSED("[socket a]\ntenant = ..\n", "test.conf:2:", "begins with .");
}

TEST(memory_by_node)
{
	assert_int_equal(parse("[host]\nbytes = 0:8G, 3:512 MiB\nbytes = 1:1G\n", &c), 0);
	assert_int_equal(c.host_bytes.n, 3);
	assert_int_equal(c.host_bytes.bytes, 9728ull << 20);
	assert_int_equal(c.host_bytes.nodes[1].node, 3);
	assert_int_equal(c.host_bytes.nodes[1].bytes, 512ull << 20);
	assert_int_equal(c.host_bytes.nodes[2].node, 1);
	assert_int_equal(parse("[host]\nbytes = 0:1G,1:32M\n", &c), 0);
	assert_int_equal(c.host_slab_bytes, 32u << 20); /* a slab fits into each share */
	assert_int_equal(parse("[host]\nbytes = auto\n", &c), 0);
	assert_true(c.host_bytes.bytes == CONFIG_AUTO);
	assert_int_equal(c.host_bytes.n, 0);
	REFUSED("[host]\nbytes = 0:8G,4G\n", "test.conf:2:", "no NODE:BYTES", "0 to 1023",
		"NODE:BYTES of at most 16");
	REFUSED("[host]\nbytes = 0:8G,\n", "no NODE:BYTES");
	REFUSED("[host]\nbytes = ,\n", "no NODE:BYTES");
	REFUSED("[host]\nbytes = -1:8G\n", "no NODE:BYTES");
	REFUSED("[host]\nbytes = 1024:8G\n", "no NODE:BYTES");
	REFUSED("[host]\nbytes = 0x1:8G\n", "no NODE:BYTES");
	REFUSED("[host]\nbytes = 0:auto\n", "out of range");
	REFUSED("[host]\nbytes = 0:1K\n", "out of range", "64K to 64T");
	REFUSED("[host]\nbytes = 0:40T,1:40T\n", "out of range");
	REFUSED("[host]\nbytes = 0:12Q\n", "unknown unit \"Q\"");
	REFUSED("[host]\nbytes = 0:1G,1:2G,0:1G\n", "has node 0 twice");
	REFUSED("[host]\nbytes = 0:1G\nbytes = 2G\n", "test.conf:3:", "no NODE:BYTES");
	REFUSED("[host]\nbytes = auto\nbytes = 0:2G\n", "test.conf:3:", "given twice");
	REFUSED("[host]\nbytes = 0:1M,1:1M,2:1M,3:1M,4:1M,5:1M,6:1M,7:1M,8:1M,9:1M,10:1M,"
		"11:1M,12:1M,13:1M,14:1M,15:1M\nbytes = 16:1M\n",
		"test.conf:3:", "more than 16 nodes");
	REFUSED("[host]\nbytes = 0:1G,1:1M\nslab_bytes = 2M\n", "more than [host] bytes of a node");
}

TEST(a_number_may_be_automatic)
{
	assert_int_equal(parse("[gpu]\nmax_ctas = auto\n", &c), 0);
	assert_true(c.gpu_max_ctas == CONFIG_COUNT_AUTO);
	assert_int_equal(parse("[gpu]\nmax_ctas = 7\n", &c), 0);
	assert_int_equal(c.gpu_max_ctas, 7);
	REFUSED("[gpu]\nmax_ctas = 0\n", "1 to 1024 blocks, or auto");
	REFUSED("[gpu]\nmax_ctas = 4294967295\n", "out of range");
	REFUSED("[device]\nworkers = auto\n", "is not a number");
}

/* Lines that are nothing, that many parsers let pass. */
TEST(the_parsers_traps)
{
	char long_line[1100];

	REFUSED("[host]\nbytes = 1G\n  lock\n",
		"test.conf:3:", "neither [section] nor key = value");
	REFUSED("[host] bytes = 1G\n", "test.conf:1:", "text after a [section]");
	REFUSED("[host\nbytes = 1G\n", "test.conf:1:", "without ]");
	REFUSED("[host]\nnonsense\nbytes = 12Q\n", "test.conf:2:");
	REFUSED("[host]\nbytes = 12Q\nnonsense\n", "test.conf:2:", "unknown unit");
	memset(long_line, 'a', sizeof(long_line));
	memcpy(long_line, "[host]\n#", 8);
	long_line[sizeof(long_line) - 1] = '\0';
	REFUSED(long_line, "test.conf:2:", "a line of more than");
	REFUSED("\xef\xbb\xbf [hots]\n", "test.conf:1:", "did you mean [host]");
	assert_int_equal(parse("\xef\xbb\xbf[host]\r\n\tbytes = 2G\r\n", &c), 0);
	assert_int_equal(c.host_bytes.bytes, 2ull << 30);
}

TEST(a_nul_byte_is_refused)
{
	static const char file[] = "[host]\nbytes = 1G\0 0\n";
	FILE *in = fmemopen((void *)(uintptr_t)file, sizeof(file) - 1, "r");

	assert_int_equal(config_parse(in, "test.conf", &c, &faults), -EINVAL);
	assert_string_equal(faults.text, "test.conf:2: a NUL byte");
	(void)fclose(in);
}

TEST(unreadable_files)
{
	assert_int_equal(config_load("/nonexistent/kvtier.conf", &c, &faults), -ENOENT);
	assert_non_null(strstr(faults.text, "/nonexistent/kvtier.conf: No such file"));
	assert_int_equal(config_load("/", &c, &faults), -EISDIR);
}

static void is_read_back_as_printed(const char *given)
{
	char file[16384] = "";
	struct config again;
	FILE *out = fmemopen(file, sizeof(file), "w");

	assert_int_equal(parse(given, &c), 0);
	config_print(&c, out);
	(void)fclose(out);
	assert_int_equal(parse(file, &again), 0);
	memset(c.line_of, 0, sizeof(c.line_of));
	memset(again.line_of, 0, sizeof(again.line_of));
	assert_memory_equal(&c, &again, sizeof(c));
}

TEST(printing_and_reading_gives_the_same)
{
	is_read_back_as_printed("[host]\nbytes = 123456K\nslab_bytes = 4M\nlock = true\n[socket]\n"
				"mode=0666\n[daemon]\nstop_us = 7\nruntime_dir = /tmp/a b\n"
				"[nvme]\npath = /a:/b c\nbytes = 9G\nio = io_uring\n"
				"[redis]\nendpoints = [::1]:7 x.y\nttl = 7d\nkey_prefix = "
				"a;b#\nwrite = off\n[codec]\nallow = int8 fp8\n");
	is_read_back_as_printed("[host]\nbytes = 0:1G,7:3M,1:64K\n");
}

/* --- the surroundings --- */

static void derive(void)
{
	assert_int_equal(parse("", &c), 0);
	assert_int_equal(config_derive(&c, &faults), 0);
}

FIXTURE(clear_environment)
{
	unsetenv("RUNTIME_DIRECTORY");
	unsetenv("STATE_DIRECTORY");
	unsetenv("XDG_RUNTIME_DIR");
	unsetenv("XDG_STATE_HOME");
	return 0;
}

TEST_WITH(systemd_directories_come_first, clear_environment, NULL)
{
	setenv("RUNTIME_DIRECTORY", "/run/one:/run/two", 1);
	setenv("STATE_DIRECTORY", "/var/lib/one", 1);
	derive();
	assert_string_equal(c.daemon_runtime_dir, "/run/one");
	assert_string_equal(c.daemon_state_dir, "/var/lib/one");
	assert_string_equal(c.sockets[0].path, "/run/one/kvtier.sock");
	assert_string_equal(c.admin_path, "/run/one/admin.sock");
	assert_string_equal(c.stats_path, "/run/one/stats");
	assert_string_equal(c.nvme_path, "/var/lib/one/nvme.store");
	assert_true(config_spin_us() == 0 || config_spin_us() == 50);
}

TEST_WITH(named_sockets_lie_beside_the_first, clear_environment, NULL)
{
	setenv("RUNTIME_DIRECTORY", "/run/one", 1);
	setenv("STATE_DIRECTORY", "/var/lib/one", 1);
	assert_int_equal(parse("[socket acme]\n[socket b]\npath = /run/one/admin.sock\n", &c), 0);
	assert_int_equal(config_derive(&c, &faults), -EINVAL);
	assert_string_equal(faults.text, "test.conf:3: [socket b] path: /run/one/admin.sock is "
					 "another socket's");
	assert_string_equal(c.sockets[1].path, "/run/one/kvtier-acme.sock");
}

TEST_WITH(a_user_has_xdg_directories, clear_environment, NULL)
{
	const bool root = geteuid() == 0;

	if (root)
		assert_int_equal(seteuid(65534), 0);
	setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
	setenv("XDG_STATE_HOME", "relative/is/ignored", 1);
	setenv("HOME", "/home/x", 1);
	derive();
	assert_string_equal(c.daemon_runtime_dir, "/run/user/7/kvtier");
	assert_string_equal(c.daemon_state_dir, "/home/x/.local/state/kvtier");
	unsetenv("XDG_RUNTIME_DIR");
	derive();
	assert_memory_equal(c.daemon_runtime_dir, "/tmp/kvtier-", 12);
	if (root)
		assert_int_equal(seteuid(0), 0);
}

TEST_WITH(a_long_socket_path_is_an_error, clear_environment, NULL)
{
	char file[512], dir[120];

	memset(dir, 'd', sizeof(dir));
	dir[0] = '/';
	dir[107 - strlen("/kvtier.sock")] = '\0';
	snprintf(file, sizeof(file), "[daemon]\nruntime_dir = %s\nstate_dir = /s\n", dir);
	assert_int_equal(parse(file, &c), 0);
	assert_int_equal(config_derive(&c, &faults), 0);
	assert_int_equal(strlen(c.sockets[0].path), 107);
	strcat(dir, "d");
	snprintf(file, sizeof(file), "[daemon]\nruntime_dir = %s\nstate_dir = /s\n", dir);
	assert_int_equal(parse(file, &c), 0);
	assert_int_equal(config_derive(&c, &faults), -ENAMETOOLONG);
	assert_non_null(strstr(faults.text, "test.conf:2: "));
	assert_non_null(strstr(faults.text, "107"));
}

TEST_WITH(directories_are_ours_alone, clear_environment, NULL)
{
	char base[SCRATCH_BYTES], link[SCRATCH_BYTES + 8];
	struct stat st;

	c = (struct config){ 0 };
	scratch_make("/tmp", base, sizeof(base));
	snprintf(c.daemon_runtime_dir, sizeof(c.daemon_runtime_dir), "%s/a/run", base);
	snprintf(c.daemon_state_dir, sizeof(c.daemon_state_dir), "%s/a/state", base);
	assert_int_equal(config_make_dirs(&c, text, sizeof(text)), 0);
	assert_int_equal(config_make_dirs(&c, text, sizeof(text)), 0); /* again: fine */
	assert_int_equal(stat(c.daemon_state_dir, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);

	assert_int_equal(chmod(c.daemon_state_dir, 0777), 0);
	assert_int_equal(config_make_dirs(&c, text, sizeof(text)), -EPERM);
	assert_non_null(strstr(text, "nobody else can write"));
	assert_int_equal(rmdir(c.daemon_state_dir), 0);

	snprintf(link, sizeof(link), "%s/link", base);
	assert_int_equal(symlink(c.daemon_runtime_dir, link), 0);
	assert_int_equal(lchown(link, 65534, 65534) < 0 && geteuid() == 0, 0);
	memcpy(c.daemon_state_dir, link, sizeof(link));
	assert_int_equal(config_make_dirs(&c, text, sizeof(text)), -EPERM);

	scratch_remove(base);
}
