/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_copier.h - workers for an emptier (daemon/store/emptier.h) whose jobs end when the test says
 * so; and the size of their jobs, in bytes.
 */
#ifndef KVTIER_TESTS_LIB_COPIER_H
#define KVTIER_TESTS_LIB_COPIER_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/device/device.h"
#include "daemon/store/emptier.h"

struct copier {
	struct device_job *jobs[EMPTIER_JOBS];
	uint32_t n;
	bool full; /* takes no job */
	uint64_t jobs_total, bytes_total;
	uint64_t most_bytes; /* of one job */
	uint32_t most_copies, most_jobs;
};

int copier_submit(void *copier, struct device_job *job);
/* One job ends, copied or with an error. */
void copier_end(struct copier *c, uint32_t which, int status);
/* All jobs end, and the jobs that follow from them. */
void copier_run(struct copier *c);

#endif
