/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: the tier opens with anything at a configured path. A file that is not recognised is refused
 * with a sentence that says what to do, and not one byte of it is changed. A store that may be made
 * is made whole or not at all. Method: each thing is put there, its bytes compared before and
 * after. Also kvtierctl's way of making a store.
 */
#include "tests/lib/lib_nvme_tier.h"
#include "tiers/nvme/nvme_file.h"

#include <sys/file.h>
#include <sys/fsuid.h>

static struct site site;

FIXTURE_DO(open_site, site_open(&site, IO_ENGINE_AUTO, 1));

FIXTURE_DO(close_site, site_close(&site));

TEST_EACH(open_site, close_site);

static void put(const void *bytes, size_t n)
{
	FILE *f = fopen(site.path[0], "w");

	assert_non_null(f);
	assert_int_equal(fwrite(bytes, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

static void put_blank(off_t bytes)
{
	put("", 0);
	assert_int_equal(truncate(site.path[0], bytes), 0);
}

static uint64_t size_of_it(void)
{
	struct stat st;

	return stat(site.path[0], &st) ? UINT64_MAX : (uint64_t)st.st_size;
}

static struct nvme_disk_row assert_says(const char *word)
{
	const struct nvme_disk_row row = site_disk(&site, 0);

	if (!strstr(row.text, word))
		fail_msg("\"%s\" lacks \"%s\"", row.text, word);
	return row;
}

/* Starts, expects a refusal that says `word`, and an unchanged file. */
static void refused(const char *word)
{
	static uint8_t before[SITE_BYTES], after[SITE_BYTES];
	const uint64_t size = size_of_it() < sizeof(before) ? size_of_it() : 0;

	site_peek(site.path[0], 0, before, size);
	site_start(&site);
	assert_int_equal(tier_state(site.tier), TIER_OFFLINE);
	assert_true(assert_says(word).for_good);
	site_stop(&site, false);
	site_peek(site.path[0], 0, after, size);
	assert_memory_equal(before, after, size);
}

static void make_store(uint32_t blocks)
{
	site_start(&site);
	assert_int_equal(tier_state(site.tier), TIER_UP);
	site_store_range(&site, 0, blocks);
	site_stop(&site, true);
}

/* --- made --- */

TEST(an_absent_file_is_made_and_reserved)
{
	struct stat st;

	make_store(5);
	assert_int_equal(stat(site.path[0], &st), 0);
	assert_int_equal(st.st_size, SITE_BYTES);
	assert_true((uint64_t)st.st_blocks * 512 >= SITE_BYTES);
	assert_int_equal(st.st_mode & 0777, 0600);
	site_start(&site);
	assert_int_equal(site_load_all(&site), 5);
}

TEST(an_empty_file_is_as_good_as_none)
{
	put("", 0);
	make_store(5);
	assert_int_equal(size_of_it(), SITE_BYTES);
}

TEST(a_blank_file_of_the_size_is_formatted)
{
	put_blank(SITE_BYTES);
	make_store(5);
}

TEST(a_link_to_a_store_is_followed)
{
	char target[320];

	make_store(5);
	(void)snprintf(target, sizeof(target), "%s-real", site.path[0]);
	assert_int_equal(rename(site.path[0], target), 0);
	assert_int_equal(symlink(target, site.path[0]), 0);
	site_start(&site);
	assert_int_equal(site_load_all(&site), 5);
}

TEST(what_cannot_be_reserved_leaves_nothing_behind)
{
	const struct rlimit small = { .rlim_cur = SITE_BYTES / 2, .rlim_max = RLIM_INFINITY };
	struct rlimit before;

	(void)signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	for (int empty = 0; empty < 2; empty++) {
		if (empty)
			put("", 0);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
		site_start(&site);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
		assert_true(assert_says("no room").for_good);
		site_stop(&site, false);
		assert_true(size_of_it() == (empty ? 0 : UINT64_MAX));
	}
}

TEST(a_size_is_needed_to_make_a_file)
{
	site.conf.bytes = 0;
	site_start(&site);
	assert_says("`bytes`");
	assert_true(size_of_it() == UINT64_MAX);
}

/* --- refused --- */

TEST(foreign_content_is_left_alone)
{
	static uint8_t junk[SITE_BYTES];

	memset(junk, 0x5a, sizeof(junk));
	put(junk, sizeof(junk));
	refused("no kvtier store");
	put("notes\n", 6);
	refused("too short");
}

/* A file system may leave its first pages blank. */
TEST(zeros_in_front_of_something_are_not_blank)
{
	static const uint64_t places[] = { 1024, 65536, SITE_BYTES / 2, SITE_BYTES - 512 };
	const uint8_t one = 1;

	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		put_blank(SITE_BYTES);
		site_poke(site.path[0], places[i], &one, 1);
		refused(i ? "not empty" : "no kvtier store");
	}
}

/* Where a file is not read in full: its start, its end, and here and there between. */
TEST(a_large_file_is_looked_at_where_others_keep_things)
{
	enum { LARGE = 64 << 20 };
	static const uint64_t places[] = { 1 << 20, LARGE / 2, LARGE - (512 << 10), LARGE - 512 };
	const uint8_t one = 1;

	site.conf.bytes = LARGE;
	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		put_blank(LARGE);
		site_poke(site.path[0], places[i], &one, 1);
		refused("not empty");
	}
}

TEST(a_blank_file_that_is_too_small_is_left_alone)
{
	put_blank(SITE_BYTES / 2);
	refused("that `bytes` asks for");
}

TEST(a_store_that_is_too_small_is_left_alone)
{
	make_store(3);
	site.conf.bytes = SITE_BYTES + 4 * KIT_SEGMENT;
	refused("configuration says");
}

TEST(a_truncated_store_is_left_alone)
{
	make_store(3);
	assert_int_equal(truncate(site.path[0], SITE_BYTES - 4096), 0);
	refused("truncated");
	assert_int_equal(truncate(site.path[0], 4096), 0);
	refused("too short");
}

static void edit_supers(void (*edit)(struct nvme_super *super), bool seal)
{
	for (uint32_t i = 0; i < NVME_SUPER_COPIES; i++) {
		struct nvme_super super;

		site_peek(site.path[0], nvme_super_offset(i), &super, sizeof(super));
		edit(&super);
		if (seal)
			super.crc = image_crc32c(&super, offsetof(struct nvme_super, crc));
		site_poke(site.path[0], nvme_super_offset(i), &super, sizeof(super));
	}
}

static void newer(struct nvme_super *super)
{
	super->format++;
}

static void damaged(struct nvme_super *super)
{
	super->life ^= 64;
}

TEST(an_unknown_format_is_left_alone)
{
	make_store(3);
	edit_supers(newer, true);
	refused("format that this version does not know");
}

TEST(two_damaged_superblocks_are_left_alone)
{
	make_store(3);
	edit_supers(damaged, false);
	refused("damaged");
}

/* Segments of another store are not believed: their uuid is not this store's. */
TEST(another_stores_segments_are_not_served)
{
	static uint8_t segments[SITE_BYTES - NVME_DATA_OFFSET];

	make_store(20);
	site_peek(site.path[0], NVME_DATA_OFFSET, segments, sizeof(segments));
	assert_int_equal(unlink(site.path[0]), 0);
	make_store(3);
	site_poke(site.path[0], NVME_DATA_OFFSET, segments, sizeof(segments));
	site_start(&site);
	assert_int_equal(tier_state(site.tier), TIER_UP);
	assert_int_equal(site.found, 0);
}

TEST(a_directory_or_a_fifo_is_refused)
{
	assert_int_equal(mkdir(site.path[0], 0700), 0);
	site_start(&site);
	assert_says("a directory");
	site_stop(&site, false);
	assert_int_equal(rmdir(site.path[0]), 0);
	assert_int_equal(mkfifo(site.path[0], 0600), 0);
	site_start(&site); /* does not hang */
	assert_says("a fifo");
}

TEST(a_missing_directory_is_refused)
{
	char path[320];

	(void)snprintf(path, sizeof(path), "%s/there/store", site.dir);
	site.conf.paths[0] = path;
	site_start(&site);
	assert_says("directory does not exist");
}

TEST(without_permission_it_is_refused)
{
	const uid_t me = geteuid();

	make_store(3);
	assert_int_equal(chmod(site.path[0], me ? 0400 : 0600), 0);
	if (!me)
		(void)setfsuid(65534);
	site_start(&site);
	if (!me)
		(void)setfsuid(0);
	assert_says("no permission");
}

TEST(a_file_in_use_is_refused)
{
	int fd;

	make_store(3);
	fd = open(site.path[0], O_RDONLY | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	refused("in use by another kvtierd");
	assert_int_equal(nvme_make_store(site.path[0], 0, KIT_SEGMENT, false, NULL, NULL, site.text,
					 sizeof(site.text)),
			 -EBUSY);
	(void)close(fd);
	site_start(&site);
	assert_int_equal(site_load_all(&site), 3);
}

/* --- kvtierctl format --- */

static uint64_t told;

static void progress(void *arg, uint64_t done, uint64_t total)
{
	assert_true(arg == &site && done > told && done <= total);
	told = done;
}

static int format(uint64_t bytes, bool prewrite)
{
	told = 0;
	return nvme_make_store(site.path[0], bytes, KIT_SEGMENT, prewrite, progress, &site,
			       site.text, sizeof(site.text));
}

TEST(format_makes_a_store_whatever_was_there)
{
	static uint8_t junk[SITE_BYTES];

	assert_int_equal(format(SITE_BYTES, true), 0);
	assert_int_equal(told, SITE_BYTES);
	make_store(5);
	assert_int_equal(format(0, false), 0);
	site_start(&site);
	assert_int_equal(site.found, 0);
	site_stop(&site, true);
	memset(junk, 0x5a, sizeof(junk));
	put(junk, sizeof(junk));
	assert_int_equal(format(SITE_BYTES, false), 0);
	make_store(5);
	put(junk, 100);
	assert_int_equal(format(SITE_BYTES, false), 0); /* grows */
	make_store(5);
}

TEST(format_says_why_not)
{
	assert_int_equal(format(KIT_SEGMENT, false), -EINVAL);
	assert_non_null(strstr(site.text, "cannot be a store"));
	assert_true(size_of_it() == UINT64_MAX);
	assert_int_equal(format(0, false), -EINVAL);
	assert_non_null(strstr(site.text, "`bytes`"));
	assert_true(size_of_it() == UINT64_MAX);
	assert_int_equal(mkdir(site.path[0], 0700), 0);
	assert_int_equal(format(SITE_BYTES, false), -ENOTBLK);
}

TEST_FIRST(io_rig_needed());
