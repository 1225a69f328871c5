/* SPDX-License-Identifier: Apache-2.0 */
/* lib_faulty.c - see lib_faulty.h. */
#include "lib_faulty.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAL_MS = 30000, OP_MS = 20000, HEARTBEAT_MS = 300 };

#define HOST "[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n"
#define NVME "[nvme]\nbytes = 16M\nsegment_bytes = 256K\n"

const char faulty_quick[] = HOST NVME "stall_us = 300ms\n";
const char faulty_patient[] = HOST NVME "stall_us = 60s\n";
const char faulty_quick_stop[] = HOST NVME "drain_us = 500ms\nstall_us = 300ms\n";
const char faulty_patient_stop[] = HOST NVME "drain_us = 500ms\nstall_us = 60s\n";

struct disk_world *faulty_place(void **state, const char *config)
{
	struct disk_world *w = disk_place(state, config);
	char path[200];

	(void)snprintf(path, sizeof(path), "%s/faults", w->d.dir);
	assert_int_equal(io_plan_share(path, true), 0);
	assert_int_equal(setenv("KVTIER_TEST_FAULTS", path, 1), 0);
	w->d.program = "tests/kvtierd_faulty";
	return w;
}

static void two_paths(struct disk_world *w, const char *config)
{
	char lines[900];

	(void)snprintf(lines, sizeof(lines), "%spath = %s/a:%s/b\n", config, w->d.disk, w->d.disk);
	disk_configure(&w->d, w->engine, lines);
}

struct disk_world *faulty_away(void **state, const char *config, bool both)
{
	struct disk_world *w = faulty_place(state, config);

	if (both)
		two_paths(w, config);
	disk_live(w);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	disk_flush(&w->d);
	faulty_evict(w);
	daemon_stat_becomes(&w->d, "tiers.host.used_bytes", 0, 5000);
	return w;
}

void faulty_plan(uint32_t kinds, uint32_t nth, uint32_t times, int32_t result)
{
	io_plan_set(
		(struct io_plan){ .kinds = kinds, .skip = nth, .times = times, .result = result });
}

void faulty_flip(uint32_t times)
{
	io_plan_set((struct io_plan){ .kinds = READS, .times = times, .flip = true });
}

void faulty_heal(struct disk_world *w)
{
	io_plan_none();
	disk_state_becomes(&w->d, "up", HEAL_MS);
}

void faulty_evict(struct disk_world *w)
{
	assert_int_equal(daemon_ctl(&w->d, "evict --all", w->text, sizeof(w->text)), 0);
}

void faulty_none(const struct disk_world *w, const char *path)
{
	nap_ms(HEARTBEAT_MS);
	daemon_stat_becomes(&w->d, path, 0, OP_MS);
}

void faulty_end(struct disk_world *w)
{
	daemon_stat_becomes(&w->d, "ops.outstanding", 0, OP_MS);
	daemon_stat_becomes(&w->d, "tiers.nvme.queued_blocks", 0, OP_MS);
	faulty_none(w, "leases");
	faulty_evict(w);
	faulty_none(w, "tiers.host.used_bytes");
	disk_die(w, SIGTERM);
	disk_end(w);
}

uint64_t faulty_load_begin(struct disk_world *w, uint32_t first, uint32_t n, uint32_t timeout_ms)
{
	const struct kvtier_op_options o = { .size = sizeof(o),
					     .timeout_ms = timeout_ms ? timeout_ms : OP_MS };
	uint32_t pages[DISK_BLOCKS];
	uint64_t op;

	pages_from(first, pages, n);
	for (uint32_t i = 0; i < n; i++)
		page_poison(&w->e, pages[i]);
	assert_int_equal(kvtier_load(w->e.space, &w->keys[first], pages, n, &o, &op), 0);
	return op;
}

uint32_t faulty_load_end(struct disk_world *w, uint64_t op, uint32_t first, uint32_t n,
			 int32_t otherwise)
{
	int32_t blocks[DISK_BLOCKS];
	struct kvtier_result result = { .size = sizeof(result), .blocks = blocks, .blocks_max = n };
	uint32_t hits = 0;

	assert_int_equal(kvtier_wait(w->e.client, op, -1, &result), 0);
	for (uint32_t i = 0; i < n; i++) {
		hits += blocks[i] == 0;
		if (blocks[i])
			assert_int_equal(blocks[i], otherwise);
		assert_true(blocks[i] ? page_is_poison(&w->e, first + i) :
					page_is(&w->e, first + i, &w->keys[first + i], 0));
	}
	return hits;
}

void faulty_untouched(const struct disk_world *w, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		assert_true(page_is_poison(&w->e, first + i));
}

void faulty_held(uint32_t n)
{
	const uint64_t until = now_ns() + OP_MS * 1000000ull;

	while (io_held() < n) {
		if (now_ns() > until)
			fail_msg("%u transfers stall, not %u", io_held(), n);
		nap_ms(2);
	}
}
