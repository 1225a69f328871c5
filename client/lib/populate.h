/* SPDX-License-Identifier: Apache-2.0 */
/* populate.h - pages of shared regions are allocated before the daemon sees them. */
#ifndef KVTIER_LIB_POPULATE_H
#define KVTIER_LIB_POPULATE_H

#include <stddef.h>
#include <stdint.h>

#include "client/kvtier.h"

struct populate;
/* *ret NULL: a region cannot be mapped, and the daemon will say why. -ENOMEM. Arguments have passed
 * check_layout(). */
int populate_open(const struct kvtier_geometry *geometry, const struct kvtier_region *regions,
		  size_t n_regions, const struct kvtier_segment *segments, size_t n_segments,
		  struct populate **ret);
void populate_close(struct populate *populate);
/* Before the first use of each page. No lock held. populate may be NULL. -ETIMEDOUT. */
int populate_pages(struct populate *populate, const uint32_t *pages, size_t n,
		   uint64_t deadline_ns);
/* the daemon refused the page: it is touched again. Any lock */
void populate_forget(struct populate *populate, uint32_t page);
void populate_touch(uint8_t *base, uint64_t n); /* aligned to 4096 */

#endif
