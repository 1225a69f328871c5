/* SPDX-License-Identifier: Apache-2.0 */
/* kvtierctl_admin.h - what a command asks the daemon for that answers by itself. */
#pragma once

#include <sys/types.h>

#include "kvtierctl.h"

/* Waits for the next packet of a reply until deadline_ns (CLOCK_MONOTONIC), and puts NUL behind it:
 * packet has CTL_MAX_REPLY + 1 bytes. Returns its length, or -errno. -ECONNRESET: the daemon ended
 * the connection. */
ssize_t next_packet(int fd, uint64_t deadline_ns, char *packet);
/* Takes the bytes of a reply as they come; false: it has said why it wants no more. */
typedef bool take_fn(void *arg, const uint8_t *bytes, size_t n);
/* Asks for images of cached blocks, by the word SPACE and that behind --blocks, which may be NULL.
 * Returns the exit status. */
int ask_images(const struct context *context, const char *space, const char *blocks, take_fn *take,
	       void *arg);

struct json_object;

/* Asks for a list of tbl_lists.h. Returns the exit status, after a reason was printed. *ret, which
 * is NULL before: its rows, an array that the caller puts. */
int ask_list(const struct context *context, const char *name, struct json_object **ret);
/* The member of a row: 0 or "?" if there is none. */
uint64_t number_at(struct json_object *row, const char *name);
const char *text_at(struct json_object *row, const char *name);
/* Prints "12.3 ms: load of 16 blocks of space 0, 3m 2s ago, by client 4 (process 77)", of a row of
 * slowlog. */
void print_slow_op(struct json_object *row);
