/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=eventfd,epoll_ctl,calloc,pthread_create,pthread_join */
/* make: wrap=io_uring_queue_init_params,io_uring_get_probe_ring,io_uring_submit */
/* make: wrap=io_uring_register_eventfd,io_uring_register_files */
/* make: wrap=io_uring_register_files_update,io_uring_register_buffers_sparse */
/* make: wrap=io_uring_register_buffers_update_tag */
/*
 * Goal: when parts of io_uring are refused while an io is opened or used, the answer is less speed,
 * or threads, and a note that says why. Where io_uring was forced, the answer is an error with a
 * text. Nothing is left behind. Method: the linker puts the functions below in front of liburing's
 * and the system's (-Wl,--wrap=NAME); each refusal is followed by transfers that must still work.
 * Descriptors and threads are counted.
 */
#include "tests/lib/lib_io.h"
#include "tests/lib/lib_refuse.h"

#include <liburing.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

/* --- the plan: the n-th call of one function fails, and some after it --- */

enum call {
	EVENTFD,
	EPOLL_CTL,
	PTHREAD_CREATE,
	CALLOC,
	QUEUE_INIT,
	GET_PROBE,
	SUBMIT,
	REGISTER_EVENTFD,
	REGISTER_FILES,
	REGISTER_BUFFERS_SPARSE,
	UPDATE_BUFFERS,
	UPDATE_FILES
};

REFUSABLE(EVENTFD, -1, int, eventfd, (unsigned int count, int flags), (count, flags))
REFUSABLE(EPOLL_CTL, -1, int, epoll_ctl, (int fd, int op, int watched, struct epoll_event *e),
	  (fd, op, watched, e))
REFUSABLE(CALLOC, NULL, void *, calloc, (size_t n, size_t size), (n, size))
REFUSABLE(QUEUE_INIT, -errno, int, io_uring_queue_init_params,
	  (unsigned entries, struct io_uring *ring, struct io_uring_params *params),
	  (entries, ring, params))
REFUSABLE(GET_PROBE, NULL, struct io_uring_probe *, io_uring_get_probe_ring,
	  (struct io_uring * ring), (ring))
REFUSABLE(SUBMIT, -errno, int, io_uring_submit, (struct io_uring * ring), (ring))
REFUSABLE(REGISTER_EVENTFD, -errno, int, io_uring_register_eventfd,
	  (struct io_uring * ring, int fd), (ring, fd))
REFUSABLE(REGISTER_FILES, -errno, int, io_uring_register_files,
	  (struct io_uring * ring, const int *fds, unsigned n), (ring, fds, n))
REFUSABLE(REGISTER_BUFFERS_SPARSE, -errno, int, io_uring_register_buffers_sparse,
	  (struct io_uring * ring, unsigned n), (ring, n))
REFUSABLE(UPDATE_BUFFERS, -errno, int, io_uring_register_buffers_update_tag,
	  (struct io_uring * ring, unsigned at, const struct iovec *pieces, const __u64 *tags,
	   unsigned n),
	  (ring, at, pieces, tags, n))
REFUSABLE(UPDATE_FILES, -errno, int, io_uring_register_files_update,
	  (struct io_uring * ring, unsigned at, const int *fds, unsigned n), (ring, at, fds, n))

/* A worker that ends may join the worker before it. */
static atomic_int threads;

REAL(int, pthread_create,
     (pthread_t * ret, const pthread_attr_t *attr, void *(*fn)(void *), void *arg))
{
	const int error = refused(PTHREAD_CREATE);
	const int r = error ? error : __real_pthread_create(ret, attr, fn, arg);

	threads += r == 0;
	return r;
}

REAL(int, pthread_join, (pthread_t thread, void **ret))
{
	threads--;
	return __real_pthread_join(thread, ret);
}

static struct io_rig rig;

FIXTURE_DO(nothing_refused, refuse_nothing());

TEST_EACH(nothing_refused, NULL);

enum { PAGES = 64, OP_PAGES = 8 };

/* Written bytes come back, and so do bytes that were there before. */
static void it_works(void)
{
	for (uint32_t i = 0; i < OP_PAGES; i++)
		io_rig_fill(rig.buffers + (size_t)i * PAGE, 500 + i, PAGE);
	assert_int_equal(io_rig_do(&rig, IO_WRITE, 8 * PAGE, OP_PAGES * PAGE, 0), 0);
	memset(rig.buffers, 0, OP_PAGES * PAGE);
	assert_int_equal(io_rig_do(&rig, IO_READ, 8 * PAGE, OP_PAGES * PAGE, 0), 0);
	assert_true(io_rig_pages_are(&rig, 0, 500, OP_PAGES));
	assert_int_equal(io_rig_do(&rig, IO_READ, 24 * PAGE, OP_PAGES * PAGE, 0), 0);
	assert_true(io_rig_pages_are(&rig, 0, 24, OP_PAGES));
}

/* --- refusals --- */

static const struct io_conf any = { .engine = IO_ENGINE_AUTO, .read_depth = 3, .write_depth = 2 };
static const struct io_conf forced = { .engine = IO_ENGINE_URING,
				       .read_depth = 3,
				       .write_depth = 2 };

/* AUTO takes threads and says why; URING fails and says why. */
static void refusing_means_threads(int call, int times, int error, const char *words)
{
	int fds;

	io_rig_prepare(&rig, PAGES);
	fds = descriptors_open();
	refuse(call, 1, times, error);
	assert_true(io_open(&forced, rig.loop, &rig.io, rig.text, sizeof(rig.text)) < 0);
	assert_non_null(strstr(rig.text, "no io_uring: "));
	assert_non_null(strstr(rig.text, words));
	assert_int_equal(descriptors_open(), fds);
	refuse(call, 1, times, error);
	assert_int_equal(io_open(&any, rig.loop, &rig.io, rig.text, sizeof(rig.text)), 0);
	assert_string_equal(io_engine_name(rig.io), "threads");
	assert_non_null(strstr(io_note(rig.io), "no io_uring: "));
	assert_non_null(strstr(io_note(rig.io), words));
	assert_int_equal(io_file_set(rig.io, rig.fd), 0);
	it_works();
	io_rig_tear_down(&rig);
}

TEST_DO(no_such_system_call, refusing_means_threads(QUEUE_INIT, 1, ENOSYS, "has none"));
TEST_DO(not_permitted, refusing_means_threads(QUEUE_INIT, 1, EPERM, "seccomp"));
TEST_DO(no_memory_for_the_ring, refusing_means_threads(QUEUE_INIT, 1, ENOMEM, "RLIMIT_MEMLOCK"));
TEST_DO(no_set_of_flags_will_do, refusing_means_threads(QUEUE_INIT, 3, EINVAL, strerror(EINVAL)));

/* Not where the machine itself refuses: then the first refusal is another. */
static void need_uring(void)
{
	io_rig_open(&rig, &forced, 0);
	io_rig_tear_down(&rig);
}

TEST(no_list_of_operations)
{
	need_uring();
	refusing_means_threads(GET_PROBE, 1, ENOSYS, "has none");
}

TEST_DO(set_up_but_not_used, need_uring(); refusing_means_threads(SUBMIT, 1, EPERM, "seccomp"));

TEST(no_wake_up)
{
	need_uring();
	refusing_means_threads(REGISTER_EVENTFD, 1, EBUSY, strerror(EBUSY));
}

TEST(an_older_kernel_has_io_uring_as_well)
{
	for (int n = 1; n <= 2; n++) {
		refuse(QUEUE_INIT, 1, n, EINVAL); /* the first n sets of flags */
		io_rig_open(&rig, &forced, PAGES);
		assert_string_equal(io_note(rig.io), "");
		it_works();
		io_rig_tear_down(&rig);
	}
}

TEST(without_registered_files_it_works)
{
	refuse(REGISTER_FILES, 1, 1, EMFILE);
	io_rig_open(&rig, &forced, PAGES);
	assert_non_null(strstr(io_note(rig.io), "no registered files"));
	it_works();
	assert_int_equal(io_rig_do(&rig, IO_FDATASYNC, 0, 0, 0), 0);
	io_rig_tear_down(&rig);
}

TEST(a_file_that_cannot_be_registered_is_none)
{
	struct io_rig_op read;

	io_rig_open(&rig, &forced, PAGES);
	read = io_rig_op(&rig, IO_READ, 0, PAGE, 0);
	refuse(UPDATE_FILES, 1, 1, ENOMEM);
	assert_int_equal(io_file_set(rig.io, rig.fd), -ENOMEM);
	assert_int_equal(io_submit(rig.io, &read.op), -EBADF);
	assert_int_equal(io_file_set(rig.io, rig.fd), 0);
	it_works();
	io_rig_tear_down(&rig);
}

TEST(without_registered_buffers_it_works)
{
	static const struct {
		int call;
		int at, error;
		const char *words;
	} cases[] = {
		{ REGISTER_BUFFERS_SPARSE, 1, EINVAL, "Linux 5.19" },
		{ UPDATE_BUFFERS, 1, ENOMEM, "RLIMIT_MEMLOCK" },
		{ UPDATE_BUFFERS, 2, EFAULT, "Bad address" }, /* the second area */
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		refuse(cases[i].call, cases[i].at, 1, cases[i].error);
		io_rig_open(&rig, &forced, PAGES);
		assert_int_equal(io_buffers_add(rig.io, rig.buffers, 4 * PAGE), 0);
		assert_int_equal(io_buffers_add(rig.io, rig.buffers + 4 * PAGE, 4 * PAGE), 0);
		assert_non_null(strstr(io_note(rig.io), cases[i].words));
		it_works(); /* across both areas */
		assert_int_equal(io_rig_do(&rig, IO_READ, PAGE, PAGE, 1), 0);
		assert_true(io_rig_pages_are(&rig, 1, 1, 1));
		assert_int_equal(io_rig_do(&rig, IO_READ, PAGE, PAGE, 5), 0);
		assert_true(io_rig_pages_are(&rig, 5, 1, 1));
		io_rig_tear_down(&rig);
	}
}

TEST(a_submission_that_fails_is_made_again)
{
	io_rig_open(&rig, &forced, PAGES);
	refuse(SUBMIT, 1, 5, EAGAIN);
	it_works();
	refuse(SUBMIT, 1, 5, EBUSY);
	it_works();
	io_rig_tear_down(&rig);
}

/* The threads engine's own needs: each use fails once. */
TEST(threads_that_cannot_be_had_are_an_error)
{
	static const struct {
		int call;
		int uses, error;
	} cases[] = {
		{ CALLOC, 1, ENOMEM },
		{ EVENTFD, 1, EMFILE },
		{ PTHREAD_CREATE, 5, EAGAIN },
		{ EPOLL_CTL, 1, ENOSPC },
	};
	struct io_conf conf = any;
	int fds;

	conf.engine = IO_ENGINE_THREADS;
	io_rig_prepare(&rig, 0);
	fds = descriptors_open();
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		for (int n = 1; n <= cases[i].uses; n++) {
			refuse(cases[i].call, n, 1, cases[i].error);
			rig.text[0] = '\0';
			assert_int_equal(io_open(&conf, rig.loop, &rig.io, rig.text,
						 sizeof(rig.text)),
					 -cases[i].error);
			assert_true(rig.text[0] != '\0');
			assert_true(refuse_came());
			assert_int_equal(descriptors_open(), fds);
			assert_int_equal(threads, 0);
		}
	}
	io_rig_tear_down(&rig);
}

TEST_FIRST(io_rig_needed());
