/* SPDX-License-Identifier: Apache-2.0 */
/* fatbin.h - codec.cu as nvcc compiled it, inside the program. */
#ifndef KVTIER_KERNELS_CUDA_FATBIN_H
#define KVTIER_KERNELS_CUDA_FATBIN_H

#include <stddef.h>

/* The kernels for each kind of GPU, for cuModuleLoadData(). 0 bytes: there was no nvcc. */
extern const unsigned char kvtier_cuda_image[];
extern const size_t kvtier_cuda_image_bytes;

#endif
