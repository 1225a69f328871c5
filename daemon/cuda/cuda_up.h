/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_up.h - brings the GPUs up at start: the driver is looked for, and each GPU becomes a device.
 * Core thread. The host tier stays open until the devices are closed: GPUs register its memory.
 *
 * A thread of its own looks for the driver, which may take as long as it likes. A driver that is
 * there and not ready (no fabric manager yet, no device node, an MPS server that recovers) is asked
 * again: after 1 s, 2 s, 4 s, ... at last once a minute.
 *
 *	cuda_up: the first answer --ready--> the driver
 *		  `--not ready soon--> asked on, beside the daemon's work
 *		      `--cuda_search_look: ready--> the devices of this daemon are made at
 *			 its start: only a new process can serve the GPUs
 */
#pragma once

#include <stddef.h>

#include "daemon/device/device.h"

struct config;
struct cuda_search;
struct loop;
struct tier;

/* 0: `devices` has the GPUs, or devices->gpu_note says why it has none. In the second case
 * *ret_search may still look for them (NULL: it does not). -errno with text: there is no GPU,
 * though [gpu] devices = required. */
int cuda_up(const struct config *config, struct tier *host, struct loop *loop,
	    struct devices *devices, struct cuda_search **ret_search, char *text, size_t n);

enum cuda_search_news {
	CUDA_SEARCH_NONE,  /* there is no search (NULL), or it has found no GPUs so far */
	CUDA_SEARCH_WAITS, /* it has found no GPUs so far, but this is a machine with GPUs */
	CUDA_SEARCH_READY, /* it has GPUs now, that kvtierd can use */
};
/* How the search stands, with text. Without a search the text is left alone. */
enum cuda_search_news cuda_search_look(struct cuda_search *search, char *text, size_t n);
/* Its thread may be left behind in a call of the driver. search may be NULL. */
void cuda_search_close(struct cuda_search *search);
