/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=20 */
/*
 * gpu_outlive - goal: with [gpu] outlive, images in a GPU's memory serve again after a restart and
 * after kill -9, bit for bit, without a byte over the wire but for their check. Wrong memory is
 * never served: flipped bytes, a book that was rewritten with rubbish or with other blocks'
 * entries, memory of another GPU, driver or size. Memory of no further use is zeroed where it can
 * be mapped, and no process keeps it. Method: the emulated driver; a keeper in the place of the
 * service manager, whose descriptors the test looks at and writes to between two lives.
 */
#include "tests/lib/lib_gpu_raw.h"
#include "tests/lib/lib_keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/gpu/gpu_book.h"

enum { N = 12, CHAIN = 5, MIB = 1 << 20, SLAB = 4 * MIB, HEAD = 4096 };

#define CONFIG_OF(gpu_keys)                                                                        \
	"[host]\nbytes = 64M\nslab_bytes = 4M\nhuge_pages = no\n[device]\nworkers = 2\ndepth = "   \
	"16\n[nvme]\nbytes = 64M\nsegment_bytes = 1M\n[gpu]\ndevices = required\nstaging_bytes = " \
	"8M\n" gpu_keys

static const char config[] = CONFIG_OF("bytes = 16M\noutlive = yes\n");

static struct daemon d;
static struct gpu gpu;
static struct kvtier_geometry geometry;

/* It stays until the daemon is gone: a GPU without regions gives its memory back after a while. */
static struct gpu_raw engine;
static bool connected;

static void disconnect(void)
{
	if (connected)
		gpu_raw_close(&engine);
	connected = false;
}

static int begin(void **state)
{
	(void)state;
	gpu_open(&gpu, 0);
	keeper_open();
	daemon_place(&d, true);
	daemon_configure(&d, config);
	d.enter = keeper_enter;
	geometry = large_geometry(KVTIER_CODEC_FP8);
	daemon_restart(&d);
	return 0;
}

static int end(void **state)
{
	(void)state;
	disconnect();
	gpu_daemon_end(&d, &gpu);
	keeper_close();
	return 0;
}

/* --- lives --- */

static void connect_engine(void)
{
	disconnect();
	gpu_raw_open(&engine, d.socket, &gpu, &geometry, 2 * N);
	connected = true;
}

static void die(int signal)
{
	daemon_signal(&d, signal);
	disconnect();
}

static void live_again(void)
{
	keeper_settle();
	daemon_restart(&d);
}

static void store(void)
{
	connect_engine();
	gpu_raw_fill(&engine, CHAIN, 0, N);
	assert_int_equal(gpu_raw_run(&engine, WIRE_OP_STORE, CHAIN, 0, N).status, 0);
	daemon_stat_becomes(&d, "tiers.gpu.blocks", N, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.nvme.blocks", N, PATIENT_MS);
}

/* Present blocks come with their own bytes, so many from the GPU. */
static void load(uint32_t hits)
{
	const uint64_t before = daemon_stat(&d, "tiers.gpu.hit_blocks_total");
	struct wire_cqe cqe;

	if (!connected)
		connect_engine();
	gpu_raw_poison(&engine, N, N);
	cqe = gpu_raw_run(&engine, WIRE_OP_LOAD, CHAIN, N, N);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(cqe.ok, N);
	for (uint32_t i = 0; i < N; i++)
		assert_true(gpu_raw_holds(&engine, CHAIN, i, N + i));
	assert_int_equal(daemon_stat(&d, "tiers.gpu.hit_blocks_total") - before, hits);
}

/* All that was parked was looked at. */
static void returned(uint64_t again, uint64_t corrupt, uint64_t gone)
{
	daemon_stat_becomes(&d, "tiers.gpu.returned_blocks_total", again, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.gpu.unreturned_blocks_total", gone, PATIENT_MS);
	assert_int_equal(daemon_stat(&d, "tiers.gpu.corrupt_blocks_total"), corrupt);
	daemon_stat_becomes(&d, "tiers.gpu.blocks", again, PATIENT_MS);
}

/* --- kept memory, from outside --- */

struct mapped {
	uint8_t *at;
	size_t bytes;
};

/* Also of a descriptor that opens nothing by itself. */
static struct mapped map(int fd)
{
	struct mapped ret = { 0 };
	struct stat st;
	char path[64];

	assert_true(fd >= 0);
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	ret.bytes = (size_t)st.st_size;
	ret.at = mmap(NULL, ret.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(ret.at != MAP_FAILED);
	(void)close(fd);
	return ret;
}

static struct mapped map_kept(const char *end)
{
	const int fd = keeper_fd(end, 0);
	const struct mapped ret = map(fd);

	(void)close(fd);
	return ret;
}

static void unmap(struct mapped m)
{
	assert_int_equal(munmap(m.at, m.bytes), 0);
}

/* The first byte that is not 0, or `bytes`. */
static size_t first(struct mapped m)
{
	size_t i = 0;

	while (i < m.bytes && m.at[i] == 0)
		i++;
	return i;
}

/* A descriptor of a GPU's memory cannot be mapped by the CPU. */
static void needs_readable_memory(void)
{
	if (gpu_is_real())
		skip();
}

/* --- cases --- */

static void what_lay_there_serves_after_a_restart(void **state)
{
	(void)state;
	store();
	die(SIGTERM);
	assert_int_equal(keeper_count("-memory"), 1);
	assert_int_equal(keeper_count("-book"), 1);
	live_again();
	returned(N, 0, 0);
	load(N);
	/* and after one more */
	die(SIGTERM);
	live_again();
	returned(N, 0, 0);
	load(N);
	assert_int_equal(keeper_count(""), 2);
}

static void what_lay_there_serves_after_kill_9(void **state)
{
	(void)state;
	store();
	die(SIGKILL);
	live_again();
	returned(N, 0, 0);
	load(N);
	die(SIGKILL);
	live_again();
	returned(N, 0, 0);
	load(N);
}

/* It has a slot there that is free for others again. */
static void a_flipped_byte_is_never_served(void **state)
{
	struct mapped memory;
	size_t at;

	(void)state;
	needs_readable_memory();
	store();
	die(SIGTERM);
	memory = map_kept("-memory");
	at = first(memory);
	assert_true(at < memory.bytes);
	memory.at[at] ^= 1;
	unmap(memory);
	live_again();
	returned(N - 1, 1, 1);
	load(N - 1);
	load(N); /* the load brought it */
}

static void flipped_bytes_everywhere_are_never_served(void **state)
{
	struct mapped memory;

	(void)state;
	needs_readable_memory();
	store();
	die(SIGKILL);
	memory = map_kept("-memory");
	for (size_t i = 0; i < memory.bytes; i += 512)
		memory.at[i] ^= 0x40;
	unmap(memory);
	live_again();
	returned(0, N, N);
	load(0);
	load(N);
}

/* The whole book but its head, as chance will have it. */
static void a_book_of_rubbish_brings_nothing(void **state)
{
	struct random random = { gpu_seed() };
	struct mapped book;

	(void)state;
	store();
	die(SIGTERM);
	book = map_kept("-book");
	for (size_t i = HEAD; i < book.bytes; i++)
		book.at[i] = (uint8_t)random_below(&random, 256);
	unmap(book);
	live_again();
	load(0);
	load(N);
	assert_int_equal(daemon_stat(&d, "tiers.gpu.returned_blocks_total"), 0);
	/* all of the memory is of use again */
	die(SIGTERM);
	live_again();
	returned(N, 0, 0);
}

/* Of the slot sizes alone: entries of other places, and none that is whole. */
static void slot_sizes_of_rubbish_bring_nothing(void **state)
{
	static const uint32_t sizes[] = { 4096, 8192, SLAB, 0xffffffff, 4097 };

	(void)state;
	store();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct mapped book;

		die(SIGTERM);
		book = map_kept("-book");
		for (size_t slab = 0; slab < 4; slab++)
			memcpy(book.at + HEAD + 4 * slab, &sizes[i], 4);
		unmap(book);
		live_again();
		load(0);
		load(N);
		assert_int_equal(daemon_stat(&d, "tiers.gpu.returned_blocks_total"), 0);
	}
}

/* --- entries that are whole, and lie --- */

static struct gpu_book *open_book(uint32_t *ret_slab, uint32_t *ret_bytes)
{
	struct gpu_book_shape shape = { .slab_bytes = SLAB };
	const int fd = keeper_fd("-book", 0);
	struct gpu_book *ret = NULL;
	CUuuid uuid;
	uint32_t slots;
	int version;

	GPU(gpu_api()->cuDeviceGetUuid(&uuid, gpu.device));
	GPU(gpu_api()->cuDriverGetVersion(&version));
	memcpy(shape.gpu, uuid.bytes, sizeof(shape.gpu));
	shape.driver = (uint32_t)version;
	assert_int_equal(gpu_book_open(fd, &shape, &ret), 0);
	*ret_slab = 0;
	while ((*ret_bytes = gpu_book_slab(ret, *ret_slab, &slots)) == 0)
		*ret_slab += 1;
	return ret;
}

/* Two blocks change places, and one is said to lie in two slots. */
static void entries_of_other_blocks_are_never_served(void **state)
{
	struct gpu_book_entry one, two, three;
	struct gpu_book *book;
	uint32_t slab, bytes;

	(void)state;
	store();
	die(SIGTERM);
	book = open_book(&slab, &bytes);
	assert_true(gpu_book_get(book, slab, 0, &one));
	assert_true(gpu_book_get(book, slab, 1, &two));
	assert_true(gpu_book_get(book, slab, 2, &three));
	gpu_book_set(book, slab, 0, bytes, &two);
	gpu_book_set(book, slab, 1, bytes, &one);
	gpu_book_set(book, slab, 3, bytes, &three);
	gpu_book_close(book);
	live_again();
	returned(N - 3, 2, 3);
	load(N - 3);
}

/* The tenant's and the space's part of an entry, its size, its key. */
static void entries_of_nobody_bring_nothing(void **state)
{
	struct gpu_book_entry entry;
	struct gpu_book *book;
	uint32_t slab, bytes;

	(void)state;
	store();
	die(SIGTERM);
	book = open_book(&slab, &bytes);
	for (uint32_t slot = 0; slot < 4; slot++) {
		assert_true(gpu_book_get(book, slab, slot, &entry));
		entry.owner[0] ^= slot == 0;
		entry.owner[16] ^= slot == 1;
		entry.key[31] ^= slot == 2;
		entry.image_bytes -= slot == 3 ? 4096 : 0;
		gpu_book_set(book, slab, slot, bytes, &entry);
	}
	gpu_book_close(book);
	live_again();
	returned(N - 4, 0, 4);
	load(N - 4);
}

/* --- another GPU, size, configuration --- */

static void a_book_of_another_kind_is_dropped(void **state)
{
	struct mapped book;

	(void)state;
	store();
	for (size_t at = 0; at < 56; at += 8) {
		die(SIGTERM);
		book = map_kept("-book");
		book.at[at] ^= 1;
		unmap(book);
		live_again();
		assert_int_equal(keeper_count(""), 0);
		load(0);
		load(N);
		assert_int_equal(daemon_stat(&d, "tiers.gpu.returned_blocks_total"), 0);
		assert_int_equal(keeper_count(""), 2);
	}
}

static void memory_of_another_size_is_zeroed_and_dropped(void **state)
{
	struct mapped before, now;

	(void)state;
	needs_readable_memory();
	store();
	die(SIGTERM);
	before = map_kept("-memory");
	assert_true(first(before) < before.bytes);
	daemon_configure(&d, CONFIG_OF("bytes = 24M\noutlive = yes\n"));
	live_again();
	load(0);
	load(N);
	assert_int_equal(daemon_stat(&d, "tiers.gpu.returned_blocks_total"), 0);
	assert_int_equal(first(before), before.bytes);
	unmap(before);
	assert_int_equal(keeper_count(""), 2);
	now = map_kept("-memory");
	assert_int_equal(now.bytes, 24 * MIB);
	unmap(now);
}

static void another_slab_size_is_another_memory(void **state)
{
	(void)state;
	store();
	die(SIGTERM);
	daemon_configure(&d, "[host]\nbytes = 64M\nslab_bytes = 2M\nhuge_pages = no\n"
			     "[nvme]\nbytes = 64M\nsegment_bytes = 1M\n[gpu]\ndevices = required\n"
			     "staging_bytes = 8M\nbytes = 16M\noutlive = yes\n");
	live_again();
	assert_int_equal(keeper_count(""), 0);
	load(0);
	load(N);
}

static void it_is_given_back_where_it_is_not_wanted(void **state)
{
	(void)state;
	store();
	die(SIGTERM);
	assert_int_equal(keeper_count(""), 2);
	daemon_configure(&d, CONFIG_OF("bytes = 16M\n"));
	live_again();
	assert_int_equal(keeper_count(""), 0);
	load(0);
	load(N);
	assert_int_equal(keeper_count(""), 0);
}

/* Kept memory of a GPU that is not there any more is dropped, and the other GPU's serves. */
static void a_gpu_that_is_not_there_is_forgotten(void **state)
{
	struct gpu_raw e;
	struct gpu other;

	(void)state;
	if (gpu_count() < 2)
		skip();
	store();
	gpu_open(&other, 1);
	gpu_raw_open(&e, d.socket, &other, &geometry, 2 * N);
	gpu_raw_round_trip(&e, CHAIN + 1, N);
	daemon_stat_becomes(&d, "tiers.gpu.blocks", 2 * N, PATIENT_MS);
	assert_int_equal(keeper_count(""), 4);
	daemon_signal(&d, SIGTERM);
	gpu_raw_close(&e);
	gpu_close(&other);
	GPU(gpu_api()->cuCtxSetCurrent(gpu.context));
	disconnect();
	(void)setenv("CUDA_VISIBLE_DEVICES", "0", 1);
	live_again();
	(void)unsetenv("CUDA_VISIBLE_DEVICES");
	returned(N, 0, 0);
	load(N);
	assert_int_equal(keeper_count(""), 2);
}

/* Descriptors that are nothing of ours, under names that are. */
static void rubbish_descriptors_are_dropped(void **state)
{
	char memory[128], book[128];
	int fd;

	(void)state;
	store();
	die(SIGTERM);
	(void)snprintf(memory, sizeof(memory), "%s", keeper_name("-memory", 0));
	(void)snprintf(book, sizeof(book), "%s", keeper_name("-book", 0));
	keeper_close();
	keeper_open();
	keeper_add(memory, open("/dev/null", O_RDWR | O_CLOEXEC));
	keeper_add(book, open("/dev/zero", O_RDWR | O_CLOEXEC));
	keeper_add(book, memfd_make(MIB, 0));
	keeper_add("something", memfd_make(MIB, 0));
	live_again();
	load(0);
	load(N);
	assert_int_equal(keeper_count(""), 2);
	/* a book that is right, and memory that is none */
	die(SIGTERM);
	fd = keeper_fd("-book", 0);
	keeper_close();
	keeper_open();
	keeper_add(memory, open("/dev/null", O_RDWR | O_CLOEXEC));
	keeper_add(book, fd);
	live_again();
	load(0);
	load(N);
	assert_int_equal(daemon_stat(&d, "tiers.gpu.returned_blocks_total"), 0);
}

int main(int argc, char **argv)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)
	const struct CMUnitTest tests[] = {
		CASE(what_lay_there_serves_after_a_restart),
		CASE(what_lay_there_serves_after_kill_9),
		CASE(a_flipped_byte_is_never_served),
		CASE(flipped_bytes_everywhere_are_never_served),
		CASE(a_book_of_rubbish_brings_nothing),
		CASE(slot_sizes_of_rubbish_bring_nothing),
		CASE(entries_of_other_blocks_are_never_served),
		CASE(entries_of_nobody_bring_nothing),
		CASE(a_book_of_another_kind_is_dropped),
		CASE(memory_of_another_size_is_zeroed_and_dropped),
		CASE(another_slab_size_is_another_memory),
		CASE(it_is_given_back_where_it_is_not_wanted),
		CASE(a_gpu_that_is_not_there_is_forgotten),
		CASE(rubbish_descriptors_are_dropped),
	};

	(void)argc;
	gpu_begin(argv, "gpus=2 null_stream=0 one_thread=1");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
