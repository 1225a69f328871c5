/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_path.h - the way of jobs through a GPU: lanes, streams, workers.
 *
 *	job:  ORDER --reached--> [CHECK: verified by a worker] --> QUEUED --cut--> ISSUED --> ended:
 *	      no piece of it is in a lane any more, and all are done or it was stopped
 *	      CHECK: a load that verifies an image of several pieces, as a page is touched only when
 *	      all of it is known to be good. An image of one piece is verified while it is copied.
 *
 *	lane of a store:  FREE -> FILLING -> GPU (tasks in, kernel, lane out) -> DRAINING (workers
 *			  copy and hash) -> FREE
 *	lane of a load:	  FREE -> FILLING (workers copy) -> GPU (lane in, kernel) -> FREE
 *
 * Invariants
 *   P1 each way has CUDA_LANES lanes, used and freed in turn, and at most CUDA_BATCHES of them are
 *      on the GPU.
 *   P2 a lane that is filled while others are on the GPU goes on being filled: copies merge while
 *      the wire is busy, and a lone block waits for nothing.
 *   P3 nothing is queued on the GPU for a job before its order was reached, nor once it was
 *      stopped: both are looked at right before the launch of each of its pieces.
 *   P4 no order is waited for by a stream: it is polled. An engine whose stream never gets there
 *      holds up its own jobs.
 *   P5 clients take turns, a piece at a time (device_turns.h).
 *   P6 pieces of a stored image are copied out in order: the checksum needs that.
 *   P7 a way has two streams, kernels and copies, and an event orders them within a lane. So while
 *      a kernel scatters one run of an image, the next run crosses the wire.
 *   P8 lanes of a way end in order, and units lie layer after layer: a job's progress word
 *      (device_job.layers) is raised when an event has told that the layers are in the page.
 *
 * All of it is the GPU's thread's, but for cuda_path_open(), cuda_path_close() and
 * cuda_path_submit().
 */
#ifndef KVTIER_CUDA_PATH_H
#define KVTIER_CUDA_PATH_H

#include "cuda_gpu.h"
#include "daemon/base/workers.h"
#include "daemon/device/device_turns.h"
#include "cuda_layout.h"
#include "cuda_work.h"

enum { CUDA_LANES = 4, CUDA_BATCHES = 2 };

struct cuda_lane;

/* A job's state; from a pool, one for each job that the device takes. */
struct cuda_job {
	struct cuda_mail mail; /* to the thread and back */
	struct cuda_path *path;
	struct device_job *job;
	struct cuda_layout *layout;
	enum cuda_way way;
	struct cuda_image image;
	struct cuda_units units;
	struct list waiting;  /* ORDER */
	struct work check;    /* CHECK */
	bool verifies;        /* load: its only piece is verified while it is copied */
	bool queued;          /* QUEUED: stands in turns */
	uint32_t next_unit;   /* not yet in a lane */
	uint32_t pieces, out; /* put into lanes up to now; of these still there */
	uint32_t copied;      /* store: pieces copied out */
	uint32_t landed;      /* load: units that are in the page */
	int status;
};

/* A piece of a job in a lane. */
struct cuda_part {
	struct work work;
	struct cuda_job *job; /* NULL: ended */
	struct cuda_lane *lane;
	struct cuda_cut cut;
	uint32_t number; /* among its job's pieces */
	uint32_t flag;   /* store: which of the lane's flags is its own */
	int status;      /* of the worker: -EBADMSG: what was to be verified is damaged */
	bool lent;       /* a worker has it */
};

enum cuda_lane_state { LANE_FREE, LANE_FILLING, LANE_GPU, LANE_DRAINING };

struct cuda_lane {
	enum cuda_lane_state state;
	enum cuda_way way;
	uint32_t used; /* bytes, the head included */
	uint32_t n;    /* parts, ended ones included */
	uint32_t lent; /* workers have so many of them */
	bool full;
	uint8_t *host; /* pinned */
	CUdeviceptr on_gpu;
	CUevent crossed; /* between the two streams: the first of them is done with it */
	CUevent event;   /* the GPU is done with it */
	struct cuda_part parts[CUDA_LANE_PIECES];
};

struct cuda_path {
	struct cuda_gpu *gpu;
	uint32_t lane_bytes;
	struct workers *workers;
	struct cuda_job *jobs; /* the pool */
	struct cuda_job **free_jobs;
	uint32_t n_free_jobs; /* the core's, like free_jobs */
	uint32_t n_jobs;      /* taken and not ended */
	uint32_t lent;        /* pieces and checks that workers have */
	struct list waiting;  /* ORDER */
	struct device_turns turns[CUDA_WAYS];
	struct cuda_lane lanes[CUDA_WAYS][CUDA_LANES];
	uint32_t first[CUDA_WAYS], busy[CUDA_WAYS]; /* lanes that are not free */
	uint32_t on_gpu[CUDA_WAYS];
	uint64_t quiet_turns; /* in a row without news */
	struct mails ended;   /* to the core, at the end of the turn */
	uint64_t out_bytes, in_bytes, batches;
};

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

/* A context was made; it is about to be closed; it is gone. */
int cuda_path_attach(struct cuda_path *path, char *text, size_t n);
void cuda_path_detach(struct cuda_path *path);
void cuda_path_forget(struct cuda_path *path);
/* After that: ends all jobs that had anything on it, and those that wait for it. */
void cuda_path_lost(struct cuda_path *path);

bool cuda_path_turn(struct cuda_path *path);        /* true: something moved */
bool cuda_path_idle(const struct cuda_path *path);  /* no job */
bool cuda_path_quiet(const struct cuda_path *path); /* no worker has anything */
int cuda_path_fd(const struct cuda_path *path);     /* readable: a worker has ended something */
uint64_t cuda_path_wait_ns(struct cuda_path *path); /* until the next turn; 0: no need */
void cuda_path_count(const struct cuda_path *path, struct cuda_view *ret);

/* cuda_lane.c, for cuda_path.c. */
bool cuda_lanes_turn(struct cuda_path *path); /* true: something moved */
void cuda_lanes_lost(struct cuda_path *path);
/* cuda_job.c, for both. It has its status: its completion is sent at the end of the turn. */
void cuda_job_end(struct cuda_job *job);
/* Ends the job if nothing more is to come: no part of it is out, and
 * all of it is done or it has a status. */
void cuda_job_look(struct cuda_job *job);
void cuda_job_queue(struct cuda_job *job, bool again); /* again: first of its client's */
void cuda_job_landed(struct cuda_job *job);            /* tells how many layers have */

#endif
