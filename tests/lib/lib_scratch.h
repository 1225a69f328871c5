/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_scratch.h - a directory of a test's own. A directory that cannot be made or removed ends the
 * test's process with a message.
 */
#pragma once

#include <stddef.h>

enum { SCRATCH_BYTES = 64 }; /* enough for one in /tmp */

/* An empty directory in `parent`, mode 0700; its path into ret, n bytes. */
void scratch_make(const char *parent, char *ret, size_t n);
/* $TMPDIR, unless it is too long for a socket in it or not set: then `otherwise`. */
const char *scratch_parent(const char *otherwise);
/* Removes the directory and all in it; only a directory of scratch_make(). */
void scratch_remove(const char *dir);
