/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - a client's segment list, checked and brought into canonical order. Pure; core thread.
 */
#ifndef KVTIER_LAYOUT_H
#define KVTIER_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "client/wire.h"
#include "kernels/image.h"

/* Builds ret->pieces (calloc'ed; free with layout_free) over mapped regions. *ret_pages: page
 * indices below it lie inside their regions for every segment (0 when there are no segments).
 * -EINVAL with text naming segment, field and limit: unknown kind or region, a layer twice or
 * missing, strides that overflow, misaligned values, counts that differ from the geometry's, no
 * room for a single page. */
int layout_build(const struct wire_segment *segments, uint32_t n, uint8_t *const *region_bases,
		 const uint64_t *region_lengths, uint32_t n_regions,
		 const struct image_geometry *geometry, struct page_layout *ret,
		 uint64_t *ret_pages, char *text, size_t text_bytes);
void layout_free(struct page_layout *layout);

#endif
