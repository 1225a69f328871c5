/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_format.c - encode and check the bytes on an NVMe disk. Contract and layout: nvme_format.h.
 *
 * A check first copies the fixed-size structure out of the page, so the bytes that were checked are
 * the bytes that are used. Checks hold for any bytes (tests/fuzz/fuzz_nvme.c).
 */
#include "nvme_format.h"

#include <errno.h>
#include <string.h>

uint64_t nvme_super_offset(uint32_t copy)
{
	return (uint64_t)copy * NVME_SUPER_GAP;
}

uint64_t nvme_segment_offset(uint32_t segment, uint32_t segment_bytes)
{
	return NVME_DATA_OFFSET + (uint64_t)segment * segment_bytes;
}

int nvme_shape_check(uint32_t segment_bytes, uint64_t segments)
{
	if (segment_bytes < NVME_MIN_SEGMENT_BYTES || segment_bytes > NVME_MAX_SEGMENT_BYTES)
		return -EINVAL;
	if (segment_bytes % NVME_PAGE)
		return -EINVAL;
	return segments >= NVME_MIN_SEGMENTS && segments <= NVME_MAX_SEGMENTS ? 0 : -EINVAL;
}

static bool zeros(const uint8_t *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (bytes[i])
			return false;
	return true;
}

void nvme_super_seal(struct nvme_super *super)
{
	super->magic = NVME_SUPER_MAGIC;
	super->format = NVME_FORMAT;
	super->crc = image_crc32c(super, offsetof(struct nvme_super, crc));
}

int nvme_super_check(const uint8_t page[NVME_PAGE], struct nvme_super *ret)
{
	struct nvme_super super;

	memcpy(&super, page, sizeof(super));
	if (super.magic != NVME_SUPER_MAGIC)
		return zeros(page, NVME_PAGE) ? -ENODATA : -EMEDIUMTYPE;
	if (super.crc != image_crc32c(&super, offsetof(struct nvme_super, crc)))
		return -EBADMSG;
	if (super.format != NVME_FORMAT)
		return -EPROTONOSUPPORT;
	if (super.purges > NVME_MAX_PURGES || nvme_shape_check(super.segment_bytes, super.segments))
		return -EBADMSG;
	*ret = super;
	return 0;
}

int nvme_super_newest(const uint8_t *pages, struct nvme_super *ret, uint32_t *ret_copy)
{
	struct nvme_super copy[NVME_SUPER_COPIES];
	int r[NVME_SUPER_COPIES], best = -1;

	for (int i = 0; i < NVME_SUPER_COPIES; i++) {
		r[i] = nvme_super_check(pages + (size_t)i * NVME_PAGE, &copy[i]);
		if (r[i] == -EPROTONOSUPPORT)
			return r[i];
		if (!r[i] && (best < 0 || copy[i].generation > copy[best].generation))
			best = i;
	}
	if (best < 0)
		return r[0] == r[1]                         ? r[0] :
		       r[0] == -EBADMSG || r[1] == -EBADMSG ? -EBADMSG :
							      -EMEDIUMTYPE;
	*ret = copy[best];
	*ret_copy = (uint32_t)best;
	return 0;
}

static struct nvme_purge *find_purge(struct nvme_super *super, const uint8_t *tenant)
{
	for (uint32_t i = 0; i < super->purges; i++)
		if (!memcmp(super->purge[i].tenant, tenant, NVME_TENANT_BYTES))
			return &super->purge[i];
	return NULL;
}

/* The list is in the order of epochs: a tenant that is purged again moves to its end. */
void nvme_super_purge(struct nvme_super *super, const uint8_t tenant[NVME_TENANT_BYTES],
		      uint64_t epoch)
{
	struct nvme_purge *old = find_purge(super, tenant);

	if (!old && super->purges == NVME_MAX_PURGES) {
		old = &super->purge[0];
		if (old->epoch > super->epoch_floor)
			super->epoch_floor = old->epoch;
	}
	if (old) {
		const size_t after = super->purges - 1 - (size_t)(old - super->purge);

		memmove(old, old + 1, after * sizeof(*old));
		super->purges--;
	}
	memcpy(super->purge[super->purges].tenant, tenant, NVME_TENANT_BYTES);
	super->purge[super->purges++].epoch = epoch;
}

bool nvme_super_dead(const struct nvme_super *super, const uint8_t owner[32], uint64_t epoch)
{
	if (epoch < super->epoch_floor)
		return true;
	for (uint32_t i = 0; i < super->purges; i++)
		if (epoch < super->purge[i].epoch &&
		    !memcmp(super->purge[i].tenant, owner, NVME_TENANT_BYTES))
			return true;
	return false;
}

void nvme_header_encode(const struct nvme_identity *who, const struct nvme_budget *budget,
			uint8_t ret[NVME_PAGE])
{
	struct nvme_header header = {
		.magic = NVME_HEADER_MAGIC,
		.format = NVME_FORMAT,
		.sequence = who->sequence,
		.segment = who->segment,
		.segment_bytes = who->segment_bytes,
		.budget = *budget,
	};

	memcpy(header.uuid, who->uuid, sizeof(header.uuid));
	header.crc = image_crc32c(&header, offsetof(struct nvme_header, crc));
	memset(ret, 0, NVME_PAGE);
	memcpy(ret, &header, sizeof(header));
}

int nvme_header_check(const uint8_t page[NVME_PAGE], const struct nvme_identity *who,
		      uint64_t *ret_sequence, struct nvme_budget *ret_budget)
{
	struct nvme_header header;

	memcpy(&header, page, sizeof(header));
	if (header.magic != NVME_HEADER_MAGIC || header.format != NVME_FORMAT)
		return -EBADMSG;
	if (header.crc != image_crc32c(&header, offsetof(struct nvme_header, crc)))
		return -EBADMSG;
	if (memcmp(header.uuid, who->uuid, sizeof(header.uuid)) || header.segment != who->segment ||
	    header.segment_bytes != who->segment_bytes)
		return -EBADMSG;
	*ret_sequence = header.sequence;
	*ret_budget = header.budget;
	return 0;
}

int nvme_image_check(const struct image_header *header, uint32_t *ret_image_bytes,
		     uint32_t *ret_payload_offset)
{
	struct image_header h;
	uint64_t offset;

	memcpy(&h, header, sizeof(h));
	if (h.magic != IMAGE_MAGIC || h.version != IMAGE_VERSION)
		return -EBADMSG;
	if (h.header_crc != image_crc32c(&h, offsetof(struct image_header, header_crc)))
		return -EBADMSG;
	offset = nvme_round_page((uint64_t)sizeof(h) + h.scale_bytes);
	if (!h.payload_bytes || offset + h.payload_bytes > IMAGE_MAX_BYTES)
		return -EBADMSG;
	*ret_image_bytes = (uint32_t)(offset + h.payload_bytes);
	*ret_payload_offset = (uint32_t)offset;
	return 0;
}

int nvme_image_within(const struct image_header *header, uint32_t bytes,
		      uint32_t *ret_payload_offset)
{
	uint32_t image_bytes;

	if (bytes > IMAGE_MAX_BYTES || nvme_image_check(header, &image_bytes, ret_payload_offset))
		return -EBADMSG;
	if (header->codec_k == CODEC_LOSSLESS || header->codec_v == CODEC_V4)
		return image_bytes > bytes ? -EBADMSG : 0;
	return image_bytes != bytes ? -EBADMSG : 0;
}

bool nvme_tag_fits(const struct image_header *header)
{
	const uint64_t used = (uint64_t)sizeof(*header) + header->scale_bytes;

	return nvme_round_page(used) - used >= sizeof(struct nvme_tag);
}

void nvme_tag_encode(const struct nvme_identity *who, const struct nvme_entry *entry, uint8_t *ret)
{
	struct nvme_tag tag = {
		.magic = entry->coded_bytes ? NVME_CODED_MAGIC : NVME_TAG_MAGIC,
		.image_bytes = entry->image_bytes,
		.coded_bytes = entry->coded_bytes,
		.sequence = who->sequence,
		.epoch = entry->epoch,
		.tick = entry->tick,
		.page = entry->page,
		.header_crc = entry->header_crc,
	};

	memcpy(tag.uuid, who->uuid, sizeof(tag.uuid));
	memcpy(tag.owner, entry->owner, sizeof(tag.owner));
	memcpy(tag.parent, entry->parent, sizeof(tag.parent));
	tag.crc = image_crc32c(&tag, offsetof(struct nvme_tag, crc));
	memcpy(ret, &tag, sizeof(tag));
}

uint64_t nvme_record_bytes(const struct nvme_entry *entry)
{
	const uint32_t bytes = entry->coded_bytes ? entry->coded_bytes : entry->image_bytes;

	return nvme_round_page(bytes) + (entry->tag_page ? NVME_PAGE : 0);
}

uint32_t nvme_record_first_page(const struct nvme_entry *entry)
{
	return entry->tag_page ? entry->page - 1u : entry->page;
}

/* Whether a record lies behind the header, and leaves room for the footer of so many entries. */
static bool within(const struct nvme_entry *e, const struct nvme_identity *who, uint32_t count)
{
	const uint64_t first = e->page - (e->tag_page ? 1u : 0u);
	const uint64_t end = first * NVME_PAGE + nvme_record_bytes(e);

	return first >= 1 && e->page > 0 && end + nvme_footer_bytes(count) <= who->segment_bytes;
}

/* Whether a record of an image of so many bytes may be coded in these. */
static bool coded_good(uint32_t coded_bytes, uint32_t image_bytes)
{
	return coded_bytes > NVME_PAGE &&
	       nvme_round_page(coded_bytes) < nvme_round_page(image_bytes);
}

int nvme_tag_check(const uint8_t *bytes, const struct nvme_identity *who,
		   const struct image_header *header, uint32_t page, struct nvme_entry *ret)
{
	struct nvme_entry entry = { 0 };
	struct nvme_tag tag;
	uint32_t offset;

	memcpy(&tag, bytes, sizeof(tag));
	if ((tag.magic != NVME_TAG_MAGIC && tag.magic != NVME_CODED_MAGIC) ||
	    tag.crc != image_crc32c(&tag, offsetof(struct nvme_tag, crc)))
		return -EBADMSG;
	if (memcmp(tag.uuid, who->uuid, sizeof(tag.uuid)) ||
	    (who->sequence && tag.sequence != who->sequence) || tag.page != page)
		return -EBADMSG;
	if (nvme_image_within(header, tag.image_bytes, &offset) ||
	    tag.header_crc != header->header_crc || page > UINT16_MAX)
		return -EBADMSG;
	if (tag.magic == NVME_CODED_MAGIC && !coded_good(tag.coded_bytes, tag.image_bytes))
		return -EBADMSG;
	entry.coded_bytes = tag.magic == NVME_CODED_MAGIC ? tag.coded_bytes : 0;
	memcpy(entry.key, header->key, sizeof(entry.key));
	memcpy(entry.parent, tag.parent, sizeof(entry.parent));
	memcpy(entry.owner, tag.owner, sizeof(entry.owner));
	entry.tick = tag.tick;
	entry.epoch = tag.epoch;
	entry.image_bytes = tag.image_bytes;
	entry.header_crc = tag.header_crc;
	entry.page = (uint16_t)page;
	entry.tag_page = !entry.coded_bytes && !nvme_tag_fits(header);
	if (!within(&entry, who, 1))
		return -EBADMSG;
	*ret = entry;
	return 0;
}

int nvme_record_probe(const uint8_t bytes[NVME_PAGE], const struct nvme_identity *who,
		      uint32_t page, struct nvme_entry *ret, uint32_t *ret_tag_page)
{
	const uint8_t *tag = bytes + NVME_PAGE - sizeof(struct nvme_tag);
	struct image_header header;
	uint32_t image_bytes, offset;

	memcpy(&header, bytes, sizeof(header));
	if (nvme_image_check(&header, &image_bytes, &offset))
		return -EBADMSG;
	if (!nvme_tag_check(tag, who, &header, page, ret) && ret->coded_bytes)
		return 0;
	if (!nvme_tag_fits(&header))
		return nvme_tag_check(tag, who, &header, page + 1, ret);
	if (offset == NVME_PAGE)
		return nvme_tag_check(tag, who, &header, page, ret);
	*ret_tag_page = page + offset / NVME_PAGE - 1;
	return *ret_tag_page < who->segment_bytes / NVME_PAGE ? -EAGAIN : -EBADMSG;
}

uint32_t nvme_footer_bytes(uint32_t count)
{
	assert(count <= NVME_MAX_ENTRIES);
	return (uint32_t)nvme_round_page(count * sizeof(struct nvme_entry) +
					 sizeof(struct nvme_trailer));
}

uint32_t nvme_entries_max(uint32_t segment_bytes)
{
	return segment_bytes / (2 * NVME_PAGE);
}

void nvme_footer_encode(const struct nvme_identity *who, uint32_t count, bool open, uint8_t *footer)
{
	const size_t entries = count * sizeof(struct nvme_entry);
	const size_t end = nvme_footer_bytes(count) - sizeof(struct nvme_trailer);
	struct nvme_trailer trailer = {
		.magic = NVME_FOOTER_MAGIC,
		.format = NVME_FORMAT,
		.open = open,
		.sequence = who->sequence,
		.segment = who->segment,
		.count = count,
		.entries_crc = image_crc32c(footer, entries),
	};

	memcpy(trailer.uuid, who->uuid, sizeof(trailer.uuid));
	trailer.crc = image_crc32c(&trailer, offsetof(struct nvme_trailer, crc));
	memset(footer + entries, 0, end - entries);
	memcpy(footer + end, &trailer, sizeof(trailer));
}

static bool entries_good(const struct nvme_entry *entries, uint32_t count,
			 const struct nvme_identity *who)
{
	uint64_t next = 1; /* page: behind the header */

	for (uint32_t i = 0; i < count; i++) {
		const struct nvme_entry *e = &entries[i];

		if (e->image_bytes <= NVME_PAGE || e->image_bytes > IMAGE_MAX_BYTES ||
		    e->tag_page > 1)
			return false;
		if (e->coded_bytes && (e->tag_page || !coded_good(e->coded_bytes, e->image_bytes)))
			return false;
		if (!within(e, who, count) || nvme_record_first_page(e) < next)
			return false;
		next = nvme_record_first_page(e) + nvme_record_bytes(e) / NVME_PAGE;
	}
	return true;
}

int nvme_footer_check(const uint8_t *tail, uint32_t n, const struct nvme_identity *who,
		      struct nvme_footer *ret)
{
	struct nvme_trailer trailer;

	assert(n >= NVME_PAGE && n % NVME_PAGE == 0);
	memcpy(&trailer, tail + n - sizeof(trailer), sizeof(trailer));
	if (trailer.magic != NVME_FOOTER_MAGIC || trailer.format != NVME_FORMAT ||
	    trailer.crc != image_crc32c(&trailer, offsetof(struct nvme_trailer, crc)))
		return -EBADMSG;
	if (memcmp(trailer.uuid, who->uuid, sizeof(trailer.uuid)) ||
	    trailer.sequence < who->sequence || trailer.segment != who->segment)
		return -EBADMSG;
	if (trailer.count > nvme_entries_max(who->segment_bytes))
		return -EBADMSG;
	ret->count = trailer.count;
	ret->open = trailer.open;
	ret->sequence = trailer.sequence;
	if (nvme_footer_bytes(trailer.count) > n)
		return -EAGAIN;
	/* Footer buffers are page-aligned, and so is the footer's length: the entries are aligned,
	 * too. */
	ret->entries = (const void *)(tail + n - nvme_footer_bytes(trailer.count));
	return trailer.entries_crc == image_crc32c(ret->entries,
						   trailer.count * sizeof(*ret->entries)) &&
			       entries_good(ret->entries, trailer.count, who) ?
		       0 :
		       -EBADMSG;
}
