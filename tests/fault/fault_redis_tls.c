/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=15 lane=wait */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: with TLS values come and go as without. The state tells a server that we do not trust from
 * a server that does not trust us, in words that name the option. A stream that is cut or changed
 * anywhere ends the connection, and never gives a wrong byte. Method: real redis-servers, alone and
 * a Cluster, with certificates of this test's own; a forwarder between that cuts the server's
 * bytes, or flips one of their bits, at random places.
 */
#include "tests/lib/lib_redis_conn.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "tests/lib/lib_redis_tier.h"

static struct redis_server server;
static struct kit kit;

FIXTURE(clean)
{
	kit_free(&kit);
	redis_stop(&server);
	redis_tls_close(rig_tls);
	rig_tls = NULL;
	return 0;
}

TEST_EACH(NULL, clean);

static void open_at(const char *options)
{
	kit_begin_at(&kit, &server, options);
	kit.conf.tls = true;
	kit.conf.tls_conf = tls_group.conf;
}

/* Options besides those of TLS. */
static void open_with(const char *more)
{
	char options[1024];

	(void)snprintf(options, sizeof(options), "%s %s", tls_options(&tls_group), more);
	open_at(options);
}

static void at_localhost(void)
{
	static char address[64];

	(void)snprintf(address, sizeof(address), "localhost:%u", server.port);
	kit.conf.endpoints[0] = address;
}

static void is_up(const char *version)
{
	kit_start(&kit);
	kit_until_state(&kit, TIER_UP);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
	assert_string_equal(kit_row(&kit, 0).tls, version);
	kit_stop(&kit);
}

static void is_refused(const char *words)
{
	kit_start(&kit);
	kit_until_state(&kit, TIER_MISCONFIGURED);
	if (!kit_says(&kit, words))
		fail_msg("not \"%s\": %s", words, kit_row(&kit, 0).text);
	assert_true(kit_row(&kit, 0).counters.reconnects_total <= 3); /* no storm */
	assert_string_equal(kit_row(&kit, 0).tls, "");
	kit_stop(&kit);
}

/* --- certificates --- */

TEST(values_come_and_go)
{
	open_at(tls_options(&tls_group));
	is_up("TLSv1.3");
	kit_start(&kit);
	kit_until_state(&kit, TIER_UP);
	kit_store_all(&kit, 0, 200);
	assert_int_equal(kit_load_each(&kit, 0, 200, false), 200);
}

TEST(an_older_protocol)
{
	open_with("--tls-protocols TLSv1.2");
	is_up("TLSv1.2");
	kit.conf.tls_conf.cert_file = kit.conf.tls_conf.key_file = NULL;
	is_refused("tls_cert_file");
}

TEST(a_server_of_an_unknown_authority)
{
	open_at(tls_options(&tls_group));
	kit.conf.tls_conf.ca_file = tls_group.other_ca;
	is_refused("see [redis] tls_ca_file");
	kit.conf.tls_conf.ca_file = ""; /* nor does the system know it */
	is_refused("see [redis] tls_ca_file");
}

TEST(a_server_with_another_name)
{
	open_at(tls_options_with(tls_group.elsewhere, tls_group.elsewhere_key, tls_group.ca));
	is_refused("its certificate is not one for 127.0.0.1: see [redis] tls_name");
	kit.conf.tls_conf.name = "elsewhere.example.org";
	is_refused("its certificate is not one for elsewhere.example.org: see [redis] tls_name");
	kit.conf.tls_conf.name = "elsewhere.example";
	is_up("TLSv1.3");
	kit.conf.tls_conf.name = "*";
	is_up("TLSv1.3");
	kit.conf.tls_conf.ca_file = tls_group.other_ca;
	is_refused("see [redis] tls_ca_file");
}

/* The certificate is compared with the endpoint's name, if it has one. */
TEST(a_name_that_is_looked_up)
{
	open_at(tls_options(&tls_group));
	at_localhost();
	is_up("TLSv1.3");
	(void)clean(NULL);
	open_at(tls_options_with(tls_group.elsewhere, tls_group.elsewhere_key, tls_group.ca));
	at_localhost();
	is_refused("its certificate is not one for localhost");
}

TEST(a_server_that_does_not_know_us)
{
	open_at(tls_options(&tls_group));
	kit.conf.tls_conf.cert_file = kit.conf.tls_conf.key_file = NULL;
	is_refused("it refuses us");
	is_refused("tls_cert_file");
	kit.conf.tls_conf.cert_file = tls_group.stranger;
	kit.conf.tls_conf.key_file = tls_group.stranger_key;
	is_refused("tls_cert_file");
}

TEST(a_server_that_wants_no_certificate)
{
	open_with("--tls-auth-clients no");
	kit.conf.tls_conf.cert_file = kit.conf.tls_conf.key_file = NULL;
	is_up("TLSv1.3");
}

TEST(a_password_besides)
{
	open_with("--requirepass right");
	kit.conf.password = "wrong";
	is_refused("WRONGPASS");
	kit.conf.password = "right";
	is_up("TLSv1.3");
}

/* --- the wrong port --- */

static void until_it_says(const char *words)
{
	kit_start(&kit);
	kit_until_says(&kit, words);
	assert_int_not_equal(tier_state(kit.tier), TIER_UP);
}

TEST(tls_to_a_port_without)
{
	open_at(NULL);
	until_it_says("is this its TLS port?");
}

TEST(no_tls_to_a_port_with)
{
	open_at(tls_options(&tls_group));
	kit.conf.tls = false;
	until_it_says("does it want [redis] tls?");
}

TEST(a_handshake_without_answer)
{
	open_at(tls_options(&tls_group));
	redis_signal(&server, SIGSTOP);
	until_it_says("no TLS handshake in time");
	redis_signal(&server, SIGCONT);
	kit_until_state(&kit, TIER_UP);
}

TEST(a_unix_socket_has_none)
{
	char address[REDIS_TEST_PATH + 8];

	open_at(tls_options(&tls_group));
	(void)snprintf(address, sizeof(address), "unix:%s", server.socket);
	kit.conf.endpoints[0] = address;
	is_up("");
}

TEST(a_cluster)
{
	struct redis_cluster_rig rig;
	char options[1024];

	(void)snprintf(options, sizeof(options), "%s --tls-cluster yes --tls-replication yes",
		       tls_options(&tls_group));
	redis_cluster_start(&rig, options);
	kit_init(&kit, KIT_SMALL);
	kit.conf.tls = true;
	kit.conf.tls_conf = tls_group.conf;
	kit_start_at(&kit, rig.server[0].address);
	kit_store_all(&kit, 0, 100);
	assert_int_equal(kit_load_each(&kit, 0, 100, false), 100);
	for (uint32_t i = 0; i < 3; i++) {
		assert_string_equal(kit_row(&kit, i).tls, "TLSv1.3");
		assert_true(kit_row(&kit, i).counters.hits_total > 0);
	}
	kit_free(&kit);
	redis_cluster_stop(&rig);
}

/* It has no host in its map: the endpoint itself is meant, whose certificate has a name and no
 * address. */
TEST(a_cluster_of_one_with_a_name)
{
	char options[1024], text[256];

	(void)snprintf(options, sizeof(options), "%s --cluster-enabled yes --tls-cluster yes",
		       tls_options_with(tls_group.named, tls_group.named_key, tls_group.ca));
	open_at(options);
	redis_say(&server, text, sizeof(text), "CLUSTER ADDSLOTSRANGE 0 16383");
	assert_string_equal(text, "OK");
	at_localhost();
	is_up("TLSv1.3");
}

/* --- between --- */

/* with a stream that says there is more to come, and there is not */
enum { PATIENCE_MS = 2000 };
enum { HARMLESS = 40 }; /* values: several times the bytes before the last flipped byte */

/* Forwards one connection; ends it behind `at` bytes of the server's, or flips a bit of byte
 * `at`. */
struct between {
	pid_t pid;
	char address[64];
};

static void forward(int client, int to_server, uint64_t at, bool flip)
{
	struct pollfd fds[2] = { { client, POLLIN, 0 }, { to_server, POLLIN, 0 } };
	uint64_t passed = 0;
	uint8_t bytes[4096];

	for (;;) {
		(void)poll(fds, 2, -1);
		for (int i = 0; i < 2; i++) {
			ssize_t n = fds[i].revents ?
					    recv(fds[i].fd, bytes, sizeof(bytes), MSG_DONTWAIT) :
					    -1;

			if (n == 0)
				return;
			if (n < 0)
				continue;
			if (i == 1 && passed + (uint64_t)n > at) {
				if (!flip)
					n = (ssize_t)(at - passed);
				else if (passed <= at)
					bytes[at - passed] ^= (uint8_t)(1 << at % 8);
			}
			passed += i == 1 ? (uint64_t)n : 0;
			if (send(fds[!i].fd, bytes, (size_t)n, MSG_NOSIGNAL) != n ||
			    (!flip && passed == at))
				return;
		}
	}
}

static void between_start(struct between *b, uint64_t at, bool flip)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const int listener = fake_listen(b->address, NULL);

	b->pid = fork();
	assert_true(b->pid >= 0);
	if (b->pid == 0) {
		int client, to_server = socket(AF_INET, SOCK_STREAM, 0);

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		client = accept(listener, NULL, NULL);
		a.sin_port = htons(server.port);
		if (connect(to_server, (struct sockaddr *)&a, sizeof(a)) == 0)
			forward(client, to_server, at, flip);
		_exit(0);
	}
	(void)close(listener);
}

/* Gets until the connection ends, or waits for bytes that do not come (a record's length was
 * flipped). It also stops when so many values came that the flip was in a byte that TLS does not
 * mind (the version of a record). Every value that came is right. ret: how many came. */
static uint32_t gets_until_the_end(const char *address, const struct block *b)
{
	struct rig_command get = { 0 };
	uint32_t good = 0;
	struct rig r;

	rig_open_within(&r, address, "", "", PATIENCE_MS);
	while (redis_conn_state(r.conn) != REDIS_CONN_DOWN && good < HARMLESS) {
		if (redis_conn_state(r.conn) != REDIS_CONN_UP) {
			rig_run(&r, 1);
			continue;
		}
		rig_get(&get, b);
		get.command.deadline_ns = rig_in_ms(PATIENCE_MS);
		if (rig_do(&r, &get) == 0) {
			rig_has(&get, b);
			good++;
		} else if (get.command.status == -ETIMEDOUT) {
			break;
		} else {
			assert_int_equal(get.command.status, -ECONNRESET);
		}
	}
	rig_forget(&get);
	rig_close(&r);
	return good;
}

/* A value has 8 records and more, the handshake is in the first 2 KB. */
static void somewhere(const char *name, bool flip)
{
	static const struct image_geometry geometry = {
		.dtype = DTYPE_BF16,
		.layers = 8,
		.kv_heads = 4,
		.head_dim_k = 64,
		.head_dim_v = 64,
		.block_tokens = 32,
		.opaque_bytes = 1234,
	};
	struct random random = random_seeded(name);
	struct block b = block_of(&geometry, CODEC_FP8, &random);
	uint32_t good = 0;
	struct rig_command set = { 0 };
	struct rig r;

	redis_start(&server, tls_options(&tls_group));
	rig_tls_begin(&tls_group);
	rig_open(&r, server.address);
	rig_store(&r, &set, &b);
	rig_close(&r);
	for (uint32_t i = 0; i < 150; i++) {
		const uint64_t at =
			i < 75 ? 1 + random_below(&random, 2500) : random_below(&random, 700000);
		struct between between;

		between_start(&between, at, flip);
		good += gets_until_the_end(between.address, &b);
		assert_int_equal(kill(between.pid, SIGKILL), 0);
		assert_int_equal(waitpid(between.pid, NULL, 0), between.pid);
	}
	assert_true(good > 0);
	block_free(&b);
}

TEST_DO(a_stream_is_cut, somewhere("a_stream_is_cut", false));
TEST_DO(a_bit_is_flipped, somewhere("a_bit_is_flipped", true));

TEST_GROUP(tls_group_make, tls_group_remove);
TEST_FIRST(redis_needed());
