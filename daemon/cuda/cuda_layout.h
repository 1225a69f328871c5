/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_layout.h - the kernels' view of a mount's pages (struct cuda_plan): on the host, and from
 * its first job on, on the GPU.
 *
 *	core: cuda_layout_make --> thread: cuda_layout_need, with each launch --> core:
 *	cuda_layout_forget --mail--> thread: freed
 */
#ifndef KVTIER_CUDA_LAYOUT_H
#define KVTIER_CUDA_LAYOUT_H

#include "cuda_gpu.h"
#include "kernels/cuda/codec.h"

struct cuda_layout {
	struct cuda_mail mail;
	struct cuda_plan plan;
	struct cuda_piece *pieces; /* the host's */
	uint32_t generation;       /* of its regions' context; 0: they are not of one */
	CUdeviceptr on_gpu;        /* the pieces; 0: not yet. The thread's */
	/* engine mode: no kernel of the daemon's needs the plan there; it says where to cut */
	CUdeviceptr images; /* of page 0; 0: pages hold planes */
	uint64_t image_stride;
};

/* Core thread. 0 or -ENOMEM. */
int cuda_layout_make(const struct device_layout *layout, struct cuda_layout **ret);
void cuda_layout_forget(struct cuda_gpu *gpu, struct cuda_layout *layout);

/* On the thread: the plan is on the GPU: 0. -EIO: its regions are of a context that is gone. */
int cuda_layout_need(struct cuda_gpu *gpu, struct cuda_layout *layout);

#endif
