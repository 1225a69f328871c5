/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx512.c - the kernels with AVX-512 F, BW, VL and DQ besides. The compiler gets these flags for
 * this file; select.c calls it only where the CPU has them.
 *
 * The gain is in encode, where a core with AVX2 has the least arithmetic to spare, and in lossless.
 * Decode of fp8 and int8 is that of AVX2 in both.
 */
#include "kernels/x86/math/avx512_int8.h"
#include "kernels/x86/math/avx512_lossless.h"
#include "kernels/x86/math/avx512_nibbles.h"
#include "kernels/x86/math/avx2_q4.h"

#define X86_KERNELS codec_avx512
#define X86_NAME    "avx512"
#include "x86_codec.h"
