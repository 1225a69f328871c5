/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=calloc,malloc,free,mmap,munmap,memfd_create,ftruncate,fcntl,fstat,eventfd */
/* make: wrap=epoll_create1,epoll_ctl,socket,connect,sendmsg,recvmsg */
/*
 * Goal: when the system refuses anything to libkvtier, the call says -errno and a sentence, leaves
 * nothing behind, and the client is good for the next try. A client that is refused while it
 * reconnects comes back all the same. Method: the linker puts the functions below in front of the
 * system's (-Wl,--wrap=NAME); the n-th call fails, n = 1.. until everything succeeds. The daemon is
 * a real one, so these are the client's calls alone. Descriptors, heap blocks and mappings are
 * counted.
 */
#include "tests/lib/lib.h"
#include "tests/lib/lib_refuse.h"

#include <dirent.h>
#include <sys/epoll.h>

enum { PAGES = 8, BLOCKS = 4, USES_MAX = 60, PATIENCE_MS = 20000 };

enum call {
	CALLOC,
	MALLOC,
	MEMFD_CREATE,
	FTRUNCATE,
	FCNTL,
	FSTAT,
	EVENTFD,
	EPOLL_CREATE,
	EPOLL_CTL,
	SOCKET,
	CONNECT,
	SENDMSG,
	RECVMSG,
	MMAP = REFUSE_MMAP
};

static long heap_blocks; /* that are held */

REFUSABLE(MEMFD_CREATE, -1, int, memfd_create, (const char *name, unsigned int flags),
	  (name, flags))
REFUSABLE(FTRUNCATE, -1, int, ftruncate, (int fd, off_t length), (fd, length))
REFUSABLE(FCNTL, -1, int, fcntl, (int fd, int cmd, long arg), (fd, cmd, arg))
REFUSABLE(FSTAT, -1, int, fstat, (int fd, void *st), (fd, st))
REFUSABLE(EVENTFD, -1, int, eventfd, (unsigned int count, int flags), (count, flags))
REFUSABLE(EPOLL_CREATE, -1, int, epoll_create1, (int flags), (flags))
REFUSABLE(EPOLL_CTL, -1, int, epoll_ctl, (int epoll, int op, int fd, struct epoll_event *event),
	  (epoll, op, fd, event))
REFUSABLE(SOCKET, -1, int, socket, (int domain, int type, int protocol), (domain, type, protocol))
REFUSABLE(CONNECT, -1, int, connect, (int fd, const struct sockaddr *to, socklen_t n), (fd, to, n))
REFUSABLE(SENDMSG, -1, ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags),
	  (fd, m, flags))
REFUSABLE(RECVMSG, -1, ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))

REAL(void *, calloc, (size_t n, size_t size))
{
	void *p = refused(CALLOC) ? NULL : __real_calloc(n, size);

	heap_blocks += p != NULL;
	return p;
}

REAL(void *, malloc, (size_t size))
{
	void *p = refused(MALLOC) ? NULL : __real_malloc(size);

	heap_blocks += p != NULL;
	return p;
}

REAL(void, free, (void *p))
{
	heap_blocks -= p != NULL;
	__real_free(p);
}

/* --- counts --- */

struct held {
	int fds;
	long heap, maps;
};

static struct held held(void)
{
	return (struct held){ descriptors_open(), heap_blocks, mappings_open };
}

static void held_is(const struct held *before, const char *what, int call, int n)
{
	const struct held now = held();

	if (now.fds != before->fds || now.heap != before->heap || now.maps != before->maps)
		fail_msg(
			"%s, use %d of call %d: left %d descriptors, %ld heap blocks, %ld mappings",
			what, n, call, now.fds - before->fds, now.heap - before->heap,
			now.maps - before->maps);
}

/* --- the client's part --- */

static struct {
	struct daemon d;
	struct kvtier_geometry geometry;
	struct kvtier_segment segments[64];
	size_t n_segments;
	struct kvtier_region shared, private;
	uint8_t *memory;
} w;

static int connect_once(struct kvtier_client **ret)
{
	return client_dial(w.d.socket, NULL, 10000, ret);
}

static int space_once(struct kvtier_client *client, bool private, struct kvtier_space **ret)
{
	return kvtier_space_open(client, &w.geometry, private ? &w.private : &w.shared, 1,
				 w.segments, w.n_segments, ret);
}

static int store_once(struct kvtier_client *client, struct kvtier_space *space)
{
	const uint32_t pages[BLOCKS] = { 0, 1, 2, 3 };
	struct kvtier_result result = { .size = sizeof(result) };
	uint32_t tokens[BLOCKS * 16] = { 0 };
	struct kvtier_key keys[BLOCKS];
	size_t n = BLOCKS;
	uint64_t op;
	int rc;

	assert_int_equal(kvtier_keys(space, NULL, tokens, BLOCKS * 16, keys, &n), 0);
	rc = kvtier_store(space, keys, pages, BLOCKS, NULL, &op);
	if (!rc)
		rc = kvtier_wait(client, op, -1, &result);
	return rc ? rc : result.status;
}

/* Until it works: the client reconnects from inside these calls. */
static void works_again(struct kvtier_client *client, struct kvtier_space *space, int call, int n)
{
	const uint64_t until = now_ns() + PATIENCE_MS * 1000000ull;
	int rc = store_once(client, space);

	while (rc) {
		if (now_ns() > until)
			fail_msg("use %d of call %d: the client did not come back: %d, %s", n, call,
				 rc, kvtier_last_error());
		nap_ms(2);
		rc = store_once(client, space);
	}
}

static void arm(int call, int n, int error)
{
	refuse(call, n, 1, error);
	/* so that the sentence below is not one of before */
	(void)kvtier_wait(NULL, 0, 0, NULL);
}

/* True when the n-th use came. */
static bool disarm(void)
{
	const bool came = refuse_came();

	refuse_nothing();
	return came;
}

static void failed_well(int rc, int error, bool same, int call, int n)
{
	if (rc >= 0 || (same && rc != -error))
		fail_msg("use %d of call %d failed with %d: %d, %s", n, call, error, rc,
			 kvtier_last_error());
	assert_true(strlen(kvtier_last_error()) > 10);
	assert_null(strstr(kvtier_last_error(), "client is NULL"));
}

/* same: the caller sees this very -errno. */
static void connecting(int call, int error, bool same, int least)
{
	const struct held before = held();
	bool came = true;

	for (int n = 1; came; n++) {
		struct kvtier_client *client = NULL;
		int rc;

		arm(call, n, error);
		if (call == RECVMSG) /* a connection that was lost is made once more */
			refuse(call, n, 2, error);
		rc = connect_once(&client);
		came = disarm();
		if (came)
			failed_well(rc, error, same, call, n);
		else
			assert_int_equal(rc, 0);
		assert_true(came ? !client : n > least);
		kvtier_close(client);
		held_is(&before, "connecting", call, n);
		assert_true(n < USES_MAX);
	}
}

static void opening(bool private, int call, int error, bool same, int least)
{
	bool came = true;

	for (int n = 1; came; n++) {
		const struct held outside = held();
		struct kvtier_client *client;
		struct kvtier_space *space = NULL;
		int rc;

		assert_int_equal(connect_once(&client), 0);
		arm(call, n, error);
		rc = space_once(client, private, &space);
		came = disarm();
		if (came)
			failed_well(rc, error, same, call, n);
		else
			assert_int_equal(rc, 0);
		assert_true(came ? !space : n > least);
		while (!space) /* at once, unless the connection failed */
			if (space_once(client, private, &space))
				nap_ms(2);
		works_again(client, space, call, n);
		kvtier_close(client);
		held_is(&outside, "opening", call, n);
		assert_true(n < USES_MAX);
	}
}

static void returning(bool private, int call, int error, int least)
{
	bool came = true;

	for (int n = 1; came; n++) {
		const struct held outside = held();
		struct kvtier_client *client;
		struct kvtier_space *space;

		assert_int_equal(connect_once(&client), 0);
		assert_int_equal(space_once(client, private, &space), 0);
		arm(RECVMSG, 1, ECONNABORTED); /* as if the daemon had hung up */
		while (!refuse_came())
			assert_true(kvtier_poll(client, NULL, 0) >= 0);
		arm(call, n, error);
		works_again(client, space, call, n);
		came = disarm();
		assert_true(came || n > least);
		works_again(client, space, call, n);
		kvtier_close(client);
		held_is(&outside, "returning", call, n);
		assert_true(n < USES_MAX);
	}
}

TEST(connect_without_memory)
{
	connecting(CALLOC, ENOMEM, true, 4); /* client, link, map, orphan */
	connecting(MMAP, ENOMEM, true, 4);   /* statuses, two rings, index */
}

TEST(connect_without_descriptors)
{
	connecting(EVENTFD, EMFILE, true, 1);
	connecting(EPOLL_CREATE, EMFILE, true, 1);
	connecting(EPOLL_CTL, ENOSPC, true, 2);
	connecting(SOCKET, ENFILE, true, 1);
}

TEST(connect_without_a_peer)
{
	connecting(CONNECT, ECONNREFUSED, true, 1);
	connecting(SENDMSG, ENOBUFS, true, 1);
	connecting(RECVMSG, ENOTCONN, false, 1);
	connecting(FCNTL, EBADF, false, 3);
	connecting(FSTAT, EBADF, false, 3);
}

/* The real thing: a process that may open no more files, at every step of connecting. */
TEST(connect_at_the_limit_of_descriptors)
{
	const struct held before = held();
	struct rlimit old, tight;
	int rc = -EMFILE;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	for (int room = 0; rc; room++) {
		struct kvtier_client *client;
		const int lowest = dup(0);

		(void)close(lowest);
		tight = old;
		tight.rlim_cur = (rlim_t)(lowest + room);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
		rc = connect_once(&client);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
		if (!rc)
			kvtier_close(client);
		else if (rc != -EMFILE)
			fail_msg("room for %d descriptors: %d, %s", room, rc, kvtier_last_error());
		assert_true(room < 20);
		held_is(&before, "limit", REFUSE_ANY, room);
	}
}

TEST(open_without_memory)
{
	/* space with its layout; keys; message */
	opening(false, CALLOC, ENOMEM, true, 3);
	/* staged and its segments as well */
	opening(true, CALLOC, ENOMEM, true, 5);
	opening(true, MMAP, ENOMEM, true, 2); /* copies, staging */
}

TEST(open_without_a_memory_file)
{
	opening(true, MEMFD_CREATE, EMFILE, true, 1);
	opening(true, FTRUNCATE, ENOSPC, true, 1);
	opening(true, FCNTL, EPERM, true, 1);   /* its seals */
	opening(false, FCNTL, EMFILE, true, 1); /* a duplicate of the region's */
}

TEST(open_while_the_connection_fails)
{
	opening(false, SENDMSG, EPIPE, false, 1);
	opening(false, SENDMSG, ETOOMANYREFS, true, 1);
	opening(false, RECVMSG, ECONNABORTED, false, 1);
}

TEST(returns_shared)
{
	returning(false, CALLOC, ENOMEM, 2);
	returning(false, MMAP, ENOMEM, 3);
	returning(false, SOCKET, EMFILE, 1);
	returning(false, EPOLL_CTL, ENOSPC, 1);
	returning(false, CONNECT, ECONNREFUSED, 1);
	returning(false, SENDMSG, ENOBUFS, 2);
}

TEST(returns_staged)
{
	returning(true, MEMFD_CREATE, EMFILE, 1);
	returning(true, FTRUNCATE, ENOSPC, 1);
	returning(true, MMAP, ENOMEM, 4);
}

/* --- memory that can be taken back --- */

static void allocating(int call, int error)
{
	const struct held before = held();

	for (int n = 1;; n++) {
		struct kvtier_memory *memory = NULL;
		int rc;

		arm(call, n, error);
		rc = kvtier_memory_alloc(1 << 20, NULL, &memory);
		if (disarm()) {
			failed_well(rc, error, true, call, n);
		} else {
			assert_int_equal(rc, 0);
			kvtier_memory_free(memory);
		}
		held_is(&before, "allocating", call, n);
		if (rc == 0)
			return;
	}
}

/* A space that could not be taken back is as it was. */
static void taking_back(int call, int error)
{
	struct kvtier_region first = { .size = sizeof(first) }, now = { .size = sizeof(now) };
	struct kvtier_memory *memory = NULL;
	struct held before;
	int rc = -1;
	char *base;

	assert_int_equal(kvtier_memory_alloc(1 << 20, NULL, &memory), 0);
	assert_int_equal(kvtier_memory_region(memory, &first), 0);
	base = kvtier_memory_address(memory);
	strcpy(base + 8192, "mine");
	before = held();
	for (int n = 1; rc; n++) {
		arm(call, n, error);
		rc = kvtier_memory_take_back(memory);
		if (disarm())
			failed_well(rc, error, true, call, n);
		assert_string_equal(base + 8192, "mine");
		assert_int_equal(kvtier_memory_region(memory, &now), 0);
		if (rc)
			assert_int_equal(now.fd, first.fd);
		mappings_open -= rc == 0; /* it took the place of the old one */
		held_is(&before, "taking back", call, n);
		assert_true(n < USES_MAX);
	}
	kvtier_memory_free(memory);
}

TEST(memory_is_refused)
{
	allocating(CALLOC, ENOMEM);
	allocating(MEMFD_CREATE, EMFILE);
	allocating(FTRUNCATE, ENOSPC);
	allocating(FCNTL, EPERM);
	allocating(MMAP, ENOMEM);
	taking_back(MEMFD_CREATE, EMFILE);
	taking_back(FTRUNCATE, ENOSPC);
	taking_back(FCNTL, EPERM);
	taking_back(MMAP, ENOMEM);
	taking_back(FSTAT, EBADF);
}

/* --- */

static void count_leaky_fds(int *ret)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	assert_non_null(dir);
	*ret = 0;
	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.' && !(fcntl(atoi(entry->d_name), F_GETFD) & FD_CLOEXEC))
			(*ret)++;
	(void)closedir(dir);
}

TEST(all_descriptors_close_on_exec)
{
	struct kvtier_space *space;
	struct kvtier_client *client;
	int before, now;

	count_leaky_fds(&before);
	assert_int_equal(connect_once(&client), 0);
	assert_true(kvtier_event_fd(client) >= 0);
	for (int private = 0; private < 2; private ++)
		assert_int_equal(space_once(client, private, &space), 0);
	count_leaky_fds(&now);
	assert_int_equal(now, before);
	kvtier_close(client);
}

FIXTURE(begin)
{
	const int fd = memfd_make(PAGES * 8192, F_SEAL_SHRINK);

	w.geometry = tiny_geometry(KVTIER_CODEC_RAW);
	w.n_segments = engine_segments(&w.geometry, w.segments, 64);
	assert_int_equal(engine_page_bytes(&w.geometry), 8192);
	w.memory = mmap(NULL, PAGES * 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(w.memory != MAP_FAILED);
	w.shared = (struct kvtier_region){
		.size = sizeof(w.shared), .memory = KVTIER_MEMFD, .fd = fd, .length = PAGES * 8192
	};
	w.private = (struct kvtier_region){ .size = sizeof(w.private),
					    .memory = KVTIER_PRIVATE,
					    .base = w.memory,
					    .length = PAGES * 8192 };
	daemon_start(&w.d, SMALL_HOST);
	return 0;
}

FIXTURE(end)
{
	daemon_remove(&w.d);
	(void)munmap(w.memory, PAGES * 8192);
	return close(w.shared.fd);
}

TEST_GROUP(begin, end);
