/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.c - see http.h. A connection reads its request, then writes its reply, then waits for the
 * other side to close: bytes that were sent too much and are not read would make the kernel drop
 * the reply.
 */
#include "http.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/text.h"

/* --- listening --- */

static int listen_unix(const char *path, char *text, size_t n)
{
	struct own own;
	int fd, r = socket_bind(path, SOCK_STREAM, 0660, &fd, &own);

	if (r == 0 && listen(fd, HTTP_CONNECTIONS) < 0) {
		r = -errno;
		(void)close(fd);
	}
	if (r == 0) {
		snprintf(text, n, "unix:%s", path);
		return fd;
	}
	return text_fail(text, n, -1, "unix:%s: %s", path,
			 r == -EADDRINUSE ? "another process serves there" :
			 r == -EEXIST     ? "a file lies there that is no socket" :
					    strerror(-r));
}

static int listen_tcp(const struct addrinfo *at, char *text, size_t n)
{
	const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
	struct sockaddr_storage bound;
	socklen_t length = sizeof(bound);
	char host[64], port[16];

	if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
	    bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, HTTP_CONNECTIONS) == 0 &&
	    getsockname(fd, (struct sockaddr *)&bound, &length) == 0 &&
	    getnameinfo((struct sockaddr *)&bound, length, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
		snprintf(text, n, at->ai_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
		return fd;
	}
	snprintf(text, n, "%s", strerror(errno));
	if (fd >= 0)
		(void)close(fd);
	return -1;
}

int http_listen(const char *address, char *text, size_t n)
{
	const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
					.ai_socktype = SOCK_STREAM };
	const char *colon = strrchr(address, ':');
	const bool bracket = address[0] == '[' && colon && colon > address && colon[-1] == ']';
	struct addrinfo *found = NULL;
	char host[64], why[128];
	int fd;

	if (strncmp(address, "unix:", 5) == 0)
		return listen_unix(address + 5, text, n);
	if (!colon)
		return text_fail(text, n, -1,
				 "%s: ADDRESS:PORT or unix:PATH, such as "
				 "127.0.0.1:9810",
				 address);
	snprintf(host, sizeof(host), "%.*s", (int)(colon - address) - 2 * bracket,
		 address + bracket);
	if (getaddrinfo(host, colon + 1, &hints, &found) != 0)
		return text_fail(text, n, -1,
				 "%s: no address and port in numbers, such as "
				 "127.0.0.1:9810 or [::1]:9810",
				 address);
	fd = listen_tcp(found, why, sizeof(why));
	freeaddrinfo(found);
	if (fd < 0)
		return text_fail(text, n, -1, "%s: %s", address, why);
	snprintf(text, n, "%s", why);
	return fd;
}

/* --- a connection --- */

struct connection {
	int fd; /* -1: free */
	uint64_t deadline_ns;
	char request[HTTP_REQUEST_BYTES];
	size_t got;
	char *reply; /* NULL: the request is not complete yet */
	size_t bytes, sent;
};

static void connection_end(struct connection *c)
{
	(void)close(c->fd);
	free(c->reply);
	*c = (struct connection){ .fd = -1 };
}

/* Makes the reply; without memory the connection ends. */
static void reply(struct connection *c, const char *status, const char *body, size_t n, bool head)
{
	FILE *out = open_memstream(&c->reply, &c->bytes);

	if (out) {
		fprintf(out,
			"HTTP/1.0 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
			"Content-Length: %zu\r\nAllow: GET, HEAD\r\nConnection: close\r\n\r\n",
			status, n);
		if (!head)
			fwrite(body, 1, n, out);
	}
	if (!out || fclose(out) != 0)
		connection_end(c);
}

static void refuse(struct connection *c, const char *status)
{
	char body[128];
	const int n = snprintf(body, sizeof(body), "%s\n", status);

	reply(c, status, body, (size_t)n, false);
}

static void answer(struct connection *c, const char *path, bool head, http_page_fn *page, void *arg)
{
	char *body = NULL;
	size_t n = 0;
	FILE *out = open_memstream(&body, &n);
	const bool found = out && page(out, path, arg);

	if (!out || fclose(out) != 0)
		connection_end(c);
	else if (found)
		reply(c, "200 OK", body, n, head);
	else
		refuse(c, "404 Not Found");
	free(body);
}

/* The request's first line is METHOD PATH[?QUERY] HTTP/1.x; what follows it is ignored. */
static void respond(struct connection *c, http_page_fn *page, void *arg)
{
	char *line_end = memchr(c->request, '\r', c->got), *path, *version;

	line_end = line_end ? line_end : memchr(c->request, '\n', c->got);
	*line_end = '\0';
	path = strchr(c->request, ' ');
	version = path ? strchr(path + 1, ' ') : NULL;
	if (!version || strncmp(version, " HTTP/1.", 8) != 0 || path[1] != '/') {
		refuse(c, "400 Bad Request");
		return;
	}
	*path++ = *version = '\0';
	path[strcspn(path, "?")] = '\0';
	if (strcmp(c->request, "GET") != 0 && strcmp(c->request, "HEAD") != 0)
		refuse(c, "405 Method Not Allowed");
	else
		answer(c, path, c->request[0] == 'H', page, arg);
}

static void read_request(struct connection *c, http_page_fn *page, void *arg)
{
	const ssize_t n = recv(c->fd, c->request + c->got, sizeof(c->request) - c->got, 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		connection_end(c);
		return;
	}
	c->got += (size_t)n;
	if (memmem(c->request, c->got, "\r\n\r\n", 4) || memmem(c->request, c->got, "\n\n", 2))
		respond(c, page, arg);
	else if (c->got == sizeof(c->request))
		refuse(c, "431 Request Header Fields Too Large");
}

static void write_reply(struct connection *c)
{
	const ssize_t n = send(c->fd, c->reply + c->sent, c->bytes - c->sent, MSG_NOSIGNAL);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < 0) {
		connection_end(c);
		return;
	}
	c->sent += (size_t)n;
	if (c->sent == c->bytes)
		(void)shutdown(c->fd, SHUT_WR);
}

/* Reads on until the other side has closed. */
static void drain(struct connection *c)
{
	const ssize_t n = recv(c->fd, c->request, sizeof(c->request), 0);

	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		connection_end(c);
}

/* --- serving --- */

static bool is_writing(const struct connection *c)
{
	return c->reply && c->sent < c->bytes;
}

static void accept_one(int listening, struct connection *c)
{
	const int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	c->fd = fd;
	c->deadline_ns = clock_ns() + HTTP_DEADLINE_MS * 1000000ull;
}

/* One step of each connection whose socket is ready, or whose time is over. */
static void step(struct connection *all, const struct pollfd *polled, http_page_fn *page, void *arg)
{
	const uint64_t now_ns = clock_ns();

	for (size_t i = 0; i < HTTP_CONNECTIONS; i++) {
		struct connection *c = &all[i];

		if (c->fd < 0)
			continue;
		if (now_ns >= c->deadline_ns)
			connection_end(c);
		else if (polled[i].revents == 0)
			continue;
		else if (!c->reply)
			read_request(c, page, arg);
		else if (is_writing(c))
			write_reply(c);
		else
			drain(c);
	}
}

/* Milliseconds until the first deadline; -1: no connection. */
static int until_deadline(const struct connection *all)
{
	const uint64_t now_ns = clock_ns();
	uint64_t first_ns = UINT64_MAX;

	for (size_t i = 0; i < HTTP_CONNECTIONS; i++)
		if (all[i].fd >= 0 && all[i].deadline_ns < first_ns)
			first_ns = all[i].deadline_ns;
	if (first_ns == UINT64_MAX)
		return -1;
	return now_ns >= first_ns ? 0 : (int)((first_ns - now_ns) / 1000000) + 1;
}

int http_serve(int listening, http_page_fn *page, void *arg)
{
	static struct connection all[HTTP_CONNECTIONS];
	struct pollfd polled[HTTP_CONNECTIONS + 1];

	for (size_t i = 0; i < HTTP_CONNECTIONS; i++)
		all[i].fd = -1;
	for (;;) {
		struct connection *unused = NULL;

		for (size_t i = 0; i < HTTP_CONNECTIONS; i++) {
			polled[i] =
				(struct pollfd){ .fd = all[i].fd,
						 .events = is_writing(&all[i]) ? POLLOUT : POLLIN };
			unused = all[i].fd < 0 ? &all[i] : unused;
		}
		/* while all are in use, the others wait in the socket's queue */
		polled[HTTP_CONNECTIONS] =
			(struct pollfd){ .fd = unused ? listening : -1, .events = POLLIN };
		if (poll(polled, HTTP_CONNECTIONS + 1, until_deadline(all)) < 0 && errno != EINTR)
			return -errno;
		step(all, polled, page, arg);
		if (polled[HTTP_CONNECTIONS].revents & (POLLERR | POLLNVAL))
			return -EIO;
		if (polled[HTTP_CONNECTIONS].revents & POLLIN)
			accept_one(listening, unused);
	}
}
