/* SPDX-License-Identifier: Apache-2.0 */
#include <json-c/json.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "daemon/stats/stats.h"
#include "daemon/admin/ctl.h"
#include "daemon/conn/server.h"
#include "daemon/write/writeback.h"
#include "daemon/verify/verify.h"
#include "daemon/move/purge.h"
#include "daemon/table/space_counts.h"
#include "lib_ctl.h"
#include "lib_packet.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/redis.h"
#include "wrap.h"

struct fake_modules fake;
struct heard heard;
struct kvtierd admin_daemon;
struct config admin_config;

static const char nasty[] = "a\"b\\c\n\033[31m\xff\xc2\x9b\xe2\x82\xac";

/* --- the other modules of the daemon, faked --- */

REAL(bool, server_row,
     (TEST_UNUSED const struct server *server, uint32_t position, struct conn_row *ret))
{
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

REAL(struct space *, space_at, (TEST_UNUSED const struct spaces *spaces, uint32_t number))
{
	static struct space space;

	if (number >= 2 * fake.spaces || number % 2 == 0) /* with holes */
		return NULL;
	space.number = number;
	space.codec = CODEC_FP8;
	space.geometry.dtype = DTYPE_BF16;
	/* escapes to six times its size */
	memset(space.wire.model, 1, sizeof(space.wire.model) - 1);
	return &space;
}

REAL(uint32_t, spaces_numbers, (TEST_UNUSED const struct spaces *spaces))
{
	return 2 * fake.spaces;
}

REAL(struct space_counts *, blocks_counts, (TEST_UNUSED const struct blocks *blocks))
{
	return NULL;
}

REAL(uint32_t, counts_variant,
     (TEST_UNUSED const struct space_counts *counts, TEST_UNUSED uint32_t space, uint32_t variant))
{
	return variant;
}

REAL(uint32_t, counts_blocks, (TEST_UNUSED const struct space_counts *counts, uint32_t space))
{
	return space * 10;
}

REAL(uint64_t, mover_evict_bytes,
     (TEST_UNUSED struct tier * host, TEST_UNUSED struct blocks *blocks, uint64_t bytes,
      uint32_t max_steps, struct mover *mover))
{
	uint64_t freed = 0;

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

static void fake_finish(TEST_UNUSED struct loop_timer *timer)
{
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

REAL(int, writeback_flush,
     (TEST_UNUSED struct writeback * of, bool last, void (*done)(void *arg, int status), void *arg))
{
	assert_false(last);
	waiting.flushed = done;
	return fake_wait(arg);
}

REAL(void, writeback_flush_cancel, (TEST_UNUSED struct writeback * of, void *arg))
{
	fake_cancel(arg);
}

REAL(int, purge_begin,
     (TEST_UNUSED struct purge * of, const char *tenant,
      void (*done)(void *arg, int status, uint64_t blocks), void *arg))
{
	waiting.flushed = NULL;
	waiting.purged = done;
	snprintf(fake.tenant, sizeof(fake.tenant), "%s", tenant);
	return fake_wait(arg);
}

REAL(void, purge_cancel, (TEST_UNUSED struct purge * of, void *arg))
{
	fake_cancel(arg);
}

REAL(int, verify_begin, (TEST_UNUSED const struct verify_conf *of, bool drop, struct verify **ret))
{
	if (fake.start < 0)
		return fake.start;
	fake.drop = drop;
	count(&fake.begun);
	*ret = (struct verify *)(void *)&fake.looks;
	return 0;
}

REAL(void, verify_report, (const struct verify *verify, struct verify_report *ret))
{
	assert_ptr_equal(verify, &fake.looks);
	fake.looks++;
	*ret = (struct verify_report){ .checked_blocks = 990,
				       .checked_bytes = 1 << 20,
				       .walked_blocks = 1000,
				       .total_blocks = 2000,
				       .bad_blocks = 300,
				       .dropped_blocks = fake.drop ? 300 : 0,
				       .done = !fake.never && fake.looks > fake.looks_needed };
}

REAL(bool, verify_next_bad, (struct verify * verify, struct verify_bad *ret))
{
	assert_ptr_equal(verify, &fake.looks);
	if (fake.bad == 0 || fake.looks <= fake.looks_needed)
		return false;
	*ret = (struct verify_bad){ .space = 1, .tier = TIER_NVME, .disk = 2, .segment = 77 };
	memset(ret->key, 0xab, sizeof(ret->key));
	fake.bad--;
	return true;
}

REAL(void, verify_cancel, (struct verify * verify))
{
	assert_ptr_equal(verify, &fake.looks);
	count(&fake.ended);
}

REAL(bool, nvme_row, (TEST_UNUSED const struct tier *tier, uint32_t i, struct nvme_disk_row *ret))
{
	if (i >= fake.disks)
		return false;
	*ret = (struct nvme_disk_row){ .state = TIER_OFFLINE, .capacity_bytes = 1ull << 40 };
	snprintf(ret->path, sizeof(ret->path), "/dev/nvme%" PRIu32, i);
	snprintf(ret->text, sizeof(ret->text), "%s", nasty);
	ret->log.read_errors = 3;
	return true;
}

REAL(bool, redis_endpoint_row,
     (TEST_UNUSED const struct tier *tier, uint32_t i, struct redis_endpoint_row *ret))
{
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

static void stop_ready(TEST_UNUSED struct loop_watch *watch, TEST_UNUSED uint32_t events)
{
	loop_stop(admin_daemon.loop);
}

static void *asker_thread(TEST_UNUSED void *unused)
{
	asker();
	assert_int_equal(write(stop.watch.fd, &(uint64_t){ 1 }, 8), 8);
	return NULL;
}

int admin_set_up(TEST_UNUSED void **unused)
{
	static struct tier host;
	static struct stats stats;
	char text[256];

	memset(&admin_daemon, 0, sizeof(admin_daemon));
	memset(&admin_config, 0, sizeof(admin_config));
	snprintf(admin_config.admin_path, sizeof(admin_config.admin_path), "/tmp/unit_ctl.%d.sock",
		 (int)getpid());
	admin_daemon.config = &admin_config;
	admin_daemon.stats = &stats;
	/* only compared with NULL here */
	admin_daemon.server = (struct server *)(void *)&host;
	admin_daemon.tables.spaces = (struct spaces *)(void *)&host;
	admin_daemon.tables.blocks = (struct blocks *)(void *)&host;
	admin_daemon.tables.tiers[TIER_HOST] = admin_daemon.tables.tiers[TIER_NVME] =
		admin_daemon.tables.tiers[TIER_REDIS] = &host;
	fake = (struct fake_modules){ .clients = 3, .spaces = 2 };
	return loop_open(0, &admin_daemon.loop) < 0 ||
			       ctl_open(&admin_daemon, &admin_daemon.ctl, text, sizeof(text)) < 0 ?
		       -1 :
		       0;
}

void admin_close(void)
{
	ctl_close(admin_daemon.ctl);
	admin_daemon.ctl = NULL;
}

int admin_tear_down(TEST_UNUSED void **unused)
{
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

static void (*asker_over)(int fd);

static void dial_and_ask(void)
{
	const int fd = admin_dial();

	asker_over(fd);
	(void)close(fd);
}

void admin_asks(void (*fn)(int fd))
{
	asker_over = fn;
	admin_with_loop(dial_and_ask);
}

void admin_says(const char *words)
{
	if (!strstr(heard.text, words))
		fail_msg("'%s' is not in the reply: %.200s", words, heard.text);
}

int admin_dial(void)
{
	const int fd = packet_dial(admin_config.admin_path, 0);

	assert_true(fd >= 0);
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
