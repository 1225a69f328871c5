/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_damage.h"

#include "tiers/host/host_memory.h"

enum { LEAST = 4 << 20, LARGEST = 256 << 20 };

/* Address in the daemon of the image with this key in [from, to), or 0. Images are 4 KiB
 * aligned. */
static uint64_t image_in(int mem, uint64_t from, uint64_t to, const uint8_t key[32])
{
	struct image_header header;

	for (uint64_t at = from; at < to; at += IMAGE_ALIGN)
		if (pread(mem, &header, sizeof(header), (off_t)at) == (ssize_t)sizeof(header) &&
		    header.magic == IMAGE_MAGIC && memcmp(header.key, key, sizeof(header.key)) == 0)
			return at;
	return 0;
}

/* Its name is in the line where the kernel keeps names; else it is a mapping without a name. */
static bool may_be_host_memory(const char *line, uint64_t from, uint64_t to)
{
	if (strstr(line, HOST_MEMORY_NAME))
		return true;
	return strstr(line, " rw-p 00000000 00:00 0 \n") && to - from >= LEAST &&
	       to - from <= LARGEST;
}

static uint64_t find_image(const struct daemon *d, int mem, const uint8_t key[32])
{
	char path[64], line[512];
	uint64_t at = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", d->pid);
	f = fopen(path, "r");
	assert_non_null(f);
	while (!at && fgets(line, sizeof(line), f)) {
		unsigned long long from, to;

		if (sscanf(line, "%llx-%llx", &from, &to) == 2 &&
		    may_be_host_memory(line, from, to))
			at = image_in(mem, from, to, key);
	}
	(void)fclose(f);
	if (!at)
		fail_msg("the block's image is not in the daemon's host memory");
	return at;
}

void damage_image(const struct daemon *d, const uint8_t key[32], long offset)
{
	char path[64];
	uint64_t at;
	uint8_t byte;
	int mem;

	snprintf(path, sizeof(path), "/proc/%d/mem", d->pid);
	mem = open(path, O_RDWR | O_CLOEXEC);
	if (mem < 0) {
		printf("skipped: %s: %s\n", path, strerror(errno));
		skip();
	}
	at = find_image(d, mem, key) + (uint64_t)offset;
	assert_int_equal(pread(mem, &byte, 1, (off_t)at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(mem, &byte, 1, (off_t)at), 1);
	(void)close(mem);
}

void damage_recoded(const struct image_header *header, enum image_codec codec_k,
		    enum image_codec codec_v, uint8_t *ret, struct image_shape *ret_shape)
{
	struct image_header *made = (void *)ret;
	struct image_geometry geometry;
	struct image_identity its;

	memcpy(its.space_id, header->space_id, sizeof(its.space_id));
	memcpy(its.key, header->key, sizeof(its.key));
	image_header_geometry(header, &geometry);
	assert_int_equal(image_shape(&geometry, codec_k, codec_v, ret_shape, NULL), 0);
	memset(ret, 0, ret_shape->image_bytes);
	image_header_fill(made, &geometry, codec_k, codec_v, ret_shape, &its);
	image_seal(made, image_checksum(ret, ret_shape));
}
