/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fatbin.c - codec.cu as nvcc compiled it for each GPU, inside the program. The Makefile names the
 * file where there is nvcc; without it the image has no bytes, and no CUDA region can be used.
 */
#include "fatbin.h"

#ifdef CUDA_FATBIN

__asm__(".section .rodata\n"
	".balign 64\n"
	".globl kvtier_cuda_image, kvtier_cuda_image_bytes\n"
	".hidden kvtier_cuda_image, kvtier_cuda_image_bytes\n"
	"kvtier_cuda_image:\n"
	".incbin \"" CUDA_FATBIN "\"\n"
	"0:\n"
	".balign 8\n"
	"kvtier_cuda_image_bytes:\n"
	".quad 0b - kvtier_cuda_image\n"
	".previous\n");

#else

const unsigned char kvtier_cuda_image[] = { 0 };
const size_t kvtier_cuda_image_bytes = 0;

#endif
