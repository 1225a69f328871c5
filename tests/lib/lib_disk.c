/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_disk.c - see lib_disk.h. The file is written through the page cache here, which the daemon's
 * direct reads write back first: Linux keeps the two coherent.
 */
#include "lib_disk.h"

#include <linux/io_uring.h>

#include "kernels/image.h"
#include "lib_clock.h"

char disk_uring[] = "io_uring", disk_threads[] = "threads";

static bool uring_refused(void)
{
	struct io_uring_params p;
	int fd;

	memset(&p, 0, sizeof(p));
	fd = (int)syscall(SYS_io_uring_setup, 4, &p);
	if (fd < 0)
		return true;
	(void)close(fd);
	return false;
}

void disk_need(const char *engine)
{
	if (!disk_dir()) {
		printf("skipped: neither $TMPDIR nor /var/tmp takes O_DIRECT\n");
		skip();
	}
	if (strcmp(engine, disk_uring) == 0 && uring_refused()) {
		printf("skipped: io_uring is refused here\n");
		skip();
	}
}

static void configure(struct daemon *d, const char *engine, const char *config)
{
	char lines[2048];

	if ((size_t)snprintf(lines, sizeof(lines), "%sio = %s\n", config, engine) >= sizeof(lines))
		fail_msg("configuration too long");
	daemon_configure(d, lines);
}

void disk_state_becomes(const struct daemon *d, const char *state, int timeout_ms)
{
	struct look look = look_at(d, timeout_ms);
	char now[64], text[512];

	do {
		daemon_word(d, "tiers.nvme.state", now, sizeof(now));
		if (strcmp(now, state) == 0)
			return;
	} while (look_again(&look));
	daemon_word(d, "tiers.nvme.text", text, sizeof(text));
	fail_msg("the NVMe tier is %s, not %s, after %d ms: %s", now, state, timeout_ms, text);
}

void disk_start(struct daemon *d, const char *engine, const char *config)
{
	daemon_place(d, true);
	clock_hold(d);
	configure(d, engine, config);
	daemon_restart(d);
	disk_state_becomes(d, "up", PATIENT_MS);
}

/* --- a daemon, an engine, a chain --- */

struct disk_world *disk_place(void **state, const char *config)
{
	static struct disk_world w;

	disk_need(*state);
	memset(&w, 0, sizeof(w));
	w.engine = *state;
	daemon_place(&w.d, true);
	clock_hold(&w.d);
	configure(&w.d, w.engine, config);
	(void)snprintf(w.path, sizeof(w.path), "%s/nvme.store", w.d.disk);
	return &w;
}

void disk_live(struct disk_world *w)
{
	daemon_restart(&w->d);
	disk_state_becomes(&w->d, "up", PATIENT_MS);
	engine_open(&w->e, w->d.socket, "engine", &tiny_raw, 2 * DISK_BLOCKS);
	chain_keys(&w->e, 1, DISK_BLOCKS, w->keys);
}

void disk_die(struct disk_world *w, int signal)
{
	engine_close(&w->e);
	daemon_signal(&w->d, signal);
}

void disk_end(struct disk_world *w)
{
	daemon_remove(&w->d);
}

/* --- the store's file --- */

uint64_t disk_file_bytes(const char *path)
{
	struct stat st;

	if (stat(path, &st))
		fail_msg("%s: %s", path, strerror(errno));
	return (uint64_t)st.st_size;
}

static int open_file(const char *path, int flags)
{
	const int fd = open(path, flags | O_CLOEXEC);

	if (fd < 0)
		fail_msg("%s: %s", path, strerror(errno));
	return fd;
}

void disk_read(const char *path, uint64_t offset, void *ret, size_t n)
{
	const int fd = open_file(path, O_RDONLY);

	assert_int_equal(pread(fd, ret, n, (off_t)offset), n);
	(void)close(fd);
}

void disk_write(const char *path, uint64_t offset, const void *bytes, size_t n)
{
	const int fd = open_file(path, O_WRONLY);

	assert_int_equal(pwrite(fd, bytes, n, (off_t)offset), n);
	assert_int_equal(fsync(fd), 0);
	(void)close(fd);
}

static void flip_bit(const char *path, uint64_t offset)
{
	uint8_t byte;

	disk_read(path, offset, &byte, 1);
	byte ^= 0x10;
	disk_write(path, offset, &byte, 1);
}

/* From `at` on; the file's size where there is none. */
static uint64_t next_image(const char *path, uint64_t at, const struct kvtier_key *key)
{
	const uint64_t bytes = disk_file_bytes(path);
	const int fd = open_file(path, O_RDONLY);
	struct image_header header;

	for (; at + sizeof(header) <= bytes; at += IMAGE_ALIGN)
		if (pread(fd, &header, sizeof(header), (off_t)at) == (ssize_t)sizeof(header) &&
		    header.magic == IMAGE_MAGIC &&
		    memcmp(header.key, key->bytes, sizeof(header.key)) == 0)
			break;
	(void)close(fd);
	return at + sizeof(header) <= bytes ? at : bytes;
}

uint64_t disk_find(const char *path, const struct kvtier_key *key)
{
	const uint64_t at = next_image(path, 0, key);

	if (at == disk_file_bytes(path))
		fail_msg("%s: no image with this key", path);
	return at;
}

uint32_t disk_flip(const char *path, const struct kvtier_key *key, uint64_t offset)
{
	const uint64_t bytes = disk_file_bytes(path);
	uint32_t copies = 0;

	for (uint64_t at = next_image(path, 0, key); at < bytes;
	     at = next_image(path, at + IMAGE_ALIGN, key)) {
		flip_bit(path, at + offset);
		copies++;
	}
	return copies;
}
