/* SPDX-License-Identifier: Apache-2.0 */
/*
 * binaries.h - the programs that compilers made of codec.cu, which kvtierd contains,
 * and which of them a driver can load.
 *
 * A driver of release 12.x loads the machine code of every compiler 12.x (minor version
 * compatibility), and that of older ones; it refuses that of nvcc 13. PTX is taken only by a driver
 * at least as new as the compiler. Source: CUDA Compatibility, "Minor Version Compatibility".
 */
#pragma once

#include <stdbool.h>

enum cuda_binary_kind {
	CUDA_FATBIN, /* of nvcc: machine code for several GPUs from `capability` on, and PTX */
	CUDA_CUBIN,  /* machine code for GPUs of this major capability, from this minor one on */
	CUDA_PTX,    /* for GPUs of this capability or later */
};

/* release: the compiler's, and versions of drivers: 1000 * major + 10 * minor. Capabilities: 10 *
 * major + minor. */
struct cuda_binary {
	const void *data; /* for cuModuleLoadData() */
	int release;
	enum cuda_binary_kind kind;
	int capability;
};

/* The best first; data NULL ends the table. Empty where there was no compiler. */
extern const struct cuda_binary cuda_binaries[];

/* The oldest driver that loads the binary. */
int cuda_binary_driver(const struct cuda_binary *binary);

/* Whether the binary has code for such a GPU. */
bool cuda_binary_is_for(const struct cuda_binary *binary, int capability);

/* The oldest driver that loads one of `binaries` for such a GPU; 0: no binary has code for it. */
int cuda_binaries_driver(const struct cuda_binary *binaries, int capability);
