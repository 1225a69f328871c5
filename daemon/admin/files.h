/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.h - watches the daemon's own files: its lock, stats page, sockets and NVMe paths. A helper
 * looks every second whether each path still leads to its file, and `status` and the log name a
 * path that does not. The helper also touches a file that was not touched for a day, so that a
 * cleaner of /tmp keeps it. Core thread only.
 */
#pragma once

#include <stdbool.h>

struct files;
struct kvtierd;

/* Call it when the sockets have been made. 0 or -errno. */
int files_open(struct kvtierd *d, struct files **ret);
void files_close(struct files *f);      /* it is not busy, and may be NULL */
void files_look(struct files *f);       /* call it with each heartbeat; f may be NULL */
bool files_busy(const struct files *f); /* the helper is at work; false for NULL */
