/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_path.h - the way of jobs through a GPU: their orders, their checks, whose turn it is. The
 * states of a job are in cuda_job.h, the lanes that carry its bytes in cuda_lane.h.
 *
 * Invariants
 *   P1 nothing is queued on the GPU for a job before its order was reached, nor once it was
 *      stopped: both are looked at right before the launch of each of its pieces.
 *   P2 no order is waited for by a stream: it is polled. An engine whose stream never gets there
 *      holds up its own jobs.
 *   P3 clients take turns, a piece at a time (device_turns.h).
 *
 * All of it is the GPU's thread's, but for cuda_path_open(), cuda_path_close() and
 * cuda_path_submit().
 */
#ifndef KVTIER_CUDA_PATH_H
#define KVTIER_CUDA_PATH_H

#include "cuda_gpu.h"

struct cuda_path;

/* Core: at start and at the end. 0 or -ENOMEM. */
int cuda_path_open(struct cuda_gpu *gpu, struct cuda_path **ret);
void cuda_path_close(struct cuda_path *path); /* NULL is fine */
/* Before the thread begins: makes the workers. 0 or -errno */
int cuda_path_start(struct cuda_path *path);

/* Core: the mail that brings a job to the thread. There is one for each job the device takes. */
struct cuda_mail *cuda_path_submit(struct cuda_path *path, struct device_job *job,
				   enum cuda_way way);
/* Core: of a mail that came back; its job's status is set. */
struct device_job *cuda_path_ended(struct cuda_path *path, struct mail *mail);

/* The context is gone: ends all jobs that had anything in it, and the jobs that wait for it. */
void cuda_path_lost(struct cuda_path *path);

bool cuda_path_turn(struct cuda_path *path);        /* true: something moved */
bool cuda_path_idle(const struct cuda_path *path);  /* no job */
bool cuda_path_quiet(const struct cuda_path *path); /* no worker has anything */
int cuda_path_fd(const struct cuda_path *path);     /* readable: a worker has ended something */
void cuda_path_hear(struct cuda_path *path);        /* when it is readable, before the next turn */
uint64_t cuda_path_wait_ns(struct cuda_path *path); /* until the next turn; 0: no need */
void cuda_path_count(const struct cuda_path *path, struct cuda_view *ret);

#endif
