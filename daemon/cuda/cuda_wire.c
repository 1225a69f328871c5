/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_wire.c - see cuda_wire.h. */
#include "cuda_wire.h"

#include "cuda_path_inner.h"

static CUdeviceptr scales_in(CUdeviceptr image)
{
	return image + sizeof(struct image_header);
}

static CUdeviceptr scales_at(const struct cuda_job *j)
{
	return scales_in(j->at);
}

static CUdeviceptr payload_at(const struct cuda_job *j)
{
	return j->at + j->image.shape.payload_offset;
}

void cuda_wire_place(const struct cuda_lane *lane, const struct cuda_part *part,
		     CUdeviceptr *ret_scales, CUdeviceptr *ret_payload)
{
	const struct cuda_cut *cut = &part->cut;

	*ret_scales = lane->on_gpu + cut->scale_at - cut->scale;
	*ret_payload = lane->on_gpu + cut->payload_at - cut->payload;
	if (part->job->at) {
		*ret_scales = scales_at(part->job);
		*ret_payload = payload_at(part->job);
	}
}

struct zeroes {
	uint64_t from, to; /* in the slot */
};

/* Jobs of some layers fill a slot in any order, so none may zero what another one puts there: the
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

static int scrub(struct cuda_gpu *gpu, const struct cuda_job *j, CUstream stream, char *text,
		 size_t n)
{
	struct zeroes zeroes[3];
	const uint32_t n_zeroes = zeroes_of(j, zeroes);
	int r = 0;

	for (uint32_t i = 0; i < n_zeroes && r == 0; i++)
		if (zeroes[i].to > zeroes[i].from)
			r = CUDA_CALL(gpu, cuMemsetD8Async, text, n, j->kept + zeroes[i].from, 0,
				      zeroes[i].to - zeroes[i].from, stream);
	return r;
}

int cuda_wire_scrub(struct cuda_gpu *gpu, const struct cuda_lane *lane, CUstream stream, char *text,
		    size_t n)
{
	int r = 0;

	for (uint32_t i = 0; i < lane->n && r == 0; i++) {
		const struct cuda_part *part = &lane->parts[i];
		const struct cuda_job *j = part->job;

		if (j && j->kept && j->job->keep.scrub && part->cut.first_unit == 0)
			r = scrub(gpu, j, stream, text, n);
	}
	return r;
}

int cuda_wire_join(struct cuda_gpu *gpu, const struct cuda_part *part, CUstream stream, char *text,
		   size_t n)
{
	const struct cuda_job *j = part->job;
	const struct cuda_cut *cut = &part->cut;
	const bool out = j->way == CUDA_STORE;
	const CUdeviceptr to = out ? j->kept : j->staged, from = out ? j->staged : j->kept;
	const uint32_t payload = j->image.shape.payload_offset + cut->payload;
	int r = 0;

	if (!j->kept)
		return 0;
	if (cut->scale_bytes)
		r = CUDA_CALL(gpu, cuMemcpyDtoDAsync, text, n, scales_in(to) + cut->scale,
			      scales_in(from) + cut->scale, cut->scale_bytes, stream);
	if (r == 0 && cut->payload_bytes)
		r = CUDA_CALL(gpu, cuMemcpyDtoDAsync, text, n, to + payload, from + payload,
			      cut->payload_bytes, stream);
	return r;
}

/* One crossing: of which lane, and where it fails to. */
struct wire {
	struct cuda_path *path;
	const struct cuda_lane *lane;
	char *text;
	size_t n;
};

static int copy(const struct wire *w, uint8_t *host, CUdeviceptr on_gpu, uint32_t bytes)
{
	struct cuda_gpu *gpu = w->path->gpu;
	const CUstream stream = gpu->in_context.wires[w->lane->way];

	if (bytes == 0)
		return 0;
	if (w->lane->way == CUDA_STORE) {
		w->path->out_bytes += bytes;
		return CUDA_CALL(gpu, cuMemcpyDtoHAsync, w->text, w->n, host, on_gpu, bytes,
				 stream);
	}
	w->path->in_bytes += bytes;
	return CUDA_CALL(gpu, cuMemcpyHtoDAsync, w->text, w->n, on_gpu, host, bytes, stream);
}

/* Between the lane's two buffers. */
static int copy_lane(const struct wire *w, uint32_t from, uint32_t to)
{
	return copy(w, w->lane->host + from, w->lane->on_gpu + from, to - from);
}

static int copy_scales(const struct wire *w, const struct cuda_part *part)
{
	const struct cuda_cut *cut = &part->cut;

	return copy(w, w->lane->host + cut->scale_at, scales_at(part->job) + cut->scale,
		    cut->scale_bytes);
}

static int copy_payload(const struct wire *w, const struct cuda_part *part)
{
	const struct cuda_cut *cut = &part->cut;

	return copy(w,
		    part->hold ? cuda_image_payload(&part->job->image, cut) :
				 w->lane->host + cut->payload_at,
		    part->job->at ? payload_at(part->job) + cut->payload :
				    w->lane->on_gpu + cut->payload_at,
		    cut->payload_bytes);
}

static void count(struct cuda_path *path, const struct cuda_part *part)
{
	uint64_t *bytes = part->hold ? path->direct_bytes : path->bounced_bytes;

	bytes[part->lane->way] += part->cut.payload_bytes;
}

int cuda_wire_cross(struct cuda_path *path, const struct cuda_lane *lane, uint32_t from, char *text,
		    size_t n)
{
	const struct wire w = { .path = path, .lane = lane, .text = text, .n = n };
	int r = 0;

	path->batches++;
	for (uint32_t i = 0; i < lane->n && r == 0; i++) {
		const struct cuda_part *part = &lane->parts[i];

		if (!part->job)
			continue;
		count(path, part);
		if (!part->hold && !part->job->at)
			continue;
		r = copy_lane(&w, from, part->job->at ? part->cut.scale_at : part->cut.payload_at);
		if (r == 0 && part->job->at)
			r = copy_scales(&w, part);
		if (r == 0)
			r = copy_payload(&w, part);
		from = part->cut.end;
	}
	return r ? r : copy_lane(&w, from, lane->used);
}
