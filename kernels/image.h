/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.h - the image: one encoded block, byte-identical in every tier. Format: daemon/IMAGE.md.
 *
 *	0         struct image_header, 128 bytes
 *	128       scales: one E8M0 byte per (layer, K|V, head, 16-token group), or for int8 per
 *	          (layer, K|V, head, 64-token group, channel); for k4 three bytes for each of the
 *	          latter; for v4 one per 32 values of a token; then one per 1,024 values of each
 *	          typed segment; for lossless three bytes per pack; none for raw and fp8-native
 *	payload_offset (a multiple of 4 KiB)
 *	          payload: [layer][K|V][head][token][dim], then typed, then opaque bytes
 *
 * A lossless image is as long as its values need, up to the size that image_shape() gives. Its
 * header says how long.
 *
 * Everything here is pure arithmetic on private memory: any thread, no allocation, no I/O.
 */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum {
	IMAGE_MAGIC = 0x4d49564b, /* "KVIM" */
	IMAGE_VERSION = 1,
	IMAGE_ALIGN = 4096,
	IMAGE_GROUP_TOKENS = 16,
	IMAGE_CHANNEL_TOKENS = 64, /* int8, k4: of a channel, in a group */
	IMAGE_K4_SCALES = 3,  /* bytes of scales of a channel: its least value, 2, and its step */
	IMAGE_V4_VALUES = 32, /* of a token, in a group */
	IMAGE_GROUP_TYPED = 1024,
	/* A pack of a lossless image (lossless.h) has 64 tokens of a head, or as many as have at
	 * most 40,960 values; or 4,096 values of a typed segment. */
	IMAGE_PACK_TOKENS = 64,
	IMAGE_PACK_VALUES = 40960,
	IMAGE_PACK_TYPED = 4096,
	IMAGE_PACK_SCALES = 3, /* bytes of scales: the base, and the length of the far part */
	IMAGE_PACK_ALIGN = 8,
	/* An image has room for so many bytes of far part a step, in the mean. Real KV takes 8 to
	 * 10. */
	IMAGE_PACK_FAR = 12,
	IMAGE_PACK_SPARE = 64, /* zeros at the end of the payload, which decoders may read */
	IMAGE_MAX_BYTES = 256 << 20,
	IMAGE_MAX_LAYERS = 1024,
	IMAGE_MAX_HEADS = 1024,
	IMAGE_MAX_HEAD_DIM = 4096,
	IMAGE_MAX_TOKENS = 4096,
	IMAGE_MAX_SEGMENTS = 2048, /* typed ones */
};

/* The values of enum kvtier_dtype and enum kvtier_codec in client/kvtier.h; they are on disk. */
enum image_dtype { DTYPE_BF16 = 1, DTYPE_FP16, DTYPE_FP32, DTYPE_E4M3, DTYPE_E5M2, DTYPE_INT8 };
enum image_codec {
	CODEC_RAW = 1,
	CODEC_FP8 = 2,
	CODEC_FP8_NATIVE = 3,
	CODEC_LOSSLESS = 4, /* of K, V and typed values, or of none of them */
	CODEC_INT8 = 5,     /* of planes; typed values are fp8 beside it */
	CODEC_K4 = 6,       /* of K planes; typed values are fp8 beside it */
	CODEC_V4 = 7,       /* of V planes */
};
/* Whether values of 16 bits become fewer, with scales. */
static inline int image_codec_scales(enum image_codec codec)
{
	return codec == CODEC_FP8 || (codec >= CODEC_INT8 && codec <= CODEC_V4);
}
/* Whether the scales are of channels of up to 64 tokens. */
static inline int image_codec_channels(enum image_codec codec)
{
	return codec == CODEC_INT8 || codec == CODEC_K4;
}
/* Codecs of spaces, with the numbers of enum kvtier_codec. */
enum {
	CODECS_RAW = CODEC_RAW,
	CODECS_FP8 = CODEC_FP8,
	CODECS_FP8_NATIVE = CODEC_FP8_NATIVE,
	CODECS_LOSSLESS = CODEC_LOSSLESS,
	CODECS_INT8 = CODEC_INT8,
	CODECS_Q4 = 6,     /* k4 and v4 */
	CODECS_INT8V4 = 7, /* int8 and v4 */
};
struct image_codecs {
	enum image_codec k, v; /* k: of typed values, too */
};
static inline struct image_codecs image_codecs(uint32_t number)
{
	const enum image_codec other = (enum image_codec)number;
	struct image_codecs ret = { other, other };

	if (number == CODECS_Q4)
		ret.k = CODEC_K4;
	if (number == CODECS_INT8V4)
		ret.k = CODEC_INT8;
	if (number == CODECS_Q4 || number == CODECS_INT8V4)
		ret.v = CODEC_V4;
	return ret;
}

enum image_kind { KIND_K = 1, KIND_V = 2, KIND_TYPED = 3, KIND_OPAQUE = 4 };

struct image_header {
	uint32_t magic;
	uint16_t version;
	/* of this image: CODEC_RAW where its space's codec could not hold it. Typed values follow
	 * codec_k, and are fp8 where that is int8 */
	uint8_t codec_k, codec_v;
	uint8_t dtype, flags; /* flags: 0 */
	uint16_t layers, kv_heads;
	uint16_t tokens_valid, tokens_total;
	uint16_t head_dim_k, head_dim_v;
	uint16_t reserved0;
	uint32_t scale_bytes;
	uint32_t payload_bytes;
	uint32_t logical_bytes;
	uint32_t typed_segments;
	uint8_t space_id[32];
	uint8_t key[32];
	uint32_t typed_values;
	uint32_t opaque_bytes;
	uint64_t checksum; /* see image_checksum() */
	uint32_t reserved1;
	uint32_t header_crc; /* crc32c of the 124 bytes before */
};
static_assert(sizeof(struct image_header) == 128, "image_header");

/* All that the bytes of an image depend on, beside the codec. */
struct image_geometry {
	uint32_t dtype, layers, kv_heads, head_dim_k, head_dim_v, block_tokens;
	uint32_t typed_segments, typed_values, opaque_bytes;
};

/* The geometry in a struct kvtier_geometry or wire_geometry. */
#define IMAGE_GEOMETRY(g)                                                                 \
	(struct image_geometry)                                                           \
	{                                                                                 \
		.dtype = (g)->dtype, .layers = (g)->layers, .kv_heads = (g)->kv_heads,    \
		.head_dim_k = (g)->head_dim_k, .head_dim_v = (g)->head_dim_v,             \
		.block_tokens = (g)->block_tokens, .typed_segments = (g)->typed_segments, \
		.typed_values = (g)->typed_values, .opaque_bytes = (g)->opaque_bytes      \
	}

/* Sizes that follow from geometry and codecs. */
struct image_shape {
	uint32_t element_bytes; /* of the dtype */
	uint32_t groups;        /* 16-token groups a plane: ceil(block_tokens / 16) */
	uint32_t scale_bytes;
	uint32_t payload_offset; /* round_up(128 + scale_bytes, 4096) */
	uint32_t payload_bytes;  /* of a lossless image: the most, until its header is known */
	uint32_t image_bytes;    /* payload_offset + payload_bytes: a slot must hold so many */
	/* 128 + scale_bytes + payload_bytes: unpadded, as in Redis */
	uint32_t packed_bytes;
	uint32_t logical_bytes; /* the block in the engine's dtype, opaque bytes included */
};

/* 0, -EINVAL: a field is out of its limits or the codec does not take the dtype (*ret_field, if not
 * NULL, then names it), -EOVERFLOW: image larger than IMAGE_MAX_BYTES. */
int image_shape(const struct image_geometry *geometry, enum image_codec codec_k,
		enum image_codec codec_v, struct image_shape *ret, const char **ret_field);

/* Where a layer (<= layers) begins in the image's scales and payload, in bytes; `layers`: where the
 * planes end. image_shape() has taken the geometry. Reads `scales`, those of the image, only where
 * it is lossless. */
void image_layer_at(const struct image_geometry *geometry, enum image_codec codec_k,
		    enum image_codec codec_v, uint32_t layer, const uint8_t *scales,
		    uint32_t *ret_scale, uint32_t *ret_payload);

/* Bytes of a token of one head in the payload; of all codecs but lossless. */
uint32_t image_row_bytes(enum image_codec codec, uint32_t dtype, uint32_t dim);
/* Scales of so many tokens of a head, from the first or the 64th, 128th ... on. */
uint32_t image_scale_bytes(enum image_codec codec, uint32_t tokens, uint32_t dim);

/* Tokens of a head in a pack, for a head dim > 0. */
static inline uint32_t image_pack_tokens(uint32_t dim)
{
	return dim * IMAGE_PACK_TOKENS <= IMAGE_PACK_VALUES ? IMAGE_PACK_TOKENS :
							      IMAGE_PACK_VALUES / dim;
}
/* Bytes of a pack of n values whose far part has `far` bytes. */
uint32_t image_pack_bytes(uint32_t dtype, uint32_t n, uint32_t far);
/* The far part's length in a pack's scales. */
static inline uint32_t image_pack_far(const uint8_t scales[IMAGE_PACK_SCALES])
{
	return scales[1] | (uint32_t)scales[2] << 8;
}

uint32_t image_element_bytes(uint32_t dtype); /* 0: there is no such dtype */

/* Where the pieces of one page lie in mapped memory. Built once per opened space. The pieces are
 * in canonical order: layer 0 K, layer 0 V, layer 1 K, and so on, then the typed and the opaque
 * ones in the engine's order. */
struct page_piece {
	uint8_t *base;                                   /* of page 0 */
	uint64_t page_stride, head_stride, token_stride; /* bytes */
	uint64_t length; /* typed: values; opaque: bytes of the run or row */
	uint32_t kind;   /* enum image_kind */
	uint32_t layer;
};

/* The piece in a struct kvtier_segment or wire_segment, whose region begins at `region`. */
#define PAGE_PIECE(s, region)                                                       \
	(struct page_piece)                                                         \
	{                                                                           \
		.base = (region) + (s)->offset, .page_stride = (s)->page_stride,    \
		.head_stride = (s)->head_stride, .token_stride = (s)->token_stride, \
		.length = (s)->length, .kind = (s)->kind, .layer = (s)->layer       \
	}

struct page_layout {
	struct image_geometry geometry;
	uint32_t n_pieces;
	const struct page_piece *pieces;
};

/* The index of a layer's first piece. For `layers` it is that of the first piece that is no plane,
 * or n_pieces. */
static inline uint32_t page_layer_piece(const struct page_layout *layout, uint32_t layer)
{
	const struct image_geometry *g = &layout->geometry;

	return layer * ((g->head_dim_k > 0 ? 1u : 0u) + (g->head_dim_v > 0 ? 1u : 0u));
}

/* The pieces of a page at `page` whose values lie in the image's order, nothing between; there is
 * room for 2 * layers + typed_segments + 1 of them, and *ret_n says how many they are. Returns the
 * bytes of the page. */
uint64_t image_order_pieces(const struct image_geometry *geometry, uint8_t *page,
			    struct page_piece *pieces, uint32_t *ret_n);

/* Identity of a block, written into and checked against its header. */
struct image_identity {
	uint8_t space_id[32];
	uint8_t key[32];
};

/* Fills the whole header but the checksum, and seals it with image_seal(). */
void image_header_fill(struct image_header *ret, const struct image_geometry *geometry,
		       enum image_codec codec_k, enum image_codec codec_v,
		       const struct image_shape *shape, const struct image_identity *identity);
/* sets checksum and header_crc */
void image_seal(struct image_header *header, uint64_t checksum);

/* Checks a header that came from anywhere: magic, version, crc, every field against the geometry
 * and identity expected, sizes recomputed; a lossless payload's size against its limits. 0, or
 * -EBADMSG. On 0 *ret_shape is the image's shape (its codecs may be raw where the space's are not:
 * *header says). Reads only the 128 bytes at `header`. */
int image_header_check(const struct image_header *header, const struct image_geometry *geometry,
		       const struct image_identity *identity, struct image_shape *ret_shape);

/* The shape of an image from its header, which has been checked. 0, or -EBADMSG: it was not. */
int image_header_shape(const struct image_header *header, const struct image_geometry *geometry,
		       struct image_shape *ret);

/* Shortens a lossless image's shape to this payload, which is no longer than the shape's. */
void image_shape_cut(struct image_shape *shape, uint32_t payload_bytes);

/* Whether the packs of a lossless image, whose lengths are in `scales`, fill its payload. */
int image_packs_fit(const struct image_geometry *geometry, const struct image_shape *shape,
		    const uint8_t *scales);

/* Whether they do, and each length is what the pack's bits say. A decoder asks that of each pack
 * before it writes the pack's values. Not 0: yes. */
int image_packs_are_right(const struct image_geometry *geometry, const struct image_shape *shape,
			  const uint8_t *image);

/* The geometry that a header claims, unchecked. For a caller that knows only the key. */
void image_header_geometry(const struct image_header *header, struct image_geometry *ret);

/* XXH3-64 over payload, then scales (not the padding between). Payload first so that a single pass
 * over the pages can make it: scales are complete only after the last plane. */
uint64_t image_checksum(const uint8_t *image, const struct image_shape *shape);

/* CRC-32C (Castagnoli); with the CPU's instruction where there is one. */
uint32_t image_crc32c(const void *bytes, size_t n);
/* the same in plain C, whatever the CPU has */
uint32_t image_crc32c_portable(const void *bytes, size_t n);
