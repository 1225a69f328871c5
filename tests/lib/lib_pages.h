/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_pages.h - layouts of pages for tests of codecs: engines' layouts, by name, and random ones.
 * Pieces lie at addresses that count from `base`; the caller has pages->bytes of memory there.
 */
#pragma once

#include <stdbool.h>

#include "kernels/kernels.h"
#include "random.h"

enum { PAGES_MAX_PIECES = 160 };

struct pages {
	struct page_layout layout;
	struct page_piece pieces[PAGES_MAX_PIECES];
	uint64_t base, n_pages, bytes;
};

/* Of engines: geometry and order of their pages. */
struct pages_named {
	const char *name;
	struct image_geometry geometry; /* opaque_bytes: found */
	enum {
		PAGES_TOKEN_MAJOR,  /* K and V apart: [page][token][head][dim] */
		PAGES_HEAD_MAJOR,   /* K and V apart: [page][head][token][dim] */
		PAGES_TOGETHER,     /* [page][K, V][token][head][dim] */
		PAGES_SIDE_BY_SIDE, /* [page][token][head][K dims, V dims] */
		PAGES_CROSS_LAYER,  /* [page][layer][K, V][token][head][dim], in one region */
		PAGES_LATENT,       /* [page][token][K dims, opaque_row bytes] of each layer: MLA */
		PAGES_ROWS,         /* [page][token][opaque_row bytes] of each layer, opaque */
		PAGES_TYPED,        /* typed segments, one after the other */
	} order;
	uint32_t opaque_row;
};

extern const struct pages_named pages_named[];
extern const uint32_t pages_named_n;

/* n_pages pages, at `base`; each piece's region begins at a multiple of 256 plus `shift`. */
void pages_make(struct pages *ret, const struct pages_named *named, uint32_t dtype, uint64_t base,
		uint64_t n_pages, uint64_t shift);
/* Any geometry with at most `most` values a plane, any order, strides with gaps, alignments of the
 * dtype and no more. */
void pages_random(struct pages *ret, struct random *random, uint32_t dtype, uint64_t base);
/* A whole image in one call: start and all steps. */
int codec_encode(const struct codec_kernels *kernels, const struct page_layout *layout,
		 uint64_t page, enum image_codec codec_k, enum image_codec codec_v,
		 const struct image_identity *identity, uint8_t *image, uint8_t *scratch);
int codec_decode(const struct codec_kernels *kernels, const struct page_layout *layout,
		 uint64_t page, const uint8_t *image, uint8_t *scratch);
/* TEST_FAST(name) is a test of each fast implementation, and begins with codec_or_skip(). */
#define CODEC_ROW(name, kernels)                                                \
	{                                                                       \
		kernels "_" #name, name, NULL, NULL, (void *)(uintptr_t)kernels \
	}
#define TEST_FAST(name) TEST_ROWS(name, CODEC_ROW(name, "avx2"), CODEC_ROW(name, "vbmi2"))
/* The implementation of this name. Skips the test where this CPU has not got it. */
const struct codec_kernels *codec_or_skip(const char *name);
/* The value of a 16-bit code, which is no Inf and no NaN. */
double codec_value(int is_fp16, uint32_t code);
/* Describes them in one line, for a failing test. */
void pages_print(const struct pages *pages);
