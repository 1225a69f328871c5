/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/*
 * sys_versions.c - goal: the daemon serves a client of each version that it speaks, and they share
 * blocks. Method: clients by hand, each of which offers one version alone.
 */
#include "tests/lib/lib_raw.h"

enum { VERSIONS = WIRE_VERSION_MAX - WIRE_VERSION_MIN + 1, STORED = 0, LOADED = 1 };

DAEMON_EACH(d, HOST("1M", "256K"));

struct side {
	struct raw raw;
	uint8_t *region;
	uint32_t space, position;
};

static void side_open(struct side *s, uint32_t version)
{
	int fd;

	*s = (struct side){ 0 };
	raw_version = version;
	raw_open(&s->raw, d.socket);
	raw_version = 0;
	fd = raw_space_open(&s->raw, &s->space);
	s->region = raw_region_map(fd);
	memset(s->region, 0xa5, raw_region_bytes()); /* the daemon allocates no page */
	(void)close(fd);
}

static void side_close(struct side *s)
{
	(void)munmap(s->region, raw_region_bytes());
	raw_close(&s->raw);
}

/* A block whose key and values are one byte. */
static void run(struct side *s, enum wire_op op, int byte, uint32_t page)
{
	const struct wire_sqe sqe = raw_sqe(op, s->space);

	memset(raw_keys(&s->raw), byte, WIRE_KEY_BYTES);
	raw_pages(&s->raw)[0] = page;
	raw_run(&s->raw, s->position++, &sqe);
	assert_int_equal(raw_status(&s->raw, 0), 0);
}

TEST(clients_of_all_versions_share_blocks)
{
	const size_t bytes = engine_page_bytes(&tiny_raw);
	static struct side sides[VERSIONS];

	for (int i = 0; i < VERSIONS; i++) {
		side_open(&sides[i], (uint32_t)(WIRE_VERSION_MIN + i));
		memset(sides[i].region, i + 1, bytes);
		run(&sides[i], WIRE_OP_STORE, i + 1, STORED);
	}
	for (int i = 0; i < VERSIONS; i++)
		for (int k = 0; k < VERSIONS; k++) {
			uint8_t *page = sides[i].region + LOADED * bytes;

			run(&sides[i], WIRE_OP_LOAD, k + 1, LOADED);
			assert_memory_equal(page, sides[k].region, bytes);
		}
	for (int i = 0; i < VERSIONS; i++)
		side_close(&sides[i]);
}

/* Of two spaces that are open on a connection; an older client has one set of counters for both. */
TEST(lookups_of_all_versions_are_counted_once)
{
	for (uint32_t version = WIRE_VERSION_MIN; version <= WIRE_VERSION_MAX; version++) {
		struct wire_lookups *counted;
		uint32_t second;
		struct side s;

		side_open(&s, version);
		(void)close(raw_space_open(&s.raw, &second));
		counted = &s.raw.submit->lookups[wire_lookups_at(version, second)];
		counted->hits = counted->nvme_hits = 4;
		counted->blocks = 10;
		side_close(&s);
	}
	daemon_stat_becomes(&d, "lookup.requested_blocks_total", 10 * VERSIONS, PATIENT_MS);
	assert_int_equal(daemon_stat(&d, "lookup.nvme_blocks_total"), 4 * VERSIONS);
	assert_int_equal(daemon_stat(&d, "lookup.miss_blocks_total"), 6 * VERSIONS);
}

TEST(an_operator_sees_the_version)
{
	char words[64];
	struct side s;

	side_open(&s, WIRE_VERSION_MIN);
	(void)snprintf(words, sizeof(words), "\"wire\":\"%d\"", WIRE_VERSION_MIN);
	if (!strstr(daemon_told(&d, "clients --json"), words))
		fail_msg("%s is not in: %s", words, daemon_told(&d, "clients --json"));
	side_close(&s);
}
