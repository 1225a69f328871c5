/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_hostile_hints.c - goal: a client that floods the daemon with hints, on its own blocks and on
 * those of others, harms no other client: an honest engine goes on, the daemon takes no more memory
 * than it reserved, and the client's kept blocks are within its share. Method: clients with as many
 * hints under way as there can be, of random kinds, that leave in the middle; a small table of
 * notes.
 */
/* make: lane=wait seconds=10 */
#include "tests/lib/lib_raw.h"

enum { NOTES = 128, LIVES = 6, ROUNDS = 150, KEYS = 512 };

static const char config[] = SMALL_HOST "[hints]\nshare_percent = 10\n"
					"[index]\nmax_blocks = 512\n"; /* four for each of NOTES */

static struct attacked a;
static struct kvtier_key keys[KEYS];

static struct kvtier_op any_hint(struct random *r)
{
	struct kvtier_op h = { .size = sizeof(h),
			       .action = 1 + random_below(r, 7),
			       .scope = 1 + random_below(r, 2),
			       .session = random_below(r, 40),
			       .turn_number = random_below(r, 4),
			       .ttl_s = random_below(r, 3),
			       .priority = (int32_t)random_below(r, 201) - 100 };

	if (h.scope == KVTIER_HINT_SESSION && h.session == 0)
		h.scope = KVTIER_HINT_REVISION;
	if (h.scope == KVTIER_HINT_KEYS) {
		h.keys = keys;
		h.n = 1 + random_below(r, KEYS);
	}
	return h;
}

static void take_all(struct engine *e)
{
	struct kvtier_result results[32] = { { .size = sizeof(results[0]) } };

	for (uint32_t i = 1; i < 32; i++)
		results[i] = results[0];
	while (kvtier_poll(e->client, results, 32) > 0)
		;
}

static void flood(struct random *r)
{
	const struct kvtier_geometry g = a.witness.engine.geometry;
	struct engine e;
	uint64_t op;
	int rc = 0;

	engine_open(&e, a.d.socket, "flood", &g, 64);
	memcpy(keys, a.witness.keys, sizeof(a.witness.keys));
	for (uint32_t i = 64; i < KEYS; i++)
		random_key(i, keys[i].bytes);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		do {
			const struct kvtier_op h = any_hint(r);

			rc = kvtier_hint(e.space, h.keys, h.n, &h, &op);
		} while (rc == 0);
		assert_int_equal(rc, -EAGAIN);
		take_all(&e);
		nap_ms(1);
	}
	engine_close(&e); /* with hints under way */
}

TEST(a_flood_of_hints_harms_nobody)
{
	struct random r = random_seeded("a_flood_of_hints_harms_nobody");

	for (uint32_t life = 0; life < LIVES; life++) {
		flood(&r);
		witness_check(&a.witness);
		assert_true(daemon_stat(&a.d, "hints.kept_bytes") <= (4u << 20) / 10);
		assert_true(daemon_stat(&a.d, "hints.noted_blocks") <= NOTES);
		assert_true(daemon_stat(&a.d, "hints.sessions") <= NOTES / 16);
	}
	daemon_stat_becomes(&a.d, "clients", 1, PATIENT_MS);
	daemon_stat_becomes(&a.d, "ops.outstanding", 0, PATIENT_MS);
	assert_true(daemon_stat(&a.d, "hints.clipped_blocks_total") > 0);
	assert_true(daemon_stat(&a.d, "hints.accepted_blocks_total") > 0);
	assert_int_equal(daemon_stat(&a.d, "protocol_errors_total"), a.errors);
}

FIXTURE_DO(begin, attacked_begin(&a, config, true); *state = &a);

TEST_GROUP(begin, attacked_end);
