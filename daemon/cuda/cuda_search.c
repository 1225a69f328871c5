/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_search.c - see cuda_search.h. */
#include "cuda_search.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_load.h"
#include "daemon/base/thread.h"

enum {
	/* for a first answer: eight GPUs without a persistence daemon take half a minute */
	ANSWER_S = 60,
	READY_S = 4, /* for a driver that is not ready, at the start */
	PAUSE_MOST_S = 60,
};

/* Whoever comes last, the thread or its asker, frees it. Once found, the driver stays for ever: its
 * library does, too. */
struct cuda_search {
	struct cuda_driver driver; /* the thread's, until it has ended */
	/* Guards the fields below. Take no locks while holding it. */
	pthread_mutex_t lock;
	pthread_cond_t news;
	bool ended, left;
	uint32_t answers;
	int status; /* of the last answer */
	bool gpus;  /* likewise: it may be ready later, and there are GPUs */
	char text[200];
};

/* For ever, like the library itself: a GPU's thread that a call of the driver holds is left behind
 * at a stop, and may return to these pointers. Volatile, so that the address is kept, too: a leak
 * checker looks for it. */
static const struct cuda_search *volatile kept;

static struct timespec after(uint32_t seconds)
{
	struct timespec ret;

	(void)clock_gettime(CLOCK_MONOTONIC, &ret);
	ret.tv_sec += seconds;
	return ret;
}

/* That kvtierd can use. */
static bool has_gpus(const struct cuda_driver *driver)
{
	for (uint32_t i = 0; i < driver->n; i++)
		if (!driver->found[i].why[0])
			return true;
	return false;
}

/* With the lock held: an answer has come. */
static bool goes_on(struct cuda_search *s, int status, const char *text)
{
	s->answers++;
	s->status = status;
	s->gpus = status && s->driver.later && !s->driver.none;
	snprintf(s->text, sizeof(s->text), "%s", text);
	(void)pthread_cond_broadcast(&s->news);
	return status && s->driver.later && !s->left;
}

static void *look(void *arg)
{
	struct cuda_search *s = arg;
	uint32_t pause_s = 1;
	char text[sizeof(s->text)];
	bool left;
	int r = cuda_load(&s->driver, text, sizeof(text));

	(void)pthread_mutex_lock(&s->lock);
	while (goes_on(s, r, text)) {
		const struct timespec until = after(pause_s);

		while (!s->left && pthread_cond_timedwait(&s->news, &s->lock, &until) == 0)
			;
		pause_s = pause_s < PAUSE_MOST_S / 2 ? 2 * pause_s : PAUSE_MOST_S;
		if (s->left)
			break;
		(void)pthread_mutex_unlock(&s->lock);
		r = cuda_load(&s->driver, text, sizeof(text));
		(void)pthread_mutex_lock(&s->lock);
	}
	s->ended = true;
	left = s->left;
	(void)pthread_cond_broadcast(&s->news);
	(void)pthread_mutex_unlock(&s->lock);
	if (left)
		free(s);
	return NULL;
}

/* With the lock held: until it has ended, or `answers` have come and nothing is to be expected from
 * waiting on. */
static void wait_for_answers(struct cuda_search *s, bool required)
{
	struct timespec until = after(ANSWER_S);

	while (!s->ended && s->answers == 0 &&
	       pthread_cond_timedwait(&s->news, &s->lock, &until) == 0)
		;
	if (s->answers == 0 || (!s->gpus && !required))
		return;
	until = after(required ? ANSWER_S : READY_S);
	while (!s->ended && pthread_cond_timedwait(&s->news, &s->lock, &until) == 0)
		;
}

const struct cuda_driver *cuda_search_open(bool required, struct cuda_search **ret, char *text,
					   size_t n)
{
	struct cuda_search *s = calloc(1, sizeof(*s));
	bool ended, answered;
	int r;

	*ret = NULL;
	if (!s) {
		snprintf(text, n, "out of memory");
		return NULL;
	}
	(void)pthread_mutex_init(&s->lock, NULL);
	thread_cond_open(&s->news);
	r = thread_start(NULL, 0, look, s);
	if (r) {
		snprintf(text, n, "no thread can be made: %s", strerror(-r));
		free(s);
		return NULL;
	}
	(void)pthread_mutex_lock(&s->lock);
	wait_for_answers(s, required);
	ended = s->ended;
	answered = s->answers > 0;
	snprintf(text, n, "%s", s->text);
	(void)pthread_mutex_unlock(&s->lock);
	if (ended && s->status == 0) {
		kept = s;
		return &kept->driver;
	}
	if (!answered)
		snprintf(text, n,
			 "the CUDA driver did not answer within %d s (nvidia-persistenced "
			 "makes it faster)",
			 ANSWER_S);
	if (ended || !answered)
		cuda_search_close(s);
	else
		*ret = s;
	return NULL;
}

enum cuda_search_news cuda_search_look(struct cuda_search *s, char *text, size_t n)
{
	enum cuda_search_news ret = CUDA_SEARCH_NONE;

	if (!s)
		return ret;
	(void)pthread_mutex_lock(&s->lock);
	if (s->ended && s->status == 0 && has_gpus(&s->driver))
		ret = CUDA_SEARCH_READY;
	else if (s->gpus)
		ret = CUDA_SEARCH_WAITS;
	if (ret == CUDA_SEARCH_READY)
		snprintf(text, n, "the CUDA driver is ready now: a new kvtierd can serve its GPUs");
	else if (s->ended)
		snprintf(text, n, "%s", s->text);
	else
		snprintf(text, n, "%.180s; the driver is asked again and again", s->text);
	(void)pthread_mutex_unlock(&s->lock);
	return ret;
}

void cuda_search_close(struct cuda_search *s)
{
	bool ended;

	if (!s)
		return;
	(void)pthread_mutex_lock(&s->lock);
	ended = s->ended;
	s->left = true;
	(void)pthread_cond_broadcast(&s->news);
	(void)pthread_mutex_unlock(&s->lock);
	if (ended)
		free(s);
}
