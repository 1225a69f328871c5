/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_attempt.h - the attempts of a job, each one a command on one connection, until one of them
 * ends the job. I/O thread only.
 */
#ifndef KVTIER_REDIS_ATTEMPT_H
#define KVTIER_REDIS_ATTEMPT_H

#include "redis_job.h"

void redis_attempt_begin(struct redis_io *io, struct redis_job *job); /* taken from mail.asked */
/* its flag is set; any phase */
void redis_attempt_cancel(struct redis_io *io, struct redis_job *job);

#endif
