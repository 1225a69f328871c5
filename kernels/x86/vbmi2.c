/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vbmi2.c - the kernels with AVX-512 F, BW, VL, DQ and VBMI2 besides, which CPUs from Ice Lake and
 * Zen 4 on have. The compiler gets these flags for this file; select.c calls it only where the CPU
 * has them.
 *
 * The gain is in encode, where a core with AVX2 has the least arithmetic to spare, and in lossless
 * and the coded form: values that are not near are moved together, and apart, by one instruction.
 * Decode of fp8 and int8 is that of AVX2.
 */
#include "kernels/x86/math/avx512_int8.h"
#include "kernels/x86/math/avx512_lossless.h"
#include "kernels/x86/math/avx2_q4.h"

#define X86_KERNELS codec_vbmi2
#define X86_NAME    "vbmi2"
#define X86_VBMI2
#include "x86_codec.h"
