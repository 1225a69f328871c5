/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=image_seal */
/*
 * kvtierd_lying.c - a kvtierd whose lossless images lie about their packs, with every sum and MAC
 * right: what somebody makes who knows the secret and may write to the disk. KVTIER_TEST_LIE names
 * the lie; images of blocks with an even key are as they should be. Never installed.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/image.h"
#include "kernels/lossless.h"
#include "wrap.h"

/* Of the last pack; a multiple of LOSSLESS_STEP. */
static uint32_t pack_values(const struct image_geometry *g)
{
	const uint32_t most = image_pack_tokens(g->head_dim_v), rest = g->block_tokens % most;

	return (rest ? rest : most) * g->head_dim_v;
}

static void longer(uint8_t *scales, int by)
{
	const uint32_t far = image_pack_far(scales) + (uint32_t)by;

	scales[1] = (uint8_t)far;
	scales[2] = (uint8_t)(far >> 8);
}

static void lie(struct image_header *header, const char *how, struct image_shape *shape)
{
	uint8_t *scales = (uint8_t *)(header + 1),
		*last = scales + shape->scale_bytes - IMAGE_PACK_SCALES,
		*payload = (uint8_t *)header + shape->payload_offset;
	struct image_geometry g;
	uint32_t pack;

	image_header_geometry(header, &g);
	pack = image_pack_bytes(g.dtype, pack_values(&g), image_pack_far(last));
	if (!strcmp(how, "sum")) { /* packs that do not fill the payload */
		longer(last, IMAGE_PACK_ALIGN);
	} else if (!strcmp(how, "lengths")) { /* they do, and two are not as their bits say */
		longer(last, IMAGE_PACK_ALIGN);
		longer(last - IMAGE_PACK_SCALES, -IMAGE_PACK_ALIGN);
	} else if (!strcmp(how, "bits")) { /* no value is near, and there are as few far codes */
		const uint32_t steps = pack_values(&g) / LOSSLESS_STEP;

		memset(payload + shape->payload_bytes - IMAGE_PACK_SPARE - pack +
			       steps * LOSSLESS_LOW_BYTES,
		       255, steps * LOSSLESS_NEAR_BYTES);
	} else if (!strcmp(how, "payload")) {
		header->payload_bytes -= IMAGE_PACK_ALIGN;
		image_shape_cut(shape, header->payload_bytes);
	}
}

REAL(void, image_seal, (struct image_header * header, uint64_t checksum))
{
	const char *how = getenv("KVTIER_TEST_LIE");
	struct image_geometry geometry;
	struct image_shape shape;

	image_header_geometry(header, &geometry);
	if (how && header->codec_k == CODEC_LOSSLESS && header->key[0] % 2 != 0 &&
	    image_header_shape(header, &geometry, &shape) == 0) {
		lie(header, how, &shape);
		checksum = image_checksum((const uint8_t *)header, &shape);
	}
	__real_image_seal(header, checksum);
}
