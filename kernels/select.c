/* SPDX-License-Identifier: Apache-2.0 */
/*
 * select.c - picks the kernels that this CPU can run, and verifies whole images with them. Any
 * thread; no state.
 */
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels.h"

static bool cpu_has_avx2(void)
{
#if defined(__x86_64__)
	uint32_t a, b, c, d;

	/* The builtin also asks whether the system saves the wide registers. F16C is asked of the
	 * CPU, since clang's builtin does not know it. */
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
	       __builtin_cpu_supports("bmi2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
#else
	return false;
#endif
}

static bool cpu_has_vbmi2(void)
{
#if defined(__x86_64__)
	return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
	       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi2");
#else
	return false;
#endif
}

const struct codec_kernels *codec_kernels(const char *name)
{
	/* best first */
	const struct {
		const struct codec_kernels *kernels;
		bool runs;
	} all[] = {
		{ &codec_vbmi2, cpu_has_vbmi2() },
		{ &codec_avx2, cpu_has_avx2() },
		{ &codec_ref, true },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i].runs && (!name || !strcmp(name, all[i].kernels->name)))
			return all[i].kernels;
	return NULL;
}

int codec_verify(const struct codec_kernels *kernels, const uint8_t *image,
		 const struct image_shape *shape, uint64_t checksum)
{
	struct codec_run run;
	int r;

	kernels->verify_start(&run, image, shape, checksum);
	do
		r = kernels->step(&run, CODEC_PIECE_BYTES, NULL);
	while (r == CODEC_MORE);
	return r;
}
