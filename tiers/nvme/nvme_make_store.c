/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_make_store.c - see nvme_make_store.h.
 *
 * The superblocks are written last, so a path on which this was stopped half-way has no store.
 * Records that an old store left in the segments name its uuid, and are never believed.
 */
#include "nvme_make_store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "nvme_file.h"
#include "nvme_format.h"

enum { CHUNK_BYTES = 4 << 20 };

struct making {
	struct nvme_file file;
	uint64_t bytes;
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *arg;
	uint8_t *buffer; /* CHUNK_BYTES of zeros */
};

static int write_all(int fd, const uint8_t *buffer, uint64_t bytes, uint64_t offset)
{
	while (bytes > 0) {
		const ssize_t n = pwrite(fd, buffer, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0 || n % NVME_PAGE) /* O_DIRECT: the rest must stay aligned */
			return n < 0 ? -errno : -EIO;
		buffer += n;
		offset += (uint64_t)n;
		bytes -= (uint64_t)n;
	}
	return 0;
}

/* Then no file system has to find room, and no flash a first mapping, when the daemon writes. */
static int prewrite_all(struct making *m)
{
	for (uint64_t at = 0; at < m->bytes;) {
		const uint64_t left = m->bytes - at;
		const uint64_t n = left < CHUNK_BYTES ? left : CHUNK_BYTES;
		const int r = write_all(m->file.fd, m->buffer, n, at);

		if (r)
			return r;
		at += n;
		if (m->progress)
			m->progress(m->arg, at, m->bytes);
	}
	return 0;
}

static int write_supers(struct making *m, uint32_t segment_bytes, uint64_t segments)
{
	struct nvme_super super = { .life = 1,
				    .generation = 1,
				    .segment_bytes = segment_bytes,
				    .segments = (uint32_t)segments };
	int r = getrandom(super.uuid, sizeof(super.uuid), 0) == sizeof(super.uuid) ? 0 : -EIO;

	nvme_super_seal(&super);
	memcpy(m->buffer, &super, sizeof(super));
	for (uint32_t copy = 0; copy < NVME_SUPER_COPIES && !r; copy++)
		r = write_all(m->file.fd, m->buffer, NVME_PAGE, nvme_super_offset(copy));
	if (!r && fdatasync(m->file.fd))
		r = -errno;
	return r;
}

static int make(struct making *m, uint32_t segment_bytes, bool prewrite, char *text, size_t n)
{
	uint64_t segments = 0;
	int r = -EINVAL;

	if (segment_bytes && m->bytes > NVME_DATA_OFFSET) {
		segments = (m->bytes - NVME_DATA_OFFSET) / segment_bytes;
		r = nvme_shape_check(segment_bytes, segments);
	}
	if (r) {
		(void)snprintf(text, n,
			       "%" PRIu64
			       " bytes cannot be a store: 4 to 65535 segments (of %" PRIu32
			       " bytes now, 64 KiB to 256 MiB), and 64 KiB",
			       m->bytes, segment_bytes);
		return r;
	}
	if (prewrite)
		r = prewrite_all(m);
	if (!r)
		r = write_supers(m, segment_bytes, segments);
	if (r)
		(void)snprintf(text, n, "cannot be written: %s", strerror(-r));
	return r;
}

int nvme_make_store(const char *path, uint64_t bytes, uint32_t segment_bytes, bool prewrite,
		    void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
		    char *text, size_t n)
{
	struct making m = { .progress = progress, .arg = arg };
	bool made;
	int r = nvme_file_open(path, bytes, NVME_FILE_REPLACE, &m.file, text, n);

	if (r)
		return r;
	made = m.file.made;
	m.bytes = (bytes ? bytes : m.file.bytes) / NVME_PAGE * NVME_PAGE;
	m.buffer = aligned_alloc(NVME_PAGE, CHUNK_BYTES);
	if (m.buffer) {
		memset(m.buffer, 0, CHUNK_BYTES);
		r = make(&m, segment_bytes, prewrite, text, n);
	} else {
		r = -ENOMEM;
		(void)snprintf(text, n, "not enough memory");
	}
	free(m.buffer);
	if (r) {
		nvme_file_discard(path, &m.file);
		return r;
	}
	nvme_file_close(&m.file);
	r = made ? nvme_file_settle(path) : 0;
	if (r)
		(void)snprintf(text, n, "its directory cannot be synced: %s", strerror(-r));
	return r;
}
