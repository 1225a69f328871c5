/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_opening.c - see nvme_opening.h.
 *
 *  ASKED ──thread ends──> ANSWERED ──> the asker takes the file, and frees the opening
 *     └──asker leaves──> LEFT ──thread ends, some day──> the thread closes and frees all
 *
 * The lock guards `state`.
 */
#include "nvme_opening.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvme_format.h"
#include "daemon/base/thread.h"

enum open_state { ASKED, ANSWERED, LEFT };

enum { TEXT_BYTES = 256, PATH_BYTES = 256, SUPERS_BYTES = NVME_SUPER_COPIES * NVME_PAGE };

struct nvme_opening {
	pthread_mutex_t lock;
	pthread_cond_t answered;
	enum open_state state;
	char path[PATH_BYTES];
	uint64_t bytes;
	enum nvme_file_use use;
	struct nvme_file file;
	uint8_t *supers; /* SUPERS_BYTES; of a disk that comes back */
	int status;
	char text[TEXT_BYTES];
};

static void job_free(struct nvme_opening *job)
{
	(void)pthread_cond_destroy(&job->answered);
	(void)pthread_mutex_destroy(&job->lock);
	free(job->supers);
	free(job);
}

static int do_open(struct nvme_opening *job)
{
	int r = nvme_file_open(job->path, job->bytes, job->use, &job->file, job->text,
			       sizeof(job->text));

	if (r || job->use != NVME_FILE_RETURNED)
		return r;
	r = nvme_file_supers(&job->file, job->supers, job->text, sizeof(job->text));
	if (r)
		nvme_file_close(&job->file);
	return r;
}

static void *run(void *arg)
{
	struct nvme_opening *job = arg;
	const int r = do_open(job);
	bool left;

	pthread_mutex_lock(&job->lock);
	job->status = r;
	left = job->state == LEFT;
	job->state = ANSWERED;
	pthread_cond_signal(&job->answered);
	pthread_mutex_unlock(&job->lock);
	if (!left)
		return NULL;
	if (!r)
		nvme_file_discard(job->path, &job->file);
	job_free(job);
	return NULL;
}

static struct timespec after(uint64_t ns)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	ns += (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	t.tv_sec = (time_t)(ns / 1000000000u);
	t.tv_nsec = (long)(ns % 1000000000u);
	return t;
}

static struct nvme_opening *job_new(const char *path, uint64_t bytes, enum nvme_file_use use)
{
	struct nvme_opening *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	(void)pthread_mutex_init(&job->lock, NULL);
	thread_cond_open(&job->answered);
	(void)snprintf(job->path, sizeof(job->path), "%s", path);
	job->bytes = bytes;
	job->use = use;
	job->file.fd = -1;
	if (use != NVME_FILE_RETURNED)
		return job;
	job->supers = aligned_alloc(NVME_PAGE, SUPERS_BYTES);
	if (job->supers)
		return job;
	job_free(job);
	return NULL;
}

static int begin(const char *path, uint64_t bytes, enum nvme_file_use use,
		 struct nvme_opening **ret)
{
	struct nvme_opening *job = job_new(path, bytes, use);
	int r = job ? thread_start(NULL, 0, run, job) : -ENOMEM;

	if (!r)
		*ret = job;
	else if (job)
		job_free(job);
	return r;
}

/* Of an opening that was answered. */
static int take(struct nvme_opening *job, struct nvme_file *ret, char *text, size_t n)
{
	const int r = job->status;

	*ret = job->file;
	(void)snprintf(text, n, "%s", job->text);
	job_free(job);
	return r;
}

int nvme_opening_wait(const char *path, uint64_t bytes, uint64_t timeout_ns, struct nvme_file *ret,
		      char *text, size_t n)
{
	const struct timespec until = after(timeout_ns);
	struct nvme_opening *job;
	int r = begin(path, bytes, NVME_FILE_STORE, &job);

	if (r) {
		(void)snprintf(text, n, "no memory or thread to open it with");
		return r;
	}
	pthread_mutex_lock(&job->lock);
	while (job->state == ASKED &&
	       pthread_cond_timedwait(&job->answered, &job->lock, &until) != ETIMEDOUT)
		;
	if (job->state == ASKED) {
		job->state = LEFT;
		pthread_mutex_unlock(&job->lock);
		(void)snprintf(
			text, n,
			"the disk did not answer within %d s: look at it, and restart kvtierd when "
			"it does",
			(int)(timeout_ns / 1000000000u));
		return -ETIMEDOUT;
	}
	pthread_mutex_unlock(&job->lock);
	return take(job, ret, text, n);
}

int nvme_opening_begin(const char *path, struct nvme_opening **ret)
{
	return begin(path, 0, NVME_FILE_RETURNED, ret);
}

int nvme_opening_ended(struct nvme_opening *o, struct nvme_file *ret, uint8_t *supers, char *text,
		       size_t n)
{
	bool ended;

	pthread_mutex_lock(&o->lock);
	ended = o->state == ANSWERED;
	pthread_mutex_unlock(&o->lock);
	if (!ended)
		return -EINPROGRESS;
	memcpy(supers, o->supers, SUPERS_BYTES);
	return take(o, ret, text, n);
}

void nvme_opening_leave(struct nvme_opening *o)
{
	bool ended;

	if (!o)
		return;
	pthread_mutex_lock(&o->lock);
	ended = o->state == ANSWERED;
	o->state = ended ? ANSWERED : LEFT;
	pthread_mutex_unlock(&o->lock);
	if (!ended)
		return;
	if (!o->status)
		nvme_file_close(&o->file);
	job_free(o);
}
