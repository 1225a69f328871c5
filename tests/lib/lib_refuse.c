/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_refuse.h"

#include <assert.h>
#include <dirent.h>
#include <stdatomic.h>
#include <stddef.h>

static struct {
	atomic_int call, n, times, error;
} plan;

void refuse(int call, int n, int times, int error)
{
	refuse_nothing();
	atomic_store(&plan.call, call);
	atomic_store(&plan.n, n);
	atomic_store(&plan.error, error);
	atomic_store(&plan.times, times);
}

void refuse_nothing(void)
{
	atomic_store(&plan.times, 0);
}

bool refuse_came(void)
{
	return atomic_load(&plan.times) <= 0;
}

int refused(int call)
{
	const int planned = atomic_load(&plan.call);

	if (atomic_load(&plan.times) <= 0 || (planned != call && planned != REFUSE_ANY))
		return 0;
	if (atomic_fetch_sub(&plan.n, 1) > 1 || atomic_fetch_sub(&plan.times, 1) <= 0)
		return 0;
	errno = atomic_load(&plan.error);
	return errno;
}

int descriptors_open(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	assert(dir);
	while (readdir(dir))
		n++;
	(void)closedir(dir);
	return n;
}
