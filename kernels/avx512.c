/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx512.c - the kernels with AVX-512 F, BW, VL and DQ besides. Compiled with those; called only where
 * select.c found them. Worth having for encode, whose arithmetic is what a core with AVX2 has least to spare
 * of; decode is avx2_math.h's in both.
 */
#include "avx512_math.h"
#include "x86_codec.h"

const struct codec_kernels codec_avx512 = {
	.name = "avx512",
	.encode_start = x86_encode_start,
	.decode_start = x86_decode_start,
	.verify_start = x86_verify_start,
	.step = x86_step,
	.fence = x86_fence,
	.copy = x86_copy,
	.encode_run = x86_encode_run,
	.decode_run = x86_decode_run,
};
