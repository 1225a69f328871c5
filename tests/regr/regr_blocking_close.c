/* SPDX-License-Identifier: Apache-2.0 */
/* make: needs=kvtierd_old_kernel */
/*
 * regr_blocking_close.c - goal: a descriptor of any kind that a client sends holds up that
 * client alone. The core thread closed received descriptors: a TCP socket that lingers stopped the
 * daemon for 10 s, 26 of them for 52 s. Method: ATTACKERS connections send such sockets in every
 * way there is, and hold no reference themselves. Then an honest engine works, a new one comes,
 * spaces are opened and closed; when all that is done, the attackers' connections must still be
 * there, as their descriptors are still being closed: so nothing of it waited for them. Last, the
 * daemon is stopped with them. All of it again with a daemon on a kernel that cannot keep
 * descriptors out of a socket.
 */
#include "tests/lib/lib_raw.h"

#include "tests/lib/lib_linger.h"

/* QUEUED: packets, more than are taken in an iteration. */
enum { ATTACKERS = 26, BLOCKS = 4, QUEUED = 20 };

static const char config[] = "[host]\nbytes = 4M\nslab_bytes = 256K\nhuge_pages = no\n";

struct world {
	struct daemon d;
	struct engine e;
	struct kvtier_key keys[BLOCKS];
	struct raw attackers[ATTACKERS];
	struct lingers lingers;
	uint32_t refused;
};

static void begin(struct world *w, const char *program)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	memset(w, 0, sizeof(*w));
	lingers_begin(&w->lingers);
	daemon_place(&w->d, false);
	w->d.program = program;
	daemon_configure(&w->d, config);
	daemon_restart(&w->d);
	engine_open(&w->e, w->d.socket, "honest", &g, 2 * BLOCKS);
	chain_keys(&w->e, 1, BLOCKS, w->keys);
	assert_int_equal(chain_store(&w->e, w->keys, 0, BLOCKS), 0);
}

static uint32_t attackers_there(const struct world *w)
{
	static char text[65536];
	uint32_t n = 0;

	assert_int_equal(daemon_ctl(&w->d, "clients --json", text, sizeof(text)), 0);
	for (const char *at = text; (at = strstr(at, "\"id\"")) != NULL; at++)
		n++;
	return n - (strstr(text, "\"honest\"") != NULL) - (strstr(text, "\"late\"") != NULL);
}

static void others_are_served(struct world *w, uint32_t expected)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct engine late;

	engine_lookup_becomes(&w->e, w->keys, BLOCKS, BLOCKS);
	for (int i = 0; i < 50; i++) {
		assert_int_equal(chain_load(&w->e, w->keys, BLOCKS, BLOCKS), BLOCKS);
	}
	for (int i = 0; i < 3; i++) {
		engine_open(&late, w->d.socket, "late", &g, 2 * BLOCKS);
		assert_int_equal(chain_load(&late, w->keys, 0, BLOCKS), BLOCKS);
		engine_close(&late);
	}
	if (expected > 0)
		assert_int_equal(attackers_there(w), expected);
}

static void end(struct world *w)
{
	engine_close(&w->e);
	daemon_remove(&w->d); /* a clean exit, and not after LINGER_S times 26 */
	for (uint32_t i = 0; i < ATTACKERS; i++) {
		if (w->attackers[i].fd > 0)
			(void)close(w->attackers[i].fd);
	}
	lingers_end(&w->lingers);
}

/* While the daemon is stopped: then the references in the packets are the last ones. */
static void send_all(struct world *w, void (*send_one)(struct world *w, uint32_t i, int fd))
{
	daemon_signal(&w->d, SIGSTOP);
	for (uint32_t i = 0; i < ATTACKERS; i++) {
		const int fd = lingers_add(&w->lingers);

		send_one(w, i, fd);
		(void)close(fd);
	}
	daemon_signal(&w->d, SIGCONT);
}

static void dial_all(struct world *w)
{
	for (uint32_t i = 0; i < ATTACKERS; i++)
		raw_open(&w->attackers[i], w->d.socket);
}

static void send_space_open(struct world *w, uint32_t i, int fd)
{
	struct raw_space space;

	raw_space_fill(&w->attackers[i], &space);
	assert_int_equal(raw_send(&w->attackers[i], &space, sizeof(space), &fd, 1), 0);
}

static char old_kernel[] = "tests/kvtierd_old_kernel";

TEST_ROWS(with_space_open, cmocka_unit_test(with_space_open),
	  cmocka_unit_test_prestate(with_space_open, old_kernel))
{
	struct world w;

	begin(&w, *state);
	dial_all(&w);
	send_all(&w, send_space_open);
	others_are_served(&w, ATTACKERS);
	end(&w);
}

static const struct wire_head bell = { .magic = WIRE_MAGIC,
				       .type = WIRE_DOORBELL,
				       .length = sizeof(bell) };

static void send_doorbell(struct world *w, uint32_t i, int fd)
{
	assert_int_equal(raw_send(&w->attackers[i], &bell, sizeof(bell), &fd, 1), 0);
}

TEST_ROWS(with_a_doorbell, cmocka_unit_test(with_a_doorbell),
	  cmocka_unit_test_prestate(with_a_doorbell, old_kernel))
{
	struct world w;

	begin(&w, *state);
	dial_all(&w);
	send_all(&w, send_doorbell);
	others_are_served(&w, ATTACKERS);
	end(&w);
}

/* Packets that the daemon never took: its close() of the client's socket drops them. */
static void send_and_die(struct world *w, uint32_t i, int fd)
{
	for (int k = 0; k < QUEUED; k++)
		assert_int_equal(raw_send(&w->attackers[i], &bell, sizeof(bell), NULL, 0), 0);
	send_doorbell(w, i, fd);
	(void)close(w->attackers[i].fd);
	w->attackers[i].fd = -1;
}

TEST_ROWS(left_in_the_queue, cmocka_unit_test(left_in_the_queue),
	  cmocka_unit_test_prestate(left_in_the_queue, old_kernel))
{
	struct world w;

	begin(&w, *state);
	dial_all(&w);
	send_all(&w, send_and_die);
	others_are_served(&w, ATTACKERS);
	end(&w);
}

/* Before HELLO was answered. A kernel that can keeps descriptors from such a socket. */
static void send_hello(struct world *w, uint32_t i, int fd)
{
	struct raw *r = &w->attackers[i];
	struct wire_hello hello;
	int s;

	raw_dial(r, w->d.socket);
	hello = raw_hello_message(r);
	s = raw_send(r, &hello, sizeof(hello), &fd, 1);
	if (s == -EPERM) { /* ours is the last reference: a reset, and it does not wait */
		w->refused++;
		lingers_reset(&w->lingers);
	} else
		assert_int_equal(s, 0);
}

TEST_ROWS(with_hello, cmocka_unit_test(with_hello),
	  cmocka_unit_test_prestate(with_hello, old_kernel))
{
	struct world w;

	begin(&w, *state);
	send_all(&w, send_hello);
	print_message("%u of %d were refused by the kernel\n", w.refused, ATTACKERS);
	assert_true(w.refused == 0 || w.refused == ATTACKERS);
	others_are_served(&w, w.refused > 0 ? 0 : ATTACKERS);
	end(&w);
}

TEST_BEGIN
{
	/* A daemon that leaves blocked calls leaves threads. */
	(void)setenv("TSAN_OPTIONS", "report_thread_leaks=0", 1);
}
