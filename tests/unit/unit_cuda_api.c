/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_cuda_api - client/cuda_api.h agrees with the toolkit's own header.
 *
 * The compiler does it: where the toolkit's cuda.h is, each constant, the layout of each struct and
 * the prototype of each call at its version is held to it. Without a toolkit the test is skipped.
 */
#include <stdio.h>

#if __has_include("/usr/local/cuda/include/cudaTypedefs.h")
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include "/usr/local/cuda/include/cuda.h"
#include "/usr/local/cuda/include/cudaTypedefs.h"
#pragma GCC diagnostic pop
#define HAVE_TOOLKIT 1
#endif

#include "client/cuda_api.h"

#ifdef HAVE_TOOLKIT
#define VALUE(name, value) static_assert((int)(name) == (value), #name);
CUDA_RESULTS(VALUE)
CUDA_VALUES(VALUE)

#define PROTOTYPE(name, version, arguments)                                 \
	static_assert(__builtin_types_compatible_p(PFN_##name##_v##version, \
						   CUresult(*) arguments),  \
		      #name);
CUDA_CALLS(PROTOTYPE)

static_assert(offsetof(CUmemAllocationProp, requestedHandleTypes) == 4, "");
static_assert(offsetof(CUmemAllocationProp, win32HandleMetaData) == 16, "");
static_assert(offsetof(CUmemAllocationProp, allocFlags.usage) == 26, "");
static_assert(offsetof(CUmemLocation, id) == 4 && sizeof(CUmemLocation) == 8, "");
static_assert(offsetof(CUmemAccessDesc, flags) == 8, "");
static_assert(offsetof(CUDA_MEMCPY2D, srcDevice) == 32, "");
static_assert(offsetof(CUDA_MEMCPY2D, dstHost) == 80, "");
static_assert(offsetof(CUDA_MEMCPY2D, Height) == 120, "");
static_assert(sizeof(CUpointer_attribute) == 4 && sizeof(CUmemAllocationHandleType) == 4, "");
static_assert((CUdevice_attribute)-1 > 0, "the enums are unsigned");
#endif

int main(void)
{
#ifdef HAVE_TOOLKIT
	printf("the %d calls of cuda_api.h are those of CUDA %d\n",
	       (int)(sizeof(struct cuda_api) / sizeof(void *)), CUDA_VERSION);
	return 0;
#else
	printf("no /usr/local/cuda/include/cudaTypedefs.h to compare with\n");
	return 77;
#endif
}
