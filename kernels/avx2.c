/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx2.c - the kernels with AVX2, FMA, F16C and BMI2. Compiled with those; called only where select.c found
 * them.
 */
#include "avx2_math.h"
#include "x86_codec.h"

const struct codec_kernels codec_avx2 = {
	.name = "avx2",
	.encode = x86_encode,
	.decode = x86_decode,
	.copy = x86_copy,
	.checksum = x86_checksum,
	.encode_run = x86_encode_run,
	.decode_run = x86_decode_run,
};
