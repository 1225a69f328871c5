/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_fetch.h - images that are read back from a GPU's memory into the daemon's, to be verified.
 * The GPU's thread.
 *
 * One piece of one fetch a turn goes into pinned memory; the thread waits for it, and copies it to
 * where the fetch wants it. A copy straight to that place, which is pageable, would be waited for
 * inside the driver, as long as the GPU likes. A fetch ends with 0, with -ESTALE when its memory is
 * gone, or with -EIO.
 */
#ifndef KVTIER_CUDA_FETCH_H
#define KVTIER_CUDA_FETCH_H

#include "cuda_gpu.h"

struct cuda_path;

enum { CUDA_FETCH_BYTES = 256 << 10 }; /* of a piece: some 50 us */

/* Of the mail that brings a FETCH. */
void cuda_fetch_take(struct cuda_gpu *gpu, struct cuda_mail *mail);
/* Not while the context is failing; when it is gone all of them end, one a turn. True: something
 * moved. */
bool cuda_fetch_turn(struct cuda_path *path);

#endif
