/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/* make: seconds=12 lane=wait */
/*
 * regr_redirects_tls.c - goal: with TLS, a server that a slot map or a redirect names is
 * sent the password only when its certificate is for the named host. Method: a real Cluster of two
 * redis-servers whose certificates are of one authority. The daemon knows the first; the second one
 * has a certificate for another name, or, so that we know that it would hear something, for its
 * own. It counts the AUTH commands that it hears, from any user.
 */
#include "tests/lib/lib_shared.h"
#include "tests/lib/lib_tls.h"

#include "tests/lib/lib_clock.h"

enum { KEYS = 32, TEXT = 8192 };

static struct {
	struct redis_server first, second;
	struct node node;
	struct kvtier_key keys[KEYS]; /* nobody has them; in slots of both servers */
} w;

/* --- two servers --- */

static void becomes(const struct redis_server *s, const char *command, const char *word)
{
	const uint64_t until = now_ns() + SHARED_MS * 1000000ull;
	char text[TEXT];

	do { /* an answer that came too late has had its effect: "already busy" */
		if (now_ns() > until)
			fail_msg("\"%s\" does not say \"%s\" but:\n%s", command, word, text);
		redis_say(s, text, sizeof(text), "%s", command);
		nap_ms(10);
	} while (!strstr(text, word) && !strstr(text, "is already busy"));
}

/* The test itself is the default user, which needs no password. */
static void start(struct redis_server *s, const char *cert, const char *key)
{
	char options[1000];

	(void)snprintf(options, sizeof(options),
		       "--cluster-enabled yes --cluster-require-full-coverage no --tls-cluster yes "
		       "--tls-replication yes %s",
		       tls_options_with(cert, key, tls_group.ca));
	redis_start(s, options);
	becomes(s, "ACL SETUSER engine on >opensesame ~* +@all", "OK");
}

/* The first one has all slots below `slots`, the second one the others. */
static void join(uint32_t slots)
{
	char command[128];

	becomes(&w.first, "CLUSTER SET-CONFIG-EPOCH 1", "OK");
	becomes(&w.second, "CLUSTER SET-CONFIG-EPOCH 2", "OK");
	(void)snprintf(command, sizeof(command), "CLUSTER ADDSLOTSRANGE 0 %u", slots - 1);
	becomes(&w.first, command, "OK");
	(void)snprintf(command, sizeof(command), "CLUSTER ADDSLOTSRANGE %u 16383", slots);
	if (slots < 16384)
		becomes(&w.second, command, "OK");
	(void)snprintf(command, sizeof(command), "CLUSTER MEET 127.0.0.1 %u", w.second.port);
	becomes(&w.first, command, "OK");
	becomes(&w.first, "CLUSTER INFO", "cluster_state:ok");
	becomes(&w.first, "CLUSTER INFO", "cluster_slots_ok:16384");
	becomes(&w.second, "CLUSTER INFO", "cluster_slots_ok:16384");
}

/* The second one takes half of the slots, so that the first one says MOVED. */
static void take_half(void)
{
	becomes(&w.second, "CLUSTER DELSLOTSRANGE 0 8191", "OK");
	becomes(&w.second, "CLUSTER ADDSLOTSRANGE 0 8191", "OK");
	(void)snprintf(w.node.text, sizeof(w.node.text), "%u", w.second.port);
	becomes(&w.first, "CLUSTER SLOTS", w.node.text);
}

static bool second_heard_auth(void)
{
	char text[TEXT];

	redis_say(&w.second, text, sizeof(text), "INFO commandstats");
	return strstr(text, "cmdstat_auth") != NULL;
}

/* --- the daemon --- */

static void begin(bool right_name, uint32_t slots)
{
	char path[200], lines[1200];
	struct node_conf conf;

	start(&w.first, tls_group.server, tls_group.server_key);
	if (right_name)
		start(&w.second, tls_group.server, tls_group.server_key);
	else
		start(&w.second, tls_group.elsewhere, tls_group.elsewhere_key);
	join(slots);
	conf = (struct node_conf){ .endpoints = w.first.address };
	node_place(&w.node, &conf);
	node_file(&w.node, "password", "opensesame\n", 0600, path);
	(void)snprintf(lines, sizeof(lines),
		       "username = engine\npassword_file = %s\nwrite = off\ntls = yes\n"
		       "tls_ca_file = %s\ntls_cert_file = %s\ntls_key_file = %s\n",
		       path, tls_group.ca, tls_group.client, tls_group.client_key);
	conf.lines = lines;
	node_configure(&w.node, &conf);
	node_live(&w.node);
	node_join(&w.node, &tiny_raw);
	chain_keys(&w.node.e, 1, KEYS, w.keys);
}

static void end(void)
{
	node_end(&w.node);
	redis_stop(&w.first);
	redis_stop(&w.second);
}

FIXTURE_DO(clean, end());

TEST_EACH(NULL, clean);

/* After loads: what `endpoints` says of the second server. */
static bool is_said(const char *word)
{
	const char *at;

	assert_int_equal(node_load_each(&w.node, w.keys, 0, KEYS), 0);
	at = strstr(daemon_told(&w.node.d, "endpoints"), w.second.address);
	return at && strstr(at, word);
}

static void is_refused(void)
{
	AWAIT(is_said("its certificate is not one for 127.0.0.1"));
	assert_int_equal(node_load_each(&w.node, w.keys, 0, KEYS), 0);
	if (second_heard_auth())
		fail_msg("a server of another name heard AUTH");
	daemon_stat_reaches(&w.node.d, "tiers.redis.refused_hosts_total", 1);
	assert_true(daemon_log_lines(&w.node.d, "its certificate is not one for 127.0.0.1") > 0);
}

static void is_followed(void)
{
	uint32_t hits = 0;

	AWAIT(is_said("TLSv1.3"));
	AWAIT(second_heard_auth() || (hits += node_load_each(&w.node, w.keys, 0, KEYS)) > 0);
	assert_int_equal(hits, 0);
}

/* --- tests --- */

TEST_DO(a_map_names_a_server_of_another_name, begin(false, 8192); is_refused());

TEST(a_map_names_a_server_of_this_name)
{
	begin(true, 8192);
	is_followed();
	/* so, in the test before, only the certificate was counted */
	assert_int_equal(daemon_stat(&w.node.d, "tiers.redis.refused_hosts_total"), 0);
}

/* All slots are the first one's, when the daemon asks for the map. */
static void moved_to(bool right_name)
{
	begin(right_name, 16384);
	assert_int_equal(node_load_each(&w.node, w.keys, 0, KEYS), 0);
	take_half();
	if (right_name)
		is_followed();
	else
		is_refused();
	daemon_stat_reaches(&w.node.d, "tiers.redis.redirects_total", 1);
}

TEST_DO(moved_to_a_server_of_another_name, moved_to(false));
TEST_DO(moved_to_a_server_of_this_name, moved_to(true));

TEST_GROUP(tls_group_make, tls_group_remove);
TEST_FIRST(redis_needed());
