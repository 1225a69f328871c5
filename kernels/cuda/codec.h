/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec.h - the arguments of the CUDA kernels: a plan for each layout of pages, a task for each
 * image. Shared by C and CUDA; all of it has a fixed layout.
 *
 * An image is cut into *tiles*, numbered in canonical order (image.h), with any codecs:
 *	planes	[layer][K, V][head][tokens]: up to 64 tokens of one head (4-byte dtypes: 32). So no
 *		group is cut: a tile has four of fp8, or one for each channel of int8 and k4
 *	typed	[segment][group]: up to 1,024 values
 *	opaque	[segment][...]: some whole rows, or a part of one: up to cuda_plan.tile_bytes
 * The plan of a lossless space has packs as tiles of planes and typed segments, and is for images
 * that are lossless or raw.
 * A task does a range of tiles, so a large image can go in pieces, in any order, at any time. An
 * image's scales and its payload may lie apart: cuda_plan_at() says where a tile's scales and
 * payload begin.
 *
 * The kernels (codec.cu), in grids of any size, blocks of CUDA_THREADS:
 *	kvtier_encode(struct cuda_plan, struct cuda_tasks)
 *	kvtier_decode(the same)
 * and, with the plan of a lossless space, whatever the image's codec is:
 *	kvtier_pack_lengths(the same)	all scales of lossless images
 *	kvtier_pack_encode(the same)	their payload, by these scales, and verbatim tiles
 *	kvtier_pack_decode(the same)
 * Both arguments are passed by value, so the tasks of a launch cross no wire of their own. The
 * plan's pieces lie in device memory, at a multiple of 16. Tasks of one launch must not write to
 * the same bytes; their order is free otherwise.
 *
 * The header of an image and the gap between its scales and its payload are the host's: kernels
 * do not touch them. Any scale and any payload are safe to decode, as in ref.c, and pages
 * may change while they are read. A pack whose length is wrong leaves
 * its values as they were.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/image.h"

enum {
	CUDA_THREADS = 512,    /* of a block */
	CUDA_CHUNK_BYTES = 16, /* one access */
	CUDA_CHUNKS = 8,       /* accesses that a thread has in flight */
	CUDA_TASKS = 64,       /* of a launch */
};

/* A page_piece, its base a device address, and what comes before it in an image. */
struct cuda_piece {
	uint64_t base, page_stride, head_stride, token_stride;
	uint32_t length; /* typed: values; opaque: bytes of the run or row */
	uint16_t kind;   /* enum image_kind */
	uint16_t rows;   /* opaque: rows of a tile */
	uint32_t first_tile;
	uint32_t planes_k, planes_v, typed, opaque_bytes; /* before it */
	/* for rows that are not joined: the chunks of a row; the rows that a team does side by
	 * side, or 0 if a row has more chunks than the team has threads; 2^20 / row_chunks, rounded
	 * up */
	uint32_t row_chunks, row_step, row_multiplier, reserved[2];
};
static_assert(sizeof(struct cuda_piece) == 80, "cuda_piece");

/* Division by a number that is known beforehand: tile_quotient() in tile.h. */
struct cuda_divisor {
	uint32_t divisor, multiplier, shift;
};

struct cuda_plan {
	uint64_t pieces; /* device address of n_pieces struct cuda_piece */
	uint32_t n_pieces;
	uint32_t n_tiles;                  /* of an image */
	uint32_t plane_tiles, typed_tiles; /* of these the first, and the next */
	uint32_t n_planes, n_fixed;        /* pieces that are planes, and planes or typed */
	uint32_t is_fp16, element_bytes;
	uint32_t kv_heads, block_tokens, head_dim_k, head_dim_v, typed_values;
	uint32_t planes_k, planes_v, typed_segments, opaque_bytes; /* of an image */
	uint32_t tile_tokens;
	uint32_t tile_values; /* of a typed tile */
	uint32_t lanes;       /* threads that do a tile together: a power of two */
	uint32_t tile_bytes;  /* lanes * CUDA_CHUNKS * CUDA_CHUNK_BYTES */
	/* tiles of a piece; opaque.divisor 0: pieces differ */
	struct cuda_divisor plane, typed, opaque;
	struct cuda_divisor head; /* its tiles */
	/* A lossless space's, else 0: how many tiles are packs; and bytes of a lossless image's
	 * payload, without far parts: of a head of K, of V, and of a typed segment */
	uint32_t packs, packs_k, packs_v, packs_typed, reserved;
};
static_assert(sizeof(struct cuda_plan) == 160, "cuda_plan");

struct cuda_task {
	uint64_t page;
	/* Device addresses of the image's first scale and first byte of payload. Scales and payload
	 * of tiles that the task does not do need not exist. Fast where payload is a multiple of
	 * 16. Lossless: a multiple of 8, and so many bytes further on as the far parts have that
	 * lie before the task's first tile. The kernels count those of the task alone. */
	uint64_t scales, payload;
	/* The address of a 32-bit word, which becomes the launch's mark. Encode: when a codec
	 * cannot hold a group, or lossless tiles do not end before `end`; the image is then
	 * undefined. Decode: at a wrong pack of a lossless image. Not used otherwise. */
	uint64_t flag;
	uint64_t end; /* lossless: the device address behind the payload of the task's tiles */
	uint32_t first_tile, n_tiles;
	uint32_t start;                        /* tiles of the tasks before: cuda_tasks_number() */
	uint8_t codec_k, codec_v, reserved[2]; /* enum image_codec; decode: the header's */
};
static_assert(sizeof(struct cuda_task) == 56, "cuda_task");

/* The tasks of a launch. `mark` is a value that the flags did not have before, so no thread has to
 * clear a flag. */
struct cuda_tasks {
	uint32_t n, n_tiles; /* of all tasks: cuda_tasks_number() */
	uint32_t mark, reserved;
	struct cuda_task task[CUDA_TASKS];
};
static_assert(sizeof(struct cuda_plan) + sizeof(struct cuda_tasks) <= 4096, "kernel parameters");
