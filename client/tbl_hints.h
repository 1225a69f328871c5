/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_hints.h - the actions of hints and the answers to them, once: the names that kvtierctl takes
 * and shows, the daemon's counters, kvtierctl's help and manual are made of these. The numbers: as
 * enum kvtier_hint_action and enum kvtier_hint_answer.
 *
 *	X(name, number, prose)
 */
#ifndef KVTIER_TBL_HINTS_H
#define KVTIER_TBL_HINTS_H

#define HINT_ACTIONS(X)                                                                          \
	X(retain, 1,                                                                             \
	  "blocks go after others of their tenant (priority above 0), first from memory (below " \
	  "0), or as usual (0); when the ttl is over they go first of all")                      \
	X(pin, 2, "blocks stay in memory until the ttl is over")                                 \
	X(demote, 3, "blocks are the first to leave memory, and stay on NVMe")                   \
	X(prefetch, 4, "blocks are brought into memory, from NVMe or Redis")                     \
	X(release, 5, "takes retain and pin back; the blocks are the first to go, everywhere")   \
	X(superseded, 6, "as release: other blocks, or other weights, have taken their place")   \
	X(ended, 7, "as release, and the session is forgotten")

#define HINT_ANSWERS(X)                                                                        \
	X(accepted, 0, "done")                                                                 \
	X(clipped, 1,                                                                          \
	  "done in part, or not at all, as a bound was reached: ttl, share, table, room")      \
	X(deferred, 2,                                                                         \
	  "done later: of a pin, when the block comes into memory; of demote, when "           \
	  "it is on NVMe, and not in use any more")                                            \
	X(rejected, 3, "it cannot be: no NVMe tier to demote to, or the action of a revision") \
	X(missing, 4, "there is no such block, session or revision")

/* " NAME: prose." of each, one string literal. */
#define HINT_SENTENCE(name, number, prose) " " #name ": " prose "."
#define HINT_ACTIONS_TEXT                  HINT_ACTIONS(HINT_SENTENCE)
#define HINT_ANSWERS_TEXT                  HINT_ANSWERS(HINT_SENTENCE)

#endif
