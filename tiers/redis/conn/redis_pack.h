/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_pack.h - images that become their coded form (kernels/form.h), or lesser images
 * (tiers/recode.h), before they are sent, in steps that keep no connection waiting for long. Both
 * take REDIS_PACK_BYTES of memory at most. An image is sent as it is where that memory is used up,
 * or where its coded form would save too little.
 *
 * All functions run on the thread of the connections' loop.
 */
#pragma once

#include "kernels/form.h"
#include "tiers/form_trial.h"
#include "tiers/recode.h"

enum { REDIS_PACK_BYTES = 64 << 20, REDIS_PACK_STEP = 256 << 10 };

/* Zeroed at first. */
struct redis_packer {
	const struct codec_kernels *kernels;
	struct form_trials trials;
	uint64_t bytes; /* of forms and of lesser images that were begun and not freed */
};

/* One image that becomes its coded form or a lesser image. Zeroed: it stays as it is. */
struct redis_pack {
	uint8_t *bytes; /* of vault_buffer(); NULL: none */
	size_t room;
	uint32_t n; /* bytes of the form, once it is made; 0: the image is sent as it is */
	bool full;  /* the image was to become something else, which had no room */
	struct form_pack form;
	struct recode *recode; /* of the lesser image, until the end; NULL: none is made */
	bool lesser; /* what is sent, which is the image where recode is NULL, is a lesser one */
};

/* Begins to pack a whole image with a good header. false: it is sent as it is. */
bool redis_pack_begin(struct redis_packer *packer, struct redis_pack *pack, const uint8_t *image,
		      const struct image_shape *shape, uint64_t now_ns);
/* Begins to requantise a whole image with a good header, of a space of another codec than this
 * (enum kvtier_codec). false: it is sent as it is. */
bool redis_pack_lesser(struct redis_packer *packer, struct redis_pack *pack, const uint8_t *image,
		       const struct image_shape *shape, uint32_t codec);
/* Goes on. CODEC_MORE, or 0: it has ended, and pack->n and pack->lesser tell how. */
int redis_pack_step(struct redis_packer *packer, struct redis_pack *pack, uint64_t now_ns);
/* Frees what there is, at any time. */
void redis_pack_free(struct redis_packer *packer, struct redis_pack *pack);
