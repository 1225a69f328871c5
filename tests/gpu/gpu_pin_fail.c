/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=10 needs=kvtierd_clock */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * gpu_pin_fail - goal: where the driver registers no memory, or not all of it, the daemon serves as
 * well, by way of a buffer, and `status` and `devices` say so with what to do; one call
 * that fails costs one piece, until the driver is asked again after a minute. A call that hangs
 * delays nobody. One that breaks the context is as any other that does. Method: the emulated
 * driver has a limit, fails, delays or breaks a call.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_gpu_pin.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

enum { MINUTE_MS = 60000 };

static struct daemon d;
static struct gpu gpu;
static struct gpu_engine ge;

static void open_all(const char *settings)
{
	const struct kvtier_geometry g = pin_geometry(KVTIER_CODEC_FP8, PIN_LAYERS);

	gpu_open(&gpu, 0);
	daemon_place(&d, false);
	clock_hold(&d);
	pin_start_placed(&d, settings, "");
	pin_open(&ge, &gpu, d.socket, &g);
}

static void close_all(void)
{
	pin_close(&ge);
	pin_stop(&d);
	gpu_close(&gpu);
}

/* Asks until the answer says it. */
static void says(const char *command, const char *word)
{
	const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;
	char text[8192];

	do
		(void)daemon_ctl(&d, command, text, sizeof(text));
	while (!strstr(text, word) && now_ns() < until);
	if (!strstr(text, word))
		fail_msg("%s: no \"%s\" in %s", command, word, text);
}

static void serves(void)
{
	for (uint64_t chain = 1; chain <= 4; chain++) {
		pin_store(&ge, chain);
		pin_load(&ge, chain);
	}
}

/* The daemon's own buffers have 8 MiB of it and a bit. */
TEST(what_is_over_the_limit_goes_by_way_of_the_buffer)
{
	char text[8192];

	open_all("pinned=11");
	pin_becomes(&d, 2);
	serves();
	says("status --json", "\"status\":\"warn\"");
	says("status --json", "host_not_pinned");
	says("status --json", "GPU 0: 2M of [host] bytes = 32M are pinned");
	says("status --json", "MemoryMax="); /* RLIMIT_MEMLOCK is none of the driver's business */
	(void)daemon_ctl(&d, "status --json", text, sizeof(text));
	assert_null(strstr(text, "LimitMEMLOCK"));
	says("devices --json", "cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY");
	assert_int_equal(daemon_ctl(&d, "devices --json", text, sizeof(text)), 0);
	assert_null(strstr(text, "\"state\":\"failed\""));
	daemon_stat_reaches(&d, "gpu.bounced_in_bytes_total", 2 * PIN_KIB << 10);
	close_all();
}

TEST(a_call_that_fails_costs_one_piece_for_a_minute)
{
	open_all("fail=cuMemHostRegister:2");
	pin_becomes(&d, PIN_MIB - 1);
	serves();
	says("status --json", "31M of [host] bytes = 32M are pinned");
	clock_pass_until(&d, MINUTE_MS, "tiers.host.pinned_bytes", PIN_BYTES);
	says("status --json", "\"status\":\"ok\"");
	serves();
	close_all();
}

/* In so many seconds: three times, and again in each minute. */
static void assert_asked_seldom(uint64_t seconds)
{
	char calls[64];
	int found = 0;

	for (uint64_t i = 0; i <= seconds / 60; i++) {
		(void)snprintf(calls, sizeof(calls), "called cuMemHostRegister %d times",
			       3 * ((int)i + 1));
		found += gpu_reported("kvtierd", "note", calls);
	}
	assert_int_equal(found, 1);
}

TEST(where_each_call_fails_all_goes_by_way_of_the_buffer)
{
	const uint64_t began = now_ns();

	open_all("fail=cuMemHostRegister:0:801 trace=1");
	says("status --json", "host_not_pinned");
	serves();
	pin_copied(&d, 0, 0, 4 * PIN_KIB, 4 * PIN_KIB);
	close_all();
	assert_asked_seldom((now_ns() - began) / 1000000000u);
}

TEST(a_call_that_hangs_delays_nobody)
{
	open_all("held=cuMemHostRegister:3");
	gpu_report_has("is held", 1);
	serves();
	says("devices --json", "\"state\":\"up\"");
	assert_int_equal(gpu_reported("kvtierd", "note", "goes on"), 0);
	gpu_let_go();
	pin_becomes(&d, PIN_MIB);
	close_all();
}

/* The connection is cut with its memory, and comes back. The call is held until that memory is
 * mapped: SPACE_OPEN is refused while the context breaks. */
TEST(a_call_that_breaks_the_context_is_as_any_other)
{
	const struct kvtier_geometry g = pin_geometry(KVTIER_CODEC_FP8, PIN_LAYERS);

	open_all("held=cuMemHostRegister:5 sticky=cuMemHostRegister:5");
	gpu_let_go();
	daemon_stat_becomes(&d, "gpu.lost_total", 1, PATIENT_MS);
	pin_close(&ge);
	pin_open(&ge, &gpu, d.socket, &g);
	pin_becomes(&d, PIN_MIB);
	serves();
	pin_copied(&d, 4 * PIN_KIB, 4 * PIN_KIB, 0, 0);
	says("status --json", "\"status\":\"ok\"");
	close_all();
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0 one_thread=1");
	gpu_needs_emulation("its faults are settings of the emulated driver");
}
