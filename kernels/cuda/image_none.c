/* SPDX-License-Identifier: Apache-2.0 */
/* image_none.c - the compiled kernels of a build without nvcc: none. See codec.h. */
#include "kernels/cuda/codec.h"

const unsigned char kvtier_cuda_image[1] = { 0 };
const size_t kvtier_cuda_image_bytes = 0;
