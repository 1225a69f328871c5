/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_gpu.c - the functions that all files of a GPU share: results of the driver, and the ways to
 * its thread. */
#include "cuda_gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/text.h"
#include "base/thread.h"

enum { NAP_NS = 20000 }; /* between two looks at a stream */
/* The daemon's work on a GPU takes milliseconds. An engine's kernels, or a debugger of its, may
 * keep the GPU for seconds. */
static const uint64_t PATIENCE_NS = 30000000000u;
static const uint64_t LOOK_NS = 1000000000u;

int cuda_check(struct cuda_gpu *gpu, CUresult result, const char *call, char *text, size_t n)
{
	int r;

	if (result == CUDA_SUCCESS)
		return 0;
	r = cuda_error(gpu->api, result, call, gpu->words, sizeof(gpu->words));
	if (text)
		snprintf(text, n, "%s", gpu->words);
	gpu->sick |= cuda_sticky(result);
	if (cuda_sticky(result) && gpu->state != CUDA_FAILING) {
		gpu->state = CUDA_FAILING;
		memcpy(gpu->why, gpu->words, sizeof(gpu->why));
	}
	return r;
}

/* --- waiting for the GPU --- */

bool cuda_stands_still(struct cuda_gpu *gpu, struct cuda_patience *p)
{
	const uint64_t now = clock_ns(), step = p->looked_ns ? now - p->looked_ns : 0;

	p->looked_ns = now;
	p->waited_ns += step < LOOK_NS ? step : LOOK_NS;
	if (p->waited_ns < PATIENCE_NS)
		return false;
	gpu->state = CUDA_FAILING;
	snprintf(gpu->why, sizeof(gpu->why), "the GPU has not ended what it was given for %d s",
		 (int)(PATIENCE_NS / 1000000000u));
	return true;
}

int cuda_wait(struct cuda_gpu *gpu, CUstream stream, char *text, size_t n)
{
	const struct timespec nap = { .tv_nsec = NAP_NS };
	struct cuda_patience patience = { 0 };
	CUresult result;
	int r;

	while ((result = gpu->api->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {
		if (cuda_stands_still(gpu, &patience)) {
			memcpy(gpu->words, gpu->why, sizeof(gpu->words));
			snprintf(text, n, "%s", gpu->why);
			return -EIO;
		}
		(void)nanosleep(&nap, NULL);
	}
	r = cuda_check(gpu, result, "cuStreamQuery", text, n);
	if (r)
		gpu->state = CUDA_FAILING;
	return r;
}

int cuda_zero(struct cuda_gpu *gpu, CUdeviceptr at, uint64_t bytes, char *text, size_t n)
{
	const CUstream aside = gpu->in_context.aside;
	const int r = CUDA_CALL(gpu, cuMemsetD8Async, text, n, at, 0, bytes, aside);

	return r ? r : cuda_wait(gpu, aside, text, n);
}

/* --- others --- */

static void post(struct mailbox *to, struct cuda_mail *mail)
{
	struct mails one;

	mails_clear(&one);
	mails_append(&one, &mail->mail);
	mailbox_post(to, &one);
}

void cuda_gpu_post(struct cuda_gpu *gpu, struct cuda_mail *mail)
{
	post(&gpu->in, mail);
}

static void answer(struct cuda_gpu *gpu, struct cuda_mail *mail)
{
	struct cuda_request *request = container_of(mail, struct cuda_request, mail);
	bool left;

	request->work(gpu, request);
	(void)pthread_mutex_lock(&gpu->lock);
	request->done = true;
	left = request->given_up;
	gpu->unanswered -= left;
	(void)pthread_cond_broadcast(&gpu->answered);
	(void)pthread_mutex_unlock(&gpu->lock);
	if (left)
		request->left(gpu, request);
}

/* With the lock held. */
static int refuse(struct cuda_gpu *gpu, char *text, size_t n)
{
	const int r = gpu->started ? 0 : gpu->start(gpu);
	const uint64_t begun = __atomic_load_n(&gpu->iteration_ns, __ATOMIC_RELAXED);

	if (r)
		return text_fail(text, n, -EAGAIN, "%s: no thread can be made for it: %s",
				 gpu->found->name, strerror(-r));
	if (gpu->unanswered == 0)
		return 0;
	return text_fail(text, n, -EBUSY, "%s: its driver has not answered for %llu s",
			 gpu->found->name,
			 begun ? (unsigned long long)((clock_ns() - begun) / 1000000000u) : 0ull);
}

int cuda_gpu_ask(struct cuda_gpu *gpu, struct cuda_request *request, uint64_t timeout_ns,
		 char *text, size_t n)
{
	const struct timespec due = clock_timespec(clock_ns() + timeout_ns);
	int r;

	request->mail.run = answer;
	(void)pthread_mutex_lock(&gpu->lock);
	r = refuse(gpu, text, n);
	if (r && timeout_ns > 0) {
		(void)pthread_mutex_unlock(&gpu->lock);
		return r;
	}
	request->done = request->given_up = false;
	cuda_gpu_post(gpu, &request->mail);
	r = timeout_ns ? 0 : ETIMEDOUT;
	while (!request->done && r == 0)
		r = pthread_cond_timedwait(&gpu->answered, &gpu->lock, &due);
	r = request->done ? 0 : -ETIMEDOUT;
	request->given_up = r != 0;
	gpu->unanswered += r != 0;
	(void)pthread_mutex_unlock(&gpu->lock);
	if (r)
		(void)text_fail(text, n, r, "%s: its driver did not answer within %llu s",
				gpu->found->name, (unsigned long long)(timeout_ns / 1000000000u));
	return r;
}

void cuda_gpu_tell(struct cuda_gpu *gpu)
{
	bool send;

	(void)pthread_mutex_lock(&gpu->lock);
	send = !gpu->news_sent;
	gpu->news_sent = true;
	(void)pthread_mutex_unlock(&gpu->lock);
	if (send)
		post(&gpu->out, &gpu->news);
}

/* --- open and close --- */

int cuda_gpu_open(const struct cuda_driver *driver, const struct cuda_found *found,
		  const struct cuda_gpu_conf *conf, struct cuda_gpu **ret)
{
	struct cuda_gpu *gpu = calloc(1, sizeof(*gpu));
	int r;

	if (!gpu)
		return -ENOMEM;
	gpu->driver = driver;
	gpu->api = &driver->api;
	gpu->found = found;
	gpu->conf = *conf;
	gpu->out.fd = -1;
	list_open(&gpu->handles);
	list_open(&gpu->orphans);
	(void)pthread_mutex_init(&gpu->lock, NULL);
	thread_cond_open(&gpu->answered);
	r = mailbox_open(&gpu->in);
	if (r == 0)
		r = mailbox_open(&gpu->out);
	if (r)
		cuda_gpu_close(gpu);
	else
		*ret = gpu;
	return r;
}

void cuda_gpu_close(struct cuda_gpu *gpu)
{
	mailbox_close(&gpu->in);
	mailbox_close(&gpu->out);
	(void)pthread_cond_destroy(&gpu->answered);
	(void)pthread_mutex_destroy(&gpu->lock);
	free(gpu);
}
