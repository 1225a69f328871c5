/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx512.c - the kernels with AVX-512 F, BW, VL and DQ besides. The compiler gets these flags for
 * this file; select.c calls it only where the CPU has them.
 *
 * The gain is in encode, where a core with AVX2 has the least arithmetic to spare. Decode is that
 * of avx2_math.h in both.
 */
#include "avx512_math.h"
#include "x86_codec.h"

const struct codec_kernels codec_avx512 = {
	.name = "avx512",
	.encode_start = x86_encode_start,
	.decode_start = x86_decode_start,
	.decode_layers = x86_decode_layers,
	.verify_start = x86_verify_start,
	.step = x86_step,
	.fence = x86_fence,
	.copy = x86_copy,
	.encode_run = x86_encode_run,
	.decode_run = x86_decode_run,
};
