/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait,stats_open,stats_heartbeat,pthread_cond_timedwait */
/*
 * kvtierd_clock.c - what makes of kvtierd one whose clock the test holds: nothing but the calls
 * that the linker replaces (lib_clock.h). Never installed.
 */
