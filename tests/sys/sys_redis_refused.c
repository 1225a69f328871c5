/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=6 lane=wait no=thread (the daemon's threads run in others) */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_redis_refused.c - goal: a Redis that evicts, is full, takes no writes, or does not let us in
 * costs the refused requests and nothing else. The daemon says why, without the password, and does
 * not try again in a storm. Method: two real kvtierd, an engine each, a real redis-server with
 * limits, users and replicas, and a scripted one whose connections are counted.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_shared.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = SHARED_BLOCKS, CHAINS = 24, HANDFUL = 12 };
/* A storm lasts so long; so many loads between two heartbeats. */
enum { STORM_MS = 3000, STEP_MS = 250, ASKED = 25, LONGEST_REST_MS = 40000 };

static const char password[] = "open-Sesame-4711";

static void stat_is(const struct node *n, const char *path, uint64_t value)
{
	daemon_stat_becomes(&n->d, path, value, SHARED_MS);
}

static struct shared_load stores;

/* This node again, with these lines and the world's server, and little memory. */
static void again(struct shared *w, struct node *n, const char *lines)
{
	const struct kvtier_geometry g = n->e.geometry;

	node_again(n,
		   &(struct node_conf){
			   .endpoints = w->redis.address, .lines = lines, .host = SHARED_TIGHT },
		   &g);
}

/* [redis] lines for a password that is in a file. */
static const char *with_password(const struct node *n, const char *user, const char *text)
{
	static char lines[512];
	char path[200];

	node_file(n, "password", text, 0600, path);
	(void)snprintf(lines, sizeof(lines), "%s%s\npassword_file = %s\n",
		       user ? "username = " : "", user ? user : "", path);
	return lines;
}

/* --- it evicts --- */

static uint64_t info(const struct redis_server *s, const char *name)
{
	static char text[16384];
	const char *at;

	redis_say(s, text, sizeof(text), "INFO everything");
	at = strstr(text, name);
	if (!at)
		fail_msg("INFO has no %s", name);
	return strtoull(at + strlen(name) + 1, NULL, 10);
}

static void is_a_prefix(struct node *n, const struct kvtier_key *keys)
{
	for (uint32_t i = engine_lookup(&n->e, keys, N); i < N; i++)
		assert_int_equal(engine_lookup(&n->e, &keys[i], 1), 0);
}

/* Values go between the question and the read: a hit has its bytes, and kept blocks are a prefix
 * after any loss. */
TEST(a_server_that_evicts_costs_misses_only)
{
	const char options[] =
		"--maxmemory 2mb --maxmemory-policy allkeys-lru --maxmemory-samples 3";
	struct shared *w = shared_begin(options, NULL, KVTIER_CODEC_RAW);
	uint32_t hits = 0;

	for (uint64_t round = 0; round < 2; round++)
		for (uint64_t chain = 0; chain < CHAINS; chain++) {
			chain_keys(&w->a.e, round * CHAINS + chain, N, w->keys);
			assert_int_equal(chain_store(&w->a.e, w->keys, 0, N), 0);
			chain_keys(&w->b.e, round * CHAINS + chain / 2, N, w->keys);
			(void)node_prefetch(&w->b, w->keys, N);
			is_a_prefix(&w->b, w->keys);
			hits += chain_load(&w->b.e, w->keys, 0, N);
			node_evict(&w->b);
		}
	stat_is(&w->a, "tiers.redis.queued_blocks", 0);
	printf("%u hits, %llu evicted\n", hits,
	       (unsigned long long)info(&w->redis, "evicted_keys"));
	assert_true(info(&w->redis, "evicted_keys") > 0);
	stat_is(&w->b, "tiers.redis.corrupt_blocks_total", 0);
	node_owes_nothing(&w->b);
	shared_end(w);
}

/* --- it is full --- */

/* Stores until it refuses, and goes on until told to end: the server is tried again after a second.
 * The chain in w->keys is there, of the others as much as fits. */
static struct shared *full_and_stored_to(void)
{
	struct shared *w = shared_begin("--maxmemory 3mb --maxmemory-policy noeviction", NULL,
					KVTIER_CODEC_RAW);

	again(w, &w->a, NULL);
	node_store_through(&w->a, w->keys, N);
	shared_load_begin(&stores, &w->a, true);
	node_stat_reaches(&w->a, "tiers.redis.refused_stores_total", 1);
	return w;
}

TEST(a_full_server_is_read_on)
{
	struct shared *w = full_and_stored_to();

	node_becomes(&w->a, "readonly", SHARED_MS);
	shared_load_end(&stores);
	node_evict(&w->a);
	assert_int_equal(chain_load(&w->a.e, w->keys, 0, N), N);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	shared_end(w);
}

TEST(a_full_server_is_said_to_be)
{
	struct shared *w = full_and_stored_to();

	node_text_has(&w->a, "OOM");
	shared_load_end(&stores);
	shared_end(w);
}

/* Stores go on, are not even tried there for a while, and are when there is room again. */
TEST(a_full_server_takes_stores_later)
{
	struct shared *w = full_and_stored_to();
	char text[64];

	node_stat_reaches(&w->a, "tiers.redis.skipped_blocks_total", 1);
	shared_load_end(&stores);
	redis_say(&w->redis, text, sizeof(text), "CONFIG SET maxmemory 100mb");
	stat_is(&w->a, "tiers.redis.queued_blocks", 0);
	clock_pass_ms(LONGEST_REST_MS);
	/* from here on only the chain is written */
	chain_keys(&w->a.e, 200, N, w->keys);
	node_store_through(&w->a, w->keys, N);
	node_becomes(&w->a, "up", SHARED_MS);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	shared_end(w);
}

/* Minutes pass, reads are answered, and a store is refused again: none of that is a store. */
TEST(a_full_server_is_said_to_be_full_until_it_takes_a_store)
{
	struct shared *w = full_and_stored_to();
	uint64_t refused;
	uint32_t begun, ended;
	char text[64];

	shared_load_end(&stores);
	stat_is(&w->a, "tiers.redis.queued_blocks", 0);
	/* a store that found a little room may have been the last: there is none from here on */
	redis_say(&w->redis, text, sizeof(text), "CONFIG SET maxmemory 1mb");
	refused = daemon_stat(&w->a.d, "tiers.redis.refused_stores_total");
	for (int i = 0; i < 2; i++) /* a line a minute */
		clock_pass_ms(LONGEST_REST_MS);
	chain_keys(&w->a.e, 100, N, stores.chains[0]);
	assert_int_equal(chain_store(&w->a.e, stores.chains[0], 0, N), 0);
	node_stat_reaches(&w->a, "tiers.redis.refused_stores_total", refused + 1);
	stat_is(&w->a, "tiers.redis.queued_blocks", 0);
	begun = node_log_lines(&w->a, "takes no stores: OOM");
	ended = node_log_lines(&w->a, "takes stores again");
	assert_true(begun > 0);
	for (int i = 0; i < 4; i++) {
		clock_pass_ms(LONGEST_REST_MS);
		node_evict(&w->a);
		assert_int_equal(chain_load(&w->a.e, w->keys, 0, N), N);
		node_becomes(&w->a, "readonly", 1); /* at the first look */
		node_text_has(&w->a, "OOM");
		assert_int_equal(daemon_ctl(&w->a.d, "status", w->a.text, sizeof(w->a.text)), 1);
		assert_non_null(strstr(w->a.text, "WARN redis_readonly"));
	}
	assert_int_equal(node_log_lines(&w->a, "takes no stores: OOM"), begun);
	assert_int_equal(node_log_lines(&w->a, "takes stores again"), ended);
	redis_say(&w->redis, text, sizeof(text), "CONFIG SET maxmemory 100mb");
	chain_keys(&w->a.e, 200, N, w->keys);
	node_store_through(&w->a, w->keys, N);
	node_becomes(&w->a, "up", SHARED_MS);
	assert_int_equal(node_log_lines(&w->a, "takes stores again"), ended + 1);
	shared_end(w);
}

/* --- the log --- */

TEST(an_outage_is_two_lines_of_the_log)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);

	node_becomes(&w->a, "up", SHARED_MS);
	redis_kill(&w->redis);
	node_becomes(&w->a, "offline", SHARED_MS);
	for (int i = 0; i < 4; i++) /* tries that fail */
		clock_pass_ms(LONGEST_REST_MS);
	assert_int_equal(node_log_lines(&w->a, "is offline: "), 1);
	redis_restart(&w->redis);
	node_becomes(&w->a, "up", 2 * SHARED_MS);
	assert_int_equal(node_log_lines(&w->a, "is back"), 1);
	shared_end(w);
}

TEST(a_server_that_breaks_the_protocol_is_in_the_log)
{
	const struct fake_step steps[] = { { .reply = "$-1\r\n" },
					   { .reply = "HTTP/1.1 400 \033[2J\r\n" },
					   { .reply = "$-1\r\n" } };
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct shared *w = shared_world();
	struct fake_server fake;

	fake_start(&fake, steps, 3, false);
	node_place(&w->a, &(struct node_conf){ .endpoints = fake.address });
	node_live(&w->a);
	node_join(&w->a, &g);
	chain_keys(&w->a.e, 1, N, w->keys);
	assert_int_equal(node_load_each(&w->a, w->keys, 0, 1), 0);
	node_stat_reaches(&w->a, "tiers.redis.protocol_errors_total", 1);
	assert_int_equal(node_log_lines(&w->a, "breaks the protocol"), 1);
	fake_stop(&fake);
	shared_end(w);
}

/* --- it does not let us in --- */

/* All texts that a user of this machine, or a reader of logs, gets to see. */
static void password_is_nowhere(struct node *n)
{
	static const char *const commands[] = { "status", "status --json", "stats", "stats --json",
						"endpoints --json" };
	char command[400];

	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		(void)daemon_ctl(&n->d, commands[i], n->text, sizeof(n->text));
		assert_null(strstr(n->text, password));
	}
	assert_false(node_log_has(n, password));
	(void)snprintf(command, sizeof(command), "grep -qa %s /proc/%d/cmdline /proc/%d/environ",
		       password, n->d.pid, n->d.pid);
	assert_int_equal(shell(command, n->text, sizeof(n->text)), 1);
}

TEST(the_right_password_opens)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);
	char text[64];

	redis_say(&w->redis, text, sizeof(text), "ACL SETUSER kvtier on >%s ~kvtier:* +@all",
		  password);
	again(w, &w->a, with_password(&w->a, "kvtier", password));
	again(w, &w->b, with_password(&w->b, "kvtier", "open-Sesame-4711\n"));
	node_becomes(&w->a, "up", SHARED_MS);
	node_store_through(&w->a, w->keys, N);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	password_is_nowhere(&w->a);
	shared_end(w);
}

TEST(the_default_users_password_opens)
{
	struct shared *w = shared_world();
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);

	redis_start(&w->redis, "--requirepass open-Sesame-4711");
	node_place(&w->a, &(struct node_conf){ .endpoints = w->redis.address });
	node_configure(&w->a, &(struct node_conf){ .endpoints = w->redis.address,
						   .lines = with_password(&w->a, NULL, password) });
	node_live(&w->a);
	node_join(&w->a, &g);
	chain_keys(&w->a.e, 1, N, w->keys);
	node_becomes(&w->a, "up", SHARED_MS);
	node_store_through(&w->a, w->keys, N);
	node_evict(&w->a);
	assert_int_equal(chain_load(&w->a.e, w->keys, 0, N), N);
	shared_end(w);
}

/* A's engine has its memory, and misses. */
static void shut_out(struct shared *w, const char *word)
{
	node_becomes(&w->a, "misconfigured", SHARED_MS);
	node_text_has(&w->a, word);
	assert_int_equal(chain_store(&w->a.e, w->keys, 0, N), 0);
	assert_int_equal(chain_load(&w->a.e, w->keys, 0, N), N);
	node_evict(&w->a);
	assert_int_equal(chain_load(&w->a.e, w->keys, 0, N), 0);
	password_is_nowhere(&w->a);
	node_owes_nothing(&w->a);
}

TEST(a_wrong_password_is_said)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);
	char text[64];

	redis_say(&w->redis, text, sizeof(text), "ACL SETUSER kvtier on >another ~kvtier:* +@all");
	again(w, &w->a, with_password(&w->a, "kvtier", password));
	shut_out(w, "WRONGPASS");
	assert_true(node_log_has(&w->a, "WRONGPASS"));
	shared_end(w);
}

TEST(a_missing_password_is_said)
{
	struct shared *w = shared_world();
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);

	redis_start(&w->redis, "--requirepass open-Sesame-4711");
	node_place(&w->a, &(struct node_conf){ .endpoints = w->redis.address });
	node_live(&w->a);
	node_join(&w->a, &g);
	chain_keys(&w->a.e, 1, N, w->keys);
	shut_out(w, "NOAUTH");
	shared_end(w);
}

/* A password where none is wanted: older servers refuse it, newer take any. Either way it is told
 * as it is. */
TEST(a_user_that_does_not_exist_is_said)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);

	again(w, &w->a, with_password(&w->a, "nobody", password));
	shut_out(w, "WRONGPASS");
	shared_end(w);
}

/* Its ACL has another key pattern than our key_prefix. */
TEST(a_user_for_other_keys_is_said)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);
	char text[64];

	redis_say(&w->redis, text, sizeof(text), "ACL SETUSER kvtier on >%s ~other:* +@all",
		  password);
	again(w, &w->a, with_password(&w->a, "kvtier", password));
	assert_int_equal(chain_load(&w->a.e, w->keys, 0, N), 0);
	shut_out(w, "NOPERM");
	shared_end(w);
}

/* However much is asked of it meanwhile. */
static void no_storm_of_tries(const char *reply)
{
	const struct fake_step step = { .reply = reply };
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct shared *w = shared_world();
	struct fake_server fake;
	uint32_t connections, commands;

	fake_start(&fake, &step, 1, true);
	node_place(&w->a, &(struct node_conf){ .endpoints = fake.address });
	node_configure(&w->a, &(struct node_conf){ .endpoints = fake.address,
						   .lines = with_password(&w->a, NULL, password) });
	node_live(&w->a);
	node_join(&w->a, &g);
	chain_keys(&w->a.e, 1, N, w->keys);
	for (uint32_t ms = 0; ms < STORM_MS; ms += STEP_MS) {
		for (uint32_t i = 0; i < ASKED; i++)
			assert_int_equal(chain_load(&w->a.e, w->keys, 0, N), 0);
		clock_pass_ms(STEP_MS);
	}
	connections = __atomic_load_n(fake.connections, __ATOMIC_ACQUIRE);
	commands = __atomic_load_n(fake.commands, __ATOMIC_ACQUIRE);
	printf("%u connections, %u commands\n", connections, commands);
	assert_in_range(connections, 1, HANDFUL);
	assert_in_range(commands, 1, 2 * HANDFUL);
	node_becomes(&w->a, "misconfigured", SHARED_MS);
	fake_stop(&fake);
	shared_end(w);
}

TEST(a_wrong_password_is_not_tried_again_and_again)
{
	no_storm_of_tries("-WRONGPASS invalid username-password pair or user is disabled.\r\n");
}

TEST(a_missing_password_is_not_tried_again_and_again)
{
	no_storm_of_tries("-NOAUTH Authentication required.\r\n");
}

/* To AUTH, if raw; else to everything else. */
static void words_are_not_quoted(const char *reply, bool raw)
{
	const struct fake_step step = { .reply = reply };
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct shared *w = shared_world();
	struct fake_server fake;

	fake_start(&fake, &step, 1, raw);
	node_place(&w->a, &(struct node_conf){ .endpoints = fake.address });
	node_configure(&w->a, &(struct node_conf){ .endpoints = fake.address,
						   .lines = with_password(&w->a, NULL, password) });
	node_live(&w->a);
	node_join(&w->a, &g);
	chain_keys(&w->a.e, 1, N, w->keys);
	assert_int_equal(chain_load(&w->a.e, w->keys, 0, N), 0);
	shut_out(w, fake.address);
	fake_stop(&fake);
	shared_end(w);
}

/* As one does that has AUTH renamed. */
TEST(a_refusal_that_repeats_the_password_is_not_quoted)
{
	words_are_not_quoted("-WRONGPASS unknown command 'AUTH', with args beginning with: "
			     "'open-Sesame-4711'\r\n",
			     true);
}

TEST(an_error_that_repeats_the_password_is_not_quoted)
{
	words_are_not_quoted("-NOPERM whoever says open-Sesame-4711 may not read\r\n", false);
}

/* --- it lets us read --- */

static void has_the_chain(const struct redis_server *s)
{
	const uint64_t until = now_ns() + SHARED_MS * 1000000ull;

	while (redis_ask(s, "DBSIZE") < N) {
		assert_true(now_ns() < until);
		nap_ms(20);
	}
}

/* B reads of this server. */
static void reads_work_and_writes_do_not(struct shared *w, const struct redis_server *of_b,
					 const char *word)
{
	node_store_through(&w->a, w->keys, N);
	has_the_chain(of_b);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	shared_load_begin(&stores, &w->b, true);
	node_text_has(&w->b, word);
	node_becomes(&w->b, "readonly", SHARED_MS);
	shared_load_end(&stores);
	assert_int_equal(redis_ask(&w->redis, "DBSIZE"), N);
	node_evict(&w->b);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	assert_int_equal(chain_load(&w->b.e, stores.chains[0], 0, N), 0);
	password_is_nowhere(&w->b);
	node_owes_nothing(&w->b);
}

TEST(a_user_who_may_not_set)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);
	char text[64];

	redis_say(&w->redis, text, sizeof(text),
		  "ACL SETUSER reader on >%s ~kvtier:* -@all +get +exists +ping", password);
	again(w, &w->b, with_password(&w->b, "reader", password));
	node_becomes(&w->b, "up", SHARED_MS);
	reads_work_and_writes_do_not(w, &w->redis, "NOPERM");
	shared_end(w);
}

/* The copy goes from memory to memory, at once: a replica that syncs a file to a busy disk answers
 * nobody meanwhile. */
TEST(a_replica)
{
	struct shared *w = shared_begin("--repl-diskless-sync yes --repl-diskless-sync-delay 0",
					NULL, KVTIER_CODEC_FP8);
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	const uint64_t until = now_ns() + SHARED_MS * 1000000ull;
	struct redis_server replica;
	char text[4096];

	redis_start(&replica, "--repl-diskless-load on-empty-db");
	redis_say(&replica, text, sizeof(text), "REPLICAOF 127.0.0.1 %u", w->redis.port);
	do {
		assert_true(now_ns() < until);
		nap_ms(20);
		redis_say(&replica, text, sizeof(text), "INFO replication");
	} while (!strstr(text, "master_link_status:up"));
	node_again(&w->b, &(struct node_conf){ .endpoints = replica.address, .host = SHARED_TIGHT },
		   &g);
	reads_work_and_writes_do_not(w, &replica, "READONLY");
	redis_stop(&replica);
	shared_end(w);
}

TEST_BEGIN
{
	redis_needed();
}
