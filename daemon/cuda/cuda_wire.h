/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_wire.h - the bytes of a lane that cross the wire, and from where to where. The GPU's thread.
 *
 * A piece's scales and payload have two places a side:
 *
 *	host:	the lane's buffer; a payload also in its slot, where the part has a hold on it
 *	GPU:	the lane's buffer, or, of an image that the GPU keeps (cuda_job.at), that image
 *
 * In engine mode the client's page has the image, too, and no kernel runs: the wire ends at the
 * page; or, of an image that the GPU keeps, at that image, and a copy on the GPU joins the two. So
 * nothing that is kept is read from a page after it came from the host: its client may write there.
 *
 * Pieces that go from lane to lane cross with one copy a run. Each other piece has copies of its
 * own.
 */
#ifndef KVTIER_CUDA_WIRE_H
#define KVTIER_CUDA_WIRE_H

#include "cuda_lane.h"

struct cuda_path;

/* Where the kernels find, or put, the part's scales and payload: its image's first of each. */
void cuda_wire_place(const struct cuda_lane *lane, const struct cuda_part *part,
		     CUdeviceptr *ret_scales, CUdeviceptr *ret_payload);
/* Zeroes in the slots of images that begin in this lane, where bytes of other spaces may be: before
 * all else that the stream gets of the lane (device_keep.scrub). */
int cuda_wire_scrub(struct cuda_gpu *gpu, const struct cuda_lane *lane, CUstream stream, char *text,
		    size_t n);
/* Engine mode, in place of a kernel: the part's bytes, between the image that the GPU keeps and the
 * client's page. Nothing where the wire ends at the page. */
int cuda_wire_join(struct cuda_gpu *gpu, const struct cuda_part *part, CUstream stream, char *text,
		   size_t n);
/* The lane from `from` on, in the copy engine's stream of its way; and counts the bytes. */
int cuda_wire_cross(struct cuda_path *path, const struct cuda_lane *lane, uint32_t from, char *text,
		    size_t n);

#endif
