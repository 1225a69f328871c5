/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=memfd_create,ftruncate,fcntl,mmap,munmap,getrandom,write,fsync,link */
/* make: wrap=epoll_create1,epoll_ctl,eventfd,calloc,aligned_alloc,pthread_create */
/*
 * fault_daemon.c - goal: when the system refuses anything while the daemon's parts open (loop,
 * rings, device, tenants' secrets, regions, layouts), the answer is an error and nothing is left
 * behind. A secret is whole or absent. Method: the linker puts the functions below in front of the
 * system's (-Wl,--wrap=NAME); call n fails, n = 0.. until an open needs fewer. Mappings and
 * descriptors are counted; memory is ASan's to watch.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "daemon/device/device.h"
#include "daemon/shared/layout.h"
#include "daemon/base/loop.h"
#include "daemon/shared/ring.h"
#include "daemon/store/space.h"
#include "tests/lib/lib_refuse.h"
#include "tests/lib/lib_scratch.h"
#include "tests/lib/test.h"

enum { MOST_CALLS = 200, ERROR = EMLINK /* no code here makes it up */ };

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

/* Runs attempt() with ever later failures until it succeeds, and close() after that. */
static void fail_each_call(void *arg, int (*attempt)(void *arg), void (*close_it)(void *arg))
{
	int n;

	for (n = 0; n < MOST_CALLS; n++) {
		const int fds = descriptors_open(), maps = mappings_open;
		int r;

		refuse(REFUSE_ANY, n + 1, 1, ERROR);
		r = attempt(arg);
		if (r == 0 && !refuse_came()) { /* it needed fewer calls */
			refuse_nothing();
			close_it(arg);
			assert_int_equal(descriptors_open(), fds);
			assert_int_equal(mappings_open, maps);
			break;
		}
		refuse_nothing();
		if (r == 0)
			close_it(arg); /* a failure that it could do without */
		else
			assert_true(r < 0 && r >= -4095);
		if (descriptors_open() != fds || mappings_open != maps)
			fail_msg("call %d failed: %d descriptors and %d mappings are left behind",
				 n, descriptors_open() - fds, mappings_open - maps);
	}
	assert_true(n > 0 && n < MOST_CALLS);
}

/* --- the parts --- */

static int attempt_loop(void *arg)
{
	return loop_open(0, arg);
}

static void close_loop(void *arg)
{
	loop_close(*(struct loop **)arg);
}

TEST(event_loop)
{
	struct loop *loop = NULL;

	fail_each_call(&loop, attempt_loop, close_loop);
}

static int attempt_ring(void *arg)
{
	return ring_open(arg, 8, 64);
}

static void close_ring(void *arg)
{
	ring_close(arg);
}

TEST(rings)
{
	struct ring ring;

	fail_each_call(&ring, attempt_ring, close_ring);
}

struct device_world {
	struct loop *loop;
	struct device *device;
	struct device_region region;
	int memfd;
};

static int attempt_device(void *arg)
{
	struct device_world *w = arg;

	return device_open("cpu", &(struct device_conf){ .workers = 3, .depth = 8 }, w->loop,
			   &w->device);
}

static void close_device(void *arg)
{
	device_close(((struct device_world *)arg)->device);
}

TEST(device_and_its_workers)
{
	struct device_world w = { 0 };

	assert_int_equal(loop_open(0, &w.loop), 0);
	fail_each_call(&w, attempt_device, close_device);
	loop_close(w.loop);
}

static int attempt_region(void *arg)
{
	struct device_world *w = arg;
	char text[200];

	return device_import(w->device,
			     &(struct region_desc){
				     .memory = WIRE_MEMFD, .fd = w->memfd, .length = 8192 },
			     &w->region, text, sizeof(text));
}

static void close_region(void *arg)
{
	struct device_world *w = arg;

	device_release(&w->region);
}

TEST(regions)
{
	struct device_world w = { 0 };

	assert_int_equal(loop_open(0, &w.loop), 0);
	assert_int_equal(attempt_device(&w), 0);
	w.memfd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(w.memfd, 8192), 0);
	assert_int_equal(fcntl(w.memfd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	fail_each_call(&w, attempt_region, close_region);
	(void)close(w.memfd);
	device_close(w.device);
	loop_close(w.loop);
}

/* --- secrets --- */

struct space_world {
	char dir[64];
	struct spaces *spaces;
};

static int attempt_secret(void *arg)
{
	struct space_world *w = arg;
	char text[256], command[128];
	int r;

	snprintf(command, sizeof(command), "rm -f %s/*", w->dir);
	assert_int_equal(system(command), 0);
	r = spaces_open(w->dir, 64, &w->spaces, text, sizeof(text));
	if (r)
		return r;
	r = spaces_tenant(w->spaces, "default", text, sizeof(text));
	if (r)
		spaces_close(w->spaces);
	return r;
}

/* After any failure: no temporary file, and the secret is whole or absent. */
static void check_directory(const struct space_world *w)
{
	DIR *dir = opendir(w->dir);
	const struct dirent *e;

	assert_non_null(dir);
	while ((e = readdir(dir)))
		assert_true(e->d_name[0] == '.' || strcmp(e->d_name, "secret-default") == 0);
	(void)closedir(dir);
}

static void close_secret(void *arg)
{
	struct space_world *w = arg;

	check_directory(w);
	spaces_close(w->spaces);
}

TEST(secret_is_whole_or_absent)
{
	struct space_world w = { 0 };

	scratch_make("/tmp", w.dir, sizeof(w.dir));
	fail_each_call(&w, attempt_secret, close_secret);
	for (int n = 0; n < 12; n++) {
		refuse(REFUSE_ANY, n + 1, 1, ERROR);
		if (attempt_secret(&w) == 0)
			spaces_close(w.spaces);
		refuse_nothing();
		check_directory(&w);
	}
	scratch_remove(w.dir);
}

/* --- layouts --- */

static int attempt_layout(void *arg)
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

	return layout_build(&s, 1, &base, &length, 1, &g, arg, &pages, text, sizeof(text));
}

static void close_layout(void *arg)
{
	layout_free(arg);
}

TEST(layouts)
{
	struct page_layout layout;

	fail_each_call(&layout, attempt_layout, close_layout);
}
