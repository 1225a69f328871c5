/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.c - names and preconditions of the steps. See step.h.
 */
#include "step.h"

#include <assert.h>
#include <stddef.h>

struct rule {
	const char *name;
	uint32_t must, may; /* be held when it begins; more than that is a bug */
	uint32_t either;    /* exactly one of these is, too */
	enum step early;
};

static const struct rule rules[] = {
	[STORE_ADMIT] = { "admit", 0, 0, 0, STORE_COMMIT },
	[STORE_PLACE] = { "place", 0, HELD_PLACE, 0, STORE_COMMIT },
	[STORE_ENCODE] = { "encode", HELD_SLOT, 0, 0, STORE_COMMIT },
	[STORE_COMMIT] = { "commit", 0, HELD_SLOT | HELD_LEASE | HELD_PLACE, 0, STORE_COMMIT },
	[LOAD_LOOKUP] = { "lookup", 0, 0, 0, LOAD_END },
	[LOAD_BRING] = { "bring", 0, HELD_FLIGHT, 0, LOAD_END },
	[LOAD_SERVE] = { "serve", 0, 0, HELD_LEASE | HELD_FLIGHT, LOAD_END },
	[LOAD_CHECK] = { "check", 0, 0, HELD_LEASE | HELD_FLIGHT, LOAD_CHECK },
	[LOAD_KEEP] = { "keep", HELD_FLIGHT, 0, 0, LOAD_KEEP },
	[LOAD_END] = { "end", 0, HELD_LEASE | HELD_FLIGHT, 0, LOAD_END },
	[FLIGHT_PROBE] = { "flight.probe", 0, 0, 0, FLIGHT_PROBE },
	[FLIGHT_ROOM] = { "flight.room", 0, HELD_LEASE | HELD_PLACE, 0, FLIGHT_ROOM },
	[FLIGHT_READ] = { "flight.read", HELD_SLOT, HELD_LEASE | HELD_PLACE, 0, FLIGHT_READ },
	[FLIGHT_FAIL] = { "flight.fail", 0, HELD_SLOT | HELD_LEASE, 0, FLIGHT_FAIL },
	[FLIGHT_VERIFY] = { "flight.verify", HELD_SLOT, HELD_LEASE | HELD_PLACE, 0, FLIGHT_VERIFY },
	[FLIGHT_LAND] = { "flight.land", HELD_SLOT, HELD_LEASE, 0, FLIGHT_LAND },
	[FLIGHT_MISS] = { "flight.miss", 0, HELD_LEASE | HELD_PLACE, 0, FLIGHT_MISS },
	[FLIGHT_AGAIN] = { "flight.again", 0, HELD_LEASE | HELD_PLACE, 0, FLIGHT_AGAIN },
	[FLIGHT_OVER] = { "flight.over", 0, HELD_SLOT | HELD_LEASE | HELD_PLACE, 0, FLIGHT_OVER },
};

static_assert(sizeof(rules) / sizeof(*rules) == STEPS, "a rule for each step");

const char *step_name(enum step step)
{
	return (unsigned)step < STEPS ? rules[step].name : "?";
}

const char *wait_name(enum wait wait)
{
	static const char *const names[] = {
		[WAIT_NONE] = "-",
		[WAIT_JOB] = "job",
		[WAIT_READ] = "read",
		[WAIT_ROOM] = "room",
		[WAIT_TIER_FULL] = "tier-full",
		[WAIT_JOBS_FULL] = "device-full",
		[WAIT_TURN] = "turn",
		[WAIT_OTHER] = "flight",
	};

	return (unsigned)wait < WAITS ? names[wait] : "?";
}

const char *source_name(enum source source)
{
	static const char *const names[] = {
		[SOURCE_HOST] = "host",
		[SOURCE_NVME] = "nvme",
		[SOURCE_REDIS] = "redis",
	};

	return (unsigned)source < SOURCES ? names[source] : "?";
}

enum tier_id source_tier(enum source source)
{
	static const enum tier_id tiers[] = {
		[SOURCE_HOST] = TIER_HOST,
		[SOURCE_NVME] = TIER_NVME,
		[SOURCE_REDIS] = TIER_REDIS,
	};

	return tiers[source];
}

bool step_allows(enum step step, uint32_t held)
{
	const struct rule *rule = &rules[step];
	const uint32_t one = held & rule->either;

	return (held & rule->must) == rule->must &&
	       (held & ~(rule->must | rule->may | rule->either)) == 0 &&
	       (rule->either == 0 || (one != 0 && (one & (one - 1)) == 0));
}

enum step step_early(enum step step)
{
	return rules[step].early;
}
