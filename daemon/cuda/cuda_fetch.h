/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_fetch.h - images that are read back from a GPU's memory into the daemon's, to be verified.
 * The GPU's thread.
 *
 * The daemon's memory is pageable, so the driver copies before it returns: one piece of one fetch a
 * turn, for which the thread waits. A fetch ends with 0, with -ESTALE when its memory is gone, or
 * with -EIO.
 */
#ifndef KVTIER_CUDA_FETCH_H
#define KVTIER_CUDA_FETCH_H

#include "cuda_gpu.h"

struct cuda_path;

/* Of the mail that brings a FETCH. */
void cuda_fetch_take(struct cuda_gpu *gpu, struct cuda_mail *mail);
/* Not while the context is failing; when it is gone all of them end, one a turn. True: something
 * moved. */
bool cuda_fetch_turn(struct cuda_path *path);

#endif
