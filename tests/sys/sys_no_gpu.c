/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_no_gpu - goal: without a driver or a GPU kvtierd serves the CPU, says why there is no GPU,
 * and refuses GPU memory that a client names all the same; `[gpu] devices = required` makes it
 * refuse to start. Method: CUDA_VISIBLE_DEVICES hides the GPUs of this machine.
 */
#include "tests/lib/lib_raw.h"

static const char common[] = HOST("8M", "256K");

static void start(struct daemon *d, const char *devices)
{
	char config[512];

	snprintf(config, sizeof(config), "%s[gpu]\ndevices = %s\n", common, devices);
	daemon_start(d, config);
}

/* `devices` of kvtierctl has this in the row of an absent GPU. */
static void says(const struct daemon *d, const char *words)
{
	const char *text = daemon_told(d, "devices --json");

	assert_non_null(strstr(text, "\"kind\":\"cpu\""));
	assert_non_null(strstr(text, "\"state\":\"absent\""));
	if (!strstr(text, words))
		fail_msg("%s", text);
	assert_int_equal(daemon_stat(d, "gpu.devices"), 0);
}

TEST(the_reason_is_told)
{
	struct daemon d;

	start(&d, "auto");
	says(&d, "CUDA driver");
	daemon_remove(&d);
	start(&d, "off");
	says(&d, "[gpu] devices = off");
	daemon_remove(&d);
}

TEST(memory_of_a_gpu_is_refused)
{
	struct wire_order order = { .device = { 7 } };
	struct raw_space space;
	struct daemon d;
	struct raw r;
	int fd;

	start(&d, "auto");
	raw_open(&r, d.socket);
	raw_space_fill(&r, &space);
	space.region.memory = WIRE_DEVICE_HANDLE;
	space.region.device[0] = space.region.handle[0] = 7;
	assert_int_equal(raw_send(&r, &space, sizeof(space), NULL, 0), 0);
	raw_expect_refused(&r, -ENODEV, "serves no device");
	order.head = raw_head(&r, WIRE_ORDER, sizeof(order));
	fd = memfd_make(sizeof(struct wire_words), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	assert_int_equal(raw_send(&r, &order, sizeof(order), &fd, 1), 0);
	raw_expect_refused(&r, -ENODEV, "serves no such device");
	raw_close(&r);
	daemon_remove(&d);
}

TEST(required_means_required)
{
	char command[512], text[4096];
	struct daemon d;

	daemon_place(&d, false);
	snprintf(command, sizeof(command), "%s[gpu]\ndevices = required\n", common);
	daemon_configure(&d, command);
	snprintf(command, sizeof(command), "timeout 60 %s/kvtierd --config %s 2>&1", build_dir(),
		 d.config);
	assert_int_equal(shell(command, text, sizeof(text)), 1);
	assert_non_null(strstr(text, "[gpu] devices = required: "));
	daemon_configure(&d, common);
	daemon_restart(&d);
	daemon_remove(&d);
}

TEST_FIRST((void)setenv("CUDA_VISIBLE_DEVICES", "-1", 1));
