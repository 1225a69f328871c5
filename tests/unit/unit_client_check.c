/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) link=client.a (the library's inner names) */
/*
 * Goal: structs of older and newer programs are taken as kvtier.h says.
 */
#include "client/lib/base/last_error.h"
#include "client/kvtier.h"
#include "tests/lib/test.h"

TEST(older_struct_means_zero_for_the_rest)
{
	struct kvtier_op o = { .size = offsetof(struct kvtier_op, keys), .kind = 7, .n = 9 }, ret;

	assert_int_equal(error_struct_in(&ret, sizeof(ret), &o, "op"), 0);
	assert_int_equal(ret.kind, 7);
	assert_int_equal(ret.n, 0);
}

TEST(newer_struct_may_ask_for_nothing_new)
{
	struct {
		struct kvtier_hit hit;
		uint32_t more;
	} newer = { .hit.size = sizeof(newer) };
	struct kvtier_hit ret;

	assert_int_equal(error_struct_in(&ret, sizeof(ret), &newer, "hit"), 0);
	newer.more = 1;
	assert_int_equal(error_struct_in(&ret, sizeof(ret), &newer, "hit"), -E2BIG);
	assert_non_null(strstr(kvtier_last_error(), "hit.size"));
}

TEST(size_zero_and_wild_sizes_are_refused)
{
	uint32_t size = 0;
	uint8_t ret[16];

	assert_int_equal(error_struct_in(ret, sizeof(ret), &size, "options"), -EINVAL);
	size = UINT32_MAX;
	assert_int_equal(error_struct_in(ret, sizeof(ret), &size, "options"), -E2BIG);
	assert_int_equal(error_struct_in(ret, sizeof(ret), NULL, "options"), -EINVAL);
}
