/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_search.h - the CUDA driver is looked for, on a thread of its own, since the driver may take
 * as long as it likes. A driver that is there and not ready (no fabric manager yet, no device node,
 * an MPS server that recovers) is asked again: after 1 s, 2 s, 4 s, ... at last once a minute. Core
 * thread.
 *
 *	cuda_search_open: the first answer --ready--> the driver
 *			  `--not ready soon--> asked on, beside the daemon's work
 *			      `--cuda_search_look: ready--> the devices of this daemon are made at
 *				 its start: only a new process can serve the GPUs
 */
#ifndef KVTIER_CUDA_SEARCH_H
#define KVTIER_CUDA_SEARCH_H

#include <stdbool.h>
#include <stddef.h>

struct cuda_driver;
struct cuda_search;

/* Waits for the driver's first answer, and for a driver that is not ready some seconds more; for
 * each answer as long where it is `required`. The driver, which stays for ever; or NULL with text,
 * and *ret (NULL: none) is still looking. */
const struct cuda_driver *cuda_search_open(bool required, struct cuda_search **ret, char *text,
					   size_t n);
enum cuda_search_news {
	CUDA_SEARCH_NONE,  /* there is no search (NULL), or there are no GPUs so far: it goes on */
	CUDA_SEARCH_WAITS, /* likewise, but this is a machine with GPUs */
	CUDA_SEARCH_READY, /* it has GPUs now, that kvtierd can use */
};
/* How it stands, with text, which is left alone if there is no search. */
enum cuda_search_news cuda_search_look(struct cuda_search *search, char *text, size_t n);
/* It may be left behind in a call of the driver. NULL is fine. */
void cuda_search_close(struct cuda_search *search);

#endif
