/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_rig.h - what unit_ctl*.c share: the real ctl.c and loop.c in a daemon whose other parts are
 * faked here, with knobs, and an asker in a second thread.
 *
 * The knobs are set before with_loop() and read after it; in between the loop's thread owns them,
 * but for those marked as shared.
 */
#ifndef KVTIER_TESTS_CTL_RIG_H
#define KVTIER_TESTS_CTL_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/front/server.h"
#include "daemon/store/purge.h"
#include "daemon/store/tally.h"
#include "tiers/nvme/nvme.h"
#include "daemon/admin/ctl.h"
#include "daemon/kvtierd.h"
#include "daemon/nvme/scrub.h"
#include "daemon/nvme/flush.h"
#include "tiers/redis/redis.h"

/* --- the daemon's other parts, faked --- */

static uint32_t fake_clients, fake_spaces;
static uint64_t fake_blocks; /* of 1,000 bytes each, in the host tier */
static uint32_t fake_slices; /* mover calls */
static const char nasty[] = "a\"b\\c\n\033[31m\xff\xc2\x9b\xe2\x82\xac";

bool server_row(const struct server *server, uint32_t position, struct conn_row *ret)
{
	(void)server;
	if (position >= fake_clients)
		return false;
	*ret = (struct conn_row){ .id = position,
				  .pid = 42,
				  .shared = true,
				  .region_bytes = 1ull << 40,
				  .ending = position == 1,
				  .pages = position };
	snprintf(ret->name, sizeof(ret->name), "%s", nasty);
	snprintf(ret->tenant, sizeof(ret->tenant), "default");
	return true;
}

struct space *space_at(const struct spaces *spaces, uint32_t number)
{
	static struct space space;

	(void)spaces;
	if (number >= 2 * fake_spaces || number % 2 == 0) /* with holes */
		return NULL;
	space.number = number;
	space.codec = CODEC_FP8;
	space.geometry.dtype = DTYPE_BF16;
	/* escapes to six times its size */
	memset(space.wire.model, 1, sizeof(space.wire.model) - 1);
	return &space;
}

uint32_t spaces_numbers(const struct spaces *spaces)
{
	(void)spaces;
	return 2 * fake_spaces;
}

struct tally *blocks_tally(const struct blocks *blocks)
{
	(void)blocks;
	return NULL;
}

uint32_t tally_count(const struct tally *tally, uint32_t space, uint32_t variant)
{
	(void)tally;
	(void)space;
	return variant;
}

uint32_t tally_blocks(const struct tally *tally, uint32_t space)
{
	(void)tally;
	return space * 10;
}

uint64_t mover_evict_bytes(struct tier *host, struct blocks *blocks, uint64_t bytes,
			   uint32_t max_steps, struct mover_counts *counts)
{
	uint64_t freed = 0;

	(void)host;
	(void)blocks;
	fake_slices++;
	for (uint32_t i = 0; i < max_steps && fake_blocks > 0 && freed < bytes; i++) {
		fake_blocks--;
		counts->evicted_blocks++;
		counts->demoted_blocks += fake_blocks % 2;
		freed += 1000;
	}
	return freed;
}

/* Whom to call when a flush or a purge ends, 0.7 s after it began. */
static struct {
	void (*flushed)(void *arg, int status);
	void (*purged)(void *arg, int status, uint64_t blocks);
	void *arg;
} fake_waiting;
static int fake_start;             /* what starting a flush, purge or verify gives */
static int fake_status;            /* how it ends */
static bool fake_never;            /* it does not end */
static uint32_t fake_looks;        /* how often a scrub was asked how far it is */
static uint32_t fake_looks_needed; /* until it is done */
static uint32_t fake_bad;          /* blocks, all found at the end */
static bool fake_repair;           /* what the scrub was started with */
static char fake_tenant[32];       /* that was purged */
static uint32_t fake_disks, fake_endpoints;
static struct loop_timer fake_timer;                   /* ends a flush or a purge */
static uint32_t fake_begun, fake_ended, fake_canceled; /* shared: relaxed */

static void count(uint32_t *n)
{
	(void)__atomic_fetch_add(n, 1, __ATOMIC_RELAXED);
}

static void fake_finish(struct loop_timer *timer)
{
	(void)timer;
	count(&fake_ended);
	if (fake_waiting.flushed)
		fake_waiting.flushed(fake_waiting.arg, fake_status);
	else
		fake_waiting.purged(fake_waiting.arg, fake_status, 42);
}

static struct kvtierd d;

static int fake_wait(void *arg)
{
	if (fake_start < 0)
		return fake_start;
	count(&fake_begun);
	fake_waiting.arg = arg;
	fake_timer = (struct loop_timer){ .fire = fake_finish };
	if (!fake_never)
		loop_timer_set(d.loop, &fake_timer, loop_now(d.loop) + 700000000u);
	return 0;
}

static void fake_cancel(const void *arg)
{
	assert_ptr_equal(arg, fake_waiting.arg);
	loop_timer_unset(d.loop, &fake_timer);
	count(&fake_canceled);
}

int flush_begin(struct flush *of, bool last, void (*done)(void *arg, int status), void *arg)
{
	(void)of;
	assert_false(last);
	fake_waiting.flushed = done;
	return fake_wait(arg);
}

void flush_cancel(struct flush *of, void *arg)
{
	(void)of;
	fake_cancel(arg);
}

int purge_begin(struct purge *of, const char *tenant,
		void (*done)(void *arg, int status, uint64_t blocks), void *arg)
{
	(void)of;
	fake_waiting.flushed = NULL;
	fake_waiting.purged = done;
	snprintf(fake_tenant, sizeof(fake_tenant), "%s", tenant);
	return fake_wait(arg);
}

void purge_cancel(struct purge *of, void *arg)
{
	(void)of;
	fake_cancel(arg);
}

int scrub_start(const struct scrub_conf *of, bool repair, struct scrub **ret)
{
	(void)of;
	if (fake_start < 0)
		return fake_start;
	fake_repair = repair;
	count(&fake_begun);
	*ret = (struct scrub *)(void *)&fake_looks;
	return 0;
}

void scrub_report(const struct scrub *scrub, struct scrub_report *ret)
{
	assert_ptr_equal(scrub, &fake_looks);
	fake_looks++;
	*ret = (struct scrub_report){ .checked_blocks = 990,
				      .checked_bytes = 1 << 20,
				      .walked_blocks = 1000,
				      .total_blocks = 2000,
				      .bad_blocks = 300,
				      .done = !fake_never && fake_looks > fake_looks_needed };
}

bool scrub_next_bad(struct scrub *scrub, struct scrub_bad *ret)
{
	assert_ptr_equal(scrub, &fake_looks);
	if (fake_bad == 0 || fake_looks <= fake_looks_needed)
		return false;
	*ret = (struct scrub_bad){ .space = 1, .tier = TIER_NVME, .disk = 2, .segment = 77 };
	memset(ret->key, 0xab, sizeof(ret->key));
	fake_bad--;
	return true;
}

void scrub_end(struct scrub *scrub)
{
	assert_ptr_equal(scrub, &fake_looks);
	count(&fake_ended);
}

bool nvme_row(const struct tier *tier, uint32_t i, struct nvme_disk_row *ret)
{
	(void)tier;
	if (i >= fake_disks)
		return false;
	*ret = (struct nvme_disk_row){ .state = TIER_OFFLINE, .capacity_bytes = 1ull << 40 };
	snprintf(ret->path, sizeof(ret->path), "/dev/nvme%" PRIu32, i);
	snprintf(ret->text, sizeof(ret->text), "%s", nasty);
	ret->log.read_errors = 3;
	return true;
}

bool redis_endpoint_row(const struct tier *tier, uint32_t i, struct redis_endpoint_row *ret)
{
	(void)tier;
	if (i >= fake_endpoints)
		return false;
	*ret = (struct redis_endpoint_row){ .state = TIER_OFFLINE,
					    .slots = 5461,
					    .retry_in_ms = 7300 };
	snprintf(ret->address, sizeof(ret->address), "10.0.0.%" PRIu32 ":6379", i);
	snprintf(ret->text, sizeof(ret->text), "%s", nasty);
	ret->counters.timeouts_total = 3;
	ret->counters.late_total = UINT64_MAX;
	return true;
}

const char *tier_name(enum tier_id id)
{
	return id == TIER_NVME ? "nvme" : "host";
}

const char *tier_state_name(enum tier_state state)
{
	return state == TIER_OFFLINE ? "offline" : "?";
}

/* --- a daemon of these, and askers in a second thread --- */

static struct config config;
static struct stop {
	struct loop_watch watch;
} stop;
static void (*asker)(void);

static void stop_ready(struct loop_watch *watch, uint32_t events)
{
	(void)watch;
	(void)events;
	loop_stop(d.loop);
}

static void *asker_thread(void *unused)
{
	(void)unused;
	asker();
	assert_int_equal(write(stop.watch.fd, &(uint64_t){ 1 }, 8), 8);
	return NULL;
}

static int rig_setup(void **unused)
{
	static struct tier host;
	char text[256];

	(void)unused;
	memset(&d, 0, sizeof(d));
	memset(&config, 0, sizeof(config));
	snprintf(config.admin_path, sizeof(config.admin_path), "/tmp/unit_ctl.%d.sock",
		 (int)getpid());
	config.admin_mode = 0600;
	d.config = &config;
	/* only compared with NULL here */
	d.server = (struct server *)(void *)&host;
	d.store.spaces = (struct spaces *)(void *)&host;
	d.store.blocks = (struct blocks *)(void *)&host;
	d.store.tiers[TIER_HOST] = d.store.tiers[TIER_NVME] = d.store.tiers[TIER_REDIS] = &host;
	fake_clients = 3;
	fake_spaces = 2;
	fake_slices = fake_bad = fake_looks = fake_looks_needed = fake_disks = fake_endpoints = 0;
	fake_begun = fake_ended = fake_canceled = 0;
	fake_start = fake_status = 0;
	fake_never = fake_repair = false;
	return loop_open(0, &d.loop) < 0 || ctl_open(&d, &d.ctl, text, sizeof(text)) < 0 ? -1 : 0;
}

static int rig_teardown(void **unused)
{
	(void)unused;
	ctl_close(d.ctl);
	loop_close(d.loop);
	return access(config.admin_path, F_OK) == 0 ? -1 : 0;
}

/* Runs the loop until `fn`, in a thread of its own, has returned. */
static void with_loop(void (*fn)(void))
{
	pthread_t thread;

	asker = fn;
	stop.watch = (struct loop_watch){ .fd = eventfd(0, EFD_CLOEXEC), .ready = stop_ready };
	assert_int_equal(loop_add(d.loop, &stop.watch, EPOLLIN), 0);
	assert_int_equal(pthread_create(&thread, NULL, asker_thread, NULL), 0);
	assert_int_equal(loop_run(d.loop), 0);
	(void)pthread_join(thread, NULL);
	loop_remove(d.loop, &stop.watch);
	(void)close(stop.watch.fd);
}

static int dial(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(address.sun_path, config.admin_path, strlen(config.admin_path));
	assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

static char reply[4 << 20];
/* told: of those how many said how far it is; the last of them is in `progress` */
static int packets, told;
static char progress[256];

/* The reply's last first byte; text in `reply`. 0: the connection ended. */
static char hear(int fd)
{
	static char packet[CTL_MAX_REPLY + 4096];
	size_t used = 0;

	reply[0] = '\0';
	told = 0;
	for (packets = 1;; packets++) {
		const ssize_t n = recv(fd, packet, sizeof(packet), 0);

		if (n <= 0)
			return 0;
		assert_true(n <= CTL_MAX_REPLY);
		if (packet[0] == '~') {
			snprintf(progress, sizeof(progress), "%.*s", (int)n - 1, packet + 1);
			told++;
			continue;
		}
		assert_true(used + (size_t)n < sizeof(reply));
		memcpy(reply + used, packet + 1, (size_t)n - 1);
		used += (size_t)n - 1;
		reply[used] = '\0';
		if (packet[0] != '+')
			return packet[0];
	}
}

static char ask(int fd, const char *words, size_t n)
{
	assert_int_equal(send(fd, words, n, MSG_NOSIGNAL), n);
	return hear(fd);
}

#define ASK(fd, words) ask(fd, words, sizeof(words) - 1)

static size_t rows_in(const char *name)
{
	struct json_object *root = json_tokener_parse(reply), *rows = NULL;
	size_t n;

	assert_non_null(root);
	assert_true(json_object_object_get_ex(root, name, &rows));
	n = json_object_array_length(rows);
	json_object_put(root);
	return n;
}

#endif
