/* SPDX-License-Identifier: Apache-2.0 */
/*
 * binary.c - would a driver of this version load this binary on such a GPU? The binary's own bytes
 * say it, not the table of the product: the headers of a fat binary and of ELF, the text of PTX.
 *
 * Machine code of nvcc 13 has ELF ABI 8; that of 12.x has 7 for the GPUs before Blackwell (10.0),
 * which came with 12.8 and ABI 8.
 */

#include "emu.h"
#include "tests/lib/lib_fatbin.h"

enum { BLACKWELL = 100 };

static CUresult cubin(const Elf64_Ehdr *elf)
{
	const bool abi8 = elf->e_ident[EI_ABIVERSION] == 8;
	const int capability = cubin_capability(elf);
	const int least = !abi8 ? 12000 : capability >= BLACKWELL ? 12080 : 13000;

	if (emu.settings.version < least || emu.settings.capability / 10 != capability / 10 ||
	    emu.settings.capability < capability)
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	return CUDA_SUCCESS;
}

/* PTX 8.0 came with 12.0, 8.8 with 12.9, 9.0 with 13.0. */
static CUresult ptx(const char *text, size_t n)
{
	static const char version[] = ".version ", target[] = ".target sm_";
	const char *at = memmem(text, n, version, sizeof(version) - 1);
	const char *to = memmem(text, n, target, sizeof(target) - 1);
	unsigned long major, minor;
	char *end;

	if (!at || !to)
		return CUDA_ERROR_INVALID_PTX;
	major = strtoul(at + sizeof(version) - 1, &end, 10);
	minor = strtoul(end + 1, NULL, 10);
	if (emu.settings.version < (int)((major + 4) * 1000 + (minor > 5 ? minor + 1 : minor) * 10))
		return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
	return strtol(to + sizeof(target) - 1, NULL, 10) <= emu.settings.capability ?
		       CUDA_SUCCESS :
		       CUDA_ERROR_NO_BINARY_FOR_GPU;
}

static CUresult fatbin(const struct fatbin *all)
{
	CUresult result = CUDA_ERROR_NO_BINARY_FOR_GPU;
	const char *at = NULL;
	struct fatbin_entry e;

	while (result != CUDA_SUCCESS && (at = fatbin_next(all, at, &e)) != NULL) {
		if (e.kind == FATBIN_ELF)
			result = cubin((const void *)(at + e.header_bytes));
		else if (e.kind == FATBIN_PTX)
			result = ptx(at + e.header_bytes, e.bytes);
	}
	return result;
}

CUresult binary_check(const void *image)
{
	const struct fatbin *all = image;

	if (!memcmp(image, ELFMAG, SELFMAG))
		return cubin(image);
	if (!memcmp(image, "//", 2))
		return ptx(image, strlen(image));
	return all->magic == FATBIN_MAGIC ? fatbin(all) : CUDA_ERROR_INVALID_IMAGE;
}
