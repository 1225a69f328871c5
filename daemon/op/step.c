/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.c - names and preconditions of the steps. See step.h.
 */
#include "step.h"

const struct step_rule step_rules[STEPS] = {
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
};

const char *const wait_names[WAITS] = {
	[WAIT_NONE] = "-",
	[WAIT_JOB] = "job",
	[WAIT_READ] = "read",
	[WAIT_ROOM] = "room",
	[WAIT_TIER_FULL] = "tier-full",
	[WAIT_JOBS_FULL] = "device-full",
	[WAIT_TURN] = "turn",
	[WAIT_OTHER] = "flight",
};

const char *const source_names[SOURCES] = {
	[SOURCE_HOST] = "host",
	[SOURCE_NVME] = "nvme",
	[SOURCE_REDIS] = "redis",
};

const enum tier_id source_tiers[SOURCES] = {
	[SOURCE_HOST] = TIER_HOST,
	[SOURCE_NVME] = TIER_NVME,
	[SOURCE_REDIS] = TIER_REDIS,
};
