/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=20 lane=wait */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_nvme_block.c - goal: a block device is as good a store as a file. Flushed blocks outlive kill
 * -9, others' bytes on the device are left alone, and it has one user at a time. A device that was
 * pulled serves again when it is back, without a restart. Method: a loop device over a file, named
 * by a link as those in /dev/disk/by-id. It is pulled as the kernel does it to an NVMe drive: its
 * size becomes 0 while the daemon has it open, and it is detached when its last user lets go. On
 * both I/O engines. Skipped where loop devices cannot be had.
 *
 * The kernel detaches each of these devices when no process has it open any more. The test has it
 * open, so at any end of the test nothing stays behind.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_disk.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { STORE_BYTES = 16 << 20, ATTACH_TRIES = 100 };
/* A disk that went is looked for again after that at most; the look may come too early. */
enum { PROBE_MS = 38000, PROBES = 1000 };

static const char ours[] = "[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n"
			   "[nvme]\nbytes = 16M\nsegment_bytes = 256K\n";

static int held = -1; /* the device */

/* --- loop devices --- */

static int set_status(int fd, uint64_t offset)
{
	const struct loop_info64 info = { .lo_offset = offset, .lo_flags = LO_FLAGS_AUTOCLEAR };

	return ioctl(fd, LOOP_SET_STATUS64, &info);
}

/* The next free one becomes this file; -1: it cannot be had. */
static int try_attach(const char *file, char *ret_device, size_t n)
{
	const int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	const int number = control < 0 ? -1 : ioctl(control, LOOP_CTL_GET_FREE);
	const int backing = open(file, O_RDWR | O_CLOEXEC);
	int fd;

	(void)snprintf(ret_device, n, "/dev/loop%d", number);
	fd = number < 0 ? -1 : open(ret_device, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && (ioctl(fd, LOOP_SET_FD, backing) || set_status(fd, 0))) {
		(void)close(fd);
		fd = -1;
	}
	(void)close(control);
	(void)close(backing);
	return fd;
}

/* Another program may take the free loop device first: then the next. */
static bool try_often(const char *file, char *ret_device, size_t n)
{
	assert_int_equal(held, -1);
	for (int tries = 0; held < 0 && tries < ATTACH_TRIES; tries++) {
		held = try_attach(file, ret_device, n);
		if (held < 0)
			nap_ms(10);
	}
	return held >= 0;
}

/* At w->path. */
static void attach(struct disk_world *w, const char *file)
{
	char device[32];

	if (!try_often(file, device, sizeof(device)))
		fail_msg("%s: %s", device, strerror(errno));
	assert_int_equal(symlink(device, w->path), 0);
}

static void let_go(void)
{
	if (held >= 0)
		(void)close(held);
	held = -1;
}

/* Nothing is there any more for programs that have it open; it is detached when they close it. */
static void pull(struct disk_world *w)
{
	assert_int_equal(set_status(held, STORE_BYTES), 0);
	assert_int_equal(unlink(w->path), 0);
	let_go();
}

static bool can_have_one(void)
{
	char file[300], device[32];
	bool can;
	int fd;

	if (!disk_dir())
		return false;
	(void)snprintf(file, sizeof(file), "%s/loop-XXXXXX", disk_dir());
	fd = mkstemp(file);
	if (fd < 0 || ftruncate(fd, STORE_BYTES))
		return false;
	can = try_often(file, device, sizeof(device));
	(void)unlink(file);
	(void)close(fd);
	let_go();
	return can;
}

FIXTURE(teardown)
{
	let_go();
	return 0;
}

/* --- files behind them --- */

static const char *file_of(const struct disk_world *w, const char *name)
{
	static char path[300];

	(void)snprintf(path, sizeof(path), "%s/%s", w->d.disk, name);
	return path;
}

static void make_file(const char *path)
{
	const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, STORE_BYTES), 0);
	(void)close(fd);
}

static uint64_t hash_of(const char *path)
{
	static uint8_t all[STORE_BYTES];
	uint64_t hash = 0;

	disk_read(path, 0, all, sizeof(all));
	for (size_t i = 0; i < sizeof(all); i++)
		hash = (hash ^ all[i]) * 0x100000001b3u;
	return hash;
}

static void fill_with_a_pattern(const char *path)
{
	static uint8_t all[STORE_BYTES];

	for (size_t i = 0; i < sizeof(all); i++)
		all[i] = (uint8_t)(i * 31 + 7);
	disk_write(path, 0, all, sizeof(all));
}

static int format(struct disk_world *w, const char *path, const char *more)
{
	char arguments[400];

	(void)snprintf(arguments, sizeof(arguments), "format %s --segment-bytes 256K %s", path,
		       more);
	return daemon_ctl(&w->d, arguments, w->text, sizeof(w->text));
}

/* A device of zeros at w->path, which the configuration names. */
static struct disk_world *place(void **state)
{
	struct disk_world *w = disk_place(state, ours);
	char config[600];

	(void)snprintf(w->path, sizeof(w->path), "%s/by-id", w->d.disk);
	(void)snprintf(config, sizeof(config), "%spath = %s\n", ours, w->path);
	disk_configure(&w->d, w->engine, config);
	make_file(file_of(w, "device"));
	attach(w, file_of(w, "device"));
	return w;
}

static struct disk_world *place_formatted(void **state)
{
	struct disk_world *w = place(state);

	/* only zeros are lost: nobody need be asked */
	if (format(w, w->path, "</dev/null") != 0)
		fail_msg("kvtierctl format: %s", w->text);
	return w;
}

static void end(struct disk_world *w)
{
	disk_die(w, SIGTERM);
	disk_end(w);
}

/* --- one life after another --- */

#define CASE(name)                                                                 \
	TEST_ROWS(name, { #name " [io_uring]", name, NULL, teardown, disk_uring }, \
		  { #name " [threads]", name, NULL, teardown, disk_threads })

CASE(what_was_flushed_outlives_a_kill)
{
	struct disk_world *w = place_formatted(state);

	disk_fill_and_die(w);
	disk_live(w); /* at once: the kernel may not have let go of it yet */
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	end(w);
}

/* --- others' bytes --- */

static void is_left_alone(struct disk_world *w, const char *word)
{
	const uint64_t hash = hash_of(file_of(w, "device"));

	daemon_restart(&w->d);
	disk_state_becomes(&w->d, "offline", 20000);
	assert_int_equal(disk_status_says(&w->d, word, w->text, sizeof(w->text)), 2);
	disk_join(w);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	disk_die(w, SIGTERM);
	assert_true(hash_of(file_of(w, "device")) == hash);
}

CASE(something_else_is_left_alone)
{
	struct disk_world *w = place(state);

	fill_with_a_pattern(file_of(w, "device"));
	is_left_alone(w, "nvme_quarantined");
	disk_end(w);
}

CASE(a_file_system_is_left_alone)
{
	struct disk_world *w = place(state);
	char command[400];
	uint64_t hash;

	(void)snprintf(command, sizeof(command), "PATH=$PATH:/sbin:/usr/sbin mkfs.ext4 -q -F %s",
		       file_of(w, "device"));
	if (shell(command, w->text, sizeof(w->text)) != 0) {
		const uint8_t magic[2] = { 0x53, 0xef };

		disk_write(file_of(w, "device"), 1080, magic, sizeof(magic));
	}
	is_left_alone(w, "nvme_quarantined");
	hash = hash_of(file_of(w, "device"));
	assert_int_not_equal(format(w, w->path, "</dev/null"), 0); /* nobody was asked */
	assert_true(hash_of(file_of(w, "device")) == hash);
	assert_int_equal(format(w, w->path, "--yes"), 0);
	disk_fill_and_die(w);
	disk_end(w);
}

/* A device of zeros may be anybody's: the operator formats it. */
CASE(a_blank_disk_is_left_alone)
{
	struct disk_world *w = place(state);

	is_left_alone(w, "format");
	disk_end(w);
}

/* --- one user at a time --- */

CASE(a_second_daemon_is_refused)
{
	struct disk_world *w = place_formatted(state);
	struct daemon first;

	disk_live(w);
	disk_fill(w);
	assert_int_not_equal(format(w, w->path, "--yes"), 0);
	assert_non_null(strstr(w->text, "in use"));
	engine_close(&w->e);
	first = w->d;
	{
		char config[600];

		daemon_place(&w->d, true);
		(void)snprintf(config, sizeof(config), "%spath = %s\n", ours, w->path);
		disk_configure(&w->d, w->engine, config);
		daemon_restart(&w->d);
		disk_state_becomes(&w->d, "offline", 20000);
		assert_int_equal(disk_status_says(&w->d, "in use", w->text, sizeof(w->text)), 2);
		daemon_remove(&w->d);
	}
	w->d = first;
	disk_join(w);
	assert_int_equal(daemon_ctl(&w->d, "evict --all", w->text, sizeof(w->text)), 0);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	end(w);
}

/* As one that is mounted, or in a RAID. */
CASE(a_disk_that_others_use_is_refused)
{
	struct disk_world *w = place_formatted(state);
	const int user = open(w->path, O_RDWR | O_EXCL | O_CLOEXEC);

	assert_true(user >= 0);
	is_left_alone(w, "in use");
	(void)close(user);
	disk_fill_and_die(w);
	disk_end(w);
}

/* --- pulled --- */

/* Blocks that only this device has are asked for, and are misses: the daemon notices. */
static void is_missed(struct disk_world *w)
{
	assert_int_equal(daemon_ctl(&w->d, "evict --all", w->text, sizeof(w->text)), 0);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	disk_state_becomes(&w->d, "offline", 20000);
	(void)disk_status_says(&w->d, "nothing at its path", w->text, sizeof(w->text));
}

/* It is looked for until it was found, or something that is not it. */
static void found(struct disk_world *w, const char *path, const char *word)
{
	for (int i = 0; i < PROBES; i++) {
		clock_pass_ms(PROBE_MS);
		daemon_word(&w->d, path, w->text, sizeof(w->text));
		if (strstr(w->text, word))
			return;
		nap_ms(5);
	}
	fail_msg("%s does not say \"%s\": %s", path, word, w->text);
}

CASE(one_that_was_pulled_serves_again)
{
	struct disk_world *w = place_formatted(state);

	disk_live(w);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS / 2), 0);
	disk_flush(&w->d);
	pull(w);
	is_missed(w);
	attach(w, file_of(w, "device"));
	found(w, "tiers.nvme.state", "up");
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS / 2), DISK_BLOCKS / 2);
	/* the log goes on, and can be read again */
	disk_fill(w);
	disk_die(w, SIGKILL);
	disk_live(w);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	end(w);
}

/* A write to a device of no bytes fails with "no space": not a matter of room. */
CASE(a_write_notices_that_it_was_pulled)
{
	struct disk_world *w = place_formatted(state);

	disk_live(w);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS / 2), 0);
	disk_flush(&w->d);
	pull(w);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	disk_state_becomes(&w->d, "offline", 20000);
	attach(w, file_of(w, "device"));
	found(w, "tiers.nvme.state", "up");
	disk_die(w, SIGTERM);
	disk_live(w);
	assert_true(chain_load(&w->e, w->keys, 0, DISK_BLOCKS) >= DISK_BLOCKS / 2);
	end(w);
}

CASE(another_disk_in_its_place_is_left_alone)
{
	struct disk_world *w = place_formatted(state);
	uint64_t hash;

	make_file(file_of(w, "other"));
	assert_int_equal(format(w, file_of(w, "other"), "--yes"), 0);
	hash = hash_of(file_of(w, "other"));
	disk_live(w);
	disk_fill(w);
	pull(w);
	is_missed(w);
	attach(w, file_of(w, "other"));
	found(w, "tiers.nvme.text", "not its store");
	(void)disk_status_says(&w->d, "not its store", w->text, sizeof(w->text));
	assert_int_equal(unlink(w->path), 0);
	let_go();
	assert_true(hash_of(file_of(w, "other")) == hash);
	attach(w, file_of(w, "device"));
	found(w, "tiers.nvme.state", "up");
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	end(w);
}

TEST_BEGIN
{
	if (!can_have_one()) {
		printf("no loop device can be had here: that takes root and /dev/loop-control\n");
		exit(77);
	}
}
