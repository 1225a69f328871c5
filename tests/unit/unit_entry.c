/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_entry - goal: an entry that asks for more than its client has is refused with a sentence
 * that names field and value, an entry at the very limit is not, and the check changes nothing.
 * Method: op_check_entry() alone, on one good entry that each case bends.
 */

#include "daemon/op/op.h"
#include "daemon/op/part.h"
#include "daemon/session/peer.h"
#include "daemon/table/space.h"
#include "tests/lib/test.h"

enum { SLOTS = 16, CLAIMED = 6, LAYERS = 4, OUTSTANDING = 70, LOAD = 71, GROUPS = 2 };

static struct device layered = { .layered = true }, plain;
static struct space space = { .geometry = { .layers = LAYERS } };
static struct mount open_mount = { .space = &space, .device = &layered };
static struct mount plain_mount = { .space = &space, .device = &plain };
static struct mount closing_mount = { .space = &space, .device = &layered, .closing = true };
static struct stream_order order = { .device = &layered };
static struct op load = { .sqe = { .op = WIRE_OP_LOAD, .op_id = LOAD, .groups = GROUPS } };
static struct op store = {
	.next = &load,
	.sqe = { .op = WIRE_OP_STORE, .op_id = OUTSTANDING, .groups = GROUPS },
};
static struct client client = {
	.mounts = { &open_mount, &plain_mount, NULL, &closing_mount },
	.ops = &store,
	.orders = &order,
	.arena_claimed = CLAIMED,
	.ring = { .arena_blocks = SLOTS },
};

struct bend {
	const char *refused; /* NULL: it passes */
	struct wire_sqe sqe;
};

/* A field that an entry does not use is 0, and passes. */
#define STORE(...)                               \
	{                                        \
		.op = WIRE_OP_STORE, __VA_ARGS__ \
	}
#define GIVES(...)                                \
	{                                         \
		.op = WIRE_OP_LAYERS, __VA_ARGS__ \
	}

static const struct bend bends[] = {
	{ NULL, STORE(.space = 0) },
	{ NULL, STORE(.space = 1) },
	{ "sqe.space 2 is not open", STORE(.space = 2) },
	{ "sqe.space 3 is not open", STORE(.space = 3) },
	{ "sqe.op_id 70 is in use", STORE(.op_id = OUTSTANDING) },
	{ "sqe.op_id 71 is in use", STORE(.op_id = LOAD) },
	{ NULL, STORE(.n = SLOTS - CLAIMED) },
	{ "sqe.n 11 is more than the arena slots", STORE(.n = SLOTS - CLAIMED + 1) },
	{ NULL, STORE(.n = SLOTS - CLAIMED - 1, .flags = WIRE_SQE_HAS_PARENT) },
	{ "sqe.n 10 is more than the arena slots",
	  STORE(.n = SLOTS - CLAIMED, .flags = WIRE_SQE_HAS_PARENT) },
	{ NULL, STORE(.groups = LAYERS) },
	{ "sqe.groups 5 is more than the layers", STORE(.groups = LAYERS + 1) },
	{ NULL, STORE(.groups = 2, .word = 1, .flags = WIRE_SQE_GIVEN) },
	{ "sqe.flags 4 says GIVEN", STORE(.space = 1, .groups = 2, .flags = WIRE_SQE_GIVEN) },
	{ NULL, STORE(.word = 2) },
	{ "sqe.word 2 is of no ORDER", STORE(.space = 1, .word = 2) },
	{ NULL, GIVES(.target = OUTSTANDING, .n = GROUPS) },
	{ "sqe.n 3 is more than the groups", GIVES(.target = OUTSTANDING, .n = GROUPS + 1) },
	{ "sqe.n 1 is more than the groups", GIVES(.target = LOAD, .n = 1) },
	{ NULL, GIVES(.target = 99, .n = 200) },
	{ NULL, { .op = WIRE_OP_CANCEL, .op_id = OUTSTANDING, .target = 99 } },
	{ NULL, { .op = WIRE_OP_NOP, .op_id = OUTSTANDING } },
};

TEST(what_a_client_does_not_have_is_refused)
{
	for (size_t i = 0; i < sizeof(bends) / sizeof(bends[0]); i++) {
		static struct client before;
		char text[200] = "";
		struct op *target;
		int r;

		memcpy(&before, &client, sizeof(client));
		r = op_check_entry(&client, &bends[i].sqe, &target, text, sizeof(text));

		print_message("%zu: %d %s\n", i, r, text);
		assert_int_equal(r, bends[i].refused ? -EPROTO : 0);
		assert_true(strstr(text, bends[i].refused ? bends[i].refused : "") == text);
		assert_memory_equal(&client, &before, sizeof(client));
	}
}

TEST(the_target_of_an_entry_is_found)
{
	static const struct {
		uint8_t op;
		uint64_t target;
		const struct op *found;
	} cases[] = {
		{ WIRE_OP_CANCEL, OUTSTANDING, &store },
		{ WIRE_OP_CANCEL, LOAD, &load },
		{ WIRE_OP_CANCEL, 99, NULL }, /* it has completed */
		{ WIRE_OP_LAYERS, OUTSTANDING, &store },
		{ WIRE_OP_LAYERS, 99, NULL },
		{ WIRE_OP_NOP, 0, NULL },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct wire_sqe sqe = {
			.op = cases[i].op,
			.op_id = 1,
			.target = cases[i].target,
			.n = 1,
		};
		struct op *target = &load;
		char text[200];

		assert_int_equal(op_check_entry(&client, &sqe, &target, text, sizeof(text)), 0);
		assert_ptr_equal(target, cases[i].found);
	}
}
