/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_coder.c - records that are the coded form of their image. Contract: nvme_coder.h; their
 * bytes: log/nvme_format.h.
 */
#include "nvme_coder.h"

#include <errno.h>
#include <string.h>

#include "base/list.h"
#include "base/loop.h"
#include "base/vault.h"
#include "tiers/nvme/log/nvme_format.h"

static int threads_start(struct nvme_coders *coders)
{
	/* All are made at once: a record must not wait for a thread that the system does not give
	 * then. */
	const struct workers_conf conf = { .loop = coders->loop,
					   .threads = NVME_CODER_THREADS,
					   .keep = NVME_CODER_THREADS };

	return coders->workers ? 0 : workers_open(&conf, &coders->workers);
}

int nvme_coders_open(struct nvme_coders *coders, struct loop *loop, bool compress)
{
	coders->loop = loop;
	coders->compress = compress;
	coders->kernels = codec_kernels(NULL);
	return compress ? threads_start(coders) : 0;
}

void nvme_coders_close(struct nvme_coders *coders)
{
	workers_close(coders->workers);
	coders->workers = NULL;
}

/* The image's own header says what it is: whoever asked for it looks at it later. */
static int look_at_image(struct nvme_coder *c)
{
	const struct image_header *header = (const void *)c->image;
	struct image_identity identity;

	memcpy(identity.key, header->key, sizeof(identity.key));
	memcpy(identity.space_id, header->space_id, sizeof(identity.space_id));
	image_header_geometry(header, &c->geometry);
	if (image_header_check(header, &c->geometry, &identity, &c->shape) ||
	    c->shape.image_bytes > c->bytes)
		return -EBADMSG;
	return 0;
}

static const uint8_t *space_of(const struct nvme_coder *c)
{
	return ((const struct image_header *)(const void *)c->image)->space_id;
}

/* --- before an append --- */

/* Makes the record of an image, which may be c->image or what that became. */
static void make(struct nvme_coder *c, const uint8_t *image, const struct image_shape *shape)
{
	struct form_pack p;
	uint64_t end;
	int r;

	form_pack_start(&p, c->shared->kernels, &c->geometry, shape, image, c->record + NVME_PAGE);
	if (c->codec)
		p.most = form_whole(shape);
	do
		r = form_pack_step(&p, IMAGE_MAX_BYTES);
	while (r == CODEC_MORE);
	end = nvme_round_page((uint64_t)NVME_PAGE + p.n);
	if (r || end >= nvme_round_page(c->bytes))
		return;
	memcpy(c->record, image, sizeof(struct image_header));
	memset(c->record + NVME_PAGE + p.n, 0, end - NVME_PAGE - p.n);
	c->coded_bytes = NVME_PAGE + p.n;
}

/* If so, it came from a medium as it goes to one. */
static bool has_codec(const struct nvme_coder *c, uint32_t codec)
{
	return recode_has((const void *)c->image, codec);
}

/* The values of two blocks are in memory at most: one of each thread. */
static void make_other(struct nvme_coder *c)
{
	struct recode *recode =
		recode_begin(c->shared->kernels, &c->geometry, &c->shape, c->image, c->codec);
	int r = recode ? CODEC_MORE : -ENOMEM;

	while (r == CODEC_MORE)
		r = recode_step(recode, IMAGE_MAX_BYTES);
	if (r == 0)
		make(c, recode->made, &recode->shape);
	recode_end(recode);
}

/* The header has a page of its own, with room for the log's tag; the form lies behind it. */
static enum work_end pack(struct work *work, uint32_t thread)
{
	struct nvme_coder *c = container_of(work, struct nvme_coder, work);

	(void)thread;
	if (c->codec && !has_codec(c, c->codec))
		make_other(c);
	else
		make(c, c->image, &c->shape);
	return WORK_ENDED;
}

static void packed(struct work *work)
{
	struct nvme_coder *c = container_of(work, struct nvme_coder, work);
	const uint64_t plain = nvme_round_page(c->bytes);

	if (!c->codec)
		form_trial_learns(&c->shared->trials, space_of(c), plain,
				  c->coded_bytes ? nvme_round_page(c->coded_bytes) : plain,
				  loop_now(c->shared->loop));
	if (!c->coded_bytes) {
		nvme_coder_free(c);
		c->codec = 0;
	}
	c->done(c);
}

/* Whether the record is made, and the most bytes of its form. */
static bool is_worth_it(struct nvme_coder *c, uint32_t codec, uint32_t *ret_most)
{
	struct nvme_coders *coders = c->shared;
	struct image_shape other = c->shape;

	if (codec && (has_codec(c, codec) || recode_takes((const void *)c->image, &c->geometry,
							  &c->shape, codec, &other))) {
		c->codec = codec;
		*ret_most = form_whole(&other);
		return true;
	}
	*ret_most = form_most(&c->shape);
	return coders->compress &&
	       form_trial_asks(&coders->trials, space_of(c), loop_now(coders->loop));
}

bool nvme_coder_pack(struct nvme_coders *coders, struct nvme_coder *c, uint8_t *image,
		     uint32_t bytes, uint32_t codec, void (*done)(struct nvme_coder *coder))
{
	uint32_t most;

	*c = (struct nvme_coder){ .shared = coders, .image = image, .bytes = bytes, .done = done };
	if ((!coders->compress && !codec) || bytes < sizeof(struct image_header) ||
	    look_at_image(c) || !is_worth_it(c, codec, &most) || threads_start(coders))
		return false;
	c->room = nvme_round_page((uint64_t)NVME_PAGE + most + FORM_SPARE);
	if (coders->bytes + c->room <= NVME_CODER_BYTES)
		c->record = vault_buffer(c->room);
	if (!c->record) {
		coders->full++;
		return false;
	}
	coders->bytes += c->room;
	c->work.run = pack;
	c->work.done = packed;
	workers_submit(coders->workers, &c->work);
	return true;
}

void nvme_coder_free(struct nvme_coder *c)
{
	if (!c->record)
		return;
	vault_free(c->record, c->room);
	c->shared->bytes -= c->room;
	c->record = NULL;
}

/* --- after a read --- */

/* The form is copied out of the way of its image. */
static int unpack_image(struct nvme_coder *c)
{
	const uint32_t scales_end = sizeof(struct image_header) + c->shape.scale_bytes,
		       n = c->coded_bytes - NVME_PAGE;
	uint8_t *form = vault_buffer((size_t)n + FORM_SPARE);
	struct form_unpack u;
	size_t used;
	int r;

	if (!form)
		return -ENOMEM;
	memcpy(form, c->image + NVME_PAGE, n);
	form_unpack_start(&u, c->shared->kernels, &c->shape, c->image);
	r = form_unpack_some(&u, form, n, &used);
	vault_free(form, (size_t)n + FORM_SPARE);
	if (r || used != n || !form_unpack_whole(&u))
		return -EBADMSG;
	memset(c->image + scales_end, 0, c->shape.payload_offset - scales_end);
	memset(c->image + c->shape.image_bytes, 0,
	       nvme_round_page(c->bytes) - c->shape.image_bytes);
	return 0;
}

static enum work_end unpack(struct work *work, uint32_t thread)
{
	struct nvme_coder *c = container_of(work, struct nvme_coder, work);

	(void)thread;
	c->status = look_at_image(c);
	if (!c->status && (c->coded_bytes <= NVME_PAGE || c->coded_bytes > c->bytes))
		c->status = -EBADMSG;
	if (!c->status)
		c->status = unpack_image(c);
	return WORK_ENDED;
}

static void unpacked(struct work *work)
{
	struct nvme_coder *c = container_of(work, struct nvme_coder, work);

	c->done(c);
}

int nvme_coder_unpack(struct nvme_coders *coders, struct nvme_coder *c, uint8_t *buffer,
		      uint32_t bytes, uint32_t coded_bytes, void (*done)(struct nvme_coder *coder))
{
	const int r = threads_start(coders);

	if (r)
		return r;
	*c = (struct nvme_coder){ .shared = coders,
				  .image = buffer,
				  .bytes = bytes,
				  .coded_bytes = coded_bytes,
				  .done = done };
	c->work.run = unpack;
	c->work.done = unpacked;
	workers_submit(coders->workers, &c->work);
	return 0;
}
