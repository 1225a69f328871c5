/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "client/kvtier.h"
#include "lib_space.h"

char home_text[256];

static uint32_t blocks_held(void *arg, uint32_t space)
{
	return ((struct home *)arg)->blocks[space];
}

static void blocks_are(void *arg, uint32_t space, const uint8_t index_key[16], uint32_t tenant)
{
	struct home *w = arg;

	assert_true(space < NUMBERS);
	assert_int_equal(w->blocks[space], 0); /* T2 of space_table.h */
	(void)tenant;
	memcpy(w->index_keys[space], index_key, 16);
	w->doomed[space] = false;
}

static void blocks_doom(void *arg, uint32_t space, bool doomed)
{
	struct home *w = arg;

	assert_int_not_equal(w->doomed[space], doomed);
	w->doomed[space] = doomed;
}

void home_open(struct home *w)
{
	assert_int_equal(spaces_open(w->dir, MAX, &w->spaces, home_text, sizeof(home_text)), 0);
	assert_int_equal(spaces_tenant(w->spaces, "default", home_text, sizeof(home_text)), 0);
}

int home_set_up(void **state)
{
	static struct home w;

	w = (struct home){ 0 };
	scratch_make("/tmp", w.dir, sizeof(w.dir));
	home_open(&w);
	spaces_attach(w.spaces, &(struct spaces_blocks){ .arg = &w,
							 .held = blocks_held,
							 .is = blocks_are,
							 .doom = blocks_doom });
	*state = &w;
	return 0;
}

int home_tear_down(void **state)
{
	struct home *w = *state;

	spaces_close(w->spaces);
	spaces_close(NULL);
	scratch_remove(w->dir);
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
