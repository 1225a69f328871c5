/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx2.c - the kernels with AVX2, FMA, F16C and BMI2. The compiler gets these flags for this file;
 * select.c calls it only where the CPU has them.
 */
#include "avx2_math.h"
#include "x86_codec.h"

const struct codec_kernels codec_avx2 = {
	.name = "avx2",
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
