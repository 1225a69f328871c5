/* SPDX-License-Identifier: Apache-2.0 */
/* make: needs=kvtierd_two */
/*
 * sys_two_devices.c - goal: a daemon with two devices serves engines of both. A space's jobs go to
 * the device that its memory is of; blocks are the same from either; ops wait for a full device
 * without delay to the other; a waiting op can be cancelled, and its client may die. Method:
 * kvtierd_two.c, whose second device takes two jobs at a time and begins none before its kick, raw
 * clients with ops of many more blocks, and a witness on the CPU.
 */
#include "tests/lib/kvtierd_two.h"
#include "tests/lib/lib_raw.h"

enum { N = RAW_PAGES, ROUNDS = 20 };

static struct daemon d;
static struct witness witness;

FIXTURE(start)
{
	daemon_place(&d, false);
	d.program = "tests/kvtierd_two";
	daemon_configure(&d, HOST("8M", "256K") "[device]\nworkers = 2\n");
	daemon_restart(&d);
	witness = (struct witness){ .may_miss = true };
	witness_start(&witness, d.socket);
	return 0;
}

FIXTURE(end)
{
	daemon_stat_becomes(&d, "ops.outstanding", 0, 20000);
	witness_check(&witness);
	witness_stop(&witness);
	daemon_remove(&d);
	return 0;
}

TEST_EACH(start, end);

/* A connection with one space over pages of its own. */
struct side {
	struct raw raw;
	uint32_t space, position;
	uint8_t *pages;
	int fd;
};

static size_t page_bytes(void)
{
	return raw_region_bytes() / RAW_PAGES;
}

static void side_open(struct side *s, bool second)
{
	struct wire_space_ok ok = { 0 };
	struct raw_space message;

	*s = (struct side){ .fd = memfd_make(raw_region_bytes(), F_SEAL_SHRINK) };
	raw_open(&s->raw, d.socket);
	raw_space_fill(&s->raw, &message);
	if (second) {
		message.region.memory = WIRE_DEVICE_FD;
		memset(message.region.device, TWO_UUID, sizeof(message.region.device));
	}
	assert_int_equal(raw_send(&s->raw, &message, sizeof(message), &s->fd, 1), 0);
	assert_int_equal(raw_receive(&s->raw, &ok, sizeof(ok)), sizeof(ok));
	assert_int_equal(ok.head.type, WIRE_SPACE_OK);
	assert_int_equal(ok.pages, RAW_PAGES);
	s->space = ok.space;
	s->pages = raw_region_map(s->fd);
	memset(s->pages, 0, raw_region_bytes()); /* allocated */
}

static void side_close(struct side *s)
{
	raw_close(&s->raw);
	(void)munmap(s->pages, raw_region_bytes());
	(void)close(s->fd);
}

/* Each value of the page of block i of the chain. */
static uint8_t filler(uint32_t chain, uint32_t i)
{
	return (uint8_t)(1 + (chain * 31 + i * 7) % 100);
}

static void fill(struct side *s, uint32_t chain)
{
	for (uint32_t i = 0; i < N; i++)
		memset(s->pages + i * page_bytes(), filler(chain, i), page_bytes());
}

static bool filled(const struct side *s, uint32_t chain)
{
	for (uint32_t i = 0; i < N; i++)
		for (size_t at = 0; at < page_bytes(); at++)
			if (s->pages[i * page_bytes() + at] != filler(chain, i))
				return false;
	return true;
}

/* All blocks of a chain, in one op; not waited for. */
static uint64_t begin(struct side *s, enum wire_op op, uint32_t chain)
{
	struct wire_sqe sqe = raw_sqe(op, s->space);

	sqe.n = N;
	for (uint32_t i = 0; i < N; i++) {
		memset(raw_keys(&s->raw) + 32 * i, (int)i + 1, 32);
		memcpy(raw_keys(&s->raw) + 32 * i, &chain, sizeof(chain));
		raw_pages(&s->raw)[i] = i;
	}
	raw_push(&s->raw, s->position++, &sqe);
	return sqe.op_id;
}

static const struct wire_cqe *await(struct side *s)
{
	raw_await(&s->raw, s->position);
	return raw_cqe(&s->raw, s->position - 1);
}

static void run(struct side *s, enum wire_op op, uint32_t chain)
{
	const struct wire_cqe *cqe;

	(void)begin(s, op, chain);
	cqe = await(s);
	assert_int_equal(cqe->status, 0);
	assert_int_equal(cqe->ok, N);
}

/* --- tests --- */

TEST(blocks_are_the_same_from_either)
{
	struct side cpu, two;

	side_open(&cpu, false);
	side_open(&two, true);
	for (uint32_t chain = 0; chain < ROUNDS; chain++) {
		struct side *from = chain % 2 ? &cpu : &two, *to = chain % 2 ? &two : &cpu;

		fill(from, chain);
		run(from, WIRE_OP_STORE, chain);
		memset(to->pages, 0, raw_region_bytes());
		run(to, WIRE_OP_LOAD, chain);
		assert_true(filled(to, chain));
	}
	run(&two, WIRE_OP_PREFETCH, 0); /* touches no page: the CPU's job */
	witness_check(&witness);
	side_close(&cpu);
	side_close(&two);
}

/* Several clients want the second device at once, each for many more blocks than it takes. */
TEST(a_full_device_is_waited_for)
{
	enum { SIDES = 4 };
	struct side sides[SIDES];

	for (uint32_t i = 0; i < SIDES; i++)
		side_open(&sides[i], true);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		for (uint32_t i = 0; i < SIDES; i++) {
			fill(&sides[i], round * SIDES + i);
			(void)begin(&sides[i], WIRE_OP_STORE, round * SIDES + i);
		}
		for (uint32_t i = 0; i < SIDES; i++)
			assert_int_equal(await(&sides[i])->ok, N);
		for (uint32_t i = 0; i < SIDES; i++) {
			memset(sides[i].pages, 0, raw_region_bytes());
			(void)begin(&sides[i], WIRE_OP_LOAD, round * SIDES + i);
		}
		for (uint32_t i = 0; i < SIDES; i++) {
			assert_int_equal(await(&sides[i])->ok, N);
			assert_true(filled(&sides[i], round * SIDES + i));
		}
	}
	witness_check(&witness);
	for (uint32_t i = 0; i < SIDES; i++)
		side_close(&sides[i]);
}

/* Cancelled at any moment, ops complete; finished blocks are there, and the rest is not. */
TEST(who_waits_can_be_cancelled)
{
	struct side two, other;

	side_open(&two, true);
	side_open(&other, true);
	for (uint32_t chain = 0; chain < ROUNDS; chain++) {
		struct wire_sqe cancel = { .op = WIRE_OP_CANCEL, .op_id = 1 };

		fill(&two, chain);
		fill(&other, 1000 + chain);
		(void)begin(&other, WIRE_OP_STORE, 1000 + chain);
		cancel.target = begin(&two, WIRE_OP_STORE, chain);
		raw_push(&two.raw, two.position++, &cancel);
		raw_await(&two.raw, chain + 1); /* a cancel has no completion */
		assert_true(raw_cqe(&two.raw, chain)->ok <= N);
		raw_taken(&two.raw, chain + 1);
		assert_int_equal(await(&other)->ok, N);
		raw_taken(&other.raw, chain + 1);
	}
	side_close(&two);
	side_close(&other);
}

/* Its connection ends while its ops run and wait: everything is let go. */
TEST(who_waits_may_die)
{
	const int fds = daemon_fds_settled(&d);

	for (uint32_t round = 0; round < ROUNDS; round++) {
		struct side two, other;

		side_open(&two, true);
		side_open(&other, true);
		fill(&two, round);
		fill(&other, 1000 + round);
		(void)begin(&two, WIRE_OP_STORE, round);
		(void)begin(&other, WIRE_OP_STORE, 1000 + round);
		side_close(&two);
		assert_int_equal(await(&other)->ok, N);
		side_close(&other);
	}
	daemon_fds_fall_to(&d, fds, 20000);
}
