/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=pread,pwrite,fdatasync,io_uring_peek_batch_cqe lane=wait */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: a disk that vanished serves again when it is at its path again, and only that disk, as it
 * was left: not another store, nor an older copy of it, nor one that was used elsewhere meanwhile.
 * A refused file is left alone, and no file is closed that an I/O still uses. Method: a real file
 * whose transfers all end with -ENODEV (lib_io_faults.h) while other files are put in its place.
 * Both I/O engines, where these matter.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_nvme_tier.h"
#include "tiers/nvme/nvme_file.h"

#include <dirent.h>
#include <sys/file.h>

#include "tests/lib/lib_io_faults.h"

enum { BLOCKS = 12, ALWAYS = 1 << 30, SOME_ITERATIONS = 20, SECOND_MS = 1000 };

static struct site site;
static char other[320]; /* a path beside the store's */
static const char *awaited;

FIXTURE(open_site)
{
	io_plan_none();
	site_open_filled(&site, *(enum io_engine_choice *)*state, BLOCKS);
	(void)snprintf(other, sizeof(other), "%s-other", site.path[0]);
	return 0;
}

FIXTURE_DO(close_site, io_plan_none(); site_close(&site));

/* --- files and their places --- */

static void copy(const char *from, const char *to)
{
	static uint8_t all[SITE_BYTES];
	FILE *f = fopen(to, "w");

	assert_non_null(f);
	site_peek(from, 0, all, sizeof(all));
	assert_int_equal(fwrite(all, 1, sizeof(all), f), sizeof(all));
	assert_int_equal(fclose(f), 0);
}

static void put(const char *from)
{
	assert_int_equal(rename(from, site.path[0]), 0);
}

/* How many descriptors of this process lead to the store, wherever it is now. */
static int open_descriptors(const char *path)
{
	DIR *dir = opendir("/proc/self/fd");
	struct stat store, st;
	int n = 0;

	assert_non_null(dir);
	assert_int_equal(stat(path, &store), 0);
	for (struct dirent *e; (e = readdir(dir));)
		n += fstatat(dirfd(dir), e->d_name, &st, 0) == 0 && st.st_ino == store.st_ino &&
		     st.st_dev == store.st_dev;
	(void)closedir(dir);
	return n;
}

/* --- the disk --- */

static void gone(uint32_t kinds)
{
	io_plan_set((struct io_plan){ .kinds = kinds, .times = ALWAYS, .result = -ENODEV });
}

static void lose(void)
{
	gone(IO_ALL_KINDS);
	assert_int_equal(site_load(&site, 3), -ENODEV);
	assert_int_equal(tier_state(site.tier), TIER_OFFLINE);
}

static bool is_said(struct site *s)
{
	return strstr(site_disk(s, 0).text, awaited) != NULL;
}

static void says(const char *word)
{
	awaited = word;
	if (!site_settle(&site, is_said))
		fail_msg("\"%s\" lacks \"%s\"", site_disk(&site, 0).text, word);
}

/* The file `from` comes to the store's path, answers, and is refused with this word and left alone.
 * Then the right file is there again. */
static void is_refused(const char *from, const char *word)
{
	static uint8_t before[SITE_BYTES], after[SITE_BYTES];
	char right[340];
	struct stat st;
	size_t bytes;

	(void)snprintf(right, sizeof(right), "%s-right", site.path[0]);
	assert_int_equal(stat(from, &st), 0);
	bytes = (size_t)st.st_size;
	site_peek(from, 0, before, bytes);
	lose();
	assert_int_equal(rename(site.path[0], right), 0);
	put(from);
	says("cannot be read"); /* the old descriptor leads to it no more */
	io_plan_none();
	says(word);
	assert_int_equal(tier_state(site.tier), TIER_OFFLINE);
	assert_int_equal(open_descriptors(site.path[0]), 0); /* others may have it */
	site_peek(site.path[0], 0, after, bytes);
	assert_memory_equal(before, after, bytes);
	put(right);
	assert_true(site_until_state(&site, TIER_UP));
	(void)site_load_all(&site);
	site_store_range(&site, 40, 42);
	assert_int_equal(site_load(&site, 40), 0);
}

/* --- it is back --- */

static enum io_engine_choice any = IO_ENGINE_AUTO, threads = IO_ENGINE_THREADS;

#define BOTH(fn)                                                         \
	TEST_ROWS(fn, { #fn " [any]", fn, open_site, close_site, &any }, \
		  { #fn " [threads]", fn, open_site, close_site, &threads })

/* With another inode, as the node of a disk that was plugged in again has. */
BOTH(it_is_found_at_its_path)
{
	lose();
	assert_int_equal(rename(site.path[0], other), 0);
	says("nothing at its path");
	assert_int_equal(open_descriptors(other), 0);
	io_plan_none();
	copy(other, site.path[0]);
	assert_true(site_until_state(&site, TIER_UP));
	says("");
	assert_int_equal(site_load_all(&site), BLOCKS);
	site_store_range(&site, 30, 60); /* the open segment, and more */
	assert_int_equal(site_load_all(&site), BLOCKS + 30);
	site_stop(&site, false);
	site_start(&site);
	assert_int_equal(site_load_all(&site), BLOCKS + 30);
}

BOTH(it_may_vanish_while_it_starts)
{
	site_stop(&site, true);
	gone(IO_ALL_KINDS);
	site_start(&site);
	assert_int_equal(tier_state(site.tier), TIER_OFFLINE);
	assert_int_equal(rename(site.path[0], other), 0);
	says("nothing at its path");
	io_plan_none();
	copy(other, site.path[0]);
	assert_true(site_until_state(&site, TIER_UP));
	assert_int_equal(site_load_all(&site), BLOCKS);
}

static uint32_t transfers_before;

static bool is_probed(struct site *s)
{
	(void)s;
	return io_transfers() > transfers_before;
}

BOTH(nothing_is_closed_under_an_io)
{
	struct site_slot *slot;

	io_hold(1 << IO_WRITE);
	slot = site_begin(&site, XFER_WRITE, 30);
	gone(1 << IO_READ);
	assert_int_equal(site_load(&site, 3), -ENODEV);
	transfers_before = io_transfers();
	clock_pass_ms(SECOND_MS * 5 / 4);
	assert_true(site_settle(&site, is_probed));
	for (int i = 0; i < SOME_ITERATIONS; i++) {
		clock_pass_ms(SECOND_MS);
		site_iterate(&site);
	}
	assert_int_equal(slot->dones, 0);
	assert_true(open_descriptors(site.path[0]) > 0);
	assert_int_equal(rename(site.path[0], other), 0);
	io_hold(0);
	says("nothing at its path");
	assert_int_equal(slot->dones, 1);
	assert_int_equal(open_descriptors(other), 0);
	io_plan_none();
	put(other);
	assert_true(site_until_state(&site, TIER_UP));
	assert_int_equal(site_load_all(&site), BLOCKS + 1);
}

/* --- something else is there --- */

TEST_GIVEN(another_store_is_refused, open_site, close_site, &any)
{
	assert_int_equal(nvme_make_store(other, SITE_BYTES, KIT_SEGMENT, false, NULL, NULL,
					 site.text, sizeof(site.text)),
			 0);
	is_refused(other, "not its store");
}

TEST_GIVEN(what_is_no_store_is_refused, open_site, close_site, &any)
{
	FILE *f = fopen(other, "w");

	assert_non_null(f);
	assert_int_equal(ftruncate(fileno(f), SITE_BYTES), 0);
	(void)fclose(f);
	is_refused(other, "not its store");
}

TEST_GIVEN(a_copy_of_an_earlier_life_is_refused, open_site, close_site, &any)
{
	site_stop(&site, true);
	copy(site.path[0], other);
	site_start(&site);
	is_refused(other, "older copy");
}

/* Else purged blocks would be there again after a restart. */
TEST_GIVEN(a_copy_from_before_a_purge_is_refused, open_site, close_site, &any)
{
	copy(site.path[0], other);
	assert_int_equal(site_purge(&site, 1), 0);
	is_refused(other, "older copy");
}

TEST_GIVEN(one_that_was_used_elsewhere_is_refused, open_site, close_site, &any)
{
	copy(site.path[0], other);
	for (uint32_t i = 0; i < NVME_SUPER_COPIES; i++) {
		struct nvme_super super;

		site_peek(other, nvme_super_offset(i), &super, sizeof(super));
		super.life++;
		super.generation++;
		nvme_super_seal(&super);
		site_poke(other, nvme_super_offset(i), &super, sizeof(super));
	}
	is_refused(other, "another kvtierd has used its store");
}

TEST_GIVEN(one_that_is_cut_short_is_refused, open_site, close_site, &any)
{
	copy(site.path[0], other);
	assert_int_equal(truncate(other, SITE_BYTES / 2 / NVME_PAGE * NVME_PAGE), 0);
	is_refused(other, "shorter");
}

TEST_GIVEN(one_that_somebody_has_is_refused, open_site, close_site, &any)
{
	int fd;

	lose();
	says("cannot be read"); /* our own lock is gone */
	fd = open(site.path[0], O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	io_plan_none();
	says("in use by another kvtierd");
	(void)close(fd);
	assert_true(site_until_state(&site, TIER_UP));
	assert_int_equal(site_load_all(&site), BLOCKS);
}

TEST_FIRST(io_rig_needed());
