/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_gpu.h - one GPU: its context, and the thread that makes all its CUDA calls.
 *
 *	core ----------------- jobs, plans to forget --`in`--> thread --`out`--> core
 *	helpers -- requests (import, release) --------'    |  ^
 *	                                            workers: copies, checksums
 *	pin thread (cuda_pin.h): registers the host tier's memory in the context; the only calls of
 *	a GPU that are not this thread's
 *
 *	thread:	(none) --the first request--> runs, until the device is closed
 *	context: NONE --cuda_context_need()--> UP --a sticky error--> FAILING --workers idle, pin
 *		  thread off--> NONE --at once, after a sticky error--> UP
 *		  `--cannot be made--> NONE, tried again by an import RETRY_NS later
 *		  `--cannot be made after a sticky error, or the broken one cannot be reset-->
 *		     ENDING: only a new process can use the GPU, and kvtierd ends
 *		  `--it broke too often--> OUT, for good
 *
 * Invariants
 *   G1 all but the core's fields, `in`, `out` and the fields that the lock guards belongs to the
 *      thread, from its start to its end. A worker touches only the piece or the check that it was
 *      given (cuda_image.h).
 *   G2 a driver call that takes long holds up this thread and the helpers that wait for it, with a
 *      deadline. A helper that gave a request up leaves it to the thread (cuda_request).
 *   G3 a new context is a new generation. Memory that was imported into an older one is void:
 *      it is neither closed nor touched any more, but that memory with an address of its own is
 *      unmapped.
 *   G4 a job's completion is sent when no part of it is queued on the GPU: after its event, or when
 *      its context is gone.
 */
#pragma once

#include <pthread.h>

#include "cuda_load.h"
#include "cuda_pin.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/mailbox.h"
#include "daemon/device/device.h"

struct cuda_gpu;
struct cuda_path;

enum cuda_state { CUDA_NONE, CUDA_UP, CUDA_FAILING, CUDA_OUT, CUDA_ENDING, CUDA_STATES };
/* CUDA_HIT: a load from the GPU's own memory. The ways before it have a wire. */
enum cuda_way { CUDA_STORE, CUDA_LOAD, CUDA_HIT, CUDA_WAYS, CUDA_WIRES = CUDA_HIT };

/* Mail to the thread, which calls run() once; from then on the mail belongs to run(). */
struct cuda_mail {
	struct mail mail;
	void (*run)(struct cuda_gpu *gpu, struct cuda_mail *mail);
};

/* A request of a helper, embedded in what it is about. */
struct cuda_request {
	struct cuda_mail mail;                                            /* cuda_gpu.c's */
	void (*work)(struct cuda_gpu *gpu, struct cuda_request *request); /* on the thread */
	/* on the thread, after work(), if its asker has left: undoes it and frees it */
	void (*left)(struct cuda_gpu *gpu, struct cuda_request *request);
	bool done, given_up; /* the lock */
};

enum { CUDA_LOSSES_MAX = 3 /* so many within a minute, and the GPU stays out */ };

#define CUDA_TIER_AUTO UINT64_MAX

struct cuda_gpu_conf {
	uint32_t max_ctas, workers;
	uint32_t depth; /* jobs at most */
	uint64_t staging_bytes;
	struct cuda_pins *pins; /* of the host tier; NULL: it stays pageable */
	const char *state_dir;  /* NULL: the next process is not told */
	/* memory for images, in whole slabs; CUDA_TIER_AUTO: a fraction of the free memory */
	uint64_t tier_bytes, slab_bytes;
	const struct codec_kernels *kernels; /* the CPU's kernels, for checksums and copies */
};

/* What other threads may see. */
struct cuda_view {
	enum cuda_state state;
	struct device_note note; /* without what never changes, and without what is pinned */
	uint32_t generation;     /* memory that was imported into an older generation is lost */
	bool ending;             /* ENDING, and the core was told: kvtierd must be started again */
	struct device_memory tier;
};

/* The objects in the context. */
struct cuda_context {
	CUcontext context;
	CUmodule module;
	CUfunction encode, decode;
	CUfunction pack_lengths, pack_encode, pack_decode; /* with plans of lossless spaces */
	/* streams of each way, for its kernels and its copies: one lane crosses the wire while a
	 * kernel works on another */
	CUstream kernels[CUDA_WAYS], wires[CUDA_WIRES];
	CUstream aside;      /* a stream for short work that the thread waits for */
	CUdeviceptr tier;    /* memory for images; 0: none */
	CUdeviceptr staging; /* all lanes, one behind the other, ... */
	uint8_t *bounce;     /* ...and in pinned memory */
	uint8_t *fetched;    /* behind the lanes: cuda_path.c's */
};

struct cuda_gpu {
	/* the core's */
	struct device base; /* first */
	struct loop_watch watch;
	struct loop_poller poller;
	struct mails gathered;
	uint32_t told_memory; /* the generation of `tier` that was told; 0: none */
	bool told_ending, watched;

	/* set once, when it is opened */
	const struct cuda_driver *driver;
	const struct cuda_found *found;
	struct cuda_gpu_conf conf;
	struct mailbox in, out;
	/* starts the thread, with the lock held; 0 or -errno */
	int (*start)(struct cuda_gpu *gpu);
	/* mail to the core: the view's generation, ending or tier has changed */
	struct cuda_mail news;
	uint64_t iteration_ns; /* atomic: when the thread's iteration began; 0: it waits for mail */

	/* Guards the fields below. Take no locks while holding it but the mailboxes'. */
	pthread_mutex_t lock;
	pthread_cond_t answered;
	pthread_t thread;
	bool started, stopping;
	/* requests whose helpers have given them up, and which still lie in `in` or run */
	uint32_t unanswered;
	bool news_sent; /* news are on their way */
	struct cuda_view view;

	/* the thread's */
	const struct cuda_api *api;
	struct cuda_context in_context;
	enum cuda_state state;
	uint32_t generation;                 /* the context's generation, from 1 */
	uint64_t retry_ns;                   /* no context is opened before */
	uint64_t losses_ns[CUDA_LOSSES_MAX]; /* when contexts broke, the oldest first; 0: none */
	bool sick;  /* a sticky error came, and no context was made since */
	bool stuck; /* a broken context was not reset: its work may go on until the process ends */
	char why[200];
	char words[200]; /* the driver's, of the last call that failed */
	/* regions, and users (regions and events), that are open in the context */
	uint32_t regions, users;
	uint64_t idle_ns; /* since when the context has no users; 0: it has some */
	uint64_t bytes;
	struct device_memory tier; /* of the context; generation 0: none */
	/* why there is no memory for images, or less than was asked for; else "" */
	char tier_why[160];
	uint64_t context_bytes; /* bytes that the driver took for the context; 0: not known */
	struct list handles;    /* cuda_region.c: legacy IPC handles that are open */
	struct list orphans;    /* cuda_region.c: mappings that wait for the context's end */
	struct cuda_path *path;
	struct cuda_pin *pin; /* cuda_pin.h's; NULL: no memory is registered */
};

static inline struct cuda_gpu *cuda_gpu_of(struct device *device)
{
	return (struct cuda_gpu *)(void *)device;
}

/* The struct alone, for device_cuda.c, which sets the core's fields, `start` and `path`. 0 or
 * -errno. */
int cuda_gpu_open(const struct cuda_driver *driver, const struct cuda_found *found,
		  const struct cuda_gpu_conf *conf, struct cuda_gpu **ret);
/* To be called when there is no thread. */
void cuda_gpu_close(struct cuda_gpu *gpu);

/* Any thread. A mail may be sent before there is a thread: it is taken when there is one. */
void cuda_gpu_post(struct cuda_gpu *gpu, struct cuda_mail *mail);
/* For helpers. Sends a request and waits until work() has run. 0: it has, and the request is the
 * caller's again. -ETIMEDOUT: it has not within timeout_ns, and the request is the thread's.
 * -EBUSY: the thread owes answers to helpers that have left; -EAGAIN: no thread can be made. In
 * these two cases the request was not sent. text (may be NULL) says why. timeout_ns 0: the request
 * is sent in any case, and not waited for. */
int cuda_gpu_ask(struct cuda_gpu *gpu, struct cuda_request *request, uint64_t timeout_ns,
		 char *text, size_t n);

/* The functions from here on are for the thread alone. */

void cuda_gpu_tell(struct cuda_gpu *gpu); /* asks the core to look at the view */

/* Turns a result of the driver into 0 or -errno. A sticky error makes the GPU FAILING. gpu->words
 * has the driver's words, and text (may be NULL) gets them, too. */
int cuda_check(struct cuda_gpu *gpu, CUresult result, const char *call, char *text, size_t n);
#define CUDA_CALL(gpu, name, text, n, ...) \
	cuda_check(gpu, (gpu)->api->name(__VA_ARGS__), #name, text, n)
/* The same without text: the words are in gpu->words. */
#define CUDA_DO(gpu, name, ...) CUDA_CALL(gpu, name, NULL, 0, __VA_ARGS__)

/* Waits until a stream that no other work uses has run. 0, or -errno with text; then the GPU is
 * FAILING, since nothing would tell when the stream has run. */
int cuda_wait(struct cuda_gpu *gpu, CUstream stream, char *text, size_t n);
/* Zeroes memory that no work on the GPU uses, and waits for that with cuda_wait(). */
int cuda_zero(struct cuda_gpu *gpu, CUdeviceptr at, uint64_t bytes, char *text, size_t n);

/* How long some work on the GPU has been waited for; zeroed: not yet. */
struct cuda_patience {
	uint64_t looked_ns, waited_ns;
};

/* To be called whenever the work has not ended yet. True: it has taken so long that the GPU is
 * FAILING now. The time between two calls counts as a second at most, since it may be this process
 * that stood still. */
bool cuda_stands_still(struct cuda_gpu *gpu, struct cuda_patience *p);
