/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=12 needs=kvtierd_clock */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * gpu_pin - goal: the host tier's memory is registered with the driver while the daemon serves.
 * What is not registered yet crosses the wire by way of a buffer, what is goes directly, without a
 * restart, whatever the image is: whole or cut, verified or not; the bytes are the same. Small
 * images go by way of the buffer always. A stop, also in the middle of it, and a GPU that nobody
 * uses any more leave nothing registered; what one GPU's context had another one registers.
 * Method: the first calls that register are held or slow, and the daemon counts its copies.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_gpu_pin.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static struct daemon d;
static struct gpu gpu, second;
static struct gpu_engine ge;

static const uint64_t MIB = 1 << 20;
enum { UNUSED_MS = 10000, ROUNDS = 1000 };

static void open_all(const char *settings, const char *host, uint32_t codec, uint32_t layers)
{
	const struct kvtier_geometry g = pin_geometry(codec, layers);

	gpu_open(&gpu, 0);
	daemon_place(&d, strstr(host, "[nvme]") != NULL);
	clock_hold(&d);
	pin_start_placed(&d, settings, host);
	pin_open(&ge, &gpu, d.socket, &g);
}

static void close_all(void)
{
	pin_close(&ge);
	pin_stop(&d);
	gpu_close(&gpu);
}

TEST(slots_go_directly_from_the_moment_they_are_registered)
{
	if (gpu_is_real())
		skip();
	open_all("held=cuMemHostRegister:1", "", KVTIER_CODEC_FP8, PIN_LAYERS);
	gpu_report_has("is held", 1);
	pin_store(&ge, 1);
	pin_load(&ge, 1);
	pin_copied(&d, 0, 0, PIN_KIB, PIN_KIB);
	gpu_let_go();
	pin_becomes(&d, PIN_MIB);
	pin_load(&ge, 1); /* stored by way of the buffer */
	pin_store(&ge, 2);
	pin_load(&ge, 2);
	pin_copied(&d, PIN_KIB, 2 * PIN_KIB, PIN_KIB, PIN_KIB);
	close_all();
}

/* Images of so many KiB. */
static void directly(const char *host, uint32_t codec, uint32_t kib)
{
	open_all("late=3", host, codec, PIN_LAYERS);
	pin_becomes(&d, PIN_MIB);
	for (uint64_t chain = 1; chain <= 2; chain++) {
		pin_store(&ge, chain);
		pin_load(&ge, chain);
	}
	pin_copied(&d, 2 * PIN_BLOCKS * kib, 2 * PIN_BLOCKS * kib, 0, 0);
	close_all();
}

TEST(raw_images_go_directly)
{
	directly("", KVTIER_CODEC_RAW, 512);
}

TEST(images_that_are_verified_go_directly)
{
	directly("verify = always", KVTIER_CODEC_FP8, 256);
}

/* Pieces of three slabs, the last one of two: no slot lies across their borders. */
TEST(pieces_may_have_several_slabs)
{
	directly("pin_bytes = 3M", KVTIER_CODEC_FP8, 256);
}

/* Each piece of a larger one goes its own way, as memory becomes registered under it. */
TEST(pieces_of_an_image_go_directly_or_not)
{
	uint64_t direct;

	open_all("late=2 slow=cuMemHostRegister:20", "slab_bytes = 4M", KVTIER_CODEC_FP8,
		 PIN_LAYERS_MANY);
	for (uint64_t chain = 1; chain <= 4; chain++) {
		pin_store(&ge, chain);
		pin_load(&ge, chain);
	}
	pin_becomes(&d, PIN_MIB);
	direct = daemon_stat(&d, "gpu.direct_in_bytes_total");
	pin_load(&ge, 4);
	daemon_stat_reaches(&d, "gpu.direct_in_bytes_total", direct + PIN_BLOCKS * MIB / 2);
	close_all();
}

TEST(small_images_go_by_way_of_the_buffer)
{
	open_all("", "", KVTIER_CODEC_FP8, PIN_LAYERS / 2);
	pin_becomes(&d, PIN_MIB);
	pin_store(&ge, 1);
	pin_load(&ge, 1);
	pin_copied(&d, 0, 0, PIN_KIB / 2, PIN_KIB / 2);
	close_all();
}

TEST(nothing_is_registered_where_it_shall_not_be)
{
	open_all("trace=1", "pin = no", KVTIER_CODEC_FP8, PIN_LAYERS);
	pin_store(&ge, 1);
	pin_load(&ge, 1);
	pin_copied(&d, 0, 0, PIN_KIB, PIN_KIB);
	pin_becomes(&d, 0);
	close_all();
	assert_int_equal(gpu_reported("kvtierd", "note", "called cuMemHostRegister"), 0);
	gpu_report_clear();
}

/* The kernel has the same pages registered for io_uring: a block from NVMe lands in them, and goes
 * on to the GPU from there. Where the kernel refuses that, the case is skipped after all else. */
TEST(memory_is_registered_with_io_uring_too)
{
	char text[8192];
	bool uring;

	open_all("late=2", "[nvme]\nbytes = 64M\nsegment_bytes = 1M\n", KVTIER_CODEC_FP8,
		 PIN_LAYERS);
	pin_becomes(&d, PIN_MIB);
	(void)daemon_ctl(&d, "status", text, sizeof(text));
	uring = strstr(text, "nvme: io_uring\n") != NULL; /* it says what it could not register */
	pin_store(&ge, 1);
	assert_int_equal(daemon_ctl(&d, "flush", text, sizeof(text)), 0);
	assert_int_equal(daemon_ctl(&d, "evict --tier host --all", text, sizeof(text)), 0);
	pin_load(&ge, 1);
	pin_copied(&d, PIN_KIB, PIN_KIB, 0, 0);
	assert_int_equal(daemon_stat(&d, "tiers.nvme.hit_blocks_total"), PIN_BLOCKS);
	close_all();
	if (!uring)
		skip();
}

static void await_log(const char *word)
{
	const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;
	char path[128], text[65536];

	(void)snprintf(path, sizeof(path), "%s/log", d.dir);
	for (;;) {
		FILE *f = fopen(path, "re");
		const size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;

		if (f)
			(void)fclose(f);
		text[n] = '\0';
		if (strstr(text, word))
			return;
		if (now_ns() > until)
			fail_msg("no \"%s\" in the log: %s", word, text);
		nap_ms(1);
	}
}

/* While this call is on the way, behind so many. */
static void stop_at(const char *held, uint64_t mib)
{
	if (gpu_is_real())
		skip();
	open_all(held, "", KVTIER_CODEC_FP8, PIN_LAYERS);
	gpu_report_has("is held", 1);
	pin_store(&ge, 1);
	pin_becomes(&d, mib);
	pin_close(&ge);
	assert_int_equal(kill(d.pid, SIGTERM), 0);
	await_log("stopping");
	gpu_let_go();
	assert_int_equal(daemon_wait(&d, PATIENT_MS), 0);
	daemon_remove(&d);
	pin_clean();
	gpu_close(&gpu);
}

TEST(a_stop_waits_for_the_call_that_registers)
{
	stop_at("held=cuMemHostRegister:1", 0);
}

TEST(a_stop_in_the_middle_leaves_nothing_registered)
{
	stop_at("held=cuMemHostRegister:4", 3);
}

/* Nobody uses the GPU: its context goes after 10 s, and comes back with the next engine. */
TEST(a_context_that_is_closed_leaves_nothing_registered)
{
	const struct kvtier_geometry g = pin_geometry(KVTIER_CODEC_FP8, PIN_LAYERS);

	open_all("", "", KVTIER_CODEC_FP8, PIN_LAYERS);
	pin_becomes(&d, PIN_MIB);
	pin_store(&ge, 1);
	pin_close(&ge);
	clock_pass_until(&d, UNUSED_MS, "tiers.host.pinned_bytes", 0);
	pin_open(&ge, &gpu, d.socket, &g);
	pin_becomes(&d, PIN_MIB);
	pin_load(&ge, 1);
	pin_copied(&d, PIN_KIB, PIN_KIB, 0, 0);
	close_all();
}

/* Each registers a part and uses all; when one leaves, the other one takes its part. */
TEST(two_gpus_share_the_work)
{
	const struct kvtier_geometry g = pin_geometry(KVTIER_CODEC_FP8, PIN_LAYERS);
	struct gpu_engine other;
	char text[8192];

	if (gpu_count() < 2)
		skip();
	gpu_open(&second, 1);
	open_all("held=cuMemHostRegister:3 faulty=0 late=3", "", KVTIER_CODEC_FP8, PIN_LAYERS);
	pin_open(&other, &second, d.socket, &g);
	if (!gpu_is_real()) /* the first GPU has two pieces, and its third call is held */
		pin_becomes(&d, PIN_MIB - 1);
	gpu_let_go();
	pin_becomes(&d, PIN_MIB);
	assert_int_equal(daemon_ctl(&d, "devices --json", text, sizeof(text)), 0);
	if (strstr(text, "\"pinned_bytes\":33554432"))
		fail_msg("one GPU has registered all: %s", text);
	pin_store(&ge, 1);
	pin_store(&other, 2);
	pin_load(&ge, 2);
	pin_load(&other, 1);
	pin_copied(&d, 2 * PIN_KIB, 2 * PIN_KIB, 0, 0);
	pin_close(&ge);
	for (int i = 0; i < ROUNDS; i++) {
		clock_pass_ms(UNUSED_MS); /* the first context goes */
		pin_load(&other, 1);
		assert_int_equal(daemon_ctl(&d, "devices --json", text, sizeof(text)), 0);
		if (strstr(text, "\"pinned_bytes\":33554432"))
			break;
	}
	assert_non_null(strstr(text, "\"pinned_bytes\":33554432"));
	pin_load(&other, 2);
	pin_close(&other);
	pin_stop(&d);
	gpu_close(&gpu);
	GPU(gpu_api()->cuCtxSetCurrent(second.context));
	gpu_close(&second);
}

TEST_BEGIN
{
	gpu_begin(argv, "gpus=2 null_stream=0 one_thread=1");
}
