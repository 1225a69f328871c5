/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_device.c - goal: a daemon may have several devices. A device that is full refuses a job,
 * says so when it has room again, and delays no other; the daemon's own jobs have a bound of their
 * own; a device that gathers jobs is kicked once for all of them; each region and layout goes to
 * the device that its client named. Method: the CPU device beside a device of this test, which
 * keeps its jobs until the test ends them and notes its calls. A loop without events: jobs of the
 * test's device end when the test says so.
 */

#include "base/loop.h"
#include "daemon/device/device_cpu.h"
#include "daemon/session/mount.h"
#include "tests/lib/test.h"

enum { DEPTH = 3, OWN_DEPTH = 2, JOBS = DEPTH + OWN_DEPTH + 1, IMAGE_BYTES = 4096 };

static const uint8_t uuid[WIRE_UUID_BYTES] = { 1, 2, 3 };

/* --- a device that does nothing by itself --- */

struct slow {
	struct device base;
	struct device_job *jobs[JOBS];
	uint32_t n_jobs, n_kicks, n_regions, n_layouts;
	bool refuses; /* as if it had no staging left */
	struct region_desc desc;
};

static const struct device_ops slow_ops;

static struct slow *slow_open(struct loop *loop)
{
	struct slow *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	s->base = (struct device){
		.ops = &slow_ops, .loop = loop, .depth = DEPTH, .own_depth = OWN_DEPTH
	};
	memcpy(s->base.uuid, uuid, sizeof(uuid));
	return s;
}

static void slow_close(struct device *device)
{
	assert_int_equal(((struct slow *)device)->n_regions, 0);
	free(device);
}

static int slow_import(struct device *device, const struct region_desc *desc,
		       struct device_region *ret, char *text, size_t n)
{
	struct slow *s = (struct slow *)device;

	if (desc->length == 0) {
		strncpy(text, "of no bytes", n);
		return -EINVAL;
	}
	s->desc = *desc;
	s->n_regions++;
	*ret = (struct device_region){ .device = device,
				       .base = (uint8_t *)0x7000000000,
				       .length = desc->length };
	return 0;
}

static void slow_release(struct device *device, struct device_region *region)
{
	assert_ptr_equal(region->base, (uint8_t *)0x7000000000);
	((struct slow *)device)->n_regions--;
}

static int slow_prepare(struct device *device, struct device_layout *layout)
{
	((struct slow *)device)->n_layouts++;
	layout->prepared = device;
	return 0;
}

static void slow_forget(struct device *device, struct device_layout *layout)
{
	assert_ptr_equal(layout->prepared, device);
	((struct slow *)device)->n_layouts--;
}

static int slow_submit(struct device *device, struct device_job *job)
{
	struct slow *s = (struct slow *)device;

	if (s->refuses)
		return -EAGAIN;
	assert_true(s->n_jobs < JOBS);
	s->jobs[s->n_jobs++] = job;
	return 0;
}

static void slow_kick(struct device *device)
{
	((struct slow *)device)->n_kicks++;
}

static const struct device_ops slow_ops = {
	.name = "slow",
	.close = slow_close,
	.import = slow_import,
	.release = slow_release,
	.prepare = slow_prepare,
	.forget = slow_forget,
	.submit = slow_submit,
	.kick = slow_kick,
};

/* --- the world --- */

struct world {
	struct loop *loop;
	struct devices devices;
	struct slow *slow;
	struct device_layout layout;
	struct device_job jobs[JOBS];
	uint8_t *image;
	uint32_t n_done, n_room;
	struct device *room_of;
};

static struct world w;

static void done(struct device_job *job)
{
	assert_false(job->in_flight);
	w.n_done++;
}

static void on_room(TEST_UNUSED void *arg, struct device *device)
{
	w.n_room++;
	w.room_of = device;
}

FIXTURE(open_world)
{
	struct device *device;

	memset(&w, 0, sizeof(w));
	assert_int_equal(loop_open(0, &w.loop), 0);
	assert_int_equal(device_cpu_open(1, DEPTH, OWN_DEPTH, w.loop, &device), 0);
	assert_int_equal(devices_add(&w.devices, device), 0);
	w.slow = slow_open(w.loop);
	assert_int_equal(devices_add(&w.devices, &w.slow->base), 0);
	w.image = aligned_alloc(4096, IMAGE_BYTES);
	assert_non_null(w.image);
	memset(w.image, 0, IMAGE_BYTES);
	w.devices.hooks.room = on_room;
	w.devices.hooks.room_arg = &w;
	return 0;
}

FIXTURE(close_world)
{
	devices_close(&w.devices);
	loop_close(w.loop);
	free(w.image);
	return 0;
}

TEST_EACH(open_world, close_world);

static int submit(uint32_t i, uint32_t client)
{
	w.jobs[i] = (struct device_job){
		.kind = DEVICE_ENCODE,
		.layout = &w.layout,
		.image = w.image,
		.image_bytes = IMAGE_BYTES,
		.done = done,
		.client = client,
	};
	return device_submit(&w.slow->base, &w.jobs[i]);
}

static void end_one(void)
{
	device_complete(w.slow->jobs[--w.slow->n_jobs]);
}

/* --- tests --- */

TEST(a_full_device_refuses_and_says_when_it_has_room)
{
	for (uint32_t i = 0; i < DEPTH; i++)
		assert_int_equal(submit(i, 1), 0);
	end_one();
	assert_int_equal(w.n_room, 0); /* nobody was refused */
	assert_int_equal(submit(DEPTH - 1, 1), 0);
	assert_int_equal(submit(DEPTH, 2), -EAGAIN);
	assert_int_equal(submit(DEPTH, 2), -EAGAIN);
	assert_int_equal(w.n_room, 0);
	end_one();
	assert_int_equal(w.n_room, 1); /* once for all that were refused */
	assert_ptr_equal(w.room_of, &w.slow->base);
	end_one();
	assert_int_equal(w.n_room, 1);
	assert_int_equal(submit(DEPTH, 2), 0);
	while (w.slow->n_jobs > 0)
		end_one();
	assert_int_equal(w.n_done, DEPTH + 2);
	assert_int_equal(w.n_room, 1);
}

/* It may be full of something else than jobs. */
TEST(a_device_may_refuse_by_itself)
{
	assert_int_equal(submit(0, 1), 0);
	w.slow->refuses = true;
	assert_int_equal(submit(1, 1), -EAGAIN);
	assert_int_equal(w.slow->base.in_flight, 1);
	end_one();
	assert_int_equal(w.n_room, 1);
	assert_int_equal(w.slow->base.in_flight, 0);
}

TEST(own_jobs_have_a_bound_of_their_own)
{
	for (uint32_t i = 0; i < DEPTH; i++)
		assert_int_equal(submit(i, 1), 0);
	for (uint32_t i = DEPTH; i < DEPTH + OWN_DEPTH; i++)
		assert_int_equal(submit(i, 0), 0);
	assert_int_equal(submit(JOBS - 1, 0), -EAGAIN);
	assert_int_equal(submit(JOBS - 1, 1), -EAGAIN);
	end_one(); /* one of the daemon's own */
	assert_int_equal(submit(JOBS - 1, 1), -EAGAIN);
	assert_int_equal(submit(JOBS - 1, 0), 0);
	while (w.slow->n_jobs > 0)
		end_one();
	assert_int_equal(w.slow->base.own_in_flight, 0);
	assert_int_equal(devices_sum(&w.devices).in_flight, 0);
}

static void verified(struct device_job *job)
{
	done(job);
	loop_stop(w.loop);
}

/* The CPU works on while the other device is full, and jobs that wait for the other device hear
 * nothing of it. */
TEST(a_full_device_delays_no_other)
{
	struct device_job job = {
		.kind = DEVICE_VERIFY,
		.image = w.image,
		.image_bytes = IMAGE_BYTES,
		.client = 1,
		.done = verified,
	};

	for (uint32_t i = 0; i < DEPTH; i++)
		assert_int_equal(submit(i, 1), 0);
	assert_int_equal(submit(DEPTH, 1), -EAGAIN);
	assert_int_equal(device_submit(devices_cpu(&w.devices), &job), 0);
	device_kick(devices_cpu(&w.devices));
	assert_int_equal(devices_sum(&w.devices).in_flight, DEPTH + 1);
	assert_int_equal(loop_run(w.loop), 0);
	assert_int_equal(job.status, -EBADMSG); /* the image is zeroes */
	assert_int_equal(w.n_done, 1);
	assert_int_equal(w.n_room, 0);
	while (w.slow->n_jobs > 0)
		end_one();
	assert_int_equal(w.n_room, 1);
	assert_int_equal(devices_sum(&w.devices).jobs_total, DEPTH + 1);
	assert_int_equal(devices_sum(&w.devices).depth, 2 * DEPTH);
}

TEST(it_is_kicked_once_for_what_was_submitted)
{
	devices_kick(&w.devices);
	assert_int_equal(w.slow->n_kicks, 0);
	assert_int_equal(submit(0, 1), 0);
	assert_int_equal(submit(1, 1), 0);
	devices_kick(&w.devices);
	assert_int_equal(w.slow->n_kicks, 1);
	devices_kick(&w.devices);
	assert_int_equal(w.slow->n_kicks, 1);
	end_one();
	assert_int_equal(submit(1, 1), 0);
	devices_kick(&w.devices);
	assert_int_equal(w.slow->n_kicks, 2);
	while (w.slow->n_jobs > 0)
		end_one();
}

TEST(an_image_may_lie_in_the_device)
{
	struct device_job job = {
		.kind = DEVICE_DECODE,
		.layout = &w.layout,
		.image_memory = IMAGE_OF_DEVICE,
		.image = (uint8_t *)0x7f0000,
		.image_bytes = IMAGE_BYTES,
		.client = 1,
		.done = done,
	};

	assert_int_equal(device_submit(&w.slow->base, &job), 0);
	end_one();
}

TEST(layouts_are_prepared_and_forgotten)
{
	struct device_layout layout = { .prepared = &w };

	assert_int_equal(device_prepare(devices_cpu(&w.devices), &layout), 0);
	assert_null(layout.prepared);
	device_forget(devices_cpu(&w.devices), &layout);
	assert_int_equal(device_prepare(&w.slow->base, &layout), 0);
	assert_int_equal(w.slow->n_layouts, 1);
	device_forget(&w.slow->base, &layout);
	assert_int_equal(w.slow->n_layouts, 0);
	assert_null(layout.prepared);
}

/* --- regions --- */

static struct mount *mount_of(const struct wire_region *regions, uint32_t n, const int *fds,
			      int error, const char *words)
{
	const struct proto_space_open m = { .n_regions = n, .regions = regions };
	struct mount *mount = NULL;
	char text[232] = "";

	assert_int_equal(mount_import(&w.devices, &m, fds, NULL, &mount, text, sizeof(text)),
			 error);
	assert_string_equal(text, words);
	assert_int_equal(error == 0, mount != NULL);
	return mount;
}

static void unmount(struct mount *mount)
{
	mount_unmap(mount);
	free(mount);
}

TEST(a_region_goes_to_the_device_it_is_of)
{
	struct wire_region regions[2] = {
		{ .memory = WIRE_DEVICE_HANDLE, .offset = 512, .length = 1 << 20 },
		{ .memory = WIRE_DEVICE_FD, .fd_index = 1, .length = 4096 },
	};
	const int fds[2] = { 70, 71 };
	struct mount *mount;

	for (int i = 0; i < 2; i++)
		memcpy(regions[i].device, uuid, sizeof(uuid));
	regions[0].handle[63] = 9;
	mount = mount_of(regions, 1, NULL, 0, "");
	assert_ptr_equal(mount->device, &w.slow->base);
	assert_int_equal(w.slow->desc.memory, WIRE_DEVICE_HANDLE);
	assert_int_equal(w.slow->desc.fd, -1);
	assert_int_equal(w.slow->desc.offset, 512);
	assert_memory_equal(w.slow->desc.handle, regions[0].handle, sizeof(regions[0].handle));
	unmount(mount);
	mount = mount_of(regions, 2, fds, 0, "");
	assert_int_equal(w.slow->desc.fd, 71);
	assert_int_equal(w.slow->n_regions, 2);
	assert_int_equal(mount->region_bytes, (1 << 20) + 4096);
	unmount(mount);
	regions[1].length = 0; /* regions imported before it are let go */
	(void)mount_of(regions, 2, fds, -EINVAL, "regions[1]: of no bytes");
	assert_int_equal(w.slow->n_regions, 0);
	regions[0].device[15] = 0xcd;
	(void)mount_of(
		regions, 1, NULL, -ENODEV,
		"regions[0].device: this daemon serves no device 010203000000000000000000000000cd");
}

TEST(memory_of_the_host_is_the_cpus)
{
	const struct wire_region region = { .memory = WIRE_STAGED, .length = 8192 };
	const int fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct mount *mount;

	assert_int_equal(ftruncate(fd, 8192), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	mount = mount_of(&region, 1, &fd, 0, "");
	assert_ptr_equal(mount->device, devices_cpu(&w.devices));
	assert_int_equal(mount->memories, 1u << WIRE_STAGED);
	unmount(mount);
	mount = mount_of(NULL, 0, NULL, 0, ""); /* a space for look-ups alone */
	assert_ptr_equal(mount->device, devices_cpu(&w.devices));
	unmount(mount);
	(void)close(fd);
}

TEST(there_is_a_most_of_devices)
{
	struct devices full = { .n = DEVICES_MAX };

	assert_int_equal(devices_add(&full, &w.slow->base), -ENOSPC);
	assert_null(devices_find(&w.devices, (const uint8_t[WIRE_UUID_BYTES]){ 1, 2, 4 }));
	assert_ptr_equal(devices_find(&w.devices, (const uint8_t[WIRE_UUID_BYTES]){ 0 }),
			 devices_cpu(&w.devices));
}
