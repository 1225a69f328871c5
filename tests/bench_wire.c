/* SPDX-License-Identifier: Apache-2.0 */
/* bench_wire.c - see bench_wire.h. */
#include "bench_wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum { PATIENCE_MS = 10000, HEAD_BYTES = 128, MARGIN = 64 };

/* --- connecting --- */

static int connect_local(const struct bench_server *s, int flags)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(to.sun_path, s->socket, strlen(s->socket) + 1);
	if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 && fcntl(fd, F_SETFL, flags) == 0)
		return fd;
	if (fd >= 0)
		(void)close(fd);
	return -ECONNREFUSED;
}

static int connect_loopback(const struct bench_server *s, int flags)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

	to.sin_port = htons((uint16_t)atoi(strchr(s->loopback, ':') + 1));
	if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 && fcntl(fd, F_SETFL, flags) == 0 &&
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0)
		return fd;
	if (fd >= 0)
		(void)close(fd);
	return -ECONNREFUSED;
}

/* --- a server --- */

/* A port that is free now. */
static int find_port(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof at;
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const int r = fd < 0 || bind(fd, (const struct sockaddr *)&at, n) || getsockname(fd, (struct sockaddr *)&at, &n);

	if (fd >= 0)
		(void)close(fd);
	return r ? -EADDRINUSE : ntohs(at.sin_port);
}

static void become(const char *program, const struct bench_server *s, const char *port)
{
	(void)execlp(program, program, "--bind", "127.0.0.1", "--port", port, "--unixsocket", s->socket, "--dir", s->dir,
		     "--save", "", "--appendonly", "no", "--loglevel", "warning", (char *)NULL);
}

static int spawn(struct bench_server *s)
{
	char port[16];
	const int number = find_port();

	strcpy(s->dir, "/tmp/kvtier-bench-XXXXXX");
	if (number < 0 || !mkdtemp(s->dir)) {
		s->dir[0] = 0;
		return number < 0 ? number : -errno;
	}
	(void)snprintf(port, sizeof port, "%d", number);
	(void)snprintf(s->socket, sizeof s->socket, "%s/redis.sock", s->dir);
	(void)snprintf(s->local, sizeof s->local, "unix:%s", s->socket);
	(void)snprintf(s->loopback, sizeof s->loopback, "127.0.0.1:%d", number);
	s->pid = fork();
	if (s->pid == 0) {
		const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)dup2(null, 1);
		become("redis-server", s, port);
		become("valkey-server", s, port);
		_exit(127);
	}
	return s->pid < 0 ? -errno : 0;
}

/* The integer that answers a command, or 0 for "+..."; -EIO: neither. */
static int ask(struct bench_server *s, const char *command, long long *ret)
{
	char text[128] = "";
	ssize_t n = write(s->fd, command, strlen(command));

	if (n == (ssize_t)strlen(command))
		n = read(s->fd, text, sizeof text - 1);	/* so short a reply comes in one piece */
	if (n < 4 || (text[0] != ':' && text[0] != '+'))
		return -EIO;
	text[n] = 0;
	*ret = text[0] == ':' ? atoll(text + 1) : 0;
	return 0;
}

int bench_server_start(struct bench_server *s, char *note, size_t n)
{
	long long pong;
	int r = spawn(s);

	s->fd = -1;
	for (int i = 0; r == 0 && i < PATIENCE_MS / 10; i++) {
		if (s->fd < 0)
			s->fd = connect_local(s, 0);
		if (s->fd >= 0 && ask(s, "PING\r\n", &pong) == 0)
			return 0;
		if (waitpid(s->pid, NULL, WNOHANG) == s->pid) {
			s->pid = 0;
			(void)snprintf(note, n, "no redis-server here, or it does not start");
			return -ENOTSUP;
		}
		usleep(10000);
	}
	return r ? r : -ETIMEDOUT;
}

void bench_server_stop(struct bench_server *s)
{
	char command[128];

	if (s->fd > 0)
		(void)close(s->fd);
	if (s->pid > 0) {
		(void)kill(s->pid, SIGKILL);
		(void)waitpid(s->pid, NULL, 0);
	}
	(void)snprintf(command, sizeof command, "rm -rf %s", s->dir);
	if (s->dir[0] && system(command))
		(void)fprintf(stderr, "cannot remove %s\n", s->dir);
	*s = (struct bench_server){ .fd = -1 };
}

int bench_server_flush(struct bench_server *s)
{
	long long ok;

	return ask(s, "FLUSHALL\r\n", &ok);
}

int bench_server_keys(struct bench_server *s, long long *ret)
{
	return ask(s, "DBSIZE\r\n", ret);
}

/* --- the raw loop --- */

struct conn {
	int fd;
	uint32_t server;
	uint32_t outstanding;
	char head[HEAD_BYTES];		/* of the command that goes out */
	size_t head_bytes, out_at, out_bytes;	/* out_bytes 0: none does */
	size_t in_at;			/* of the reply that comes in */
	uint32_t replies;
};

struct raw {
	const struct bench_wire *w;
	bool set;
	int poll;
	uint32_t next[BENCH_SERVERS], ended, n;
	uint8_t *memory;		/* connections x depth values, with what is around a reply */
	size_t stride;
	struct conn conns[BENCH_WIRE_CONNECTIONS];
};

/* The i-th value's memory of a connection. */
static uint8_t *memory_of(const struct raw *raw, const struct conn *c, uint32_t i)
{
	return raw->memory + ((size_t)(c - raw->conns) * raw->w->depth + i % raw->w->depth) * raw->stride;
}

static bool begin(struct raw *raw, struct conn *c)
{
	const uint32_t value = raw->next[c->server];

	if (c->outstanding == raw->w->depth || value >= raw->w->values)
		return false;
	raw->next[c->server] += raw->w->n_servers;
	c->head_bytes = (size_t)snprintf(c->head, sizeof c->head,
					 raw->set ? "*3\r\n$3\r\nSET\r\n$68\r\nraw:%064u\r\n$%u\r\n" :
					 "*2\r\n$3\r\nGET\r\n$68\r\nraw:%064u\r\n", value, raw->w->value_bytes);
	c->out_at = 0;
	c->out_bytes = c->head_bytes + (raw->set ? raw->w->value_bytes + 2 : 0);
	c->outstanding++;
	return true;
}

/* One writev of what is left; 1: some went, 0: none, -errno. */
static int send_some(struct raw *raw, struct conn *c)
{
	struct iovec all[3], *part = all;
	size_t skip;
	int n_parts = raw->set ? 3 : 1;
	ssize_t n;

	if (!c->out_bytes && !begin(raw, c))
		return 0;
	skip = c->out_at;
	all[0] = (struct iovec){ c->head, c->head_bytes };
	all[1] = (struct iovec){ memory_of(raw, c, c->replies + c->outstanding - 1), raw->w->value_bytes };
	all[2] = (struct iovec){ (char *)(uintptr_t)"\r\n", 2 };
	for (; skip >= part->iov_len; n_parts--)
		skip -= part++->iov_len;
	part->iov_base = (char *)part->iov_base + skip;
	part->iov_len -= skip;
	n = writev(c->fd, part, n_parts);
	if (n < 0)
		return errno == EAGAIN ? 0 : -errno;
	c->out_at += (size_t)n;
	if (c->out_at == c->out_bytes)
		c->out_bytes = 0;
	return 1;
}

static int receive_ok(struct raw *raw, struct conn *c)
{
	char text[4096];
	const ssize_t n = recv(c->fd, text, sizeof text, 0);

	if (n <= 0)
		return n && errno == EAGAIN ? 0 : -ECONNRESET;
	for (ssize_t i = 0; i < n; i++) {
		if (text[i] != "+OK\r\n"[c->in_at])
			return -EBADMSG;
		c->in_at = (c->in_at + 1) % 5;
		if (c->in_at == 0) {
			c->outstanding--;
			c->replies++;
			raw->ended++;
		}
	}
	return 1;
}

/* A reply's length is known, so no byte of the next one is taken. */
static int receive_value(struct raw *raw, struct conn *c)
{
	uint8_t *at = memory_of(raw, c, c->replies);
	char head[16];
	const size_t head_bytes = (size_t)snprintf(head, sizeof head, "$%u\r\n", raw->w->value_bytes);
	const size_t whole = head_bytes + raw->w->value_bytes + 2;
	const ssize_t n = recv(c->fd, at + c->in_at, whole - c->in_at, 0);

	if (n <= 0)
		return n && errno == EAGAIN ? 0 : -ECONNRESET;
	c->in_at += (size_t)n;
	if (c->in_at < whole)
		return 1;
	if (memcmp(at, head, head_bytes) != 0 || memcmp(at + whole - 2, "\r\n", 2) != 0)
		return -EBADMSG;
	c->in_at = 0;
	c->outstanding--;
	c->replies++;
	raw->ended++;
	return 1;
}

/* Until neither direction takes any more: epoll tells of changes only. */
static int turn(struct raw *raw, struct conn *c)
{
	int sent = 1, got = 1;

	while (sent > 0 || got > 0) {
		sent = send_some(raw, c);
		got = c->outstanding == 0 ? 0 : raw->set ? receive_ok(raw, c) : receive_value(raw, c);
		if (sent < 0 || got < 0)
			return sent < 0 ? sent : got;
	}
	return 0;
}

static int go(struct raw *raw)
{
	struct epoll_event events[BENCH_WIRE_CONNECTIONS];
	int r = 0;

	for (uint32_t i = 0; i < raw->n && r == 0; i++)
		r = turn(raw, &raw->conns[i]);
	while (r == 0 && raw->ended < raw->w->values) {
		const int n = epoll_wait(raw->poll, events, BENCH_WIRE_CONNECTIONS, PATIENCE_MS);

		if (n <= 0)
			return n < 0 ? -errno : -ETIMEDOUT;
		for (int i = 0; i < n && r == 0; i++)
			r = turn(raw, events[i].data.ptr);
	}
	return r;
}

static int open_conns(struct raw *raw)
{
	for (uint32_t i = 0; i < raw->w->n_servers * raw->w->connections; i++) {
		struct conn *c = &raw->conns[raw->n];
		struct epoll_event e = { .events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c };
		const struct bench_server *server = &raw->w->servers[i % raw->w->n_servers];

		c->server = i % raw->w->n_servers;
		c->fd = raw->w->loopback ? connect_loopback(server, O_NONBLOCK) : connect_local(server, O_NONBLOCK);
		if (c->fd < 0)
			return c->fd;
		raw->n++;
		if (epoll_ctl(raw->poll, EPOLL_CTL_ADD, c->fd, &e))
			return -errno;
	}
	return 0;
}

static int open_raw(struct raw *raw)
{
	const struct bench_wire *w = raw->w;
	const size_t room = (size_t)w->n_servers * w->connections * w->depth * raw->stride;

	for (uint32_t i = 0; i < w->n_servers; i++)
		raw->next[i] = i;
	raw->poll = epoll_create1(EPOLL_CLOEXEC);
	raw->memory = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (raw->poll < 0 || raw->memory == MAP_FAILED)
		return -ENOMEM;
	memset(raw->memory, 0x5a, room);
	return open_conns(raw);
}

static void close_raw(struct raw *raw)
{
	for (uint32_t i = 0; i < raw->n; i++)
		(void)close(raw->conns[i].fd);
	if (raw->poll >= 0)
		(void)close(raw->poll);
	if (raw->memory != MAP_FAILED)
		(void)munmap(raw->memory, (size_t)raw->w->n_servers * raw->w->connections * raw->w->depth * raw->stride);
}

double bench_thread_seconds(void)
{
	struct rusage u;

	(void)getrusage(RUSAGE_THREAD, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

int bench_wire_run(const struct bench_wire *w, bool set, double *ret, double *cpu)
{
	struct raw raw = { .w = w, .set = set, .stride = (w->value_bytes + MARGIN + 4095) & ~(size_t)4095 };
	double from;
	uint64_t start;
	int r = open_raw(&raw);

	from = bench_thread_seconds();
	start = bench_now_ns();
	if (r == 0)
		r = go(&raw);
	*ret = (double)w->values * w->value_bytes / (double)(bench_now_ns() - start);
	if (cpu)
		*cpu += bench_thread_seconds() - from;
	close_raw(&raw);
	return r;
}
