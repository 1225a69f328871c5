/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=12 */
/*
 * gpu_random - goal: while engines with GPU memory do anything at the same time, a block that is
 * said to be loaded has its bytes, and no other page is touched. Method: four connections of
 * different blocks (small ones that share lanes, some larger than a lane), each with an op under
 * way; ops are cancelled, have deadlines that are over at once, end with their connection. The
 * emulated driver runs queued operations late and in an order of its own.
 */
#include "tests/lib/lib_gpu_raw.h"

enum { ENGINES = 4, N = 6, CHAINS = 5 };

static struct daemon d;
static struct gpu gpu;
static struct random seed;

struct side {
	struct gpu_raw e;
	const struct kvtier_geometry *geometry;
	enum wire_op op;
	uint32_t chain, n;
	bool cut;
};

static void begin_op(struct side *s)
{
	struct wire_sqe sqe;

	s->op = random_below(&seed, 2) ? WIRE_OP_LOAD : WIRE_OP_STORE;
	s->chain = random_below(&seed, CHAINS);
	s->n = 1 + random_below(&seed, N);
	s->cut = false;
	if (s->op == WIRE_OP_STORE)
		gpu_raw_fill(&s->e, s->chain, 0, s->n);
	else
		gpu_raw_poison(&s->e, N, N);
	sqe = gpu_raw_sqe(&s->e, s->op, s->chain, s->op == WIRE_OP_STORE ? 0 : N, s->n);
	if (random_below(&seed, 16) == 0)
		sqe.deadline_ns = now_ns() + random_below(&seed, 2000000);
	gpu_raw_send(&s->e, &sqe);
	if (random_below(&seed, 8) == 0) {
		const struct wire_sqe cancel = { .op = WIRE_OP_CANCEL,
						 .op_id = 1,
						 .target = sqe.op_id };

		raw_put(&s->e.raw, s->e.position, &cancel);
		/* a cancel has no completion: the positions of both rings differ from now on */
		raw_publish(&s->e.raw, s->e.position + 1);
		s->cut = true;
	}
}

static void reopen(struct side *s)
{
	gpu_raw_close(&s->e);
	gpu_raw_open(&s->e, d.socket, &gpu, s->geometry, 2 * N);
}

static void check(struct side *s)
{
	(void)gpu_raw_await(&s->e);
	for (uint32_t i = 0; i < N && s->op == WIRE_OP_LOAD; i++) {
		if (i >= s->n)
			assert_true(gpu_raw_is_poison(&s->e, N + i));
		else if (gpu_raw_status(&s->e, i) == 0)
			assert_true(gpu_raw_holds(&s->e, s->chain, i, N + i));
		else if (gpu_raw_status(&s->e, i) != -ENOENT &&
			 gpu_raw_status(&s->e, i) != -ECANCELED &&
			 gpu_raw_status(&s->e, i) != -ETIMEDOUT)
			fail_msg("block %u: status %d", i, gpu_raw_status(&s->e, i));
	}
	if (s->cut)
		reopen(s);
}

TEST(all_at_once)
{
	static const struct kvtier_geometry *const geometries[ENGINES] = { &tiny_raw, &tiny_fp8,
									   &large_fp8,
									   &two_lanes_raw };
	static struct side sides[ENGINES];
	const uint64_t rounds = env_number("STEPS", 40);

	seed = random_seeded("gpu_random");
	gpu_open(&gpu, 0);
	daemon_start(&d, GPU_CONFIG("64M", "8M"));
	for (uint32_t i = 0; i < ENGINES; i++) {
		sides[i].geometry = geometries[i];
		gpu_raw_open(&sides[i].e, d.socket, &gpu, sides[i].geometry, 2 * N);
	}
	for (uint64_t round = 0; round < rounds; round++) {
		for (uint32_t i = 0; i < ENGINES; i++)
			begin_op(&sides[i]);
		for (uint32_t i = 0; i < ENGINES; i++) {
			if (random_below(&seed, 12) == 0)
				reopen(&sides[i]); /* with its op under way */
			else
				check(&sides[i]);
		}
	}
	for (uint32_t i = 0; i < ENGINES; i++)
		gpu_raw_close(&sides[i].e);
	gpu_daemon_end(&d, &gpu);
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 one_thread=1"));
