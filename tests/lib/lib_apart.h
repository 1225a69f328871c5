/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_apart.h - clients of one test that are processes of their own for the daemon: guarantees and
 * queues are by process. The linker puts connect() of lib_apart.c in front of the system's
 * (wrap=connect): a child connects the test's socket, so the kernel names the child as its peer.
 * The child lives as long as the test.
 */
#pragma once

#include <stdbool.h>

/* Clients that connect from here on are processes of their own; at first they are. */
void clients_apart(bool apart);
