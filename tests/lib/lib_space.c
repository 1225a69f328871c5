/* SPDX-License-Identifier: Apache-2.0 */

#include "client/kvtier.h"
#include "lib_space.h"

struct home home;
char home_text[256];

uint32_t home_blocks(uint32_t space)
{
	return counts_held(home.counts, space);
}

void home_set_blocks(uint32_t space, uint32_t n)
{
	while (home_blocks(space) < n)
		counts_enter(home.counts, space, 0);
	while (home_blocks(space) > n) {
		counts_vanish(home.counts, space, 0);
		counts_release(home.counts, space);
	}
}

bool home_doomed(uint32_t space)
{
	return counts_is_doomed(home.counts, space);
}

void home_open(void)
{
	assert_int_equal(spaces_open(home.dir, MAX, &home.quota, &home.spaces, home_text,
				     sizeof(home_text)),
			 0);
	assert_int_equal(spaces_tenant(home.spaces, "default", home_text, sizeof(home_text)), 0);
}

int home_set_up(TEST_UNUSED void **state)
{
	home = (struct home){ 0 };
	scratch_make("/tmp", home.dir, sizeof(home.dir));
	home_open();
	assert_int_equal(counts_open(NULL, &home.counts), 0);
	spaces_attach(home.spaces, home.counts);
	return 0;
}

int home_tear_down(TEST_UNUSED void **state)
{
	spaces_close(home.spaces);
	spaces_close(NULL);
	counts_close(home.counts);
	counts_close(NULL);
	scratch_remove(home.dir);
	return 0;
}

struct wire_geometry home_geometry(void)
{
	return (struct wire_geometry){
		.dtype = KVTIER_BF16,
		.layers = 2,
		.kv_heads = 2,
		.head_dim_k = 32,
		.head_dim_v = 32,
		.block_tokens = 16,
		.world = 1,
		.model = "m@1",
	};
}
