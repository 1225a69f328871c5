/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_hints.h - the actions of hints and the answers to them, once. The names that kvtierctl takes
 * and shows, the daemon's counters, and kvtierctl's help and manual are made of them. The numbers
 * are those of enum kvtier_hint_action and enum kvtier_hint_answer.
 *
 *	X(name, number, prose)
 */
#pragma once

#define HINT_ACTIONS(X)                                                                   \
	X(retain, 1,                                                                      \
	  "the blocks are evicted after others of their tenant (priority above 0), or "   \
	  "leave memory before them (below 0), or are evicted as usual (0). When the "    \
	  "ttl is over they are the first of all")                                        \
	X(pin, 2, "the blocks stay in memory until the ttl is over")                      \
	X(demote, 3, "the blocks are the first to leave memory, and stay on NVMe")        \
	X(prefetch, 4,                                                                    \
	  "the blocks are brought into memory, from NVMe or Redis. Only engines can "     \
	  "give this hint")                                                               \
	X(release, 5,                                                                     \
	  "ends retain and pin; the blocks are the first to be evicted, from memory and " \
	  "from NVMe")                                                                    \
	X(superseded, 6,                                                                  \
	  "does what release does, because other blocks or other weights have taken "     \
	  "their place")                                                                  \
	X(ended, 7, "does what release does, and the session is forgotten")

#define HINT_ANSWERS(X)                                                                   \
	X(accepted, 0, "the hint was done")                                               \
	X(clipped, 1,                                                                     \
	  "a limit was reached (ttl, share, table, room), and the hint was done in part " \
	  "or not at all")                                                                \
	X(deferred, 2,                                                                    \
	  "the hint is done later: a pin when the block comes into memory, a demote "     \
	  "when it is on NVMe and not in use any more")                                   \
	X(rejected, 3,                                                                    \
	  "the hint cannot be done: there is no NVMe tier to demote to, or a model "      \
	  "cannot have this action")                                                      \
	X(missing, 4, "there is no such block, session or revision")

/* One string literal that has " NAME: prose." for each. */
#define HINT_SENTENCE(name, number, prose) " " #name ": " prose "."
#define HINT_ACTIONS_TEXT                  HINT_ACTIONS(HINT_SENTENCE)
#define HINT_ANSWERS_TEXT                  HINT_ANSWERS(HINT_SENTENCE)
