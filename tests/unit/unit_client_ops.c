/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: ops do what kvtier.h promises: results once, pages right, deadlines kept, lost daemons
 * survived, for shared and for private (staged) memory. Method: a fake daemon (fake_engine.h) that
 * is honest, or stands still, or goes away.
 */

#include "tests/lib/fake_engine.h"
#include "tests/lib/test.h"

static uint64_t op; /* the last */

/* Stores 20 pages, loads 21 keys to other pages: 20 come back, the last page is left alone. */
TEST_FAKES(round_trip, shared_pages_come_back, private_pages_come_back_in_chunks)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_key keys[21];
	uint32_t pages[21];
	int32_t blocks[21];

	fake_keys(&sole, 1, 21, keys);
	for (uint32_t i = 0; i < 21; i++) {
		fake_fill(&sole, i, (uint8_t)(i + 1));
		pages[i] = i;
	}
	assert_int_equal(kvtier_store(sole.space, keys, pages, 20, NULL, &op), 0);
	assert_int_equal(kvtier_wait(sole.client, op, -1, &result), 0);
	assert_int_equal(result.status, 0);
	assert_int_equal(result.ok, 20);
	for (uint32_t i = 0; i < 21; i++) {
		pages[i] = 60 - i;
		fake_fill(&sole, 60 - i, 0x99);
	}
	result.blocks = blocks;
	result.blocks_max = 21;
	assert_int_equal(kvtier_load(sole.space, keys, pages, 21, NULL, &op), 0);
	assert_int_equal(kvtier_wait(sole.client, op, -1, &result), 0);
	assert_int_equal(result.status, -ENOENT);
	assert_int_equal(result.prefix, 20);
	assert_int_equal(result.op, op);
	for (uint32_t i = 0; i < 20; i++) {
		fake_page_is(&sole, 60 - i, (uint8_t)(i + 1));
		assert_int_equal(blocks[i], 0);
	}
	assert_int_equal(blocks[20], -ENOENT);
	if (*state) /* private */
		fake_page_is(&sole, 40, 0x99);
	assert_int_equal(kvtier_wait(sole.client, op, 0, &result), -ENOENT); /* taken */
}

TEST_FAKE(second_store_says_present, false)
{
	struct kvtier_result result = { .size = sizeof(result) };
	const uint32_t page = 0;
	int32_t status;

	result.blocks = &status;
	result.blocks_max = 1;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(kvtier_store(sole.space, &sole.key, &page, 1, NULL, &op), 0);
		assert_int_equal(kvtier_wait(sole.client, op, -1, &result), 0);
		assert_int_equal(status, i ? KVTIER_BLOCK_PRESENT : KVTIER_BLOCK_OK);
	}
}

TEST_FAKE(bad_pages_fail_alone_when_staged, true)
{
	struct kvtier_result result = { .size = sizeof(result) };
	const uint32_t pages[4] = { 0, 1, PAGES, 2 };
	struct kvtier_key keys[4];
	int32_t blocks[4];

	fake_keys(&sole, 1, 4, keys);
	result.blocks = blocks;
	result.blocks_max = 4;
	assert_int_equal(kvtier_store(sole.space, keys, pages, 4, NULL, &op), 0);
	assert_int_equal(kvtier_wait(sole.client, op, -1, &result), 0);
	assert_int_equal(result.prefix, 2);
	assert_int_equal(blocks[2], -EFAULT);
	assert_int_equal(blocks[3], 0);
}

/* More than the arena and the ring hold at once: -EAGAIN, and each op completes exactly once. */
TEST(ops_beyond_the_rings_wait)
{
	struct kvtier_result results[KVTIER_MAX_OPS];
	const uint32_t page = 0;
	struct kvtier_key key;
	struct engine e;
	int submitted = 0, taken = 0, n;

	fake_open_with(&e, false, 8, 64);
	fake_keys(&e, 1, 1, &key);
	for (int i = 0; i < KVTIER_MAX_OPS; i++)
		results[i].size = sizeof(results[i]), results[i].blocks = NULL;
	e.peer.hold = true;
	while (!kvtier_store(e.space, &key, &page, 1, NULL, &op))
		submitted++;
	assert_int_equal(submitted, 8);
	e.peer.hold = false;
	while (taken < 1000) {
		const int rc = kvtier_store(e.space, &key, &page, 1, NULL, &op);

		assert_true(rc == 0 || rc == -EAGAIN);
		submitted += rc == 0;
		n = kvtier_poll(e.client, results, KVTIER_MAX_OPS);
		assert_true(n >= 0);
		for (int i = 0; i < n; i++)
			assert_int_equal(results[i].status, 0);
		taken += n;
	}
	assert_true(taken <= submitted);
	fake_close(&e);
}

TEST(no_more_than_max_ops)
{
	struct kvtier_key key;
	struct engine e;

	fake_open_with(&e, true, 1024, 1024);
	fake_keys(&e, 1, 1, &key);
	e.peer.hold = true;
	for (int i = 0; i < KVTIER_MAX_OPS; i++)
		assert_int_equal(kvtier_store(e.space, &key, &(uint32_t){ 0 }, 1, NULL, &op), 0);
	assert_int_equal(kvtier_store(e.space, &key, &(uint32_t){ 0 }, 1, NULL, &op), -EAGAIN);
	assert_non_null(strstr(kvtier_last_error(), "256"));
	fake_close(&e);
}

TEST_FAKE(wait_ends_at_its_timeout_and_the_op_goes_on, false)
{
	const struct kvtier_op brief = { .size = sizeof(brief), .timeout_ms = 500 };
	struct kvtier_result result = { .size = sizeof(result) };
	const uint32_t page = 0;

	sole.peer.hold = true;
	assert_int_equal(kvtier_store(sole.space, &sole.key, &page, 1, &brief, &op), 0);
	assert_int_equal(kvtier_wait(sole.client, op, 0, &result), -ETIMEDOUT);
	assert_int_equal(kvtier_wait(sole.client, op, 50, &result), -ETIMEDOUT);
	assert_int_equal(kvtier_cancel(sole.client, op, 50), -ETIMEDOUT);
	/* deadline and grace */
	assert_int_equal(kvtier_wait(sole.client, op, -1, &result), -ETIMEDOUT);
	sole.peer.hold = false;
	assert_int_equal(kvtier_wait(sole.client, op, 60000, &result), 0);
}

TEST_FAKE(cancelled_staged_op_starts_no_more_chunks, true)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_key keys[20];
	uint32_t pages[20];

	fake_keys(&sole, 1, 20, keys);
	for (uint32_t i = 0; i < 20; i++)
		pages[i] = i;
	sole.peer.hold = true;
	assert_int_equal(kvtier_store(sole.space, keys, pages, 20, NULL, &op), 0);
	assert_int_equal(kvtier_cancel(sole.client, op, 0), -ETIMEDOUT);
	sole.peer.hold = false;
	assert_int_equal(kvtier_cancel(sole.client, op, 60000), 0);
	assert_int_equal(kvtier_cancel(sole.client, op, 0), 0); /* again: the result still waits */
	assert_int_equal(kvtier_wait(sole.client, op, 0, &result), 0);
	assert_int_equal(result.status, -ECANCELED);
	assert_int_equal(result.ok, 3); /* the chunk that was on its way */
	assert_int_equal(kvtier_cancel(sole.client, op, 0), -ENOENT);
}

/* The descriptor is readable while there are results, else quiet, and the same over reconnects. */
TEST_FAKE(event_fd_follows_results, false)
{
	struct kvtier_result results[2] = { { .size = sizeof(results[0]) },
					    { .size = sizeof(results[0]) } };
	struct pollfd p = { .events = POLLIN };

	p.fd = kvtier_event_fd(sole.client);
	for (int round = 0; round < 20; round++) {
		(void)kvtier_poll(sole.client, results, 1);
		assert_int_equal(poll(&p, 1, 0), 0);
		for (int i = 0; i < 3; i++)
			assert_int_equal(kvtier_store(sole.space, &sole.key, &(uint32_t){ 0 }, 1,
						      NULL, &op),
					 0);
		for (int left = 3; left > 0;) {
			assert_int_equal(poll(&p, 1, 5000), 1);
			left -= kvtier_poll(sole.client, results, 1);
		}
		(void)kvtier_poll(sole.client, results, 1);
	}
	sole.peer.hold = true;
	assert_int_equal(kvtier_store(sole.space, &sole.key, &(uint32_t){ 0 }, 1, NULL, &op), 0);
	sole.peer.hang_up = true;
	assert_int_equal(poll(&p, 1, 5000), 1);
	while (kvtier_poll(sole.client, results, 1) == 0)
		assert_int_equal(poll(&p, 1, 5000), 1);
	assert_int_equal(results[0].status, -ECONNRESET);
	sole.peer.hold = false;
	fake_store_again(&sole);
	assert_int_equal(kvtier_event_fd(sole.client), p.fd);
}

TEST_FAKE(results_taken_by_others_are_not_lost_to_event_fd, false)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct pollfd p = { .events = POLLIN };
	uint64_t ops[2];

	p.fd = kvtier_event_fd(sole.client);
	(void)kvtier_poll(sole.client, &result, 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(kvtier_store(sole.space, &sole.key, &(uint32_t){ 0 }, 1, NULL,
					      &ops[i]),
				 0);
	/* takes both completions in */
	assert_int_equal(kvtier_wait(sole.client, ops[1], 60000, &result), 0);
	assert_int_equal(poll(&p, 1, 5000), 1);
	assert_int_equal(kvtier_poll(sole.client, &result, 1), 1);
	assert_int_equal(result.op, ops[0]);
}

static void refused(struct engine *e, struct kvtier_op o, const char *field)
{
	op = 5;
	assert_int_equal(kvtier_submit(e->space, &o, &op), -EINVAL);
	if (!strstr(kvtier_last_error(), field) || op != 5)
		fail_msg("\"%s\" does not name %s", kvtier_last_error(), field);
}

TEST_FAKE(a_field_that_the_kind_of_op_does_not_have_is_refused, false)
{
	const struct kvtier_key key = { { 0 } };
	const struct kvtier_op prefetch =
		KVTIER_INIT(kvtier_op, .kind = KVTIER_PREFETCH, .keys = &key, .n = 1);
	const struct kvtier_op hint =
		KVTIER_INIT(kvtier_op, .kind = KVTIER_HINT, .keys = &key, .n = 1,
			    .action = KVTIER_HINT_PIN, .scope = KVTIER_HINT_KEYS);

#define WRONG(base, change, field)         \
	do {                               \
		struct kvtier_op o = base; \
		o.change;                  \
		refused(&sole, o, field);  \
	} while (0)
	WRONG(prefetch, kind = 0, "op.kind is 0");
	WRONG(prefetch, kind = 5, "op.kind is 5");
	WRONG(prefetch, size = 0, "op.size is 0");
	WRONG(prefetch, layer_groups = 1, "op.layer_groups");
	WRONG(prefetch, stream = &sole, "op.stream");
	WRONG(prefetch, action = 1, "op.action");
	WRONG(prefetch, scope = 1, "op.scope");
	WRONG(hint, expected_back_s = 1, "op.expected_back_s");
	WRONG(hint, layer_groups = 1, "op.layer_groups");
	WRONG(hint, stream = &sole, "op.stream");
	WRONG(hint, parent = &key, "op.parent");
	assert_int_equal(sole.peer.ops, 0);
}

TEST_FAKE(bad_arguments_submit_nothing, false)
{
	struct kvtier_op o = { .size = sizeof(o), .priority = 101 };
	struct kvtier_key key = { { 0 } };

	assert_int_equal(kvtier_store(sole.space, &key, &(uint32_t){ 0 }, 1, &o, &op), -EINVAL);
	assert_non_null(strstr(kvtier_last_error(), "op.priority is 101"));
	assert_int_equal(kvtier_load(sole.space, &key, &(uint32_t){ 0 }, 0, NULL, &op), -EINVAL);
	assert_int_equal(kvtier_load(sole.space, &key, &(uint32_t){ 0 }, KVTIER_MAX_BLOCKS + 1,
				     NULL, &op),
			 -EINVAL);
	assert_int_equal(kvtier_load(sole.space, &key, NULL, 1, NULL, &op), -EINVAL);
	assert_int_equal(kvtier_wait(sole.client, 12345, 0, NULL), -ENOENT);
	assert_int_equal(sole.peer.ops, 0);
}
