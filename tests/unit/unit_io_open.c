/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: io_open() takes the settings that io.h allows and tells its engine, and io_close() leaves
 * nothing behind. Method: open and close on both engines, with a file on a real disk.
 */
#include "tests/lib/lib_io.h"
#include "tests/lib/lib_refuse.h"

ON_THREADS(a_configuration_out_of_range_is_refused)
{
	const struct io_conf bad[] = {
		{ .read_depth = 0, .write_depth = 1 },
		{ .read_depth = 1, .write_depth = 0 },
		{ .read_depth = IO_MAX_DEPTH + 1, .write_depth = 1 },
		{ .read_depth = 1, .write_depth = IO_MAX_DEPTH + 1 },
		{ .read_depth = 1, .write_depth = 1, .engine = (enum io_engine_choice)3 },
	};
	struct io_rig rig;

	io_rig_prepare(&rig, 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		rig.text[0] = '\0';
		assert_int_equal(io_open(&bad[i], rig.loop, &rig.io, rig.text, sizeof(rig.text)),
				 -EINVAL);
		assert_true(rig.text[0] != '\0');
		assert_null(rig.io);
	}
	io_rig_tear_down(&rig);
}

ON_THREADS(depths_beyond_the_threads_are_lowered)
{
	const struct io_conf conf = { .engine = *(enum io_engine_choice *)*state,
				      .read_depth = 2 * IO_MAX_THREADS,
				      .write_depth = IO_MAX_THREADS };
	struct io_rig_op ops[100];
	struct io_rig rig;

	io_rig_open(&rig, &conf, 1);
	assert_string_equal(io_note(rig.io),
			    "64 I/O threads: at most 43 reads and 21 writes at once");
	for (uint32_t i = 0; i < 100; i++) {
		ops[i] = io_rig_op(&rig, IO_READ, 0, PAGE, i);
		assert_int_equal(io_submit(rig.io, &ops[i].op), 0);
	}
	io_rig_run(&rig, 100);
	io_rig_tear_down(&rig);
}

ON_BOTH(open_and_close_leave_nothing)
{
	int fds = 0;

	for (int i = 0; i < 10; i++) {
		struct io_rig rig;

		io_rig_open_plain(&rig, state, 1);
		assert_int_equal(io_buffers_add(rig.io, rig.buffers, IO_RIG_BUFFER_BYTES), 0);
		assert_int_equal(io_rig_do(&rig, IO_READ, 0, PAGE, 0), 0);
		io_rig_tear_down(&rig);
		if (i == 0)
			fds = descriptors_open();
		assert_int_equal(descriptors_open(), fds);
	}
}

ON_BOTH(it_says_which_engine_it_is)
{
	const enum io_engine_choice engine = *(enum io_engine_choice *)*state;
	struct io_rig rig;

	io_rig_open_plain(&rig, state, 1);
	assert_string_equal(io_engine_name(rig.io),
			    engine == IO_ENGINE_URING ? "io_uring" : "threads");
	assert_string_equal(io_note(rig.io), "");
	io_rig_tear_down(&rig);
}

TEST_FIRST(io_rig_needed());
