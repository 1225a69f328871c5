/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_lane.h - lanes: pieces of jobs, on their way between host slots and pages. The GPU's thread.
 *
 *	lane of a store:  FREE -> FILLING -> GPU (kernel, lane out) -> DRAINING (workers copy and
 *			  hash; a payload that went directly is hashed in its slot) -> FREE
 *	lane of a load:	  FREE -> FILLING (workers copy; not what goes directly) -> GPU (lane in,
 *			  kernel) -> FREE
 *	lane of hits:	  FREE -> FILLING -> GPU (kernel) -> FREE
 *
 * In engine mode the kernel is the client's: a copy on the GPU takes its place, or nothing does
 * (cuda_wire.h).
 *
 * Invariants
 *   L1 each way has CUDA_LANES lanes, used and freed in turn, and at most CUDA_BATCHES of them are
 *      on the GPU.
 *   L2 while other lanes are on the GPU, the next lane goes on being filled: copies merge while the
 *      wire is busy, and a lone block waits for nothing.
 *   L3 pieces of a stored image are copied out in order: the checksum needs that.
 *   L4 a way has two streams, kernels and copies, and an event orders them within a lane. So while
 *      a kernel scatters one run of an image, the next run crosses the wire. Tasks go with the
 *      launch: a store's kernel waits for no copy.
 *   L5 units lie layer after layer. A store whose layers are given one after the other
 *      (device_order.given) goes back to wait when all layers given so far are in lanes.
 *   L6 whether a piece's payload goes directly between slot and GPU is decided when it is put into
 *      a lane, and holds until the piece has ended: after its event, or when the context is gone.
 *      So memory that is registered meanwhile serves the next piece, and memory that a GPU takes
 *      out of use waits for the copies there (cuda_pins.h). A lane has room for all payload in any
 *      case, on the GPU as on the host.
 */
#ifndef KVTIER_CUDA_LANE_H
#define KVTIER_CUDA_LANE_H

#include "cuda_job.h"

enum {
	CUDA_LANES = 4,
	CUDA_BATCHES = 2,
	/* A payload of so many bytes, in a slot that is registered with the driver, is copied
	 * between slot and GPU. It costs two copies more on the wire's queue (itself, and the
	 * scales before it), 0.5 us each, and crosses in 5 to 10 us. A smaller one goes by way of
	 * the lane, with others in one copy: a worker's time is cheaper. */
	CUDA_DIRECT_LEAST = 256 << 10,
};

/* A piece of a job in a lane. */
struct cuda_part {
	struct work work;
	struct cuda_job *job; /* NULL: ended */
	struct cuda_lane *lane;
	struct cuda_cut cut;
	uint32_t number; /* among its job's pieces */
	uint32_t hold;   /* on its slot (cuda_pin_hold()): payload goes directly. 0: by the lane */
	int status;      /* of the worker: -EBADMSG: the image to be verified is damaged */
	bool lent;       /* a worker has it */
	bool launched;
};

enum cuda_lane_state { LANE_FREE, LANE_FILLING, LANE_GPU, LANE_DRAINING };

struct cuda_lane {
	enum cuda_lane_state state;
	enum cuda_way way;
	uint32_t mark; /* of its launches (codec.h) */
	uint32_t used; /* bytes, the head included */
	uint32_t n;    /* parts, ended ones included */
	uint32_t lent; /* workers have so many of them */
	bool full;
	/* pinned, and on the GPU; a lane of hits has neither */
	uint8_t *host;
	CUdeviceptr on_gpu;
	CUevent crossed; /* between the two streams: the first of them is done with it */
	CUevent event;   /* the GPU is done with it */
	struct cuda_patience patience; /* for that */
	struct cuda_part parts[CUDA_LANE_PIECES];
};

bool cuda_lanes_turn(struct cuda_path *path); /* true: something moved */

/* A context was made: 0, or -errno with text; it is about to be closed; it is gone. */
int cuda_lanes_attach(struct cuda_path *path, char *text, size_t n);
void cuda_lanes_detach(struct cuda_path *path);
void cuda_lanes_forget(struct cuda_path *path);
/* After that: ends all pieces, and the jobs that have no other. */
void cuda_lanes_lost(struct cuda_path *path);

#endif
