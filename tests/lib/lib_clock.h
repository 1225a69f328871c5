/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_clock.h - a clock that the test holds: the machine's CLOCK_MONOTONIC, and as far ahead of it
 * as the test says. So a probe that is due in 30 s is due now, and the test waits only for the
 * machine's work.
 *
 * The linker puts clock_gettime() and epoll_wait() of lib_clock.c in front of the system's
 * (wrap=clock_gettime,epoll_wait): all times of kvtier come from clock_gettime(), and all its
 * timers are waited for in epoll_wait(). A unit test holds the clock of its own process. A test
 * of a daemon shares it: with libkvtier in the test, whose deadlines the daemon reads, and with
 * each kvtierd_clock or kvtierd_faulty that it starts. kvtierctl and all other programs have the
 * machine's clock; lib_clock_daemon.c writes that into the page that kvtierctl reads.
 *
 * Time jumps only where the test says so, and passes between jumps as it does everywhere.
 * Operations that are under way while a jump is made have taken that much longer.
 */
#pragma once

#include "lib.h"

/* So much time passes. With daemons: returns when each of them has looked at its clock and has done
 * all that was due, its heartbeat and its gauges included. */
void clock_pass_ms(uint64_t ms);

/* While it is on, time passes much faster, beside a wait of the test: for a deadline of seconds,
 * where a program stands still. Bounds of the test's own pass as fast. */
void clock_hurry(bool on);

/* From here on daemons that are started have this clock. Again: nothing happens. */
void clock_share(void);

/* After daemon_place(): this one is a kvtierd_clock. */
void clock_hold(struct daemon *d);
/* As daemon_start(), and it is one. */
static inline void clock_daemon_start(struct daemon *d, const char *config)
{
	daemon_place(d, strstr(config, "[nvme]") != NULL);
	clock_hold(d);
	daemon_configure(d, config);
	daemon_restart(d);
}

/* --- for lib_clock_daemon.c --- */

/* In a daemon: its clock is its starter's, if the starter holds one. */
void clock_join(void);
uint64_t clock_ahead_ns(void);
void clock_looked_ns(uint64_t now_ns); /* all that was due until then is done */
