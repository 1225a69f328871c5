/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: a daemon that writes anything anywhere into the memory it shares, while it is read, makes
 * calls fail and nothing worse: each call returns, and no count is larger than the request.
 * Method: an honest fake daemon (fake_engine.h) whose completions, statuses and index a thread
 * overwrites, for hundreds of connections, each until the client has had enough of it; a sanitizer
 * sees the rest. Seed printed.
 */

#include "tests/lib/fake_engine.h"
#include "tests/lib/test.h"

enum { LIVES = 300, CALLS = 400, BLOCKS = 8, CHAINS = 40 };

struct shared {
	uint8_t *at;
	size_t bytes;
};

struct scribbler {
	struct shared complete, index;
	struct random random;
	_Atomic bool stop;
};

/* The same pages once more: its own mapping goes when the client connects again, and its seal
 * allows no new one. */
static struct shared twin(void *at, uint64_t bytes)
{
	return (struct shared){ .at = mremap(at, 0, bytes, MREMAP_MAYMOVE), .bytes = bytes };
}

/* Heads and tails, which are few bytes, as often as all the rest; small values pass more checks. */
__attribute__((no_sanitize("thread"))) static void one(struct shared *s, uint64_t x)
{
	const size_t at = x & 1 ? (x >> 8) % 256 : (x >> 8) % s->bytes;
	volatile uint8_t *byte = &s->at[at];

	*byte = (uint8_t)(x >> 56) & (x & 2 ? 0xff : 3);
}

static void *scribble(void *arg)
{
	struct scribbler *s = arg;

	while (!atomic_load(&s->stop)) {
		const uint64_t x = random_next(&s->random);

		one(x & 1 << 30 ? &s->complete : &s->index, x);
		if (x % 8 == 0)
			(void)usleep((unsigned int)(x >> 40) % 50);
	}
	return NULL;
}

static void begin(struct scribbler *s, struct engine *e, uint64_t seed, pthread_t *ret)
{
	*s = (struct scribbler){ .complete = twin(e->peer.complete, e->peer.complete_bytes),
				 .index = twin(e->peer.index, e->peer.index->bytes),
				 .random.state = seed };
	assert_true(s->complete.at != MAP_FAILED && s->index.at != MAP_FAILED);
	assert_int_equal(pthread_create(ret, NULL, scribble, s), 0);
}

static void end(struct scribbler *s, pthread_t thread)
{
	atomic_store(&s->stop, true);
	(void)pthread_join(thread, NULL);
	(void)munmap(s->complete.at, s->complete.bytes);
	(void)munmap(s->index.at, s->index.bytes);
}

static void take(struct engine *e, uint64_t op, struct random *random)
{
	int32_t blocks[BLOCKS];
	struct kvtier_result results[4] = { 0 };
	int n;

	for (int i = 0; i < 4; i++)
		results[i] = (struct kvtier_result){ .size = sizeof(results[i]),
						     .blocks_max = BLOCKS,
						     .blocks = blocks };
	switch (random_below(random, 4)) {
	case 0:
		n = kvtier_poll(e->client, results, 4);
		assert_true(n <= 4);
		break;
	case 1:
		(void)kvtier_cancel(e->client, op, 1);
		break;
	default:
		n = kvtier_wait(e->client, op, (int)random_below(random, 3), results);
		break;
	}
	for (int i = 0; i < 4; i++)
		assert_true(results[i].n <= BLOCKS && results[i].ok <= BLOCKS &&
			    results[i].prefix <= BLOCKS);
}

/* False: refused, as the client cut the connection. */
static bool call(struct engine *e, struct random *random)
{
	const struct kvtier_op o = { .size = sizeof(o), .timeout_ms = 1 + random_below(random, 4) };
	struct kvtier_hit hit = { .size = sizeof(hit) };
	struct kvtier_key keys[BLOCKS];
	uint32_t pages[BLOCKS];
	uint64_t op = 0;
	int rc;

	fake_keys(e, 1000 * random_below(random, CHAINS), BLOCKS, keys);
	for (uint32_t i = 0; i < BLOCKS; i++)
		pages[i] = random_below(random, PAGES);
	rc = kvtier_lookup(e->space, keys, BLOCKS, &hit);
	assert_true(rc || hit.blocks <= BLOCKS);
	rc = random_below(random, 2) ? kvtier_store(e->space, keys, pages, BLOCKS, &o, &op) :
				       kvtier_load(e->space, keys, pages, BLOCKS, &o, &op);
	if (!rc)
		take(e, op, random);
	return rc != -ENOTCONN;
}

static void lives(bool private, const char *name)
{
	struct random random = random_seeded(name);
	uint32_t calls = 0, cut = 0;

	for (int life = 0; life < LIVES; life++) {
		struct scribbler s;
		struct engine e;
		bool up = true;
		pthread_t thread;

		fake_open(&e, private);
		begin(&s, &e, random_next(&random), &thread);
		for (int i = 0; i < CALLS && up; i++, calls++)
			up = call(&e, &random);
		end(&s, thread);
		cut += !up;
		fake_close(&e);
	}
	printf("%u calls over %d connections, %u of them cut\n", calls, LIVES, cut);
	assert_true(cut > 0); /* some of it was seen through */
}

TEST_DO(shared_memory, lives(false, "unit_client_scribbles, shared"));
TEST_DO(private_memory, lives(true, "unit_client_scribbles, private"));

TEST_FIRST(fake_timeout_ms = 500);
