/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_scratch.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void give_up(const char *verb, const char *dir)
{
	(void)fprintf(stderr, "cannot %s the directory %s: %s\n", verb, dir, strerror(errno));
	abort();
}

const char *scratch_parent(const char *otherwise)
{
	const char *given = getenv("TMPDIR");

	return given && strlen(given) < 80 ? given : otherwise;
}

void scratch_make(const char *parent, char *ret, size_t n)
{
	if ((size_t)snprintf(ret, n, "%s/kvtier-test-XXXXXX", parent) >= n) {
		errno = ENAMETOOLONG;
		give_up("name", parent);
	}
	if (!mkdtemp(ret))
		give_up("make", ret);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st, (void)type, (void)at;
	return remove(path) && errno != ENOENT;
}

/* Here, not by a rm: a program costs milliseconds. */
void scratch_remove(const char *dir)
{
	if (!strstr(dir, "/kvtier-test-") ||
	    (nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS) && errno != ENOENT))
		give_up("remove", dir);
}
