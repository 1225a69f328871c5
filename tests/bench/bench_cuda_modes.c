/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cuda_modes.c - the cost of a client's stores and loads for an engine's step, by whose
 * kernels encode and decode:
 *
 *	cuda.step.daemon	the step of cuda.step beside a client in daemon mode: kvtierd's
 *				kernels, in its own context
 *	cuda.step.engine	beside a client in engine mode: libkvtier's kernels, in the
 *				context of the step
 *	cuda.step.engine.hit	likewise, and the loaded blocks are in the GPU's own memory: a
 *				copy inside the device brings them, not the wire
 *
 * The client is in the step's process. One thread of it stores new blocks and another one loads
 * the same blocks again and again, each as fast as it can, half of the pages each; a third one has
 * the step. So the step pays for all that the library does in its process, too. The note says how
 * fast they were, in bytes of images: a step that is not slowed beside slow stores says little.
 *
 * A case whose client has not got the case's mode fails, and so does one whose loads do not come
 * from the GPU's own memory.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_cuda_client.h"
#include "bench_cuda_step.h"

enum { SHARE = 2, TIMES = 4, POISON = 0xa5, STORES = 0, LOADS = 1, SIDES };

struct setup {
	const char *mode;
	bool hits; /* loads come from the GPU's own memory */
};

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
	const struct setup *setup;
	struct bench_result *ret;
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
	double seconds;
	int r = load ? 0 : cuda_client_keys(&b->c, ++b->run, b->half, s->keys);

	return r ? r : cuda_client_move(&b->c, load, s->keys, s->first, b->half, &seconds);
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
		bench_daemon_explain(s->error, s->why, sizeof(s->why));
	return NULL;
}

static int stop(void *arg)
{
	struct bench *b = arg;
	int r = 0;

	atomic_store(&b->stop, true);
	for (int i = 0; i < b->n_threads; i++)
		(void)pthread_join(b->sides[i].thread, NULL);
	for (int i = 0; i < b->n_threads && r == 0; i++) {
		r = b->sides[i].error;
		if (r)
			(void)snprintf(b->ret->note, sizeof(b->ret->note), "%s: %s", names[i],
				       b->sides[i].why);
	}
	return r;
}

/* A side that fails at once is found by stop(). */
static int start(void *arg)
{
	struct bench *b = arg;
	int r = 0;

	atomic_store(&b->stop, false);
	for (b->n_threads = 0; b->n_threads < SIDES && r == 0; b->n_threads += r == 0) {
		struct side *s = &b->sides[b->n_threads];

		r = -pthread_create(&s->thread, NULL, move_until_stopped, s);
	}
	for (int i = 0; i < b->n_threads; i++)
		(void)sem_wait(&b->moved);
	if (r)
		(void)stop(b);
	return r;
}

/* --- the case --- */

/* Blocks for the loads, in host memory. */
static int prepare(struct bench *b)
{
	struct side *loads = &b->sides[LOADS];
	double seconds;
	int r;

	b->half = b->c.blocks / 2;
	for (int i = 0; i < SIDES; i++) {
		b->sides[i].b = b;
		b->sides[i].first = (uint32_t)i * b->half;
		b->sides[i].keys = calloc(b->half, sizeof(*b->sides[i].keys));
		if (!b->sides[i].keys)
			return -ENOMEM;
	}
	r = cuda_client_keys(&b->c, b->run, b->half, loads->keys);
	if (r == 0)
		r = cuda_client_fill(&b->c, 0, 2 * b->half, CUDA_CLIENT_VALUE);
	if (r == 0)
		r = cuda_client_move(&b->c, false, loads->keys, loads->first, b->half, &seconds);
	return r ? r : cuda_client_fill(&b->c, loads->first, b->half, POISON);
}

/* In daemon mode pages that the library stages meet no kernel at all. */
static int check_mode(const struct bench *b)
{
	static const char in_engine[] = "CUDA engine mode", staged[] = "CUDA staged";
	const bool engine = !strcmp(b->setup->mode, "engine");
	char text[256] = "";
	int r = kvtier_space_memory(b->c.space, text, sizeof(text));

	if (r == 0 && (engine != !strncmp(text, in_engine, sizeof(in_engine) - 1) ||
		       !strncmp(text, staged, sizeof(staged) - 1)))
		r = -ENODATA;
	if (r)
		(void)snprintf(b->ret->note, sizeof(b->ret->note),
			       "not measured: pages are reached by \"%.80s\"", text);
	return r;
}

/* Nearly all: later stores may drive a few out. */
static int check_hits(const struct bench *b)
{
	const double hits = (double)cuda_client_stat(&b->c, "tiers.gpu.hit_blocks_total"),
		     part = hits / b->sides[LOADS].blocks;

	if (!b->setup->hits || part > 0.9)
		return 0;
	(void)snprintf(b->ret->note, sizeof(b->ret->note),
		       "not measured: %.0f %% of the loads came from the GPU's own memory",
		       part * 100);
	return -ENODATA;
}

static double image_rate(const struct side *s)
{
	return s->blocks * (CUDA_CLIENT_PAGE / 2.0) / s->seconds * 1e-9;
}

static int measure(struct bench *b)
{
	const struct cuda_client_setup setup = {
		.codec = KVTIER_CODEC_FP8,
		.host_times = TIMES,
		.gpu_times = b->setup->hits ? TIMES : 0,
		.mode = b->setup->mode,
	};
	const struct step_beside beside = { start, stop, b };
	char *note = b->ret->note;
	int r = cuda_client_open(&b->c, &setup);

	if (r == 0)
		r = prepare(b);
	if (r) {
		bench_daemon_explain(r, note, sizeof(b->ret->note));
		return r;
	}
	r = check_mode(b);
	if (r == 0)
		r = step_run(&beside, b->ret);
	if (r == 0)
		r = check_mode(b); /* a new connection may have got another one */
	if (r == 0)
		r = check_hits(b);
	if (r == 0)
		r = cuda_client_compare(&b->c, b->sides[LOADS].first, b->half);
	if (r == 0)
		(void)snprintf(note + strlen(note), sizeof(b->ret->note) - strlen(note),
			       "; stores %.3g, loads %.3g GB/s", image_rate(&b->sides[STORES]),
			       image_rate(&b->sides[LOADS]));
	return r;
}

static int run_modes(const struct bench_case *self, struct bench_result *ret)
{
	struct bench *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return -ENOMEM;
	b->setup = self->arg;
	b->ret = ret;
	(void)sem_init(&b->moved, 0, 0);
	r = rig_open(&b->c.rig, RIG_NORMAL, SHARE, ret);
	if (r == 0)
		r = measure(b);
	if (r != -ENOTSUP)
		(void)cuda_client_close(&b->c);
	for (int i = 0; i < SIDES; i++)
		free(b->sides[i].keys);
	(void)sem_destroy(&b->moved);
	free(b);
	return r;
}

/* clang-format off */
#define CASE(name, prose, ...) \
	{ name, run_modes, prose, 1 / 1.05, BENCH_LESS, "us", &(const struct setup){ __VA_ARGS__ } }

const struct bench_case bench_cuda_modes_cases[] = {
	CASE("cuda.step.daemon", "the same beside stores and loads of a client in daemon mode",
	     "daemon", false),
	CASE("cuda.step.engine", "the same beside a client in engine mode", "engine", false),
	CASE("cuda.step.engine.hit", "likewise, what it loads being in the GPU's own memory",
	     "engine", true),
	{ 0 },
};
/* clang-format on */
