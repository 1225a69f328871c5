/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * regr_redirects.c - goal: a Redis that lies cannot have the password sent to a server of its
 * choice, neither by a redirect nor by a slot map. Method: a liar in this process, which answers
 * each GET and EXISTS by MOVED or ASK, or has a slot map with one host in it; a victim that listens
 * there and keeps all that it is sent. With [redis] cluster_hosts the victim is connected, so that
 * we know it would hear something.
 */
#include "tests/lib/lib_shared.h"

#include <arpa/inet.h>

#include "tiers/redis/redis_slots.h"

enum { HEARD = 4096, TEXT = 8192, LOADS = 5 };

struct listener {
	int fd;
	uint16_t port;
	pthread_t thread;
};

/* Shared by both threads and the test. */
static struct {
	struct listener liar, victim;
	char redirect[64]; /* "MOVED %u 127.0.0.1:1234"; "": none */
	char map[256];     /* a reply to CLUSTER SLOTS; "": an error */
	atomic_uint redirects, maps, connections;
	atomic_bool heard_auth, heard_us;
	struct node node;
	pthread_mutex_t lock; /* guards redirect and map */
} w = { .lock = PTHREAD_MUTEX_INITIALIZER };

__attribute__((format(printf, 3, 4))) static void say(char *where, size_t n, const char *format,
						      ...)
{
	va_list args;

	va_start(args, format);
	(void)pthread_mutex_lock(&w.lock);
	(void)vsnprintf(where, n, format, args);
	(void)pthread_mutex_unlock(&w.lock);
	va_end(args);
}

static void listen_at(struct listener *l, const char *address)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t n = sizeof(a);

	l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(inet_pton(AF_INET, address, &a.sin_addr), 1);
	assert_int_equal(bind(l->fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(l->fd, 64), 0);
	assert_int_equal(getsockname(l->fd, (struct sockaddr *)&a, &n), 0);
	l->port = ntohs(a.sin_port);
}

/* --- the victim --- */

static const char own_word[] = "us";

static void *suffer(TEST_UNUSED void *arg)
{
	for (;;) {
		const int fd = accept(w.victim.fd, NULL, NULL);
		char text[HEARD + 1];
		ssize_t n;

		if (fd < 0)
			return NULL;
		(void)atomic_fetch_add(&w.connections, 1);
		n = recv(fd, text, HEARD, 0);
		text[n > 0 ? n : 0] = 0;
		if (strstr(text, "AUTH"))
			atomic_store(&w.heard_auth, true);
		if (strcmp(text, own_word) == 0)
			atomic_store(&w.heard_us, true);
		(void)close(fd);
	}
}

/* --- the liar --- */

static void answer(int fd, const char *text)
{
	(void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
}

/* One command: its words are bulk strings, its name the second one. */
static void answer_to(int fd, const char *command)
{
	char name[SHARED_NAME] = "", line[SHARED_NAME + 64], redirect[sizeof(w.redirect)],
	     map[sizeof(w.map)];
	const char *at = strstr(command, "\r\n$");

	(void)pthread_mutex_lock(&w.lock);
	memcpy(redirect, w.redirect, sizeof(redirect));
	memcpy(map, w.map, sizeof(map));
	(void)pthread_mutex_unlock(&w.lock);
	if (strstr(command, "AUTH")) {
		answer(fd, "+OK\r\n");
	} else if (strstr(command, "SLOTS")) {
		(void)atomic_fetch_add(&w.maps, 1);
		answer(fd, map[0] ? map : "-ERR This instance has cluster support disabled\r\n");
	} else if (redirect[0] && at && (at = strstr(at + 3, "\r\n$")) != NULL &&
		   sscanf(at + 3, "%*d %159s", name) == 1 && strlen(name) > 80 &&
		   !strstr(name, "0000000000000000")) {
		char what[64];

		(void)snprintf(what, sizeof(what), redirect, redis_slot(name, strlen(name)));
		(void)snprintf(line, sizeof(line), "-%s\r\n", what);
		(void)atomic_fetch_add(&w.redirects, 1);
		answer(fd, line);
	} else {
		answer(fd, "$-1\r\n");
	}
}

static void *converse(void *arg)
{
	const int fd = (int)(intptr_t)arg;
	static _Thread_local char text[TEXT + 1];
	ssize_t n;

	while ((n = recv(fd, text, TEXT, 0)) > 0) {
		char *next;

		text[n] = 0;
		for (char *at = strchr(text, '*'); at; at = next) {
			next = strstr(at + 1, "\r\n*");
			if (next) {
				*next = 0;
				next += 2;
			}
			answer_to(fd, at);
		}
	}
	(void)close(fd);
	return NULL;
}

static void *lie(TEST_UNUSED void *arg)
{
	for (;;) {
		const int fd = accept(w.liar.fd, NULL, NULL);
		pthread_t thread;

		if (fd < 0)
			return NULL;
		assert_int_equal(pthread_create(&thread, NULL, converse, (void *)(intptr_t)fd), 0);
		(void)pthread_detach(thread);
	}
}

/* --- the daemon --- */

static void begin(const char *victim_at, const char *lines)
{
	static char endpoints[64], all[512];
	char path[200];

	listen_at(&w.liar, "127.0.0.1");
	listen_at(&w.victim, victim_at);
	say(w.redirect, sizeof(w.redirect), "%s", "");
	say(w.map, sizeof(w.map), "%s", "");
	atomic_store(&w.redirects, 0);
	atomic_store(&w.maps, 0);
	atomic_store(&w.connections, 0);
	atomic_store(&w.heard_auth, false);
	atomic_store(&w.heard_us, false);
	assert_int_equal(pthread_create(&w.liar.thread, NULL, lie, NULL), 0);
	assert_int_equal(pthread_create(&w.victim.thread, NULL, suffer, NULL), 0);
	(void)snprintf(endpoints, sizeof(endpoints), "127.0.0.1:%u", w.liar.port);
	node_place(&w.node, &(struct node_conf){ .endpoints = endpoints });
	node_file(&w.node, "password", "correct horse battery staple\n", 0600, path);
	(void)snprintf(all, sizeof(all), "password_file = %s\nwrite = off\n%s", path, lines);
	node_configure(&w.node, &(struct node_conf){ .endpoints = endpoints, .lines = all });
}

static void live(void)
{
	daemon_restart(&w.node.d);
	node_join(&w.node, &tiny_raw);
}

static void end_listener(struct listener *l)
{
	(void)shutdown(l->fd, SHUT_RDWR);
	assert_int_equal(pthread_join(l->thread, NULL), 0);
	(void)close(l->fd);
}

FIXTURE_DO(end, node_end(&w.node); end_listener(&w.liar); end_listener(&w.victim));

TEST_EACH(NULL, end);

/* Loads that nobody can serve, until the liar has answered LOADS of them by a redirect. */
static void load_until_redirected(void)
{
	struct kvtier_key keys[LOADS];
	uint32_t hits = 0;

	chain_keys(&w.node.e, 1, LOADS, keys);
	AWAIT((hits += node_load_each(&w.node, keys, 0, LOADS)) > 0 ||
	      atomic_load(&w.redirects) >= LOADS);
	assert_int_equal(hits + node_load_each(&w.node, keys, 0, LOADS), 0);
}

/* The daemon refuses a host. When the victim has heard this test, it has heard everybody who
 * connected before. */
static void nobody_comes(void)
{
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in a;
	socklen_t n = sizeof(a);

	daemon_stat_reaches(&w.node.d, "tiers.redis.refused_hosts_total", 1);
	assert_int_equal(getsockname(w.victim.fd, (struct sockaddr *)&a, &n), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, n), 0);
	assert_int_equal(send(fd, own_word, strlen(own_word), MSG_NOSIGNAL), strlen(own_word));
	AWAIT(atomic_load(&w.heard_us));
	(void)close(fd);
	if (atomic_load(&w.heard_auth))
		fail_msg("the victim heard AUTH");
	assert_int_equal(atomic_load(&w.connections), 1);
}

static void redirected_by(const char *kind)
{
	begin("127.0.0.1", "");
	say(w.redirect, sizeof(w.redirect), "%s %%u 127.0.0.1:%u", kind, w.victim.port);
	live();
	load_until_redirected();
	nobody_comes();
	assert_true(daemon_log_lines(&w.node.d, "redirects to") > 0);
}

TEST_DO(a_plain_server_says_moved, redirected_by("MOVED"));
TEST_DO(a_plain_server_says_ask, redirected_by("ASK"));

static void map_of(const char *host)
{
	say(w.map, sizeof(w.map), "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$%zu\r\n%s\r\n:%u\r\n",
	    strlen(host), host, w.victim.port);
}

/* The whole of loopback is ours, but 127.0.0.2 is not near 127.0.0.1. */
TEST(a_map_names_a_host_that_nobody_configured)
{
	begin("127.0.0.2", "");
	map_of("127.0.0.2");
	live();
	AWAIT(atomic_load(&w.maps) > 0);
	nobody_comes();
	assert_true(daemon_log_lines(&w.node.d, "cluster_hosts") > 0);
	assert_non_null(strstr(daemon_told(&w.node.d, "endpoints"), "cluster_hosts"));
}

/* A member of the map is no better: its redirect leads to a member of the map, or is not
 * followed. */
TEST(a_member_of_the_map_redirects_away)
{
	begin("127.0.0.1", "");
	say(w.redirect, sizeof(w.redirect), "MOVED %%u 127.0.0.1:%u", w.victim.port);
	say(w.map, sizeof(w.map), "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%u\r\n",
	    w.liar.port);
	live();
	load_until_redirected();
	nobody_comes();
}

TEST(the_hosts_that_are_configured_are_used)
{
	begin("127.0.0.2",
	      "cluster_hosts = other.example 10.0.0.0/8\ncluster_hosts = 127.0.0.0/30\n");
	map_of("127.0.0.2");
	live();
	AWAIT(atomic_load(&w.maps) > 0);
	AWAIT(atomic_load(&w.heard_auth));
}
