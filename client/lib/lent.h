/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent.h - pages that a daemon may still touch although their ops have ended. They belong to the
 * process, not to a client. Any thread; the lock is a leaf below the locks of clients.
 */
#ifndef KVTIER_LIB_LENT_H
#define KVTIER_LIB_LENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvtier.h"
#include "client/wire.h"

enum { LENT_GRAVES_MAX = 64 }; /* with so many graves no connection is made */
extern _Atomic uint32_t lent_graves;

/* Where a region lies: its memfd by device and inode; a GPU's memory by its address, which is one
 * for all GPUs. All 0: its memory was taken back. */
struct lent_place {
	uint64_t device, inode, offset, length;
};
enum { LENT_CUDA = 1 }; /* device and inode of a GPU's memory: no memfd has these */
int lent_place_of(int fd, const struct kvtier_region *region, struct lent_place *ret); /* -errno */

/* which memory a space's pages lie in, and how; NULL for staged pages, or none */
struct lent_layout;
int lent_layout_open(const struct lent_place *places, size_t n_places,
		     const struct wire_segment *segments, size_t n_segments,
		     struct lent_layout **ret);
void lent_layout_close(struct lent_layout *layout); /* its space is gone; NULL is fine */

struct grave; /* of one connection; made when it comes up */
/* room for so many pages. Takes pidfd (-1: none) if 0 */
int grave_open(uint32_t room, int pidfd, struct grave **ret);
/* the connection ended without a need for it; NULL is fine */
void grave_close(struct grave *grave);
void grave_add(struct grave *grave, struct lent_layout *layout, uint64_t op, const uint32_t *pages,
	       uint32_t n);
/* Takes the grave and the socket. A number for lent_op(), or 0: nothing is lent, all is closed. */
uint64_t grave_bury(struct grave *grave, int fd);

/* forgets graves whose daemon let go */
void lent_look(void);
/* 0, -EBUSY and its sentence */
int lent_check(const struct lent_layout *layout, const uint32_t *pages, size_t n);
/* pages of an op that are lent still */
uint32_t lent_op(uint64_t grave, uint64_t op);
uint32_t lent_space(const struct lent_layout *layout); /* pages of a space */
/* The lent pages and connections that this process waits for. pid: of the latest connection's
 * daemon, 0: not known. */
struct lent_wait {
	uint64_t pages;
	uint32_t connections;
	int32_t pid;
};
void lent_wait(struct lent_wait *ret);
void lent_fill(const struct lent_layout *layout, uint32_t page, struct kvtier_lent *ret);
size_t lent_list(size_t at, void (*put)(void *arg, size_t at, const struct kvtier_lent *lent),
		 void *arg);
/* some space of this process uses it */
bool lent_memory_open(uint64_t device, uint64_t inode);
/* the memory was taken back */
void lent_forget(uint64_t device, uint64_t inode);
void lent_lock(void); /* for fork() */
void lent_unlock(void);
void lent_child(void); /* in the child: forgets all graves, unlocks */

#endif
