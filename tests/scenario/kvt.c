/* SPDX-License-Identifier: Apache-2.0 */
/* make: needs=emu/libcuda.so.1,kvtierd_clock,kvtierd_faulty,kvtierd_nodes,kvtierd_tuned */
/* make: wrap=clock_gettime,epoll_wait,connect */
/* kvt.c - kvt FILE.kvt [CASE]: see scenario.h. */
#include "scenario.h"

#include "tests/lib/lib_apart.h"

/* The program is executed again for the emulated driver, without words; variables have them. */
static void begin_gpu(const struct line *gpu, char **argv, const char *path, const char *only)
{
	const bool emulated = gpu->n > 1 && strcmp(gpu->words[1], "emulated") == 0;
	char *again[] = { argv[0], NULL };

	(void)setenv("KVT_FILE", path, 1);
	(void)setenv("KVT_CASE", only ? only : "", 1);
	gpu_begin(again, words_joined(gpu->words + 1 + emulated, gpu->n - 1 - emulated));
	(void)gpu_count(); /* what "driver" says later is not of this process */
	if (emulated)
		gpu_needs_emulation("its faults are settings of the emulated driver");
}

int main(int argc, char **argv)
{
	const char *path = argc > 1 ? argv[1] : getenv("KVT_FILE"),
		   *only = argc > 2 ? argv[2] : getenv("KVT_CASE");

	if (!path || strcmp(path, "--help") == 0) {
		verbs_help();
		return !path;
	}
	only = only && *only ? only : NULL;
	clients_apart(false);
	script_read(path);
	if (script_says("redis"))
		redis_needed();
	if (script_heading("gpu", NULL))
		begin_gpu(script_heading("gpu", NULL), argv, path, only);
	return run_script(only);
}
