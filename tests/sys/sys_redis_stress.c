/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_redis_stress.c - goal: a Redis has troubles of all kinds, in any order and at any moment. Two
 * nodes under load get right bytes or misses; when it is over all is as before and nothing is left
 * behind. Method: a thread that stores through one kvtierd, a thread that loads through another,
 * and a random sequence of stops, kills, losses and damage.
 */
#include "tests/lib/lib_shared.h"

enum { EVENTS = 40, EVENT_MS = 150, NAME = 200, VALUE = 1 << 16 };

static struct shared_load stores, loads;

static void flip_a_bit(struct shared *w, struct random *random)
{
	static uint8_t value[VALUE];
	char name[NAME];
	long bytes;

	redis_say(&w->redis, name, sizeof(name), "RANDOMKEY");
	bytes = redis_get(&w->redis, name, value, sizeof(value));
	if (bytes <= 0) /* there is none, or no more */
		return;
	value[random_below(random, (uint32_t)bytes)] ^= (uint8_t)(1u << random_below(random, 8));
	redis_put(&w->redis, name, value, (size_t)bytes);
}

static void something_happens(struct shared *w, struct random *random)
{
	char text[256];

	switch (random_below(random, 8)) {
	case 0:
	case 1:
		redis_signal(&w->redis, SIGSTOP);
		nap_ms(random_below(random, 2 * EVENT_MS));
		redis_signal(&w->redis, SIGCONT);
		break;
	case 2:
		redis_kill(&w->redis);
		nap_ms(random_below(random, EVENT_MS));
		redis_restart(&w->redis);
		break;
	case 3:
		redis_say(&w->redis, text, sizeof(text), "FLUSHALL");
		break;
	case 4:
		redis_say(&w->redis, text, sizeof(text), "CLIENT KILL TYPE normal");
		break;
	case 5:
		redis_say(&w->redis, text, sizeof(text), "CONFIG SET maxmemory %s",
			  random_below(random, 2) ? "1" : "0");
		break;
	case 6: /* a server that is full refuses us, too */
		redis_say(&w->redis, text, sizeof(text), "CONFIG SET maxmemory 0");
		for (int i = 0; i < 16; i++)
			flip_a_bit(w, random);
		break;
	default:
		node_evict(random_below(random, 2) ? &w->a : &w->b);
	}
}

TEST(whatever_happens)
{
	struct random random = random_seeded("sys_redis_stress");
	struct shared *w =
		shared_begin_in(NULL, "timeout_ms = 100", SHARED_TIGHT, KVTIER_CODEC_RAW);
	char text[256];

	shared_load_begin(&stores, &w->a.e, true);
	shared_load_begin(&loads, &w->b.e, false);
	for (int i = 0; i < EVENTS; i++) {
		something_happens(w, &random);
		nap_ms(random_below(&random, EVENT_MS));
	}
	redis_say(&w->redis, text, sizeof(text), "CONFIG SET maxmemory 0");
	shared_load_end(&stores);
	shared_load_end(&loads);
	shared_meets(&w->a.d, &w->a.e, &w->b.e);
	node_owes_nothing(&w->a);
	node_owes_nothing(&w->b);
	shared_end(w);
}

TEST_FIRST(redis_needed());
