/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=mincore */
/*
 * unit_guard.c - goal: guarded work that touches a hole of a memfd ends with -EFAULT and allocates
 * nothing, as often as it happens and on any thread; where there is no userfaultfd, guard_look()
 * finds the hole in whatever run of a page it is, in as many calls as it was given at a time.
 * Method: a memfd mapped and watched; then pages of several layouts with one page of memory missing
 * at a time, looked at with each number of calls, which are counted.
 */

#include "daemon/device/guard.h"
#include "tests/lib/test.h"
#include "tests/lib/wrap.h"

enum { BYTES = 1 << 20, MEMORY_PAGE = 4096 };

static uint8_t *map_new(int *ret_fd)
{
	uint8_t *map;

	*ret_fd = memfd_create("guard", MFD_CLOEXEC);
	assert_int_equal(ftruncate(*ret_fd, BYTES), 0);
	map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	return map;
}

static long blocks(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return (long)st.st_blocks;
}

static int read_byte(void *arg)
{
	return *(volatile uint8_t *)arg;
}

static int write_byte(void *arg)
{
	*(volatile uint8_t *)arg = 9;
	return 0;
}

static int guard, memfd;
static uint8_t *map;

static void *run_many(void *arg)
{
	uint8_t *hole = arg;

	for (int i = 0; i < 1000; i++)
		if (guard_run(i % 2 ? read_byte : write_byte, hole) != -EFAULT ||
		    guard_run(read_byte, map) != 7)
			return (void *)1;
	return NULL;
}

TEST(a_hole_is_not_filled)
{
	pthread_t threads[4];
	void *bad;

	assert_int_equal(guard_open(&guard), 0);
	if (guard < 0)
		skip();
	map = map_new(&memfd);
	map[0] = 7;
	assert_int_equal(fallocate(memfd, 0, MEMORY_PAGE, MEMORY_PAGE), 0);
	assert_int_equal(guard_region(guard, map, BYTES), 0);
	assert_int_equal(guard_run(read_byte, map), 7);
	/* its allocator pays for it */
	assert_int_equal(guard_run(read_byte, map + MEMORY_PAGE), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, run_many,
						map + (8 + i) * MEMORY_PAGE),
				 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &bad);
		assert_null(bad);
	}
	assert_int_equal(blocks(memfd), 2 * MEMORY_PAGE / 512);
	/* A hole made later, and a page that came since. */
	assert_int_equal(fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
				   MEMORY_PAGE),
			 0);
	assert_int_equal(guard_run(read_byte, map), -EFAULT);
	assert_int_equal(pwrite(memfd, "x", 1, 0), 1);
	assert_int_equal(guard_run(read_byte, map), 'x');
	(void)munmap(map, BYTES);
	(void)close(memfd);
	guard_close(guard);
}

static uint32_t calls, steps;

REAL(int, mincore, (void *address, size_t length, unsigned char *vec))
{
	calls++;
	return __real_mincore(address, length, vec);
}

/* All of the page, so many calls at a time. */
static int look(const struct page_layout *layout, uint32_t most)
{
	struct guard_look at = { 0 };
	int r;

	steps = 0;
	do {
		calls = 0;
		r = guard_look(&at, layout, 1, most);
		assert_in_range(calls, r == CODEC_MORE ? most : 0, most);
		steps++;
	} while (r == CODEC_MORE);
	return r;
}

/* Whatever the number of calls. */
static int check(const struct page_layout *layout)
{
	const int r = look(layout, 1000);
	const uint32_t all = calls;

	assert_int_equal(steps, 1);
	for (uint32_t most = 1; most <= all; most++) {
		assert_int_equal(look(layout, most), r);
		assert_int_equal(steps, (all + most - 1) / most);
	}
	return r;
}

/* Every byte of the page's runs lies in memory that is there: 0; one page of memory less:
 * -EFAULT. */
static void check_layout(const struct page_piece *pieces, uint32_t n, const uint64_t *touched,
			 uint32_t n_touched, const struct image_geometry *g, uint8_t *base, int fd)
{
	const struct page_layout layout = { .geometry = *g, .n_pieces = n, .pieces = pieces };

	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BYTES), 0);
	for (uint32_t i = 0; i < n_touched; i++)
		base[touched[i]] = 1;
	assert_int_equal(check(&layout), 0);
	for (uint32_t i = 0; i < n_touched; i++) {
		assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
					   (off_t)(touched[i] & ~4095ull), MEMORY_PAGE),
				 0);
		assert_int_equal(check(&layout), -EFAULT);
		base[touched[i]] = 1;
	}
	assert_int_equal(check(&layout), 0);
}

TEST(holes_are_found_in_any_layout)
{
	const struct image_geometry g = {
		.dtype = DTYPE_BF16,
		.layers = 1,
		.kv_heads = 2,
		.head_dim_k = 64,
		.block_tokens = 2,
	};
	uint8_t *base = map_new(&memfd);
	/* Token-major, end to end: 512 bytes a page; it crosses a page of memory. */
	const struct page_piece packed = {
		.base = base + 3328,
		.page_stride = 512,
		.head_stride = 128,
		.token_stride = 256,
		.kind = KIND_K,
	};
	/* Head-major, far apart: tokens of a head end to end. */
	const struct page_piece heads = {
		.base = base,
		.page_stride = 65536,
		.head_stride = 16384,
		.token_stride = 128,
		.kind = KIND_K,
	};
	/* Nothing lies beside anything. */
	const struct page_piece apart = {
		.base = base,
		.page_stride = 65536,
		.head_stride = 8192,
		.token_stride = 32768,
		.kind = KIND_K,
	};
	const struct page_piece opaque = {
		.base = base, .page_stride = 65536, .length = 9000, .kind = KIND_OPAQUE
	};
	/* Longer than a call looks at. */
	const struct page_piece longer = {
		.base = base, .page_stride = 65536, .length = 700 << 10, .kind = KIND_OPAQUE
	};
	const struct page_piece both[] = { heads, apart };
	uint64_t all[175];

	check_layout(&packed, 1, (const uint64_t[]){ 3840, 4096 }, 2, &g, base, memfd);
	check_layout(&heads, 1, (const uint64_t[]){ 65536, 65536 + 16384 }, 2, &g, base, memfd);
	check_layout(&apart, 1,
		     (const uint64_t[]){ 65536, 65536 + 8192, 65536 + 32768, 65536 + 40960 }, 4, &g,
		     base, memfd);
	check_layout(&opaque, 1, (const uint64_t[]){ 65536, 65536 + 4096, 65536 + 8192 }, 3, &g,
		     base, memfd);
	check_layout(both, 2,
		     (const uint64_t[]){ 65536, 65536 + 16384, 65536 + 8192, 65536 + 32768,
					 65536 + 40960 },
		     5, &g, base, memfd);
	for (uint32_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		all[i] = 65536 + i * MEMORY_PAGE;
	check_layout(&longer, 1, all, sizeof(all) / sizeof(*all), &g, base, memfd);
	(void)munmap(base, BYTES);
	(void)close(memfd);
}
