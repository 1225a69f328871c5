/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_lane.h - lanes: pieces of jobs, on their way between host slots and pages. The GPU's thread.
 *
 *	job:	ORDER --reached--> [CHECK: verified by a worker] --> QUEUED --cut--> ISSUED -->
 *		  ^-------- the next layers of a store are not given yet ------'
 *		ended: no piece of it is in a lane any more, and all are done or it was stopped
 *
 *	lane of a store:  FREE -> FILLING -> GPU (kernel, lane out) -> DRAINING (workers copy and
 *			  hash; a payload that went directly is hashed in its slot) -> FREE
 *	lane of a load:	  FREE -> FILLING (workers copy what has no direct copy) -> GPU (lane in,
 *			  kernel) -> FREE
 *	lane of hits:	  FREE -> FILLING -> GPU (kernel) -> FREE
 *
 *	layout:	core: cuda_layout_make --> thread: brought to the GPU by its first job --> core:
 *		cuda_layout_forget --mail--> thread: freed
 *
 * CHECK: a load that verifies an image of several pieces, as a page is touched only when all of it
 * is known to be good. An image of one piece is verified while it is copied.
 *
 * A piece's scales and payload have two places a side:
 *
 *	host:	the lane's buffer; a payload also in its slot, where the piece has a hold on it
 *	GPU:	the lane's buffer, or, of an image that the GPU keeps (cuda_job.kept), that image
 *
 * Pieces that go from lane to lane cross the wire with one copy a run. Each other piece has copies
 * of its own.
 *
 * Invariants
 *   L1 each way has CUDA_LANES lanes, used and freed in turn, and at most CUDA_BATCHES of them are
 *      on the GPU.
 *   L2 while other lanes are on the GPU, the next lane is filled: copies merge while the
 *      wire is busy, and a lone block does not wait.
 *   L3 pieces of a stored image are copied out in order: the checksum needs that.
 *   L4 a way has two streams, kernels and copies, and an event orders them within a lane. So while
 *      a kernel scatters one run of an image, the next run crosses the wire. Tasks go with the
 *      launch: a store's kernel waits for no copy.
 *   L5 tiles lie layer after layer. A store whose layers are given one after the other
 *      (device_order.given) waits again when all layers given so far are in lanes.
 *   L6 whether a piece's payload is copied directly between slot and GPU is decided when it is put
 *      into a lane, and holds until the piece has ended: after its event, or when the context is
 *      gone. So memory that is registered meanwhile serves the next piece, and memory that a GPU
 *      takes out of use waits for the copies there (cuda_pin.h). A lane has room for all payload in
 *      any case, on the GPU as on the host.
 */
#pragma once

#include "cuda_image.h"
#include "base/workers.h"
#include "daemon/cuda/driver/cuda_gpu.h"
#include "daemon/device/device_queue.h"

/* The kernels' view of a mount's pages. */
struct cuda_layout {
	struct cuda_mail mail;
	struct cuda_plan plan;
	struct cuda_piece *pieces; /* the host's */
	/* the generation of its regions' context; 0: they are not of one context */
	uint32_t generation;
	CUdeviceptr on_gpu; /* the pieces on the GPU; 0: not there yet. The thread's */
};

/* A job's state; from a pool, one for each job that the device takes. */
struct cuda_job {
	struct cuda_mail mail; /* to the thread and back */
	struct cuda_path *path;
	struct device_job *job;
	struct cuda_layout *layout;
	enum cuda_way way;
	struct cuda_image image;
	struct cuda_tiles tiles;
	/* where the image is in the GPU's memory for images, and the wire ends; 0: it is not there,
	 * and the wire ends in lanes */
	CUdeviceptr kept;
	/* in the list of jobs that wait for an order or for layers, or in that of fetches */
	struct list waiting;
	struct work check; /* CHECK */
	bool verifies;     /* load: its only piece is verified while it is copied */
	bool queued;       /* QUEUED: stands in a queue */
	/* the first tile that is in no lane yet; tiles.end: the next ones are not given yet */
	uint32_t next_tile;
	uint32_t end_tile; /* the end of all tiles that it does */
	/* pieces that were put into lanes, and those of them that are still there */
	uint32_t pieces, out;
	uint32_t copied; /* store: pieces copied out; fetch: bytes */
	int status;
};

enum {
	CUDA_LANES = 4,
	CUDA_BATCHES = 2,
	/* A payload of so many bytes, in a slot that is registered with the driver, is copied
	 * between slot and GPU. It costs two copies more on the wire's queue (itself, and the
	 * scales before it), 0.5 us each, and crosses in 5 to 10 us. A smaller one crosses by way
	 * of the lane, with others in one copy: a worker's time is cheaper. */
	CUDA_DIRECT_LEAST = 256 << 10,
	CUDA_FETCH_BYTES = 256 << 10, /* so much of an image is read back at once: some 50 us */
};

/* A piece of a job in a lane. */
struct cuda_lane_piece {
	struct work work;
	struct cuda_job *job; /* NULL: ended */
	struct cuda_lane *lane;
	struct cuda_cut cut;
	uint32_t number; /* among its job's pieces */
	uint32_t hold;   /* on its slot: the payload is copied directly; 0: it goes by the lane */
	int status;      /* the worker's: -EBADMSG: the image that it verified is damaged */
	bool lent;       /* a worker has it */
	bool launched;
};

enum cuda_lane_state { LANE_FREE, LANE_FILLING, LANE_GPU, LANE_DRAINING };

struct cuda_lane {
	enum cuda_lane_state state;
	enum cuda_way way;
	uint32_t mark; /* of its launches (codec.h) */
	uint32_t used; /* bytes, the head included */
	uint32_t n;    /* pieces, ended ones included */
	uint32_t lent; /* how many of them workers have */
	bool full;
	bool packs; /* a piece is of a lossless space, and its kernels set flags */
	/* pinned, and on the GPU; a lane of hits has neither */
	uint8_t *host;
	CUdeviceptr on_gpu;
	CUevent crossed; /* between the two streams: the first of them is done with it */
	CUevent event;   /* the GPU is done with it */
	struct cuda_patience patience; /* for that */
	struct cuda_lane_piece pieces[CUDA_LANE_PIECES];
};

/* All jobs of a GPU, and its lanes. */
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
	struct list fetches;  /* cuda_path.c */
	struct device_queue queues[CUDA_WAYS];
	struct cuda_lane lanes[CUDA_WAYS][CUDA_LANES];
	uint32_t first[CUDA_WAYS], busy[CUDA_WAYS]; /* lanes that are not free */
	uint32_t on_gpu[CUDA_WAYS];
	/* how long lanes were on the GPU so far, up to the last change of on_gpu, and its time */
	uint64_t busy_ns[CUDA_WAYS], changed_ns[CUDA_WAYS];
	uint32_t mark;        /* of the last lane: each has one of its own */
	uint64_t quiet_polls; /* polls in a row without news */
	struct mails ended;   /* to the core, at the end of the iteration */
	uint64_t out_bytes, in_bytes, batches;
	uint64_t direct_bytes[CUDA_WAYS], bounced_bytes[CUDA_WAYS];
};

/* Core thread: prepare and forget of device_ops. */
int cuda_layout_make(struct device *device, struct device_layout *layout);
void cuda_layout_forget(struct device *device, struct device_layout *layout);

/* The job has its status: its completion will be sent at the end of the iteration. */
void cuda_job_end(struct cuda_job *job);
/* Ends the job if nothing more is to come: no piece of it is in a lane, and it is done or has a
 * status. */
void cuda_job_look(struct cuda_job *job);
void cuda_job_queue(struct cuda_job *job, bool again); /* again: first of its client's */
uint32_t cuda_job_layer_tile(const struct cuda_job *job, uint32_t layer); /* where it begins */

bool cuda_lanes_poll(struct cuda_path *path); /* true: something moved */

/* A context was made: 0 or -errno. A context is about to be closed, or is lost. */
int cuda_lanes_attach(struct cuda_path *path);
void cuda_lanes_detach(struct cuda_path *path, bool lost);
/* After that: ends all pieces, and the jobs that have no other. */
void cuda_lanes_lost(struct cuda_path *path);
