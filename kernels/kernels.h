/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h - gather+encode and decode+scatter between engine pages and images.
 *
 * One const table per implementation: `ref` is plain C, the oracle and the fallback; `avx2` and
 * `vbmi2` agree with it bit for bit. codec_kernels() picks by CPU at run time. The arithmetic of
 * one value is in fp8.h and int8.h, which host and device compilers both can include.
 *
 * Work is done in steps of bounded size, so that a caller can stop an image, or see to another one,
 * between two. Threads: any; a call touches only its arguments. Pages may be changed by their owner
 * while they are read: every function must stay memory-safe, and hashes the bytes that it wrote,
 * never a second read of the page. Pages have the alignment of their dtype, no more.
 */
#pragma once

#include "image.h"
#include "nibbles.h"

enum {
	CODEC_SCRATCH_BYTES = 512 << 10, /* per thread, 64-byte aligned; L2-resident */
	CODEC_PIECE_BYTES = 64 << 10,    /* the usual budget of a step */
	CODEC_RUN_BYTES = 2048,
	CODEC_MORE = 1, /* a step's answer: it is not done yet */
};

/* One image on its way. The memory is the caller's, its contents are the kernels' own. */
struct codec_run {
	_Alignas(64) uint8_t own[CODEC_RUN_BYTES];
};

struct codec_kernels {
	const char *name;

	/* Page -> image: header, scales, payload, checksum, header crc, in one pass over the page.
	 * image: shape.image_bytes, 4096-aligned, private to the caller. codec_k/codec_v as asked
	 * for. The steps end with 0, or with -ERANGE where a codec cannot hold a group (NaN, Inf,
	 * overflow, underflow), or a lossless image would be longer than shape.image_bytes. Then
	 * the image is undefined, and the caller encodes again as CODEC_RAW. A shorter lossless
	 * image has zeros behind it, up to shape.image_bytes. */
	int (*encode_start)(struct codec_run *run, const struct page_layout *layout, uint64_t page,
			    enum image_codec codec_k, enum image_codec codec_v,
			    const struct image_identity *identity, uint8_t *image);

	/* Image -> page. The header must have passed image_header_check() against layout->geometry;
	 * it is read once. 0, or -EBADMSG: the run was not begun. Does not verify the checksum. The
	 * steps end with 0, or with -EBADMSG at a lossless pack whose length is not what its bits
	 * say: that pack's values were not written, those before it were. */
	int (*decode_start)(struct codec_run *run, const struct page_layout *layout, uint64_t page,
			    const uint8_t *image);

	/* Right after decode_start(): the steps do only these layers [first, end); with the last
	 * layer also the typed and opaque bytes. first < end <= layers */
	void (*decode_layers)(struct codec_run *run, uint32_t first, uint32_t end);

	/* The steps end with 0, or with -EBADMSG: the image's bytes do not have this checksum. */
	void (*verify_start)(struct codec_run *run, const uint8_t *image,
			     const struct image_shape *shape, uint64_t checksum);

	/* Goes on with a run: CODEC_MORE, or the status that it ends with.
	 *
	 * A step does at least one tile (tiles.h), and stops when the cost of its tiles reaches the
	 * budget. A tile costs its bytes in the page, and 4 KiB for each row that lies in a page of
	 * memory of its own. So at CODEC_PIECE_BYTES a step touches 64 KiB, or one tile if that is
	 * larger (at head dim 4096: 128 KiB, or 512 KiB for int8).
	 *
	 * A caller may drop a run between two steps: the image is then undefined, or the page
	 * partly written. Another thread may take the run over there, if the thread that leaves it
	 * calls fence() first. The memory that the arguments of start point to must stay until the
	 * last step. Scratch is free between steps; a run that verifies takes NULL. */
	int (*step)(struct codec_run *run, uint32_t budget, uint8_t *scratch);
	void (*fence)(void); /* orders the steps' stores; the last step has done so itself */

	/* Non-temporal copy: the limit that benches compare with, and raw runs use. Any
	 * alignment. */
	void (*copy)(void *dst, const void *src, size_t n);

	/* FP8 codes as fewer bytes, and back; form.h uses them. */
	nibbles_pack_fn *nibbles_pack;
	nibbles_unpack_fn *nibbles_unpack;
};

extern const struct codec_kernels codec_ref;
/* callable only where the CPU has AVX2+FMA+F16C+BMI2 */
extern const struct codec_kernels codec_avx2;
/* callable only where the CPU has AVX-512 F+BW+VL+DQ+VBMI2, too */
extern const struct codec_kernels codec_vbmi2;

/* Verifies a whole image: verify_start() and all steps. */
int codec_verify(const struct codec_kernels *kernels, const uint8_t *image,
		 const struct image_shape *shape, uint64_t checksum);

/* How far the values of an image are from its page's: sums of the squares of the page's values, and
 * of the differences. Their ratio's root is the relative error (RMS). */
struct codec_error {
	double squares, errors; /* both 0: no tile was compared */
	double int8_errors;     /* what errors would be if the planes that are fp8 were int8 */
	/* of the K planes that are fp8, and what they would be if these were k4 */
	double k_errors, k4_errors;
};

/* Compares a sample of at most `sample` (> 0, even) bytes of the page, from tiles that are fp8 or
 * int8, with the image that was just made of this page, which is whole and private to the caller. A
 * page that its owner changed since then shows as error. */
void codec_error_start(struct codec_run *run, const struct page_layout *layout, uint64_t page,
		       const uint8_t *image, uint32_t sample);
/* Goes on: CODEC_MORE, or 0: *ret is set. A step does at least one tile, and stops when it has
 * compared `budget` bytes; a tile that it passes over counts as 4. A microsecond for some 100
 * bytes. What the arguments of start point to must stay until the last step. */
int codec_error_step(struct codec_run *run, uint32_t budget, struct codec_error *ret);

/* name NULL: the best for this CPU. Else the table of this name ("ref", "avx2", ...), or NULL if
 * this CPU cannot run it. */
const struct codec_kernels *codec_kernels(const char *name);
