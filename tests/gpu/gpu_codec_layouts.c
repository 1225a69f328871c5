/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: the CUDA kernels make ref.c's images of every layout that engines use, and restore them.
 * Method: each layout of lib_pages.c, at each codec that its dtype takes, at several alignments.
 * The kernels run on the host (tests/gpu/host), on 1 to 16 blocks, and may touch the bytes of the
 * page's rows and of the image alone.
 */
#include "tests/lib/lib_cuda_codec.h"
#include "tests/lib/test.h"

static void all_layouts(struct cuda_bed *b, uint32_t dtype, enum image_codec codec_k,
			enum image_codec codec_v)
{
	const uint32_t element = image_element_bytes(dtype);
	/* fast; 8 bytes off; the alignment of the dtype and no more */
	const uint64_t shifts[] = { 0, 8, element, 3 * element };

	for (uint32_t i = 0; i < pages_named_n; i++)
		for (uint32_t s = 0; s < 4; s++) {
			pages_make(&b->pages, &pages_named[i], dtype, CUDA_BED_DEVICE, 2,
				   shifts[s]);
			if (image_shape(&b->pages.layout.geometry, codec_k, codec_v, &b->shape,
					NULL)) {
				/* there are no planes; or packs are mostly empty */
				assert_true(image_codec_channels(codec_k) ||
					    codec_k == CODEC_LOSSLESS);
				continue;
			}
			if (!cuda_bed_plan(b, codec_k, codec_v))
				continue;
			cuda_bed_fill(b);
			if (cuda_bed_both(b, codec_k, codec_v))
				assert_true(image_codec_scales(codec_k) ||
					    image_codec_scales(codec_v) ||
					    codec_k == CODEC_LOSSLESS);
		}
}

TEST_DO(bf16_as_fp8, all_layouts(*state, DTYPE_BF16, CODEC_FP8, CODEC_FP8));
TEST_DO(fp16_as_fp8, all_layouts(*state, DTYPE_FP16, CODEC_FP8, CODEC_FP8));
TEST_DO(one_of_k_and_v_as_fp8, all_layouts(*state, DTYPE_BF16, CODEC_FP8, CODEC_RAW);
	all_layouts(*state, DTYPE_FP16, CODEC_RAW, CODEC_FP8));
TEST_DO(bf16_as_int8, all_layouts(*state, DTYPE_BF16, CODEC_INT8, CODEC_INT8));
TEST_DO(fp16_as_int8, all_layouts(*state, DTYPE_FP16, CODEC_INT8, CODEC_INT8));
TEST_DO(bf16_as_lossless, all_layouts(*state, DTYPE_BF16, CODEC_LOSSLESS, CODEC_LOSSLESS));
TEST_DO(fp16_as_lossless, all_layouts(*state, DTYPE_FP16, CODEC_LOSSLESS, CODEC_LOSSLESS));
TEST_DO(k_and_v_of_two_codecs, all_layouts(*state, DTYPE_BF16, CODEC_INT8, CODEC_FP8);
	all_layouts(*state, DTYPE_FP16, CODEC_FP8, CODEC_INT8);
	all_layouts(*state, DTYPE_FP16, CODEC_INT8, CODEC_RAW));
TEST_DO(bf16_in_four_bits, all_layouts(*state, DTYPE_BF16, CODEC_K4, CODEC_V4));
TEST_DO(fp16_in_four_bits, all_layouts(*state, DTYPE_FP16, CODEC_K4, CODEC_V4));
TEST_DO(one_of_k_and_v_in_four_bits, all_layouts(*state, DTYPE_BF16, CODEC_INT8, CODEC_V4);
	all_layouts(*state, DTYPE_FP16, CODEC_K4, CODEC_FP8);
	all_layouts(*state, DTYPE_FP16, CODEC_RAW, CODEC_V4));

TEST(raw_of_every_dtype)
{
	all_layouts(*state, DTYPE_BF16, CODEC_RAW, CODEC_RAW);
	all_layouts(*state, DTYPE_FP32, CODEC_RAW, CODEC_RAW);
	all_layouts(*state, DTYPE_INT8, CODEC_RAW, CODEC_RAW);
}

TEST_DO(fp8_native, all_layouts(*state, DTYPE_E4M3, CODEC_FP8_NATIVE, CODEC_FP8_NATIVE);
	all_layouts(*state, DTYPE_E5M2, CODEC_FP8_NATIVE, CODEC_FP8_NATIVE));

TEST_GROUP(cuda_bed_begin, cuda_bed_end);
