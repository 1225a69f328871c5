/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_nvme_damage.c - goal: an image that was damaged on disk is a miss, counted, and found, named
 * and dropped by `kvtierctl verify`; purged blocks never come back. Method: flip bits of the
 * store's file, between lives and under the running daemon; load, verify, purge, restart. On both
 * I/O engines.
 */
#include "tests/lib/lib_damage.h"
#include "tests/lib/lib_disk.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const char ours[] = "[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n"
			   "[nvme]\nbytes = 16M\nsegment_bytes = 256K\n";

/* --- damage --- */

static void hex(const struct kvtier_key *key, char ret[65])
{
	for (int i = 0; i < 32; i++)
		(void)snprintf(ret + 2 * i, 3, "%02x", key->bytes[i]);
}

/* One bit: of the header, of the payload, at its end. */
static const uint64_t places[] = { 40, 4096, 4096 + 8191 };

ON_BOTH_ENGINES(a_flipped_bit_is_a_miss)
{
	struct disk_world *w = disk_place(state, ours);
	const uint32_t n = sizeof(places) / sizeof(places[0]);

	disk_fill_and_die(w);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(disk_flip(w->path, &w->keys[i], places[i]), 1);
	disk_live(w);
	assert_int_equal(disk_load_each(w), DISK_BLOCKS - n);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(chain_load(&w->e, &w->keys[i], 0, 1), 0);
	daemon_stat_becomes(&w->d, "tiers.nvme.corrupt_blocks_total", n, PATIENT_MS);
	(void)disk_status_says(&w->d, "nvme_corrupt", w->text, sizeof(w->text));
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	disk_flush(&w->d);
	disk_die(w, SIGKILL);
	disk_last_life(w);
}

ON_BOTH_ENGINES(verify_names_what_is_damaged)
{
	struct disk_world *w = disk_place(state, ours);
	char key[65];

	disk_live(w);
	disk_fill(w);
	assert_int_equal(daemon_ctl(&w->d, "verify", w->text, sizeof(w->text)), 0);
	/* under the running daemon */
	assert_int_equal(disk_flip(w->path, &w->keys[5], 5000), 1);
	assert_int_equal(daemon_ctl(&w->d, "verify --json", w->text, sizeof(w->text)), 1);
	hex(&w->keys[5], key);
	assert_non_null(strstr(w->text, key));
	assert_non_null(strstr(w->text, "\"segment\":"));
	hex(&w->keys[6], key);
	assert_null(strstr(w->text, key));
	disk_die(w, SIGTERM);
	disk_end(w);
}

ON_BOTH_ENGINES(scrub_drops_what_is_damaged)
{
	struct disk_world *w = disk_place(state, ours);

	disk_fill_and_die(w);
	disk_live(w);
	assert_int_equal(disk_flip(w->path, &w->keys[5], 5000), 1);
	assert_int_equal(daemon_ctl(&w->d, "verify --scrub", w->text, sizeof(w->text)), 1);
	assert_int_equal(daemon_ctl(&w->d, "verify", w->text, sizeof(w->text)), 0);
	assert_int_equal(engine_lookup(&w->e, &w->keys[5], 1), 0);
	assert_int_equal(disk_load_each(w), DISK_BLOCKS - 1);
	disk_die(w, SIGTERM);
	disk_end(w);
}

ON_BOTH_ENGINES(one_superblock_damaged_is_no_matter)
{
	for (uint64_t at = 100; at < 65536; at += 32768) {
		struct disk_world *w = disk_place(state, ours);
		uint8_t byte;

		disk_fill_and_die(w);
		disk_read(w->path, at, &byte, 1);
		byte ^= 1;
		disk_write(w->path, at, &byte, 1);
		disk_live(w);
		assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
		disk_die(w, SIGTERM);
		disk_end(w);
	}
}

/* --- codecs --- */

/* The image on disk becomes one with these codecs, and right sums. */
static void recode(const char *path, const struct kvtier_key *key, enum image_codec codec_k,
		   enum image_codec codec_v)
{
	static _Alignas(IMAGE_ALIGN) uint8_t image[4 * IMAGE_ALIGN];
	const uint64_t at = disk_find(path, key);
	struct image_header header;
	struct image_shape shape;

	disk_read(path, at, &header, sizeof(header));
	damage_recoded(&header, codec_k, codec_v, image, &shape);
	disk_write(path, at, image, shape.image_bytes);
}

/* A space that promises exact bytes gets none of FP8, and none of two codecs. */
ON_BOTH_ENGINES(an_image_of_another_codec_is_a_miss)
{
	struct disk_world *w = disk_place(state, ours);

	disk_fill_and_die(w);
	recode(w->path, &w->keys[0], CODEC_FP8, CODEC_FP8);
	recode(w->path, &w->keys[1], CODEC_RAW, CODEC_FP8);
	recode(w->path, &w->keys[2], CODEC_FP8, CODEC_RAW);
	disk_live(w);
	assert_int_equal(disk_load_each(w), DISK_BLOCKS - 3);
	daemon_stat_becomes(&w->d, "tiers.nvme.corrupt_blocks_total", 3, PATIENT_MS);
	disk_die(w, SIGTERM);
	disk_end(w);
}

/* --- purge --- */

ON_BOTH_ENGINES(purged_blocks_never_come_back)
{
	struct disk_world *w = disk_place(state, ours);
	struct kvtier_key later[DISK_BLOCKS];

	disk_fill_and_die(w);
	disk_live(w);
	/* in memory, too */
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS / 2), DISK_BLOCKS / 2);
	assert_int_equal(daemon_ctl(&w->d, "purge --tenant default", w->text, sizeof(w->text)), 0);
	assert_int_equal(disk_load_each(w), 0);
	chain_keys(&w->e, 2, DISK_BLOCKS, later);
	assert_int_equal(chain_store(&w->e, later, 0, DISK_BLOCKS), 0);
	disk_flush(&w->d);
	disk_die(w, SIGKILL);
	disk_live(w);
	assert_int_equal(disk_load_each(w), 0);
	/* stored after it */
	assert_int_equal(chain_load(&w->e, later, 0, DISK_BLOCKS), DISK_BLOCKS);
	disk_die(w, SIGTERM);
	disk_end(w);
}
