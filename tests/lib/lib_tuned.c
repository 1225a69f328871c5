/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_tuned.c - what kvtierd_tuned and kvtierd_clock have instead of the daemon's own choice:
 * KVTIER_TEST_KERNELS names the codec (ref is slow, so ops are under way for long), and
 * KVTIER_TEST_DEPTH is the number of jobs at once. daemon_tuned() sets both. KVTIER_TEST_SPIN_US is
 * for kvtier-bench: how long the loop looks before it sleeps.
 */
#include <stdint.h>
#include <stdlib.h>

#include "wrap.h"

struct codec_kernels;

REAL(const struct codec_kernels *, codec_kernels, (const char *name))
{
	return __real_codec_kernels(name ? name : getenv("KVTIER_TEST_KERNELS"));
}

REAL(uint32_t, config_device_depth, (void))
{
	const char *depth = getenv("KVTIER_TEST_DEPTH");

	return depth ? (uint32_t)strtoul(depth, NULL, 10) : __real_config_device_depth();
}

REAL(uint32_t, config_spin_us, (void))
{
	const char *spin = getenv("KVTIER_TEST_SPIN_US");

	return spin ? (uint32_t)strtoul(spin, NULL, 10) : __real_config_spin_us();
}
