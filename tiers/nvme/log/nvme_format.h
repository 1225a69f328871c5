/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_format.h - the bytes on an NVMe disk (file or partition), and their checks. The functions
 * are pure, and any thread may call them.
 *
 *	0         superblock   4 KiB: the store's uuid, shape and life, and its purges
 *	32 KiB    superblock   the same; each change is written to both, and the newest valid one
 *			       wins
 *	60 KiB    spare        4 KiB that are never read: written to see whether the disk takes
 *			       writes
 *	64 KiB    segments     segment_bytes each:
 *
 *	  0        header   4 KiB: store, segment, sequence
 *	  4096     records  one after the other, each an image rounded up to 4 KiB, written once
 *	  ...
 *	  end      footer   entries, then a trailer in the very last bytes; written when the segment
 *	                    is full. Room for it is kept free while the segment fills
 *
 * A segment that is used again may keep records where they are. Then an open footer, which lists
 * these, is written before the header, with its sequence; new records lie between them. So a
 * footer's sequence may be later than the header's. The tag of a kept record is of an earlier
 * sequence: only the footer tells of it.
 *
 * All numbers are little endian. A record is an image as it lies in a host slot (daemon/IMAGE.md).
 * The log keeps a tag of 128 bytes beside it, in the padding right before the payload. Where the
 * padding is shorter than 128 bytes, a page of its own precedes the image, with a copy of the
 * image's header, and the tag at its end. This page is written after the image: if it is found, so
 * is the image.
 *
 * A record may be the coded form of its image (kernels/form.h) instead: a page with the image's
 * header at its start and the tag at its end, then the form, rounded up to 4 KiB. It has at least a
 * page less than the image. Its tag has a magic of its own, and tag and entry its bytes;
 * image_bytes are those of the image all the same.
 *
 * The data path never syncs, so after a crash any of this may be missing, torn or old.
 * Therefore
 *   - every structure has a CRC-32C, and names the store (uuid) and the segment's sequence. A
 *     sequence is never used twice: its upper half is the store's life, which the superblock counts
 *     up before anything is written;
 *   - a tag also names its own place, and the CRC of the image header it belongs to;
 *   - a record only says that it may be worth reading. The reader checks the image against key,
 *     space and checksum.
 * The uuid never leaves the store: engines write payloads, and an engine that knew uuid and
 * sequence could forge a record inside its own payload.
 *
 * Purge: every record has the epoch in which it was written. The superblock lists (tenant, epoch):
 * records of this tenant of an earlier epoch are dead. It is a list, not one epoch for all, because
 * a purge of one tenant must not cost the others their cache. The list is bounded: when it is full,
 * its oldest purge becomes the floor. Below the floor every record is dead, of any tenant; such
 * records are old by then.
 */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/image.h"

enum {
	NVME_PAGE = 4096,
	NVME_FORMAT = 1,
	NVME_SUPER_COPIES = 2,
	NVME_SUPER_GAP = 32768, /* from one copy to the next */
	NVME_SPARE_OFFSET = 61440,
	NVME_DATA_OFFSET = 65536, /* of segment 0 */
	NVME_MIN_SEGMENT_BYTES = 64 << 10,
	NVME_MAX_SEGMENT_BYTES = 256 << 20,
	NVME_MIN_SEGMENTS = 4,
	NVME_MAX_SEGMENTS = 65535,
	/* of a segment: a record takes two pages at least, so bytes bound a segment, never these */
	NVME_MAX_ENTRIES = NVME_MAX_SEGMENT_BYTES / (2 * NVME_PAGE),
	NVME_MAX_PURGES = 128,
	NVME_TENANT_BYTES = 16,
};

enum {
	NVME_SUPER_MAGIC = 0x534e564b,  /* "KVNS" */
	NVME_HEADER_MAGIC = 0x484e564b, /* "KVNH" */
	NVME_TAG_MAGIC = 0x544e564b,    /* "KVNT" */
	NVME_CODED_MAGIC = 0x434e564b,  /* "KVNC": of a coded record's tag */
	NVME_FOOTER_MAGIC = 0x464e564b, /* "KVNF" */
};

struct nvme_purge {
	uint8_t tenant[NVME_TENANT_BYTES];
	uint64_t epoch; /* records of an earlier one are dead */
};

struct nvme_super {
	uint32_t magic;
	uint16_t format;
	uint16_t purges; /* in use below */
	uint8_t uuid[16];
	/* of this superblock: one more each time it is written */
	uint64_t generation;
	uint64_t life;        /* one more each time the store is opened */
	uint64_t epoch_floor; /* records of an earlier epoch are dead */
	uint32_t segment_bytes;
	uint32_t segments;
	uint8_t reserved0[8];
	struct nvme_purge purge[NVME_MAX_PURGES];
	uint8_t reserved1[956];
	/* of all bytes before. Here in every format to come */
	uint32_t crc;
};
static_assert(sizeof(struct nvme_super) == NVME_PAGE, "nvme_super");

/* The write budget's bucket: it goes on where it was, also behind a kill and a reboot. */
struct nvme_budget {
	int64_t level_bytes; /* may be less than 0 */
	uint64_t at_s;       /* CLOCK_REALTIME; 0: there was no budget */
};

struct nvme_header {
	uint32_t magic;
	uint16_t format;
	uint16_t reserved0;
	uint8_t uuid[16];
	uint64_t sequence;
	uint32_t segment; /* number, from 0 */
	uint32_t segment_bytes;
	struct nvme_budget budget; /* when the header was written */
	uint8_t reserved1[4];
	uint32_t crc;
};
static_assert(sizeof(struct nvme_header) == 64, "nvme_header");

struct nvme_tag {
	uint32_t magic;
	uint32_t image_bytes; /* the record's for its image, which may be shorter */
	uint8_t uuid[16];
	uint64_t sequence;
	uint64_t epoch;
	uint64_t tick;
	/* bytes 0..15 name the tenant, the others are the caller's */
	uint8_t owner[32];
	uint8_t parent[32];   /* key; zeros: no parent */
	uint32_t page;        /* of the image's first byte, in pages from the segment's start */
	uint32_t header_crc;  /* of the image */
	uint32_t coded_bytes; /* of a coded record, without its padding; else 0 */
	uint32_t crc;
};
static_assert(sizeof(struct nvme_tag) == 128, "nvme_tag");

/* A record as the footer has it, and as recovery reports it. */
struct nvme_entry {
	uint8_t key[32];
	uint8_t parent[32];
	uint8_t owner[32];
	uint64_t tick;
	uint64_t epoch;
	uint32_t image_bytes; /* as the tag's */
	uint32_t header_crc;
	uint16_t page;        /* of the image, as above */
	uint16_t tag_page;    /* 1: the page before belongs to the record, too */
	uint32_t coded_bytes; /* as the tag's */
};
static_assert(sizeof(struct nvme_entry) == 128, "nvme_entry");

struct nvme_trailer {
	uint32_t magic;
	uint16_t format;
	uint16_t open; /* 1: records of this sequence may lie between those of the entries */
	uint8_t uuid[16];
	uint64_t sequence;
	uint32_t segment;
	uint32_t count; /* entries */
	uint32_t entries_crc;
	uint8_t reserved1[16];
	uint32_t crc;
};
static_assert(sizeof(struct nvme_trailer) == 64, "nvme_trailer");

/* The store and segment whose structures are to be read or written. */
struct nvme_identity {
	uint8_t uuid[16];
	uint64_t sequence; /* 0, for the check of a tag: any */
	uint32_t segment;
	uint32_t segment_bytes;
};

static inline uint64_t nvme_round_page(uint64_t bytes)
{
	return (bytes + NVME_PAGE - 1) / NVME_PAGE * NVME_PAGE;
}

uint64_t nvme_super_offset(uint32_t copy);
uint64_t nvme_segment_offset(uint32_t segment, uint32_t segment_bytes);

/* 0; -EINVAL: segment_bytes is no multiple of 4 KiB, or it or the number of segments is out of its
 * limits. */
int nvme_shape_check(uint32_t segment_bytes, uint64_t segments);

void nvme_super_seal(struct nvme_super *super); /* magic, format, crc */
/* 0; -ENODATA: all zeros; -EMEDIUMTYPE: no superblock of ours; -EBADMSG: damaged;
 * -EPROTONOSUPPORT: whole, of a format unknown here. */
int nvme_super_check(const uint8_t page[NVME_PAGE], struct nvme_super *ret);
/* The newest good superblock of both copies, which lie one after the other in `pages`; else the
 * error of both, -EBADMSG if one is damaged, or -EMEDIUMTYPE. A copy of a newer format decides
 * alone: this version is too old for the store. */
int nvme_super_newest(const uint8_t *pages, struct nvme_super *ret, uint32_t *ret_copy);
/* Purges the tenant: its records of epochs before `epoch`, which is later than any so far. */
void nvme_super_purge(struct nvme_super *super, const uint8_t tenant[NVME_TENANT_BYTES],
		      uint64_t epoch);
bool nvme_super_dead(const struct nvme_super *super, const uint8_t owner[32], uint64_t epoch);

void nvme_header_encode(const struct nvme_identity *who, const struct nvme_budget *budget,
			uint8_t ret[NVME_PAGE]);
/* 0 or -EBADMSG. who->sequence is not looked at: *ret_sequence is the header's. */
int nvme_header_check(const uint8_t page[NVME_PAGE], const struct nvme_identity *who,
		      uint64_t *ret_sequence, struct nvme_budget *ret_budget);

/* 0, or -EBADMSG: no image header, or not one of an image of these limits. *ret_payload_offset as
 * in image.h. */
int nvme_image_check(const struct image_header *header, uint32_t *ret_image_bytes,
		     uint32_t *ret_payload_offset);
/* nvme_image_check(), and that a record with so many bytes for its image may have this one: a
 * lossless image may be shorter, as may a requantised one (recode.h), and has zeros behind it. */
int nvme_image_within(const struct image_header *header, uint32_t bytes,
		      uint32_t *ret_payload_offset);
bool nvme_tag_fits(const struct image_header *header); /* in the image's padding */

/* The tag of an entry, 128 bytes. */
void nvme_tag_encode(const struct nvme_identity *who, const struct nvme_entry *entry, uint8_t *ret);
/* Decodes a tag; the key and so on come from its image's header. 0, or -EBADMSG: not the tag of
 * this image, of this segment and sequence, at this page. */
int nvme_tag_check(const uint8_t *tag, const struct nvme_identity *who,
		   const struct image_header *header, uint32_t page, struct nvme_entry *ret);
/* Looks for a record that begins in `page`, the page'th of its segment. 0; -EBADMSG: no record;
 * -EAGAIN: there may be: its tag would be in the last 128 bytes of page *ret_tag_page (then
 * nvme_tag_check()). */
int nvme_record_probe(const uint8_t bytes[NVME_PAGE], const struct nvme_identity *who,
		      uint32_t page, struct nvme_entry *ret, uint32_t *ret_tag_page);
/* The bytes that a record takes on the disk, and its first page. */
uint64_t nvme_record_bytes(const struct nvme_entry *entry);
uint32_t nvme_record_first_page(const struct nvme_entry *entry);

/* The bytes of the pages that `count` entries and the trailer take. */
uint32_t nvme_footer_bytes(uint32_t count);
/* How many entries a segment of this size can have. */
uint32_t nvme_entries_max(uint32_t segment_bytes);
/* The entries lie at the start of `footer`, which has nvme_footer_bytes(count); seals it. */
void nvme_footer_encode(const struct nvme_identity *who, uint32_t count, bool open,
			uint8_t *footer);

struct nvme_footer {
	const struct nvme_entry *entries; /* in the tail that was checked */
	uint32_t count;
	bool open;
	uint64_t sequence;
};

/* `tail`: the last n bytes of a segment, n a multiple of 4096. 0; -EBADMSG: no footer of this
 * segment and of this sequence or a later one; -EAGAIN: it has ret->count entries and needs more of
 * the tail than n. On 0 the entries are in order of their places, within the segment, not
 * overlapping. */
int nvme_footer_check(const uint8_t *tail, uint32_t n, const struct nvme_identity *who,
		      struct nvme_footer *ret);
