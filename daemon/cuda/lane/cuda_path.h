/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_path.h - leads jobs through a GPU: it waits for their orders, has them checked, and decides
 * which client is next. cuda_lane.h has the states of a job, and the lanes that carry its bytes.
 *
 * Invariants
 *   P1 no work is queued on the GPU for a job before its order was reached, or once it was
 *      stopped: both are looked at right before the launch of each of its pieces.
 *   P2 no order is waited for by a stream: it is polled. An engine whose stream never gets there
 *      holds up its own jobs.
 *   P3 clients take turns, a piece at a time (device_queue.h).
 *
 * All functions are the GPU's thread's, unless they say otherwise.
 */
#pragma once

#include "daemon/cuda/driver/cuda_gpu.h"

struct cuda_path;

/* Core: at start and at the end. 0 or -ENOMEM. */
int cuda_path_open(struct cuda_gpu *gpu, struct cuda_path **ret);
void cuda_path_close(struct cuda_path *path); /* may be NULL */
/* Makes the workers, before the thread begins. 0 or -errno. */
int cuda_path_start(struct cuda_path *path);

/* Core: returns the mail that brings a job to the thread. There is one for each job that the device
 * takes. */
struct cuda_mail *cuda_path_submit(struct cuda_path *path, struct device_job *job,
				   enum cuda_way way);
/* Core: the job of a mail that came back. Its status is set. */
struct device_job *cuda_path_ended(struct cuda_path *path, struct mail *mail);

/* The context is gone: ends the jobs that used it, and those that wait for it. */
void cuda_path_lost(struct cuda_path *path);

bool cuda_path_poll(struct cuda_path *path);        /* true: something moved */
uint64_t cuda_path_wait_ns(struct cuda_path *path); /* until the next iteration; 0: no need */
