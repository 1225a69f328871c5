/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_fake_redis.c - the server that lies: see lib_redis.h. One process listens, and starts a
 * process for each connection, so that everything there is plain and blocking: read a command, take
 * the next step, send its reply. Shared memory has the facts that all of them need: the next step,
 * and the value that SET stored.
 */
#include "lib_redis.h"
#include "test.h"

#include <arpa/inet.h>
#include <strings.h>

enum { VALUE_BYTES = 8 << 20, INPUT_BYTES = 16 << 10, WORD_BYTES = 32 };

struct shared {
	uint32_t commands, connections;
	uint32_t held, released;
	uint32_t has_value;
	size_t value_bytes;
	char value[VALUE_BYTES];
};

/* One connection, in its process. */
struct peer {
	int fd;
	struct shared *shared;
	const struct fake_step *steps;
	uint32_t n_steps;
	bool raw;
	size_t at, end;
	char input[INPUT_BYTES];
};

/* --- reading commands --- */

static char next_byte(struct peer *p)
{
	if (p->at == p->end) {
		const ssize_t n = read(p->fd, p->input, sizeof(p->input));

		if (n <= 0)
			_exit(0);
		p->at = 0;
		p->end = (size_t)n;
	}
	return p->input[p->at++];
}

/* "*3" or "$10" */
static size_t number_line(struct peer *p, char kind)
{
	size_t number = 0;

	if (next_byte(p) != kind)
		_exit(0);
	for (char c = next_byte(p); c != '\r'; c = next_byte(p))
		number = number * 10 + (size_t)(c - '0');
	(void)next_byte(p);
	return number;
}

/* Keeps at most room bytes of it. */
static size_t word(struct peer *p, char *ret, size_t room)
{
	const size_t n = number_line(p, '$');

	for (size_t i = 0; i < n; i++) {
		const char c = next_byte(p);

		if (i < room)
			ret[i] = c;
	}
	(void)next_byte(p);
	(void)next_byte(p);
	return n < room ? n : room;
}

static void read_command(struct peer *p, char name[WORD_BYTES])
{
	const size_t words = number_line(p, '*');

	name[word(p, name, WORD_BYTES - 1)] = 0;
	for (size_t i = 1; i < words; i++) {
		if (i == 2 && strcasecmp(name, "SET") == 0) {
			p->shared->value_bytes = word(p, p->shared->value, VALUE_BYTES);
			__atomic_store_n(&p->shared->has_value, 1, __ATOMIC_RELEASE);
		} else {
			(void)word(p, NULL, 0);
		}
	}
}

/* --- answering --- */

static void send_bytes(const struct peer *p, const char *bytes, size_t n)
{
	while (n > 0) {
		const ssize_t sent = send(p->fd, bytes, n, MSG_NOSIGNAL);

		if (sent <= 0)
			_exit(0);
		bytes += sent;
		n -= (size_t)sent;
	}
}

/* Closes after `cut` bytes of all. */
static void send_cut(const struct peer *p, const char *bytes, size_t n, size_t *cut)
{
	send_bytes(p, bytes, n < *cut ? n : *cut);
	if (n >= *cut)
		_exit(0);
	*cut -= n;
}

static void send_value(const struct peer *p, size_t cut)
{
	char line[32];

	if (!__atomic_load_n(&p->shared->has_value, __ATOMIC_ACQUIRE)) {
		send_cut(p, "$-1\r\n", 5, &cut);
		return;
	}
	(void)snprintf(line, sizeof(line), "$%zu\r\n", p->shared->value_bytes);
	send_cut(p, line, strlen(line), &cut);
	send_cut(p, p->shared->value, p->shared->value_bytes, &cut);
	send_cut(p, "\r\n", 2, &cut);
}

static void await_release(const struct peer *p)
{
	const uint32_t place = __atomic_fetch_add(&p->shared->held, 1, __ATOMIC_ACQ_REL);

	while (__atomic_load_n(&p->shared->released, __ATOMIC_ACQUIRE) <= place)
		(void)usleep(1000);
}

static void take_step(const struct peer *p, const struct fake_step *step)
{
	size_t cut = step->cut ? step->cut : SIZE_MAX;

	if (!step->reply)
		return;
	if (step->held)
		await_release(p);
	(void)usleep(1000 * step->delay_ms);
	do {
		if (step->bytes == 0 && strcmp(step->reply, "\1") == 0)
			send_value(p, cut);
		else
			send_cut(p, step->reply, step->bytes ? step->bytes : strlen(step->reply),
				 &cut);
	} while (step->endless);
}

static void serve(struct peer *p)
{
	for (;;) {
		char name[WORD_BYTES];
		uint32_t step;

		read_command(p, name);
		if (!p->raw && strcasecmp(name, "AUTH") == 0) {
			send_bytes(p, "+OK\r\n", 5);
			continue;
		}
		if (!p->raw && strcasecmp(name, "CLUSTER") == 0) {
			static const char no[] =
				"-ERR This instance has cluster support disabled\r\n";

			send_bytes(p, no, sizeof(no) - 1);
			continue;
		}
		step = __atomic_fetch_add(&p->shared->commands, 1, __ATOMIC_ACQ_REL);
		take_step(p, &p->steps[step < p->n_steps ? step : p->n_steps - 1]);
	}
}

static void listen_forever(int fd, struct peer *p)
{
	const pid_t self = getpid();

	(void)signal(SIGCHLD, SIG_IGN); /* nobody waits for them */
	for (;;) {
		p->fd = accept(fd, NULL, NULL);
		if (p->fd < 0)
			_exit(1);
		(void)__atomic_fetch_add(&p->shared->connections, 1, __ATOMIC_ACQ_REL);
		if (fork() == 0) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != self)
				_exit(0);
			serve(p);
		}
		(void)close(p->fd);
	}
}

/* --- lives --- */

int fake_listen(char address[REDIS_TEST_ADDRESS], uint16_t *ret_port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t length = sizeof(a);

	/* Else connections that we closed first would keep a real server from this port for a
	 * while. */
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(fd, 64), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &length), 0);
	(void)snprintf(address, REDIS_TEST_ADDRESS, "127.0.0.1:%u", ntohs(a.sin_port));
	if (ret_port)
		*ret_port = ntohs(a.sin_port);
	return fd;
}

void fake_start(struct fake_server *s, const struct fake_step *steps, uint32_t n, bool raw)
{
	static struct peer peer;
	struct shared *shared;
	int fd;

	memset(s, 0, sizeof(*s));
	fd = fake_listen(s->address, &s->port);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	assert_true(shared != MAP_FAILED && n > 0);
	s->commands = &shared->commands;
	s->connections = &shared->connections;
	s->released = &shared->released;
	peer = (struct peer){ .shared = shared, .steps = steps, .n_steps = n, .raw = raw };
	s->pid = fork();
	assert_true(s->pid >= 0);
	if (s->pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		listen_forever(fd, &peer);
	}
	(void)close(fd);
}

void fake_release(struct fake_server *s, uint32_t steps)
{
	(void)__atomic_fetch_add(s->released, steps, __ATOMIC_ACQ_REL);
}

uint32_t fake_commands(const struct fake_server *s)
{
	return __atomic_load_n(s->commands, __ATOMIC_ACQUIRE);
}

void fake_stop(struct fake_server *s)
{
	if (s->pid <= 0)
		return;
	assert_int_equal(kill(s->pid, SIGKILL), 0);
	assert_int_equal(waitpid(s->pid, NULL, 0), s->pid);
	assert_int_equal(munmap((char *)s->commands - offsetof(struct shared, commands),
				sizeof(struct shared)),
			 0);
	memset(s, 0, sizeof(*s));
}
