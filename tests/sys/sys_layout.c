/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_layout.c - goal: an engine gets another engine's blocks also where its pages have another
 * layout. Method: two engines over the same memory, whose segments say token-major and head-major.
 */
#include "tests/lib/lib.h"

enum { PAGES = 64, CHAIN = 24 };

/* [layer][K|V][head][token][dim]: the same block elsewhere in the page. */
static void open_head_major(struct engine *e, const struct engine *like, const struct daemon *d)
{
	const struct kvtier_region region = {
		.size = sizeof(region),
		.memory = KVTIER_MEMFD,
		.fd = like->fd,
		.length = like->page_bytes * PAGES,
	};
	struct kvtier_segment segments[8];
	const size_t n = engine_segments(&like->geometry, segments, 8);

	*e = *like;
	for (size_t i = 0; i < n; i++) {
		segments[i].token_stride = 32 * 2;
		segments[i].head_stride = 16 * 32 * 2;
	}
	assert_int_equal(client_dial(d->socket, NULL, 0, &e->client), 0);
	assert_int_equal(kvtier_space_open(e->client, &e->geometry, &region, 1, segments, n,
					   &e->space),
			 0);
}

TEST(other_layout_gets_the_same_values)
{
	const uint32_t to = 50;
	struct kvtier_key keys[CHAIN];
	struct engine a, b;
	struct daemon d;
	const uint16_t *have, *want;

	daemon_start(&d, SMALL_HOST);
	engine_open(&a, d.socket, "token-major", &tiny_fp8, PAGES);
	chain_keys(&a, 1, CHAIN, keys);
	assert_int_equal(chain_store(&a, keys, 0, CHAIN), 0);
	open_head_major(&b, &a, &d);
	assert_int_equal(engine_load(&b, keys, &to, 1, NULL), 0);
	want = (const uint16_t *)(const void *)a.memory;
	have = (const uint16_t *)(const void *)(a.memory + to * a.page_bytes);
	for (size_t plane = 0; plane < 4; plane++)
		for (size_t token = 0; token < 16; token++)
			for (size_t head = 0; head < 2; head++)
				assert_memory_equal(&have[((plane * 2 + head) * 16 + token) * 32],
						    &want[((plane * 16 + token) * 2 + head) * 32],
						    64);
	kvtier_close(b.client);
	engine_close(&a);
	daemon_remove(&d);
}
