/* SPDX-License-Identifier: Apache-2.0 */
/* thread.c - see thread.h. */
#include "thread.h"

#include <signal.h>

int thread_start(pthread_t *ret, size_t stack_bytes, void *(*run)(void *arg), void *arg)
{
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t thread;
	int error = pthread_attr_init(&attr);

	if (error)
		return -error;
	if (stack_bytes > 0)
		(void)pthread_attr_setstacksize(&attr, stack_bytes);
	if (!ret)
		(void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	(void)sigfillset(&all);
	(void)sigdelset(&all, SIGBUS);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(ret ? ret : &thread, &attr, run, arg);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	(void)pthread_attr_destroy(&attr);
	return -error;
}
