/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_kvtierctl.h - for unit_kvtierctl*.c: a directory with a stats page, the built program run
 * there, a child that plays the daemon's admin socket by a script, and one that has the page, for
 * unit_stats.c, too. The program is $KVTIERCTL, or lies in the test's directory or its parent.
 */
#pragma once

#include "base/clock.h"
#include "daemon/stats/stats.h"
#include "lib_scratch.h"
#include "test.h"

extern struct tool {
	char program[512], dir[SCRATCH_BYTES], path[96] /* of the stats page */, admin[96];
	char output[1 << 18]; /* its output on both streams */
	struct stats *page;
	/* Not 0: the page is of a daemon that has been up for just so long. Less than the machine
	 * has been up, or the clock has no such start: a minute, not hours. */
	uint64_t uptime_ns;
	uint64_t silent_ns; /* and its last heartbeat was so long ago */
} tool;

struct tool_packet {
	useconds_t after_us;
	const char *text;
};

void tool_needed(void); /* finds kvtierctl; the test is skipped where it is not built */
/* Around a case: the directory, and in it the page of a daemon that lives. */
int tool_set_up(void **unused);
int tool_tear_down(void **unused);
int tool_run(const char *arguments);   /* exit status */
int tool_command(const char *command); /* the shell's, whatever it runs */
/* A child that takes one request and answers with these packets, {0} the last; its pid. */
pid_t tool_play(const struct tool_packet *script);
/* tool_run() beside such a child. */
int tool_run_with(const char *arguments, const struct tool_packet *script);
/* Likewise; it answers at once, with one packet or two. */
int tool_told(const char *arguments, const char *packet, const char *second);
/* The page becomes that of a child, which waits to be stopped or to end; its pid. */
pid_t tool_child(void);
void tool_child_stops(pid_t child);
void tool_child_ends(pid_t child);
void tool_says(const char *words); /* asserts that the output has them */
/* The value at a path of the JSON text in the output. */
char *tool_json_at(const char *where);
