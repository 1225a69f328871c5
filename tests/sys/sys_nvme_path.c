/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=10 lane=wait no=thread (the daemon's threads run in others) */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_nvme_path.c - goal: with any trouble of a path of the NVMe tier, the daemon serves from
 * memory, says what is wrong and what to do, and changes no file that is not its own. Of several
 * paths a bad one costs its share only. Method: make each thing wrong before a start, between two
 * lives or while the daemon runs; compare the file before and after; `kvtierctl status`, format. On
 * both I/O engines.
 */
#include "tests/lib/lib_disk.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STORE_BYTES = 16 << 20, FOREIGN_BYTES = 1 << 20 };

#define HOST "[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n"
#define NVME "[nvme]\nbytes = 16M\nsegment_bytes = 256K\n"
static const char ours[] = HOST NVME;

/* A path that the configuration names: any fault of it is then an error. */
static void name_path(struct disk_world *w)
{
	char config[400];

	(void)snprintf(w->path, sizeof(w->path), "%s/named.store", w->d.disk);
	(void)snprintf(config, sizeof(config), "%spath = %s\n", ours, w->path);
	disk_configure(&w->d, w->engine, config);
}

/* It has started without the tier, says why, and serves from memory. */
static void lives_without(struct disk_world *w, const char *reason)
{
	disk_state_becomes(&w->d, "offline", 20000);
	assert_int_equal(disk_status_says(&w->d, reason, w->text, sizeof(w->text)), 2);
	assert_non_null(strstr(w->text, w->d.disk)); /* which path */
	disk_join(w);
	assert_int_equal(engine_lookup(&w->e, w->keys, DISK_BLOCKS), 0);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	assert_int_equal(chain_load(&w->e, w->keys, DISK_BLOCKS, DISK_BLOCKS), DISK_BLOCKS);
	disk_die(w, SIGTERM);
}

static void serves_without(struct disk_world *w, const char *reason)
{
	daemon_restart(&w->d);
	lives_without(w, reason);
}

static uint64_t file_hash(const char *path)
{
	const uint64_t bytes = disk_file_bytes(path);
	uint8_t *all = malloc(bytes + 1);
	uint64_t hash = bytes;

	assert_non_null(all);
	disk_read(path, 0, all, bytes);
	for (uint64_t i = 0; i < bytes; i++)
		hash = (hash ^ all[i]) * 0x100000001b3u;
	free(all);
	return hash;
}

static void make_foreign(const char *path, uint64_t bytes)
{
	uint8_t *all = malloc(bytes);
	const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	assert_true(fd >= 0 && all);
	for (uint64_t i = 0; i < bytes; i++)
		all[i] = (uint8_t)(i * 31 + 7);
	assert_int_equal(write(fd, all, bytes), bytes);
	(void)close(fd);
	free(all);
}

static int format(struct disk_world *w, const char *path, const char *more)
{
	char arguments[400];

	(void)snprintf(arguments, sizeof(arguments),
		       "format %s --bytes 16M --segment-bytes 256K %s", path, more);
	return daemon_ctl(&w->d, arguments, w->text, sizeof(w->text));
}

/* --- files at the path --- */

ON_BOTH_ENGINES(a_foreign_file_is_left_alone)
{
	struct disk_world *w = disk_place(state, ours);
	uint64_t hash;

	make_foreign(w->path, STORE_BYTES);
	hash = file_hash(w->path);
	serves_without(w, "nvme_quarantined");
	assert_true(file_hash(w->path) == hash);
	disk_end(w);
}

ON_BOTH_ENGINES(a_small_foreign_file_is_left_alone)
{
	struct disk_world *w = disk_place(state, ours);
	uint64_t hash;

	make_foreign(w->path, 100);
	hash = file_hash(w->path);
	serves_without(w, "nvme_quarantined");
	assert_true(file_hash(w->path) == hash);
	disk_end(w);
}

ON_BOTH_ENGINES(format_makes_a_store_of_it)
{
	struct disk_world *w = disk_place(state, ours);

	make_foreign(w->path, FOREIGN_BYTES);
	serves_without(w, "nvme_quarantined");
	assert_int_not_equal(format(w, w->path, "</dev/null"), 0); /* nobody was asked */
	assert_int_equal(disk_file_bytes(w->path), FOREIGN_BYTES);
	assert_int_equal(format(w, w->path, "--yes"), 0);
	disk_fill_and_die(w);
	disk_last_life(w);
}

ON_BOTH_ENGINES(format_refuses_what_is_in_use)
{
	struct disk_world *w = disk_place(state, ours);

	disk_live(w);
	disk_fill(w);
	assert_int_not_equal(format(w, w->path, "--yes"), 0);
	assert_non_null(strstr(w->text, "in use"));
	disk_die(w, SIGKILL);
	disk_last_life(w);
}

ON_BOTH_ENGINES(a_directory_is_refused)
{
	struct disk_world *w = disk_place(state, ours);

	name_path(w);
	assert_int_equal(mkdir(w->path, 0700), 0);
	serves_without(w, "directory");
	assert_int_equal(rmdir(w->path), 0); /* and it is still one, and empty */
	disk_end(w);
}

ON_BOTH_ENGINES(a_fifo_is_refused_at_once)
{
	struct disk_world *w = disk_place(state, ours);

	name_path(w);
	assert_int_equal(mkfifo(w->path, 0600), 0);
	serves_without(w, "fifo");
	disk_end(w);
}

ON_BOTH_ENGINES(a_file_without_permission_is_refused)
{
	struct disk_world *w = disk_place(state, ours);

	if (geteuid() == 0) {
		printf("skipped: root may read everything\n");
		disk_end(w);
		skip();
	}
	disk_fill_and_die(w);
	assert_int_equal(chmod(w->path, 0), 0);
	serves_without(w, "permission");
	assert_int_equal(chmod(w->path, 0600), 0);
	disk_last_life(w);
}

ON_BOTH_ENGINES(a_store_smaller_than_configured_is_refused)
{
	struct disk_world *w = disk_place(state, ours);
	uint64_t hash;

	disk_fill_and_die(w);
	hash = file_hash(w->path);
	disk_configure(&w->d, w->engine, HOST "[nvme]\nbytes = 32M\n");
	serves_without(w, "bytes");
	assert_true(file_hash(w->path) == hash);
	disk_configure(&w->d, w->engine, ours);
	disk_last_life(w);
}

ON_BOTH_ENGINES(a_truncated_store_is_refused)
{
	struct disk_world *w = disk_place(state, ours);
	uint64_t hash;

	disk_fill_and_die(w);
	assert_int_equal(truncate(w->path, STORE_BYTES / 2), 0);
	hash = file_hash(w->path);
	serves_without(w, "nvme_quarantined");
	assert_true(file_hash(w->path) == hash);
	disk_end(w);
}

ON_BOTH_ENGINES(an_empty_file_becomes_a_store)
{
	struct disk_world *w = disk_place(state, ours);
	const int fd = open(w->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	(void)close(fd);
	disk_fill_and_die(w);
	disk_last_life(w);
}

ON_BOTH_ENGINES(both_superblocks_damaged_are_refused)
{
	struct disk_world *w = disk_place(state, ours);
	uint64_t hash;
	uint8_t byte;

	disk_fill_and_die(w);
	for (uint64_t at = 100; at < 65536; at += 32768) {
		disk_read(w->path, at, &byte, 1);
		byte ^= 1;
		disk_write(w->path, at, &byte, 1);
	}
	hash = file_hash(w->path);
	serves_without(w, "nvme_quarantined");
	assert_true(file_hash(w->path) == hash);
	disk_end(w);
}

/* The test's stand-in for a full disk: files may not grow beyond a limit, and nobody is killed for
 * trying. */
static void files_at_most(rlim_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes == RLIM_INFINITY ? limit.rlim_max : bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	assert_true(signal(SIGXFSZ, bytes == RLIM_INFINITY ? SIG_DFL : SIG_IGN) != SIG_ERR);
}

ON_BOTH_ENGINES(a_store_there_is_no_room_for)
{
	struct disk_world *w = disk_place(state, ours);

	name_path(w);
	files_at_most(STORE_BYTES - 4096);
	daemon_restart(&w->d);
	files_at_most(RLIM_INFINITY);
	lives_without(w, "no room");
	assert_int_equal(access(w->path, F_OK), -1); /* nothing stays behind */
	disk_end(w);
}

/* Nobody asked for it there: that is worth a warning, no more. */
ON_BOTH_ENGINES(a_default_store_that_cannot_be_made)
{
	struct disk_world *w = disk_place(state, ours);

	assert_int_equal(mkdir(w->path, 0700), 0);
	daemon_restart(&w->d);
	assert_int_equal(disk_status_says(&w->d, "nvme_unavailable", w->text, sizeof(w->text)), 1);
	daemon_signal(&w->d, SIGTERM);
	disk_end(w);
}

/* --- while it runs --- */

ON_BOTH_ENGINES(a_file_deleted_under_a_running_daemon)
{
	struct disk_world *w = disk_place(state, ours);

	disk_live(w);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS / 2), 0);
	disk_flush(&w->d);
	assert_int_equal(unlink(w->path), 0);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	assert_int_equal(daemon_ctl(&w->d, "evict --all", w->text, sizeof(w->text)), 0);
	/* it has the file still */
	assert_true(chain_load(&w->e, w->keys, 0, DISK_BLOCKS) >= DISK_BLOCKS / 2);
	disk_die(w, SIGKILL);
	/* another, empty one */
	disk_live(w);
	assert_int_equal(engine_lookup(&w->e, w->keys, DISK_BLOCKS), 0);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	disk_die(w, SIGTERM);
	disk_end(w);
}

ON_BOTH_ENGINES(a_path_in_use_is_refused_to_another_daemon)
{
	struct disk_world *w = disk_place(state, ours);
	struct daemon first = w->d;
	char config[512];

	disk_restart(&first);
	daemon_place(&w->d, true);
	(void)snprintf(config, sizeof(config), "%spath = %s\n", ours, w->path);
	disk_configure(&w->d, w->engine, config);
	daemon_restart(&w->d);
	assert_int_equal(disk_status_says(&w->d, "in use", w->text, sizeof(w->text)), 2);
	disk_state_becomes(&first, "up", 0);
	daemon_remove(&first);
	disk_end(w);
}

/* --- several paths --- */

static void two_paths(struct disk_world *w)
{
	char config[900];

	(void)snprintf(config, sizeof(config), "%spath = %s/a:%s/b\n", ours, w->d.disk, w->d.disk);
	disk_configure(&w->d, w->engine, config);
	(void)snprintf(w->path, sizeof(w->path), "%s/b", w->d.disk);
}

ON_BOTH_ENGINES(a_path_that_is_gone_costs_its_share_only)
{
	struct disk_world *w = disk_place(state, ours);
	uint32_t n;

	two_paths(w);
	disk_fill_and_die(w);
	assert_int_equal(unlink(w->path), 0);
	disk_live(w); /* made anew */
	n = disk_load_each(w);
	assert_true(n > DISK_BLOCKS / 8 && n < DISK_BLOCKS - DISK_BLOCKS / 8);
	disk_fill(w);
	disk_die(w, SIGKILL);
	disk_last_life(w);
}

ON_BOTH_ENGINES(a_path_that_is_foreign_costs_its_share_only)
{
	struct disk_world *w = disk_place(state, ours);
	uint64_t hash;
	uint32_t n;

	two_paths(w);
	disk_fill_and_die(w);
	assert_int_equal(unlink(w->path), 0);
	make_foreign(w->path, STORE_BYTES);
	hash = file_hash(w->path);
	daemon_restart(&w->d);
	disk_state_becomes(&w->d, "degraded", 20000);
	assert_int_equal(disk_status_says(&w->d, w->path, w->text, sizeof(w->text)), 2);
	disk_join(w);
	n = disk_load_each(w);
	assert_true(n > DISK_BLOCKS / 8 && n < DISK_BLOCKS - DISK_BLOCKS / 8);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	disk_flush(&w->d); /* all of it, to the other path */
	disk_die(w, SIGKILL);
	daemon_restart(&w->d);
	disk_state_becomes(&w->d, "degraded", 20000);
	disk_join(w);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	disk_die(w, SIGTERM);
	assert_true(file_hash(w->path) == hash);
	disk_end(w);
}
