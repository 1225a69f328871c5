/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_cuda_binaries - goal: of the kernels that are inside, each GPU and driver get code that they
 * can load; and the machine code keeps within what the figures of tests/gpu/RESULTS.md assume:
 * registers, no memory of a thread's own, no more instructions. Method: tables by hand; the ELF
 * sections of the kernels as this build made them.
 *
 * .nv.info is NVIDIA's own: records of a format byte, an attribute byte and 16 bits of length, then
 * (of the attributes looked at here) the kernel's symbol and a number, 32 bits each.
 */

#include "kernels/cuda/binaries.h"
#include "tests/lib/lib_fatbin.h"
#include "tests/lib/test.h"

enum {
	INFO_SIZED = 4, /* the format of a record that has a length */
	INFO_STACK = 0x12,
	INFO_FRAME = 0x11,
	INFO_REGISTERS = 0x2f,
	INSTRUCTION_BYTES = 16,
	OPCODE_BITS = 0xfff,
	LOAD_LOCAL = 0x983, /* LDL, STL: a thread's own memory, where spilled registers go */
	STORE_LOCAL = 0x387,
	REGISTERS_MOST = 128, /* 512 threads of 65,536 registers */
};

/* --- which binary --- */

static const struct cuda_binary both[] = {
	{ "13", 13000, CUDA_FATBIN, 80 }, { "a", 12090, CUDA_CUBIN, 80 },
	{ "h", 12090, CUDA_CUBIN, 90 },   { "b", 12090, CUDA_CUBIN, 100 },
	{ "ptx", 12090, CUDA_PTX, 80 },   { 0 },
};

/* The first that a driver of this version loads for such a GPU. */
static const char *first(int capability, int driver)
{
	for (const struct cuda_binary *b = both; b->data; b++)
		if (cuda_binary_is_for(b, capability) && cuda_binary_driver(b) <= driver)
			return b->data;
	return "none";
}

TEST(a_driver_gets_the_newest_code_that_it_loads)
{
	assert_string_equal(first(90, 13000), "13");
	assert_string_equal(first(90, 12090), "h");
	assert_string_equal(first(90, 12000), "h");
	assert_string_equal(first(80, 12000), "a");
	assert_string_equal(first(90, 11080), "none");
}

TEST(machine_code_is_for_a_family_from_its_own_member_on)
{
	assert_string_equal(first(89, 12000), "a");
	assert_string_equal(first(103, 12080), "b");
	assert_string_equal(first(75, 13000), "none");
}

TEST(ptx_needs_a_driver_as_new_as_its_compiler)
{
	assert_string_equal(first(120, 12080), "none");
	assert_string_equal(first(120, 12090), "ptx");
}

TEST(the_least_driver_follows_from_what_is_inside)
{
	assert_int_equal(cuda_binaries_driver(both, 90), 12000);
	assert_int_equal(cuda_binaries_driver(both, 120), 12090);
	assert_int_equal(cuda_binaries_driver(both, 75), 0);
	assert_int_equal(cuda_binaries_driver(&both[5], 90), 0);
}

/* --- what is in it --- */

enum { KERNELS = 5 };
static const char *const kernel_names[KERNELS] = { "encode", "decode", "pack_lengths",
						   "pack_encode", "pack_decode" };

/* Instructions of each kernel: 3 % above those of nvcc 13.0 and NVRTC 12.9, by family. */
static const struct {
	int family, instructions[KERNELS];
} most[] = {
	{ 8, { 7945, 5310, 3055, 2990, 2110 } },
	{ 9, { 7230, 5360, 3170, 3125, 2175 } },
	{ 10, { 7255, 6200, 3260, 3320, 2165 } },
	{ 12, { 7360, 6255, 3205, 3270, 2165 } },
};

static const Elf64_Shdr *sections(const Elf64_Ehdr *elf)
{
	return (const void *)((const char *)elf + elf->e_shoff);
}

static const char *section_name(const Elf64_Ehdr *elf, const Elf64_Shdr *s)
{
	return (const char *)elf + sections(elf)[elf->e_shstrndx].sh_offset + s->sh_name;
}

static void check_info(const Elf64_Ehdr *elf, const Elf64_Shdr *s, int *kernels)
{
	const char *at = (const char *)elf + s->sh_offset, *end = at + s->sh_size;
	uint8_t format, attribute;
	uint32_t number;
	uint16_t bytes;

	for (; at < end; at += 4 + (format == INFO_SIZED ? bytes : 0)) {
		format = (uint8_t)at[0];
		attribute = (uint8_t)at[1];
		memcpy(&bytes, at + 2, 2);
		if (format != INFO_SIZED || bytes != 8)
			continue;
		memcpy(&number, at + 8, 4);
		if (attribute == INFO_FRAME || attribute == INFO_STACK)
			assert_int_equal(number, 0);
		if (attribute == INFO_REGISTERS) {
			assert_in_range(number, 32, REGISTERS_MOST);
			++*kernels;
		}
	}
}

static void check_code(const Elf64_Ehdr *elf, const Elf64_Shdr *s, int limit)
{
	const char *at = (const char *)elf + s->sh_offset;
	const uint64_t n = s->sh_size / INSTRUCTION_BYTES;
	uint32_t opcode;

	if (n > (uint64_t)limit)
		fail_msg("capability %d, %s: %d instructions, at most %d were expected",
			 cubin_capability(elf), section_name(elf, s), (int)n, limit);
	for (uint64_t i = 0; i < n; i++) {
		memcpy(&opcode, at + i * INSTRUCTION_BYTES, 4);
		opcode &= OPCODE_BITS;
		assert_true(opcode != LOAD_LOCAL && opcode != STORE_LOCAL);
	}
}

static void check_cubin(const void *data)
{
	const Elf64_Ehdr *elf = data;
	const Elf64_Shdr *s = sections(elf);
	int kernels = 0, codes = 0;
	size_t family = 0;

	while (family < sizeof(most) / sizeof(*most) &&
	       most[family].family != cubin_capability(elf) / 10)
		family++;
	assert_true(family < sizeof(most) / sizeof(*most));
	for (int i = 0; i < elf->e_shnum; i++, s++) {
		const char *name = section_name(elf, s);

		if (!strcmp(name, ".nv.info"))
			check_info(elf, s, &kernels);
		for (int k = 0; k < KERNELS; k++)
			if (!strncmp(name, ".text.kvtier_", 13) &&
			    !strcmp(name + 13, kernel_names[k]))
				codes++, check_code(elf, s, most[family].instructions[k]);
	}
	assert_int_equal(kernels, KERNELS);
	assert_int_equal(codes, KERNELS);
}

TEST(machine_code_keeps_within_its_figures)
{
	if (!cuda_binaries[0].data)
		skip(); /* no compiler for it was here */
	for (const struct cuda_binary *b = cuda_binaries; b->data; b++) {
		struct fatbin_entry e;
		const char *at = NULL;

		if (b->kind == CUDA_CUBIN)
			check_cubin(b->data);
		while (b->kind == CUDA_FATBIN && (at = fatbin_next(b->data, at, &e)) != NULL)
			if (e.kind == FATBIN_ELF)
				check_cubin(at + e.header_bytes);
	}
}
