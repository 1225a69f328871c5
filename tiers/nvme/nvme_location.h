/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_location.h - where a record lies, in 56 bits: disk 4 | tag page 1 | segment 16 | page 16 |
 * generation 19. As an extent of the NVMe tier: unit = disk, slot = segment << 16 | page,
 * generation = tag page << 19 | generation, class 0. Pure; any thread.
 */
#ifndef KVTIER_NVME_LOCATION_H
#define KVTIER_NVME_LOCATION_H

#include <stdbool.h>
#include <stdint.h>

struct extent;

enum {
	NVME_NOWHERE = 0,
	NVME_MAX_DISKS = 16,
	/* a segment's run from 1 to the last of these, so no location is NVME_NOWHERE */
	NVME_GENERATIONS = 1 << 19,
};

uint64_t nvme_location_pack(uint8_t disk, bool tag_page, uint32_t segment, uint32_t page,
			    uint32_t generation);
uint8_t nvme_location_disk(uint64_t location);
/* the record begins with a page for its tag */
bool nvme_location_tag_page(uint64_t location);
uint32_t nvme_location_segment(uint64_t location);
uint32_t nvme_location_page(uint64_t location); /* of the image, from the segment's start */
/* of the segment, when the record was written */
uint32_t nvme_location_generation(uint64_t location);
void nvme_location_extent(uint64_t location, struct extent *ret);
uint64_t nvme_extent_location(const struct extent *where);

#endif
