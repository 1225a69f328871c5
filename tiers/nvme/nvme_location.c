/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_location.c - see nvme_location.h. Pure; any thread.
 */
#include "nvme_location.h"

#include <assert.h>

#include "tiers/tier.h"

enum {
	GENERATION_BITS = 19,
	PAGE_SHIFT = GENERATION_BITS,
	SEGMENT_SHIFT = PAGE_SHIFT + 16,
	TAG_SHIFT = SEGMENT_SHIFT + 16,
	DISK_SHIFT = TAG_SHIFT + 1,
};
static_assert(NVME_GENERATIONS == 1 << GENERATION_BITS, "generation");
static_assert(NVME_MAX_DISKS == 1 << (56 - DISK_SHIFT), "a location has 56 bits");

uint64_t nvme_location_pack(uint8_t disk, bool tag_page, uint32_t segment, uint32_t page,
			    uint32_t generation)
{
	return (uint64_t)disk << DISK_SHIFT | (uint64_t)tag_page << TAG_SHIFT |
	       (uint64_t)segment << SEGMENT_SHIFT | (uint64_t)page << PAGE_SHIFT | generation;
}

uint8_t nvme_location_disk(uint64_t location)
{
	return (uint8_t)(location >> DISK_SHIFT);
}

bool nvme_location_tag_page(uint64_t location)
{
	return location >> TAG_SHIFT & 1;
}

uint32_t nvme_location_segment(uint64_t location)
{
	return location >> SEGMENT_SHIFT & 0xffff;
}

uint32_t nvme_location_page(uint64_t location)
{
	return location >> PAGE_SHIFT & 0xffff;
}

uint32_t nvme_location_generation(uint64_t location)
{
	return location & (NVME_GENERATIONS - 1);
}

void nvme_location_extent(uint64_t location, struct extent *ret)
{
	*ret = (struct extent){
		.tier = TIER_NVME,
		.unit = nvme_location_disk(location),
		.slot = nvme_location_segment(location) << 16 | nvme_location_page(location),
		.generation = (uint32_t)nvme_location_tag_page(location) << GENERATION_BITS |
			      nvme_location_generation(location),
	};
}

uint64_t nvme_extent_location(const struct extent *where)
{
	return (uint64_t)where->unit << DISK_SHIFT |
	       (uint64_t)(where->generation >> GENERATION_BITS & 1) << TAG_SHIFT |
	       (uint64_t)where->slot << PAGE_SHIFT | (where->generation & (NVME_GENERATIONS - 1));
}
