/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h - gather+encode and decode+scatter between engine pages and images.
 *
 * One const table per implementation: `ref` is plain C, the oracle and the fallback; `avx2` and `avx512`
 * agree with it bit for bit. codec_kernels() picks by CPU at run time.
 * The arithmetic of one value is in fp8.h, which host and device compilers both include.
 *
 * Threads: any; a call touches only its arguments. Pages may be changed by their owner while they are
 * read: every function must stay memory-safe, and what it hashes is what it wrote, never a second read
 * of the page. Pages have the alignment of their dtype, no more.
 */
#ifndef KVTIER_KERNELS_H
#define KVTIER_KERNELS_H

#include "image.h"

enum { CODEC_SCRATCH_BYTES = 512 << 10 };	/* per thread, 64-byte aligned; L2-resident */

struct codec_kernels {
	const char *name;

	/* Page -> image: header, scales, payload, checksum, header crc, in one pass over the page.
	 * image: shape.image_bytes, 4096-aligned, private to the caller. codec_k/codec_v as asked for.
	 * 0; -ERANGE: fp8 cannot hold a group (NaN, Inf, overflow, underflow): the image is then
	 * undefined and the caller encodes again as CODEC_RAW. */
	int (*encode)(const struct page_layout *layout, uint64_t page, enum image_codec codec_k,
		      enum image_codec codec_v, const struct image_identity *identity, uint8_t *image,
		      uint8_t *scratch);

	/* Image -> page. The header must have passed image_header_check() against layout->geometry; it is
	 * read once. 0, or -EBADMSG (then the page is undefined). Does not verify the checksum. */
	int (*decode)(const struct page_layout *layout, uint64_t page, const uint8_t *image,
		      uint8_t *scratch);

	/* Non-temporal copy: the limit that benches compare with, and raw runs use. Any alignment. */
	void (*copy)(void *dst, const void *src, size_t n);

	uint64_t (*checksum)(const uint8_t *image, const struct image_shape *shape);	/* = image_checksum */

	/* Arrays of one group at one exponent k (scale byte = k + 127), for tests over all inputs:
	 * source codes (BF16 or FP16) <-> E4M3 codes. */
	void (*encode_run)(uint32_t dtype, int k, const uint16_t *src, uint8_t *dst, size_t n);
	void (*decode_run)(uint32_t dtype, int k, const uint8_t *src, uint16_t *dst, size_t n);
};

extern const struct codec_kernels codec_ref;
extern const struct codec_kernels codec_avx2;	/* callable only where the CPU has AVX2+FMA+F16C+BMI2 */
extern const struct codec_kernels codec_avx512;	/* only where it has AVX-512 F+BW+VL+DQ besides */

/* The best for this CPU; name NULL: by CPU, else that one ("ref", "avx2", ...) or NULL if it cannot run. */
const struct codec_kernels *codec_kernels(const char *name);

#endif
