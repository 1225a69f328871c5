/* SPDX-License-Identifier: Apache-2.0 */
/* make: needs=kvtierd_old_kernel */
/*
 * regr_blocking_close.c - goal: a descriptor of any kind that a client sends holds up that client
 * alone. Method: ATTACKERS connections send TCP sockets that linger in every way there is, and hold
 * no reference themselves. Then engines work, come and go; when all that is done, the attackers'
 * connections must still be there, as their descriptors are still being closed: so nothing of it
 * waited for them. Last, the daemon is stopped with them. All of it again with a daemon on a kernel
 * that cannot keep descriptors out of a socket.
 */
#include "tests/lib/lib_raw.h"

#include "tests/lib/lib_linger.h"

/* QUEUED: packets, more than are taken in an iteration. */
enum { ATTACKERS = 26, QUEUED = 20 };

static struct {
	struct honest honest;
	struct raw attackers[ATTACKERS];
	struct lingers lingers;
} w;

FIXTURE(begin)
{
	memset(&w, 0, sizeof(w));
	lingers_begin(&w.lingers);
	honest_begin(&w.honest, *state);
	return 0;
}

FIXTURE(end)
{
	honest_end(&w.honest); /* a clean exit, and not after LINGER_S times 26 */
	for (uint32_t i = 0; i < ATTACKERS; i++)
		if (w.attackers[i].fd > 0)
			(void)close(w.attackers[i].fd);
	lingers_end(&w.lingers);
	return 0;
}

static char old_kernel[] = "tests/kvtierd_old_kernel";

#define CASE(name) \
	TEST_ROWS(name, { #name, name, begin, end, NULL }, { #name, name, begin, end, old_kernel })

static uint32_t attackers_there(void)
{
	const char *text = daemon_told(&w.honest.d, "clients --json");
	uint32_t n = 0;

	for (const char *at = text; (at = strstr(at, "\"id\"")) != NULL; at++)
		n++;
	return n - (strstr(text, "\"honest\"") != NULL) - (strstr(text, "\"late\"") != NULL);
}

static void others_are_served(void)
{
	honest_is_served(&w.honest);
	assert_int_equal(attackers_there(), ATTACKERS);
}

/* While the daemon is stopped: then the references in the packets are the last ones. */
static void send_all(void (*send_one)(struct raw *r, int fd))
{
	daemon_signal(&w.honest.d, SIGSTOP);
	for (uint32_t i = 0; i < ATTACKERS; i++) {
		const int fd = lingers_add(&w.lingers);

		send_one(&w.attackers[i], fd);
		(void)close(fd);
	}
	daemon_signal(&w.honest.d, SIGCONT);
}

static void dial_and_send_all(void (*send_one)(struct raw *r, int fd))
{
	for (uint32_t i = 0; i < ATTACKERS; i++)
		raw_open(&w.attackers[i], w.honest.d.socket);
	send_all(send_one);
}

static void send_space_open(struct raw *r, int fd)
{
	struct raw_space space;

	raw_space_fill(r, &space);
	assert_int_equal(raw_send(r, &space, sizeof(space), &fd, 1), 0);
}

CASE(with_space_open)
{
	dial_and_send_all(send_space_open);
	others_are_served();
}

static const struct wire_head bell = { .magic = WIRE_MAGIC,
				       .type = WIRE_DOORBELL,
				       .length = sizeof(bell) };

static void send_doorbell(struct raw *r, int fd)
{
	assert_int_equal(raw_send(r, &bell, sizeof(bell), &fd, 1), 0);
}

CASE(with_a_doorbell)
{
	dial_and_send_all(send_doorbell);
	others_are_served();
}

/* Packets that the daemon never took: its close() of the client's socket drops them. */
static void send_and_die(struct raw *r, int fd)
{
	for (int k = 0; k < QUEUED; k++)
		assert_int_equal(raw_send(r, &bell, sizeof(bell), NULL, 0), 0);
	send_doorbell(r, fd);
	(void)close(r->fd);
	r->fd = -1;
}

CASE(left_in_the_queue)
{
	dial_and_send_all(send_and_die);
	others_are_served();
}

static uint32_t refused;

/* Before HELLO was answered. A kernel that can keeps descriptors from such a socket. */
static void send_hello(struct raw *r, int fd)
{
	struct wire_hello hello;
	int s;

	raw_dial(r, w.honest.d.socket);
	hello = raw_hello_message(r);
	s = raw_send(r, &hello, sizeof(hello), &fd, 1);
	if (s == -EPERM) { /* ours is the last reference: a reset, and it does not wait */
		refused++;
		lingers_reset(&w.lingers);
	} else
		assert_int_equal(s, 0);
}

CASE(with_hello)
{
	refused = 0;
	send_all(send_hello);
	print_message("%u of %d were refused by the kernel\n", refused, ATTACKERS);
	assert_true(refused == 0 || refused == ATTACKERS);
	if (refused > 0)
		honest_is_served(&w.honest);
	else
		others_are_served();
}

/* A daemon that leaves blocked calls leaves threads. */
TEST_FIRST((void)setenv("TSAN_OPTIONS", "report_thread_leaks=0", 1));
