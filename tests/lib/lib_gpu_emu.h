/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_gpu_emu.h - for tests of the emulated driver itself (gpu_emu_*): a GPU that all cases of the
 * program use, and short words for calls that must succeed, give a result, or break a rule.
 */
#pragma once

#include "lib.h"
#include "lib_gpu.h"

extern struct gpu gpu;
extern const struct cuda_api *cu; /* set by emu_begin(), and by gpu_api() in a process of its own */

int emu_begin(void **state);
int emu_end(void **state); /* the report must be clean */

/* A call must succeed; give this result; give it, break a rule, and be reported once. */
#define DO(call)                   GPU(cu->call)
#define GIVES(call, result)        assert_int_equal(cu->call, CUDA_ERROR_##result)
#define BREAKS(call, result, said) gpu_expect(cu->call, CUDA_ERROR_##result, said)
/* So many lines of a kind ("violation", "leak", "note") that say this. */
#define REPORTED(kind, said, n) assert_int_equal(gpu_reported("", kind, said), n)

/* A context was broken on purpose: a new one, and an empty report. */
void emu_reopen(void);
CUdeviceptr emu_alloc(size_t bytes);
CUfunction emu_function(const char *name);
/* emu_fill(): n words at `to` become `value`. */
void emu_fill(CUfunction fill, CUdeviceptr to, uint32_t value, uint32_t n, CUstream stream);
bool emu_words_are(const uint32_t *words, size_t n, uint32_t value);
