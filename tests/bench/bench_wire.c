/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_wire.h"

#include <openssl/evp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "bench_disk.h"

enum { HEAD_BYTES = 128, MARGIN = 64 };

/* --- the raw loop --- */

struct conn {
	int fd;
	uint32_t server;
	uint32_t outstanding;
	char head[HEAD_BYTES];                /* of the command that goes out */
	size_t head_bytes, out_at, out_bytes; /* out_bytes 0: none does */
	size_t in_at;                         /* of the reply that comes in */
	uint32_t replies;
	EVP_MAC_CTX *mac; /* NULL: none */
	/* of outstanding commands: the oldest's at replies % depth */
	uint32_t slots[BENCH_WIRE_DEPTH];
};

struct raw {
	const struct bench_wire *w;
	bool set;
	int poll;
	EVP_MAC *mac; /* NULL: none */
	uint32_t next[BENCH_SERVERS], begun, ended, n;
	uint8_t *memory; /* slots: values, with the framing of a reply */
	/* slots, in the order in which they were given back: the earliest at begun % slots, the
	 * last at ended % slots */
	uint32_t *free;
	size_t stride;
	struct conn conns[BENCH_WIRE_CONNECTIONS];
};

/* The memory of a connection's i-th value, which is outstanding. */
static uint8_t *memory_of(const struct raw *raw, const struct conn *c, uint32_t i)
{
	return raw->memory + c->slots[i % raw->w->depth] * raw->stride;
}

static void mac_begin(struct conn *c)
{
	static const uint8_t once[32] = "of the benchmark alone";

	if (c->mac)
		(void)EVP_MAC_init(c->mac, once, sizeof(once), NULL);
}

static void mac_add(struct conn *c, const uint8_t *bytes, size_t n)
{
	if (c->mac && n > 0)
		(void)EVP_MAC_update(c->mac, bytes, n);
}

static void mac_end(struct conn *c)
{
	uint8_t mac[16];
	size_t n;

	if (c->mac)
		(void)EVP_MAC_final(c->mac, mac, &n, sizeof(mac));
}

static bool begin(struct raw *raw, struct conn *c)
{
	const uint32_t value = raw->next[c->server];

	if (c->outstanding == raw->w->depth || value >= raw->w->values)
		return false;
	raw->next[c->server] += raw->w->n_servers;
	c->head_bytes =
		(size_t)snprintf(c->head, sizeof(c->head),
				 raw->set ? "*3\r\n$3\r\nSET\r\n$68\r\nraw:%064u\r\n$%u\r\n" :
					    "*2\r\n$3\r\nGET\r\n$68\r\nraw:%064u\r\n",
				 value, raw->w->value_bytes);
	c->out_at = 0;
	c->out_bytes = c->head_bytes + (raw->set ? raw->w->value_bytes + 2 : 0);
	c->slots[(c->replies + c->outstanding) % raw->w->depth] =
		raw->free[raw->begun++ % raw->w->slots];
	c->outstanding++;
	if (raw->set) {
		mac_begin(c);
		mac_add(c, memory_of(raw, c, c->replies + c->outstanding - 1), raw->w->value_bytes);
		mac_end(c);
	}
	return true;
}

static void end(struct raw *raw, struct conn *c)
{
	raw->free[raw->ended++ % raw->w->slots] = c->slots[c->replies % raw->w->depth];
	c->in_at = 0;
	c->outstanding--;
	c->replies++;
}

/* One writev of the rest; 1: some went, 0: none, -errno. */
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
	all[1] = (struct iovec){ memory_of(raw, c, c->replies + c->outstanding - 1),
				 raw->w->value_bytes };
	all[2] = (struct iovec){ (char *)(uintptr_t) "\r\n", 2 };
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
	const ssize_t n = recv(c->fd, text, sizeof(text), 0);

	if (n <= 0)
		return n && errno == EAGAIN ? 0 : -ECONNRESET;
	for (ssize_t i = 0; i < n; i++) {
		if (text[i] != "+OK\r\n"[c->in_at])
			return -EBADMSG;
		c->in_at = (c->in_at + 1) % 5;
		if (c->in_at == 0)
			end(raw, c);
	}
	return 1;
}

/* A reply's length is known, so no byte of the next one is taken. */
static int receive_value(struct raw *raw, struct conn *c)
{
	uint8_t *at = memory_of(raw, c, c->replies);
	char head[16];
	const size_t head_bytes =
		(size_t)snprintf(head, sizeof(head), "$%u\r\n", raw->w->value_bytes);
	const size_t whole = head_bytes + raw->w->value_bytes + 2;
	const ssize_t n = recv(c->fd, at + c->in_at, whole - c->in_at, 0);

	if (n <= 0)
		return n && errno == EAGAIN ? 0 : -ECONNRESET;
	if (c->in_at == 0)
		mac_begin(c);
	mac_add(c, at + c->in_at, (size_t)n); /* head and tail, too: a few bytes */
	c->in_at += (size_t)n;
	if (c->in_at < whole)
		return 1;
	mac_end(c);
	if (memcmp(at, head, head_bytes) != 0 || memcmp(at + whole - 2, "\r\n", 2) != 0)
		return -EBADMSG;
	end(raw, c);
	return 1;
}

/* Until neither direction takes any more: epoll tells of changes only. */
static int turn(struct raw *raw, struct conn *c)
{
	int sent = 1, got = 1;

	while (sent > 0 || got > 0) {
		sent = send_some(raw, c);
		got = c->outstanding == 0 ? 0 :
		      raw->set            ? receive_ok(raw, c) :
					    receive_value(raw, c);
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
		const int n = epoll_wait(raw->poll, events, BENCH_WIRE_CONNECTIONS,
					 BENCH_SERVER_PATIENCE_MS);

		if (n <= 0)
			return n < 0 ? -errno : -ETIMEDOUT;
		for (int i = 0; i < n && r == 0; i++)
			r = turn(raw, events[i].data.ptr);
	}
	return r;
}

static void open_conns(struct raw *raw)
{
	for (uint32_t i = 0; i < raw->w->n_servers * raw->w->connections; i++) {
		struct conn *c = &raw->conns[raw->n];
		struct epoll_event e = { .events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c };
		const struct bench_server *server = &raw->w->servers[i % raw->w->n_servers];

		c->server = i % raw->w->n_servers;
		c->fd = bench_connect(raw->w->tcp ? server->tcp : server->local);
		bench_must(c->fd);
		raw->n++;
		c->mac = raw->mac ? EVP_MAC_CTX_new(raw->mac) : NULL;
		if (raw->mac && !c->mac)
			bench_must(-ENOMEM);
		if (fcntl(c->fd, F_SETFL, O_NONBLOCK) ||
		    epoll_ctl(raw->poll, EPOLL_CTL_ADD, c->fd, &e))
			bench_must(-errno);
	}
}

static void close_raw(void *arg)
{
	struct raw *raw = arg;

	for (uint32_t i = 0; i < raw->n; i++) {
		EVP_MAC_CTX_free(raw->conns[i].mac);
		(void)close(raw->conns[i].fd);
	}
	EVP_MAC_free(raw->mac);
	(void)close(raw->poll);
}

static void open_raw(struct raw *raw)
{
	const struct bench_wire *w = raw->w;

	if (w->depth > BENCH_WIRE_DEPTH || w->slots < w->n_servers * w->connections * w->depth)
		bench_must(-EINVAL);
	raw->poll = epoll_create1(EPOLL_CLOEXEC);
	if (raw->poll < 0)
		bench_must(-errno);
	bench_defer(close_raw, raw);
	raw->memory = bench_memory(w->slots * raw->stride, true);
	raw->free = bench_alloc(w->slots * sizeof(*raw->free));
	for (uint32_t i = 0; i < w->slots; i++)
		raw->free[i] = i;
	for (uint32_t i = 0; i < w->n_servers; i++)
		raw->next[i] = i;
	raw->mac = w->mac ? EVP_MAC_fetch(NULL, "POLY1305", NULL) : NULL;
	if (w->mac && !raw->mac)
		bench_must(-ENOSYS);
	open_conns(raw);
}

const char *bench_wire_way(const struct bench_wire *w)
{
	return bench_server_given() ? bench_server_given() : w->tcp ? "TCP" : "Unix socket";
}

double bench_wire_run(const struct bench_wire *w, bool set, double *cpu)
{
	const uint32_t mark = bench_mark();
	struct raw *raw = bench_alloc(sizeof(*raw));
	double from, seconds;
	uint64_t start;

	raw->w = w;
	raw->set = set;
	raw->stride = (w->value_bytes + MARGIN + 4095) & ~(size_t)4095;
	open_raw(raw);
	from = bench_cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
	start = bench_now_ns();
	bench_must(go(raw));
	seconds = (double)(bench_now_ns() - start) * 1e-9;
	if (cpu)
		*cpu += bench_cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - from;
	bench_end(mark);
	return (double)w->values * w->value_bytes / seconds * 1e-9;
}
