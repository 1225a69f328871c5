/* SPDX-License-Identifier: Apache-2.0 */
/* lib_gpu_tier.c - see lib_gpu_tier.h. Memory of the emulated GPU is a memfd of its process. */
#include "lib_gpu_tier.h"

#include <dirent.h>

enum { MIB = 1 << 20, STEP = 256 };

static int open_if_it_is(const char *dir, const char *name, size_t bytes)
{
	char path[400], link[256];
	struct stat st;
	ssize_t n;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	n = readlink(path, link, sizeof(link) - 1);
	link[n > 0 ? n : 0] = '\0';
	if (!strstr(link, "kvtier-emu"))
		return -1;
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && fstat(fd, &st) == 0 && (size_t)st.st_size >= bytes &&
	    (size_t)st.st_size < bytes + MIB)
		return fd;
	if (fd >= 0)
		(void)close(fd);
	return -1;
}

int gpu_tier_memory(const struct daemon *d, size_t bytes)
{
	struct dirent *entry;
	char dir[64];
	int fd = -1;
	DIR *all;

	(void)snprintf(dir, sizeof(dir), "/proc/%d/fd", (int)d->pid);
	all = opendir(dir);
	assert_non_null(all);
	while (fd < 0 && (entry = readdir(all)) != NULL)
		fd = open_if_it_is(dir, entry->d_name, bytes);
	(void)closedir(all);
	if (fd < 0)
		fail_msg("the daemon has no %zu bytes on a GPU", bytes);
	return fd;
}

uint8_t *gpu_tier_read(const struct daemon *d, size_t bytes, size_t *ret_bytes)
{
	const int fd = gpu_tier_memory(d, bytes);
	struct stat st;
	uint8_t *ret;

	assert_int_equal(fstat(fd, &st), 0);
	*ret_bytes = (size_t)st.st_size;
	ret = malloc(*ret_bytes);
	assert_non_null(ret);
	assert_int_equal(pread(fd, ret, *ret_bytes, 0), st.st_size);
	(void)close(fd);
	return ret;
}

void gpu_tier_damage(const struct daemon *d, size_t bytes, const void *payload, size_t n,
		     size_t offset)
{
	size_t all, at = SIZE_MAX;
	uint8_t *memory = gpu_tier_read(d, bytes, &all);
	uint8_t byte;
	int fd;

	for (size_t i = 0; i + n <= all; i += STEP) {
		if (memcmp(memory + i, payload, n) != 0)
			continue;
		if (at != SIZE_MAX)
			fail_msg("there are two such images");
		at = i;
	}
	if (at == SIZE_MAX)
		fail_msg("there is no such image");
	assert_true(at + offset < all);
	byte = memory[at + offset] ^ 1;
	free(memory);
	fd = gpu_tier_memory(d, bytes);
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)(at + offset)), 1);
	(void)close(fd);
}
