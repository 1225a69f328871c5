/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_job.h - a job on its way through a GPU. The GPU's thread; cuda_path.c leads it up to the
 * lanes, cuda_lane.c carries its pieces.
 *
 *	ORDER --reached--> [CHECK: verified by a worker] --> QUEUED --cut--> ISSUED --> ended:
 *	  ^-------- the next layers of a store are not given yet ------'
 *	no piece of it is in a lane any more, and all are done or it was stopped
 *
 * CHECK: a load that verifies an image of several pieces, as a page is touched only when all of it
 * is known to be good. An image of one piece is verified while it is copied.
 */
#ifndef KVTIER_CUDA_JOB_H
#define KVTIER_CUDA_JOB_H

#include "cuda_gpu.h"
#include "cuda_layout.h"
#include "cuda_work.h"
#include "daemon/base/workers.h"

/* A job's state; from a pool, one for each job that the device takes. */
struct cuda_job {
	struct cuda_mail mail; /* to the thread and back */
	struct cuda_path *path;
	struct device_job *job;
	struct cuda_layout *layout;
	enum cuda_way way;
	struct cuda_image image;
	struct cuda_units units;
	/* the image: in the GPU's memory for images; and in engine mode in its page; 0: not */
	CUdeviceptr kept, staged;
	CUdeviceptr at; /* of these the address where the wire ends; 0: it ends in lanes */
	/* ORDER, or for layers that were not given yet; or one of the path's fetches */
	struct list waiting;
	struct work check;    /* CHECK */
	bool verifies;        /* load: its only piece is verified while it is copied */
	bool queued;          /* QUEUED: stands in turns */
	uint32_t next_unit;   /* not yet in a lane; units.end: not given yet */
	uint32_t end_unit;    /* of all that it does */
	uint32_t pieces, out; /* put into lanes up to now; of these still there */
	uint32_t copied;      /* store: pieces copied out; fetch: bytes */
	int status;
};

/* The job has its status: its completion is sent at the end of the turn. */
void cuda_job_end(struct cuda_job *job);
/* Ends the job if nothing more is to come: no part of it is out, and all of it is done or it has a
 * status. */
void cuda_job_look(struct cuda_job *job);
void cuda_job_queue(struct cuda_job *job, bool again); /* again: first of its client's */
uint32_t cuda_job_layer_unit(const struct cuda_job *job, uint32_t layer); /* where it begins */

#endif
