/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_kvtierctl.h - shared by unit_kvtierctl*.c: a directory with a stats page, the built program
 * run there, and a child that plays the daemon's admin socket by a script. The program is
 * $KVTIERCTL, or lies in the test's directory or its parent.
 */
#ifndef KVTIER_TESTS_LIB_KVTIERCTL_H
#define KVTIER_TESTS_LIB_KVTIERCTL_H

#include <stdbool.h>
#include <sys/types.h>

#include "daemon/stats/stats.h"
#include "lib_scratch.h"
#include "test.h"

extern struct tool {
	char program[512], dir[SCRATCH_BYTES], path[96] /* of the stats page */, admin[96];
	char output[1 << 16]; /* its output on both streams */
	struct stats *page;
	/* Not 0: the page is of a daemon that has been up for just so long. Less than the machine
	 * has been up, or the clock has no such start: a minute, not hours. */
	uint64_t uptime_ns;
} tool;

struct tool_packet {
	useconds_t after_us;
	const char *text;
};

bool tool_find(void); /* false: kvtierctl is not built */
/* Around a case: the directory, and in it the page of a daemon that lives. */
int tool_set_up(void **unused);
int tool_tear_down(void **unused);
int tool_run(const char *arguments); /* exit status */
/* A child that takes one request and answers with these packets, {0} the last; its pid. */
pid_t tool_play(const struct tool_packet *script);
/* tool_run() beside such a child. */
int tool_run_with(const char *arguments, const struct tool_packet *script);
void tool_says(const char *words); /* asserts that the output has them */
/* The value at a path of the JSON text in the output. */
char *tool_json_at(const char *where);
uint64_t tool_now_ns(void);

#endif
