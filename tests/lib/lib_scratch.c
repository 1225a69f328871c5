/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_scratch.h"

#include <errno.h>
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

void scratch_remove(const char *dir)
{
	char command[512];

	if (!strstr(dir, "/kvtier-test-") ||
	    (size_t)snprintf(command, sizeof(command), "rm -rf '%s'", dir) >= sizeof(command) ||
	    system(command))
		give_up("remove", dir);
}
