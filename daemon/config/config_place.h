/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_place.h - the part of the configuration that depends on where the daemon runs: the
 * environment, directories, stores that are there.
 */
#pragma once

#include <stdio.h>

#include "config.h"

/* Fills in paths that were left empty, from the environment. It changes nothing on disk. 0, or the
 * first error, with all mistakes added to *faults: -ENAMETOOLONG: a path does not fit; -ENOENT: the
 * environment names no directory; -EINVAL: two sockets have one path. */
int config_derive(struct config *config, struct config_notes *faults);

/* Makes runtime_dir and state_dir (0700) and their parents, if they are absent. -EPERM: one is
 * there and is no directory of this user, or others can write to it. */
int config_make_dirs(const struct config *config, char *text, size_t n);

/* Prints a sentence for each store that is there with another size than [nvme] bytes. */
void config_tell_stores(const struct config *config, FILE *out);
