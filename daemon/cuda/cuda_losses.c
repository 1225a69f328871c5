/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_losses.c - see cuda_losses.h. The file: CUDA_LOSSES_MAX numbers, a line each. */
#include "cuda_losses.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/wire.h"

static const uint64_t WITHIN_NS = 60000000000u;

void cuda_losses_add(struct cuda_losses *losses, uint64_t now_ns)
{
	const size_t last = CUDA_LOSSES_MAX - 1;

	memmove(losses->at_ns, losses->at_ns + 1, last * sizeof(losses->at_ns[0]));
	losses->at_ns[last] = now_ns;
}

bool cuda_losses_are_many(const struct cuda_losses *losses, uint64_t now_ns)
{
	return losses->at_ns[0] && now_ns - losses->at_ns[0] < WITHIN_NS;
}

/* False: there is no such directory, or its name is too long. */
static bool path_of(const char *state_dir, const uint8_t *uuid, char *ret, size_t n)
{
	size_t at = state_dir ? (size_t)snprintf(ret, n, "%s/gpu-", state_dir) : n;

	for (int i = 0; i < WIRE_UUID_BYTES && at < n; i++)
		at += (size_t)snprintf(ret + at, n - at, "%02x", uuid[i]);
	if (at < n)
		at += (size_t)snprintf(ret + at, n - at, ".losses");
	return at < n;
}

void cuda_losses_load(struct cuda_losses *ret, const char *state_dir, const uint8_t *uuid,
		      uint64_t now_ns)
{
	char path[4200], text[128];
	struct cuda_losses read_ones = { 0 };
	uint64_t *at = read_ones.at_ns;
	ssize_t n;
	int fd;

	*ret = read_ones;
	if (!path_of(state_dir, uuid, path, sizeof(path)))
		return;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return;
	n = read(fd, text, sizeof(text) - 1);
	(void)close(fd);
	text[n > 0 ? n : 0] = '\0';
	if (sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64, &at[0], &at[1], &at[2]) !=
		    CUDA_LOSSES_MAX ||
	    at[0] > at[1] || at[1] > at[2] || at[2] > now_ns)
		return;
	*ret = read_ones;
}

int cuda_losses_save(const struct cuda_losses *losses, const char *state_dir, const uint8_t *uuid)
{
	const uint64_t *at = losses->at_ns;
	char path[4200];
	int fd, r = 0;

	if (!path_of(state_dir, uuid, path, sizeof(path)))
		return -ENAMETOOLONG;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (fd < 0)
		return -errno;
	if (dprintf(fd, "%" PRIu64 "\n%" PRIu64 "\n%" PRIu64 "\n", at[0], at[1], at[2]) < 0)
		r = -errno;
	(void)close(fd);
	return r;
}
