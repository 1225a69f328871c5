/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_cuda_codec.h - the CUDA kernels beside ref.c, without a driver: a piece of memory plays the
 * device's. A kernel may read and write exactly the bytes that its launch is about, byte by byte:
 * one byte beside them, and the launch fails. With KVTIER_REAL_GPU=1 the launches go to this
 * machine's GPU; then only a kernel's writes are checked so.
 */
#pragma once

#include "kernels/cuda/codec.h"
#include "kernels/kernels.h"
#include "lib_pages.h"

enum {
	CUDA_BED_PAGES = 4 << 20,
	CUDA_BED_IMAGE = 4 << 20,
	CUDA_BED_BYTES = CUDA_BED_PAGES + CUDA_BED_IMAGE + (64 << 10),
	CUDA_BED_FILLER = 0xa5,
};
#define CUDA_BED_DEVICE 0x7e0000000000ull /* the device's address of the memory */

struct cuda_bed {
	struct random random;
	uint8_t *memory; /* pages, image, tables */
	uint8_t *rights; /* of each byte: 1 read, 2 write */
	uint8_t *twin;   /* the pages once more, for ref.c */
	uint8_t *image;  /* of ref.c */
	struct pages pages;
	struct page_piece twin_pieces[PAGES_MAX_PIECES];
	struct page_layout twin_host; /* where the CPU finds the twin */
	struct cuda_plan plan;
	struct cuda_piece table[PAGES_MAX_PIECES];
	enum image_codec codec_k, codec_v;
	struct image_shape shape;
	uint64_t page;
	uint32_t change_first, change_n; /* reads at which the page's owner writes to it */
	uint32_t reads;                  /* of the page, so far */
	uint32_t max_ranges;             /* an image is done in 1 .. max_ranges tasks */
	uint32_t max_blocks;             /* of a grid */
	uint32_t mark;                   /* of this encode's launches */
};

/* The fixtures of a program's cases, whose *state is the bed. */
int cuda_bed_begin(void **state);
int cuda_bed_end(void **state);
/* bed->pages is laid out at CUDA_BED_DEVICE; picks one page of them. False: it takes more room than
 * there is. */
bool cuda_bed_plan(struct cuda_bed *bed, enum image_codec codec_k, enum image_codec codec_v);
/* Any values that are finite; at times all zeros, or tiny ones among them. */
void cuda_bed_fill(struct cuda_bed *bed);
/* Encodes the page with both and compares all bytes: 0, or -ERANGE of both. The image of ref.c
 * stays in bed->image. Asserts. */
int cuda_bed_encode(struct cuda_bed *bed);
/* Decodes bed->image with both into pages of filler, and compares all bytes. Asserts. */
void cuda_bed_decode(struct cuda_bed *bed);
/* The same of any bytes: 0, or -EBADMSG of both; then pages differ. */
int cuda_bed_decode_any(struct cuda_bed *bed);
/* Encodes tiles [from, to), allowed to touch their bytes of the image alone. Asserts. */
void cuda_bed_range(struct cuda_bed *bed, uint32_t from, uint32_t to);
/* Encodes each tile by a task of its own: asserts that the first n set flags, and no other. */
void cuda_bed_flags(struct cuda_bed *bed, uint32_t n);
/* Encodes a page that changes at n reads of it, 0 the first: asserts that no code is NaN, and that
 * packs are right unless they are refused. */
void cuda_bed_changing(struct cuda_bed *bed, uint32_t first, uint32_t n);
/* Both, of bed->pages as they are. */
int cuda_bed_both(struct cuda_bed *bed, enum image_codec codec_k, enum image_codec codec_v);
