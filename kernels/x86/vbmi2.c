/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vbmi2.c - the kernels with AVX-512 VBMI2 besides, which CPUs from Ice Lake and Zen 4 on have. The
 * compiler gets these flags for this file; select.c calls it only where the CPU has them.
 *
 * The gain is in lossless and in the coded form: values that are not near are moved together, and
 * apart, by one instruction. All else is that of avx512.c.
 */
#include "kernels/x86/math/avx512_int8.h"
#include "kernels/x86/math/avx512_lossless.h"
#include "kernels/x86/math/avx512_nibbles.h"
#include "kernels/x86/math/avx2_q4.h"

#define X86_KERNELS codec_vbmi2
#define X86_NAME    "vbmi2"
#define X86_VBMI2
#include "x86_codec.h"
