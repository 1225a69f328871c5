/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_redis_tls.c - goal: over TLS a Redis is the same cache, and an operator sees that it is TLS,
 * or why it is not; files of its that cannot be used are named at start. Method: two real kvtierd
 * and a real Redis with certificates of this test's own; under load the server is stopped, killed
 * and started again.
 */
#include "tests/lib/lib_shared.h"
#include "tests/lib/lib_tls.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { N = SHARED_BLOCKS, AROUND_MS = 500 };

static char lines[4 * TLS_PATH], impatient[5 * TLS_PATH];

FIXTURE(make)
{
	(void)tls_group_make(state);
	(void)snprintf(lines, sizeof(lines),
		       "tls = yes\ntls_ca_file = %s\ntls_cert_file = %s\ntls_key_file = %s\n",
		       tls_group.ca, tls_group.client, tls_group.client_key);
	(void)snprintf(impatient, sizeof(impatient), "%stimeout_ms = 500", lines);
	return 0;
}

TEST(b_finds_what_a_stored)
{
	struct shared *w = shared_begin(tls_options(&tls_group), lines, KVTIER_CODEC_FP8);

	node_store_through(&w->a, w->keys, N);
	assert_int_equal(node_prefetch(&w->b, w->keys, N), N);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	assert_int_equal(daemon_ctl(&w->b.d, "endpoints", w->b.text, sizeof(w->b.text)), 0);
	assert_non_null(strstr(w->b.text, "TLSv1.3"));
	node_owes_nothing(&w->a);
	node_owes_nothing(&w->b);
	shared_end(w);
}

TEST(an_authority_that_is_not_known)
{
	struct shared *w;
	char other[TLS_PATH + 40];

	(void)snprintf(other, sizeof(other), "tls = yes\ntls_ca_file = %s", tls_group.other_ca);
	w = shared_begin(tls_options(&tls_group), other, KVTIER_CODEC_FP8);
	node_becomes(&w->a, "misconfigured", SHARED_MS);
	node_text_has(&w->a, "see [redis] tls_ca_file");
	assert_true(node_log_has(&w->a, "see [redis] tls_ca_file"));
	assert_int_equal(chain_load(&w->a.e, w->keys, 0, N), 0);
	assert_int_equal(redis_ask(&w->redis, "DBSIZE"), 0);
	shared_end(w);
}

/* Stopped: handshakes hang. Killed: they are cut. */
TEST(trouble_under_load)
{
	struct shared *w =
		shared_begin_in(tls_options(&tls_group), impatient, SHARED_TIGHT, KVTIER_CODEC_RAW);
	static struct shared_load stores, loads;

	shared_load_begin(&stores, &w->a, true);
	shared_load_begin(&loads, &w->b, false);
	nap_ms(2 * AROUND_MS);
	redis_signal(&w->redis, SIGSTOP);
	nap_ms(4 * AROUND_MS);
	redis_signal(&w->redis, SIGCONT);
	nap_ms(2 * AROUND_MS);
	redis_kill(&w->redis);
	nap_ms(AROUND_MS);
	redis_restart(&w->redis);
	nap_ms(4 * AROUND_MS);
	shared_load_end(&stores);
	shared_load_end(&loads);
	assert_true(loads.hits > 0);
	shared_works_again(&w->a, &w->b);
	daemon_stat_becomes(&w->b.d, "tiers.redis.corrupt_blocks_total", 0, SHARED_MS);
	node_owes_nothing(&w->a);
	node_owes_nothing(&w->b);
	shared_end(w);
}

TEST(a_daemon_does_not_start_without_its_files)
{
	static struct node n;
	char command[600];

	memset(&n, 0, sizeof(n));
	node_place(&n, &(struct node_conf){ .endpoints = "127.0.0.1:1",
					    .lines = "tls = yes\ntls_ca_file = /nowhere/ca.pem" });
	(void)snprintf(command, sizeof(command), "timeout 20 %s/kvtierd --config %s 2>&1",
		       build_dir(), n.d.config);
	assert_int_not_equal(shell(command, n.text, sizeof(n.text)), 0);
	if (!strstr(n.text, "[redis] tls_ca_file: /nowhere/ca.pem: No such file"))
		fail_msg("%s", n.text);
	node_end(&n);
}

TEST_GROUP(make, tls_group_remove);

TEST_BEGIN
{
	redis_needed();
}
