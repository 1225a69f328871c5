/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_pack.h - images that become their coded form (kernels/form.h) before they are sent, in
 * steps that keep no connection waiting for long. Forms take REDIS_PACK_BYTES of memory at most. A
 * form that has no room there, or is not worth it, is not made: the image is sent as it is.
 *
 * All functions run on the thread of the connections' loop.
 */
#ifndef KVTIER_REDIS_PACK_H
#define KVTIER_REDIS_PACK_H

#include "kernels/form.h"
#include "tiers/form_trial.h"

enum { REDIS_PACK_BYTES = 64 << 20, REDIS_PACK_STEP = 256 << 10 };

/* Zeroed at first. */
struct redis_packer {
	const struct codec_kernels *kernels;
	struct form_trials trials;
	uint64_t bytes; /* of forms that were begun and not freed */
};

/* The form of one image. Zeroed: there is none. */
struct redis_pack {
	uint8_t *bytes; /* of vault_buffer(); NULL: none */
	size_t room;
	uint32_t n; /* bytes of the form, once it is made; 0: the image is sent as it is */
	bool full;  /* the image was to be packed, and a form had no room */
	struct form_pack form;
};

/* Begins to pack a whole image with a good header. false: it is sent as it is. */
bool redis_pack_begin(struct redis_packer *packer, struct redis_pack *pack, const uint8_t *image,
		      const struct image_shape *shape, uint64_t now_ns);
/* Goes on. CODEC_MORE, or 0: it has ended, and pack->n tells how. */
int redis_pack_step(struct redis_packer *packer, struct redis_pack *pack, uint64_t now_ns);
/* Frees what there is, at any time. */
void redis_pack_free(struct redis_packer *packer, struct redis_pack *pack);

#endif
