/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: memory of the host tier is spread over the NUMA nodes of GPUs, each GPU alike; a device
 * that is no GPU, has no node or may not be used counts for nothing; and slabs of all nodes come in
 * turn.
 * Method: a tree of files as sysfs has it; for the layout, shares of a few nodes.
 */

#include "tests/lib/lib_scratch.h"
#include "tests/lib/test.h"
#include "tiers/host/host_memory.h"

static char dir[128];
static struct host_nodes nodes; /* that were read */
static struct host_split split;

static void put(const char *device, const char *file, const char *text)
{
	char path[384];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/%s", dir, device, file);
	f = fopen(path, "we");
	assert_non_null(f);
	(void)fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

static void device(const char *name, const char *vendor, const char *class, const char *node)
{
	char path[256];

	(void)snprintf(path, sizeof(path), "%s/bus/pci/devices/%s", dir, name);
	assert_int_equal(mkdir(path, 0700), 0);
	put(name, "vendor", vendor);
	put(name, "class", class);
	if (node)
		put(name, "numa_node", node);
}

static bool below(void *arg, int32_t node)
{
	return node < *(const int32_t *)arg;
}

static void read_nodes(int32_t limit)
{
	host_nodes_read(dir, below, &limit, &nodes);
}

FIXTURE(begin)
{
	static const char *const parts[] = { "", "/bus", "/bus/pci", "/bus/pci/devices" };
	char path[256];

	(void)snprintf(dir, sizeof(dir), "/tmp/kvtier-test-XXXXXX");
	assert_non_null(mkdtemp(dir));
	for (size_t i = 1; i < sizeof(parts) / sizeof(parts[0]); i++) {
		(void)snprintf(path, sizeof(path), "%s%s", dir, parts[i]);
		assert_int_equal(mkdir(path, 0700), 0);
	}
	return 0;
}

FIXTURE_DO(end, scratch_remove(dir));

TEST_WITH(a_machine_without_gpus_has_no_preference, begin, end)
{
	device("0000:00:00.0", "0x8086\n", "0x060000\n", "0\n");
	read_nodes(8);
	assert_int_equal(nodes.n, 0);
	host_nodes_by_gpus(&nodes, 100, &split);
	assert_int_equal(split.n, 0);
	host_nodes_read("/tmp/there-is-no-such-directory", below, &(int32_t){ 8 }, &nodes);
	assert_int_equal(nodes.n, 0);
}

TEST_WITH(each_gpu_has_its_share, begin, end)
{
	device("0000:c1:00.0", "0x10de\n", "0x030200\n", "1\n");
	device("0000:41:00.0", "0x10de\n", "0x030000\n", "0\n");
	device("0000:a1:00.0", "0x10de\n", "0x030200\n", "1\n");
	read_nodes(8);
	assert_int_equal(nodes.n, 3);
	host_nodes_by_gpus(&nodes, 301, &split);
	assert_int_equal(split.n, 2);
	assert_int_equal(split.node[0], 0);
	assert_int_equal(split.node[1], 1);
	assert_int_equal(split.slabs[0], 100);
	assert_int_equal(split.slabs[1], 201);
}

TEST_WITH(what_is_no_gpu_or_has_no_node_counts_for_nothing, begin, end)
{
	device("0000:01:00.0", "0x10de\n", "0x068000\n", "1\n");  /* a bridge (NVSwitch) */
	device("0000:02:00.0", "0x1002\n", "0x030000\n", "1\n");  /* another maker's */
	device("0000:03:00.0", "0x10de\n", "0x030200\n", "-1\n"); /* the firmware does not say */
	device("0000:04:00.0", "0x10de\n", "0x030200\n", NULL);
	device("0000:05:00.0", "0x10de\n", "0x030200\n", "nonsense\n");
	device("0000:06:00.0", "0x10de\n", "0x030200\n", "99999999999\n");
	device("0000:07:00.0", "0x10de\n", "0x030200\n", "0\n");
	read_nodes(HOST_NODES_MAX);
	assert_int_equal(nodes.n, 1);
	assert_int_equal(nodes.of_gpu[0], 0);
}

TEST_WITH(a_node_that_may_not_be_used_counts_for_nothing, begin, end)
{
	device("0000:01:00.0", "0x10de\n", "0x030200\n", "0\n");
	device("0000:02:00.0", "0x10de\n", "0x030200\n", "1\n");
	read_nodes(1);
	assert_int_equal(nodes.n, 1);
	assert_int_equal(nodes.of_gpu[0], 0);
}

TEST_WITH(more_gpus_than_there_is_room_for, begin, end)
{
	char name[32];

	for (unsigned i = 0; i < HOST_GPUS_MAX + 2; i++) {
		(void)snprintf(name, sizeof(name), "0000:%02x:00.0", i);
		device(name, "0x10de\n", "0x030200\n", "0\n");
	}
	read_nodes(1);
	assert_int_equal(nodes.n, HOST_GPUS_MAX);
}

TEST(more_nodes_than_there_is_room_for)
{
	uint32_t slabs = 0;

	nodes.n = HOST_GPUS_MAX;
	for (int32_t i = 0; i < HOST_GPUS_MAX; i++)
		nodes.of_gpu[i] = i;
	host_nodes_by_gpus(&nodes, 640, &split);
	assert_int_equal(split.n, TIER_MAX_NODES);
	for (uint32_t i = 0; i < split.n; i++)
		slabs += split.slabs[i];
	assert_int_equal(slabs, 640);
}

TEST(shares_are_whole_slabs_of_the_nodes_named)
{
	const struct tier_conf conf = { .slab_bytes = 64 << 10,
					.n_nodes = 2,
					.nodes = { { 3, 300 << 10 }, { 1, 64 << 10 } } };

	host_nodes_by_conf(&conf, &split);
	assert_int_equal(split.n, 2);
	assert_int_equal(split.node[0], 3);
	assert_int_equal(split.slabs[0], 4);
	assert_int_equal(split.node[1], 1);
	assert_int_equal(split.slabs[1], 1);
}

/* At any time the nodes are as far apart as a run, and in the end each has its share. */
TEST(nodes_come_in_turn)
{
	enum { RUN = 4, SLABS = 120 };
	const struct host_split of_three = { .n = 3, .node = { 0, 2, 5 }, .slabs = { 60, 20, 40 } };
	uint8_t of[SLABS + 1];
	uint32_t given[3] = { 0, 0, 0 }, runs = 1;

	of[SLABS] = 0xaa;
	host_nodes_lay_out(&of_three, RUN, of);
	assert_int_equal(of[SLABS], 0xaa);
	for (uint32_t i = 0; i < SLABS; i++) {
		given[of[i]]++;
		runs += i > 0 && of[i] != of[i - 1];
		for (uint32_t node = 0; node < 3; node++) {
			const int32_t due = (int32_t)(of_three.slabs[node] * (i + 1) / SLABS);

			assert_in_range((int32_t)given[node] - due + 2 * RUN, 0, 4 * RUN);
		}
	}
	for (uint32_t node = 0; node < 3; node++)
		assert_int_equal(given[node], of_three.slabs[node]);
	assert_true(runs <= SLABS / RUN);
}
