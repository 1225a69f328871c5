/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=codec_kernels,config_device_depth,config_spin_us (lib_tuned.c) */
/* make: wrap=clock_gettime,epoll_wait,stats_open,stats_heartbeat,pthread_cond_timedwait */
/*
 * kvtierd_clock.c - a kvtierd whose clock the test holds: the linker replaces some calls
 * (lib_clock.h), and nothing else is needed. Never installed.
 */
