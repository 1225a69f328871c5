/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_run.c - see device_run.h. The thread that has the run.
 */
#include "device_run.h"

#include <errno.h>
#include <string.h>

enum {
	MEASURED_BYTES = 8 << 10, /* of the page, to measure an image by */
	/* as long as other pieces, though it is plain C: all of the sample, if it lies in few
	 * tiles */
	MEASURE_PIECE_BYTES = 8 << 10,
	LOOK_CALLS = 8, /* of guard_look() a piece */
};

void device_run_begin(struct device_run *run, const struct codec_kernels *kernels,
		      struct device_job *job, bool guarded)
{
	const bool page = job->kind == DEVICE_ENCODE || job->kind == DEVICE_DECODE;

	run->kernels = kernels;
	run->job = job;
	run->stage = page && !guarded ? RUN_LOOK : RUN_NEW;
	run->look = (struct guard_look){ 0 };
	run->copy = run->copied = 0;
}

/* The geometry that the header must have: the space's, or its own where that is not known. */
static void expected(const struct device_job *job, const struct image_header *header,
		     struct image_geometry *ret, struct image_identity *ret_identity)
{
	*ret_identity = job->identity;
	if (job->kind == DEVICE_DECODE) {
		*ret = job->layout->pages.geometry;
	} else if (job->geometry) {
		*ret = *job->geometry;
	} else {
		image_header_geometry(header, ret);
		memcpy(ret_identity->space_id, header->space_id, sizeof(ret_identity->space_id));
	}
}

static int begin_decode(struct device_run *run)
{
	const struct device_job *job = run->job;
	const int r =
		run->kernels->decode_start(&run->codec, &job->layout->pages, job->page, job->image);

	run->stage = RUN_CODEC;
	if (r == 0 && job->end_layer > 0)
		run->kernels->decode_layers(&run->codec, job->first_layer, job->end_layer);
	return r;
}

/* Begins with an image that exists: 0, or the reason why it cannot. */
static int begin_image(struct device_run *run)
{
	struct device_job *job = run->job;
	struct image_identity identity;
	struct image_geometry geometry;
	struct image_header header;
	struct image_shape shape;
	int r;

	memcpy(&header, job->image, sizeof(header));
	expected(job, &header, &geometry, &identity);
	r = image_header_check(&header, &geometry, &identity, &shape);
	if (r)
		return r;
	if (shape.image_bytes > job->image_bytes)
		return -EBADMSG;
	job->out_codec_k = header.codec_k;
	job->out_codec_v = header.codec_v;
	if (job->kind == DEVICE_VERIFY || job->verify) {
		run->stage = RUN_VERIFY;
		run->kernels->verify_start(&run->codec, job->image, &shape, header.checksum);
		return 0;
	}
	return begin_decode(run);
}

static int begin_encode(struct device_run *run)
{
	struct device_job *job = run->job;

	run->stage = RUN_CODEC;
	job->out_codec_k = job->codec_k;
	job->out_codec_v = job->codec_v;
	return run->kernels->encode_start(&run->codec, &job->layout->pages, job->page,
					  (enum image_codec)job->codec_k,
					  (enum image_codec)job->codec_v, &job->identity,
					  job->image);
}

static int look_piece(struct device_run *run)
{
	const struct device_job *job = run->job;
	const int r = guard_look(&run->look, &job->layout->pages, job->page, LOOK_CALLS);

	if (r)
		return r;
	run->stage = RUN_NEW;
	return CODEC_MORE;
}

/* The image's bytes are those of its checksum. A lossless one's packs must be right, too: else its
 * decoder would refuse it when a page has a part of it. */
static int look_at_packs(const struct device_job *job)
{
	struct image_identity identity;
	struct image_geometry geometry;
	struct image_header header;
	struct image_shape shape;

	memcpy(&header, job->image, sizeof(header));
	if (header.codec_k != CODEC_LOSSLESS)
		return 0;
	expected(job, &header, &geometry, &identity);
	return image_header_check(&header, &geometry, &identity, &shape) ||
			       !image_packs_are_right(&geometry, &shape, job->image) ?
		       -EBADMSG :
		       0;
}

/* A finished image is measured in further pieces, in the memory of the encode's run. */
static int measure_later(struct device_run *run, int r)
{
	const struct device_job *job = run->job;

	if (r || job->kind != DEVICE_ENCODE || !job->measure)
		return r;
	run->stage = RUN_MEASURE;
	codec_error_start(&run->codec, &job->layout->pages, job->page, job->image, MEASURED_BYTES);
	return CODEC_MORE;
}

/* The next bytes, as many as a piece of an image has. */
static int copy_piece(struct device_run *run)
{
	const struct device_job *job = run->job;
	uint32_t budget = CODEC_PIECE_BYTES;

	while (budget > 0 && run->copy < job->n_copies) {
		const struct device_copy *c = &job->copies[run->copy];
		const uint32_t left = c->bytes - run->copied, n = left < budget ? left : budget;

		memcpy(c->to + run->copied, c->from + run->copied, n);
		budget -= n;
		run->copied += n;
		if (n == left) {
			run->copy++;
			run->copied = 0;
		}
	}
	return run->copy < job->n_copies ? CODEC_MORE : 0;
}

int device_run_piece(struct device_run *run, uint64_t now_ns, uint8_t *scratch)
{
	struct device_job *job = run->job;
	int r = device_stopped(job, now_ns);

	if (r == 0 && job->kind == DEVICE_COPY)
		return copy_piece(run);
	if (r == 0 && run->stage == RUN_LOOK)
		return look_piece(run);
	if (r == 0 && run->stage == RUN_NEW)
		r = job->kind == DEVICE_ENCODE ? begin_encode(run) : begin_image(run);
	if (r)
		return r;
	if (run->stage == RUN_MEASURE)
		return codec_error_step(&run->codec, MEASURE_PIECE_BYTES, &job->error);
	r = run->kernels->step(&run->codec, CODEC_PIECE_BYTES, scratch);
	if (r == 0 && job->kind == DEVICE_VERIFY)
		return look_at_packs(job);
	if (r || run->stage != RUN_VERIFY)
		return measure_later(run, r);
	r = begin_decode(run);
	return r ? r : CODEC_MORE;
}
