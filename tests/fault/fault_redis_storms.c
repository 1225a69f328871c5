/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: no server makes the tier repeat something as fast as it can: neither a server that closes
 * accepted connections, nor one with room for one connection only, nor one that sends us to names
 * without an address. And a slot that no server has is not dead for ever. Method: a server of the
 * test's own, a thread, that does so and counts; and a getaddrinfo() that hangs.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_redis_tier.h"

#include <assert.h>
#include <dlfcn.h>
#include <netdb.h>

#include "base/clock.h"
#include "tiers/redis/redis_slots.h"

enum { GUESTS = 16, TEXT = 4096, LOOKUPS = 16, FEW = 40, NAMES = 120 };
/* A storm would be seen in so long; time passes in steps. */
enum { WATCH_MS = 20000, STEP_MS = 500 };

/* Answers GETs by nil and CLUSTER by `map`. */
struct door {
	int fd;
	char address[64];
	uint16_t port;
	pthread_t thread;
	struct pollfd guests[GUESTS + 1]; /* 0: the door itself */
	atomic_uint accepted;
	/* guests at a time; with more, all are closed, guests inside too */
	atomic_uint room;
	atomic_bool patient;       /* ... when they say something, not before */
	const char *_Atomic words; /* to guests that are closed; NULL: none */
	const char *_Atomic map;
	atomic_bool once; /* answers one GET and closes */
	/* GETs but the trial's: to another name each time */
	atomic_bool sends_away;
	uint32_t slot, names; /* of guests that are sent away; how many were */
	atomic_bool over;
};

static struct door door;
static struct kit kit;

/* --- the server --- */

static void answer(int fd, const char *text)
{
	(void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
}

static void show_out(struct pollfd *guest)
{
	const char *words = atomic_load(&door.words);
	char rest[TEXT];

	if (guest->fd < 0)
		return;
	/* else our words are lost with it */
	(void)!recv(guest->fd, rest, sizeof(rest), MSG_DONTWAIT);
	if (words)
		answer(guest->fd, words);
	(void)close(guest->fd);
	guest->fd = -1;
}

/* Commands are small here: each comes in one piece, and none has a '*' but in front. */
static void serve(struct pollfd *guest)
{
	char text[TEXT + 1], moved[64], *next;
	const ssize_t n = recv(guest->fd, text, TEXT, MSG_DONTWAIT);

	if (n <= 0) {
		(void)close(guest->fd);
		guest->fd = -1;
		return;
	}
	text[n] = 0;
	for (char *at = strchr(text, '*'); at; at = next) {
		next = strchr(at + 1, '*');
		if (next)
			next[-1] = 0;
		if (strstr(at, "CLUSTER")) {
			answer(guest->fd, atomic_load(&door.map));
		} else if (atomic_load(&door.sends_away) && !strstr(at, "kv:0000000000000000")) {
			(void)snprintf(moved, sizeof(moved), "-ASK %u name%u.hang:6379\r\n",
				       door.slot, door.names++);
			answer(guest->fd, moved);
		} else {
			answer(guest->fd, "$-1\r\n");
		}
		if (atomic_load(&door.once)) {
			show_out(guest);
			return;
		}
		if (next)
			*next = '*';
	}
}

static void let_in(void)
{
	const uint32_t places = atomic_load(&door.patient) ? GUESTS : atomic_load(&door.room);
	struct pollfd guest = { .fd = accept4(door.fd, NULL, NULL, SOCK_CLOEXEC),
				.events = POLLIN };

	assert(guest.fd >= 0);
	(void)atomic_fetch_add(&door.accepted, 1);
	for (uint32_t i = 1; i <= places; i++)
		if (door.guests[i].fd < 0) {
			door.guests[i] = guest;
			return;
		}
	show_out(&guest);
}

static void *keep_door(TEST_UNUSED void *arg)
{
	while (!atomic_load(&door.over)) {
		(void)poll(door.guests, GUESTS + 1, 10);
		if (door.guests[0].revents)
			let_in();
		for (uint32_t i = 1; i <= GUESTS; i++) {
			const bool speaks = door.guests[i].fd >= 0 && door.guests[i].revents;

			if (i <= atomic_load(&door.room) && speaks)
				serve(&door.guests[i]);
			else if (i > atomic_load(&door.room) &&
				 (speaks || !atomic_load(&door.patient)))
				show_out(&door.guests[i]);
		}
	}
	return NULL;
}

FIXTURE(open_door)
{
	memset(&door, 0, sizeof(door));
	door.fd = fake_listen(door.address, &door.port);
	for (uint32_t i = 0; i <= GUESTS; i++)
		door.guests[i] = (struct pollfd){ .fd = i ? -1 : door.fd, .events = POLLIN };
	atomic_store(&door.room, GUESTS);
	atomic_store(&door.map, "-ERR This instance has cluster support disabled\r\n");
	return pthread_create(&door.thread, NULL, keep_door, NULL);
}

FIXTURE(close_door)
{
	kit_free(&kit);
	atomic_store(&door.over, true);
	(void)pthread_join(door.thread, NULL);
	for (uint32_t i = 0; i <= GUESTS; i++)
		if (door.guests[i].fd >= 0)
			(void)close(door.guests[i].fd);
	return 0;
}

TEST_EACH(open_door, close_door);

/* --- a resolver that hangs --- */

static atomic_bool hangs;
static atomic_uint looking, looking_most, looked;

/* In place of libc's: ours for the names that hang. */
int getaddrinfo(const char *restrict name, const char *restrict service,
		const struct addrinfo *restrict hints, struct addrinfo **restrict ret)
{
	const struct timespec nap = { .tv_nsec = 2000000 };
	int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
	unsigned int n, most;

	if (!strstr(name, ".hang")) {
		*(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
		return real(name, service, hints, ret);
	}
	(void)atomic_fetch_add(&looked, 1);
	n = atomic_fetch_add(&looking, 1) + 1;
	most = atomic_load(&looking_most);
	while (n > most && !atomic_compare_exchange_weak(&looking_most, &most, n))
		;
	while (atomic_load(&hangs))
		(void)nanosleep(&nap, NULL);
	(void)atomic_fetch_sub(&looking, 1);
	return EAI_NONAME;
}

static bool nobody_looks(TEST_UNUSED struct kit *k, TEST_UNUSED void *arg)
{
	return atomic_load(&looking) == 0;
}

/* --- the cases --- */

static void start_up(void)
{
	kit_init(&kit, KIT_SMALL);
	kit_start_at(&kit, door.address);
}

/* An idle server that from now on closes accepted connections: a few attempts, a state, and its
 * words. */
static void is_left_alone(const char *words, enum tier_state state, const char *says)
{
	start_up();
	kit_pass_ms(&kit, 700); /* the connection is no young one any more */
	atomic_store(&door.words, words);
	atomic_store(&door.room, 0);
	kit_until_state(&kit, state);
	for (uint32_t ms = 0; ms < WATCH_MS; ms += STEP_MS)
		kit_pass_ms(&kit, STEP_MS);
	assert_in_range(atomic_load(&door.accepted), 1, FEW);
	assert_true(kit_says(&kit, says));
	if (state == TIER_OFFLINE) {
		atomic_store(&door.room, GUESTS);
		kit_until_state(&kit, TIER_UP);
		assert_int_equal(kit_load(&kit, 1), -ENOENT);
	}
}

TEST_DO(accepted_and_closed, is_left_alone(NULL, TIER_OFFLINE, door.address));
TEST_DO(accepted_and_full, is_left_alone("-ERR max number of clients reached\r\n", TIER_OFFLINE,
					 "max number of clients"));
TEST_DO(accepted_and_denied, is_left_alone("-DENIED Redis is running in protected mode\r\n",
					   TIER_MISCONFIGURED, "protected mode"));

static void has_room_for_one(bool patient)
{
	atomic_store(&door.patient, patient);
	atomic_store(&door.words, "-ERR max number of clients reached\r\n");
	atomic_store(&door.room, 1);
	kit_init(&kit, KIT_SMALL);
	kit.conf.connections = 4;
	kit_start_at(&kit, door.address);
	for (uint32_t i = 0; i < 20; i++) {
		(void)kit_load_each(&kit, 0, 64, true);
		kit_pass_ms(&kit, STEP_MS);
	}
	/* it tried for more, now and then */
	assert_in_range(atomic_load(&door.accepted), 2, FEW);
	assert_int_equal(kit_counters(&kit).breaker_opens_total, 0);
	assert_int_equal(tier_state(kit.tier), TIER_UP);
}

TEST_DO(room_for_one_is_enough, has_room_for_one(false));

/* The answer to a GET is that there is no room. */
TEST_DO(room_for_one_is_enough_told_late, has_room_for_one(true));

/* Never three failures in a row, but no reason to connect as often as there is something to ask:
 * each of the two connections is opened again every RETRY_MS of redis_endpoint.c (100), however
 * long this takes. */
TEST(one_answer_each_time)
{
	uint64_t began;

	start_up();
	began = clock_ns();
	atomic_store(&door.once, true);
	while (clock_ns() < began + ms_to_ns(1000))
		(void)kit_load_each(&kit, 0, 8, true);
	assert_in_range(atomic_load(&door.accepted), 2,
			2 * ((clock_ns() - began) / ms_to_ns(100) + 2));
}

static bool is_served(struct kit *k, void *arg)
{
	return kit_readable(k, ((const struct image_identity *)arg)->key);
}

TEST(a_slot_that_nobody_has_is_asked_for_again)
{
	struct image_identity identity;
	char half[128], all[128];
	uint32_t block = 0;

	(void)snprintf(half, sizeof(half), "*1\r\n*3\r\n:0\r\n:8191\r\n*2\r\n$0\r\n\r\n:%u\r\n",
		       door.port);
	(void)snprintf(all, sizeof(all), "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:%u\r\n",
		       door.port);
	atomic_store(&door.map, half);
	while (kit_slot_of(block) < REDIS_SLOTS / 2)
		block++;
	start_up();
	assert_int_equal(kit_load(&kit, block), -ENODEV);
	atomic_store(&door.map, all);
	kit_pass_ms(&kit, WATCH_MS);
	kit_identity(block, &identity);
	assert_true(kit_until(&kit, is_served, &identity));
	assert_int_equal(kit_load(&kit, block), -ENOENT);
}

/* Each of n loads is sent to a name of its own, which the map has as a replica. */
static void send_away(uint32_t n)
{
	struct kit_slot *slots[FEW];

	for (uint32_t i = 0; i < n; i++)
		slots[i] = kit_begin(&kit, XFER_READ, 1);
	kit_run_ms(&kit, 100); /* a storm would begin by now */
	clock_pass_ms(KIT_TIMEOUT_MS);
	for (uint32_t i = 0; i < n; i++)
		assert_int_not_equal(kit_settle(&kit, slots[i]), 0);
}

/* All slots are the door's, and there are more replicas than are ever sent to: others are not
 * followed at all. */
static void show_replicas(void)
{
	static char map[NAMES * 48 + 128];
	int n = sprintf(map, "*1\r\n*%d\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:%u\r\n", NAMES + 3,
			door.port);

	for (int i = 0; i < NAMES; i++)
		n += sprintf(map + n, "*2\r\n$%d\r\nname%d.hang\r\n:6379\r\n",
			     snprintf(NULL, 0, "name%d.hang", i), i);
	atomic_store(&door.map, map);
}

TEST(look_ups_are_few)
{
	uint32_t before;

	show_replicas();
	door.slot = kit_slot_of(1);
	atomic_store(&door.sends_away, true);
	atomic_store(&hangs, true);
	start_up();
	send_away(FEW);
	assert_in_range(atomic_load(&looking_most), 1, LOOKUPS);
	kit_pass_ms(&kit, WATCH_MS); /* their places are free again, they are not */
	send_away(FEW);
	assert_in_range(atomic_load(&looking_most), 1, LOOKUPS);
	before = atomic_load(&looked);
	atomic_store(&hangs, false);
	assert_true(kit_until(&kit, nobody_looks, NULL));
	kit_pass_ms(&kit, WATCH_MS);
	atomic_store(&hangs, true);
	send_away(3);
	assert_true(atomic_load(&looked) > before);
	assert_int_equal(tier_state(kit.tier), TIER_UP);
	kit_stop(&kit); /* waits for none of them */
	assert_true(atomic_load(&looking) > 0);
	atomic_store(&hangs, false);
	assert_true(kit_until(&kit, nobody_looks, NULL));
}
