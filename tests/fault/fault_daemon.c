/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=memfd_create,ftruncate,fcntl,mmap,munmap,getrandom,write,fsync,link */
/* make: wrap=epoll_create1,epoll_ctl,eventfd,calloc,aligned_alloc,pthread_create */
/*
 * fault_daemon.c - goal: when the system refuses a call while a part of the daemon opens (loop,
 * rings, index, table of blocks, device, secrets of tenants, regions, layouts) or while a client
 * maps the index, the answer is an error, and no descriptor, mapping or memory is left behind. A
 * secret is whole or absent. Method: the linker puts the functions below in front of the system's
 * (-Wl,--wrap=NAME); call n fails, n = 0.. until an open needs fewer. Mappings and descriptors are
 * counted; memory is ASan's to watch.
 */
#include <dirent.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include "client/lib/base/map.h"
#include "daemon/device/device_cpu.h"
#include "daemon/quota/quota.h"
#include "daemon/session/mount.h"
#include "base/loop.h"
#include "daemon/session/ring.h"
#include "daemon/table/block.h"
#include "daemon/index/index.h"
#include "daemon/table/space.h"
#include "tests/lib/lib_refuse.h"
#include "tests/lib/lib_scratch.h"
#include "tests/lib/test.h"

enum { MOST_CALLS = 200, ENTRIES = 1000, ERROR = EMLINK /* no code here makes it up */ };

REFUSABLE(REFUSE_ANY, -1, int, memfd_create, (const char *name, unsigned flags), (name, flags))
REFUSABLE(REFUSE_ANY, -1, int, ftruncate, (int fd, off_t bytes), (fd, bytes))
REFUSABLE(REFUSE_ANY, -1, int, fcntl, (int fd, int command, long argument), (fd, command, argument))
REFUSABLE(REFUSE_ANY, -1, ssize_t, getrandom, (void *to, size_t n, unsigned flags), (to, n, flags))
REFUSABLE(REFUSE_ANY, -1, ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n))
REFUSABLE(REFUSE_ANY, -1, int, fsync, (int fd), (fd))
REFUSABLE(REFUSE_ANY, -1, int, link, (const char *from, const char *to), (from, to))
REFUSABLE(REFUSE_ANY, -1, int, epoll_create1, (int flags), (flags))
REFUSABLE(REFUSE_ANY, -1, int, epoll_ctl, (int epoll, int op, int fd, struct epoll_event *event),
	  (epoll, op, fd, event))
REFUSABLE(REFUSE_ANY, -1, int, eventfd, (unsigned value, int flags), (value, flags))
REFUSABLE(REFUSE_ANY, NULL, void *, calloc, (size_t n, size_t bytes), (n, bytes))
REFUSABLE(REFUSE_ANY, NULL, void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes))
REFUSABLE(REFUSE_ANY, ERROR, int, pthread_create,
	  (pthread_t * ret, const pthread_attr_t *attr, void *(*run)(void *), void *arg),
	  (ret, attr, run, arg))

/* What is open; NULL: it is not. */
static struct {
	struct loop *loop;
	struct ring ring;
	struct index *index;
	struct blocks *blocks;
	struct map *map;
	struct device *device;
	struct device_region region;
	struct page_layout layout;
	struct spaces *spaces;
	int memfd;
	char dir[64];
} w;

/* Runs attempt() with ever later failures until it succeeds, and close() after that. */
static void fail_each_call(int (*attempt)(void), void (*close_it)(void))
{
	int n;

	for (n = 0; n < MOST_CALLS; n++) {
		const int fds = descriptors_open(), maps = mappings_open;
		bool came;
		int r;

		refuse(REFUSE_ANY, n + 1, 1, ERROR);
		r = attempt();
		came = refuse_came();
		refuse_nothing();
		if (r == 0)
			close_it(); /* it needed fewer calls, or could do without this one */
		else
			assert_true(r < 0 && r >= -4095);
		if (descriptors_open() != fds || mappings_open != maps)
			fail_msg("call %d failed: %d descriptors and %d mappings are left behind",
				 n, descriptors_open() - fds, mappings_open - maps);
		if (r == 0 && !came)
			break;
	}
	assert_true(n >= 1 && n < MOST_CALLS);
}

/* open_NAME() and close_NAME(). A call that opens something sets its pointer if it succeeds, and
 * else leaves it alone. */
#define OPENS(name, call, close_it)                       \
	static int open_##name(void)                      \
	{                                                 \
		const int r = call;                       \
                                                          \
		assert_int_equal(r == 0, w.name != NULL); \
		return r;                                 \
	}                                                 \
	static void close_##name(void)                    \
	{                                                 \
		close_it(w.name);                         \
		w.name = NULL;                            \
	}                                                 \
	struct test_macros_end_with_a_semicolon

static const struct blocks_conf blocks_conf = { .max_blocks = ENTRIES };

OPENS(loop, loop_open(0, &w.loop), loop_close);
OPENS(index, index_open(ENTRIES, &w.index), index_close);
OPENS(blocks, blocks_open(&blocks_conf, w.index, &w.blocks), blocks_close);
OPENS(map, map_open(index_fd(w.index), index_bytes(w.index), &w.map), map_close);
OPENS(device, device_cpu_open(3, 8, 0, w.loop, &w.device), device_close);

/* --- the modules --- */

TEST_DO(event_loop, fail_each_call(open_loop, close_loop));
TEST_DO(index_open_fails_cleanly, fail_each_call(open_index, close_index));
TEST_DO(blocks_open_fails_cleanly, assert_int_equal(open_index(), 0);
	fail_each_call(open_blocks, close_blocks); close_index());
TEST_DO(map_open_fails_cleanly, assert_int_equal(open_index(), 0);
	fail_each_call(open_map, close_map); close_index());
TEST_DO(device_and_its_workers, assert_int_equal(open_loop(), 0);
	fail_each_call(open_device, close_device); close_loop());
TEST_DO(closing_nothing_is_fine, index_close(NULL); blocks_close(NULL); map_close(NULL));

static int open_ring(void)
{
	return ring_open(&w.ring, 8, 64);
}

static void close_ring(void)
{
	ring_close(&w.ring);
}

TEST_DO(rings, fail_each_call(open_ring, close_ring));

static int import_region(void)
{
	char text[200];

	return device_import(w.device,
			     &(struct region_desc){
				     .memory = WIRE_MEMFD, .fd = w.memfd, .length = 8192 },
			     &w.region, text, sizeof(text));
}

static void release_region(void)
{
	device_release(&w.region);
}

TEST(regions)
{
	assert_int_equal(open_loop(), 0);
	assert_int_equal(open_device(), 0);
	w.memfd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(w.memfd, 8192), 0);
	assert_int_equal(fcntl(w.memfd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	fail_each_call(import_region, release_region);
	(void)close(w.memfd);
	close_device();
	close_loop();
}

/* --- secrets --- */

static int make_secret(void)
{
	char text[256], command[128];
	static struct quota quota;
	int r;

	snprintf(command, sizeof(command), "rm -f %s/*", w.dir);
	assert_int_equal(system(command), 0);
	r = spaces_open(w.dir, 64, &quota, &w.spaces, text, sizeof(text));
	if (r)
		return r;
	r = spaces_tenant(w.spaces, "default", text, sizeof(text));
	if (r)
		spaces_close(w.spaces);
	return r;
}

/* After any failure: no temporary file, and the secret is whole or absent. */
static void check_directory(void)
{
	DIR *dir = opendir(w.dir);
	const struct dirent *e;

	assert_non_null(dir);
	while ((e = readdir(dir)))
		assert_true(e->d_name[0] == '.' || strcmp(e->d_name, "secret-default") == 0);
	(void)closedir(dir);
}

static void close_spaces(void)
{
	check_directory();
	spaces_close(w.spaces);
}

TEST(secret_is_whole_or_absent)
{
	scratch_make("/tmp", w.dir, sizeof(w.dir));
	fail_each_call(make_secret, close_spaces);
	for (int n = 0; n < 12; n++) {
		refuse(REFUSE_ANY, n + 1, 1, ERROR);
		if (make_secret() == 0)
			spaces_close(w.spaces);
		refuse_nothing();
		check_directory();
	}
	scratch_remove(w.dir);
}

/* --- layouts --- */

static int build_layout(void)
{
	static uint8_t memory[4096];
	static const struct image_geometry g = {
		.dtype = DTYPE_BF16, .layers = 1, .kv_heads = 1, .head_dim_k = 8, .block_tokens = 4
	};
	const struct wire_segment s = {
		.kind = KIND_K, .page_stride = 64, .head_stride = 16, .token_stride = 16
	};
	uint8_t *const base = memory;
	const uint64_t length = sizeof(memory);
	uint64_t pages;
	char text[200];

	return layout_build(&s, 1, &base, &length, 1, &g, &w.layout, &pages, text, sizeof(text));
}

static void free_layout(void)
{
	layout_free(&w.layout);
}

TEST_DO(layouts, fail_each_call(build_layout, free_layout));
