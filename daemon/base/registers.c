/* SPDX-License-Identifier: Apache-2.0 */
/* registers.c - see registers.h. */
#include "registers.h"

#if defined(__x86_64__)

#define XMM                                                                                      \
	"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
		"xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

/* Each instruction runs only where the processor has it. The compiler does not know of xmm16 and
 * above, so it keeps nothing there. */
__attribute__((noinline)) void registers_forget(void)
{
	if (__builtin_cpu_supports("avx512f"))
		__asm__ volatile(".irp i, 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n\t"
				 "vpxord %%zmm\\i, %%zmm\\i, %%zmm\\i\n\t"
				 ".endr" ::
					 : "memory");
	if (__builtin_cpu_supports("avx"))
		__asm__ volatile("vzeroall" ::: XMM);
	else
		__asm__ volatile(".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n\t"
				 "pxor %%xmm\\i, %%xmm\\i\n\t"
				 ".endr" ::
					 : XMM);
}

#else

void registers_forget(void)
{
}

#endif
