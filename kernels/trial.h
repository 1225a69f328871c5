/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial.h - what each codec makes of blocks that are there as images: bytes, error, speed. For
 * kvtierctl and kvtier-bench; the daemon does not use it.
 *
 * It takes a dump: images of one space, one after the other, each as it lies in memory
 * (daemon/IMAGE.md). Nothing in it is trusted. Each image is verified, and decoded into a page in
 * the image's order of values. The page is encoded with each codec that takes its dtype, and
 * decoded again into another page, which is compared.
 *
 * If the images are lossy, the page has their values, not the engine's. Then errors are beside
 * values that were rounded before, and that of the images' own codec is 0.
 *
 * Any thread, one at a time. Memory is allocated.
 */
#pragma once

#include "kernels.h"

enum trial_kind { TRIAL_K, TRIAL_V, TRIAL_TYPED, TRIAL_KINDS };

/* Sums over all blocks. */
struct trial_result {
	uint32_t blocks;
	uint32_t raw_blocks;   /* the codec could not hold them, so they were kept raw */
	uint64_t page_bytes;   /* in the engine's dtype */
	uint64_t image_bytes;  /* in host memory and on NVMe */
	uint64_t packed_bytes; /* in Redis, uncompressed */
	/* relative errors (RMS); < 0: there are no such values, or all are 0 */
	double error[TRIAL_KINDS];
	double worst[TRIAL_KINDS]; /* of the head, or typed segment, that has most */
	/* seconds of CPU: of one thread; a non-temporal copy of the pages */
	double encode_s, decode_s, copy_s;
};

struct trial;

/* codecs: spaces' codecs to try, 1 << enum kvtier_codec each; UINT32_MAX: all. NULL: no memory. */
struct trial *trial_new(const struct codec_kernels *kernels, uint32_t codecs);
void trial_free(struct trial *trial); /* may be NULL */
/* Takes the next bytes of a dump. 0; -EBADMSG: they are no image of the same space as the first, or
 * it does not verify; -ENOMEM. After an error only trial_free() may follow. */
int trial_feed(struct trial *trial, const uint8_t *bytes, size_t n);
/* The header of the first image, with the codecs of the first that is not raw, if any is not. NULL:
 * there was no image, or the dump ends within one. */
const struct image_header *trial_whole(const struct trial *trial);
/* 0; -EINVAL: the codec was not tried, or does not take this geometry. */
int trial_result(const struct trial *trial, uint32_t codec, struct trial_result *ret);
