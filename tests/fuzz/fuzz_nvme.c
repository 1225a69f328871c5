/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_nvme - goal: no bytes on a disk make the readers of superblock, header, record or footer
 * crash, read out of bounds, or accept a record beyond its segment. Method: good structures, then
 * mutated, half of them with their CRC made good again, so that the checks behind it are reached;
 * seed printed ($SEED sets it, $FUZZ_RUNS how many, 20,000). With -DKVTIER_LIBFUZZER the same check
 * under libFuzzer, half of its inputs sealed again after mutation. Worth most with
 * SAN=address,undefined.
 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiers/nvme/log/nvme_format.h"
#include "tests/lib/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct nvme_identity who = {
	.uuid = { 1, 2, 3 },
	.sequence = 0x100000005,
	.segment = 7,
	.segment_bytes = 1 << 20,
};

static void check_super(const uint8_t *page)
{
	struct nvme_super super;
	uint8_t owner[32] = { 9 };
	const int r = nvme_super_check(page, &super);

	assert(r == 0 || r == -ENODATA || r == -EMEDIUMTYPE || r == -EBADMSG ||
	       r == -EPROTONOSUPPORT);
	if (r)
		return;
	assert(super.purges <= NVME_MAX_PURGES &&
	       !nvme_shape_check(super.segment_bytes, super.segments));
	nvme_super_purge(&super, owner, UINT64_MAX);
	assert(super.purges <= NVME_MAX_PURGES && nvme_super_dead(&super, owner, 1));
}

static void check_entry(const struct nvme_entry *e)
{
	const uint64_t first = (uint64_t)nvme_record_first_page(e) * NVME_PAGE;

	assert(first >= NVME_PAGE && first + nvme_record_bytes(e) + NVME_PAGE <= who.segment_bytes);
	assert(e->image_bytes > NVME_PAGE && e->tag_page <= 1);
	assert(!e->coded_bytes ||
	       (e->coded_bytes > NVME_PAGE && !e->tag_page && e->coded_bytes < e->image_bytes));
}

static void check_record(const uint8_t *page, uint32_t number)
{
	struct nvme_entry entry;
	struct image_header header;
	uint32_t tag_page = 0;
	int r = nvme_record_probe(page, &who, number, &entry, &tag_page);

	assert(r == 0 || r == -EBADMSG || r == -EAGAIN);
	if (r == -EAGAIN) {
		assert(tag_page > number && tag_page < who.segment_bytes / NVME_PAGE);
		memcpy(&header, page, sizeof(header));
		r = nvme_tag_check(page + NVME_PAGE - sizeof(struct nvme_tag), &who, &header,
				   number, &entry);
	}
	if (!r)
		check_entry(&entry);
}

static void check_footer(const uint8_t *tail, uint32_t n)
{
	struct nvme_footer footer;
	uint64_t next = 0;
	const int r = nvme_footer_check(tail, n, &who, &footer);

	assert(r == 0 || r == -EBADMSG || r == -EAGAIN);
	if (r == -EAGAIN)
		assert(nvme_footer_bytes(footer.count) > n &&
		       footer.count <= nvme_entries_max(who.segment_bytes));
	for (uint32_t i = 0; !r && i < footer.count; i++) {
		const struct nvme_entry *e = &footer.entries[i];

		check_entry(e);
		assert(nvme_record_first_page(e) >= next);
		next = nvme_record_first_page(e) + nvme_record_bytes(e) / NVME_PAGE;
	}
}

static void crc_at(uint8_t *bytes, size_t n)
{
	const uint32_t crc = image_crc32c(bytes, n);

	memcpy(bytes + n, &crc, sizeof(crc));
}

static void reseal_record(uint8_t *page, uint32_t number)
{
	struct image_header *header = (void *)page;
	struct nvme_tag *tag = (void *)(page + NVME_PAGE - sizeof(*tag));
	uint32_t payload;

	header->magic = IMAGE_MAGIC;
	header->version = IMAGE_VERSION;
	image_seal(header, header->checksum);
	tag->magic = tag->coded_bytes % 2 ? NVME_CODED_MAGIC : NVME_TAG_MAGIC;
	memcpy(tag->uuid, who.uuid, sizeof(tag->uuid));
	tag->sequence = who.sequence;
	tag->page = number + (!nvme_tag_fits(header) && tag->coded_bytes % 2 == 0);
	tag->header_crc = header->header_crc;
	(void)nvme_image_check(header, &tag->image_bytes, &payload);
	if (tag->coded_bytes / 2 % 2)
		tag->coded_bytes %= tag->image_bytes + NVME_PAGE;
	crc_at((uint8_t *)tag, offsetof(struct nvme_tag, crc));
}

static void reseal_footer(uint8_t *tail, size_t n)
{
	struct nvme_trailer *trailer = (void *)(tail + n - sizeof(*trailer));
	size_t entries;

	trailer->magic = NVME_FOOTER_MAGIC;
	trailer->format = NVME_FORMAT;
	memcpy(trailer->uuid, who.uuid, sizeof(trailer->uuid));
	trailer->sequence = who.sequence;
	trailer->segment = who.segment;
	trailer->count %= 2 * NVME_MAX_ENTRIES;
	entries = trailer->count * sizeof(struct nvme_entry);
	if (trailer->count <= NVME_MAX_ENTRIES && nvme_footer_bytes(trailer->count) <= n)
		trailer->entries_crc =
			image_crc32c(tail + n - nvme_footer_bytes(trailer->count), entries);
	crc_at((uint8_t *)trailer, offsetof(struct nvme_trailer, crc));
}

/* Fields before the checks that matter are made good, so that mutation gets past them: nothing
 * guesses a CRC. */
static void reseal(uint8_t *bytes, size_t n, uint32_t kind, uint32_t number)
{
	struct nvme_super *super = (void *)bytes;
	struct nvme_header *header = (void *)bytes;

	if (kind == 0) {
		super->magic = NVME_SUPER_MAGIC;
		crc_at(bytes, offsetof(struct nvme_super, crc));
	} else if (kind == 1) {
		header->magic = NVME_HEADER_MAGIC;
		memcpy(header->uuid, who.uuid, sizeof(header->uuid));
		crc_at(bytes, offsetof(struct nvme_header, crc));
	} else if (kind == 2) {
		reseal_record(bytes, number);
	} else {
		reseal_footer(bytes, n);
	}
}

/* The first byte chooses, and whether all is sealed again; the rest is the page or pages, in memory
 * of exactly that size. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const size_t pages = size ? (size - 1) / NVME_PAGE : 0;
	uint64_t sequence;
	uint8_t *bytes;

	if (pages == 0)
		return 0;
	bytes = aligned_alloc(NVME_PAGE, pages * NVME_PAGE);
	assert(bytes);
	memcpy(bytes, data + 1, pages * NVME_PAGE);
	if (data[0] / 4 % 2)
		reseal(bytes, pages * NVME_PAGE, data[0] % 4, data[0] % 251);
	switch (data[0] % 4) {
	case 0:
		check_super(bytes);
		break;
	case 1:
		(void)nvme_header_check(bytes, &who, &sequence, &(struct nvme_budget){ 0 });
		break;
	case 2:
		check_record(bytes, data[0] % 251);
		break;
	default:
		check_footer(bytes, (uint32_t)(pages * NVME_PAGE));
	}
	free(bytes);
	return 0;
}

#ifndef KVTIER_LIBFUZZER
static struct random choices;

static uint32_t below(uint32_t n)
{
	return random_below(&choices, n);
}

static void flip(uint8_t *bytes, size_t n)
{
	for (uint32_t i = below(4); i > 0; i--)
		bytes[below((uint32_t)n)] = below(2) ? (uint8_t)below(256) : 0xff;
}

static void make_super(uint8_t *page)
{
	struct nvme_super super = {
		.segment_bytes = 1 << 20, .segments = 100, .purges = 3, .life = 4
	};

	nvme_super_seal(&super);
	memcpy(page, &super, sizeof(super));
	flip(page, below(2) ? 64 : NVME_PAGE);
	if (below(2))
		crc_at(page, offsetof(struct nvme_super, crc));
}

static void make_header(uint8_t *page)
{
	nvme_header_encode(&who, &(struct nvme_budget){ .level_bytes = -1, .at_s = 2 }, page);
	flip(page, 64);
	if (below(2))
		crc_at(page, offsetof(struct nvme_header, crc));
}

static void make_record(uint8_t *page, uint32_t number)
{
	struct image_header *header = (void *)page;
	struct nvme_entry entry = { .page = (uint16_t)number, .image_bytes = NVME_PAGE + 5000 };

	memset(page, 0, NVME_PAGE);
	header->magic = IMAGE_MAGIC;
	header->version = IMAGE_VERSION;
	header->payload_bytes = 5000;
	header->codec_k = below(2) ? CODEC_LOSSLESS : CODEC_FP8;
	if (below(2))
		header->scale_bytes = below(2) ? below(9000) : below(1u << 31);
	flip(page, sizeof(*header));
	if (below(4))
		image_seal(header, 1);
	entry.header_crc = header->header_crc;
	if (below(2)) {
		uint32_t payload;

		entry.page = (uint16_t)(number + !nvme_tag_fits(header));
		(void)nvme_image_check(header, &entry.image_bytes, &payload);
		if (header->codec_k == CODEC_LOSSLESS) /* may be shorter than its record */
			entry.image_bytes += below(9000);
		if (below(2)) { /* coded */
			entry.page = (uint16_t)number;
			entry.coded_bytes = below(entry.image_bytes % 100000 + 2 * NVME_PAGE);
		}
	}
	nvme_tag_encode(&who, &entry, page + NVME_PAGE - sizeof(struct nvme_tag));
	if (below(3) == 0)
		flip(page + NVME_PAGE - sizeof(struct nvme_tag), sizeof(struct nvme_tag));
}

static uint32_t make_footer(uint8_t *bytes)
{
	const uint32_t count = below(80), n = nvme_footer_bytes(count);
	struct nvme_trailer *trailer = (void *)(bytes + n - sizeof(*trailer));
	uint32_t page = 1;

	for (uint32_t i = 0; i < count; i++) {
		const struct nvme_entry entry = { .page = (uint16_t)page,
						  .image_bytes = NVME_PAGE * (below(2) + 1) + 1,
						  .coded_bytes = below(4) ? 0 : below(9000) };

		memcpy(bytes + i * sizeof(entry), &entry, sizeof(entry));
		page += 2u + (below(4) == 0);
	}
	if (count > 0 && below(2))
		flip(bytes + below(count) * sizeof(struct nvme_entry) + 112, 12);
	nvme_footer_encode(&who, count, below(2), bytes);
	if (below(2))
		flip((uint8_t *)trailer, sizeof(*trailer));
	if (below(2))
		crc_at((uint8_t *)trailer, offsetof(struct nvme_trailer, crc));
	return n;
}

int main(void)
{
	const uint64_t n = env_number("FUZZ_RUNS", 20000);
	uint8_t *bytes = aligned_alloc(NVME_PAGE, 5 * NVME_PAGE);
	uint8_t *input = malloc(1 + 4 * NVME_PAGE);

	assert(bytes && input != NULL);
	choices = random_seeded("fuzz_nvme");
	for (uint64_t i = 0; i < n; i++) {
		uint32_t size = NVME_PAGE;

		input[0] = (uint8_t)below(256);
		memset(bytes, 0, 5 * NVME_PAGE);
		switch (input[0] % 4) {
		case 0:
			make_super(bytes);
			break;
		case 1:
			make_header(bytes);
			break;
		case 2:
			make_record(bytes, input[0] % 251);
			break;
		default:
			size = make_footer(bytes);
			if (below(4) == 0 && size > NVME_PAGE) { /* its last page alone */
				memmove(bytes, bytes + size - NVME_PAGE, NVME_PAGE);
				size = NVME_PAGE;
			}
		}
		memcpy(input + 1, bytes, size);
		(void)LLVMFuzzerTestOneInput(input, 1 + size);
	}
	free(bytes);
	free(input);
	return 0;
}
#endif
