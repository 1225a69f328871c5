/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.c - the table of steps: functions, names, preconditions. See step.h.
 */
#include "step.h"

#include "flight.h"
#include "hint.h"
#include "load.h"
#include "store.h"

const struct step_rule step_rules[STEPS] = {
	[STORE_ADMIT] = { store_admit, "admit", 0, 0, 0, STORE_COMMIT },
	[STORE_PLACE] = { store_place, "place", 0, HELD_PLACE, 0, STORE_COMMIT },
	[STORE_ENCODE] = { store_encode, "encode", HELD_SLOT, HELD_NEAR, 0, STORE_COMMIT },
	[STORE_COMMIT] = { store_commit, "commit", 0,
			   HELD_SLOT | HELD_LEASE | HELD_PLACE | HELD_NEAR, 0, STORE_COMMIT },
	[LOAD_LOOKUP] = { load_lookup, "lookup", 0, 0, 0, LOAD_END },
	[LOAD_BRING] = { load_bring, "bring", 0, HELD_FLIGHT, 0, LOAD_END },
	[LOAD_SERVE] = { load_serve, "serve", 0, HELD_NEAR, HELD_LEASE | HELD_FLIGHT, LOAD_END },
	[LOAD_CHECK] = { load_check, "check", 0, HELD_NEAR, HELD_LEASE | HELD_FLIGHT, LOAD_CHECK },
	[LOAD_KEEP] = { load_keep, "keep", HELD_FLIGHT, HELD_NEAR, 0, LOAD_KEEP },
	[LOAD_END] = { load_end, "end", 0, HELD_LEASE | HELD_FLIGHT | HELD_NEAR, 0, LOAD_END },
	[HINT_APPLY] = { hint_apply, "hint", 0, 0, 0, HINT_APPLY },
	[FLIGHT_PROBE] = { flight_probe, "flight.probe", 0, 0, 0, FLIGHT_PROBE },
	[FLIGHT_ROOM] = { flight_room, "flight.room", 0, HELD_LEASE | HELD_PLACE, 0, FLIGHT_ROOM },
	[FLIGHT_READ] = { flight_read, "flight.read", HELD_SLOT, HELD_LEASE | HELD_PLACE, 0,
			  FLIGHT_READ },
	[FLIGHT_FAIL] = { flight_fail, "flight.fail", 0, HELD_SLOT | HELD_LEASE, 0, FLIGHT_FAIL },
	[FLIGHT_VERIFY] = { flight_verify, "flight.verify", HELD_SLOT, HELD_LEASE | HELD_PLACE, 0,
			    FLIGHT_VERIFY },
	[FLIGHT_LAND] = { flight_land, "flight.land", HELD_SLOT, HELD_LEASE, 0, FLIGHT_LAND },
	[FLIGHT_MISS] = { flight_miss, "flight.miss", 0, HELD_LEASE | HELD_PLACE, 0, FLIGHT_MISS },
	[FLIGHT_AGAIN] = { flight_again, "flight.again", 0, HELD_LEASE | HELD_PLACE, 0,
			   FLIGHT_AGAIN },
};

const char *const wait_names[WAITS] = {
	[WAIT_JOB] = "job",
	[WAIT_READ] = "read",
	[WAIT_ROOM] = "room",
	[WAIT_TIER_FULL] = "tier-full",
	[WAIT_JOBS_FULL] = "device-full",
	[WAIT_TURN] = "turn",
	[WAIT_OTHER] = "flight",
	[WAIT_PARTS] = "", /* nothing is under way */
};

const char *const source_names[SOURCES] = {
	[SOURCE_HOST] = "host",
	[SOURCE_NVME] = "nvme",
	[SOURCE_REDIS] = "redis",
	[SOURCE_GPU] = "gpu",
};

const enum tier_id source_tiers[SOURCES] = {
	[SOURCE_HOST] = TIER_HOST,
	[SOURCE_NVME] = TIER_NVME,
	[SOURCE_REDIS] = TIER_REDIS,
	[SOURCE_GPU] = TIER_GPU,
};
