/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own.h - files of this daemon, known by their inodes: a path of one may lead to another file some
 * day, or to none, when somebody cleans /tmp or starts a second daemon. Any thread.
 */
#ifndef KVTIER_OWN_H
#define KVTIER_OWN_H

#include <stdint.h>

struct own {
	uint64_t device, inode; /* of a block device: its number, and 0 */
};

enum own_state { OWN_THERE, OWN_GONE, OWN_REPLACED };

int own_at(const char *path, struct own *ret); /* links are followed; 0 or -errno */
int own_fd(int fd, struct own *ret);           /* likewise */
/* OWN_THERE also where the path cannot be looked at. */
enum own_state own_look(const char *path, const struct own *own);
/* Nobody has touched it for a day: touches it, so that what cleans /tmp by age keeps it. */
void own_keep(const char *path);
void own_unlink(const char *path, const struct own *own); /* unless another file lies there */

#endif
