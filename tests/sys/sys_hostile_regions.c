/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_hostile_regions.c - goal: a space whose regions, segments or geometry are not in order is
 * refused with a sentence that names field and limit, leaves nothing behind, and the connection can
 * open a good one right after. Method: one good SPACE_OPEN, one field changed a time, while an
 * honest engine stores and loads.
 */
#include "tests/lib/lib_raw.h"

static struct {
	struct daemon d;
	struct witness witness;
	struct raw raw; /* one connection for all cases: it must outlive each */
	int fds, maps;  /* of the daemon, with that connection */
} w;

/* Sends the space over `fd`, and closes that. */
static void refused_over(struct raw_space *space, int fd, int error, const char *text)
{
	assert_int_equal(raw_send(&w.raw, space, sizeof(*space), &fd, 1), 0);
	raw_expect_refused(&w.raw, error, text);
	(void)close(fd);
}

static void refused(struct raw_space *space, int error, const char *text)
{
	refused_over(space, memfd_make(raw_region_bytes(), F_SEAL_SHRINK), error, text);
}

#define FIELD_CASE(name, change, text)               \
	TEST(name)                                   \
	{                                            \
		struct raw_space space, *s = &space; \
                                                     \
		raw_space_fill(&w.raw, s);           \
		change;                              \
		refused(s, -EINVAL, text);           \
	}

FIELD_CASE(segment_past_the_region, s->segments[3].offset = raw_region_bytes(),
	   "segments[3].offset")
FIELD_CASE(segment_that_wraps, s->segments[1].offset = 0ull - 1024,
	   "segments[1].offset and strides overflow")
FIELD_CASE(token_stride_that_wraps, s->segments[2].token_stride = 1ull << 61,
	   "segments[2].offset and strides overflow")
FIELD_CASE(head_stride_past_the_region, s->segments[2].head_stride = 1ull << 40,
	   "segments[2].offset")
FIELD_CASE(page_stride_zero, s->segments[0].page_stride = 0, "segments[0].page_stride is 0")
FIELD_CASE(odd_offset, s->segments[0].offset = 3,
	   "segments[0].offset is 3; must be a multiple of the dtype's 2")
FIELD_CASE(region_that_is_not_there, s->segments[1].region = 1,
	   "segments[1].region is 1; must be less than the 1")
FIELD_CASE(kind_that_is_none, s->segments[1].kind = 9, "segments[1].kind is 9; must be 1 (k)")
FIELD_CASE(layer_too_high, s->segments[2].layer = 2, "segments[2].layer is 2; must be 0 to 1")
FIELD_CASE(layer_twice, s->segments[2].layer = 0, "segments[2].layer 0 has two k segments")
FIELD_CASE(region_longer_than_its_memfd, s->region.length *= 2, "regions[0]: region: offset 0")
FIELD_CASE(region_offset_that_wraps, s->region.offset = 0ull - 4096,
	   "regions[0]: region: offset 18446744073709547520")
FIELD_CASE(region_offset_unaligned, s->region.offset = 64, "a multiple of 4096")
FIELD_CASE(region_of_no_bytes, s->region.length = 0, "regions[0]: region:")
FIELD_CASE(fd_that_did_not_come, s->region.fd_index = 1,
	   "regions[0].fd_index is 1; the packet carries 1")
FIELD_CASE(memory_of_unknown_kind, s->region.memory = 8,
	   "regions[0].memory is 8; must be 1 (memfd)")
FIELD_CASE(memfd_with_a_handle, s->region.handle[63] = 1, "regions[0].handle: a memfd has none")
FIELD_CASE(memfd_of_a_device, s->region.device[0] = 1,
	   "regions[0].device: a memfd has no device's UUID")
FIELD_CASE(handle_of_no_device, s->region.memory = WIRE_DEVICE_HANDLE,
	   "regions[0].device: a device handle needs a device's UUID")
FIELD_CASE(region_reserved_in_use, s->region.reserved[2] = 1, "regions[0].reserved is not 0")
FIELD_CASE(no_layers, s->open.geometry.layers = 0, "geometry.layers is 0; must be 1 to 1024")
FIELD_CASE(too_many_heads, s->open.geometry.kv_heads = 5000,
	   "geometry.kv_heads is 5000; must be 1 to 1024")
FIELD_CASE(rank_beyond_world, s->open.geometry.rank = 1, "geometry.rank is 1; must be 0 to 0")
FIELD_CASE(codec_of_tomorrow, s->open.geometry.codec = 8, "geometry.codec is 8; must be 0 to 7")
FIELD_CASE(lossless_of_fp32, (s->open.geometry.codec = 4, s->open.geometry.dtype = KVTIER_FP32),
	   "geometry.codec does not go with")
FIELD_CASE(codec_against_dtype, s->open.geometry.codec = 3, "does not go with the rest")
FIELD_CASE(model_empty, memset(s->open.geometry.model, 0, 256), "geometry.model must not be empty")
FIELD_CASE(model_without_end, memset(s->open.geometry.model, 'm', 256),
	   "geometry.model must be at most 255 bytes")
FIELD_CASE(model_with_a_tail, s->open.geometry.model[200] = 'm',
	   "geometry.model must be zero-padded")
FIELD_CASE(opaque_bytes_nowhere, s->open.geometry.opaque_bytes = 64, "opaque_bytes is 64")

TEST(block_of_gigabytes)
{
	struct raw_space space;
	struct wire_geometry *g = &space.open.geometry;

	raw_space_fill(&w.raw, &space);
	g->layers = g->kv_heads = 1024;
	g->head_dim_k = g->head_dim_v = g->block_tokens = 4096;
	refused(&space, -EINVAL, "use fewer block_tokens");
}

TEST(block_larger_than_a_slab)
{
	struct raw_space space;

	raw_space_fill(&w.raw, &space);
	space.open.geometry.block_tokens = 4096;
	refused(&space, -E2BIG, "[host] slab_bytes");
}

/* --- kinds of regions --- */

static void over(int fd, int error, const char *text)
{
	struct raw_space space;

	raw_space_fill(&w.raw, &space);
	refused_over(&space, fd, error, text);
}

/* By a handle, without a descriptor, and by a descriptor that is no memfd: both get as far as the
 * list of devices. */
TEST(memory_of_a_device_that_is_not_here)
{
	const int any = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct raw_space space;

	raw_space_fill(&w.raw, &space);
	space.region.memory = WIRE_DEVICE_HANDLE;
	memset(space.region.device, 0xab, sizeof(space.region.device));
	space.region.handle[0] = 1;
	assert_int_equal(raw_send(&w.raw, &space, sizeof(space), NULL, 0), 0);
	raw_expect_refused(&w.raw, -ENODEV, "serves no device abababababababababababababababab");
	raw_space_fill(&w.raw, &space);
	space.region.memory = WIRE_DEVICE_FD;
	space.region.device[15] = 1;
	refused_over(&space, any, -ENODEV, "serves no device 00000000000000000000000000000001");
}

TEST_DO(memfd_that_could_shrink,
	over(memfd_make(raw_region_bytes(), F_SEAL_GROW), -EPERM, "lacks F_SEAL_SHRINK"));
TEST_DO(memfd_sealed_against_writing,
	over(memfd_make(raw_region_bytes(), F_SEAL_SHRINK | F_SEAL_WRITE), -EPERM,
	     "sealed against writing cannot receive loads"));

/* Its owner could punch holes for which the machine has no huge page left. */
TEST(memfd_of_huge_pages)
{
	const int fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);

	if (fd < 0 || ftruncate(fd, 2 << 20) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		skip(); /* not with this kernel */
	over(fd, -EPERM, "MFD_HUGETLB");
}

TEST(memfd_open_for_reading)
{
	const int fd = memfd_make(raw_region_bytes(), F_SEAL_SHRINK);
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	over(open(path, O_RDONLY | O_CLOEXEC), -EACCES, "cannot map");
	(void)close(fd);
}

TEST(pipe_for_memory)
{
	int fds[2];

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	over(fds[1], -EPERM, "not a memfd");
	(void)close(fds[0]);
}

TEST(regular_file_for_memory)
{
	char path[] = "/tmp/kvtier-test-file-XXXXXX";
	const int fd = mkostemp(path, O_CLOEXEC);

	assert_true(fd >= 0);
	(void)unlink(path);
	assert_int_equal(ftruncate(fd, (off_t)raw_region_bytes()), 0);
	over(fd, -EPERM, "memfd");
}

/* Sparse, and so free for its owner; but of the daemon's address space there is no more for others
 * then. */
TEST(region_of_terabytes)
{
	const uint64_t bytes = 64ull << 40;
	struct raw_space space;

	raw_space_fill(&w.raw, &space);
	space.region.length = bytes;
	refused_over(&space, memfd_make(bytes, F_SEAL_SHRINK), -ENOSPC,
		     "[socket] max_clients = 256 leaves it");
}

/* Each is a mapping, of which a process may have 65,530. */
TEST(more_regions_than_its_share)
{
	struct raw r;
	int error;

	raw_open(&r, w.d.socket);
	assert_true(raw_hoard(&r, &error) > 1);
	assert_int_equal(error, -ENOSPC);
	raw_close(&r);
}

TEST(more_spaces_than_there_can_be)
{
	struct raw_space space;
	const int fd = memfd_make(raw_region_bytes(), F_SEAL_SHRINK);
	struct wire_space_ok ok;
	struct raw r;

	raw_open(&r, w.d.socket);
	for (int i = 0; i < WIRE_MAX_SPACES; i++) {
		raw_space_fill(&r, &space);
		assert_int_equal(raw_send(&r, &space, sizeof(space), &fd, 1), 0);
		assert_int_equal(raw_receive(&r, &ok, sizeof(ok)), sizeof(ok));
	}
	raw_space_fill(&r, &space);
	assert_int_equal(raw_send(&r, &space, sizeof(space), &fd, 1), 0);
	raw_expect_refused(&r, -ENOSPC, "32 spaces are open");
	raw_close(&r);
	(void)close(fd);
}

/* --- the world around each case --- */

FIXTURE(after_each)
{
	uint32_t handle;

	(void)close(raw_space_open(&w.raw, &handle)); /* the connection still opens a good one */
	raw_space_close(&w.raw, handle);
	witness_check(&w.witness);
	daemon_stat_becomes(&w.d, "clients", 2, PATIENT_MS);
	assert_int_equal(daemon_stat(&w.d, "protocol_errors_total"), 0);
	daemon_fds_fall_to(&w.d, w.fds, PATIENT_MS);
	daemon_maps_become(&w.d, "memfd:engine", w.maps, PATIENT_MS);
	return 0;
}

FIXTURE(begin)
{
	daemon_start(&w.d, SMALL_HOST);
	witness_start(&w.witness, w.d.socket);
	raw_open(&w.raw, w.d.socket);
	daemon_stat_becomes(&w.d, "clients", 2, PATIENT_MS);
	w.fds = daemon_fds_settled(&w.d);
	w.maps = daemon_maps(&w.d, "memfd:engine");
	return 0;
}

FIXTURE_DO(end, raw_close(&w.raw); witness_stop(&w.witness); daemon_remove(&w.d));

TEST_EACH(NULL, after_each);
TEST_GROUP(begin, end);
