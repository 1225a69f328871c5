/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_gpu.c - pages in a GPU's memory, and what its driver, which is emulated, has seen. */
#include "scenario.h"

#include "kernels/cuda/binaries.h"
#include "tests/lib/lib_gpu_range.h"

static const struct gpu *gpu_at(uint32_t ordinal)
{
	struct gpu *ret = &world.gpus[ordinal < GPUS ? ordinal : 0];

	if (ordinal >= GPUS || (int)ordinal >= gpu_count())
		run_fail("there is no GPU %u: gpus=2 of the heading gpu makes two", ordinal);
	if (!ret->context)
		gpu_open(ret, (int)ordinal);
	return ret;
}

void gpus_close(bool good)
{
	bool used = false;

	for (uint32_t i = 0; i < GPUS; i++) {
		if (!world.gpus[i].context)
			continue;
		used = true;
		GPU(gpu_api()->cuCtxSetCurrent(world.gpus[i].context));
		gpu_close(&world.gpus[i]);
		memset(&world.gpus[i], 0, sizeof(world.gpus[i]));
	}
	if (used && good)
		gpu_report_copies_pinned("kvtierd");
	if (used && good)
		gpu_report_clean("");
	if (used)
		gpu_report_clear();
}

/* --- engines --- */

void engine_on_gpu(struct its_engine *its, uint32_t ordinal, const char *socket,
		   const struct kvtier_geometry *g, uint32_t pages, const char *kind)
{
	const struct gpu *gpu = gpu_at(ordinal);
	static const char *const kinds[] = { "alloc",    "pool",    "vmm_fd",         "vmm_fabric",
					     "vmm_none", "vmm_two", "vmm_fabric_two", "vmm_many" };

	for (uint32_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (strcmp(kind, kinds[i]) == 0) {
			GPU(gpu_api()->cuCtxSetCurrent(gpu->context));
			gpu_engine_open(&its->on, gpu, socket, g, pages, i);
			its->on_gpu = true;
			return;
		}
	run_fail("memory=%s: kvt --help lists what makes it", kind);
}

void engine_is_current(const struct its_engine *e)
{
	if (e->on_gpu)
		GPU(gpu_api()->cuCtxSetCurrent(e->on.gpu->context));
}

void pages_go(const struct its_engine *e, uint32_t page)
{
	if (e->on_gpu)
		gpu_pages_push(&e->on, page, 1);
}

void pages_come(const struct its_engine *e, uint32_t page)
{
	if (!e->on_gpu)
		return;
	engine_is_current(e);
	gpu_pages_pull(&e->on, page, 1);
}

void quiesce_does(struct call *c)
{
	const struct its_engine *its = thing_named(THING_ENGINE, c->words[0]);

	call_returned(c, kvtier_space_quiesce(its->e.space));
}

/* Memory of the kind that it has, in place of what it has, which is given back. */
static void takes_other_memory(struct its_engine *its, size_t bytes)
{
	struct gpu_engine *on = &its->on;
	const enum gpu_memory_kind kind = on->memory.kind;

	if (its->on_gpu) {
		engine_is_current(its);
		gpu_memory_free(on->gpu, &on->memory);
		gpu_memory_make(on->gpu, kind, bytes, &on->memory);
		return;
	}
	(void)munmap(its->e.memory, bytes);
	(void)close(its->e.fd);
	its->e.fd = memfd_make(bytes, F_SEAL_SHRINK);
	its->e.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, its->e.fd, 0);
	assert_true(its->e.memory != MAP_FAILED);
}

/* Regions of a memfd have to be given again; others are as they were, unless it says so. */
void resume_does(struct call *c)
{
	struct its_engine *its = thing_named(THING_ENGINE, c->words[0]);
	const size_t bytes = its->e.pages * its->e.page_bytes;
	const bool other = call_has(c, "other"),
		   none = call_has(c, "none") || (!other && its->e.fd < 0);
	struct kvtier_region regions[2] = { { .size = sizeof(regions[0]), .fd = -1 } };
	int r;

	if (other)
		takes_other_memory(its, bytes);
	regions[0].memory = its->on_gpu            ? KVTIER_CUDA :
			    call_has(c, "private") ? KVTIER_PRIVATE :
						     KVTIER_MEMFD;
	regions[0].fd = its->e.fd;
	regions[0].length = call_has(c, "small") ? 4096 : bytes;
	if (its->on_gpu)
		regions[0].base = (void *)(uintptr_t)its->on.memory.base;
	regions[1] = regions[0];
	r = kvtier_space_resume(its->e.space, none ? NULL : regions,
				none               ? 0 :
				call_has(c, "two") ? 2 :
						     1);
	run_keep("resumed", r ? strerrorname_np(-r) : "0");
	call_returned(c, r);
}

void driver_does(struct call *c)
{
	const char *text;

	if (call_has(c, "lets_go")) {
		gpu_let_go();
		return;
	}
	text = words_joined(c->words, c->n);
	if (strstr(text, "held="))
		gpu_hold();
	gpu_settings("%s", text);
}

/* --- what the driver has, and has seen --- */

const char *gpu_name(const char *name)
{
	return strcmp(name, "gpus") == 0 ?
		       run_text("%d", gpu_count()) :
	       strcmp(name, "real") == 0 ?
		       run_text("%d", gpu_is_real()) :
	       strcmp(name, "fabric") == 0 ?
		       run_text("%d", gpu_range_possible(gpu_at(0), WIRE_DEVICE_FABRIC)) :
		       NULL;
}

const char *driver_for_value(char *const *words)
{
	return run_text("%d", cuda_binaries_driver(cuda_binaries, (int)number_of(words[0])));
}

const char *notes_value(char *const *words)
{
	return run_text("%d", gpu_reported("", words[0], text_of(words[1])));
}
