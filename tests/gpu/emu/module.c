/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.c - modules, functions, launches.
 *
 * Once binary.c has let an image pass ("" always does), a module has the product's kernels as they
 * are compiled for the host (tests/gpu/host), and three small ones of its own for the tests of this
 * driver:
 *
 *	emu_fill(uint64_t to, uint32_t value, uint32_t n)   n words
 *	emu_add(uint64_t to, uint64_t from, uint32_t n)     to[i] = from[i] + 1
 *	emu_trap(void)                                      breaks its context
 *
 * Arguments are copied when the launch is queued. Each access of a kernel goes through translate().
 */

#include "emu.h"
#include "tests/gpu/host/host_kernel.h"

/* The kernels of the product may not be linked in. */
__attribute__((weak)) const struct host_kernel *host_kernel_find(const char *name);
__attribute__((weak)) int host_kernel_run(const struct host_kernel *kernel,
					  const struct host_launch *launch, char *text, size_t n);

/* --- kernels of its own --- */

static uint32_t *word_at(const struct host_launch *l, unsigned param, uint32_t i, int write)
{
	uint64_t base;

	memcpy(&base, l->params[param], sizeof(base));
	return l->access(l->arg, base + 4ULL * i, 4, write);
}

static int own_run(const char *name, const struct host_launch *l)
{
	const bool add = !strcmp(name, "emu_add");
	const uint32_t *from;
	uint32_t i, n, *to;

	if (!strcmp(name, "emu_trap"))
		return -1;
	memcpy(&n, l->params[2], sizeof(n));
	for (i = 0; i < n; i++) {
		from = add ? word_at(l, 1, i, 0) : l->params[1];
		to = from ? word_at(l, 0, i, 1) : NULL;
		if (!to)
			return -1;
		*to = *from + add;
	}
	return 0;
}

static const struct host_kernel own[] = {
	{ .name = "emu_fill", .n_params = 3, .param_bytes = { 8, 4, 4 }, .max_threads = 1024 },
	{ .name = "emu_add", .n_params = 3, .param_bytes = { 8, 8, 4 }, .max_threads = 1024 },
	{ .name = "emu_trap", .max_threads = 1024 },
};

static const struct host_kernel *find_kernel(const char *name)
{
	for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++)
		if (!strcmp(own[i].name, name))
			return &own[i];
	return host_kernel_find ? host_kernel_find(name) : NULL;
}

/* --- running --- */

struct reach {
	const struct device *gpu;
	char text[256];
};

static void *reach(void *arg, uint64_t address, size_t bytes, int write)
{
	struct reach *r = arg;

	return translate(r->gpu, address, bytes, write, r->text, sizeof(r->text));
}

int function_run(const struct operation *op, struct device *gpu, uint64_t random, char *text,
		 size_t n)
{
	const struct host_kernel *kernel = op->function->kernel;
	void *params[HOST_KERNEL_PARAMS] = { NULL };
	struct reach r = { .gpu = gpu };
	struct host_launch launch = { .shared_bytes = op->shared_bytes,
				      .params = params,
				      .seed = random,
				      .access = reach,
				      .arg = &r };
	char said[300] = "it trapped";
	size_t at = 0;
	uint32_t i;
	int result;

	memcpy(launch.grid, op->grid, sizeof(op->grid));
	memcpy(launch.block, op->block, sizeof(op->block));
	for (i = 0; i < kernel->n_params; i++) {
		params[i] = op->params + at;
		at += (kernel->param_bytes[i] + 15) / 16 * 16;
	}
	if (kernel >= own && kernel < own + sizeof(own) / sizeof(*own))
		result = own_run(kernel->name, &launch);
	else
		result = host_kernel_run(kernel, &launch, said, sizeof(said));
	if (result)
		snprintf(text, n, "kernel %s: %s; %s", kernel->name, said, r.text);
	return result;
}

/* --- calls --- */

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	struct object *m;
	CUresult result;

	CALL(cuModuleLoadData, NEEDS_CONTEXT);
	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	result = *(const char *)image ? binary_check(image) : CUDA_SUCCESS;
	if (result)
		return result;
	m = object_new(OBJECT_MODULE, call.ctx, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*module = (CUmodule)m->handle;
	return CUDA_SUCCESS;
}

void function_release(struct function *function)
{
	if (--function->refs == 0)
		free(function);
}

void function_remove(struct function *function)
{
	object_remove(&function->object);
	function_release(function);
}

CUresult cuModuleUnload(CUmodule module)
{
	struct object *m, *object;
	uint32_t at = 0;

	CALL(cuModuleUnload, NEEDS_CONTEXT);
	m = object_find(OBJECT_MODULE, (uint64_t)module, call_name(call.id));
	if (!m || m->ctx != call.ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	while ((object = object_next(call.ctx, &at)) != NULL) {
		struct function *f = (struct function *)object;

		if (object->kind != OBJECT_FUNCTION || f->module != m->handle)
			continue;
		if (f->queued)
			violation("%s: launches of its kernels are queued", call_name(call.id));
		function_remove(f);
	}
	object_free(m);
	return call_done(&call);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	const struct host_kernel *kernel;
	const struct object *m;
	struct function *f;

	CALL(cuModuleGetFunction, NEEDS_CONTEXT);
	m = object_find(OBJECT_MODULE, (uint64_t)module, call_name(call.id));
	if (!m || m->ctx != call.ctx || !function || !name)
		return m ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
	kernel = find_kernel(name);
	if (!kernel)
		return CUDA_ERROR_NOT_FOUND;
	f = object_new(OBJECT_FUNCTION, call.ctx, sizeof(*f));
	if (!f)
		return CUDA_ERROR_OUT_OF_MEMORY;
	f->module = m->handle;
	f->kernel = kernel;
	f->refs = 1;
	*function = (CUfunction)f->object.handle;
	return CUDA_SUCCESS;
}

static struct function *find(const struct call *call, CUfunction function)
{
	struct function *f = (struct function *)object_find(OBJECT_FUNCTION, (uint64_t)function,
							    call_name(call->id));

	return f && f->object.ctx == call->ctx ? f : NULL;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
	const struct function *f;

	CALL(cuFuncGetAttribute, NEEDS_CONTEXT);
	f = find(&call, function);
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*value = (int)((const struct host_kernel *)f->kernel)->max_threads;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
	case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
		*value = 0;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		*value = 64;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
	CALL(cuFuncSetAttribute, NEEDS_CONTEXT);
	(void)value;
	if (!find(&call, function))
		return CUDA_ERROR_INVALID_HANDLE;
	return attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
			       attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT ?
		       CUDA_SUCCESS :
		       CUDA_ERROR_INVALID_VALUE;
}

static unsigned char *copy_params(const struct host_kernel *kernel, void **params)
{
	size_t bytes = 0, at = 0;
	unsigned char *ret;

	for (uint32_t i = 0; i < kernel->n_params; i++)
		bytes += (kernel->param_bytes[i] + 15) / 16 * 16;
	ret = aligned_alloc(16, bytes + 16);
	for (uint32_t i = 0; ret && i < kernel->n_params; i++) {
		memcpy(ret + at, params[i], kernel->param_bytes[i]);
		at += (kernel->param_bytes[i] + 15) / 16 * 16;
	}
	return ret;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
			unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
			CUstream stream, void **params, void **extra)
{
	const uint64_t threads = (uint64_t)block_x * block_y * block_z;
	const struct host_kernel *kernel;
	struct operation op = { .kind = OPERATION_KERNEL,
				.grid = { grid_x, grid_y, grid_z },
				.block = { block_x, block_y, block_z },
				.shared_bytes = shared_bytes };

	CALL_ON_STREAM(cuLaunchKernel, stream);
	op.call = call.id;
	op.function = find(&call, function);
	if (!op.function)
		return CUDA_ERROR_INVALID_HANDLE;
	kernel = op.function->kernel;
	if (!threads || threads > kernel->max_threads || !grid_x || !grid_y || !grid_z || extra ||
	    (kernel->n_params && !params) || shared_bytes > 48 << 10)
		return CUDA_ERROR_INVALID_VALUE;
	op.params = copy_params(kernel, params);
	return op.params ? stream_queue(s, &op, NULL) : CUDA_ERROR_OUT_OF_MEMORY;
}
