/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/admin/ctl.h"
#include "daemon/front/server.h"
#include "daemon/nvme/flush.h"
#include "daemon/nvme/scrub.h"
#include "daemon/store/purge.h"
#include "daemon/store/tally.h"
#include "lib_ctl.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/redis.h"

struct fake_parts fake;
struct heard heard;
struct kvtierd admin_daemon;
struct config admin_config;

static const char nasty[] = "a\"b\\c\n\033[31m\xff\xc2\x9b\xe2\x82\xac";

/* --- the daemon's other parts, faked --- */

__typeof__(server_row) __wrap_server_row;
__typeof__(space_at) __wrap_space_at;
__typeof__(spaces_numbers) __wrap_spaces_numbers;
__typeof__(blocks_tally) __wrap_blocks_tally;
__typeof__(tally_count) __wrap_tally_count;
__typeof__(tally_blocks) __wrap_tally_blocks;
__typeof__(mover_evict_bytes) __wrap_mover_evict_bytes;
__typeof__(flush_begin) __wrap_flush_begin;
__typeof__(flush_cancel) __wrap_flush_cancel;
__typeof__(purge_begin) __wrap_purge_begin;
__typeof__(purge_cancel) __wrap_purge_cancel;
__typeof__(scrub_start) __wrap_scrub_start;
__typeof__(scrub_report) __wrap_scrub_report;
__typeof__(scrub_next_bad) __wrap_scrub_next_bad;
__typeof__(scrub_end) __wrap_scrub_end;
__typeof__(nvme_row) __wrap_nvme_row;
__typeof__(redis_endpoint_row) __wrap_redis_endpoint_row;

bool __wrap_server_row(const struct server *server, uint32_t position, struct conn_row *ret)
{
	(void)server;
	if (position >= fake.clients)
		return false;
	*ret = (struct conn_row){ .id = position,
				  .pid = 42,
				  .memories = 1u << WIRE_MEMFD,
				  .region_bytes = 1ull << 40,
				  .ending = position == 1,
				  .pages = position };
	snprintf(ret->name, sizeof(ret->name), "%s", nasty);
	snprintf(ret->tenant, sizeof(ret->tenant), "default");
	return true;
}

struct space *__wrap_space_at(const struct spaces *spaces, uint32_t number)
{
	static struct space space;

	(void)spaces;
	if (number >= 2 * fake.spaces || number % 2 == 0) /* with holes */
		return NULL;
	space.number = number;
	space.codec = CODEC_FP8;
	space.geometry.dtype = DTYPE_BF16;
	/* escapes to six times its size */
	memset(space.wire.model, 1, sizeof(space.wire.model) - 1);
	return &space;
}

uint32_t __wrap_spaces_numbers(const struct spaces *spaces)
{
	(void)spaces;
	return 2 * fake.spaces;
}

struct tally *__wrap_blocks_tally(const struct blocks *blocks)
{
	(void)blocks;
	return NULL;
}

uint32_t __wrap_tally_count(const struct tally *tally, uint32_t space, uint32_t variant)
{
	(void)tally;
	(void)space;
	return variant;
}

uint32_t __wrap_tally_blocks(const struct tally *tally, uint32_t space)
{
	(void)tally;
	return space * 10;
}

uint64_t __wrap_mover_evict_bytes(struct tier *host, struct blocks *blocks, uint64_t bytes,
				  uint32_t max_steps, struct mover *mover)
{
	uint64_t freed = 0;

	(void)host;
	(void)blocks;
	fake.slices++;
	for (uint32_t i = 0; i < max_steps && fake.blocks > 0 && freed < bytes; i++) {
		fake.blocks--;
		mover->counts.evicted_blocks++;
		mover->counts.demoted_blocks += fake.blocks % 2;
		freed += 1000;
	}
	return freed;
}

/* The callback for the end of a flush or a purge, 0.7 s after it began. */
static struct {
	void (*flushed)(void *arg, int status);
	void (*purged)(void *arg, int status, uint64_t blocks);
	void *arg;
} waiting;
static struct loop_timer end_timer; /* of that flush or purge */

static void count(uint32_t *n)
{
	(void)__atomic_fetch_add(n, 1, __ATOMIC_RELAXED);
}

static void fake_finish(struct loop_timer *timer)
{
	(void)timer;
	count(&fake.ended);
	if (waiting.flushed)
		waiting.flushed(waiting.arg, fake.status);
	else
		waiting.purged(waiting.arg, fake.status, 42);
}

static int fake_wait(void *arg)
{
	if (fake.start < 0)
		return fake.start;
	count(&fake.begun);
	waiting.arg = arg;
	end_timer = (struct loop_timer){ .fire = fake_finish };
	if (!fake.never)
		loop_timer_set(admin_daemon.loop, &end_timer,
			       loop_now(admin_daemon.loop) + 700000000u);
	return 0;
}

static void fake_cancel(const void *arg)
{
	assert_ptr_equal(arg, waiting.arg);
	loop_timer_unset(admin_daemon.loop, &end_timer);
	count(&fake.canceled);
}

int __wrap_flush_begin(struct flush *of, bool last, void (*done)(void *arg, int status), void *arg)
{
	(void)of;
	assert_false(last);
	waiting.flushed = done;
	return fake_wait(arg);
}

void __wrap_flush_cancel(struct flush *of, void *arg)
{
	(void)of;
	fake_cancel(arg);
}

int __wrap_purge_begin(struct purge *of, const char *tenant,
		       void (*done)(void *arg, int status, uint64_t blocks), void *arg)
{
	(void)of;
	waiting.flushed = NULL;
	waiting.purged = done;
	snprintf(fake.tenant, sizeof(fake.tenant), "%s", tenant);
	return fake_wait(arg);
}

void __wrap_purge_cancel(struct purge *of, void *arg)
{
	(void)of;
	fake_cancel(arg);
}

int __wrap_scrub_start(const struct scrub_conf *of, bool repair, struct scrub **ret)
{
	(void)of;
	if (fake.start < 0)
		return fake.start;
	fake.repair = repair;
	count(&fake.begun);
	*ret = (struct scrub *)(void *)&fake.looks;
	return 0;
}

void __wrap_scrub_report(const struct scrub *scrub, struct scrub_report *ret)
{
	assert_ptr_equal(scrub, &fake.looks);
	fake.looks++;
	*ret = (struct scrub_report){ .checked_blocks = 990,
				      .checked_bytes = 1 << 20,
				      .walked_blocks = 1000,
				      .total_blocks = 2000,
				      .bad_blocks = 300,
				      .dropped_blocks = fake.repair ? 300 : 0,
				      .done = !fake.never && fake.looks > fake.looks_needed };
}

bool __wrap_scrub_next_bad(struct scrub *scrub, struct scrub_bad *ret)
{
	assert_ptr_equal(scrub, &fake.looks);
	if (fake.bad == 0 || fake.looks <= fake.looks_needed)
		return false;
	*ret = (struct scrub_bad){ .space = 1, .tier = TIER_NVME, .disk = 2, .segment = 77 };
	memset(ret->key, 0xab, sizeof(ret->key));
	fake.bad--;
	return true;
}

void __wrap_scrub_end(struct scrub *scrub)
{
	assert_ptr_equal(scrub, &fake.looks);
	count(&fake.ended);
}

bool __wrap_nvme_row(const struct tier *tier, uint32_t i, struct nvme_disk_row *ret)
{
	(void)tier;
	if (i >= fake.disks)
		return false;
	*ret = (struct nvme_disk_row){ .state = TIER_OFFLINE, .capacity_bytes = 1ull << 40 };
	snprintf(ret->path, sizeof(ret->path), "/dev/nvme%" PRIu32, i);
	snprintf(ret->text, sizeof(ret->text), "%s", nasty);
	ret->log.read_errors = 3;
	return true;
}

bool __wrap_redis_endpoint_row(const struct tier *tier, uint32_t i, struct redis_endpoint_row *ret)
{
	(void)tier;
	if (i >= fake.endpoints)
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

/* --- a daemon of these, and askers in a second thread --- */

static struct stop {
	struct loop_watch watch;
} stop;
static void (*asker)(void);

static void stop_ready(struct loop_watch *watch, uint32_t events)
{
	(void)watch;
	(void)events;
	loop_stop(admin_daemon.loop);
}

static void *asker_thread(void *unused)
{
	(void)unused;
	asker();
	assert_int_equal(write(stop.watch.fd, &(uint64_t){ 1 }, 8), 8);
	return NULL;
}

int admin_set_up(void **unused)
{
	static struct tier host;
	char text[256];

	(void)unused;
	memset(&admin_daemon, 0, sizeof(admin_daemon));
	memset(&admin_config, 0, sizeof(admin_config));
	snprintf(admin_config.admin_path, sizeof(admin_config.admin_path), "/tmp/unit_ctl.%d.sock",
		 (int)getpid());
	admin_config.admin_mode = 0600;
	admin_daemon.config = &admin_config;
	/* only compared with NULL here */
	admin_daemon.server = (struct server *)(void *)&host;
	admin_daemon.store.spaces = (struct spaces *)(void *)&host;
	admin_daemon.store.blocks = (struct blocks *)(void *)&host;
	admin_daemon.store.tiers[TIER_HOST] = admin_daemon.store.tiers[TIER_NVME] =
		admin_daemon.store.tiers[TIER_REDIS] = &host;
	fake.clients = 3;
	fake.spaces = 2;
	fake.slices = fake.bad = fake.looks = fake.looks_needed = fake.disks = fake.endpoints = 0;
	fake.begun = fake.ended = fake.canceled = 0;
	fake.start = fake.status = 0;
	fake.never = fake.repair = false;
	return loop_open(0, &admin_daemon.loop) < 0 ||
			       ctl_open(&admin_daemon, &admin_daemon.ctl, text, sizeof(text)) < 0 ?
		       -1 :
		       0;
}

static void close_look(struct loop_timer *timer)
{
	if (ctl_busy(admin_daemon.ctl))
		loop_timer_set(admin_daemon.loop, timer, loop_now(admin_daemon.loop) + 1000000u);
	else
		loop_stop(admin_daemon.loop);
}

void admin_close(void)
{
	struct loop_timer look = { .fire = close_look };

	ctl_shutdown(admin_daemon.ctl);
	loop_timer_set(admin_daemon.loop, &look, loop_now(admin_daemon.loop));
	assert_int_equal(loop_run(admin_daemon.loop), 0);
	ctl_close(admin_daemon.ctl);
	admin_daemon.ctl = NULL;
}

int admin_tear_down(void **unused)
{
	(void)unused;
	admin_close();
	loop_close(admin_daemon.loop);
	return access(admin_config.admin_path, F_OK) == 0 ? -1 : 0;
}

void admin_with_loop(void (*fn)(void))
{
	pthread_t thread;

	asker = fn;
	stop.watch = (struct loop_watch){ .fd = eventfd(0, EFD_CLOEXEC), .ready = stop_ready };
	assert_int_equal(loop_add(admin_daemon.loop, &stop.watch, EPOLLIN), 0);
	assert_int_equal(pthread_create(&thread, NULL, asker_thread, NULL), 0);
	assert_int_equal(loop_run(admin_daemon.loop), 0);
	(void)pthread_join(thread, NULL);
	loop_remove(admin_daemon.loop, &stop.watch);
	(void)close(stop.watch.fd);
}

int admin_dial(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(address.sun_path, admin_config.admin_path, strlen(admin_config.admin_path));
	assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

char admin_hear(int fd)
{
	static char packet[CTL_MAX_REPLY + 4096];
	size_t used = 0;

	heard.text[0] = '\0';
	heard.told = 0;
	for (heard.packets = 1;; heard.packets++) {
		const ssize_t n = recv(fd, packet, sizeof(packet), 0);

		if (n <= 0)
			return 0;
		assert_true(n <= CTL_MAX_REPLY);
		if (packet[0] == '~') {
			snprintf(heard.progress, sizeof(heard.progress), "%.*s", (int)n - 1,
				 packet + 1);
			heard.told++;
			continue;
		}
		assert_true(used + (size_t)n < sizeof(heard.text));
		memcpy(heard.text + used, packet + 1, (size_t)n - 1);
		used += (size_t)n - 1;
		heard.text[used] = '\0';
		if (packet[0] != '+')
			return packet[0];
	}
}

char admin_ask(int fd, const char *words, size_t n)
{
	assert_int_equal(send(fd, words, n, MSG_NOSIGNAL), n);
	return admin_hear(fd);
}

size_t admin_rows(const char *name)
{
	struct json_object *root = json_tokener_parse(heard.text), *rows = NULL;
	size_t n;

	assert_non_null(root);
	assert_true(json_object_object_get_ex(root, name, &rows));
	n = json_object_array_length(rows);
	json_object_put(root);
	return n;
}
