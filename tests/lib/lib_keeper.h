/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_keeper.h - a service manager in the place of systemd, as far as its file descriptor store
 * goes: it keeps descriptors that kvtierd sends to $NOTIFY_SOCKET, and gives them to the next
 * kvtierd. One keeper a program. Helpers end the test when they cannot do their part.
 */
#ifndef KVTIER_TESTS_LIB_KEEPER_H
#define KVTIER_TESTS_LIB_KEEPER_H

#include <stdint.h>

/* $NOTIFY_SOCKET from now on, with a thread that listens. */
void keeper_open(void);
/* It lets go of all. */
void keeper_close(void);
/* All that was sent until now is kept or gone. Before a kvtierd is started, and before the next. */
void keeper_settle(void);
/* daemon.enter: passes the kept descriptors on, with their names. */
void keeper_enter(void);
/* How many are kept whose name ends so ("" any). */
uint32_t keeper_count(const char *end);
/* A duplicate of the i-th of these, the caller's; -1: there are not so many. */
int keeper_fd(const char *end, uint32_t i);
/* Keeps this descriptor, too, as if it had been sent; takes it. */
void keeper_add(const char *name, int fd);
/* The whole name of the i-th of these. */
const char *keeper_name(const char *end, uint32_t i);

#endif
