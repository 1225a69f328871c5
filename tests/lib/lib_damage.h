/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_damage.h - bits that flip in a daemon's host memory, by /proc/PID/mem.
 */
#ifndef KVTIER_TESTS_LIB_DAMAGE_H
#define KVTIER_TESTS_LIB_DAMAGE_H

#include "lib.h"

/* One bit of the image of this block, `offset` bytes from its start. Skips the test where the
 * daemon's memory cannot be written; ends it where the image is not there. */
void damage_image(const struct daemon *d, const uint8_t key[32], long offset);

#endif
