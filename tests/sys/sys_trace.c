/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock,kvtierd_faulty (it holds the clock) */
/*
 * sys_trace.c - goal: `kvtierctl trace` shows the steps of a store, and of a load from host memory,
 * from NVMe and from Redis, of ops that ended and of ops under way; a read that the tier refuses
 * has its own step, too; with log_level = debug the log has them, else it has none of them. Method:
 * real kvtierd, engine, NVMe store and Redis; the steps of an op with one block, in order.
 */
#include "tests/lib/lib_shared.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <json-c/json.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/lib_disk.h"
#include "tests/lib/lib_faulty.h"

static char text[1 << 20];

static const char *word_of(struct json_object *row, const char *name)
{
	struct json_object *value = NULL;

	assert_true(json_object_object_get_ex(row, name, &value));
	return json_object_get_string(value);
}

/* The rows of the last op of this kind: its steps, with a space behind each; the wait of the last
 * one. */
static void steps_of(const struct daemon *d, const char *kind, char ret[1024], char wait[32])
{
	struct json_object *root, *rows = NULL;
	char op[32] = "";

	assert_int_equal(daemon_ctl(d, "trace --json", text, sizeof(text)), 0);
	root = json_tokener_parse(text);
	assert_true(json_object_object_get_ex(root, "trace", &rows));
	for (size_t i = 0; i < json_object_array_length(rows); i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);
		size_t used;

		if (strcmp(word_of(row, "kind"), kind) != 0)
			continue;
		if (strcmp(word_of(row, "op"), op) != 0) {
			(void)snprintf(op, sizeof(op), "%s", word_of(row, "op"));
			ret[0] = '\0';
		}
		used = strlen(ret);
		(void)snprintf(ret + used, 1024 - used, "%s ", word_of(row, "step"));
		(void)snprintf(wait, 32, "%s", word_of(row, "wait"));
	}
	json_object_put(root);
}

static void steps_are(const struct daemon *d, const char *kind, const char *steps)
{
	char found[1024] = "", wait[32];

	steps_of(d, kind, found, wait);
	assert_string_equal(found, steps);
}

TEST(a_store_and_a_host_hit)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	static struct daemon d;
	struct kvtier_key key;
	struct engine e;

	daemon_start(&d, "[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n");
	engine_open(&e, d.socket, "engine", &g, 2);
	chain_keys(&e, 1, 1, &key);
	assert_int_equal(daemon_ctl(&d, "trace", text, sizeof(text)), 0);
	assert_string_equal(text, "no trace\n");
	assert_int_equal(chain_store(&e, &key, 0, 1), 0);
	steps_are(&d, "store", "admit place encode commit done ");
	assert_int_equal(chain_load(&e, &key, 0, 1), 1);
	steps_are(&d, "load", "lookup serve check end done ");
	assert_int_equal(daemon_ctl(&d, "trace", text, sizeof(text)), 0);
	assert_non_null(strstr(text, "STEP"));
	assert_non_null(strstr(text, "commit"));
	engine_close(&e);
	daemon_remove(&d);
}

ON_BOTH_ENGINES(a_load_from_nvme)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	static struct daemon d;
	struct kvtier_key key;
	struct engine e;

	disk_need(*state);
	disk_start(&d, *state, "[nvme]\nbytes = 16M\nsegment_bytes = 1M\n");
	engine_open(&e, d.socket, "engine", &g, 2);
	chain_keys(&e, 1, 1, &key);
	assert_int_equal(chain_store(&e, &key, 0, 1), 0);
	disk_flush(&d);
	assert_int_equal(daemon_ctl(&d, "evict --all", text, sizeof(text)), 0);
	assert_int_equal(chain_load(&e, &key, 0, 1), 1);
	steps_are(
		&d, "load",
		"lookup bring flight.room flight.read flight.verify flight.land bring serve check "
		"end done ");
	engine_close(&e);
	daemon_remove(&d);
}

ON_BOTH_ENGINES(a_load_from_a_disk_that_is_out)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);

	faulty_plan(READS, 0, ALWAYS, -EIO);
	for (uint32_t i = 0; i < 3; i++)
		(void)chain_load(&w->e, &w->keys[i], 0, 1);
	faulty_becomes(w, "offline");
	assert_int_equal(chain_load(&w->e, &w->keys[3], 0, 1), 0);
	steps_are(&w->d, "load",
		  "lookup bring flight.room flight.read flight.fail flight.miss bring end done ");
	faulty_heal(w);
	faulty_end(w);
}

TEST(a_load_from_redis)
{
	struct shared *w = shared_begin(NULL, "timeout_ms = 20000", KVTIER_CODEC_RAW);
	char found[1024] = "", wait[32] = "";
	uint64_t op;

	node_store_through(&w->a, w->keys, 1);
	redis_signal(&w->redis, SIGSTOP);
	op = node_load_begin(&w->b, w->keys, 0, 1, 0);
	for (int i = 0; i < 2000 && strcmp(wait, "read") != 0; i++) {
		nap_ms(5);
		steps_of(&w->b.d, "load", found, wait);
	}
	assert_string_equal(found, "lookup bring flight.room flight.read ");
	redis_signal(&w->redis, SIGCONT);
	assert_int_equal(node_load_end(&w->b, op, w->keys, 0, 1, -2), 1);
	steps_are(
		&w->b.d, "load",
		"lookup bring flight.room flight.read flight.verify flight.land bring serve check "
		"keep end done ");
	assert_false(node_log_has(&w->b, "block 0: "));
	shared_end(w);
}

TEST(the_debug_log_has_them)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	static struct node n;
	struct kvtier_key key;

	daemon_start(&n.d, "[daemon]\nlog_level = debug\n");
	engine_open(&n.e, n.d.socket, "engine", &g, 2);
	chain_keys(&n.e, 1, 1, &key);
	assert_int_equal(chain_store(&n.e, &key, 0, 1), 0);
	assert_int_equal(chain_load(&n.e, &key, 0, 1), 1);
	assert_true(node_log_has(&n, "block 0: encode"));
	assert_true(node_log_has(&n, "block 0: serve"));
	assert_true(node_log_has(&n, "block 0: done, 0"));
	engine_close(&n.e);
	daemon_remove(&n.d);
}

TEST_BEGIN
{
	redis_needed();
}
