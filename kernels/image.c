/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.c - sizes, header and checksums of an image. Contract: image.h; format: daemon/IMAGE.md.
 *
 * Pure functions on private memory: any thread. All sizes are computed in 64 bits from factors that
 * were bounded first, so no sum here can overflow.
 */
#include "image.h"
#include "lossless.h"

#include <errno.h>
#include <string.h>

#define XXH_INLINE_ALL /* the state lives on the stack, which the shared library does not promise */
#include <xxhash.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

uint32_t image_element_bytes(uint32_t dtype)
{
	switch (dtype) {
	case DTYPE_BF16:
	case DTYPE_FP16:
		return 2;
	case DTYPE_FP32:
		return 4;
	case DTYPE_E4M3:
	case DTYPE_E5M2:
	case DTYPE_INT8:
		return 1;
	default:
		return 0;
	}
}

static int codec_takes(enum image_codec codec, uint32_t dtype)
{
	switch (codec) {
	case CODEC_RAW:
		return 1;
	case CODEC_FP8:
	case CODEC_INT8:
	case CODEC_K4:
	case CODEC_V4:
	case CODEC_LOSSLESS:
		return dtype == DTYPE_BF16 || dtype == DTYPE_FP16;
	case CODEC_FP8_NATIVE:
		return image_element_bytes(dtype) == 1;
	default:
		return 0;
	}
}

static uint32_t divided_up(uint32_t n, uint32_t by)
{
	return (n + by - 1) / by;
}

uint32_t image_row_bytes(enum image_codec codec, uint32_t dtype, uint32_t dim)
{
	if (codec == CODEC_K4 || codec == CODEC_V4)
		return divided_up(dim, 2);
	return image_codec_scales(codec) ? dim : dim * image_element_bytes(dtype);
}

uint32_t image_pack_bytes(uint32_t dtype, uint32_t n, uint32_t far)
{
	const uint32_t step = lossless_step_bytes(dtype == DTYPE_FP16),
		       bytes = divided_up(n, LOSSLESS_STEP) * step + far;

	return divided_up(bytes, IMAGE_PACK_ALIGN) * IMAGE_PACK_ALIGN;
}

/* The packs of one head of a plane, or of one typed segment. */
struct packs {
	uint32_t n;
	uint64_t bytes;
};

/* A pack has `most` values, the last one perhaps fewer, and `far` bytes of far part a step. */
static struct packs packs_of(uint32_t dtype, uint32_t values, uint32_t most, uint32_t far)
{
	const uint32_t n = values / most, rest = values % most;
	uint64_t bytes =
		(uint64_t)n * image_pack_bytes(dtype, most, far * divided_up(most, LOSSLESS_STEP));

	if (rest)
		bytes += image_pack_bytes(dtype, rest, far * divided_up(rest, LOSSLESS_STEP));
	return (struct packs){ n + (rest > 0), bytes };
}

static struct packs head_packs(const struct image_geometry *g, uint32_t dim, uint32_t far)
{
	return dim ? packs_of(g->dtype, g->block_tokens * dim, image_pack_tokens(dim) * dim, far) :
		     (struct packs){ 0 };
}

/* The payload of all packs of a lossless image, and what lies behind them. */
static uint64_t packs_payload(const struct image_geometry *g, uint32_t far)
{
	const uint64_t planes = (uint64_t)g->layers * g->kv_heads;

	return planes * (head_packs(g, g->head_dim_k, far).bytes +
			 head_packs(g, g->head_dim_v, far).bytes) +
	       g->typed_segments *
		       packs_of(g->dtype, g->typed_values, IMAGE_PACK_TYPED, far).bytes +
	       IMAGE_PACK_SPARE + g->opaque_bytes;
}

uint32_t image_scale_bytes(enum image_codec codec, uint32_t tokens, uint32_t dim)
{
	switch (codec) {
	case CODEC_FP8:
		return dim ? divided_up(tokens, IMAGE_GROUP_TOKENS) : 0;
	case CODEC_INT8:
		return divided_up(tokens, IMAGE_CHANNEL_TOKENS) * dim;
	case CODEC_K4:
		return divided_up(tokens, IMAGE_CHANNEL_TOKENS) * dim * IMAGE_K4_SCALES;
	case CODEC_V4:
		return tokens * divided_up(dim, IMAGE_V4_VALUES);
	default:
		return 0;
	}
}

/* Scales of one head of a plane. */
static uint32_t head_scales(const struct image_geometry *g, enum image_codec codec, uint32_t dim)
{
	if (codec == CODEC_LOSSLESS)
		return IMAGE_PACK_SCALES * head_packs(g, dim, 0).n;
	return image_scale_bytes(codec, g->block_tokens, dim);
}

/* The first field out of its limits, or NULL. Planes need layers and heads; without planes both may
 * be 0. */
static const char *bad_field(const struct image_geometry *g, enum image_codec codec_k,
			     enum image_codec codec_v)
{
	const uint32_t least = g->head_dim_k || g->head_dim_v ? 1 : 0;

	if (!image_element_bytes(g->dtype))
		return "dtype";
	if (g->layers < least || g->layers > IMAGE_MAX_LAYERS)
		return "layers";
	if (g->kv_heads < least || g->kv_heads > IMAGE_MAX_HEADS)
		return "kv_heads";
	if (g->head_dim_k > IMAGE_MAX_HEAD_DIM)
		return "head_dim_k";
	if (g->head_dim_v > IMAGE_MAX_HEAD_DIM)
		return "head_dim_v";
	if (g->block_tokens < 1 || g->block_tokens > IMAGE_MAX_TOKENS)
		return "block_tokens";
	if (g->typed_segments > IMAGE_MAX_SEGMENTS)
		return "typed_segments";
	if (g->typed_values > IMAGE_MAX_BYTES || (g->typed_segments && !g->typed_values))
		return "typed_values";
	if (g->opaque_bytes > IMAGE_MAX_BYTES)
		return "opaque_bytes";
	if (!least && !g->typed_segments && !g->opaque_bytes)
		return "head_dim_k"; /* a block without bytes */
	if (!least && image_codec_channels(codec_k))
		return "codec"; /* it is for planes: typed values would be fp8 under its name */
	if ((codec_k == CODEC_LOSSLESS) != (codec_v == CODEC_LOSSLESS) || codec_k == CODEC_V4 ||
	    codec_v == CODEC_K4)
		return "codec";
	return codec_takes(codec_k, g->dtype) && codec_takes(codec_v, g->dtype) ? NULL : "codec";
}

int image_shape(const struct image_geometry *g, enum image_codec codec_k, enum image_codec codec_v,
		struct image_shape *ret, const char **ret_field)
{
	const char *field = bad_field(g, codec_k, codec_v);
	uint64_t element, groups, planes, scales, payload, offset, values_k, values_v, typed;

	if (field) {
		if (ret_field)
			*ret_field = field;
		return -EINVAL;
	}
	element = image_element_bytes(g->dtype);
	groups = (g->block_tokens + IMAGE_GROUP_TOKENS - 1) / IMAGE_GROUP_TOKENS;
	planes = (uint64_t)g->layers * g->kv_heads; /* (layer, head) pairs */
	values_k = planes * g->block_tokens * g->head_dim_k;
	values_v = planes * g->block_tokens * g->head_dim_v;
	typed = (uint64_t)g->typed_segments * g->typed_values;
	payload = planes * g->block_tokens *
			  (image_row_bytes(codec_k, g->dtype, g->head_dim_k) +
			   image_row_bytes(codec_v, g->dtype, g->head_dim_v)) +
		  typed * (image_codec_scales(codec_k) ? 1 : element) + g->opaque_bytes;
	scales = planes *
		 (head_scales(g, codec_k, g->head_dim_k) + head_scales(g, codec_v, g->head_dim_v));
	if (image_codec_scales(codec_k))
		scales += (uint64_t)g->typed_segments *
			  divided_up(g->typed_values, IMAGE_GROUP_TYPED);
	if (codec_k == CODEC_LOSSLESS) {
		scales += (uint64_t)g->typed_segments * IMAGE_PACK_SCALES *
			  divided_up(g->typed_values, IMAGE_PACK_TYPED);
		payload = packs_payload(g, IMAGE_PACK_FAR);
		if (payload > (values_k + values_v + typed) * element + g->opaque_bytes) {
			/* steps that are mostly empty */
			if (ret_field)
				*ret_field = "codec";
			return -EINVAL;
		}
	}
	offset = (sizeof(struct image_header) + scales + IMAGE_ALIGN - 1) / IMAGE_ALIGN *
		 IMAGE_ALIGN;
	if (offset + payload > IMAGE_MAX_BYTES)
		return -EOVERFLOW;
	/* The logical size is at most four times the payload: it fits 32 bits as well. */
	*ret = (struct image_shape){
		.element_bytes = (uint32_t)element,
		.groups = (uint32_t)groups,
		.scale_bytes = (uint32_t)scales,
		.payload_offset = (uint32_t)offset,
		.payload_bytes = (uint32_t)payload,
		.image_bytes = (uint32_t)(offset + payload),
		.packed_bytes = (uint32_t)(sizeof(struct image_header) + scales + payload),
		.logical_bytes =
			(uint32_t)((values_k + values_v + typed) * element + g->opaque_bytes),
	};
	return 0;
}

/* Bytes of the packs of so many values, whose lengths are at *scales, which moves on. */
static uint64_t packs_in(const struct image_geometry *g, uint32_t values, uint32_t most,
			 const uint8_t **scales)
{
	uint64_t sum = 0;

	for (; values; *scales += IMAGE_PACK_SCALES) {
		const uint32_t n = values < most ? values : most;

		sum += image_pack_bytes(g->dtype, n, image_pack_far(*scales));
		values -= n;
	}
	return sum;
}

/* Bytes of the packs of the first layers' planes. */
static uint64_t layers_in(const struct image_geometry *g, uint32_t layers, const uint8_t **scales)
{
	const uint32_t dims[2] = { g->head_dim_k, g->head_dim_v };
	uint64_t sum = 0;

	for (uint32_t plane = 0; plane < 2 * layers; plane++) {
		const uint32_t dim = dims[plane % 2];

		for (uint32_t head = 0; head < g->kv_heads && dim; head++)
			sum += packs_in(g, g->block_tokens * dim, image_pack_tokens(dim) * dim,
					scales);
	}
	return sum;
}

int image_packs_fit(const struct image_geometry *g, const struct image_shape *shape,
		    const uint8_t *scales)
{
	uint64_t sum = layers_in(g, g->layers, &scales);

	for (uint32_t i = 0; i < g->typed_segments; i++)
		sum += packs_in(g, g->typed_values, IMAGE_PACK_TYPED, &scales);
	return sum + IMAGE_PACK_SPARE + g->opaque_bytes == shape->payload_bytes;
}

/* Whether the far part is as long as the pack's bits say. */
static int pack_is_right(uint32_t dtype, uint32_t n, uint32_t far, const uint8_t *pack)
{
	const uint32_t steps = divided_up(n, LOSSLESS_STEP);
	const uint8_t *near = pack + (size_t)steps * (lossless_step_bytes(dtype == DTYPE_FP16) -
						      LOSSLESS_NEAR_BYTES);
	const uint8_t *fars = near + (size_t)steps * LOSSLESS_NEAR_BYTES;
	uint32_t not_near = 0, beyond = 0, bytes;
	uint64_t words[3];

	for (; near < fars; near += LOSSLESS_NEAR_BYTES) {
		memcpy(words, near, LOSSLESS_NEAR_BYTES);
		not_near += (uint32_t)__builtin_popcountll(words[0] & words[1]);
	}
	bytes = divided_up(not_near, LOSSLESS_STEP) * LOSSLESS_FAR_BYTES;
	if (bytes > far)
		return 0;
	for (uint32_t at = 0; at < bytes; at += LOSSLESS_FAR_BYTES) {
		const uint32_t left = not_near - at / LOSSLESS_FAR_BYTES * LOSSLESS_STEP;

		memcpy(words, fars + at, LOSSLESS_FAR_BYTES);
		words[0] &= left < LOSSLESS_STEP ? (1ull << left) - 1 : ~0ull;
		beyond += (uint32_t)__builtin_popcountll(words[0] & words[1] & words[2]);
	}
	return bytes + beyond == far;
}

/* The packs of so many values; their scales and bytes are at *scales and *pack, which move on. */
static int packs_are_right(const struct image_geometry *g, uint32_t values, uint32_t most,
			   const uint8_t **scales, const uint8_t **pack)
{
	for (; values; *scales += IMAGE_PACK_SCALES) {
		const uint32_t n = values < most ? values : most, far = image_pack_far(*scales);

		if (!pack_is_right(g->dtype, n, far, *pack))
			return 0;
		*pack += image_pack_bytes(g->dtype, n, far);
		values -= n;
	}
	return 1;
}

int image_packs_are_right(const struct image_geometry *g, const struct image_shape *shape,
			  const uint8_t *image)
{
	const uint32_t dims[2] = { g->head_dim_k, g->head_dim_v };
	const uint8_t *scales = image + sizeof(struct image_header),
		      *pack = image + shape->payload_offset;
	int right = image_packs_fit(g, shape, scales);

	for (uint32_t i = 0; right && i < 2 * g->layers * g->kv_heads; i++) {
		const uint32_t dim = dims[i / g->kv_heads % 2];

		right = !dim || packs_are_right(g, g->block_tokens * dim,
						image_pack_tokens(dim) * dim, &scales, &pack);
	}
	for (uint32_t i = 0; right && i < g->typed_segments; i++)
		right = packs_are_right(g, g->typed_values, IMAGE_PACK_TYPED, &scales, &pack);
	return right;
}

void image_layer_at(const struct image_geometry *g, enum image_codec codec_k,
		    enum image_codec codec_v, uint32_t layer, const uint8_t *scales,
		    uint32_t *ret_scale, uint32_t *ret_payload)
{
	const uint32_t heads = layer * g->kv_heads;

	*ret_scale = heads * (head_scales(g, codec_k, g->head_dim_k) +
			      head_scales(g, codec_v, g->head_dim_v));
	*ret_payload = heads * g->block_tokens *
		       (image_row_bytes(codec_k, g->dtype, g->head_dim_k) +
			image_row_bytes(codec_v, g->dtype, g->head_dim_v));
	if (codec_k == CODEC_LOSSLESS) /* no more than all of the payload: they fit */
		*ret_payload = (uint32_t)layers_in(g, layer, &scales);
}

void image_header_fill(struct image_header *ret, const struct image_geometry *g,
		       enum image_codec codec_k, enum image_codec codec_v,
		       const struct image_shape *shape, const struct image_identity *identity)
{
	*ret = (struct image_header){
		.magic = IMAGE_MAGIC,
		.version = IMAGE_VERSION,
		.codec_k = (uint8_t)codec_k,
		.codec_v = (uint8_t)codec_v,
		.dtype = (uint8_t)g->dtype,
		.layers = (uint16_t)g->layers,
		.kv_heads = (uint16_t)g->kv_heads,
		.tokens_valid = (uint16_t)g->block_tokens,
		.tokens_total = (uint16_t)g->block_tokens,
		.head_dim_k = (uint16_t)g->head_dim_k,
		.head_dim_v = (uint16_t)g->head_dim_v,
		.scale_bytes = shape->scale_bytes,
		.payload_bytes = shape->payload_bytes,
		.logical_bytes = shape->logical_bytes,
		.typed_segments = g->typed_segments,
		.typed_values = g->typed_values,
		.opaque_bytes = g->opaque_bytes,
	};
	memcpy(ret->space_id, identity->space_id, sizeof(ret->space_id));
	memcpy(ret->key, identity->key, sizeof(ret->key));
	image_seal(ret, 0);
}

void image_seal(struct image_header *header, uint64_t checksum)
{
	header->checksum = checksum;
	header->header_crc = image_crc32c(header, offsetof(struct image_header, header_crc));
}

int image_header_shape(const struct image_header *header, const struct image_geometry *g,
		       struct image_shape *ret)
{
	if (image_shape(g, header->codec_k, header->codec_v, ret, NULL))
		return -EBADMSG;
	if (header->codec_k != CODEC_LOSSLESS)
		return 0;
	if (header->payload_bytes > ret->payload_bytes ||
	    header->payload_bytes < packs_payload(g, 0))
		return -EBADMSG;
	image_shape_cut(ret, header->payload_bytes);
	return 0;
}

void image_shape_cut(struct image_shape *shape, uint32_t payload_bytes)
{
	const uint32_t cut = shape->payload_bytes - payload_bytes;

	shape->payload_bytes -= cut;
	shape->image_bytes -= cut;
	shape->packed_bytes -= cut;
}

int image_header_check(const struct image_header *header, const struct image_geometry *geometry,
		       const struct image_identity *identity, struct image_shape *ret_shape)
{
	struct image_header h, want;
	struct image_shape shape;

	memcpy(&h, header, sizeof(h)); /* one read: bytes are used as checked */
	if (image_header_shape(&h, geometry, &shape))
		return -EBADMSG;
	/* The only good header with these codecs, this checksum and, if it is lossless, payload. It
	 * is compared whole, so no field is forgotten. */
	image_header_fill(&want, geometry, h.codec_k, h.codec_v, &shape, identity);
	image_seal(&want, h.checksum);
	if (memcmp(&h, &want, sizeof(h)))
		return -EBADMSG;
	*ret_shape = shape;
	return 0;
}

void image_header_geometry(const struct image_header *header, struct image_geometry *ret)
{
	*ret = (struct image_geometry){
		.dtype = header->dtype,
		.layers = header->layers,
		.kv_heads = header->kv_heads,
		.head_dim_k = header->head_dim_k,
		.head_dim_v = header->head_dim_v,
		.block_tokens = header->tokens_total,
		.typed_segments = header->typed_segments,
		.typed_values = header->typed_values,
		.opaque_bytes = header->opaque_bytes,
	};
}

/* Appends a piece at `at`. Returns its bytes. */
static uint64_t add_piece(const struct image_geometry *g, uint8_t *at, uint32_t kind,
			  uint32_t layer, struct page_piece *ret)
{
	const uint64_t value = image_element_bytes(g->dtype),
		       row = value * (kind == KIND_K ? g->head_dim_k :
				      kind == KIND_V ? g->head_dim_v :
						       0),
		       length = kind == KIND_TYPED  ? g->typed_values :
				kind == KIND_OPAQUE ? g->opaque_bytes :
						      0;

	*ret = (struct page_piece){ .base = at,
				    .head_stride = row * g->block_tokens,
				    .token_stride = row,
				    .length = length,
				    .kind = kind,
				    .layer = layer };
	return row * g->block_tokens * g->kv_heads + length * (kind == KIND_TYPED ? value : 1);
}

uint64_t image_order_pieces(const struct image_geometry *g, uint8_t *page,
			    struct page_piece *pieces, uint32_t *ret_n)
{
	const uintptr_t start = (uintptr_t)page; /* which may be NULL, for sums alone */
	uint64_t bytes = 0;
	uint32_t n = 0;

	for (uint32_t layer = 0; layer < g->layers; layer++) {
		if (g->head_dim_k)
			bytes += add_piece(g, (uint8_t *)(start + bytes), KIND_K, layer,
					   &pieces[n++]);
		if (g->head_dim_v)
			bytes += add_piece(g, (uint8_t *)(start + bytes), KIND_V, layer,
					   &pieces[n++]);
	}
	for (uint32_t i = 0; i < g->typed_segments; i++)
		bytes += add_piece(g, (uint8_t *)(start + bytes), KIND_TYPED, 0, &pieces[n++]);
	if (g->opaque_bytes)
		bytes += add_piece(g, (uint8_t *)(start + bytes), KIND_OPAQUE, 0, &pieces[n++]);
	*ret_n = n;
	return bytes;
}

uint64_t image_checksum(const uint8_t *image, const struct image_shape *shape)
{
	XXH3_state_t state;

	XXH3_INITSTATE(&state);
	(void)XXH3_64bits_reset(&state);
	(void)XXH3_64bits_update(&state, image + shape->payload_offset, shape->payload_bytes);
	(void)XXH3_64bits_update(&state, image + sizeof(struct image_header), shape->scale_bytes);
	return XXH3_64bits_digest(&state);
}

/* CRC-32C (Castagnoli, reflected 0x82f63b78), four bits a step: headers are short. */
uint32_t image_crc32c_portable(const void *bytes, size_t n)
{
	static const uint32_t nibble[16] = {
		0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
		0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
		0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
	};

	const uint8_t *p = bytes;
	uint32_t crc = ~0u;

	for (; n; n--, p++) {
		crc ^= *p;
		crc = crc >> 4 ^ nibble[crc & 15];
		crc = crc >> 4 ^ nibble[crc & 15];
	}
	return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(const uint8_t *p, size_t n)
{
	uint64_t crc64 = ~0u, word;
	uint32_t crc;

	for (; n >= sizeof(word); n -= sizeof(word), p += sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		crc64 = _mm_crc32_u64(crc64, word);
	}
	crc = (uint32_t)crc64;
	for (; n; n--, p++)
		crc = _mm_crc32_u8(crc, *p);
	return ~crc;
}
#endif

uint32_t image_crc32c(const void *bytes, size_t n)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("sse4.2"))
		return crc32c_sse42(bytes, n);
#endif
	return image_crc32c_portable(bytes, n);
}
