/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.h - the files that this daemon believes in: lock, stats page, sockets, NVMe's paths. Now
 * and then a helper looks whether each path still leads to the file; status and log say where it
 * does not. A file that nobody has touched for a day is touched, so that what cleans /tmp keeps it.
 * Core thread only.
 */
#ifndef KVTIER_FILES_H
#define KVTIER_FILES_H

#include <stdbool.h>

struct files;
struct kvtierd;

/* The sockets are there. 0 or -errno. */
int files_open(struct kvtierd *d, struct files **ret);
void files_close(struct files *f);      /* not busy; NULL is fine */
void files_look(struct files *f);       /* with each heartbeat; NULL is fine */
bool files_busy(const struct files *f); /* a look is under way; NULL: no */

#endif
