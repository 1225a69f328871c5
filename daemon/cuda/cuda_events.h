/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_events.h - events of engines, opened in the daemon's context: a job waits for one of them
 * before its page is touched. Helper threads.
 *
 *	helper: cuda_events_import --request--> thread: opens them
 *	helper: cuda_events_release --request--> thread: closes them
 *
 * As of memory (cuda_region.h), an import that nobody waits for any more is undone by the thread.
 */
#ifndef KVTIER_CUDA_EVENTS_H
#define KVTIER_CUDA_EVENTS_H

#include "cuda_gpu.h"

struct cuda_events {
	struct cuda_request request;
	int status;
	char text[200];
	uint32_t generation; /* of the context that they are open in */
	uint32_t n;
	uint8_t handles[WIRE_MAX_EVENTS][WIRE_HANDLE_BYTES];
	CUevent events[WIRE_MAX_EVENTS];
};

/* As in device.h. */
int cuda_events_import(struct cuda_gpu *gpu, const uint8_t (*handles)[WIRE_HANDLE_BYTES],
		       uint32_t n, struct cuda_events **ret, char *text, size_t text_bytes);
void cuda_events_release(struct cuda_gpu *gpu, struct cuda_events *events);

#endif
