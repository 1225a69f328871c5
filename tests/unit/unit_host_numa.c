/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=mbind,get_mempolicy,numa_available,numa_get_mems_allowed,numa_node_size64 */
/*
 * Goal: memory that is asked of NUMA nodes is bound to them, slab for slab, each byte once, and to
 * no other ones; a node that is not there, or too small, is a sentence; memory that lies elsewhere
 * is counted. Method: host_memory_open() on a machine of three nodes (lib_nodes.h).
 */

#include "tests/lib/lib_nodes.h"
#include "tests/lib/test.h"
#include "tiers/host/host_memory.h"
#include "tiers/slabs.h"

enum { SLAB = 64 << 10, MOST = 16 };

static struct host_memory *open_settled(const struct tier_conf *conf)
{
	char text[TIER_TEXT_BYTES] = "";
	struct host_memory *m;

	if (host_memory_open(conf, &m, text, sizeof(text)))
		fail_msg("%s", text);
	AWAIT(atomic_load(&m->done) >= m->n_slabs);
	return m;
}

TEST(each_slab_is_bound_to_its_node)
{
	const struct tier_conf conf = { .bytes = 8 * SLAB,
					.slab_bytes = SLAB,
					.n_nodes = 2,
					.nodes = { { 2, 5 * SLAB + 1000 }, { 0, 3 * SLAB } } };
	struct nodes_bound bound[MOST];
	uint64_t bytes = 0;
	struct host_memory *m;
	uint32_t n;

	nodes_reset(-1);
	m = open_settled(&conf);
	assert_int_equal(m->n_slabs, 8);
	assert_int_equal(m->split.n, 2);
	assert_int_equal(m->split.node[0], 2);
	assert_int_equal(m->split.node[1], 0);
	n = nodes_bound(bound, MOST);
	for (uint32_t i = 0; i < n; i++) {
		const uint64_t first = (uint64_t)(bound[i].at - m->base) / SLAB;

		assert_true(bound[i].strict);
		assert_ptr_equal(bound[i].at, m->base + bytes);
		for (uint64_t slab = first; slab < first + bound[i].bytes / SLAB; slab++)
			assert_int_equal(m->split.node[m->nodes[slab]], bound[i].node);
		bytes += bound[i].bytes;
	}
	assert_int_equal(bytes, 8 * SLAB);
	assert_int_equal(atomic_load(&m->astray), 0);
	host_memory_close(m);
}

TEST(memory_that_lies_elsewhere_is_counted)
{
	const struct tier_conf conf = { .bytes = 6 * SLAB,
					.slab_bytes = SLAB,
					.n_nodes = 2,
					.nodes = { { 1, 4 * SLAB }, { 2, 2 * SLAB } } };
	struct host_memory *m;

	nodes_reset(1);
	m = open_settled(&conf);
	assert_int_equal(atomic_load(&m->astray), 4);
	host_memory_close(m);
}

static void refused(const struct tier_node *node, int err, const char *const *words)
{
	const struct tier_conf conf = { .bytes = SLAB + node->bytes,
					.slab_bytes = SLAB,
					.n_nodes = 2,
					.nodes = { { 0, SLAB }, *node } };
	char text[TIER_TEXT_BYTES] = "";
	struct host_memory *m;

	assert_int_equal(host_memory_open(&conf, &m, text, sizeof(text)), err);
	for (; *words; words++)
		if (!strstr(text, *words))
			fail_msg("\"%s\" does not say %s", text, *words);
}

TEST(a_node_that_is_not_there_or_too_small_is_a_sentence)
{
	refused(&(struct tier_node){ NODES, SLAB }, -EINVAL,
		(const char *const[]){ "[host] bytes: 3 is no NUMA node", "leave the nodes out",
				       NULL });
	refused(&(struct tier_node){ 1000, SLAB }, -EINVAL,
		(const char *const[]){ "[host] bytes: 1000 is no NUMA node", NULL });
	refused(&(struct tier_node){ 1, NODES_BYTES + SLAB }, -ENOMEM,
		(const char *const[]){ "[host] bytes = 1024M of NUMA node 1", "give it less",
				       NULL });
}

/* Without a GPU on this machine. With one, its nodes are a wish, and not all are asked for. */
TEST(without_nodes_no_memory_is_bound)
{
	const struct tier_conf conf = { .bytes = 4 * SLAB, .slab_bytes = SLAB };
	struct nodes_bound bound[MOST];
	struct host_memory *m;

	nodes_reset(-1);
	m = open_settled(&conf);
	for (uint32_t i = 0; i < nodes_bound(bound, MOST); i++)
		assert_false(bound[i].strict);
	if (m->split.n == 0) {
		assert_int_equal(nodes_bound(bound, MOST), 1);
		assert_int_equal(bound[0].node, -1); /* interleaved */
		assert_int_equal(bound[0].bytes, 4 * SLAB);
	}
	host_memory_close(m);
}
