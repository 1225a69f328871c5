/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=6 */
/*
 * gpu_driver_floor - goal: a GPU is served with each driver from 12.0 on, by kernels that this
 * driver loads; where it cannot be, the daemon says at its start which driver or GPU its kernels
 * need, and engines get their blocks all the same, by staged pages. Method: the emulated driver at
 * other versions and GPUs; it looks at the kernels' own bytes (emu/binary.c).
 */
#include "tests/lib/lib_gpu_engine.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

#include "kernels/cuda/binaries.h"

enum { BLOCKS = 4, UNSUPPORTED_PTX_VERSION = 222 };

static const char config[] = "[host]\nbytes = 16M\nslab_bytes = 2M\nhuge_pages = no\n"
			     "[gpu]\nstaging_bytes = 8M\n";

static struct daemon d;
static struct gpu gpu;

/* An engine stores and loads; its pages reach the daemon in this way. */
static void engine_is_reached(const char *words)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct kvtier_key keys[BLOCKS];
	struct gpu_engine ge;

	gpu_engine_open(&ge, &gpu, d.socket, &g, 2 * BLOCKS, GPU_ALLOC);
	gpu_engine_reached(&ge, words);
	chain_keys(&ge.e, 1, BLOCKS, keys);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	assert_int_equal(gpu_chain_load(&ge, keys, BLOCKS, BLOCKS), BLOCKS);
	gpu_engine_close(&ge);
}

static void status_says(const char *words)
{
	const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;
	char text[8192];

	while (daemon_ctl(&d, "status", text, sizeof(text)), !strstr(text, words)) {
		if (now_ns() > until)
			fail_msg("status does not say '%s': %s", words, text);
		nap_ms(5);
	}
	assert_non_null(strstr(text, "gpu_unused"));
}

static void begin(const char *settings)
{
	gpu_settings("%s", settings);
	daemon_start(&d, config);
}

static void end(void)
{
	daemon_remove(&d);
	gpu_report_clean("kvtierd");
	gpu_report_clear();
}

static bool has_kernels_of_12(void)
{
	return cuda_binaries_driver(cuda_binaries, 90) == 12000;
}

TEST(a_driver_of_12_0_loads_kernels)
{
	if (!has_kernels_of_12())
		skip(); /* `make deps` could not fetch that compiler */
	begin("version=12000");
	engine_is_reached("CUDA IPC");
	end();
}

TEST(a_binary_that_the_driver_refuses_is_not_the_end)
{
	if (!has_kernels_of_12())
		skip();
	begin("fail=cuModuleLoadData:1:222");
	engine_is_reached("CUDA IPC");
	end();
}

TEST(a_driver_that_loads_no_kernels_serves_staged_pages)
{
	begin("fail=cuModuleLoadData:0:222");
	engine_is_reached("cuModuleLoadData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION");
	end();
}

TEST(a_gpu_that_no_kernel_is_for_is_named)
{
	begin("capability=75");
	status_says("the kernels inside have no code for its compute capability 7.5");
	engine_is_reached("CUDA staged");
	end();
}

/* A GPU of tomorrow takes PTX alone, and a driver takes none that is newer than itself. */
TEST(a_driver_that_is_too_old_is_named)
{
	const int least = cuda_binaries_driver(cuda_binaries, 990);
	char words[128], settings[64];

	assert_true(least > 12000);
	snprintf(words, sizeof(words), "need a CUDA driver of version %d.%d or later for it",
		 least / 1000, least % 1000 / 10);
	snprintf(settings, sizeof(settings), "capability=990 version=%d", least - 10);
	begin(settings);
	status_says(words);
	engine_is_reached("CUDA staged");
	end();
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0 one_thread=1");
	gpu_needs_emulation("drivers of other versions");
	gpu_open(&gpu, 0);
}
