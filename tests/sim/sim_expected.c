/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_expected - a hint of when a session comes back is worth what HINTS.md says, and never costs.
 * Method: sessions of agents whose prompts share a beginning and grow, which pause for seconds or
 * for minutes and end; replays with exact times, with times that are wrong by a factor of e, and
 * with four classes, beside the same policy without hints. $KVTIER_TRACE names a trace of sessions
 * to replay in place of these.
 */
#include <math.h>

#include "daemon/replay/replay.h"
#include "daemon/replay/requests.h"
#include "tests/lib/test.h"

enum { SESSIONS = 150, SYSTEM = 24, TURNS = 30, GROWTH = 12, SECOND = 1000000 };

static const double shares[] = { .01, .03, .10, .30 };
enum { SHARES = sizeof(shares) / sizeof(shares[0]) };

enum foretold { EXACT, OFF, CLASSES, FORETOLD };
static const char *const names[FORETOLD] = { "exact", "off by a factor of e", "four classes" };

struct agent {
	double at_s;
	uint32_t blocks, turns;
};

static double pause_of(struct random *random)
{
	return random_below(random, 4) ? 5 + random_below(random, 20) :
					 60 + random_below(random, 900);
}

/* A line of the file that `kvtierctl replay` reads. */
static void add_request(struct requests *r, uint32_t session, struct agent *agent, uint32_t more)
{
	char line[4096], why[256];
	int at = snprintf(line, sizeof(line),
			  "{\"session\":%u,\"timestamp\":%.0f,\"keep\":%u,\"hash_ids\":[", session,
			  agent->at_s * 1000, agent->blocks);

	for (uint32_t i = 0; i < more; i++, agent->blocks++) {
		/* sessions of one kind share a system prompt */
		const uint32_t id = agent->blocks < SYSTEM ?
					    1 + session % 5 * SYSTEM + agent->blocks :
					    1000 + session * 1000 + agent->blocks;

		at += snprintf(line + at, sizeof(line) - (size_t)at, "%s%u", i ? "," : "", id);
	}
	(void)snprintf(line + at, sizeof(line) - (size_t)at, "]}");
	assert_int_equal(requests_add_line(r, line, why, sizeof(why)), 0);
}

static void make_agents(struct requests *r, struct random *random)
{
	static struct agent agents[SESSIONS];
	uint32_t running = SESSIONS;

	for (uint32_t i = 0; i < SESSIONS; i++)
		agents[i] = (struct agent){ .at_s = 1 + 30.0 * i,
					    .turns = 1 + random_below(random, TURNS) };
	while (running > 0) {
		uint32_t next = SESSIONS;

		for (uint32_t i = 0; i < SESSIONS; i++)
			if (agents[i].turns &&
			    (next == SESSIONS || agents[i].at_s < agents[next].at_s))
				next = i;
		add_request(r, next, &agents[next],
			    (agents[next].blocks ? 0u : SYSTEM) + 1 + random_below(random, GROWTH));
		agents[next].at_s += pause_of(random);
		running -= --agents[next].turns == 0;
	}
}

static int read_trace(void **state)
{
	static struct requests requests;
	const char *path = getenv("KVTIER_TRACE");
	struct random random = random_seeded("sim_expected");
	char why[256] = "";

	requests = (struct requests){ 0 };
	if (path) {
		FILE *in = fopen(path, "re");

		if (!in || requests_read(&requests, in, NULL, NULL, why, sizeof(why)))
			fail_msg("%s: %s", path, why);
		(void)fclose(in);
	}
	if (!requests.timed_sessions) {
		requests_free(&requests);
		make_agents(&requests, &random);
	}
	*state = &requests;
	return 0;
}

static int free_trace(void **state)
{
	requests_free(*state);
	return 0;
}

TEST_GROUP(read_trace, free_trace);

/* What an engine foretells of a pause, in us. */
static uint64_t foretell(enum foretold how, uint64_t us, struct random *random)
{
	const double s = (double)us / SECOND;
	double wrong = 0;

	if (how == EXACT)
		return us;
	if (how == CLASSES)
		return s < 10 ? 10 * SECOND : s < 60 ? 60 * SECOND : 600ull * SECOND;
	for (int i = 0; i < 12; i++) /* normal, of deviation 1 */
		wrong += (double)random_below(random, 1 << 20) / (1 << 20);
	return (uint64_t)((double)us * exp(wrong - 6)) + 1;
}

static double rate(const struct requests *r, uint32_t room, bool expected)
{
	uint64_t hits;

	assert_int_equal(replay_ours(r, room, expected, NULL, &hits), 0);
	return (double)hits / (double)r->n_ids;
}

/* The most that it may lose anywhere, and the least that it gains with room for 3 %. */
static void assert_gains(const struct requests *r, enum foretold how, double gain)
{
	struct request_times *exact = malloc(r->n_requests * sizeof(*exact));
	struct random random = random_seeded("sim_expected");

	assert_non_null(exact);
	memcpy(exact, r->times, r->n_requests * sizeof(*exact));
	for (size_t i = 0; i < r->n_requests; i++)
		if (exact[i].next)
			r->times[i].next =
				exact[i].at + foretell(how, exact[i].next - exact[i].at, &random);
	for (size_t i = 0; i < SHARES; i++) {
		const uint32_t room = (uint32_t)(shares[i] * r->unique + .5);
		const double without = rate(r, room, false), with = rate(r, room, true);

		printf("room %4.0f %%: %.4f without, %.4f %s\n", 100 * shares[i], without, with,
		       names[how]);
		assert_true(with >= without - .005);
		assert_true(i != 1 || with >= without + gain);
	}
	memcpy(r->times, exact, r->n_requests * sizeof(*exact));
	free(exact);
}

TEST(exact_times_gain)
{
	assert_gains(*state, EXACT, .12);
}

TEST(times_that_are_off_by_a_factor_of_e_gain)
{
	assert_gains(*state, OFF, .08);
}

TEST(four_classes_gain)
{
	assert_gains(*state, CLASSES, .10);
}
