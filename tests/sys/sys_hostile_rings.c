/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_hostile_rings.c - goal: any bytes in a client's rings, also when they change while they are
 * read, end at most that client's connection. Method: entries by hand, wrong in one way each; then
 * a client that rewrites ring, arena and pages all the time; meanwhile an honest engine stores and
 * loads, and the daemon does not grow.
 */
#include "tests/lib/lib_raw.h"

static struct {
	struct attacked a;
	struct raw raw;
	uint32_t space;
} w;

FIXTURE_DO(begin, attacked_begin(&w.a, SMALL_HOST "verify = always\n", true); *state = &w.a);

FIXTURE(before_each)
{
	raw_open(&w.raw, w.a.d.socket);
	(void)close(raw_space_open(&w.raw, &w.space));
	return attacked_before_case(state);
}

FIXTURE(after_each)
{
	raw_close(&w.raw);
	(void)attacked_after_case(state);
	daemon_maps_become(&w.a.d, "memfd:engine", 1, PATIENT_MS);
	return 0;
}

TEST_EACH(before_each, after_each);
TEST_GROUP(begin, attacked_end);

/* Pushes one entry of a load, changed; expects the connection to be cut. */
#define ENTRY_CASE(name, change, text)                                               \
	TEST(name)                                                                   \
	{                                                                            \
		struct wire_sqe entry = raw_sqe(WIRE_OP_LOAD, w.space), *e = &entry; \
                                                                                     \
		change;                                                              \
		raw_push(&w.raw, 0, e);                                              \
		raw_expect_cut(&w.raw, text);                                        \
	}

ENTRY_CASE(zeroed_entry, memset(e, 0, sizeof(*e)), "sqe.op is 0; must be 1 to 7")
ENTRY_CASE(unknown_op, e->op = 8, "sqe.op is 8; must be 1 to 7")
ENTRY_CASE(unknown_flag, e->flags = 8, "sqe.flags is 0x8")
ENTRY_CASE(no_blocks, e->n = 0, "sqe.n is 0; must be 1 to 1024")
ENTRY_CASE(more_blocks_than_arena, e->n = 1025, "sqe.n is 1025; must be 1 to 1024")
ENTRY_CASE(n_that_wraps_with_a_parent, e->n = 0xffffffff; e->flags = 1, "sqe.n is 4294967295")
ENTRY_CASE(no_slot_for_the_parent, e->n = 1024; e->flags = 1, "sqe.n is 1024")
ENTRY_CASE(first_past_the_arena, e->first = 1024,
	   "sqe.first is 1024; with 1 slots it must be at most 1023")
ENTRY_CASE(first_that_wraps, e->first = 0xffffffff, "sqe.first is 4294967295")
ENTRY_CASE(no_op_id, e->op_id = 0, "sqe.op_id is 0")
ENTRY_CASE(no_deadline, e->deadline_ns = 0, "sqe.deadline_ns is 0")
ENTRY_CASE(space_out_of_range, e->space = 32, "sqe.space is 32; must be less than 32")
ENTRY_CASE(space_that_is_not_open, e->space = 31, "sqe.space 31 is not open")
ENTRY_CASE(priority_out_of_range, e->priority = 101, "sqe.priority is 101; must be -100 to 100")
ENTRY_CASE(word_of_no_device, e->word = 1, "sqe.word 1 is of no ORDER")
ENTRY_CASE(reserved_that_is_used, e->reserved = 2, "sqe.reserved is not 0")
ENTRY_CASE(word_out_of_range, e->word = 257, "sqe.word is 257; must be at most 256")
ENTRY_CASE(ready_without_a_word, e->flags = WIRE_SQE_READY, "sqe.word is 0, and sqe.flags")
ENTRY_CASE(given_without_a_word, e->op = WIRE_OP_STORE; e->groups = 1;
	   e->flags = WIRE_SQE_GIVEN, "sqe.word is 0, and sqe.flags says GIVEN")
ENTRY_CASE(given_without_groups, e->op = WIRE_OP_STORE; e->word = 1;
	   e->flags = WIRE_SQE_GIVEN, "no store with groups")
ENTRY_CASE(given_of_no_device, e->op = WIRE_OP_STORE; e->word = e->groups = 1;
	   e->flags = WIRE_SQE_GIVEN, "sqe.flags 4 says GIVEN, but the device")
ENTRY_CASE(groups_out_of_range, e->groups = 129, "sqe.groups is 129; must be at most 128")
ENTRY_CASE(groups_of_a_prefetch, e->op = WIRE_OP_PREFETCH;
	   e->groups = 1, "sqe.groups is 1 in an op")
ENTRY_CASE(more_groups_than_layers, e->groups = 3, "sqe.groups 3 is more than the layers")
ENTRY_CASE(action_of_a_load, e->action = 1, "sqe.action is 1 and sqe.scope 0 in an op")
ENTRY_CASE(scope_of_a_load, e->scope = 2, "sqe.action is 0 and sqe.scope 2 in an op")
ENTRY_CASE(hint_without_action, e->op = WIRE_OP_HINT; e->scope = 1, "sqe.action is 0; must be 1")
ENTRY_CASE(hint_of_no_action, e->op = WIRE_OP_HINT; e->scope = 1; e->action = 8, "sqe.action is 8")
ENTRY_CASE(hint_of_no_scope, e->op = WIRE_OP_HINT; e->action = 1; e->scope = 4, "sqe.scope is 4")
ENTRY_CASE(hint_with_a_parent, e->op = WIRE_OP_HINT; e->action = e->scope = 1;
	   e->flags = WIRE_SQE_HAS_PARENT, "sqe.flags or word of a hint")
ENTRY_CASE(hint_with_a_word, e->op = WIRE_OP_HINT; e->action = e->scope = 1;
	   e->word = 1, "sqe.flags or word of a hint")
ENTRY_CASE(hint_with_groups, e->op = WIRE_OP_HINT; e->action = e->scope = 1;
	   e->groups = 1, "sqe.groups is 1 in an op")
ENTRY_CASE(hint_of_no_session, e->op = WIRE_OP_HINT; e->action = 1;
	   e->scope = WIRE_HINT_SESSION, "sqe.session is 0 in a hint")
ENTRY_CASE(hint_on_a_session_with_keys, e->op = WIRE_OP_HINT; e->action = 1;
	   e->scope = WIRE_HINT_REVISION; e->n = 2, "sqe.n is 2; a hint without keys")
ENTRY_CASE(hint_out_of_range, e->op = WIRE_OP_HINT; e->action = e->scope = 1;
	   e->priority = -101, "sqe.priority is -101")
ENTRY_CASE(hint_without_a_key, e->op = WIRE_OP_HINT; e->action = e->scope = 1;
	   e->n = 0, "sqe.n is 0; must be 1")
ENTRY_CASE(layers_without_target, e->op = WIRE_OP_LAYERS;
	   e->target = 0, "sqe.target is 0 in an entry LAYERS")
ENTRY_CASE(layers_of_no_group, e->op = WIRE_OP_LAYERS; e->target = 5; e->n = 0, "sqe.n is 0 groups")
ENTRY_CASE(expected_back_in_more_than_32_bits, e->expected_back_s = 1ull << 32,
	   "sqe.expected_back_s is 4294967296")
ENTRY_CASE(cancel_without_target, e->op = WIRE_OP_CANCEL;
	   e->target = 0, "sqe.target is 0 in a cancel")
ENTRY_CASE(nop_with_blocks, e->op = WIRE_OP_NOP; e->n = 1, "sqe.n is 1; a nop has none")

TEST(tail_beyond_the_ring)
{
	raw_publish(&w.raw, w.raw.ok.sq_entries + 1);
	raw_expect_cut(&w.raw, "sq_tail or cq_head");
}

TEST(head_beyond_the_tail)
{
	const struct wire_sqe nop = raw_sqe(WIRE_OP_NOP, 0);

	raw_put(&w.raw, 0, &nop);
	raw_taken(&w.raw, 5);
	raw_publish(&w.raw, 1);
	raw_expect_cut(&w.raw, "sq_tail or cq_head");
}

/* LAYERS of another op than a store with so many groups. */
TEST(layers_that_a_store_has_not)
{
	struct wire_sqe e = raw_sqe(WIRE_OP_STORE, w.space);
	struct wire_sqe layers = { .op = WIRE_OP_LAYERS, .op_id = e.op_id + 1, .n = 2 };

	e.groups = 1;
	layers.target = e.op_id;
	raw_put(&w.raw, 0, &e);
	raw_put(&w.raw, 1, &layers);
	raw_publish(&w.raw, 2);
	raw_expect_cut(&w.raw, "sqe.n 2 is more than the groups of its target");
}

TEST(op_id_in_use)
{
	const struct wire_sqe e = raw_sqe(WIRE_OP_LOAD, w.space);

	raw_put(&w.raw, 0, &e);
	raw_put(&w.raw, 1, &e);
	raw_publish(&w.raw, 2);
	raw_expect_cut(&w.raw, "is in use by an outstanding op");
}

/* Not a violation: a page that is not there is that block's status. */
TEST(page_that_is_not_there)
{
	struct wire_sqe e = raw_sqe(WIRE_OP_STORE, w.space);

	raw_pages(&w.raw)[0] = RAW_PAGES;
	raw_run(&w.raw, 0, &e);
	assert_int_equal(raw_status(&w.raw, 0), -EFAULT);
	raw_pages(&w.raw)[0] = 0xffffffff;
	e = raw_sqe(WIRE_OP_STORE, w.space);
	raw_run(&w.raw, 1, &e);
	assert_int_equal(raw_status(&w.raw, 0), -EFAULT);
	w.a.errors--;
}

/* Completions that nobody takes: the daemon takes no more ops than it has room to answer. */
TEST(completions_that_nobody_takes)
{
	const uint32_t entries = w.raw.ok.sq_entries;

	for (uint32_t i = 0; i < 2 * entries; i++) {
		const struct wire_sqe nop = raw_sqe(WIRE_OP_NOP, 0);

		raw_put(&w.raw, i, &nop);
		if (i % entries == entries - 1) {
			raw_publish(&w.raw, i + 1);
			raw_await(&w.raw, entries);
		}
	}
	nap_ms(50);
	assert_int_equal(w.raw.complete->cq_tail, entries);
	raw_taken(&w.raw, entries);
	raw_publish(&w.raw, 2 * entries);
	raw_await(&w.raw, 2 * entries);
	w.a.errors--;
}

/* Ops over the same arena slots: their statuses mingle, nothing else does. */
static void push_sharers(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct wire_sqe e = raw_sqe(i % 2 ? WIRE_OP_LOAD : WIRE_OP_STORE, w.space);

		e.n = 64;
		raw_put(&w.raw, i, &e);
	}
	raw_publish(&w.raw, n);
}

TEST(ops_that_share_slots)
{
	push_sharers(1024 / 64);
	raw_await(&w.raw, 1024 / 64);
	w.a.errors--;
}

/* All together they may not claim more slots than there are: that would be work without limit. */
TEST(more_slots_than_the_arena_has)
{
	push_sharers(1024 / 64 + 1);
	raw_expect_cut(&w.raw, "more than the arena slots that no outstanding op uses");
}

/* Stores 1,024 fresh blocks and closes the space meanwhile; returns how many were ended early. */
static uint32_t close_once(struct raw *r, uint32_t space, uint32_t tail, struct random *random)
{
	uint32_t canceled = 0;

	for (uint32_t i = 0; i < 1024 * 32; i++)
		raw_keys(r)[i] = (uint8_t)random_next(random);
	for (uint32_t i = 0; i < 16; i++) {
		struct wire_sqe e = raw_sqe(WIRE_OP_STORE, space);

		e.n = 64;
		e.first = i * 64;
		raw_put(r, tail + i, &e);
	}
	raw_publish(r, tail + 16);
	while (__atomic_load_n(&r->complete->sq_head, __ATOMIC_ACQUIRE) != tail + 16)
		; /* taken; not slept, or they are done */
	raw_space_close(r, space);
	assert_int_equal(r->complete->cq_tail, tail + 16);
	raw_taken(r, tail + 16);
	for (uint32_t i = 0; i < 1024; i++)
		canceled += raw_status(r, i) == -ECANCELED;
	return canceled;
}

/* SPACE_CLOSE while ops run: answered after the last of them completed, and not before its pages
 * were let go. */
TEST(close_while_ops_run)
{
	struct random random = random_seeded("close_while_ops_run");
	uint32_t tail = 0;

	/* all were done before: again */
	while (close_once(&w.raw, w.space, tail, &random) == 0) {
		assert_true(tail < 16 * 200);
		tail += 16;
		(void)close(raw_space_open(&w.raw, &w.space));
	}
	daemon_maps_become(&w.a.d, "memfd:engine", 1,
			   PATIENT_MS); /* the witness's: a helper unmaps */
	w.a.errors--;
}

/* --- rewriting while it is read --- */

struct scribbler {
	struct raw *raw;
	uint8_t *pages;
	_Atomic bool stop;
};

/* Another thread of the hostile engine: it writes anything, anywhere it may. */
__attribute__((no_sanitize("thread"))) static void *scribble(void *arg)
{
	struct scribbler *s = arg;
	struct random random = { .state = now_ns() };
	uint8_t *sqes = (uint8_t *)raw_entries(s->raw);

	while (!atomic_load(&s->stop)) {
		const uint64_t x = random_next(&random);
		volatile uint8_t *at;

		switch (x & 3) {
		case 0:
			at = &sqes[(x >> 8) % (64 * sizeof(struct wire_sqe))];
			break;
		case 1:
			at = &raw_keys(s->raw)[(x >> 8) % (1024 * 32)];
			break;
		case 2:
			at = (uint8_t *)raw_pages(s->raw) + (x >> 8) % (1024 * 4);
			break;
		default:
			at = &s->pages[(x >> 8) % raw_region_bytes()];
			break;
		}
		*at = (uint8_t)(x >> 40) & (x & 16 ? 0xff : 3); /* small values pass more checks */
	}
	return NULL;
}

static void fill_ring(struct raw *r, uint32_t space, struct random *random)
{
	const uint32_t tail = r->submit->sq_tail;

	for (uint32_t i = 0; i < 16; i++) {
		struct wire_sqe e =
			raw_sqe(random_below(random, 2) ? WIRE_OP_STORE : WIRE_OP_LOAD, space);

		e.n = 1 + random_below(random, 64);
		e.first = random_below(random, 512);
		raw_put(r, tail + i, &e);
	}
	raw_taken(r, __atomic_load_n(&r->complete->cq_tail, __ATOMIC_ACQUIRE));
	raw_publish(r, tail + 16);
}

static void rewriting_one_life(struct random *random)
{
	struct scribbler s = { .raw = &w.raw };
	pthread_t thread;
	uint32_t space;
	int fd;

	raw_open(&w.raw, w.a.d.socket);
	fd = raw_space_open(&w.raw, &space);
	s.pages = raw_region_map(fd);
	assert_int_equal(pthread_create(&thread, NULL, scribble, &s), 0);
	for (int turn = 0; turn < 10; turn++) {
		fill_ring(&w.raw, space, random);
		nap_ms(1);
	}
	atomic_store(&s.stop, true);
	(void)pthread_join(thread, NULL);
	(void)munmap(s.pages, raw_region_bytes());
	(void)close(fd);
	raw_close(&w.raw);
}

TEST(rewriting_while_it_is_read)
{
	struct random random = random_seeded("rewriting_while_it_is_read");
	uint64_t errors;

	raw_close(&w.raw);
	for (int life = 0; life < 60; life++) {
		rewriting_one_life(&random);
		witness_check(&w.a.witness);
	}
	daemon_stat_becomes(&w.a.d, "clients", 1, PATIENT_MS);
	errors = daemon_stat(&w.a.d, "protocol_errors_total");
	assert_true(errors > w.a.errors); /* some of it was seen through */
	/* The images are made of bytes that were read once: checksums hold, though the pages
	 * change. */
	assert_int_equal(daemon_stat(&w.a.d, "tiers.host.corrupt_blocks_total"), 0);
	w.a.errors = errors - 1;
	raw_open(&w.raw, w.a.d.socket);
}
