/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_verify.c - goal: a damaged image is a miss, counted, never data. Method: the test finds a
 * block's image in the daemon's host memory through /proc/PID/mem by its key, flips one bit of it,
 * and loads.
 */
#include "tests/lib/lib.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/image.h"
#include "tiers/host/host_memory.h"

enum { BLOCKS = 4, PAGES = 2 * BLOCKS, VICTIM = 2, HOST_BYTES = 4 << 20, LARGEST = 256 << 20 };

struct world {
	struct daemon d;
	struct engine e;
	struct kvtier_key keys[BLOCKS];
};

/* Address in the daemon of the image with this key in [from, to), or 0. Images are 4 KiB
 * aligned. */
static uint64_t image_in(int mem, uint64_t from, uint64_t to, const struct kvtier_key *key)
{
	struct image_header header;

	for (uint64_t at = from; at < to; at += IMAGE_ALIGN)
		if (pread(mem, &header, sizeof(header), (off_t)at) == (ssize_t)sizeof(header) &&
		    header.magic == IMAGE_MAGIC &&
		    memcmp(header.key, key->bytes, sizeof(header.key)) == 0)
			return at;
	return 0;
}

/* Its name is in the line where the kernel keeps names; else it is one of those that have none. */
static bool may_be_host_memory(const char *line, uint64_t from, uint64_t to)
{
	if (strstr(line, HOST_MEMORY_NAME))
		return true;
	return strstr(line, " rw-p 00000000 00:00 0 \n") && to - from >= HOST_BYTES &&
	       to - from <= LARGEST;
}

static uint64_t find_image(const struct daemon *d, int mem, const struct kvtier_key *key)
{
	char path[64], line[512];
	uint64_t at = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", d->pid);
	f = fopen(path, "r");
	assert_non_null(f);
	while (!at && fgets(line, sizeof(line), f)) {
		unsigned long long from, to;

		if (sscanf(line, "%llx-%llx", &from, &to) == 2 &&
		    may_be_host_memory(line, from, to))
			at = image_in(mem, from, to, key);
	}
	(void)fclose(f);
	if (!at)
		fail_msg("the block's image is not in the daemon's host memory");
	return at;
}

/* offset < 0: from the image's end. */
static void flip(const struct daemon *d, const struct kvtier_key *key, long offset)
{
	char path[64];
	uint64_t at;
	uint8_t byte;
	int mem;

	snprintf(path, sizeof(path), "/proc/%d/mem", d->pid);
	mem = open(path, O_RDWR | O_CLOEXEC);
	if (mem < 0) {
		printf("skipped: %s: %s\n", path, strerror(errno));
		skip();
	}
	at = find_image(d, mem, key) + (uint64_t)offset;
	assert_int_equal(pread(mem, &byte, 1, (off_t)at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(mem, &byte, 1, (off_t)at), 1);
	(void)close(mem);
}

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
	flip(&w.d, &w.keys[VICTIM], offset);
	assert_missed(&w);
	assert_missed(&w); /* still 1: the block is gone, not damaged again */
	/* Alone: lookup's binary search may step over a hole, which nothing but damage makes. */
	assert_int_equal(engine_lookup(&w.e, &w.keys[VICTIM], 1), 0);
	assert_int_equal(chain_store(&w.e, w.keys, 0, BLOCKS), 0);
	assert_int_equal(engine_lookup(&w.e, w.keys, BLOCKS), BLOCKS);
	assert_int_equal(chain_load(&w.e, w.keys, BLOCKS, BLOCKS), BLOCKS);
	daemon_stat_becomes(&w.d, "leases", 0, 10000);
	engine_close(&w.e);
	daemon_remove(&w.d);
}

static void payload_of_raw(void **state)
{
	(void)state;
	damage("always", KVTIER_CODEC_RAW, IMAGE_ALIGN + 1234);
}

static void payload_of_fp8(void **state)
{
	(void)state;
	damage("always", KVTIER_CODEC_FP8, IMAGE_ALIGN + 4095);
}

static void scale_of_fp8(void **state)
{
	(void)state;
	damage("always", KVTIER_CODEC_FP8, sizeof(struct image_header) + 3);
}

static void checksum_itself(void **state)
{
	(void)state;
	damage("always", KVTIER_CODEC_RAW, offsetof(struct image_header, checksum));
}

/* The header is looked at before every load, whatever [host] verify says. */
static void header_though_verified_once(void **state)
{
	(void)state;
	damage("once", KVTIER_CODEC_RAW, offsetof(struct image_header, tokens_valid));
}

static void codec_though_verified_once(void **state)
{
	(void)state;
	damage("once", KVTIER_CODEC_FP8, offsetof(struct image_header, codec_k));
}

static void status_says_so(void **state)
{
	char out[4096];
	struct world w;

	(void)state;
	begin(&w, "always", KVTIER_CODEC_RAW);
	flip(&w.d, &w.keys[VICTIM], IMAGE_ALIGN);
	assert_missed(&w);
	assert_int_not_equal(daemon_ctl(&w.d, "status", out, sizeof(out)), 0);
	assert_non_null(strstr(out, "corrupt"));
	engine_close(&w.e);
	daemon_remove(&w.d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(payload_of_raw),
		cmocka_unit_test(payload_of_fp8),
		cmocka_unit_test(scale_of_fp8),
		cmocka_unit_test(checksum_itself),
		cmocka_unit_test(header_though_verified_once),
		cmocka_unit_test(codec_though_verified_once),
		cmocka_unit_test(status_says_so),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
