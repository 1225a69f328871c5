/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_path.c - the life of a job on a GPU, around its pieces in lanes. See cuda_path.h. */
#include "cuda_path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_lane.h"
#include "base/clock.h"
#include "base/list.h"
#include "daemon/cuda/driver/cuda_tier.h"

enum {
	POLL_NS = 20000, /* between two looks at events, while something moves, ... */
	POLL_SLOW_NS = 200000,
	SLOW_POLLS = 64,   /* ...and after so many looks in vain */
	SWEEP_POLLS = 128, /* between two looks at jobs that wait for a lane */
	IDLE_NS = 500000000,
};

static struct cuda_job *job_of(struct device_job *job)
{
	return job->own;
}

/* --- a job's life --- */

static enum work_end check(struct work *work, uint32_t thread)
{
	struct cuda_job *j = container_of(work, struct cuda_job, check);

	(void)thread;
	j->status = cuda_image_verify(&j->image);
	return WORK_ENDED;
}

static void checked(struct work *work)
{
	struct cuda_job *j = container_of(work, struct cuda_job, check);

	j->path->lent--;
	if (j->status)
		cuda_job_look(j);
	else
		cuda_job_queue(j, false);
}

/* Where the image lies in the GPU's memory for images, or is to be kept there; 0: nowhere. */
static CUdeviceptr place_of(const struct cuda_job *j)
{
	const struct device_job *job = j->job;
	const struct device_keep *keep = &job->keep;
	const uint32_t bytes = j->image.shape.image_bytes;

	if (j->way == CUDA_HIT)
		return (CUdeviceptr)(uintptr_t)job->image;
	return keep->address && bytes <= keep->bytes &&
			       cuda_tier_has(j->path->gpu, keep->generation, keep->address,
					     keep->bytes) ?
		       keep->address :
		       0;
}

static int begin(struct cuda_job *j)
{
	const struct device_job *job = j->job;
	int r;

	if (j->way == CUDA_LOAD)
		r = cuda_image_begin_load(&j->image);
	else if (j->way == CUDA_HIT && !cuda_tier_has(j->path->gpu, job->generation,
						      (uintptr_t)job->image, job->image_bytes))
		r = -ESTALE;
	else
		r = cuda_image_begin(&j->image) ? -EIO : 0;
	if (r == 0)
		j->kept = place_of(j);
	j->tiles = (struct cuda_tiles){
		.plan = &j->layout->plan,
		.pieces = j->layout->pieces,
		.codec_k = j->image.codec_k,
		.codec_v = j->image.codec_v,
		.end = j->layout->plan.n_tiles,
	};
	if (j->way == CUDA_LOAD)
		j->tiles.scales = j->job->image + sizeof(struct image_header);
	else
		j->tiles.most = j->image.shape.payload_bytes - IMAGE_PACK_SPARE;
	j->end_tile = j->tiles.end;
	if (job->end_layer > 0) {
		j->tiles.first = cuda_job_layer_tile(j, job->first_layer);
		j->tiles.end = cuda_job_layer_tile(j, job->end_layer);
		j->end_tile = j->tiles.end;
	}
	if (job->order.given)
		j->tiles.end = 0;
	j->next_tile = j->tiles.first;
	if (r == 0)
		cuda_tiles_go(&j->tiles, 0, j->next_tile);
	return r;
}

/* On the thread. */
static void take(struct cuda_gpu *gpu, struct cuda_mail *mail)
{
	struct cuda_job *j = container_of(mail, struct cuda_job, mail);

	j->path->n_jobs++;
	/* Without a context, of which the core has not heard yet, it would not be looked at
	 * again. */
	j->status = gpu->state == CUDA_UP || gpu->state == CUDA_FAILING ? begin(j) : -EIO;
	if (j->status)
		cuda_job_end(j);
	else
		list_add(&j->path->waiting, &j->waiting);
}

/* --- orders --- */

static bool reached(const struct cuda_job *j)
{
	const struct device_order *order = &j->job->order;

	return !order->ready ||
	       (int64_t)(__atomic_load_n(order->ready, __ATOMIC_ACQUIRE) - order->value) >= 0;
}

/* Layers of a store, which its client gives group by group: there are some that were not queued
 * yet. A client that takes layers back has given them all the same. */
static bool given(struct cuda_job *j)
{
	const struct device_order *order = &j->job->order;
	const uint32_t layers = j->job->layout->pages.geometry.layers;
	uint32_t groups, end;
	int64_t n;

	if (!order->given)
		return true;
	n = (int64_t)(__atomic_load_n(order->given, __ATOMIC_ACQUIRE) - order->given_value);
	groups = n < 0 ? 0 : n > order->groups ? order->groups : (uint32_t)n;
	end = cuda_job_layer_tile(j, wire_group_layer(layers, order->groups, groups));
	j->tiles.first = j->next_tile;
	if (end > j->tiles.end)
		j->tiles.end = end;
	return j->tiles.end > j->next_tile;
}

/* The whole image fits into one lane. */
static bool is_one_piece(const struct cuda_job *j)
{
	struct cuda_cut cut;

	return cuda_cut(&j->tiles, j->tiles.first, CUDA_LANE_HEAD, j->path->lane_bytes, &cut) &&
	       cut.n_tiles == j->tiles.plan->n_tiles;
}

static void go_on(struct cuda_job *j)
{
	const bool verify = j->way == CUDA_LOAD && j->job->verify;

	j->verifies = verify && is_one_piece(j);
	if (verify && !j->verifies) {
		j->check = (struct work){ .run = check, .done = checked };
		j->path->lent++;
		workers_submit(j->path->workers, &j->check);
	} else {
		cuda_job_queue(j, false);
	}
}

static bool poll_orders(struct cuda_path *path)
{
	const uint64_t now = clock_ns();
	bool moved = false;

	for (struct list *at = path->waiting.next, *next; at != &path->waiting; at = next) {
		struct cuda_job *j = container_of(at, struct cuda_job, waiting);
		const int r = j->status ? j->status : device_stopped(j->job, now);

		next = at->next;
		j->status = r;
		if (r == 0 && !(reached(j) && given(j)))
			continue;
		moved = true;
		list_remove(at);
		if (r == 0)
			go_on(j);
		else
			cuda_job_look(j);
	}
	return moved;
}

/* --- jobs that wait for a lane --- */

/* Stopped jobs end, and the others stand in a queue again. With a status other than 0 all jobs end
 * with it. */
static void sweep(struct cuda_path *path, enum cuda_way way, int status)
{
	struct device_queue *queue = &path->queues[way];
	const uint64_t now = clock_ns();
	struct device_job *kept = NULL, **kept_end = &kept, *job;

	while ((job = device_queue_take(queue)) != NULL) {
		struct cuda_job *j = job_of(job);

		if (j->status == 0)
			j->status = status ? status : device_stopped(job, now);
		j->queued = false;
		if (j->status) {
			cuda_job_look(j);
			continue;
		}
		job->next = NULL;
		*kept_end = job;
		kept_end = &job->next;
	}
	while ((job = kept) != NULL) {
		kept = job->next;
		cuda_job_queue(job_of(job), false);
	}
}

/* --- images that are read back, to be verified ---
 *
 * In each iteration one piece of one fetch is copied into pinned memory; the thread waits for it,
 * and copies it to where the fetch wants it. The driver would wait inside a copy straight to that
 * place, which is pageable, for as long as the GPU likes. A fetch ends with 0, with -ESTALE when
 * its memory is gone, or with -EIO. */

/* Run of the mail that brings a FETCH. */
static void take_fetch(struct cuda_gpu *gpu, struct cuda_mail *mail)
{
	struct cuda_job *j = container_of(mail, struct cuda_job, mail);

	(void)gpu;
	j->path->n_jobs++;
	list_add(&j->path->fetches, &j->waiting);
}

static void end_fetch(struct cuda_job *j, int status)
{
	list_remove(&j->waiting);
	j->status = status;
	cuda_job_end(j);
}

static int copy_piece(struct cuda_job *j)
{
	struct cuda_gpu *gpu = j->path->gpu;
	const struct device_copy *copy = j->job->copies;
	const uint32_t left = copy->bytes - j->copied;
	const uint32_t bytes = left < CUDA_FETCH_BYTES ? left : CUDA_FETCH_BYTES;
	const struct cuda_context *c = &gpu->in_context;
	int r;

	if (!cuda_tier_has(gpu, j->job->generation, (uintptr_t)j->job->image, j->job->image_bytes))
		return -ESTALE;
	r = CUDA_DO(gpu, cuMemcpyDtoHAsync, c->fetched, (uintptr_t)j->job->image + j->copied, bytes,
		    c->aside);
	if (r == 0)
		r = cuda_wait(gpu, c->aside, NULL, 0);
	if (r)
		return -EIO;
	memcpy(copy->to + j->copied, c->fetched, bytes);
	j->copied += bytes;
	return 0;
}

/* Not while the context is failing; when it is gone all of them end, one per iteration. True: a
 * piece was copied, or a fetch has ended. */
static bool fetch_poll(struct cuda_path *path)
{
	struct cuda_job *j;
	int r;

	if (list_empty(&path->fetches))
		return false;
	j = container_of(path->fetches.next, struct cuda_job, waiting);
	r = copy_piece(j);
	if (r || j->copied == j->job->copies->bytes)
		end_fetch(j, r);
	return true;
}

/* --- the thread's iterations --- */

static void send_ended(struct cuda_path *path)
{
	if (path->ended.n > 0)
		mailbox_post(&path->gpu->out, &path->ended);
}

bool cuda_path_poll(struct cuda_path *path)
{
	bool moved = workers_reap(path->workers, UINT32_MAX) > 0;

	if (path->gpu->state != CUDA_FAILING && !path->gpu->stuck) {
		moved |= poll_orders(path);
		moved |= cuda_lanes_poll(path);
		moved |= fetch_poll(path);
	}
	path->quiet_polls = moved ? 0 : path->quiet_polls + 1;
	if (path->quiet_polls % SWEEP_POLLS == SWEEP_POLLS - 1)
		for (enum cuda_way way = 0; way < CUDA_WAYS; way++)
			sweep(path, way, 0);
	send_ended(path);
	return moved;
}

uint64_t cuda_path_wait_ns(struct cuda_path *path)
{
	const bool polled =
		path->on_gpu[CUDA_STORE] + path->on_gpu[CUDA_LOAD] + path->on_gpu[CUDA_HIT] > 0 ||
		!list_empty(&path->waiting);

	if (polled)
		return path->quiet_polls < SLOW_POLLS ? POLL_NS : POLL_SLOW_NS;
	return path->gpu->state == CUDA_UP && path->gpu->users == 0 ? IDLE_NS : 0;
}

void cuda_path_lost(struct cuda_path *path)
{
	while (!list_empty(&path->waiting)) {
		struct cuda_job *j = container_of(path->waiting.next, struct cuda_job, waiting);

		list_remove(&j->waiting);
		j->status = -EIO;
		cuda_job_look(j);
	}
	for (enum cuda_way way = 0; way < CUDA_WAYS; way++)
		sweep(path, way, -EIO);
	cuda_lanes_lost(path);
	send_ended(path);
}

/* --- core --- */

struct cuda_mail *cuda_path_submit(struct cuda_path *path, struct device_job *job,
				   enum cuda_way way)
{
	struct cuda_job *j = path->free_jobs[--path->n_free_jobs];
	void *hash = j->image.hash;

	*j = (struct cuda_job){
		.mail = { .run = job->kind == DEVICE_FETCH ? take_fetch : take },
		.path = path,
		.job = job,
		.layout = job->layout ? job->layout->prepared : NULL,
		.way = way,
		.image = { .kernels = path->gpu->conf.kernels, .job = job, .hash = hash },
	};
	job->own = j;
	return &j->mail;
}

struct device_job *cuda_path_ended(struct cuda_path *path, struct mail *mail)
{
	struct cuda_job *j = container_of(mail, struct cuda_job, mail.mail);

	path->free_jobs[path->n_free_jobs++] = j;
	j->job->own = NULL;
	return j->job;
}

/* --- open and close --- */

int cuda_path_start(struct cuda_path *path)
{
	const struct workers_conf conf = {
		.threads = path->gpu->conf.workers,
		.keep = path->gpu->conf.workers,
	};

	return path->workers ? 0 : workers_open(&conf, &path->workers);
}

static int open_jobs(struct cuda_path *path, uint32_t depth)
{
	path->jobs = calloc(depth, sizeof(*path->jobs));
	path->free_jobs = calloc(depth, sizeof(*path->free_jobs));
	if (!path->jobs || !path->free_jobs)
		return -ENOMEM;
	for (uint32_t i = 0; i < depth; i++) {
		path->jobs[i].image.hash = cuda_image_hash();
		if (!path->jobs[i].image.hash)
			return -ENOMEM;
		path->free_jobs[path->n_free_jobs++] = &path->jobs[i];
	}
	return 0;
}

int cuda_path_open(struct cuda_gpu *gpu, struct cuda_path **ret)
{
	struct cuda_path *path = calloc(1, sizeof(*path));
	int r;

	if (!path)
		return -ENOMEM;
	path->gpu = gpu;
	path->lane_bytes =
		(uint32_t)(gpu->conf.staging_bytes / CUDA_WIRES / CUDA_LANES / 4096 * 4096);
	list_open(&path->waiting);
	list_open(&path->fetches);
	mails_clear(&path->ended);
	r = open_jobs(path, gpu->conf.depth + DEVICE_FETCHES);
	for (enum cuda_way way = 0; way < CUDA_WAYS && r == 0; way++)
		r = device_queue_open(&path->queues[way], gpu->conf.depth);
	if (r)
		cuda_path_close(path);
	else
		*ret = path;
	return r;
}

void cuda_path_close(struct cuda_path *path)
{
	if (!path)
		return;
	workers_close(path->workers);
	for (enum cuda_way way = 0; way < CUDA_WAYS; way++)
		device_queue_close(&path->queues[way]);
	for (uint32_t i = 0; path->jobs && i < path->gpu->conf.depth + DEVICE_FETCHES; i++)
		free(path->jobs[i].image.hash);
	free(path->jobs);
	free(path->free_jobs);
	free(path);
}
