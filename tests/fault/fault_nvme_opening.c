/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=fallocate */
/*
 * Goal: a disk that does not answer does not hold up the opener of a store on it, and a store that
 * opens too late leaves nothing behind. Method: fallocate() that waits until it is told to go on,
 * in front of the system's (-Wl,--wrap).
 */

#include "tests/lib/lib_scratch.h"
#include "tests/lib/test.h"
#include "tests/lib/wrap.h"
#include "tiers/nvme/nvme_file.h"

enum { BYTES = 1 << 20, MS = 1000000 };

static _Bool held; /* shared with the thread that opens: atomic accesses only */

static void wait_while_held(void)
{
	while (__atomic_load_n(&held, __ATOMIC_SEQ_CST))
		(void)nanosleep(&(struct timespec){ .tv_nsec = MS }, NULL);
}

REAL(int, fallocate, (int fd, int mode, off_t offset, off_t length))
{
	wait_while_held();
	return __real_fallocate(fd, mode, offset, length);
}

static char dir[256], path[300];

FIXTURE_DO(setup, scratch_make(scratch_parent("/var/tmp"), dir, sizeof(dir));
	   (void)snprintf(path, sizeof(path), "%.250s/store", dir));

FIXTURE(teardown)
{
	(void)unlink(path);
	return rmdir(dir);
}

TEST_EACH(setup, teardown);

TEST(a_disk_that_answers_is_opened)
{
	struct nvme_file file;
	char text[256];

	assert_int_equal(nvme_opening_wait(path, BYTES, 5000000000u, &file, text, sizeof(text)), 0);
	assert_true(file.made && file.bytes == BYTES);
	nvme_file_close(&file);
}

TEST(an_error_comes_with_its_sentence)
{
	struct nvme_file file;
	char text[256];

	assert_int_equal(nvme_opening_wait(dir, BYTES, 5000000000u, &file, text, sizeof(text)),
			 -ENOTBLK);
	assert_non_null(strstr(text, "directory"));
}

TEST(a_disk_that_stalls_is_left_and_nothing_stays)
{
	struct nvme_file file;
	char text[256];

	__atomic_store_n(&held, true, __ATOMIC_SEQ_CST);
	assert_int_equal(nvme_opening_wait(path, BYTES, 100 * MS, &file, text, sizeof(text)),
			 -ETIMEDOUT);
	assert_non_null(strstr(text, "did not answer"));
	assert_int_equal(access(path, F_OK), 0); /* it is in the midst of making it */
	__atomic_store_n(&held, false, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 10000 && access(path, F_OK) == 0; i++)
		(void)nanosleep(&(struct timespec){ .tv_nsec = MS }, NULL);
	assert_int_equal(access(path, F_OK), -1);
}
