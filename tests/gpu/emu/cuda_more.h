/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_more.h - constants of the CUDA driver API that tests and the emulated driver use, beside
 * those of client/abi/cuda_api.h, which the product uses.
 *
 *	X(name, value)
 */
#pragma once

#include "client/abi/cuda_api.h"

#define CUDA_MORE_VALUES(X)                                                     \
	X(CU_CTX_SCHED_AUTO, 0)                                                 \
	X(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, 2)                        \
	X(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1)                         \
	X(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 5)                                \
	X(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 8)                   \
	X(CU_DEVICE_ATTRIBUTE_WARP_SIZE, 10)                                    \
	X(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 13)                                   \
	X(CU_DEVICE_ATTRIBUTE_INTEGRATED, 18)                                   \
	X(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 19)                          \
	X(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 33)                                   \
	X(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 34)                                \
	X(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 50)                                \
	X(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 40)                           \
	X(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 41)                           \
	X(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 36)                            \
	X(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 37)                      \
	X(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 78)                  \
	X(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 81)         \
	X(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 83)                               \
	X(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97)            \
	X(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91)      \
	X(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 123)               \
	X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)         \
	X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103) \
	X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 128)                \
	X(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 115)                      \
	X(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 99)                      \
	X(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 113)           \
	X(CU_COMPUTEMODE_DEFAULT, 0)                                            \
	X(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0)                           \
	X(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 1)                               \
	X(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, 3)                                \
	X(CU_FUNC_ATTRIBUTE_NUM_REGS, 4)                                        \
	X(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8)                   \
	X(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 9)                \
	X(CU_MEMHOSTALLOC_DEVICEMAP, 2)                                         \
	X(CU_MEMHOSTREGISTER_READ_ONLY, 8)                                      \
	X(CU_MEM_ATTACH_GLOBAL, 1)                                              \
	X(CU_MEM_ATTACH_HOST, 2)                                                \
	X(CU_STREAM_DEFAULT, 0)                                                 \
	X(CU_STREAM_WAIT_VALUE_EQ, 1)                                           \
	X(CU_STREAM_WAIT_VALUE_AND, 2)                                          \
	X(CU_STREAM_WAIT_VALUE_NOR, 3)                                          \
	X(CU_STREAM_WAIT_VALUE_FLUSH, 1073741824)                               \
	X(CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER, 1)                           \
	X(CU_STREAM_CAPTURE_STATUS_ACTIVE, 1)                                   \
	X(CU_STREAM_CAPTURE_STATUS_INVALIDATED, 2)                              \
	X(CU_STREAM_CAPTURE_MODE_GLOBAL, 0)                                     \
	X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1)                               \
	X(CU_MEMORYTYPE_UNIFIED, 4)                                             \
	X(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, 3)                               \
	X(CU_POINTER_ATTRIBUTE_HOST_POINTER, 4)                                 \
	X(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 6)                                  \
	X(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7)                                    \
	X(CU_POINTER_ATTRIBUTE_MAPPED, 13)                                      \
	X(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, 16)                                \
	X(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, 20)                             \
	X(CU_MEM_HANDLE_TYPE_NONE, 0)                                           \
	X(CU_MEM_ACCESS_FLAGS_PROT_NONE, 0)                                     \
	X(CU_MEM_ACCESS_FLAGS_PROT_READ, 1)                                     \
	X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 1)

#ifndef __cuda_cuda_h__
#define CUDA_ENUM_ROW(name, value) name = value,
enum { CUDA_MORE_VALUES(CUDA_ENUM_ROW) };
#undef CUDA_ENUM_ROW
#endif
