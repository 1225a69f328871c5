/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_nvme_sparse.c - goal: a start reads no more than it has to: 4 KiB and a footer a segment, so
 * that 1 TiB of 1 MiB blocks is ready after some hundred MiB of reads. Method: a store of 50 GiB is
 * laid into a sparse file, superblocks, headers and footers only, which is all that a start looks
 * at after a clean end; the daemon must find every record, and have read no more than the
 * arithmetic says. Prints bytes and time, and the same reckoned for 1 TiB.
 *
 * The images themselves are holes: no engine knows this space, and one that asked would get misses.
 */
#include "tests/lib/lib_disk.h"

#include "tiers/nvme/log/nvme_format.h"

enum {
	SEGMENT_BYTES = 64 << 20,
	SEGMENTS = 800,
	/* so many have records: a store without spare ones begins to reclaim */
	FULL = SEGMENTS - 24,
	IMAGE_BYTES = 4096 + (1 << 20), /* header and scales, 1 MiB of payload */
	RECORD_PAGES = IMAGE_BYTES / NVME_PAGE,
	/* first read of a footer, of a size not known yet */
	FOOTER_READ = 16384,
};
static const uint64_t store_bytes = NVME_DATA_OFFSET + (uint64_t)SEGMENTS * SEGMENT_BYTES;

/* As many as leave room for header and footer. */
static uint32_t records_a_segment(void)
{
	uint32_t n = 0;

	while ((1 + (uint64_t)(n + 1) * RECORD_PAGES) * NVME_PAGE + nvme_footer_bytes(n + 1) <=
	       SEGMENT_BYTES)
		n++;
	return n;
}

static void put(int fd, uint64_t offset, const void *bytes, size_t n)
{
	assert_int_equal(pwrite(fd, bytes, n, (off_t)offset), n);
}

static void put_supers(int fd, const uint8_t uuid[16])
{
	static struct nvme_super super;

	super = (struct nvme_super){
		.generation = 1,
		.life = 1,
		.segment_bytes = SEGMENT_BYTES,
		.segments = SEGMENTS,
	};
	memcpy(super.uuid, uuid, sizeof(super.uuid));
	nvme_super_seal(&super);
	for (uint32_t copy = 0; copy < NVME_SUPER_COPIES; copy++)
		put(fd, nvme_super_offset(copy), &super, sizeof(super));
}

static struct nvme_entry entry_of(uint32_t segment, uint32_t i)
{
	const uint64_t number = (uint64_t)segment * 4096 + i;
	struct nvme_entry entry = {
		.tick = number + 1,
		.epoch = 1ull << 32,
		.image_bytes = IMAGE_BYTES,
		.header_crc = 1,
		.page = (uint16_t)(1 + i * RECORD_PAGES),
	};

	random_key(number, entry.key);
	if (i > 0)
		random_key(number - 1, entry.parent);
	memset(entry.owner, 0x44, sizeof(entry.owner));
	return entry;
}

static void put_segment(int fd, const uint8_t uuid[16], uint32_t segment, uint32_t records)
{
	static uint8_t header[NVME_PAGE], footer[FOOTER_READ];
	struct nvme_identity who = {
		.sequence = (1ull << 32) + 1 + segment,
		.segment = segment,
		.segment_bytes = SEGMENT_BYTES,
	};
	const uint64_t at = nvme_segment_offset(segment, SEGMENT_BYTES);
	const uint32_t footer_bytes = nvme_footer_bytes(records);

	assert_true(footer_bytes <= sizeof(footer));
	memcpy(who.uuid, uuid, sizeof(who.uuid));
	nvme_header_encode(&who, &(struct nvme_budget){ 0 }, header);
	put(fd, at, header, sizeof(header));
	memset(footer, 0, sizeof(footer));
	for (uint32_t i = 0; i < records; i++)
		((struct nvme_entry *)(void *)footer)[i] = entry_of(segment, i);
	nvme_footer_encode(&who, records, false, footer);
	put(fd, at + SEGMENT_BYTES - footer_bytes, footer, footer_bytes);
}

/* False: the file system fills holes in, or cannot have a file of this size. */
static bool lay_out(const char *path)
{
	const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	uint8_t uuid[16];
	struct stat st;

	assert_true(fd >= 0);
	memset(uuid, 0x77, sizeof(uuid));
	if (ftruncate(fd, (off_t)store_bytes)) {
		(void)close(fd);
		return false;
	}
	put_supers(fd, uuid);
	for (uint32_t i = 0; i < FULL; i++)
		put_segment(fd, uuid, i, records_a_segment());
	assert_int_equal(fsync(fd), 0);
	assert_int_equal(fstat(fd, &st), 0);
	(void)close(fd);
	return (uint64_t)st.st_blocks * 512 < store_bytes / 64;
}

static void report(const struct disk_world *w, uint64_t bytes)
{
	const double per_tib = (double)(1ull << 40) / (double)store_bytes,
		     mib = (double)bytes / (1 << 20);
	const double ms = (double)daemon_stat(&w->d, "tiers.nvme.recovery_ms");

	printf("%s: 50 GiB, %u segments of 64 MiB, %u blocks of 1 MiB: %.1f MiB read in %.0f ms; 1 "
	       "TiB: %.0f MiB, %.2f s\n",
	       w->engine, SEGMENTS, FULL * records_a_segment(), mib, ms, mib * per_tib,
	       ms * per_tib / 1e3);
}

ON_BOTH_ENGINES(fifty_gib_start_from_footers_alone)
{
	const uint64_t records = (uint64_t)FULL * records_a_segment(),
		       headers = (uint64_t)SEGMENTS * NVME_PAGE;
	const uint64_t least = headers + (uint64_t)FULL * nvme_footer_bytes(records_a_segment());
	const uint64_t most =
		headers + (uint64_t)FULL * FOOTER_READ + (uint64_t)NVME_SUPER_COPIES * NVME_PAGE;
	struct disk_world *w;
	uint64_t bytes;
	char config[256];

	(void)snprintf(config, sizeof(config),
		       HOST("8M", "2M") "[index]\nmax_blocks = 100000\n[nvme]\nbytes = %llu\n",
		       (unsigned long long)store_bytes);
	w = disk_place(state, config);
	if (!lay_out(w->path)) {
		printf("skipped: no sparse files in %s\n", w->d.disk);
		disk_end(w);
		skip();
	}
	disk_live(w);
	daemon_stat_reaches(&w->d, "tiers.nvme.recovered_blocks", records);
	daemon_stat_becomes(&w->d, "tiers.nvme.blocks", records, PATIENT_MS);
	daemon_stat_becomes(&w->d, "index.entries", records, PATIENT_MS);
	bytes = daemon_stat(&w->d, "tiers.nvme.recovery_bytes");
	assert_true(bytes >= least && bytes <= most);
	report(w, bytes);
	disk_die(w, SIGKILL);
	disk_end(w);
}
