/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_gpu_tier.h - the memory that a daemon has for images on the emulated GPU, seen from outside.
 * Helpers end the test when they cannot do their part.
 */
#pragma once

#include "lib.h"

/* The daemon's allocation of at least so many bytes, and less than a MiB more: a descriptor, which
 * is the caller's. */
int gpu_tier_memory(const struct daemon *d, size_t bytes);
/* All of it; the caller frees it. */
uint8_t *gpu_tier_read(const struct daemon *d, size_t bytes, size_t *ret_bytes);
/* A bit flips in the image whose payload begins with these `n` bytes, `offset` bytes behind the
 * payload's first. There must be one such image. */
void gpu_tier_damage(const struct daemon *d, size_t bytes, const void *payload, size_t n,
		     size_t offset);
