/* SPDX-License-Identifier: Apache-2.0 */
/* make: needs=kvtierd_letgo */
/*
 * regr_last_reference.c - goal: the last reference of a big memfd, which frees its memory as it
 * goes (0.55 s for 4 GiB), goes on a helper thread, in whatever way a client sent the memfd.
 * Method: a kvtierd that says which thread closes and unmaps, and that holds its helpers there
 * (kvtierd_letgo.c). A client sends the only reference in each way there is; while a helper is held
 * with it, engines work, come and go. Then the helper goes on, and the memory is freed under loads.
 */
#include "tests/lib/lib_raw.h"

#include "tests/lib/kvtierd_letgo.h"

enum { MOST_MIB = 256 };

static struct {
	struct honest honest;
	struct raw raw; /* the client that sends */
	struct letgo *letgo;
	int letgo_fd;
	size_t bytes; /* of its memfd */
} w;

/* As much as freeing takes far longer than an iteration of the loop, and as this machine can
 * spare. */
static size_t memory_to_send(void)
{
	const size_t most = (size_t)MOST_MIB << 20;
	const size_t free_bytes = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
	size_t bytes = free_bytes / 8 < most ? free_bytes / 8 : most;

	if (bytes < 2 * (size_t)LETGO_BYTES)
		bytes = 2 * (size_t)LETGO_BYTES;
	return bytes - bytes % raw_region_bytes();
}

FIXTURE(begin)
{
	char path[64];

	memset(&w, 0, sizeof(w));
	w.letgo_fd = memfd_make(sizeof(*w.letgo), 0);
	w.letgo = mmap(NULL, sizeof(*w.letgo), PROT_READ | PROT_WRITE, MAP_SHARED, w.letgo_fd, 0);
	assert_ptr_not_equal(w.letgo, MAP_FAILED);
	(void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), w.letgo_fd);
	(void)setenv(LETGO_PATH, path, 1);
	honest_begin(&w.honest, "tests/kvtierd_letgo");
	w.bytes = memory_to_send();
	raw_open(&w.raw, w.honest.d.socket);
	return 0;
}

FIXTURE(end)
{
	raw_close(&w.raw);
	honest_end(&w.honest);
	(void)munmap(w.letgo, sizeof(*w.letgo));
	return close(w.letgo_fd);
}

TEST_EACH(begin, end);

/* The packet has the only reference. */
static void send_last(const void *message, size_t n)
{
	const int fd = memfd_make(w.bytes, F_SEAL_SHRINK);

	assert_int_equal(fallocate(fd, 0, 0, (off_t)w.bytes), 0);
	assert_int_equal(raw_send(&w.raw, message, n, &fd, 1), 0);
	(void)close(fd);
}

static void send_space(uint64_t bytes)
{
	struct raw_space space;

	raw_space_fill(&w.raw, &space);
	space.region.length = bytes;
	send_last(&space, sizeof(space));
}

/* The daemon has it mapped, and closed the descriptor. ret: of the space. */
static uint32_t open_big_space(void)
{
	struct wire_space_ok ok = { 0 };

	send_space(w.bytes);
	assert_int_equal(raw_receive(&w.raw, &ok, sizeof(ok)), sizeof(ok));
	assert_int_equal(ok.head.type, WIRE_SPACE_OK);
	return ok.space;
}

/* From `before` on: one of both threads lets go of it, and the core does not. */
static void is_let_go(unsigned int before)
{
	const unsigned int ended = atomic_load(&w.letgo->ended);
	uint32_t loads = 0;

	AWAIT(atomic_load(&w.letgo->by_helpers) != before || atomic_load(&w.letgo->by_core) > 0);
	assert_int_equal(atomic_load(&w.letgo->by_core), 0);
	honest_is_served(&w.honest);
	assert_int_equal(atomic_load(&w.letgo->ended), ended); /* a helper has it all the while */
	atomic_store(&w.letgo->hold, false);
	for (const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;
	     atomic_load(&w.letgo->ended) == ended; loads++) {
		if (now_ns() > until)
			fail_msg("the memory is not let go of");
		assert_int_equal(chain_load(&w.honest.e, w.honest.keys, HONEST_BLOCKS,
					    HONEST_BLOCKS),
				 HONEST_BLOCKS);
	}
	print_message("%zu MiB: %u loads while they were freed\n", w.bytes >> 20, loads);
	assert_int_equal(atomic_load(&w.letgo->by_core), 0);
}

TEST(with_a_doorbell)
{
	const struct wire_head bell = raw_head(&w.raw, WIRE_DOORBELL, sizeof(bell));

	atomic_store(&w.letgo->hold, true);
	send_last(&bell, sizeof(bell));
	is_let_go(0);
}

/* Larger than its memfd. */
TEST(with_a_region_that_is_refused)
{
	atomic_store(&w.letgo->hold, true);
	send_space(2 * w.bytes);
	is_let_go(0);
	raw_expect_refused(&w.raw, -EINVAL, "region");
}

TEST(with_a_space_that_is_closed)
{
	struct wire_space_close close_it = { .space = open_big_space() };
	unsigned int before;

	close_it.head = raw_head(&w.raw, WIRE_SPACE_CLOSE, sizeof(close_it));
	before = atomic_load(&w.letgo->by_helpers);
	assert_true(before > 0); /* the descriptor, behind the mapping */
	atomic_store(&w.letgo->hold, true);
	assert_int_equal(raw_send(&w.raw, &close_it, sizeof(close_it), NULL, 0), 0);
	is_let_go(before);
}

TEST(with_a_space_of_a_client_that_dies)
{
	unsigned int before;

	(void)open_big_space();
	before = atomic_load(&w.letgo->by_helpers);
	atomic_store(&w.letgo->hold, true);
	raw_close(&w.raw);
	is_let_go(before);
	raw_open(&w.raw, w.honest.d.socket);
}
