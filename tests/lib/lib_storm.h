/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_storm.h - a storm: engines in processes of their own, in three spaces, ask one daemon for
 * chains that are far more than it can hold, with deadlines of 1-50 ms, cancels, and deaths in the
 * midst of ops. Each page that a load gave is compared with its block. The test adds the tiers, and
 * the events that befall them.
 *
 *  storm_begin ─> the test starts storm.d ─> storm_engines_start ─> the test's own events
 *              ─> storm_engines_stop ─> storm_nothing_is_left ─> daemon_remove ─> storm_end
 *
 * Needs cmocka; fails the test that runs.
 */
#pragma once

#include "lib.h"

enum {
	STORM_ENGINES = 5,
	STORM_LENGTH = 16,     /* blocks a chain */
	STORM_REST_MS = 30000, /* patience with an end that must come */
};

/* Shared with the engines. */
struct storm_score {
	_Atomic bool stop;
	/* slowest: of an op, from its start until it was waited for */
	_Atomic uint64_t hits, ops, slowest_ms;
};

struct storm {
	struct daemon d;
	struct random random;
	struct storm_score *score;
	/* Engines also ask in the wrong order, twice and from the middle of a chain, leave and come
	 * back, and every fourth block holds an infinity, so that FP8 is no use to it. Set before
	 * storm_engines_start(). */
	bool odd;
	pid_t engines[STORM_ENGINES];
	uint32_t deaths;
	char text[8192]; /* kvtierctl's last output */
};

void storm_begin(struct storm *s, const char *seed_name); /* zeroes *s; no daemon yet */
void storm_end(struct storm *s);
void storm_engines_start(struct storm *s);
void storm_engines_stop(struct storm *s); /* all of them ended well */
/* a random one, by SIGKILL; another takes its place */
void storm_engine_dies(struct storm *s);
/* kvtierctl; exit code 0, and the daemon lives */
void storm_command(struct storm *s, const char *words);
/* No client, op, lease or host memory is left, and no tier found a damaged block. */
void storm_nothing_is_left(struct storm *s);
