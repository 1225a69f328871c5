/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

/* --- connecting --- */

union address {
	struct sockaddr any;
	struct sockaddr_un local;
	struct sockaddr_in tcp;
};

/* "10.0.0.2:6379"; -EINVAL. */
static int parse_tcp(const char *text, struct sockaddr_in *ret)
{
	char host[INET_ADDRSTRLEN] = "", more;
	unsigned int port;

	*ret = (struct sockaddr_in){ .sin_family = AF_INET };
	if (sscanf(text, "%15[0-9.]:%5u%c", host, &port, &more) != 2 || port < 1 || port > 65535 ||
	    inet_pton(AF_INET, host, &ret->sin_addr) != 1)
		return -EINVAL;
	ret->sin_port = htons((uint16_t)port);
	return 0;
}

/* A call on a server that never answers fails, instead of waiting for ever. */
static int connect_fd(int fd, const union address *to)
{
	const struct timeval patience = { .tv_sec = BENCH_SERVER_PATIENCE_MS / 1000 };
	const int on = 1;

	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) ||
	    connect(fd, &to->any,
		    to->any.sa_family == AF_UNIX ? sizeof(to->local) : sizeof(to->tcp)))
		return errno == EINPROGRESS ? -ETIMEDOUT : -errno;
	if (to->any.sa_family == AF_INET &&
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
		return -errno;
	return 0;
}

int bench_connect(const char *endpoint)
{
	union address to = { .local.sun_family = AF_UNIX };
	int fd, r = 0;

	if (strncmp(endpoint, "unix:", 5) == 0)
		(void)snprintf(to.local.sun_path, sizeof(to.local.sun_path), "%s", endpoint + 5);
	else
		r = parse_tcp(endpoint, &to.tcp);
	if (r)
		return r;
	fd = socket(to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	r = fd < 0 ? -errno : connect_fd(fd, &to);
	if (r == 0)
		return fd;
	if (fd >= 0)
		(void)close(fd);
	return r;
}

/* --- a server --- */

/* A port that is free now. */
static int find_port(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(at);
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const int r = fd < 0 || bind(fd, (const struct sockaddr *)&at, n) ||
		      getsockname(fd, (struct sockaddr *)&at, &n);

	if (fd >= 0)
		(void)close(fd);
	bench_must(r ? -EADDRINUSE : 0);
	return ntohs(at.sin_port);
}

static void become(const char *program, const struct bench_server *s, const char *port)
{
	const char *args[32] = { program, "--bind",       "127.0.0.1", "--port",
				 port,    "--unixsocket", s->socket,   "--dir",
				 s->dir,  "--save",       "",          "--appendonly",
				 "no",    "--loglevel",   "warning" };
	const char *const tls[] = { "--tls-port",         strrchr(s->tls, ':') + 1,
				    "--tls-auth-clients", "no",
				    "--tls-cert-file",    s->cert,
				    "--tls-key-file",     s->key,
				    "--tls-ca-cert-file", s->cert };
	size_t n = 0;

	while (args[n])
		n++;
	if (s->want_tls)
		memcpy(args + n, tls, sizeof(tls));
	(void)execvp(program, (char *const *)args);
}

/* A certificate that vouches for itself. */
static void make_certificate(struct bench_server *s)
{
	char command[512];
	const int number = find_port();

	(void)snprintf(s->tls, sizeof(s->tls), "127.0.0.1:%d", number);
	(void)snprintf(s->cert, sizeof(s->cert), "%s/cert.pem", s->dir);
	(void)snprintf(s->key, sizeof(s->key), "%s/key.pem", s->dir);
	(void)snprintf(
		command, sizeof(command),
		"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
		"-subj /CN=kvtier-bench -addext subjectAltName=IP:127.0.0.1 -out %s -keyout %s "
		"2>/dev/null",
		s->cert, s->key);
	if (system(command) != 0)
		bench_fail(-ENOTSUP, "needs openssl(1) for a certificate");
}

/* The server that `make deps` linked beside this program, or the one in PATH. */
static void become_any(const struct bench_server *s, const char *port)
{
	char beside[512];
	const ssize_t n = readlink("/proc/self/exe", beside, sizeof(beside) - 32);

	if (n > 0) {
		beside[n] = 0;
		strcpy(strrchr(beside, '/'), "/bin/redis-server");
		become(beside, s, port);
	}
	become("redis-server", s, port);
	become("valkey-server", s, port);
}

static void spawn(struct bench_server *s)
{
	char port[16];
	const int number = find_port();

	bench_dir("/tmp", s->dir, sizeof(s->dir));
	(void)strcpy(s->tls, ":");
	if (s->want_tls)
		make_certificate(s);
	(void)snprintf(port, sizeof(port), "%d", number);
	(void)snprintf(s->socket, sizeof(s->socket), "%s/redis.sock", s->dir);
	(void)snprintf(s->local, sizeof(s->local), "unix:%s", s->socket);
	(void)snprintf(s->tcp, sizeof(s->tcp), "127.0.0.1:%d", number);
	s->pid = fork();
	if (s->pid == 0) {
		const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)dup2(null, 1);
		become_any(s, port);
		_exit(127);
	}
	if (s->pid < 0)
		bench_must(-errno);
}

/* The integer that answers a command, or 0 for "+..."; -EIO: neither. */
static int ask(struct bench_server *s, const char *command, long long *ret)
{
	char text[128] = "";
	ssize_t n = write(s->fd, command, strlen(command));

	if (n == (ssize_t)strlen(command))
		/* so short a reply comes in one piece */
		n = read(s->fd, text, sizeof(text) - 1);
	if (n < 4 || (text[0] != ':' && text[0] != '+'))
		return -EIO;
	text[n] = 0;
	*ret = text[0] == ':' ? atoll(text + 1) : 0;
	return 0;
}

/* A server of another's is touched only if there is nothing in it. */
static void use_given(struct bench_server *s, const char *given)
{
	struct sockaddr_in unused;
	long long keys;

	if (parse_tcp(given, &unused))
		bench_fail(
			-EINVAL,
			"KVTIER_BENCH_REDIS: not an IPv4 address and port, as 10.0.0.2:6379: %.40s",
			given);
	(void)snprintf(s->tcp, sizeof(s->tcp), "%s", given);
	(void)snprintf(s->local, sizeof(s->local), "%s", given);
	s->fd = bench_connect(s->tcp);
	if (s->fd < 0)
		bench_fail(s->fd, "KVTIER_BENCH_REDIS: %s: %s", given, strerror(-s->fd));
	if (ask(s, "DBSIZE\r\n", &keys))
		bench_fail(-EIO,
			   "KVTIER_BENCH_REDIS: %s does not answer DBSIZE; it must ask for no "
			   "password",
			   given);
	s->flush = keys == 0;
	if (!s->flush)
		bench_fail(-ENOTSUP,
			   "KVTIER_BENCH_REDIS: %s is not empty, and this flushes it: name an "
			   "empty server",
			   given);
}

const char *bench_server_given(void)
{
	const char *given = getenv("KVTIER_BENCH_REDIS");

	return given && given[0] ? given : NULL;
}

static void await_answer(struct bench_server *s)
{
	long long pong;

	for (int i = 0; i < BENCH_SERVER_PATIENCE_MS / 10; i++) {
		if (s->fd < 0)
			s->fd = bench_connect(s->local);
		if (s->fd >= 0 && ask(s, "PING\r\n", &pong) == 0)
			return;
		if (waitpid(s->pid, NULL, WNOHANG) == s->pid) {
			s->pid = 0;
			bench_fail(-ENOTSUP,
				   "no redis-server beside this program (bin/) or on PATH, or it "
				   "does not start");
		}
		usleep(10000);
	}
	bench_must(-ETIMEDOUT);
}

static void end(void *arg)
{
	struct bench_server *s = arg;
	long long ok;

	if (s->flush && ask(s, "FLUSHDB\r\n", &ok))
		(void)fprintf(stderr, "cannot flush %s: FLUSHDB by hand\n", s->tcp);
	if (s->fd >= 0)
		(void)close(s->fd);
	if (s->pid > 0) {
		(void)kill(s->pid, SIGKILL);
		(void)waitpid(s->pid, NULL, 0);
	}
}

void bench_server_start(struct bench_server *s)
{
	s->fd = -1;
	if (s->want_tls && bench_server_given())
		bench_fail(-ENOTSUP, "needs a server of its own: unset KVTIER_BENCH_REDIS");
	if (!bench_server_given())
		spawn(s);
	bench_defer(end, s);
	if (bench_server_given())
		use_given(s, bench_server_given());
	else
		await_answer(s);
}

void bench_server_flush(struct bench_server *s)
{
	long long ok;

	bench_must(ask(s, "FLUSHDB\r\n", &ok));
}

long long bench_server_keys(struct bench_server *s)
{
	long long ret;

	bench_must(ask(s, "DBSIZE\r\n", &ret));
	return ret;
}
