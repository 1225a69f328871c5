/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cuda_served.c - the cost of a client's stores and loads for an engine's step:
 *
 *	cuda.step.daemon	the step of cuda.step beside a client, whose blocks kvtierd's
 *				kernels encode and decode, in a context of their own
 *	cuda.step.daemon.hit	the same, and the loaded blocks are in the GPU's own memory: a
 *				kernel alone brings them, not the wire
 *
 * The client is in the step's process. One thread of it stores new blocks and another one loads
 * the same blocks again and again, each as fast as it can, half of the pages each; a third one has
 * the step. So the step pays for all that the library does in its process, too. The note says how
 * fast they were, in bytes of images: a step that is not slowed beside slow stores says little.
 *
 * A case whose pages are staged fails, and so does a case .hit whose loads do not come from the
 * GPU's own memory.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "bench_cuda_client.h"
#include "bench_cuda_step.h"

enum { DIVISOR = 2, TIMES = 4, POISON = 0xa5, STORES = 0, LOADS = 1, SIDES };

static const char *const names[SIDES] = { [STORES] = "stores", [LOADS] = "loads" };

/* A thread of the client, and its half of the pages. */
struct side {
	struct bench *b;
	pthread_t thread;
	uint32_t first;          /* page */
	struct kvtier_key *keys; /* of its pages */
	double blocks, seconds;  /* of all runs */
	int error;
	char why[96];
};

struct bench {
	struct cuda_client c;
	bool hits;     /* loads come from the GPU's own memory */
	uint32_t half; /* pages of a side */
	uint32_t run;  /* of the last stores */
	struct side sides[SIDES];
	int n_threads;
	sem_t moved; /* posted by each side after its first blocks, or when they failed */
	atomic_bool stop;
};

/* --- the client's threads --- */

static int move_once(struct side *s, bool load)
{
	struct bench *b = s->b;
	const int r = load ? 0 : cuda_client_keys(&b->c, ++b->run, b->half, s->keys);

	return r ? r : cuda_client_move(&b->c, load, s->keys, s->first, b->half);
}

static void *move_until_stopped(void *arg)
{
	struct side *s = arg;
	struct bench *b = s->b;
	const uint64_t start = bench_now_ns();

	for (uint32_t i = 0; !s->error && !atomic_load(&b->stop); i++) {
		s->error = move_once(s, s == &b->sides[LOADS]);
		s->blocks += b->half;
		if (i == 0)
			(void)sem_post(&b->moved);
	}
	s->seconds += (double)(bench_now_ns() - start) * 1e-9;
	if (s->error)
		(void)snprintf(s->why, sizeof(s->why), "%.60s; %s", kvtier_last_error(),
			       strerror(-s->error));
	return NULL;
}

static void join(void *arg)
{
	struct bench *b = arg;

	atomic_store(&b->stop, true);
	while (b->n_threads > 0)
		(void)pthread_join(b->sides[--b->n_threads].thread, NULL);
}

static void stop(void *arg)
{
	const struct bench *b = arg;

	join(arg);
	for (int i = 0; i < SIDES; i++)
		if (b->sides[i].error)
			bench_fail(b->sides[i].error, "%s: %s", names[i], b->sides[i].why);
}

/* A side that fails at once is found by stop(). */
static void start(void *arg)
{
	struct bench *b = arg;

	atomic_store(&b->stop, false);
	for (; b->n_threads < SIDES; b->n_threads++) {
		struct side *s = &b->sides[b->n_threads];

		bench_must(-pthread_create(&s->thread, NULL, move_until_stopped, s));
	}
	for (int i = 0; i < SIDES; i++)
		(void)sem_wait(&b->moved);
}

/* --- the case --- */

/* Blocks for the loads, in host memory. */
static void prepare(struct bench *b)
{
	const struct side *loads = &b->sides[LOADS];

	b->half = b->c.blocks / 2;
	for (int i = 0; i < SIDES; i++) {
		b->sides[i].b = b;
		b->sides[i].first = (uint32_t)i * b->half;
		b->sides[i].keys = bench_alloc(b->half * sizeof(*b->sides[i].keys));
	}
	bench_must(cuda_client_keys(&b->c, b->run, b->half, loads->keys));
	cuda_client_fill(&b->c, 0, 2 * b->half, CUDA_CLIENT_VALUE);
	bench_must(cuda_client_move(&b->c, false, loads->keys, loads->first, b->half));
	cuda_client_fill(&b->c, loads->first, b->half, POISON);
}

/* Pages that the library stages meet no kernel at all. */
static void check_reach(const struct bench *b)
{
	char text[256] = "";
	const int reach = kvtier_space_memory(b->c.space, text, sizeof(text));

	if (reach < 0 || reach == KVTIER_REACH_CUDA_STAGED)
		bench_fail(reach < 0 ? reach : -ENODATA,
			   "not measured: pages are reached by \"%.80s\"", text);
}

/* Nearly all: later stores may drive a few out. */
static void check_hits(const struct bench *b)
{
	const double hits = (double)stats_get(&b->c.d.stats->v.tiers_gpu_hit_blocks_total),
		     part = hits / b->sides[LOADS].blocks;

	if (b->hits && part <= 0.9)
		bench_fail(-ENODATA,
			   "not measured: %.0f %% of the loads came from the GPU's own memory",
			   part * 100);
}

static double image_rate(const struct side *s)
{
	return s->blocks * (CUDA_CLIENT_PAGE / 2.0) / s->seconds * 1e-9;
}

static void end_moved(void *arg)
{
	(void)sem_destroy(arg);
}

static void run_served(const struct bench_case *self, struct bench_result *ret)
{
	struct bench *b = bench_alloc(sizeof(*b));
	struct cuda_client_setup setup = { .codec = KVTIER_CODEC_FP8, .host_times = TIMES };

	b->hits = strstr(self->name, ".hit") != NULL;
	setup.gpu_times = b->hits ? TIMES : 0;
	(void)sem_init(&b->moved, 0, 0);
	bench_defer(end_moved, &b->moved);
	rig_open(&b->c.rig, RIG_NORMAL, DIVISOR, ret);
	cuda_client_open(&b->c, &setup);
	prepare(b);
	bench_defer(join, b);
	check_reach(b);
	step_run(&(struct step_beside){ start, stop, b }, ret);
	check_reach(b); /* a new connection may have got another one */
	check_hits(b);
	cuda_client_compare(&b->c, b->sides[LOADS].first, b->half);
	bench_note(ret, "%s; stores %.3g, loads %.3g GB/s", ret->note,
		   image_rate(&b->sides[STORES]), image_rate(&b->sides[LOADS]));
}

#define CASE(name, prose)                                                 \
	{                                                                 \
		name, run_served, prose, 1 / 1.05, BENCH_LESS, "us", NULL \
	}

const struct bench_case bench_cuda_served_cases[] = {
	CASE("cuda.step.daemon", "the same beside stores and loads of a client"),
	CASE("cuda.step.daemon.hit", "likewise, what it loads being in the GPU's own memory"),
	{ 0 },
};
