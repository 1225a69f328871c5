/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it leaves a process some 2 TiB of addresses, and the daemon may map more) */
/*
 * regr_address_space.c - goal: a client's mappings count until they are unmapped, so that no client
 * can use up the daemon's addresses. Method: CHURNERS clients open and close sparse regions of 64
 * GiB as fast as they can, some by reconnecting. Meanwhile another opens 100 GiB 300 times. Every
 * single one is opened, and the daemon never has more mapped than a few clients' shares.
 */
#include "tests/lib/lib_raw.h"

enum { CHURNERS = 3, ROUNDS = 300 };

struct churner {
	pthread_t thread;
	const char *socket;
	uint64_t bytes;
	bool reconnects;
	_Atomic bool stop;
	_Atomic uint64_t opened, refused;
};

/* 0: opened and closed again; else the refusal. */
static int open_and_close(struct raw *r, int fd, uint64_t bytes)
{
	union {
		struct wire_head head;
		struct wire_space_ok ok;
		struct wire_error error;
	} got;
	struct raw_space space;

	raw_space_fill(r, &space);
	space.region.length = bytes;
	assert_int_equal(raw_send(r, &space, sizeof(space), &fd, 1), 0);
	assert_true(raw_receive(r, &got, sizeof(got)) > 0);
	if (got.head.type == WIRE_ERROR) {
		print_message("%s\n", got.error.text);
		return got.error.error;
	}
	assert_int_equal(got.head.type, WIRE_SPACE_OK);
	raw_space_close(r, got.ok.space);
	return 0;
}

static void *churn(void *arg)
{
	struct churner *c = arg;
	const int fd = memfd_make(c->bytes, F_SEAL_SHRINK);
	struct raw r;

	raw_open(&r, c->socket);
	while (!c->stop) {
		if (open_and_close(&r, fd, c->bytes))
			c->refused++;
		else
			c->opened++;
		if (c->reconnects) {
			raw_close(&r);
			raw_open(&r, c->socket);
		}
	}
	raw_close(&r);
	(void)close(fd);
	return NULL;
}

TEST(churn_takes_nothing_from_others)
{
	static struct churner churners[CHURNERS];
	const uint64_t large = 100ull << 30, limit_kib = 8ull << 30;
	uint64_t before, most = 0;
	const int fd = memfd_make(large, F_SEAL_SHRINK);
	struct daemon d;
	struct raw r;

	daemon_start(&d, SMALL_HOST);
	before = (uint64_t)daemon_mapped_kib(&d);
	for (int i = 0; i < CHURNERS; i++) {
		churners[i].socket = d.socket;
		churners[i].bytes = 64ull << 30;
		churners[i].reconnects = i == 0;
		assert_int_equal(pthread_create(&churners[i].thread, NULL, churn, &churners[i]), 0);
	}
	raw_open(&r, d.socket);
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t now;

		assert_int_equal(open_and_close(&r, fd, large), 0);
		now = (uint64_t)daemon_mapped_kib(&d) - before;
		most = now > most ? now : most;
	}
	for (int i = 0; i < CHURNERS; i++) {
		churners[i].stop = true;
		pthread_join(churners[i].thread, NULL);
		print_message("churner %d: %lu opened, %lu refused\n", i, churners[i].opened,
			      churners[i].refused);
		assert_true(churners[i].opened > 0);
		assert_int_equal(churners[i].refused, 0);
	}
	print_message("most mapped: %lu GiB\n", most >> 20);
	assert_true(most <= limit_kib);
	raw_close(&r);
	(void)close(fd);
	daemon_remove(&d);
}
