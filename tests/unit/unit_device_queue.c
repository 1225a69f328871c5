/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: clients take turns at the device, however much one of them has waiting, and jobs that were
 * begun first end first. Method: device_queue alone, no threads: orders in which jobs come out;
 * then random adds, takes and returns against a plain model of it (seed printed; SEED=n repeats).
 */

#include "daemon/device/device_queue.h"
#include "tests/lib/test.h"

enum { DEPTH = 64, CLIENTS = 5 };

struct bed {
	struct device_queue queue;
	struct device_job jobs[DEPTH];
};

static struct bed b;

FIXTURE_DO(set_up, memset(&b, 0, sizeof(b));
	   assert_int_equal(device_queue_open(&b.queue, DEPTH), 0));

FIXTURE_DO(tear_down, device_queue_close(&b.queue));

TEST_EACH(set_up, tear_down);

static void add(uint32_t job, uint32_t client)
{
	b.jobs[job].client = client;
	device_queue_add(&b.queue, &b.jobs[job]);
}

static uint32_t take(void)
{
	const struct device_job *job = device_queue_take(&b.queue);

	return job ? (uint32_t)(job - b.jobs) : DEPTH;
}

TEST(a_late_client_waits_for_one_job_of_the_other)
{
	for (uint32_t i = 0; i < 60; i++)
		add(i, 1);
	assert_int_equal(take(), 0);
	add(60, 2);
	add(61, 2);
	assert_int_equal(take(), 1); /* 1 had its turn before 2 came */
	assert_int_equal(take(), 60);
	assert_int_equal(take(), 2);
	assert_int_equal(take(), 61);
	assert_int_equal(take(), 3);
	assert_int_equal(take(), 4);
}

TEST(a_job_whose_quantum_is_over_stands_behind_others)
{
	for (uint32_t i = 0; i < 60; i++)
		add(i, 1);
	assert_int_equal(take(), 0);
	add(60, 2);
	device_queue_return(&b.queue, &b.jobs[0]);
	assert_int_equal(take(), 60); /* not 1 again, though its jobs came first */
	assert_int_equal(take(), 0);  /* and then the job that it had begun, not the next */
	device_queue_return(&b.queue, &b.jobs[60]);
	device_queue_return(&b.queue, &b.jobs[0]);
	assert_int_equal(take(), 60);
	assert_int_equal(take(), 0);
	assert_int_equal(take(), 1);
}

/* The plain model: a list of (client, jobs in order). */
struct model {
	uint32_t clients[CLIENTS], n_clients;
	uint32_t jobs[CLIENTS][DEPTH], n[CLIENTS];
};

static void model_last(struct model *m, uint32_t client)
{
	uint32_t at = 0;

	while (at < m->n_clients && m->clients[at] != client)
		at++;
	if (at == m->n_clients)
		m->n_clients++;
	memmove(&m->clients[at], &m->clients[at + 1],
		(m->n_clients - at - 1) * sizeof(m->clients[0]));
	m->clients[m->n_clients - 1] = client;
}

static void model_add(struct model *m, uint32_t job, uint32_t client)
{
	if (m->n[client] == 0)
		model_last(m, client);
	m->jobs[client][m->n[client]++] = job;
}

static void model_return(struct model *m, uint32_t job, uint32_t client)
{
	model_last(m, client);
	memmove(&m->jobs[client][1], &m->jobs[client][0], m->n[client]++ * sizeof(m->jobs[0][0]));
	m->jobs[client][0] = job;
}

static uint32_t model_take(struct model *m)
{
	uint32_t client, job;

	if (m->n_clients == 0)
		return DEPTH;
	client = m->clients[0];
	job = m->jobs[client][0];
	memmove(&m->jobs[client][0], &m->jobs[client][1], --m->n[client] * sizeof(m->jobs[0][0]));
	if (m->n[client])
		model_last(m, client);
	else
		memmove(&m->clients[0], &m->clients[1], --m->n_clients * sizeof(m->clients[0]));
	return job;
}

TEST(any_order_is_the_models)
{
	struct random random = random_seeded("unit_device_queue");
	enum { IDLE, WAITS, RUNS } where[DEPTH] = { IDLE };
	struct model m = { 0 };

	for (uint32_t i = 0; i < 200000; i++) {
		uint32_t job = random_below(&random, DEPTH);
		const uint32_t client = random_below(&random, CLIENTS);

		assert_int_equal(device_queue_wait(&b.queue, client), m.n[client] > 0);
		if (where[job] == IDLE) {
			add(job, client);
			model_add(&m, job, b.jobs[job].client);
			where[job] = WAITS;
		} else if (where[job] == RUNS && random_below(&random, 16) < 9) {
			device_queue_return(&b.queue, &b.jobs[job]);
			model_return(&m, job, b.jobs[job].client);
			where[job] = WAITS;
		} else if (where[job] == RUNS) {
			where[job] = IDLE;
		} else {
			job = take();
			assert_int_equal(job, model_take(&m));
			where[job] = RUNS;
		}
	}
	for (uint32_t job; (job = take()) != DEPTH;)
		assert_int_equal(job, model_take(&m));
	assert_int_equal(b.queue.n_jobs, 0);
	assert_int_equal(b.queue.n_clients, 0);
}
