/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_gpu_pin.h - what tests of pinned host memory share: a daemon whose host tier has many pieces
 * to register, engines with images that are large enough to cross the wire directly, and what the
 * daemon says of its copies. Helpers end the test when they cannot do their part.
 */
#ifndef KVTIER_TESTS_LIB_GPU_PIN_H
#define KVTIER_TESTS_LIB_GPU_PIN_H

#include "lib_gpu_engine.h"

enum {
	PIN_MIB = 32, /* of the host tier, in as many pieces */
	PIN_BYTES = PIN_MIB << 20,
	PIN_BLOCKS = 5,
	PIN_PAGES = 2 * PIN_BLOCKS,
	PIN_LAYERS = 8,             /* an FP8 image of the least size that goes directly, ... */
	PIN_KIB = 256 * PIN_BLOCKS, /* ...and so many of them */
	PIN_LAYERS_MANY = 40,       /* one that has to be cut */
};

struct kvtier_geometry pin_geometry(uint32_t codec, uint32_t layers);
/* kvtierd with these settings of the driver, and these lines behind its section [host]. */
void pin_start(struct daemon *d, const char *settings, const char *host);
/* The same, after daemon_place(). */
void pin_start_placed(struct daemon *d, const char *settings, const char *host);
/* Its ops have ended, and it stops: pin_clean(). */
void pin_stop(struct daemon *d);
/* The driver's report has no complaint of it: nothing was freed under a copy, nothing left behind,
 * no copy of a payload went to or from pageable memory. */
void pin_clean(void);
/* All of the host tier is registered, or so many MiB of it. */
void pin_becomes(const struct daemon *d, uint64_t mib);

/* Payload of images that crossed the wire, in all so many KiB: stored and loaded, directly and by
 * way of a buffer. Waits until it is so, and none of it more. */
void pin_copied(const struct daemon *d, uint64_t direct_out, uint64_t direct_in,
		uint64_t bounced_out, uint64_t bounced_in);

/* On this GPU: its context is the thread's current one afterwards. */
void pin_open(struct gpu_engine *ge, const struct gpu *gpu, const char *socket,
	      const struct kvtier_geometry *g);
void pin_store(struct gpu_engine *ge, uint64_t chain);
void pin_load(struct gpu_engine *ge, uint64_t chain); /* all of it, the bytes compared */
void pin_close(struct gpu_engine *ge);

#endif
