/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_pack.c - images that become something else before they are sent. Contract: redis_pack.h.
 */
#include "redis_pack.h"

#include "base/vault.h"

bool redis_pack_begin(struct redis_packer *packer, struct redis_pack *pack, const uint8_t *image,
		      const struct image_shape *shape, uint64_t now_ns)
{
	const struct image_header *header = (const void *)image;
	const size_t room = (size_t)form_most(shape) + FORM_SPARE;
	struct image_geometry geometry;

	*pack = (struct redis_pack){ 0 };
	if (!form_trial_asks(&packer->trials, header->space_id, now_ns))
		return false;
	if (packer->bytes + room <= REDIS_PACK_BYTES)
		pack->bytes = vault_buffer(room);
	pack->full = !pack->bytes;
	if (pack->full)
		return false;
	pack->room = room;
	packer->bytes += room;
	if (!packer->kernels)
		packer->kernels = codec_kernels(NULL);
	image_header_geometry(header, &geometry);
	form_pack_start(&pack->form, packer->kernels, &geometry, shape, image, pack->bytes);
	return true;
}

bool redis_pack_lesser(struct redis_packer *packer, struct redis_pack *pack, const uint8_t *image,
		       const struct image_shape *shape, uint32_t codec)
{
	const struct image_header *header = (const void *)image;
	struct image_geometry geometry;
	struct image_shape other;

	image_header_geometry(header, &geometry);
	/* it may have come from a medium as it goes to this one */
	*pack = (struct redis_pack){ .lesser = header->codec_v == CODEC_V4 };
	if (!recode_takes(header, &geometry, shape, codec, &other))
		return false;
	if (!packer->kernels)
		packer->kernels = codec_kernels(NULL);
	pack->recode = recode_begin(packer->kernels, &geometry, shape, image, codec);
	if (pack->recode && packer->bytes + pack->recode->room > REDIS_PACK_BYTES) {
		recode_end(pack->recode);
		pack->recode = NULL;
	}
	pack->full = !pack->recode;
	if (pack->full)
		return false;
	pack->room = pack->recode->room;
	packer->bytes += pack->room;
	return true;
}

/* An image that the codec cannot hold, or that is damaged, is sent as it is. */
static int recode_some(struct redis_packer *packer, struct redis_pack *pack)
{
	const bool was_lesser = pack->lesser;
	const int r = recode_step(pack->recode, REDIS_PACK_STEP);

	if (r == CODEC_MORE)
		return r;
	if (r)
		redis_pack_free(packer, pack);
	pack->lesser = r == 0 || was_lesser;
	return 0;
}

int redis_pack_step(struct redis_packer *packer, struct redis_pack *pack, uint64_t now_ns)
{
	const struct form_pack *form = &pack->form;
	const struct image_header *header = (const void *)form->image;
	const uint64_t plain = form->ends[FORM_ENDS - 1];
	int r;

	if (pack->recode)
		return recode_some(packer, pack);
	r = form_pack_step(&pack->form, REDIS_PACK_STEP);
	if (r == CODEC_MORE)
		return r;
	form_trial_learns(&packer->trials, header->space_id, plain, r ? plain : form->n, now_ns);
	if (r)
		redis_pack_free(packer, pack);
	else
		pack->n = form->n;
	return 0;
}

void redis_pack_free(struct redis_packer *packer, struct redis_pack *pack)
{
	if (pack->recode)
		recode_end(pack->recode);
	else
		vault_free(pack->bytes, pack->room);
	packer->bytes -= pack->room;
	*pack = (struct redis_pack){ 0 };
}
