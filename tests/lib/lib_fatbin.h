/* SPDX-License-Identifier: Apache-2.0 */
/* lib_fatbin.h - a fat binary that is not compressed: entries of machine code (ELF) and of PTX. */
#pragma once

#include <elf.h>
#include <stdint.h>
#include <string.h>

enum { FATBIN_MAGIC = 0xba55ed50, FATBIN_PTX = 1, FATBIN_ELF = 2 };

struct fatbin {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t bytes; /* of the entries behind it */
};

struct fatbin_entry {
	uint16_t kind, version;
	uint32_t header_bytes;
	uint64_t bytes; /* behind the header */
};

/* The entry after `last` (NULL: the first), with its head in *ret; NULL: there is none. */
static inline const char *fatbin_next(const struct fatbin *all, const char *last,
				      struct fatbin_entry *ret)
{
	const char *at = (const char *)all + all->header_bytes, *end = at + all->bytes;

	if (last)
		at = last + ret->header_bytes + ret->bytes;
	if (at >= end)
		return NULL;
	memcpy(ret, at, sizeof(*ret));
	return at;
}

/* 10 * major + minor of the GPU that the machine code is for: ELF ABI 8 says it in other bits. */
static inline int cubin_capability(const Elf64_Ehdr *elf)
{
	return (int)(elf->e_ident[EI_ABIVERSION] == 8 ? elf->e_flags >> 8 & 0xff :
							elf->e_flags & 0xff);
}
