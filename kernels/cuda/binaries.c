/* SPDX-License-Identifier: Apache-2.0 */
/* binaries.c - see binaries.h. CUDA_BINARIES is the list that binaries.sh wrote; the Makefile names
 * it where there is a compiler. */
#include "binaries.h"

#include <stddef.h>

#ifdef CUDA_BINARIES

#define BINARY(name, release, kind, capability, path) \
	extern const unsigned char kvtier_cuda_##name[] __attribute__((visibility("hidden")));
#include CUDA_BINARIES
#undef BINARY

__asm__(".section .rodata\n"
#define BINARY(name, release, kind, capability, path) \
	".balign 64\n"                                \
	".globl kvtier_cuda_" #name "\n"              \
	".hidden kvtier_cuda_" #name "\n"             \
	"kvtier_cuda_" #name ":\n"                    \
	".incbin \"" path "\"\n"
#include CUDA_BINARIES
#undef BINARY
	".previous\n");

#endif

const struct cuda_binary cuda_binaries[] = {
#ifdef CUDA_BINARIES
#define BINARY(name, release, kind, capability, path) \
	{ kvtier_cuda_##name, release, kind, capability },
#include CUDA_BINARIES
#undef BINARY
#endif
	{ 0 },
};

int cuda_binary_driver(const struct cuda_binary *binary)
{
	return binary->kind == CUDA_PTX ? binary->release : binary->release / 1000 * 1000;
}

bool cuda_binary_is_for(const struct cuda_binary *binary, int capability)
{
	return capability >= binary->capability &&
	       (binary->kind != CUDA_CUBIN || capability / 10 == binary->capability / 10);
}

int cuda_binaries_driver(const struct cuda_binary *binaries, int capability)
{
	int least = 0;

	for (; binaries->data; binaries++)
		if (cuda_binary_is_for(binaries, capability) &&
		    (!least || cuda_binary_driver(binaries) < least))
			least = cuda_binary_driver(binaries);
	return least;
}
