/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_pack.c - images that become their coded form before they are sent. Contract: redis_pack.h.
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

int redis_pack_step(struct redis_packer *packer, struct redis_pack *pack, uint64_t now_ns)
{
	const struct form_pack *form = &pack->form;
	const struct image_header *header = (const void *)form->image;
	const uint64_t plain = form->ends[FORM_ENDS - 1];
	const int r = form_pack_step(&pack->form, REDIS_PACK_STEP);

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
	vault_free(pack->bytes, pack->room);
	packer->bytes -= pack->room;
	*pack = (struct redis_pack){ 0 };
}
