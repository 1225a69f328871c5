/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_verify.c - goal: a damaged image is a miss, counted, never data. Method: the test finds a
 * block's image in the daemon's host memory through /proc/PID/mem by its key, flips one bit of it,
 * and loads.
 */
#include "tests/lib/lib_damage.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kernels/image.h"

enum { BLOCKS = 4, PAGES = 2 * BLOCKS, VICTIM = 2 };

struct world {
	struct daemon d;
	struct engine e;
	struct kvtier_key keys[BLOCKS];
};

static void begin(struct world *w, const char *verify, uint32_t codec)
{
	const struct kvtier_geometry g = tiny_geometry(codec);
	char config[256];

	snprintf(config, sizeof(config),
		 "[host]\nbytes = 4M\nslab_bytes = 256K\nhuge_pages = no\nverify = %s\n", verify);
	daemon_start(&w->d, config);
	engine_open(&w->e, w->d.socket, "engine", &g, PAGES);
	chain_keys(&w->e, 1, BLOCKS, w->keys);
	assert_int_equal(chain_store(&w->e, w->keys, 0, BLOCKS), 0);
	assert_int_equal(chain_load(&w->e, w->keys, BLOCKS, BLOCKS), BLOCKS);
}

static void assert_missed(struct world *w)
{
	const uint32_t page = BLOCKS;
	int32_t status = 0;

	page_poison(&w->e, page);
	assert_int_equal(engine_load(&w->e, &w->keys[VICTIM], &page, 1, &status), -ENOENT);
	assert_int_equal(status, -ENOENT);
	assert_true(page_is_poison(&w->e, page));
	assert_int_equal(daemon_stat(&w->d, "tiers.host.corrupt_blocks_total"), 1);
}

/* A damaged image is a miss once; the second time there is nothing; stored again it is good. */
static void damage(const char *verify, uint32_t codec, long offset)
{
	struct world w;

	begin(&w, verify, codec);
	damage_image(&w.d, w.keys[VICTIM].bytes, offset);
	assert_missed(&w);
	assert_missed(&w); /* still 1: the block is gone, not damaged again */
	/* Alone: lookup's binary search may step over a hole, which nothing but damage makes. */
	assert_int_equal(engine_lookup(&w.e, &w.keys[VICTIM], 1), 0);
	assert_int_equal(chain_store(&w.e, w.keys, 0, BLOCKS), 0);
	assert_int_equal(engine_lookup(&w.e, w.keys, BLOCKS), BLOCKS);
	assert_int_equal(chain_load(&w.e, w.keys, BLOCKS, BLOCKS), BLOCKS);
	daemon_stat_becomes(&w.d, "leases", 0, PATIENT_MS);
	engine_close(&w.e);
	daemon_remove(&w.d);
}

TEST(payload_of_raw)
{
	damage("always", KVTIER_CODEC_RAW, IMAGE_ALIGN + 1234);
}

TEST(payload_of_fp8)
{
	damage("always", KVTIER_CODEC_FP8, IMAGE_ALIGN + 4095);
}

TEST(scale_of_fp8)
{
	damage("always", KVTIER_CODEC_FP8, sizeof(struct image_header) + 3);
}

TEST(checksum_itself)
{
	damage("always", KVTIER_CODEC_RAW, offsetof(struct image_header, checksum));
}

/* The header is looked at before every load, with any [host] verify. */
TEST(header_though_verified_once)
{
	damage("once", KVTIER_CODEC_RAW, offsetof(struct image_header, tokens_valid));
}

TEST(codec_though_verified_once)
{
	damage("once", KVTIER_CODEC_FP8, offsetof(struct image_header, codec_k));
}

TEST(status_says_so)
{
	char out[4096];
	struct world w;

	begin(&w, "always", KVTIER_CODEC_RAW);
	damage_image(&w.d, w.keys[VICTIM].bytes, IMAGE_ALIGN);
	assert_missed(&w);
	assert_int_not_equal(daemon_ctl(&w.d, "status", out, sizeof(out)), 0);
	assert_non_null(strstr(out, "corrupt"));
	engine_close(&w.e);
	daemon_remove(&w.d);
}
