/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_api.h - the part of the CUDA driver API that kvtier uses: constants, types, calls, and their
 * loader.
 *
 * Not installed. With it only .cu files need the CUDA toolkit to be built, and no program is linked
 * with libcuda. kvtierd opens the driver itself:
 *
 *	dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), never dlclose()d after cuInit();
 *
 * libkvtier takes the driver that the engine's process already has: the same call with RTLD_NOLOAD.
 * cuda_api_load() then asks the driver's cuGetProcAddress() for each call of the table, with the
 * version for which its prototype was written: a later driver may have another prototype under the
 * same name (cuCtxSynchronize() has an argument from 13.0 on).
 *
 * The names and values are the driver's. A source that has included the toolkit's cuda.h before
 * gets the types from there: then only the tables and the loader are declared, and unit_cuda_api
 * holds each row to that cuda.h.
 */
#pragma once

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

/* name, value: results. cuGetErrorName() knows the others, too. */
#define CUDA_RESULTS(X)                                   \
	X(CUDA_SUCCESS, 0)                                \
	X(CUDA_ERROR_INVALID_VALUE, 1)                    \
	X(CUDA_ERROR_OUT_OF_MEMORY, 2)                    \
	X(CUDA_ERROR_NOT_INITIALIZED, 3)                  \
	X(CUDA_ERROR_DEINITIALIZED, 4)                    \
	X(CUDA_ERROR_STUB_LIBRARY, 34)                    \
	X(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, 36)      \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)              \
	X(CUDA_ERROR_NO_DEVICE, 100)                      \
	X(CUDA_ERROR_INVALID_DEVICE, 101)                 \
	X(CUDA_ERROR_INVALID_IMAGE, 200)                  \
	X(CUDA_ERROR_INVALID_CONTEXT, 201)                \
	X(CUDA_ERROR_MAP_FAILED, 205)                     \
	X(CUDA_ERROR_ALREADY_MAPPED, 208)                 \
	X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)              \
	X(CUDA_ERROR_ECC_UNCORRECTABLE, 214)              \
	X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)        \
	X(CUDA_ERROR_INVALID_PTX, 218)                    \
	X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220)           \
	X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221)         \
	X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)        \
	X(CUDA_ERROR_CONTAINED, 226)                      \
	X(CUDA_ERROR_OPERATING_SYSTEM, 304)               \
	X(CUDA_ERROR_INVALID_HANDLE, 400)                 \
	X(CUDA_ERROR_NOT_FOUND, 500)                      \
	X(CUDA_ERROR_NOT_READY, 600)                      \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                \
	X(CUDA_ERROR_LAUNCH_TIMEOUT, 702)                 \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)           \
	X(CUDA_ERROR_ASSERT, 710)                         \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712) \
	X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)     \
	X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714)           \
	X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715)            \
	X(CUDA_ERROR_MISALIGNED_ADDRESS, 716)             \
	X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717)          \
	X(CUDA_ERROR_INVALID_PC, 718)                     \
	X(CUDA_ERROR_LAUNCH_FAILED, 719)                  \
	X(CUDA_ERROR_TENSOR_MEMORY_LEAK, 721)             \
	X(CUDA_ERROR_NOT_PERMITTED, 800)                  \
	X(CUDA_ERROR_NOT_SUPPORTED, 801)                  \
	X(CUDA_ERROR_SYSTEM_NOT_READY, 802)               \
	X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)         \
	X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804) \
	X(CUDA_ERROR_MPS_CONNECTION_FAILED, 805)          \
	X(CUDA_ERROR_MPS_RPC_FAILURE, 806)                \
	X(CUDA_ERROR_MPS_SERVER_NOT_READY, 807)           \
	X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810)          \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)     \
	X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901)     \
	X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902)           \
	X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903)       \
	X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905)       \
	X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906)        \
	X(CUDA_ERROR_CAPTURED_EVENT, 907)                 \
	X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908)    \
	X(CUDA_ERROR_TIMEOUT, 909)                        \
	X(CUDA_ERROR_EXTERNAL_DEVICE, 911)                \
	X(CUDA_ERROR_KEY_ROTATION, 916)                   \
	X(CUDA_ERROR_UNKNOWN, 999)

/* name, value: all other constants. */
#define CUDA_VALUES(X)                                            \
	X(CU_GET_PROC_ADDRESS_DEFAULT, 0)                         \
	X(CU_GET_PROC_ADDRESS_SUCCESS, 0)                         \
	X(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, 1)                \
	X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)           \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 20)                   \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)       \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)       \
	X(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 122) \
	X(CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 133)                   \
	X(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 134)                  \
	X(CU_COMPUTEMODE_PROHIBITED, 2)                           \
	X(CU_COMPUTEMODE_EXCLUSIVE_PROCESS, 3)                    \
	X(CU_MEMHOSTALLOC_PORTABLE, 1)                            \
	X(CU_MEMHOSTREGISTER_PORTABLE, 1)                         \
	X(CU_MEMHOSTREGISTER_DEVICEMAP, 2)                        \
	X(CU_STREAM_NON_BLOCKING, 1)                              \
	X(CU_STREAM_WAIT_VALUE_GEQ, 0)                            \
	X(CU_STREAM_WRITE_VALUE_DEFAULT, 0)                       \
	X(CU_STREAM_CAPTURE_STATUS_NONE, 0)                       \
	X(CU_STREAM_CAPTURE_MODE_RELAXED, 2)                      \
	X(CU_EVENT_DISABLE_TIMING, 2)                             \
	X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1)                  \
	X(CU_MEMORYTYPE_HOST, 1)                                  \
	X(CU_MEMORYTYPE_DEVICE, 2)                                \
	X(CU_POINTER_ATTRIBUTE_CONTEXT, 1)                        \
	X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                    \
	X(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8)                     \
	X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)                 \
	X(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 10)    \
	X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11)              \
	X(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12)                    \
	X(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 14)          \
	X(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 17)                \
	X(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, 18)                  \
	X(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, 19)             \
	X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1)            \
	X(CU_MEM_HANDLE_TYPE_FABRIC, 8)                           \
	X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                  \
	X(CU_MEM_LOCATION_TYPE_DEVICE, 1)                         \
	X(CU_MEM_ALLOCATION_TYPE_PINNED, 1)                       \
	X(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)

/* name, version for which the prototype was written (1000 * major + 10 * minor), arguments. */
/* clang-format off */
#define CUDA_CALLS(X) \
	X(cuInit, 2000, (unsigned flags)) \
	X(cuDriverGetVersion, 2020, (int *version)) \
	X(cuGetErrorName, 6000, (CUresult error, const char **name)) \
	X(cuGetErrorString, 6000, (CUresult error, const char **text)) \
	X(cuDeviceGetCount, 2000, (int *count)) \
	X(cuDeviceGet, 2000, (CUdevice *device, int ordinal)) \
	X(cuDeviceGetUuid, 11040, (CUuuid *uuid, CUdevice device)) \
	X(cuDeviceGetName, 2000, (char *name, int bytes, CUdevice device)) \
	X(cuDeviceGetAttribute, 2000, (int *value, CUdevice_attribute attribute, CUdevice device)) \
	X(cuDeviceGetPCIBusId, 4010, (char *id, int bytes, CUdevice device)) \
	X(cuDeviceTotalMem, 3020, (size_t *bytes, CUdevice device)) \
	X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *context, CUdevice device)) \
	X(cuDevicePrimaryCtxRelease, 11000, (CUdevice device)) \
	X(cuDevicePrimaryCtxGetState, 7000, (CUdevice device, unsigned *flags, int *active)) \
	X(cuDevicePrimaryCtxReset, 11000, (CUdevice device)) \
	X(cuCtxCreate, 3020, (CUcontext *context, unsigned flags, CUdevice device)) \
	X(cuCtxDestroy, 4000, (CUcontext context)) \
	X(cuCtxPushCurrent, 4000, (CUcontext context)) \
	X(cuCtxPopCurrent, 4000, (CUcontext *context)) \
	X(cuCtxGetCurrent, 4000, (CUcontext *context)) \
	X(cuCtxSetCurrent, 4000, (CUcontext context)) \
	X(cuCtxGetDevice, 2000, (CUdevice *device)) \
	X(cuCtxSynchronize, 2000, (void)) \
	X(cuCtxGetStreamPriorityRange, 5050, (int *least, int *greatest)) \
	X(cuModuleLoadData, 2000, (CUmodule *module, const void *image)) \
	X(cuModuleUnload, 2000, (CUmodule module)) \
	X(cuModuleGetFunction, 2000, (CUfunction *function, CUmodule module, const char *name)) \
	X(cuFuncGetAttribute, 2020, \
	  (int *value, CUfunction_attribute attribute, CUfunction function)) \
	X(cuFuncSetAttribute, 9000, \
	  (CUfunction function, CUfunction_attribute attribute, int value)) \
	X(cuLaunchKernel, 4000, \
	  (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, \
	   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, \
	   CUstream stream, void **params, void **extra)) \
	X(cuMemAlloc, 3020, (CUdeviceptr *ptr, size_t bytes)) \
	X(cuMemFree, 3020, (CUdeviceptr ptr)) \
	X(cuMemAllocAsync, 11020, (CUdeviceptr *ptr, size_t bytes, CUstream stream)) \
	X(cuMemFreeAsync, 11020, (CUdeviceptr ptr, CUstream stream)) \
	X(cuMemAllocManaged, 6000, (CUdeviceptr *ptr, size_t bytes, unsigned flags)) \
	X(cuMemGetInfo, 3020, (size_t *free, size_t *total)) \
	X(cuMemGetAddressRange, 3020, (CUdeviceptr *base, size_t *bytes, CUdeviceptr ptr)) \
	X(cuMemHostAlloc, 2020, (void **ptr, size_t bytes, unsigned flags)) \
	X(cuMemFreeHost, 2000, (void *ptr)) \
	X(cuMemHostRegister, 6050, (void *ptr, size_t bytes, unsigned flags)) \
	X(cuMemHostUnregister, 4000, (void *ptr)) \
	X(cuMemHostGetDevicePointer, 3020, (CUdeviceptr *device, void *host, unsigned flags)) \
	X(cuPointerGetAttribute, 4000, \
	  (void *value, CUpointer_attribute attribute, CUdeviceptr ptr)) \
	X(cuPointerGetAttributes, 7000, \
	  (unsigned n, CUpointer_attribute *attributes, void **values, CUdeviceptr ptr)) \
	X(cuMemcpyAsync, 4000, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)) \
	X(cuMemcpyHtoDAsync, 3020, \
	  (CUdeviceptr to, const void *from, size_t bytes, CUstream stream)) \
	X(cuMemcpyDtoHAsync, 3020, (void *to, CUdeviceptr from, size_t bytes, CUstream stream)) \
	X(cuMemcpyDtoDAsync, 3020, \
	  (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)) \
	X(cuMemcpy2DAsync, 3020, (const CUDA_MEMCPY2D *copy, CUstream stream)) \
	X(cuMemsetD8Async, 3020, \
	  (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)) \
	X(cuStreamCreateWithPriority, 5050, (CUstream *stream, unsigned flags, int priority)) \
	X(cuStreamDestroy, 4000, (CUstream stream)) \
	X(cuStreamGetCtx, 9020, (CUstream stream, CUcontext *context)) \
	X(cuStreamIsCapturing, 10000, (CUstream stream, CUstreamCaptureStatus *status)) \
	X(cuStreamBeginCapture, 10010, (CUstream stream, CUstreamCaptureMode mode)) \
	X(cuStreamEndCapture, 10000, (CUstream stream, CUgraph *graph)) \
	X(cuGraphDestroy, 10000, (CUgraph graph)) \
	X(cuThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode *mode)) \
	X(cuStreamQuery, 2000, (CUstream stream)) \
	X(cuStreamSynchronize, 2000, (CUstream stream)) \
	X(cuStreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned flags)) \
	X(cuStreamWriteValue64, 11070, \
	  (CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)) \
	X(cuStreamWaitValue64, 11070, \
	  (CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)) \
	X(cuEventCreate, 2000, (CUevent *event, unsigned flags)) \
	X(cuEventDestroy, 4000, (CUevent event)) \
	X(cuEventRecord, 2000, (CUevent event, CUstream stream)) \
	X(cuEventQuery, 2000, (CUevent event)) \
	X(cuEventSynchronize, 2000, (CUevent event)) \
	X(cuIpcGetMemHandle, 4010, (CUipcMemHandle *handle, CUdeviceptr ptr)) \
	X(cuIpcOpenMemHandle, 11000, (CUdeviceptr *ptr, CUipcMemHandle handle, unsigned flags)) \
	X(cuIpcCloseMemHandle, 4010, (CUdeviceptr ptr)) \
	X(cuMemGetAllocationGranularity, 10020, \
	  (size_t *bytes, const CUmemAllocationProp *prop, \
	   CUmemAllocationGranularity_flags option)) \
	X(cuMemCreate, 10020, \
	  (CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp \
	   *prop, unsigned long long flags)) \
	X(cuMemRelease, 10020, (CUmemGenericAllocationHandle handle)) \
	X(cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle *handle, void *ptr)) \
	X(cuMemGetAllocationPropertiesFromHandle, 10020, \
	  (CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)) \
	X(cuMemExportToShareableHandle, 10020, \
	  (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType \
	   type, unsigned long long flags)) \
	X(cuMemImportFromShareableHandle, 10020, \
	  (CUmemGenericAllocationHandle *handle, void *shareable, \
	   CUmemAllocationHandleType type)) \
	X(cuMemAddressReserve, 10020, \
	  (CUdeviceptr *ptr, size_t bytes, size_t alignment, CUdeviceptr at, unsigned long \
	   long flags)) \
	X(cuMemAddressFree, 10020, (CUdeviceptr ptr, size_t bytes)) \
	X(cuMemMap, 10020, \
	  (CUdeviceptr ptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle \
	   handle, unsigned long long flags)) \
	X(cuMemUnmap, 10020, (CUdeviceptr ptr, size_t bytes)) \
	X(cuMemSetAccess, 10020, \
	  (CUdeviceptr ptr, size_t bytes, const CUmemAccessDesc *access, size_t n))
/* clang-format on */

#ifndef __cuda_cuda_h__
#define CUDA_ENUM_ROW(name, value) name = value,
typedef enum CUresult { CUDA_RESULTS(CUDA_ENUM_ROW) } CUresult;
enum { CUDA_VALUES(CUDA_ENUM_ROW) };
#undef CUDA_ENUM_ROW

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef uint64_t cuuint64_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUarray_st *CUarray;
typedef struct CUgraph_st *CUgraph;

/* The driver's enums: each has the size and the sign of an unsigned int. */
typedef unsigned CUdevice_attribute;
typedef unsigned CUfunction_attribute;
typedef unsigned CUpointer_attribute;
typedef unsigned CUstreamCaptureStatus;
typedef unsigned CUstreamCaptureMode;
typedef unsigned CUmemorytype;
typedef unsigned CUmemAllocationGranularity_flags;
typedef unsigned CUmemAllocationHandleType;
typedef unsigned CUdriverProcAddressQueryResult;

#define CU_STREAM_LEGACY ((CUstream)0x1)

typedef struct CUuuid {
	char bytes[16];
} CUuuid;

typedef struct CUipcMemHandle {
	char reserved[64];
} CUipcMemHandle;

typedef struct CUmemFabricHandle {
	unsigned char data[64];
} CUmemFabricHandle;

typedef struct CUmemLocation {
	unsigned type; /* CU_MEM_LOCATION_TYPE_* */
	int id;        /* of a device: its ordinal */
} CUmemLocation;

typedef struct CUmemAllocationProp {
	unsigned type;                 /* CU_MEM_ALLOCATION_TYPE_* */
	unsigned requestedHandleTypes; /* CU_MEM_HANDLE_TYPE_* */
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc {
	CUmemLocation location;
	unsigned flags; /* CU_MEM_ACCESS_FLAGS_* */
} CUmemAccessDesc;

/* Only the fields of each side's memory type are read; *XInBytes, *Y begin the piece. */
typedef struct CUDA_MEMCPY2D {
	size_t srcXInBytes;
	size_t srcY;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	size_t srcPitch;
	size_t dstXInBytes;
	size_t dstY;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	size_t dstPitch;
	size_t WidthInBytes;
	size_t Height;
} CUDA_MEMCPY2D;
#endif /* __cuda_cuda_h__ */

static_assert(sizeof(CUdevice) == 4 && sizeof(CUdeviceptr) == 8 && sizeof(CUresult) == 4, "");
static_assert(sizeof(CUuuid) == 16, "");
static_assert(sizeof(CUipcMemHandle) == 64, "");
static_assert(sizeof(CUmemFabricHandle) == 64, "");
static_assert(sizeof(CUmemAllocationProp) == 32, "");
static_assert(offsetof(CUmemAllocationProp, location) == 8, "");
static_assert(offsetof(CUmemAllocationProp, allocFlags) == 24, "");
static_assert(sizeof(CUmemAccessDesc) == 12, "");
static_assert(sizeof(CUDA_MEMCPY2D) == 128, "");
static_assert(offsetof(CUDA_MEMCPY2D, srcPitch) == 48, "");
static_assert(offsetof(CUDA_MEMCPY2D, dstPitch) == 104, "");

#define CUDA_CALL_MEMBER(name, version, arguments) CUresult(*name) arguments;
struct cuda_api {
	CUDA_CALLS(CUDA_CALL_MEMBER)
};
#undef CUDA_CALL_MEMBER

/* -errno of a result, or 0: kvtierd and libkvtier have this table alone. Results that are not in it
 * are -EIO. */
static inline int cuda_errno(CUresult result)
{
	static const struct {
		CUresult result;
		int error;
	} rows[] = {
		{ CUDA_SUCCESS, 0 },
		{ CUDA_ERROR_INVALID_VALUE, -EINVAL },
		{ CUDA_ERROR_OUT_OF_MEMORY, -ENOMEM },
		{ CUDA_ERROR_NOT_INITIALIZED, -ENODEV },
		{ CUDA_ERROR_DEINITIALIZED, -ENODEV },
		{ CUDA_ERROR_STUB_LIBRARY, -ENODEV },
		{ CUDA_ERROR_DEVICE_UNAVAILABLE, -EBUSY },
		{ CUDA_ERROR_NO_DEVICE, -ENODEV },
		{ CUDA_ERROR_INVALID_DEVICE, -ENODEV },
		{ CUDA_ERROR_INVALID_IMAGE, -ENOEXEC },
		{ CUDA_ERROR_NO_BINARY_FOR_GPU, -ENOEXEC },
		{ CUDA_ERROR_INVALID_PTX, -ENOEXEC },
		{ CUDA_ERROR_UNSUPPORTED_PTX_VERSION, -ENOEXEC },
		{ CUDA_ERROR_JIT_COMPILER_NOT_FOUND, -ENOEXEC },
		{ CUDA_ERROR_ALREADY_MAPPED, -EEXIST },
		{ CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, -EOPNOTSUPP },
		{ CUDA_ERROR_INVALID_HANDLE, -EINVAL },
		{ CUDA_ERROR_NOT_FOUND, -ENXIO },
		{ CUDA_ERROR_NOT_READY, -EAGAIN },
		{ CUDA_ERROR_NOT_PERMITTED, -EPERM },
		{ CUDA_ERROR_NOT_SUPPORTED, -EOPNOTSUPP },
		{ CUDA_ERROR_SYSTEM_NOT_READY, -ENODEV },
		{ CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, -ENOSYS },
		{ CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, -ENOSYS },
		{ CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, -ENOSYS },
		{ CUDA_ERROR_TIMEOUT, -ETIMEDOUT },
	};
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		if (rows[i].result == result)
			return rows[i].error;
	return -EIO;
}

/* Loads all calls of the table. -ENOSYS: the driver lacks one, and *ret_missing names it (a string
 * that lasts for ever); -EINVAL: `library` is no driver of CUDA 12 or later. */
static inline int cuda_api_load(void *library, struct cuda_api *ret, const char **ret_missing)
{
	CUresult (*ask)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
	static const struct {
		const char *name;
		int version;
		size_t offset;
	} calls[] = {
#define CUDA_CALL_ROW(name, version, arguments) { #name, version, offsetof(struct cuda_api, name) },
		CUDA_CALLS(CUDA_CALL_ROW)
#undef CUDA_CALL_ROW
	};
	struct cuda_api api;
	size_t i;

	*(void **)&ask = dlsym(library, "cuGetProcAddress_v2");
	*ret_missing = "cuGetProcAddress_v2";
	if (!ask)
		return -EINVAL;
	for (i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		void **call = (void **)(void *)((char *)&api + calls[i].offset);
		CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;

		*call = NULL;
		*ret_missing = calls[i].name;
		if (ask(calls[i].name, call, calls[i].version, CU_GET_PROC_ADDRESS_DEFAULT,
			&found) != CUDA_SUCCESS ||
		    found != CU_GET_PROC_ADDRESS_SUCCESS || !*call)
			return -ENOSYS;
	}
	*ret = api;
	*ret_missing = NULL;
	return 0;
}
