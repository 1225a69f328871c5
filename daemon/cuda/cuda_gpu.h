/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_gpu.h - one GPU: the thread that makes every CUDA call of it, and its context.
 *
 *	core ----------------- jobs, plans to forget --`in`--> thread --`out`--> core
 *	helpers -- requests (import, release) --------'    |  ^
 *	                                            workers: copies, checksums
 *	pin thread (cuda_pin.h): registers the host tier's memory in the context; the only calls of
 *	a GPU that are not this thread's
 *
 *	thread:	(none) --the first request--> runs, until cuda_thread_close()
 *	context: NONE --cuda_context_need()--> UP --a sticky error--> FAILING --workers idle, pin
 *		  thread off--> NONE --at once, after a sticky error--> UP
 *		  `--cannot be made--> NONE, tried again by an import RETRY_NS later
 *		  `--cannot be made after a sticky error, or the broken one cannot be reset-->
 *		     ENDING: only a new process can use the GPU, and kvtierd ends
 *		  `--it broke too often (cuda_losses.h)--> OUT, for good
 *
 * Invariants
 *   G1 all but `in`, `out` and the fields that the lock guards belongs to the thread, from its
 *      start to its end. A worker touches only the piece or the check that it was given
 *      (cuda_work.h).
 *   G2 a driver call that takes long holds up this thread and the helpers that wait for it, with a
 *      deadline. A helper that gave a request up leaves it to the thread (cuda_request).
 *   G3 a new context is a new generation. Memory that was imported into an older one is void:
 *      nothing is closed or touched of it any more, but that memory with an address of its own is
 *      unmapped.
 *   G4 a job's completion is sent when nothing of it is queued on the GPU: after its event, or when
 *      its context is gone.
 */
#ifndef KVTIER_CUDA_GPU_H
#define KVTIER_CUDA_GPU_H

#include <pthread.h>

#include "cuda_load.h"
#include "cuda_losses.h"
#include "cuda_pin.h"
#include "daemon/base/list.h"
#include "daemon/base/mailbox.h"
#include "daemon/device/device.h"

struct cuda_gpu;
struct cuda_path;

enum cuda_state { CUDA_NONE, CUDA_UP, CUDA_FAILING, CUDA_OUT, CUDA_ENDING, CUDA_STATES };
/* CUDA_HIT: a load from the GPU's own memory. The ways before it have a wire. */
enum cuda_way { CUDA_STORE, CUDA_LOAD, CUDA_HIT, CUDA_WAYS, CUDA_WIRES = CUDA_HIT };

/* To the thread: run() is called there once, and then it is the callee's. */
struct cuda_mail {
	struct mail mail;
	void (*run)(struct cuda_gpu *gpu, struct cuda_mail *mail);
};

/* A question of a helper, embedded in its subject. */
struct cuda_request {
	struct cuda_mail mail;                                            /* cuda_gpu.c's */
	void (*work)(struct cuda_gpu *gpu, struct cuda_request *request); /* on the thread */
	/* on the thread, after work(), if its asker has left: undoes it and frees it */
	void (*left)(struct cuda_gpu *gpu, struct cuda_request *request);
	bool done, given_up; /* the lock */
};

#define CUDA_TIER_AUTO UINT64_MAX

struct cuda_gpu_conf {
	uint32_t max_ctas, workers;
	uint32_t depth; /* jobs at most */
	uint64_t staging_bytes;
	struct cuda_pins *pins; /* of the host tier; NULL: it stays pageable */
	const char *state_dir;  /* NULL: the next process is told nothing */
	/* memory for images: so many bytes, in whole slabs; CUDA_TIER_AUTO: a share of the free
	 * memory */
	uint64_t tier_bytes, slab_bytes;
	uint64_t engine_bytes;               /* that clients in engine mode are lent at most */
	const struct codec_kernels *kernels; /* of the CPU: checksums and copies */
};

/* The part that other threads may see. */
struct cuda_view {
	enum cuda_state state;
	char why[200]; /* it does not work, or did not the last time */
	uint32_t regions;
	uint64_t bytes;        /* of its memory: staging, plans, kernels, lent memory */
	uint32_t lent_regions; /* regions of clients in engine mode */
	uint64_t lent_bytes;
	uint64_t context_bytes;
	uint64_t out_bytes, in_bytes, batches, lost;
	uint32_t generation; /* memory that was imported into an older one is lost */
	bool ending;         /* ENDING, and told so: the process is to be relaunched */
	/* payload that a copy engine moved between slot and GPU by itself, or by way of a lane */
	uint64_t direct_bytes[CUDA_WAYS], bounced_bytes[CUDA_WAYS];
	struct device_memory tier;
	bool tier_refused; /* it has none though it should: why */
};

/* The objects in the context. */
struct cuda_context {
	CUcontext context;
	CUmodule module;
	CUfunction encode, decode;
	/* a way's kernels, and its copies: one lane crosses the wire while a kernel has another */
	CUstream kernels[CUDA_WAYS], wires[CUDA_WIRES];
	CUstream aside;      /* short things that the thread waits for */
	CUdeviceptr tier;    /* memory for images; 0: none */
	CUdeviceptr staging; /* all lanes, one behind the other, ... */
	uint8_t *bounce;     /* ...and in pinned memory */
	uint8_t *fetched;    /* behind them: a piece of cuda_fetch.c */
};

struct cuda_gpu {
	const struct cuda_driver *driver;
	const struct cuda_found *found;
	struct cuda_gpu_conf conf;
	struct mailbox in, out;
	/* makes the thread, with the lock held; 0 or -errno */
	int (*start)(struct cuda_gpu *gpu);
	/* to the core: all that was imported is void; or the GPU is ENDING */
	struct cuda_mail lost_mail;
	struct cuda_mail tier_mail; /* to the core: view.tier changed */
	uint64_t turn_ns;           /* atomic: when the thread's turn began; 0: it waits for mail */

	/* Guards the fields below. Take no locks while holding it but the mailboxes'. */
	pthread_mutex_t lock;
	pthread_cond_t answered;
	pthread_t thread;
	bool started, stopping;
	uint32_t unanswered; /* requests that were given up and still lie in `in` or run */
	bool lost_sent;      /* lost_mail is on its way */
	bool tier_sent;      /* tier_mail is */
	struct cuda_view view;

	/* the thread's */
	const struct cuda_api *api;
	struct cuda_context in_context;
	enum cuda_state state;
	uint32_t generation; /* of the context, from 1 */
	uint64_t retry_ns;   /* not opened before */
	struct cuda_losses losses;
	bool sick;  /* after a sticky error, until the next context was made */
	bool stuck; /* a broken context was not reset: its work may go on until the process ends */
	char why[200];
	uint32_t regions, users; /* open in the context; users: of events, too */
	uint64_t idle_ns;        /* since when it has no users; 0: it has some */
	uint64_t bytes;
	uint32_t lent_regions; /* to clients in engine mode: cuda_engine.c */
	uint64_t lent_bytes;
	struct device_memory tier; /* of the context; generation 0: none */
	char tier_why[160];        /* it has none, or less than was asked for; "" */
	uint64_t context_bytes;    /* bytes that the driver took for the context; 0: not known */
	struct list handles;       /* cuda_region.c: legacy IPC handles that are open */
	struct list orphans;       /* cuda_region.c: mappings that wait for the context's end */
	struct cuda_path *path;
	struct cuda_pin *pin; /* its functions' own threads'; NULL: nothing is registered */
};

/* The struct alone, for cuda_thread.c: `start` and `path` are not set yet. 0 or -errno. */
int cuda_gpu_open(const struct cuda_driver *driver, const struct cuda_found *found,
		  const struct cuda_gpu_conf *conf, struct cuda_gpu **ret);
/* There is no thread. */
void cuda_gpu_close(struct cuda_gpu *gpu);

/* Any thread. A mail may be sent before there is a thread: it is taken when there is one. */
void cuda_gpu_post(struct cuda_gpu *gpu, struct cuda_mail *mail);
/* Helpers. Waits until work() ran: 0, and the request is the caller's again. -ETIMEDOUT: it did not
 * within timeout_ns, and the request is the thread's. -EBUSY: the thread owes answers to helpers
 * that have left, -EAGAIN: no thread can be made; the request was not sent. text (NULL: none) says
 * why. timeout_ns 0: sent in any case, and left at once. */
int cuda_gpu_ask(struct cuda_gpu *gpu, struct cuda_request *request, uint64_t timeout_ns,
		 char *text, size_t n);
void cuda_gpu_view(struct cuda_gpu *gpu, struct cuda_view *ret);

/* On the thread only, from here on. */

/* A result of the driver: 0 or -errno. Sticky errors make the GPU FAILING, with these words; text
 * (NULL: none) gets them, too. */
int cuda_check(struct cuda_gpu *gpu, CUresult result, const char *call, char *text, size_t n);
#define CUDA_CALL(gpu, name, text, n, ...) \
	cuda_check(gpu, (gpu)->api->name(__VA_ARGS__), #name, text, n)

/* Waits until the stream, which others do not use, has run. 0 or -errno with text; then the GPU is
 * FAILING: nobody could tell when it has run. */
int cuda_wait(struct cuda_gpu *gpu, CUstream stream, char *text, size_t n);

/* How long something on the GPU has been waited for; zeroed: not yet. */
struct cuda_patience {
	uint64_t looked_ns, waited_ns;
};

/* Asked at each look in vain. True: that does not end any more, and the GPU is FAILING. The time
 * between two looks counts as a second at most: it may be this process that stood still. */
bool cuda_stands_still(struct cuda_gpu *gpu, struct cuda_patience *p);

uint64_t cuda_now(void);

#endif
