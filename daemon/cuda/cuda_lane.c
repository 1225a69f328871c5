/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_lane.c - lanes: their pieces, and their way over the GPU. See cuda_lane.h. */
#include "cuda_lane.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "cuda_path_inner.h"
#include "cuda_wire.h"
#include "daemon/base/container_of.h"
#include "kernels/cuda/plan.h"

static struct cuda_lane *lane_at(struct cuda_path *path, enum cuda_way way, uint32_t position)
{
	return &path->lanes[way][(path->first[way] + position) % CUDA_LANES];
}

/* --- parts --- */

static void part_end(struct cuda_part *part)
{
	struct cuda_job *j = part->job;

	assert(!part->lent);
	cuda_pin_drop(j->path->gpu->pin, part->hold);
	part->hold = 0;
	part->job = NULL;
	j->out--;
	cuda_job_look(j);
}

static enum work_end copy(struct work *work, uint32_t thread)
{
	struct cuda_part *part = container_of(work, struct cuda_part, work);
	struct cuda_job *j = part->job;
	const bool last = part->cut.first_unit + part->cut.n_units == j->units.plan->n_units;
	const bool direct = part->hold != 0;

	(void)thread;
	if (j->way == CUDA_STORE)
		cuda_image_out(&j->image, &part->cut, part->lane->host, direct, last);
	else if (j->verifies)
		part->status =
			cuda_image_in_verified(&j->image, &part->cut, part->lane->host, direct);
	else
		cuda_image_in(&j->image, &part->cut, part->lane->host, direct);
	return WORK_ENDED;
}

static void copied(struct work *work)
{
	struct cuda_part *part = container_of(work, struct cuda_part, work);
	struct cuda_job *j = part->job;

	part->lent = false;
	part->lane->lent--;
	j->path->lent--;
	if (part->status && j->status == 0)
		j->status = part->status;
	if (j->way == CUDA_STORE) {
		j->copied++;
		part_end(part);
	}
}

static void lend(struct cuda_part *part)
{
	struct cuda_path *path = part->job->path;

	part->work = (struct work){ .run = copy, .done = copied };
	part->lent = true;
	part->lane->lent++;
	path->lent++;
	(void)workers_submit(path->workers, &part->work);
}

/* Its client, the core, the clock or an earlier piece wants nothing more of it. */
static bool stopped(struct cuda_job *j, uint64_t now)
{
	if (j->status == 0)
		j->status = device_stopped(j->job, now);
	return j->status != 0;
}

/* --- FILLING --- */

static void lane_begin(struct cuda_path *path, enum cuda_way way)
{
	struct cuda_lane *lane = lane_at(path, way, path->busy[way]++);

	assert(lane->state == LANE_FREE && lane->lent == 0);
	lane->state = LANE_FILLING;
	lane->way = way;
	lane->used = CUDA_LANE_HEAD;
	lane->n = 0;
	lane->full = false;
}

/* The lane that takes pieces; NULL: there is none now. */
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
	struct cuda_part *part = &lane->parts[lane->n++];

	*part = (struct cuda_part){ .job = j, .lane = lane, .cut = *cut, .number = j->pieces++ };
	if (j->way != CUDA_HIT && cut->payload_bytes >= CUDA_DIRECT_LEAST)
		part->hold = cuda_pin_hold(j->path->gpu->pin, cuda_image_payload(&j->image, cut),
					   cut->payload_bytes);
	if (j->way != CUDA_HIT)
		lane->used = cut->end;
	lane->full = lane->n == CUDA_LANE_PIECES;
	j->next_unit += cut->n_units;
	j->out++;
	if (j->way == CUDA_LOAD && part->hold && !j->verifies)
		cuda_image_in(&j->image, cut, lane->host, true); /* a few scales */
	else if (j->way == CUDA_LOAD)
		lend(part);
}

/* A hit takes nothing of the lane but a place among its pieces: its image is there, whole. */
static bool cut_next(const struct cuda_path *path, const struct cuda_lane *lane,
		     const struct cuda_job *j, struct cuda_cut *ret)
{
	if (j->way == CUDA_HIT)
		return cuda_cut(&j->units, j->next_unit, CUDA_LANE_HEAD, UINT32_MAX, ret);
	return cuda_cut(&j->units, j->next_unit, lane->used, path->lane_bytes, ret);
}

/* The next piece of the job goes into the lane; false: the lane is full. */
static bool fill_one(struct cuda_path *path, struct cuda_lane *lane, struct cuda_job *j)
{
	struct cuda_cut cut;

	if (j->status == 0)
		j->status = cuda_layout_need(path->gpu, j->layout) ? -EIO : 0;
	if (stopped(j, cuda_now())) {
		cuda_job_look(j);
		return true;
	}
	if (!cut_next(path, lane, j, &cut)) {
		assert(lane->used > CUDA_LANE_HEAD); /* an empty lane has room for a unit */
		lane->full = true;
		cuda_job_queue(j, true);
		return false;
	}
	put(lane, j, &cut);
	if (j->next_unit < j->units.end)
		cuda_job_queue(j, true);
	else if (j->next_unit < j->end_unit)
		list_add(&path->waiting, &j->waiting); /* for its next layers */
	return true;
}

static bool fill(struct cuda_path *path, enum cuda_way way)
{
	struct device_turns *turns = &path->turns[way];
	struct cuda_lane *lane;
	bool moved = false;

	while (turns->n_jobs > 0 && path->gpu->state == CUDA_UP &&
	       (lane = lane_to_fill(path, way)) != NULL) {
		struct cuda_job *j = device_turns_take(turns)->own;

		j->queued = false;
		moved |= fill_one(path, lane, j);
	}
	return moved;
}

/* --- FILLING -> GPU --- */

static struct cuda_task task_of(const struct cuda_lane *lane, uint32_t part)
{
	const struct cuda_cut *cut = &lane->parts[part].cut;
	const struct cuda_job *j = lane->parts[part].job;
	CUdeviceptr scales, payload;

	cuda_wire_place(lane, &lane->parts[part], &scales, &payload);
	return (struct cuda_task){
		.page = j->job->page,
		.scales = scales,
		.payload = payload,
		.flag = lane->on_gpu + part * sizeof(uint32_t),
		.first_unit = cut->first_unit,
		.n_units = cut->n_units,
		.codec_k = (uint8_t)j->image.codec_k,
		.codec_v = (uint8_t)j->image.codec_v,
	};
}

/* Engine mode: the kernel is the client's, before the op or after it. */
static int join(struct cuda_gpu *gpu, struct cuda_lane *lane, struct cuda_part *part, char *text,
		size_t n)
{
	part->launched = true;
	return cuda_wire_join(gpu, part, gpu->in_context.kernels[lane->way], text, n);
}

/* A hit has twice as many blocks. No wire bounds it, so it is over in half the time, and takes no
 * more of the GPU than with half of them. More blocks would not make a wire faster. */
static uint32_t blocks_at_most(const struct cuda_gpu *gpu, enum cuda_way way)
{
	return gpu->conf.max_ctas << (way == CUDA_HIT);
}

/* One launch: the parts that have the layout of part `first`. */
static int launch_layout(struct cuda_gpu *gpu, struct cuda_lane *lane, uint32_t first, char *text,
			 size_t n)
{
	const struct cuda_context *c = &gpu->in_context;
	const struct cuda_layout *layout = lane->parts[first].job->layout;
	struct cuda_plan plan = layout->plan;
	struct cuda_tasks tasks = { .mark = lane->mark };
	void *params[] = { &plan, &tasks };

	for (uint32_t i = first; i < lane->n; i++) {
		struct cuda_part *part = &lane->parts[i];

		if (!part->job || part->job->layout != layout)
			continue;
		part->launched = true;
		tasks.task[tasks.n++] = task_of(lane, i);
	}
	return CUDA_CALL(gpu, cuLaunchKernel, text, n,
			 lane->way == CUDA_STORE ? c->encode : c->decode,
			 cuda_plan_blocks(&plan, cuda_tasks_number(&tasks),
					  blocks_at_most(gpu, lane->way)),
			 1, 1, CUDA_THREADS, 1, 1, 0, c->kernels[lane->way], params, NULL);
}

static int launch_all(struct cuda_gpu *gpu, struct cuda_lane *lane, char *text, size_t n)
{
	int r = 0;

	for (uint32_t i = 0; i < lane->n && r == 0; i++)
		if (lane->parts[i].job && !lane->parts[i].launched)
			r = lane->parts[i].job->staged ? join(gpu, lane, &lane->parts[i], text, n) :
							 launch_layout(gpu, lane, i, text, n);
	return r;
}

/* Operations queued in `to` from now on run after the lane's operations in `from`. Where this order
 * cannot be had, no event would say when the lane is done: then a new context is made. */
static int cross(struct cuda_gpu *gpu, const struct cuda_lane *lane, CUstream from, CUstream to,
		 char *text, size_t n)
{
	int r = CUDA_CALL(gpu, cuEventRecord, text, n, lane->crossed, from);

	if (r == 0)
		r = CUDA_CALL(gpu, cuStreamWaitEvent, text, n, to, lane->crossed, 0);
	if (r)
		gpu->state = CUDA_FAILING;
	return r;
}

/* *ret_last: the stream that ends with the lane's last operation. */
static int queue_store(struct cuda_path *path, struct cuda_lane *lane, CUstream *ret_last,
		       char *text, size_t n)
{
	struct cuda_gpu *gpu = path->gpu;
	const CUstream kernels = gpu->in_context.kernels[CUDA_STORE];
	const CUstream wire = gpu->in_context.wires[CUDA_STORE];
	int r = cuda_wire_scrub(gpu, lane, kernels, text, n);

	*ret_last = kernels;
	if (r == 0)
		r = launch_all(gpu, lane, text, n);
	if (r == 0)
		r = cross(gpu, lane, kernels, wire, text, n);
	if (r)
		return r;
	*ret_last = wire;
	return cuda_wire_cross(path, lane, 0, text, n);
}

static int queue_load(struct cuda_path *path, struct cuda_lane *lane, CUstream *ret_last,
		      char *text, size_t n)
{
	struct cuda_gpu *gpu = path->gpu;
	const CUstream kernels = gpu->in_context.kernels[CUDA_LOAD];
	const CUstream wire = gpu->in_context.wires[CUDA_LOAD];
	int r = cuda_wire_scrub(gpu, lane, wire, text, n);

	*ret_last = wire;
	if (r == 0)
		r = cuda_wire_cross(path, lane, CUDA_LANE_HEAD, text, n);
	if (r == 0)
		r = cross(gpu, lane, wire, kernels, text, n);
	if (r)
		return r;
	*ret_last = kernels;
	return launch_all(gpu, lane, text, n);
}

/* Nothing crosses a wire. */
static int queue_hit(struct cuda_gpu *gpu, struct cuda_lane *lane, CUstream *ret_last, char *text,
		     size_t n)
{
	*ret_last = gpu->in_context.kernels[CUDA_HIT];
	return launch_all(gpu, lane, text, n);
}

/* A call was refused and the context lives: the lane's jobs fail, once the queued operations have
 * ended. */
static void fail(struct cuda_gpu *gpu, struct cuda_lane *lane, const char *why)
{
	snprintf(gpu->why, sizeof(gpu->why), "%s", why);
	for (uint32_t i = 0; i < lane->n; i++)
		if (lane->parts[i].job)
			lane->parts[i].job->status = -EIO;
}

/* Ends the parts whose jobs were stopped. True: some parts are left. */
static bool end_stopped(struct cuda_lane *lane)
{
	const uint64_t now = cuda_now();
	bool any = false;

	for (uint32_t i = 0; i < lane->n; i++)
		if (stopped(lane->parts[i].job, now))
			part_end(&lane->parts[i]);
		else
			any = true;
	return any;
}

static void launch(struct cuda_path *path, struct cuda_lane *lane)
{
	struct cuda_gpu *gpu = path->gpu;
	char why[sizeof(gpu->why)] = "";
	CUstream last;
	int r;

	lane->state = LANE_DRAINING; /* nothing of it is wanted any more */
	if (!end_stopped(lane))
		return;
	lane->state = LANE_GPU;
	lane->patience = (struct cuda_patience){ 0 };
	path->mark += path->mark == UINT32_MAX ? 2 : 1; /* never 0 */
	lane->mark = path->mark;
	path->on_gpu[lane->way]++;
	if (lane->way == CUDA_STORE)
		r = queue_store(path, lane, &last, why, sizeof(why));
	else if (lane->way == CUDA_LOAD)
		r = queue_load(path, lane, &last, why, sizeof(why));
	else
		r = queue_hit(gpu, lane, &last, why, sizeof(why));
	if (r)
		fail(gpu, lane, why);
	if (gpu->state == CUDA_FAILING ||
	    CUDA_CALL(gpu, cuEventRecord, why, sizeof(why), lane->event, last) == 0)
		return;
	/* No event would say when the lane is done: a new context is made. */
	gpu->state = CUDA_FAILING;
	snprintf(gpu->why, sizeof(gpu->why), "%s", why);
}

/* --- GPU -> DRAINING -> FREE --- */

/* Lends workers the parts that they may copy now, and ends parts that no job wants. */
static void drain(struct cuda_lane *lane)
{
	for (uint32_t i = 0; i < lane->n; i++) {
		struct cuda_part *part = &lane->parts[i];

		if (!part->job || part->lent)
			continue;
		if (part->job->status || lane->way != CUDA_STORE)
			part_end(part);
		else if (part->number == part->job->copied)
			lend(part);
	}
}

static void look_at_flags(struct cuda_lane *lane)
{
	const uint32_t *flags = (const uint32_t *)(const void *)lane->host;

	for (uint32_t i = 0; i < lane->n; i++) {
		struct cuda_part *part = &lane->parts[i];

		if (part->job && part->job->status == 0 && flags[i] == lane->mark)
			part->job->status = -ERANGE;
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
		gpu->state = CUDA_FAILING; /* in any case: nothing says when the lane is done */
		return false;
	}
	path->on_gpu[lane->way]--;
	lane->state = LANE_DRAINING;
	if (lane->way == CUDA_STORE)
		look_at_flags(lane);
	return true;
}

static bool ended(const struct cuda_lane *lane)
{
	for (uint32_t i = 0; i < lane->n; i++)
		if (lane->parts[i].job)
			return false;
	return lane->lent == 0;
}

static bool way_turn(struct cuda_path *path, enum cuda_way way)
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

bool cuda_lanes_turn(struct cuda_path *path)
{
	bool moved = false;

	/* loads first: somebody waits for them */
	moved |= way_turn(path, CUDA_HIT);
	moved |= way_turn(path, CUDA_LOAD);
	moved |= way_turn(path, CUDA_STORE);
	return moved;
}

/* --- the context comes and goes --- */

int cuda_lanes_attach(struct cuda_path *path, char *text, size_t n)
{
	const struct cuda_context *c = &path->gpu->in_context;
	uint32_t at = 0;
	int r = 0;

	for (enum cuda_way way = 0; way < CUDA_WAYS; way++)
		for (uint32_t i = 0; i < CUDA_LANES && r == 0; i++, at += path->lane_bytes) {
			struct cuda_lane *lane = &path->lanes[way][i];

			lane->host = way < CUDA_WIRES ? c->bounce + at : NULL;
			lane->on_gpu = way < CUDA_WIRES ? c->staging + at : 0;
			r = CUDA_CALL(path->gpu, cuEventCreate, text, n, &lane->crossed,
				      CU_EVENT_DISABLE_TIMING);
			if (r == 0)
				r = CUDA_CALL(path->gpu, cuEventCreate, text, n, &lane->event,
					      CU_EVENT_DISABLE_TIMING);
		}
	return r;
}

void cuda_lanes_detach(struct cuda_path *path)
{
	for (enum cuda_way way = 0; way < CUDA_WAYS; way++)
		for (uint32_t i = 0; i < CUDA_LANES; i++) {
			const struct cuda_lane *lane = &path->lanes[way][i];

			if (lane->crossed)
				(void)CUDA_CALL(path->gpu, cuEventDestroy, NULL, 0, lane->crossed);
			if (lane->event)
				(void)CUDA_CALL(path->gpu, cuEventDestroy, NULL, 0, lane->event);
		}
	cuda_lanes_forget(path);
}

void cuda_lanes_forget(struct cuda_path *path)
{
	for (enum cuda_way way = 0; way < CUDA_WAYS; way++)
		for (uint32_t i = 0; i < CUDA_LANES; i++) {
			struct cuda_lane *lane = &path->lanes[way][i];

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
				if (!lane->parts[k].job)
					continue;
				lane->parts[k].job->status = -EIO;
				part_end(&lane->parts[k]);
			}
			lane->state = LANE_FREE;
		}
		path->first[way] = path->busy[way] = path->on_gpu[way] = 0;
	}
}
