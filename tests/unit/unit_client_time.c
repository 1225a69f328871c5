/* SPDX-License-Identifier: Apache-2.0 */
/* make: link=client.a (the library's inner names) wrap=clock_gettime,madvise */
/*
 * Goal: a call ends at its deadline, however many pages it has to allocate; the deadline of an op
 * counts from the call, and is told to the daemon by the daemon's clock; a client whose daemon is
 * away looks for it once a second at least. Method: the test holds the clock, which madvise() moves
 * on, and counts; a fake daemon (fake_engine.h) with a clock of its own.
 */

#include "client/lib/client.h"
#include "base/clock.h"
#include "client/lib/base/pages.h"
#include "tests/lib/fake_engine.h"
#include "tests/lib/test.h"
#include "tests/lib/wrap.h"

enum { ROWS = 4096, APART = 8192 };

#define SECOND_NS 1000000000ull

static _Atomic bool stands; /* the clock is moved by the test alone */
static _Atomic uint64_t at_ns, ahead_ns, cost_ns, touches, most_bytes;

REAL(int, clock_gettime, (clockid_t id, struct timespec *ret))
{
	const int rc = __real_clock_gettime(id, ret);
	uint64_t now;

	if (rc || id != CLOCK_MONOTONIC)
		return rc;
	now = stands ? at_ns :
		       (uint64_t)ret->tv_sec * SECOND_NS + (uint64_t)ret->tv_nsec + ahead_ns;
	ret->tv_sec = (time_t)(now / SECOND_NS);
	ret->tv_nsec = (long)(now % SECOND_NS);
	return 0;
}

/* Touching costs time on the clock that stands, and nothing else. */
REAL(int, madvise, (void *at, size_t n, int advice))
{
	if (!stands)
		return __real_madvise(at, n, advice);
	touches++;
	if (n > most_bytes)
		most_bytes = n;
	at_ns += cost_ns;
	return 0;
}

static void stand_still(uint64_t cost)
{
	at_ns = clock_ns();
	cost_ns = cost;
	touches = most_bytes = 0;
	stands = true;
}

/* A page of so many rows, each in a page of memory of its own, or end to end. */
static struct populate *page_of_rows(size_t apart)
{
	static struct space_layout l;
	struct kvtier_region *r = &l.regions[0];
	struct populate *p = NULL;

	l.geometry = fake_geometry;
	l.geometry.block_tokens = ROWS;
	l.n_regions = l.n_segments = 1;
	l.segments[0] = KVTIER_INIT(kvtier_segment, .kind = KVTIER_OPAQUE,
				    .page_stride = (uint64_t)ROWS * APART, .token_stride = apart,
				    .length = 4096);
	*r = KVTIER_INIT(kvtier_region, .memory = KVTIER_MEMFD, .length = (uint64_t)ROWS * APART);
	r->fd = memfd_create("rows", MFD_CLOEXEC);
	assert_int_equal(ftruncate(r->fd, (off_t)r->length), 0);
	assert_int_equal(populate_open(&l, &p), 0);
	assert_non_null(p);
	(void)close(r->fd);
	return p;
}

static void allocation_ends_at_its_deadline(size_t apart)
{
	const uint32_t page = 0;
	struct populate *p = page_of_rows(apart);

	stand_still(1000000);
	assert_int_equal(populate_pages(p, &page, 1, at_ns + 3000000), -ETIMEDOUT);
	assert_int_equal(touches, 3);
	assert_true(most_bytes <= 4 << 20);
	/* the page was not done: it is touched again, all of it */
	touches = 0;
	assert_int_equal(populate_pages(p, &page, 1, UINT64_MAX), 0);
	assert_int_equal(touches, apart == APART ? ROWS : ROWS * 4096ull >> 22);
	stands = false;
	populate_close(p);
}

TEST_DO(a_page_of_many_spans_is_given_up, allocation_ends_at_its_deadline(APART));
TEST_DO(a_page_of_many_bytes_is_given_up, allocation_ends_at_its_deadline(4096));

/* Pages that take 0.6 s of the op's second, each: the second one is too late. */
TEST_FAKE(the_deadline_counts_from_the_call, false)
{
	const struct kvtier_op o = { .size = sizeof(o), .timeout_ms = 1000 };
	struct kvtier_key keys[3];
	uint64_t op, begin;

	fake_keys(&sole, 1, 3, keys);
	sole.peer.hold = true;
	stand_still(SECOND_NS * 6 / 10);
	begin = at_ns;
	assert_int_equal(kvtier_load(sole.space, keys, (const uint32_t[]){ 7 }, 1, &o, &op), 0);
	assert_int_equal(touches, 1);
	assert_int_equal(op_find(sole.client, op)->deadline_ns, begin + SECOND_NS);
	assert_int_equal(kvtier_load(sole.space, keys, (const uint32_t[]){ 9, 20, 40 }, 3, &o, &op),
			 -ETIMEDOUT);
	assert_int_equal(touches, 3);
	stands = false;
}

TEST(the_daemon_is_told_by_its_own_clock)
{
	static const int64_t ahead_s[] = { 0, 3, -3, 1000000, -100 };
	struct kvtier_key key;

	for (size_t i = 0; i < sizeof(ahead_s) / sizeof(ahead_s[0]); i++) {
		const uint64_t before = clock_ns();
		uint64_t ours, theirs, after;
		struct engine e;
		uint64_t op;

		fake_clock_ahead_ns = ahead_s[i] * (int64_t)SECOND_NS;
		fake_open(&e, false);
		fake_keys(&e, 1, 1, &key);
		e.peer.keep = true;
		assert_int_equal(kvtier_load(e.space, &key, (const uint32_t[]){ 7 }, 1, NULL, &op),
				 0);
		AWAIT(e.peer.taken > 0);
		ours = op_find(e.client, op)->deadline_ns;
		theirs = e.peer.deadline_ns - (uint64_t)fake_clock_ahead_ns;
		after = clock_ns();
		/* never earlier, and later by no more than the greeting took */
		assert_true(theirs >= ours && theirs - ours <= after - before);
		if (ahead_s[i] == 0)
			assert_int_equal(theirs, ours);
		e.peer.hang_up = true;
		fake_close(&e);
	}
	fake_clock_ahead_ns = 0;
}

/* The client asks in calls that come long apart, until it asks as seldom as it ever does. */
TEST(a_daemon_that_is_back_is_found_within_a_second)
{
	struct kvtier_options o = { .size = sizeof(o) };
	struct kvtier_client *client;
	char text[256];
	struct peer peer;

	peer_start(&peer, PEER_HONEST);
	o.socket_path = peer.path;
	assert_int_equal(kvtier_connect(&o, &client), 0);
	peer_stop(&peer);
	for (int i = 0; i < 20; i++) {
		ahead_ns += 10 * SECOND_NS;
		(void)kvtier_poll(client, NULL, 0);
	}
	peer_start(&peer, PEER_HONEST);
	ahead_ns += SECOND_NS;
	(void)kvtier_poll(client, NULL, 0);
	if (kvtier_status(client, text, sizeof(text)) <= 0 || strncmp(text, "connect", 7) != 0)
		fail_msg("it did not look: %s", text);
	kvtier_close(client);
	peer_stop(&peer);
}
