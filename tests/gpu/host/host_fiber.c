/* SPDX-License-Identifier: Apache-2.0 */
#include "host_fiber.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "host_kernel.h"

enum { GUARD = 4096, STRIDE = HOST_STACK_BYTES + GUARD, COLOURS = 32, COLOUR_BYTES = 512 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;

struct pool {
	uint8_t *memory;
	uint32_t n;
	struct fiber fibers[HOST_KERNEL_THREADS];
};

#if defined(__x86_64__)

/* Registers that a function must keep for its caller go to the stack that it leaves. */
void host_fiber_swap(void **leave, void *enter);
__asm__(".text\n"
	".globl host_fiber_swap\n"
	".hidden host_fiber_swap\n"
	".type host_fiber_swap, @function\n"
	"host_fiber_swap:\n"
	"	push %rbp\n	push %rbx\n	push %r12\n"
	"	push %r13\n	push %r14\n	push %r15\n"
	"	mov %rsp, (%rdi)\n"
	"	mov %rsi, %rsp\n"
	"	pop %r15\n	pop %r14\n	pop %r13\n"
	"	pop %r12\n	pop %rbx\n	pop %rbp\n"
	"	ret\n"
	".size host_fiber_swap, .-host_fiber_swap\n");

static void prepare(struct fiber *fiber, uint8_t *top, void (*entry)(void))
{
	/* Six registers, where to return to, and the address that a caller would have pushed. */
	uint64_t *stack = (uint64_t *)(void *)top - 8;

	for (int i = 0; i < 8; i++)
		stack[i] = 0;
	stack[6] = (uintptr_t)entry;
	fiber->stack = stack;
}

void fiber_switch(struct fiber *from, const struct fiber *to)
{
	host_fiber_swap(&from->stack, to->stack);
}

#else

#include <ucontext.h>

/* Slower, as each switch is two system calls. The context lies at the far end of the stack. */
static void prepare(struct fiber *fiber, uint8_t *top, void (*entry)(void))
{
	ucontext_t *context = (void *)(top - HOST_STACK_BYTES);

	(void)getcontext(context);
	context->uc_stack.ss_sp = context + 1;
	context->uc_stack.ss_size = HOST_STACK_BYTES - sizeof(*context);
	context->uc_link = NULL;
	makecontext(context, entry, 0);
	fiber->stack = context;
}

void fiber_switch(struct fiber *from, const struct fiber *to)
{
	static _Thread_local ucontext_t own; /* of the thread's own stack */

	if (!from->stack)
		from->stack = &own;
	(void)swapcontext(from->stack, to->stack);
}

#endif

static void pool_free(void *arg)
{
	struct pool *pool = arg;

	if (pool->memory)
		(void)munmap(pool->memory, (size_t)HOST_KERNEL_THREADS * STRIDE);
	free(pool);
}

static void make_key(void)
{
	(void)pthread_key_create(&key, pool_free);
}

static struct pool *pool_of_thread(void)
{
	struct pool *pool;

	(void)pthread_once(&once, make_key);
	pool = pthread_getspecific(key);
	if (pool)
		return pool;
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return NULL;
	pool->memory = mmap(NULL, (size_t)HOST_KERNEL_THREADS * STRIDE, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (pool->memory == MAP_FAILED || pthread_setspecific(key, pool)) {
		pool->memory = pool->memory == MAP_FAILED ? NULL : pool->memory;
		pool_free(pool);
		return NULL;
	}
	return pool;
}

struct fiber *fibers_of_thread(uint32_t n)
{
	struct pool *pool = pool_of_thread();

	for (; pool && pool->n < n; pool->n++)
		if (mprotect(pool->memory + (size_t)pool->n * STRIDE + GUARD, HOST_STACK_BYTES,
			     PROT_READ | PROT_WRITE))
			return NULL;
	return pool ? pool->fibers : NULL;
}

void fiber_start(struct fiber *fiber, void (*entry)(void))
{
	struct pool *pool = pthread_getspecific(key);
	const size_t i = (size_t)(fiber - pool->fibers);

	/* Where all begin at one place of a page they push each other out of a cache. */
	prepare(fiber, pool->memory + (i + 1) * STRIDE - i % COLOURS * COLOUR_BYTES, entry);
}
