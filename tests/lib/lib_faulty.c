/* SPDX-License-Identifier: Apache-2.0 */
/* lib_faulty.c - see lib_faulty.h. */
#include "lib_faulty.h"

#include "lib_clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { HEARTBEAT_MS = 250, LOOKS = 4000, WAIT_MS = 20000 };
/* The time that a command or a stop may need, in steps that are shorter than any wait. */
enum { STEP_MS = 500, STEPS = 400 };

#define HOST "[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n"
#define NVME "[nvme]\nbytes = 16M\nsegment_bytes = 256K\n"

const char faulty_quick[] = HOST NVME "stall_us = 5s\n";
const char faulty_patient[] = HOST NVME "stall_us = 60s\n";

struct disk_world *faulty_place(void **state, const char *config)
{
	struct disk_world *w = disk_place(state, config);
	char path[200];

	(void)snprintf(path, sizeof(path), "%s/faults", w->d.dir);
	assert_int_equal(io_plan_share(path, true), 0);
	assert_int_equal(setenv("KVTIER_TEST_FAULTS", path, 1), 0);
	w->d.program = "tests/kvtierd_faulty";
	return w;
}

/* Each disk takes a read of every block at once. */
static void two_paths(struct disk_world *w, const char *config)
{
	char lines[900];

	(void)snprintf(lines, sizeof(lines), "%squeue_depth = %d\npath = %s/a:%s/b\n", config,
		       DISK_BLOCKS, w->d.disk, w->d.disk);
	disk_configure(&w->d, w->engine, lines);
}

struct disk_world *faulty_away(void **state, const char *config, bool both)
{
	struct disk_world *w = faulty_place(state, config);

	if (both)
		two_paths(w, config);
	faulty_live(w);
	disk_fill(w);
	faulty_evict(w);
	faulty_none(w, "tiers.host.used_bytes");
	return w;
}

void faulty_live(struct disk_world *w)
{
	daemon_restart(&w->d);
	faulty_becomes(w, "up");
	disk_join(w);
}

void faulty_plan(uint32_t kinds, uint32_t nth, uint32_t times, int32_t result)
{
	io_plan_set(
		(struct io_plan){ .kinds = kinds, .skip = nth, .times = times, .result = result });
}

void faulty_flip(uint32_t times)
{
	io_plan_set((struct io_plan){ .kinds = READS, .times = times, .flip = true });
}

/* In steps, between which the daemon goes on: it would take one jump for a client of its admin
 * socket that stands still. The tier looks twice before it says that the disk stalls. */
void faulty_stall(void)
{
	for (int ms = 0; ms < FAULTY_STALL_MS + 2 * HEARTBEAT_MS; ms += HEARTBEAT_MS)
		clock_pass_ms(HEARTBEAT_MS);
}

void faulty_becomes(const struct disk_world *w, const char *state)
{
	char now[64] = "", text[512];

	for (int i = 0; i < LOOKS; i++) {
		daemon_word(&w->d, "tiers.nvme.state", now, sizeof(now));
		if (strcmp(now, state) == 0)
			return;
		clock_pass_ms(HEARTBEAT_MS);
	}
	daemon_word(&w->d, "tiers.nvme.text", text, sizeof(text));
	fail_msg("the NVMe tier is %s, and does not become %s: %s", now, state, text);
}

void faulty_is(const struct disk_world *w, const char *state)
{
	clock_pass_ms(HEARTBEAT_MS);
	disk_state_becomes(&w->d, state, 0);
}

void faulty_answers(struct disk_world *w)
{
	io_hold(0);
	faulty_becomes(w, "up");
}

void faulty_heal(struct disk_world *w)
{
	io_plan_none();
	clock_pass_ms(FAULTY_PROBE_MS);
	faulty_becomes(w, "up");
}

bool faulty_log_says(const struct disk_world *w, const char *word)
{
	char command[300], text[64];

	(void)snprintf(command, sizeof(command), "grep -c '%s' %s/log", word, w->d.dir);
	return shell(command, text, sizeof(text)) == 0;
}

int faulty_wait(pid_t pid)
{
	int status = 0;

	for (int i = 0; i < STEPS; i++) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return status;
		clock_pass_ms(STEP_MS);
		nap_ms(2);
	}
	fail_msg("process %d does not end within %d s", (int)pid, STEPS * STEP_MS / 1000);
	return -1;
}

void faulty_evict(struct disk_world *w)
{
	assert_int_equal(daemon_ctl(&w->d, "evict --all", w->text, sizeof(w->text)), 0);
}

void faulty_gauge(const struct disk_world *w, const char *path, uint64_t value)
{
	uint64_t now = 0;

	for (int i = 0; i < LOOKS; i++) {
		clock_pass_ms(HEARTBEAT_MS);
		now = daemon_stat(&w->d, path);
		if (now == value)
			return;
	}
	fail_msg("%s is %llu, and does not become %llu", path, (unsigned long long)now,
		 (unsigned long long)value);
}

void faulty_none(const struct disk_world *w, const char *path)
{
	faulty_gauge(w, path, 0);
}

void faulty_end(struct disk_world *w)
{
	faulty_none(w, "ops.outstanding");
	faulty_none(w, "tiers.nvme.queued_blocks");
	faulty_none(w, "leases");
	faulty_evict(w);
	faulty_none(w, "tiers.host.used_bytes");
	disk_die(w, SIGTERM);
	disk_end(w);
}

uint64_t faulty_load_begin(struct disk_world *w, uint32_t first, uint32_t n, uint32_t timeout_ms)
{
	return chain_load_begin(&w->e, &w->keys[first], first, n,
				timeout_ms ? timeout_ms : FAULTY_OP_MS);
}

uint32_t faulty_load_end(struct disk_world *w, uint64_t op, uint32_t first, uint32_t n,
			 int32_t otherwise)
{
	return chain_load_end(&w->e, op, &w->keys[first], first, n, otherwise);
}

void faulty_all_there(struct disk_world *w)
{
	assert_int_equal(chain_load(&w->e, w->keys, DISK_BLOCKS, DISK_BLOCKS), DISK_BLOCKS);
}

void faulty_untouched(const struct disk_world *w, uint32_t first, uint32_t n)
{
	chain_untouched(&w->e, first, n);
}

void faulty_held(uint32_t n)
{
	const uint64_t until = now_ns() + WAIT_MS * 1000000ull;

	while (io_held() < n) {
		if (now_ns() > until)
			fail_msg("%u transfers stall, not %u", io_held(), n);
		nap_ms(2);
	}
}
