/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_redis_breaker.c - goal: a server in trouble is left alone and asked by one request at a time,
 * with waits of 1 s to 30 s and +- 25 % between; a server that is well again is found within the
 * longest wait (37.5 s), and so is a server that takes stores again; one that refused a store takes
 * none until it has taken one. Method: hours of a server that is up, silent, gone, loading,
 * refusing, full or strange by a random schedule, with up to 64 requests on their way; a naive
 * account checks each step. SEED and STEPS from the environment.
 */

#include "tests/lib/test.h"
#include "tiers/redis/redis_breaker.h"

#define MS     ((uint64_t)1000000)
#define SECOND (1000 * MS)

static const uint64_t start_ns = 1000 * SECOND;

static void assert_wait(uint64_t from_ns, uint64_t until_ns, uint64_t nominal_ns)
{
	assert_in_range(until_ns - from_ns, nominal_ns * 3 / 4, nominal_ns * 5 / 4);
}

enum mode {
	MODE_UP,
	MODE_SILENT,
	MODE_GONE,
	MODE_LOADING,
	MODE_REFUSING,
	MODE_FULL,
	MODE_STRANGE,
	MODES
};

enum { REQUESTS = 64 };

struct request {
	bool store, trial, lent;
	enum mode mode; /* of the server when it came */
	uint64_t end_ns;
};

struct sim {
	struct random random;
	struct redis_breaker b;
	uint64_t now_ns, flip_ns;
	enum mode mode;
	/* the server takes them since; 0: it does not */
	uint64_t reads_since_ns, stores_since_ns;
	uint32_t row;         /* of failures, told while CLOSED */
	uint32_t trials;      /* let through since it was opened */
	uint64_t expected_ns; /* the next wait that a failed trial has */
	struct request requests[REQUESTS];
	bool refused; /* a store, and has taken none since */
	uint64_t found, blocked;
};

static const uint64_t timeout_ns = 2 * SECOND;

static void flip(struct sim *s)
{
	const bool up_before = s->reads_since_ns != 0, stores_before = s->stores_since_ns != 0;
	const uint64_t length = random_below(&s->random, 2) ? 120 * SECOND : 5 * SECOND;

	s->mode =
		random_below(&s->random, 2) ? MODE_UP : (enum mode)random_below(&s->random, MODES);
	s->flip_ns = s->now_ns + random_next(&s->random) % length;
	if (s->mode != MODE_UP && s->mode != MODE_FULL && s->mode != MODE_STRANGE)
		s->reads_since_ns = 0;
	else if (!up_before)
		s->reads_since_ns = s->now_ns;
	if (s->mode != MODE_UP && s->mode != MODE_STRANGE)
		s->stores_since_ns = 0;
	else if (!stores_before)
		s->stores_since_ns = s->now_ns;
}

static void tell(struct sim *s, const struct request *r)
{
	switch (r->mode) {
	case MODE_UP:
		redis_breaker_success(&s->b);
		if (r->store)
			redis_breaker_stored(&s->b);
		s->refused &= !r->store;
		break;
	case MODE_SILENT:
	case MODE_GONE:
		redis_breaker_failure(&s->b, s->now_ns);
		break;
	case MODE_LOADING:
		redis_breaker_verdict(&s->b, REDIS_SAYS_NOT_NOW, r->store, s->now_ns);
		break;
	case MODE_REFUSING:
		redis_breaker_verdict(&s->b, REDIS_SAYS_NOT_YOU, false, s->now_ns);
		break;
	case MODE_FULL:
		if (r->store)
			redis_breaker_verdict(&s->b, REDIS_SAYS_NO_STORES, true, s->now_ns);
		else
			redis_breaker_success(&s->b);
		if (r->store)
			redis_breaker_untaken(&s->b, true);
		s->refused |= r->store;
		break;
	default:
		redis_breaker_verdict(&s->b, REDIS_SAYS_NOTHING, r->store, s->now_ns);
		if (r->store)
			redis_breaker_stored(&s->b);
		s->refused &= !r->store;
	}
}

static bool is_failure(enum mode mode)
{
	return mode == MODE_SILENT || mode == MODE_GONE;
}

/* The right state after an end that was told in `before`. */
static void check_end(struct sim *s, const struct redis_breaker *before, enum mode mode)
{
	const uint64_t now = s->now_ns;
	const bool opens = mode == MODE_LOADING || mode == MODE_REFUSING || is_failure(mode);
	uint64_t wait = mode == MODE_REFUSING ? 30 * SECOND : s->expected_ns;

	if (before->state == REDIS_OPEN) {
		assert_int_equal(s->b.state, REDIS_OPEN);
		if (mode != MODE_REFUSING || before->misconfigured)
			assert_true(s->b.until_ns == before->until_ns);
		else
			s->expected_ns = 30 * SECOND;
		return;
	}
	if (before->state == REDIS_CLOSED) {
		s->row = opens ? s->row + 1 : 0;
		wait = mode == MODE_REFUSING ? wait : SECOND;
		if (is_failure(mode) && s->row < REDIS_BREAKER_FAILURES) {
			assert_int_equal(s->b.state, REDIS_CLOSED);
			return;
		}
	}
	assert_int_equal(s->b.state, opens ? REDIS_OPEN : REDIS_CLOSED);
	if (!opens)
		return;
	assert_wait(now, s->b.until_ns, wait);
	s->expected_ns = 2 * wait < 30 * SECOND ? 2 * wait : 30 * SECOND;
	s->row = s->trials = 0;
}

static void end_some(struct sim *s)
{
	for (uint32_t i = 0; i < REQUESTS; i++) {
		struct request *r = &s->requests[i];
		const struct redis_breaker before = s->b;

		if (!r->lent || r->end_ns > s->now_ns)
			continue;
		r->lent = false;
		tell(s, r);
		s->found += before.state == REDIS_HALF && s->b.state == REDIS_CLOSED;
		check_end(s, &before, r->mode);
	}
}

static void begin_one(struct sim *s)
{
	const struct redis_breaker before = s->b;
	const bool usable = s->b.state == REDIS_CLOSED ||
			    (s->b.state == REDIS_OPEN && s->now_ns >= s->b.until_ns);
	struct request *r = s->requests;

	while (r < s->requests + REQUESTS && r->lent)
		r++;
	if (r == s->requests + REQUESTS)
		return;
	r->store = random_below(&s->random, 2);
	if (r->store && !redis_breaker_may_store(&s->b, s->now_ns)) {
		s->blocked++;
		return;
	}
	assert_int_equal(redis_breaker_try(&s->b, s->now_ns), usable);
	if (!usable)
		return;
	r->trial = before.state != REDIS_CLOSED;
	s->trials += r->trial;
	assert_true(!r->trial || s->trials == 1);
	r->lent = true;
	r->mode = s->mode;
	r->end_ns = s->now_ns +
		    (r->mode == MODE_SILENT ? timeout_ns : random_next(&s->random) % (20 * MS));
}

/* A trial sent before the server was well may fail after; then the longest wait, then the time of a
 * step or two. */
static void check_found(const struct sim *s)
{
	const uint64_t longest = 30 * SECOND * 5 / 4, slack = timeout_ns + 2 * SECOND;

	if (s->reads_since_ns && s->now_ns > s->reads_since_ns + longest + slack)
		assert_int_equal(s->b.state, REDIS_CLOSED);
	if (s->stores_since_ns && s->now_ns > s->stores_since_ns + longest + slack)
		assert_true(redis_breaker_may_store(&s->b, s->now_ns));
	assert_true(s->b.state != REDIS_CLOSED || !s->b.misconfigured);
	assert_int_equal(redis_breaker_takes_stores(&s->b), !s->refused);
}

TEST(hours_of_a_server)
{
	const uint64_t steps = env_number("STEPS", 300000);
	struct sim s = { .random = random_seeded("sim_redis_breaker"),
			 .now_ns = start_ns,
			 .flip_ns = start_ns };

	redis_breaker_open(&s.b, random_next(&s.random));
	for (uint64_t i = 0; i < steps; i++) {
		s.now_ns +=
			random_next(&s.random) % (random_below(&s.random, 4) ? 20 * MS : 500 * MS);
		if (s.now_ns >= s.flip_ns)
			flip(&s);
		end_some(&s);
		begin_one(&s);
		check_found(&s);
	}
	print_message("%" PRIu64 " s, opened %" PRIu64 " times, found again %" PRIu64
		      " times, %" PRIu64 " stores held back\n",
		      (s.now_ns - start_ns) / SECOND, s.b.opens_total, s.found, s.blocked);
	assert_true(steps < 100000 || (s.found > 10 && s.blocked > 10));
}
