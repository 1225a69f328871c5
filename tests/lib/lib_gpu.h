/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_gpu.h - shared by tests of kind gpu: the emulated driver around a test and its processes, the
 * driver's report, device memory to write and read. Helpers end the test (fail_msg) when they
 * cannot do their part.
 *
 *	int main(int argc, char **argv)
 *	{
 *		gpu_begin(argv, "gpus=2");
 *		if (argc > 1)
 *			return engine(argv[1]);		started by gpu_spawn("engine")
 *		...
 *
 * With KVTIER_REAL_GPU=1 the same test runs on the machine's driver: there is no report then, and
 * settings say nothing.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/gpu/emu/cuda_more.h"

/* What most tests say to kvtierd; further lines are those of [gpu]. HOST(): lib.h. */
#define GPU_LINES                     "[gpu]\ndevices = required\nstaging_bytes = 8M\n"
#define GPU_CONFIG(bytes, slab_bytes) HOST(bytes, slab_bytes) "[device]\nworkers = 2\n" GPU_LINES

/* First in main(). Puts the emulated driver where dlopen("libcuda.so.1") finds it, for this process
 * (which it executes again: the loader looks at LD_LIBRARY_PATH only then) and all that it starts;
 * makes the machine's directory and report; prints the seed. `settings` are words of
 * tests/gpu/emu/settings.c; the words of $KVTIER_EMU come after them. */
void gpu_begin(char **argv, const char *settings);
bool gpu_is_real(void);
uint64_t gpu_seed(void); /* $SEED, or drawn */
/* For processes started from now on, and for this process until its first call of the driver. */
void gpu_settings(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* This program again, with argv[1] = role, and these more settings. Its standard input is a socket
 * to *ret_socket (NULL: none). It dies with the test. */
pid_t gpu_spawn(const char *role, const char *settings, int *ret_socket);
int gpu_wait(pid_t child); /* its exit status, or minus the signal that ended it */

/* The driver; loaded once, skips the test (exit status 77) when there is none. */
const struct cuda_api *gpu_api(void);
#define GPU(call) gpu_ok(call, #call, __FILE__, __LINE__)
void gpu_ok(CUresult result, const char *call, const char *file, int line);

struct gpu {
	CUdevice device;
	CUcontext context; /* the primary one, current in the calling thread */
	CUstream stream;   /* non-blocking */
};

void gpu_open(struct gpu *g, int ordinal);
void gpu_close(struct gpu *g);
uint64_t gpu_used(void); /* memory in use on the current context's GPU, by all processes */
void gpu_used_falls_to(uint64_t bytes); /* or less */
/* Copies and waits, on the stream; the host side may be any memory. */
void gpu_write(const struct gpu *g, CUdeviceptr to, const void *from, size_t bytes);
void gpu_read(const struct gpu *g, void *to, CUdeviceptr from, size_t bytes);

/* Allocations side by side in one range of addresses. */
size_t gpu_granule(const struct gpu *g, CUmemAllocationHandleType type);
CUdeviceptr gpu_map(const struct gpu *g, CUmemAllocationHandleType type, size_t each, size_t n,
		    CUmemGenericAllocationHandle *ret_handles);
void gpu_unmap(CUdeviceptr at, size_t each, size_t n, const CUmemGenericAllocationHandle *handles);

/* Holds streams until it is opened: a word of the host. Of the current context. */
struct gpu_gate {
	uint64_t *word;
	CUdeviceptr at;
};

void gpu_gate_make(struct gpu_gate *g); /* it is open */
/* Operations that are put into the stream from now on wait until the gate is opened. */
void gpu_gate_close(struct gpu_gate *g, CUstream stream);
void gpu_gate_open(struct gpu_gate *g);
void gpu_gate_free(struct gpu_gate *g); /* no stream waits for it */

/* The n-th call of the driver that this process makes from now on fails, whichever it is (0: none);
 * the countdown that was left before. Set it around calls of libkvtier, so that no other call is
 * counted. The emulated driver alone: tests/gpu/emu/countdown.c. */
uint64_t gpu_countdown(uint64_t n);
const char *gpu_failed(void); /* the call that failed since it was set; NULL: none */
/* Handles, pieces of memory, uses of contexts that this process has. */
uint64_t gpu_live(void);
/* Ends the program as skipped, with this reason, on a real driver. */
void gpu_needs_emulation(const char *why);
/* GPUs that this process sees. */
int gpu_count(void);

/* How many lines of the report are of this program ("" any) and this kind ("violation", "leak",
 * "note", "exit"; "" any), with this text in them ("" any). */
int gpu_reported(const char *program, const char *kind, const char *text);
/* Calls each() with the text of those lines, in order. */
void gpu_report_each(const char *program, const char *kind,
		     void (*each)(void *arg, const char *said), void *arg);
/* Ends the test, with the lines, when there are violations or leaks of this program. */
void gpu_report_clean(const char *program);
/* Ends the test when a payload was copied to or from pageable memory. */
void gpu_report_copies_pinned(char *program);
void gpu_report_clear(void);
/* Waits until kvtierd's part of the report has n of these notes. */
void gpu_report_has(const char *text, int n);
/* Calls that a setting holds wait from gpu_hold() to gpu_let_go(). */
void gpu_hold(void);
void gpu_let_go(void);
/* A call against the rules had this result, and the report says so once. Clears the report. */
void gpu_expect(CUresult result, CUresult wanted, const char *said);
