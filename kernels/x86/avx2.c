/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx2.c - the kernels with AVX2, FMA, F16C and BMI2. The compiler gets these flags for this file;
 * select.c calls it only where the CPU has them.
 */
#include "kernels/x86/math/avx2_int8.h"
#include "kernels/x86/math/avx2_lossless.h"
#include "kernels/x86/math/avx2_nibbles.h"
#include "kernels/x86/math/avx2_q4.h"

#define X86_KERNELS codec_avx2
#define X86_NAME    "avx2"
#include "x86_codec.h"
