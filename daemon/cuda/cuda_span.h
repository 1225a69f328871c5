/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_span.h - memory of a GPU that other processes can map, too: an allocation of the driver's
 * virtual memory management, mapped whole. The GPU's thread, in its context.
 *
 * The memory lives while anybody has it mapped or holds a descriptor of it: its contents when a
 * process maps it again are the caller's to find out.
 */
#ifndef KVTIER_CUDA_SPAN_H
#define KVTIER_CUDA_SPAN_H

#include "cuda_gpu.h"

/* At least so many bytes, at a multiple of IMAGE_ALIGN: not zeroed. *ret_fd, the caller's: the
 * descriptor by which another process maps it. -errno with text: there is nothing. */
int cuda_span_make(struct cuda_gpu *gpu, uint64_t bytes, struct cuda_span *ret, int *ret_fd,
		   char *text, size_t n);
/* The memory of such a descriptor, which was made for so many bytes. The descriptor stays the
 * caller's. -EINVAL: another GPU's, or smaller. */
int cuda_span_adopt(struct cuda_gpu *gpu, int fd, uint64_t bytes, struct cuda_span *ret, char *text,
		    size_t n);
/* Nothing of it is in flight. Zeroed: it is nothing. */
void cuda_span_free(struct cuda_gpu *gpu, struct cuda_span *span);

#endif
