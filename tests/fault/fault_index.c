/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=memfd_create,ftruncate,fcntl,getrandom,calloc,mmap,munmap */
/*
 * fault_index - opening index, blocks and map when the n-th call to the system fails: an error
 * comes back, the output is untouched and nothing is left behind. Method: the linker puts the
 * functions below in front of the system's (-Wl,--wrap=NAME); call n fails, n = 0.. until an open
 * needs fewer. Mappings and descriptors are counted; memory is ASan's to watch.
 */
#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/types.h>

#include "client/lib/map.h"
#include "daemon/store/block.h"
#include "daemon/store/index.h"
#include "tests/lib/lib_refuse.h"
#include "tests/lib/test.h"

enum { ENTRIES = 1000, ERROR = EMLINK /* no code here makes it up */ };

REFUSABLE(REFUSE_ANY, -1, int, memfd_create, (const char *name, unsigned int flags), (name, flags))
REFUSABLE(REFUSE_ANY, -1, int, ftruncate, (int fd, off_t bytes), (fd, bytes))
REFUSABLE(REFUSE_ANY, -1, int, fcntl, (int fd, int command, long argument), (fd, command, argument))
REFUSABLE(REFUSE_ANY, -1, ssize_t, getrandom, (void *to, size_t n, unsigned int flags),
	  (to, n, flags))
REFUSABLE(REFUSE_ANY, NULL, void *, calloc, (size_t n, size_t bytes), (n, bytes))

static int try_index(struct index *unused, void **ret)
{
	(void)unused;
	return index_open(ENTRIES, (struct index **)ret);
}

static int try_blocks(struct index *index, void **ret)
{
	const struct blocks_conf conf = { .max_blocks = ENTRIES, .classes = 4 };

	return blocks_open(&conf, index, (struct blocks **)ret);
}

static int try_map(struct index *index, void **ret)
{
	return map_open(index_fd(index), index_bytes(index), (struct map **)ret);
}

/* Returns the opened object, once n calls were enough. */
static void *fail_each_call(int (*try)(struct index *, void **), struct index *index)
{
	const int mapped = mappings_open, open = descriptors_open();

	for (int n = 0; n < 100; n++) {
		void *ret = NULL;

		refuse(REFUSE_ANY, n + 1, 1, ERROR);
		const int r = try(index, &ret);
		const bool reached = refuse_came();
		refuse_nothing();
		if (!reached) {
			assert_int_equal(r, 0);
			assert_true(n >= 2);
			return ret;
		}
		assert_true(r < 0);
		assert_null(ret);
		assert_int_equal(mappings_open, mapped);
		assert_int_equal(descriptors_open(), open);
	}
	fail_msg("100 calls are not enough");
	return NULL;
}

TEST(index_open_fails_cleanly)
{
	struct index *index = fail_each_call(try_index, NULL);

	index_close(index);
	assert_int_equal(mappings_open, 0);
}

TEST(blocks_open_fails_cleanly)
{
	struct index *index;

	assert_int_equal(index_open(ENTRIES, &index), 0);
	blocks_close(fail_each_call(try_blocks, index));
	index_close(index);
	assert_int_equal(mappings_open, 0);
}

TEST(map_open_fails_cleanly)
{
	struct index *index;

	assert_int_equal(index_open(ENTRIES, &index), 0);
	map_close(fail_each_call(try_map, index));
	index_close(index);
	assert_int_equal(mappings_open, 0);
}

TEST(closing_nothing_is_fine)
{
	index_close(NULL);
	blocks_close(NULL);
	map_close(NULL);
}
