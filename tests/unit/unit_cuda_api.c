/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_cuda_api - client/abi/cuda_api.h agrees with the toolkit's own header; each result has an
 * -errno.
 *
 * The compiler does the first: where the toolkit's cuda.h is, each constant, the layout of each
 * struct and the prototype of each call at its version is held to it. Without a toolkit the test
 * the first is skipped.
 */
#if __has_include("/usr/local/cuda/include/cudaTypedefs.h")
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include "/usr/local/cuda/include/cuda.h"
#include "/usr/local/cuda/include/cudaTypedefs.h"
#pragma GCC diagnostic pop
#define HAVE_TOOLKIT 1
#endif

#include "tests/gpu/emu/cuda_more.h"
#include "tests/lib/test.h"

#ifdef HAVE_TOOLKIT
#define VALUE(name, value) static_assert((int)(name) == (value), #name);
CUDA_RESULTS(VALUE)
CUDA_VALUES(VALUE)
CUDA_MORE_VALUES(VALUE)

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

/* 0 is success alone. */
TEST(each_result_has_an_errno)
{
#define ROW(name, value) assert_int_equal(cuda_errno(name) == 0, (value) == 0);
	CUDA_RESULTS(ROW)
#undef ROW
	assert_int_equal(cuda_errno(CUDA_ERROR_OUT_OF_MEMORY), -ENOMEM);
	assert_int_equal(cuda_errno(CUDA_ERROR_INVALID_HANDLE), -EINVAL);
	assert_int_equal(cuda_errno(CUDA_ERROR_NOT_SUPPORTED), -EOPNOTSUPP);
	assert_int_equal(cuda_errno(CUDA_ERROR_NOT_PERMITTED), -EPERM);
	assert_int_equal(cuda_errno(CUDA_ERROR_LAUNCH_FAILED), -EIO); /* no row of its own */
	assert_int_equal(cuda_errno((CUresult)12345), -EIO);
}

TEST(the_calls_are_those_of_the_toolkit)
{
#ifdef HAVE_TOOLKIT
	printf("the %d calls of cuda_api.h are those of CUDA %d\n",
	       (int)(sizeof(struct cuda_api) / sizeof(void *)), CUDA_VERSION);
#else
	printf("no /usr/local/cuda/include/cudaTypedefs.h to compare with\n");
	skip();
#endif
}
