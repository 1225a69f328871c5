/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_derive.h - values that the configuration leaves to the place where the daemon runs:
 * directories, sockets, spinning; and figures that follow from several keys.
 */
#ifndef KVTIER_CONFIG_DERIVE_H
#define KVTIER_CONFIG_DERIVE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "tiers/tier.h"
#include "config.h"

/* Fills keys that were left empty or automatic (paths, spin_us) from the environment. Makes nothing
 * on disk. -ENAMETOOLONG: a path does not fit; -ENOENT: no directory can be made out. */
int config_derive(struct config *config, char *text, size_t n);

/* [host], as its tier wants it. */
void config_host(const struct config *config, struct tier_conf *ret);
/* [index] max_blocks; if that is 0, the blocks that such a host tier and the NVMe tier may hold. */
uint64_t config_max_blocks(const struct config *config, uint64_t host_bytes);

/* Makes runtime_dir and state_dir (0700, parents too) when absent. -EPERM: it is there but is no
 * directory of ours, or others can write to it. */
int config_make_dirs(const struct config *config, char *text, size_t n);

/* For device_conf.kernels: NULL when automatic. */
const char *config_kernels_name(const struct config *config);

/* A segment size that nobody chose, halved or doubled until a store of so many bytes has at least
 * 4, and no more than it can number; where there is none, the nearest. Also kvtierctl's, for
 * `format`. */
uint64_t config_fit_segment(uint64_t store_bytes, uint64_t segment_bytes);

/* The number of [socket] group; untouched where none is given. -EINVAL with a sentence: there is no
 * such group here. */
int config_group(const struct config *config, gid_t *ret, char *text, size_t n);
/* Says of each store that is there and has another size than [nvme] bytes. */
void config_tell_stores(const struct config *config, FILE *out);

#endif
