/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_lane.c - lanes: their pieces, and their way over the GPU. See cuda_lane.h. */
#include "cuda_lane.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/list.h"
#include "kernels/cuda/plan.h"

/* --- layouts --- */

static uint32_t generation_of(const struct device_layout *layout)
{
	uint32_t ret = 0;

	for (uint32_t i = 0; i < layout->n_regions; i++) {
		if (i > 0 && layout->regions[i].generation != ret)
			return 0;
		ret = layout->regions[i].generation;
	}
	return ret;
}

int cuda_layout_make(struct device *device, struct device_layout *layout)
{
	struct cuda_layout *l = layout->n_regions > 0 ? calloc(1, sizeof(*l)) : NULL;
	int r = -ENOMEM;

	(void)device;
	if (layout->n_regions == 0)
		return 0;
	if (l)
		l->pieces = calloc(layout->pages.n_pieces + 1u, sizeof(*l->pieces));
	if (l && l->pieces)
		r = cuda_plan_make(&layout->pages, layout->lossless, &l->plan, l->pieces);
	if (r) {
		if (l)
			free(l->pieces);
		free(l);
		return -ENOMEM;
	}
	l->generation = generation_of(layout);
	layout->prepared = l;
	return 0;
}

static void forget(struct cuda_gpu *gpu, struct cuda_mail *mail)
{
	struct cuda_layout *l = container_of(mail, struct cuda_layout, mail);

	if (l->on_gpu && l->generation == gpu->generation && gpu->state == CUDA_UP)
		(void)CUDA_DO(gpu, cuMemFree, l->on_gpu);
	free(l->pieces);
	free(l);
}

void cuda_layout_forget(struct device *device, struct device_layout *layout)
{
	struct cuda_layout *l = layout->prepared;

	if (!l)
		return;
	l->mail.run = forget;
	cuda_gpu_post(cuda_gpu_of(device), &l->mail);
}

/* The thread waits for a stream that no other work is in. */
static int bring(struct cuda_gpu *gpu, struct cuda_layout *l)
{
	const size_t bytes = l->plan.n_pieces * sizeof(*l->pieces);
	CUdeviceptr at = 0;
	int r = CUDA_DO(gpu, cuMemAlloc, &at, bytes);

	if (r == 0) {
		r = CUDA_DO(gpu, cuMemcpyHtoDAsync, at, l->pieces, bytes, gpu->in_context.aside);
		if (r && gpu->state == CUDA_UP)
			(void)CUDA_DO(gpu, cuMemFree, at);
	}
	if (r == 0)
		r = cuda_wait(gpu, gpu->in_context.aside, NULL, 0);
	if (r)
		memcpy(gpu->why, gpu->words, sizeof(gpu->why));
	else
		l->on_gpu = l->plan.pieces = at;
	return r;
}

/* The plan is on the GPU: 0. -EIO: its regions are of a context that is gone. */
static int need_layout(struct cuda_gpu *gpu, struct cuda_layout *l)
{
	if (gpu->state != CUDA_UP || l->generation != gpu->generation)
		return -EIO;
	return l->on_gpu ? 0 : bring(gpu, l);
}

/* --- jobs --- */

void cuda_job_end(struct cuda_job *j)
{
	struct cuda_path *path = j->path;

	j->job->status = j->status;
	j->job->kept = j->status == 0 && j->kept && j->way != CUDA_HIT;
	path->n_jobs--;
	mails_append(&path->ended, &j->mail.mail);
}

void cuda_job_look(struct cuda_job *j)
{
	const bool all = j->next_tile == j->end_tile;

	if (j->out > 0 || j->queued || !(j->status || all))
		return;
	list_remove(&j->waiting); /* failed, while it waited for more layers */
	cuda_job_end(j);
}

/* The client does not say which layer typed and opaque bytes belong to: they come last. */
uint32_t cuda_job_layer_tile(const struct cuda_job *j, uint32_t layer)
{
	const struct cuda_plan *plan = j->tiles.plan;
	const uint32_t layers = j->job->layout->pages.geometry.layers;

	return layer == layers ? plan->n_tiles : plan->plane_tiles / layers * layer;
}

void cuda_job_queue(struct cuda_job *j, bool again)
{
	struct device_queue *queue = &j->path->queues[j->way];

	j->queued = true;
	if (again)
		device_queue_return(queue, j->job);
	else
		device_queue_add(queue, j->job);
}

/* --- the wire --- */

static CUdeviceptr scales_at(const struct cuda_job *j)
{
	return j->kept + sizeof(struct image_header);
}

static CUdeviceptr payload_at(const struct cuda_job *j)
{
	return j->kept + j->image.shape.payload_offset;
}

struct zeroes {
	uint64_t from, to; /* in the slot */
};

/* Jobs of some layers fill a slot in any order, so no job may zero what another one puts there: the
 * job of the first layer zeroes what is no layer's, the header, the gap and the slot's end. */
static uint32_t zeroes_of(const struct cuda_job *j, struct zeroes ret[3])
{
	const struct image_shape *shape = &j->image.shape;
	const uint64_t scales = sizeof(struct image_header), slot = j->job->keep.bytes;

	if (j->job->end_layer == 0) {
		ret[0] = (struct zeroes){ 0, slot };
		return 1;
	}
	ret[0] = (struct zeroes){ 0, scales };
	ret[1] = (struct zeroes){ scales + shape->scale_bytes, shape->payload_offset };
	ret[2] = (struct zeroes){ shape->image_bytes, slot };
	return 3;
}

static int scrub(struct cuda_gpu *gpu, const struct cuda_job *j, CUstream stream)
{
	struct zeroes zeroes[3];
	const uint32_t n_zeroes = zeroes_of(j, zeroes);
	int r = 0;

	for (uint32_t i = 0; i < n_zeroes && r == 0; i++)
		if (zeroes[i].to > zeroes[i].from)
			r = CUDA_DO(gpu, cuMemsetD8Async, j->kept + zeroes[i].from, 0,
				    zeroes[i].to - zeroes[i].from, stream);
	return r;
}

/* Zeroes in the slots of images that begin in this lane, where bytes of other spaces may be: before
 * all else that the stream gets of the lane (device_keep.scrub). */
static int scrub_slots(struct cuda_gpu *gpu, const struct cuda_lane *lane, CUstream stream)
{
	int r = 0;

	for (uint32_t i = 0; i < lane->n && r == 0; i++) {
		const struct cuda_lane_piece *piece = &lane->pieces[i];
		const struct cuda_job *j = piece->job;

		if (j && j->kept && j->job->keep.scrub && piece->cut.first_tile == 0)
			r = scrub(gpu, j, stream);
	}
	return r;
}

static int copy_bytes(struct cuda_path *path, enum cuda_way way, uint8_t *host, CUdeviceptr on_gpu,
		      uint32_t bytes)
{
	struct cuda_gpu *gpu = path->gpu;
	const CUstream stream = gpu->in_context.wires[way];

	if (bytes == 0)
		return 0;
	if (way == CUDA_STORE) {
		path->out_bytes += bytes;
		return CUDA_DO(gpu, cuMemcpyDtoHAsync, host, on_gpu, bytes, stream);
	}
	path->in_bytes += bytes;
	return CUDA_DO(gpu, cuMemcpyHtoDAsync, on_gpu, host, bytes, stream);
}

/* Between the lane's two buffers. */
static int copy_lane(struct cuda_path *path, const struct cuda_lane *lane, uint32_t from,
		     uint32_t to)
{
	return copy_bytes(path, lane->way, lane->host + from, lane->on_gpu + from, to - from);
}

/* The piece's payload, and, of an image that the GPU keeps, its scales: by copies of their own. */
static int copy_piece(struct cuda_path *path, const struct cuda_lane_piece *piece)
{
	const struct cuda_cut *cut = &piece->cut;
	const struct cuda_lane *lane = piece->lane;
	CUdeviceptr payload = lane->on_gpu + cut->payload_at;
	uint8_t *host = lane->host + cut->payload_at;
	int r = 0;

	if (piece->job->kept) {
		r = copy_bytes(path, lane->way, lane->host + cut->scale_at,
			       scales_at(piece->job) + cut->scale, cut->scale_bytes);
		payload = payload_at(piece->job) + cut->payload;
	}
	if (piece->hold)
		host = cuda_image_payload(&piece->job->image, cut);
	return r ? r : copy_bytes(path, lane->way, host, payload, cut->payload_bytes);
}

/* The lane from `from` on, in the copy engine's stream of its way; and counts the bytes. */
static int cross_wire(struct cuda_path *path, const struct cuda_lane *lane, uint32_t from)
{
	int r = 0;

	path->batches++;
	for (uint32_t i = 0; i < lane->n && r == 0; i++) {
		const struct cuda_lane_piece *piece = &lane->pieces[i];

		if (!piece->job)
			continue;
		(piece->hold ? path->direct_bytes : path->bounced_bytes)[lane->way] +=
			piece->cut.payload_bytes;
		if (!piece->hold && !piece->job->kept)
			continue;
		r = copy_lane(path, lane, from,
			      piece->job->kept ? piece->cut.scale_at : piece->cut.payload_at);
		if (r == 0)
			r = copy_piece(path, piece);
		from = piece->cut.end;
	}
	return r ? r : copy_lane(path, lane, from, lane->used);
}

/* --- pieces --- */

static void piece_end(struct cuda_lane_piece *piece)
{
	struct cuda_job *j = piece->job;

	assert(!piece->lent);
	cuda_pin_drop(j->path->gpu->pin, piece->hold);
	piece->hold = 0;
	piece->job = NULL;
	j->out--;
	cuda_job_look(j);
}

static enum work_end copy(struct work *work, uint32_t thread)
{
	struct cuda_lane_piece *piece = container_of(work, struct cuda_lane_piece, work);
	struct cuda_job *j = piece->job;
	const bool last = piece->cut.first_tile + piece->cut.n_tiles == j->tiles.plan->n_tiles;
	const bool direct = piece->hold != 0;

	(void)thread;
	if (j->way == CUDA_STORE)
		piece->status =
			cuda_image_out(&j->image, &piece->cut, piece->lane->host, direct, last);
	else
		piece->status = cuda_image_in(&j->image, &piece->cut, piece->lane->host, direct,
					      j->verifies);
	return WORK_ENDED;
}

static void copied(struct work *work)
{
	struct cuda_lane_piece *piece = container_of(work, struct cuda_lane_piece, work);
	struct cuda_job *j = piece->job;

	piece->lent = false;
	piece->lane->lent--;
	j->path->lent--;
	if (piece->status && j->status == 0)
		j->status = piece->status;
	if (j->way == CUDA_STORE) {
		j->copied++;
		piece_end(piece);
	}
}

static void lend(struct cuda_lane_piece *piece)
{
	struct cuda_path *path = piece->job->path;

	piece->work = (struct work){ .run = copy, .done = copied };
	piece->lent = true;
	piece->lane->lent++;
	path->lent++;
	workers_submit(path->workers, &piece->work);
}

/* Its client, the core, the clock or an earlier piece has ended it. */
static bool stopped(struct cuda_job *j, uint64_t now)
{
	if (j->status == 0)
		j->status = device_stopped(j->job, now);
	return j->status != 0;
}

/* --- FILLING --- */

static struct cuda_lane *lane_at(struct cuda_path *path, enum cuda_way way, uint32_t position)
{
	return &path->lanes[way][(path->first[way] + position) % CUDA_LANES];
}

static void lane_begin(struct cuda_path *path, enum cuda_way way)
{
	struct cuda_lane *lane = lane_at(path, way, path->busy[way]++);

	assert(lane->state == LANE_FREE && lane->lent == 0);
	lane->state = LANE_FILLING;
	lane->way = way;
	lane->used = CUDA_LANE_HEAD;
	lane->n = 0;
	lane->full = lane->packs = false;
}

/* The lane that takes pieces; NULL: all are busy now. */
static struct cuda_lane *lane_to_fill(struct cuda_path *path, enum cuda_way way)
{
	struct cuda_lane *lane = path->busy[way] ? lane_at(path, way, path->busy[way] - 1) : NULL;

	if (lane && lane->state == LANE_FILLING && !lane->full)
		return lane;
	if (path->busy[way] == CUDA_LANES)
		return NULL;
	lane_begin(path, way);
	return lane_at(path, way, path->busy[way] - 1);
}

static void put(struct cuda_lane *lane, struct cuda_job *j, const struct cuda_cut *cut)
{
	struct cuda_lane_piece *piece = &lane->pieces[lane->n++];

	*piece = (struct cuda_lane_piece){
		.job = j, .lane = lane, .cut = *cut, .number = j->pieces++
	};
	/* where a stored piece's packs go is known when they are there */
	if (j->way != CUDA_HIT && cut->payload_bytes >= CUDA_DIRECT_LEAST &&
	    !(j->way == CUDA_STORE && j->image.codec_k == CODEC_LOSSLESS))
		piece->hold = cuda_pin_hold(j->path->gpu->pin, cuda_image_payload(&j->image, cut),
					    cut->payload_bytes);
	if (j->way != CUDA_HIT)
		lane->used = cut->end;
	lane->full = lane->n == CUDA_LANE_PIECES;
	lane->packs |= j->layout->plan.packs > 0;
	cuda_tiles_go(&j->tiles, j->next_tile, j->next_tile + cut->n_tiles);
	j->next_tile += cut->n_tiles;
	j->out++;
	if (j->way == CUDA_LOAD && piece->hold && !j->verifies)
		(void)cuda_image_in(&j->image, cut, lane->host, true, false); /* a few scales */
	else if (j->way == CUDA_LOAD)
		lend(piece);
}

/* A hit takes no bytes of the lane, only a place among its pieces: its image is there, whole. */
static bool cut_next(const struct cuda_path *path, const struct cuda_lane *lane,
		     const struct cuda_job *j, struct cuda_cut *ret)
{
	if (j->way == CUDA_HIT)
		return cuda_cut(&j->tiles, j->next_tile, CUDA_LANE_HEAD, UINT32_MAX, ret);
	return cuda_cut(&j->tiles, j->next_tile, lane->used, path->lane_bytes, ret);
}

/* Puts the next piece of the job into the lane; false: the lane is full. */
static bool fill_one(struct cuda_path *path, struct cuda_lane *lane, struct cuda_job *j)
{
	struct cuda_cut cut;

	if (j->status == 0)
		j->status = need_layout(path->gpu, j->layout) ? -EIO : 0;
	if (stopped(j, clock_ns())) {
		cuda_job_look(j);
		return true;
	}
	if (!cut_next(path, lane, j, &cut)) {
		assert(lane->used > CUDA_LANE_HEAD); /* an empty lane has room for a tile */
		lane->full = true;
		cuda_job_queue(j, true);
		return false;
	}
	put(lane, j, &cut);
	if (j->next_tile < j->tiles.end)
		cuda_job_queue(j, true);
	else if (j->next_tile < j->end_tile)
		list_add(&path->waiting, &j->waiting); /* for its next layers */
	return true;
}

static bool fill(struct cuda_path *path, enum cuda_way way)
{
	struct device_queue *queue = &path->queues[way];
	struct cuda_lane *lane;
	bool moved = false;

	while (queue->n_jobs > 0 && path->gpu->state == CUDA_UP &&
	       (lane = lane_to_fill(path, way)) != NULL) {
		struct cuda_job *j = device_queue_take(queue)->own;

		j->queued = false;
		moved |= fill_one(path, lane, j);
	}
	return moved;
}

/* --- FILLING -> GPU --- */

static struct cuda_task task_of(const struct cuda_lane *lane, uint32_t piece)
{
	const struct cuda_cut *cut = &lane->pieces[piece].cut;
	const struct cuda_job *j = lane->pieces[piece].job;

	return (struct cuda_task){
		.page = j->job->page,
		/* the image's first of each */
		.scales = j->kept ? scales_at(j) : lane->on_gpu + cut->scale_at - cut->scale,
		.payload = j->kept ? payload_at(j) :
				     lane->on_gpu + cut->payload_at - (cut->payload - cut->far),
		.flag = lane->on_gpu + piece * sizeof(uint32_t),
		.end = lane->on_gpu + cut->payload_at + cut->payload_bytes,
		.first_tile = cut->first_tile,
		.n_tiles = cut->n_tiles,
		.codec_k = (uint8_t)j->image.codec_k,
		.codec_v = (uint8_t)j->image.codec_v,
	};
}

/* A hit has twice as many blocks. No wire bounds it, so it is over in half the time, and takes no
 * more of the GPU than with half of them. More blocks would not make a wire faster. */
static uint32_t blocks_at_most(const struct cuda_gpu *gpu, enum cuda_way way)
{
	return gpu->conf.max_ctas << (way == CUDA_HIT);
}

/* One launch, or two where lengths come first: the pieces that have the layout of piece `first`. */
static int launch_layout(struct cuda_gpu *gpu, struct cuda_lane *lane, uint32_t first)
{
	const struct cuda_context *c = &gpu->in_context;
	const struct cuda_layout *layout = lane->pieces[first].job->layout;
	struct cuda_plan plan = layout->plan;
	struct cuda_tasks tasks = { .mark = lane->mark };
	void *params[] = { &plan, &tasks };
	const bool store = lane->way == CUDA_STORE;
	uint32_t blocks;
	int r = 0;

	for (uint32_t i = first; i < lane->n; i++) {
		struct cuda_lane_piece *piece = &lane->pieces[i];

		if (!piece->job || piece->job->layout != layout)
			continue;
		piece->launched = true;
		tasks.task[tasks.n++] = task_of(lane, i);
	}
	blocks = cuda_plan_blocks(&plan, cuda_tasks_number(&tasks), blocks_at_most(gpu, lane->way));
	if (plan.packs && store)
		r = CUDA_DO(gpu, cuLaunchKernel, c->pack_lengths, blocks, 1, 1, CUDA_THREADS, 1, 1,
			    0, c->kernels[lane->way], params, NULL);
	if (r)
		return r;
	return CUDA_DO(gpu, cuLaunchKernel,
		       plan.packs ? (store ? c->pack_encode : c->pack_decode) :
				    (store ? c->encode : c->decode),
		       blocks, 1, 1, CUDA_THREADS, 1, 1, 0, c->kernels[lane->way], params, NULL);
}

static int launch_all(struct cuda_gpu *gpu, struct cuda_lane *lane)
{
	int r = 0;

	for (uint32_t i = 0; i < lane->n && r == 0; i++)
		if (lane->pieces[i].job && !lane->pieces[i].launched)
			r = launch_layout(gpu, lane, i);
	return r;
}

/* Operations queued in `to` from now on run after the lane's operations in `from`. Where this order
 * cannot be had, no event would say when the lane is done: then a new context is made. */
static int cross(struct cuda_gpu *gpu, const struct cuda_lane *lane, CUstream from, CUstream to)
{
	int r = CUDA_DO(gpu, cuEventRecord, lane->crossed, from);

	if (r == 0)
		r = CUDA_DO(gpu, cuStreamWaitEvent, to, lane->crossed, 0);
	if (r)
		gpu->state = CUDA_FAILING;
	return r;
}

/* *ret_last: the stream that ends with the lane's last operation. */
static int queue_store(struct cuda_path *path, struct cuda_lane *lane, CUstream *ret_last)
{
	struct cuda_gpu *gpu = path->gpu;
	const CUstream kernels = gpu->in_context.kernels[CUDA_STORE];
	const CUstream wire = gpu->in_context.wires[CUDA_STORE];
	int r = scrub_slots(gpu, lane, kernels);

	*ret_last = kernels;
	if (r == 0)
		r = launch_all(gpu, lane);
	if (r == 0)
		r = cross(gpu, lane, kernels, wire);
	if (r)
		return r;
	*ret_last = wire;
	return cross_wire(path, lane, 0);
}

static int queue_load(struct cuda_path *path, struct cuda_lane *lane, CUstream *ret_last)
{
	struct cuda_gpu *gpu = path->gpu;
	const CUstream kernels = gpu->in_context.kernels[CUDA_LOAD];
	const CUstream wire = gpu->in_context.wires[CUDA_LOAD];
	int r = scrub_slots(gpu, lane, wire);

	*ret_last = wire;
	if (r == 0)
		r = cross_wire(path, lane, CUDA_LANE_HEAD);
	if (r == 0)
		r = cross(gpu, lane, wire, kernels);
	if (r)
		return r;
	*ret_last = kernels;
	r = launch_all(gpu, lane);
	if (r == 0 && lane->packs)
		r = CUDA_DO(gpu, cuMemcpyDtoHAsync, lane->host, lane->on_gpu, CUDA_LANE_HEAD,
			    kernels);
	return r;
}

/* A call was refused and the context lives: the lane's jobs fail, once the queued operations have
 * ended. */
static void fail(struct cuda_gpu *gpu, struct cuda_lane *lane)
{
	memcpy(gpu->why, gpu->words, sizeof(gpu->why));
	for (uint32_t i = 0; i < lane->n; i++)
		if (lane->pieces[i].job)
			lane->pieces[i].job->status = -EIO;
}

/* Ends the pieces whose jobs were stopped. True: some pieces are left. */
static bool end_stopped(struct cuda_lane *lane)
{
	const uint64_t now = clock_ns();
	bool any = false;

	for (uint32_t i = 0; i < lane->n; i++)
		if (stopped(lane->pieces[i].job, now))
			piece_end(&lane->pieces[i]);
		else
			any = true;
	return any;
}

/* A lane comes to the GPU (1), or the GPU is done with it (-1). */
static void change_on_gpu(struct cuda_path *path, enum cuda_way way, int by)
{
	const uint64_t now = clock_ns();

	if (path->on_gpu[way] > 0)
		path->busy_ns[way] += now - path->changed_ns[way];
	path->changed_ns[way] = now;
	path->on_gpu[way] += (uint32_t)by;
}

static void launch(struct cuda_path *path, struct cuda_lane *lane)
{
	struct cuda_gpu *gpu = path->gpu;
	CUstream last = gpu->in_context.kernels[CUDA_HIT];
	int r;

	lane->state = LANE_DRAINING; /* it is not wanted any more */
	if (!end_stopped(lane))
		return;
	lane->state = LANE_GPU;
	lane->patience = (struct cuda_patience){ 0 };
	path->mark += path->mark == UINT32_MAX ? 2 : 1; /* never 0 */
	lane->mark = path->mark;
	change_on_gpu(path, lane->way, 1);
	if (lane->way == CUDA_STORE)
		r = queue_store(path, lane, &last);
	else if (lane->way == CUDA_LOAD)
		r = queue_load(path, lane, &last);
	else /* no byte crosses a wire */
		r = launch_all(gpu, lane);
	if (r)
		fail(gpu, lane);
	if (gpu->state == CUDA_FAILING || CUDA_DO(gpu, cuEventRecord, lane->event, last) == 0)
		return;
	/* No event would say when the lane is done: a new context is made. */
	gpu->state = CUDA_FAILING;
	memcpy(gpu->why, gpu->words, sizeof(gpu->why));
}

/* --- GPU -> DRAINING -> FREE --- */

/* Lends workers the pieces that they may copy now, and ends pieces that no job wants. */
static void drain(struct cuda_lane *lane)
{
	for (uint32_t i = 0; i < lane->n; i++) {
		struct cuda_lane_piece *piece = &lane->pieces[i];

		if (!piece->job || piece->lent)
			continue;
		if (piece->job->status || lane->way != CUDA_STORE)
			piece_end(piece);
		else if (piece->number == piece->job->copied)
			lend(piece);
	}
}

static void look_at_flags(struct cuda_lane *lane)
{
	const uint32_t *flags = (const uint32_t *)(const void *)lane->host;

	for (uint32_t i = 0; i < lane->n; i++) {
		struct cuda_lane_piece *piece = &lane->pieces[i];

		if (piece->job && piece->job->status == 0 && flags[i] == lane->mark)
			piece->job->status = lane->way == CUDA_STORE ? -ERANGE : -EBADMSG;
	}
}

/* True: the GPU is done with it. */
static bool done(struct cuda_path *path, struct cuda_lane *lane)
{
	struct cuda_gpu *gpu = path->gpu;
	const CUresult result = gpu->api->cuEventQuery(lane->event);

	if (result == CUDA_ERROR_NOT_READY) {
		(void)cuda_stands_still(gpu, &lane->patience);
		return false;
	}
	if (cuda_check(gpu, result, "cuEventQuery", NULL, 0)) {
		gpu->state = CUDA_FAILING; /* in any case: no event says when the lane is done */
		return false;
	}
	change_on_gpu(path, lane->way, -1);
	lane->state = LANE_DRAINING;
	if (lane->way == CUDA_STORE || (lane->way == CUDA_LOAD && lane->packs))
		look_at_flags(lane);
	return true;
}

static bool ended(const struct cuda_lane *lane)
{
	for (uint32_t i = 0; i < lane->n; i++)
		if (lane->pieces[i].job)
			return false;
	return lane->lent == 0;
}

static bool way_poll(struct cuda_path *path, enum cuda_way way)
{
	bool moved = false;

	for (uint32_t i = 0; i < path->busy[way]; i++) {
		struct cuda_lane *lane = lane_at(path, way, i);

		if (lane->state == LANE_GPU &&
		    !(i > 0 && lane_at(path, way, i - 1)->state == LANE_GPU))
			moved |= done(path, lane);
		if (path->gpu->state == CUDA_FAILING)
			return true;
		if (lane->state == LANE_DRAINING)
			drain(lane);
	}
	while (path->busy[way] > 0 && lane_at(path, way, 0)->state == LANE_DRAINING &&
	       ended(lane_at(path, way, 0))) {
		lane_at(path, way, 0)->state = LANE_FREE;
		path->first[way] = (path->first[way] + 1) % CUDA_LANES;
		path->busy[way]--;
		moved = true;
	}
	moved |= fill(path, way);
	for (uint32_t i = 0; i < path->busy[way]; i++) {
		struct cuda_lane *lane = lane_at(path, way, i);

		if (lane->state != LANE_FILLING)
			continue;
		if (lane->n == 0 || lane->lent > 0 || path->on_gpu[way] == CUDA_BATCHES ||
		    path->gpu->state != CUDA_UP)
			break; /* the lanes behind it wait for their turn */
		launch(path, lane);
		moved = true;
	}
	return moved;
}

bool cuda_lanes_poll(struct cuda_path *path)
{
	bool moved = way_poll(path, CUDA_HIT); /* loads first: somebody waits for them */

	moved |= way_poll(path, CUDA_LOAD);
	moved |= way_poll(path, CUDA_STORE);
	return moved;
}

/* --- the context is made and closed --- */

int cuda_lanes_attach(struct cuda_path *path)
{
	const struct cuda_context *c = &path->gpu->in_context;
	uint32_t at = 0;
	int r = 0;

	for (enum cuda_way way = 0; way < CUDA_WAYS; way++)
		for (uint32_t i = 0; i < CUDA_LANES && r == 0; i++, at += path->lane_bytes) {
			struct cuda_lane *lane = &path->lanes[way][i];

			lane->host = way < CUDA_WIRES ? c->bounce + at : NULL;
			lane->on_gpu = way < CUDA_WIRES ? c->staging + at : 0;
			r = CUDA_DO(path->gpu, cuEventCreate, &lane->crossed,
				    CU_EVENT_DISABLE_TIMING);
			if (r == 0)
				r = CUDA_DO(path->gpu, cuEventCreate, &lane->event,
					    CU_EVENT_DISABLE_TIMING);
		}
	return r;
}

void cuda_lanes_detach(struct cuda_path *path, bool lost)
{
	for (enum cuda_way way = 0; way < CUDA_WAYS; way++)
		for (uint32_t i = 0; i < CUDA_LANES; i++) {
			struct cuda_lane *lane = &path->lanes[way][i];

			if (lane->crossed && !lost)
				(void)CUDA_DO(path->gpu, cuEventDestroy, lane->crossed);
			if (lane->event && !lost)
				(void)CUDA_DO(path->gpu, cuEventDestroy, lane->event);
			lane->crossed = lane->event = NULL;
			lane->host = NULL;
			lane->on_gpu = 0;
		}
}

void cuda_lanes_lost(struct cuda_path *path)
{
	for (enum cuda_way way = 0; way < CUDA_WAYS; way++) {
		for (uint32_t i = 0; i < CUDA_LANES; i++) {
			struct cuda_lane *lane = &path->lanes[way][i];

			for (uint32_t k = 0; k < lane->n && lane->state != LANE_FREE; k++) {
				if (!lane->pieces[k].job)
					continue;
				lane->pieces[k].job->status = -EIO;
				piece_end(&lane->pieces[k]);
			}
			lane->state = LANE_FREE;
		}
		path->first[way] = path->busy[way] = path->on_gpu[way] = 0;
	}
}
