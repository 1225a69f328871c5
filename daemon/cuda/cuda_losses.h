/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_losses.h - when a GPU's last contexts broke. A kvtierd that ends because of a GPU leaves the
 * times in [daemon] state_dir for the next one: a GPU that breaks each new process stays out, too,
 * and kvtierd is not started again and again. The GPU's thread.
 */
#ifndef KVTIER_CUDA_LOSSES_H
#define KVTIER_CUDA_LOSSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CUDA_LOSSES_MAX = 3 /* so many within a minute, and the GPU stays out */ };

/* CLOCK_MONOTONIC, the oldest first; 0: none. */
struct cuda_losses {
	uint64_t at_ns[CUDA_LOSSES_MAX];
};

void cuda_losses_add(struct cuda_losses *losses, uint64_t now_ns);
/* The last ones were within a minute, and so is now. */
bool cuda_losses_are_many(const struct cuda_losses *losses, uint64_t now_ns);
/* Of another boot, or unreadable: none. */
void cuda_losses_load(struct cuda_losses *ret, const char *state_dir, const uint8_t *uuid,
		      uint64_t now_ns);
/* 0 or -errno */
int cuda_losses_save(const struct cuda_losses *losses, const char *state_dir, const uint8_t *uuid);

#endif
