/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regr_all_connections.c - goal: one user cannot take all connections, half open or open, nor one
 * process all that its user may have; as many as the user may have can connect at once. Method:
 * children of other users (root is needed for that; without, the tests of half-open ones and of
 * processes remain) take all connections that they get; then an honest engine must connect, store
 * and load, and status must name the hog.
 */
#include "tests/lib/lib_packet.h"
#include "tests/lib/lib_raw.h"

/* A process has at most as many as its user has left: 6 of 12, then 3 of 6, and so on. */
enum {
	MAX_CLIENTS = 16,
	SHARE = 12,
	OF_A_PROCESS = SHARE / 2,
	PROCESSES = 4,
	HOG = 20001,
	OTHER = 20002,
	LARGE_OF_A_PROCESS = 96,
};

#define LARGE SMALL_HOST "[socket]\nmode = 0666\n"

static struct daemon d;

FIXTURE(begin)
{
	daemon_start(&d, *state ? *state : LARGE "max_clients = 16\n");
	return chmod(d.dir, 0755);
}

FIXTURE_DO(end, daemon_remove(&d));

TEST_EACH(begin, end);

/* --- children --- */

struct taken {
	uint32_t n;
	char text[232]; /* why no more */
};

/* Opens connections until it is refused; answers how many it has and why no more, and keeps
 * them. */
static void take_all(int answer)
{
	union {
		struct wire_head head;
		struct wire_error error;
		struct wire_hello_ok ok;
	} got;
	struct taken say = { 0 };
	struct raw r = { 0 };

	for (;; say.n++) {
		const struct wire_hello hello = raw_hello_message(&r);

		r.fd = packet_dial(d.socket, 0);
		(void)!send(r.fd, &hello, sizeof(hello), MSG_NOSIGNAL);
		memset(&got, 0, sizeof(got));
		/* closed before HELLO was read: told once, and first */
		if (recv(r.fd, &got, sizeof(got), 0) < 0)
			(void)!recv(r.fd, &got, sizeof(got), 0);
		if (got.head.type != WIRE_HELLO_OK)
			break;
	}
	if (got.head.type == WIRE_ERROR)
		memcpy(say.text, got.error.text, sizeof(say.text));
	(void)!write(answer, &say, sizeof(say));
	pause();
}

static void dial_without_end(int answer)
{
	for (int n = 0;; n++) {
		const int fd = packet_dial(d.socket, 0);

		if (n == 200)
			(void)!write(answer, "x", 1);
		if (n % 2 == 0 && fd >= 0)
			/* every second one is kept, as long as there are descriptors */
			(void)close(fd);
	}
}

struct child {
	pid_t pid;
	int answer;
};

static struct child child_start(uid_t uid, void (*run)(int answer))
{
	struct child c;
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	c.pid = fork();
	if (c.pid == 0) {
		if (uid && (setgid(uid) || setuid(uid)))
			_exit(1);
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		run(ends[1]);
		_exit(0);
	}
	(void)close(ends[1]);
	c.answer = ends[0];
	return c;
}

static void child_end(const struct child *c)
{
	(void)kill(c->pid, SIGKILL);
	(void)waitpid(c->pid, NULL, 0);
	(void)close(c->answer);
}

static uint32_t child_took(const struct child *c, const char *text)
{
	struct taken said = { 0 };

	assert_int_equal(read(c->answer, &said, sizeof(said)), sizeof(said));
	print_message("%u connections, then: %s\n", said.n, said.text);
	assert_non_null(strstr(said.text, text));
	return said.n;
}

/* Ending connections have their slots until they are closed. */
static uint32_t connections(void)
{
	uint32_t n = 0;

	for (const char *at = daemon_told(&d, "clients --json");
	     (at = strstr(at, "\"state\":")) != NULL; at++)
		n += strncmp(at, "\"state\":\"refused\"", 17) != 0;
	return n;
}

static bool status_says(const char *words)
{
	char text[4096];

	(void)daemon_ctl(&d, "status", text, sizeof(text));
	return strstr(text, words) != NULL;
}

/* --- tests --- */

TEST(a_user_has_a_share)
{
	static const uint32_t takes[PROCESSES] = { OF_A_PROCESS, 3, 2, 1 };
	char want[96];
	struct child hogs[PROCESSES], other;

	if (geteuid() != 0)
		skip();
	for (int i = 0; i < PROCESSES; i++) {
		hogs[i] = child_start(HOG, take_all);
		assert_int_equal(child_took(&hogs[i], "max_clients_per_uid"), takes[i]);
	}
	engine_works(d.socket);
	AWAIT(connections() == SHARE);
	other = child_start(OTHER, take_all);
	assert_int_equal(child_took(&other, "kept for root"), MAX_CLIENTS - SHARE - 1);
	engine_works(d.socket); /* root's */
	snprintf(want, sizeof(want), "%d of them by user %d, of those %d by process %d;", SHARE,
		 HOG, OF_A_PROCESS, (int)hogs[0].pid);
	AWAIT(status_says(want));
	AWAIT(status_says("WARN"));
	AWAIT(status_says("clients_full"));
	for (int i = 0; i < PROCESSES; i++)
		child_end(&hogs[i]);
	child_end(&other);
}

/* Its user's other processes find some. */
TEST(a_process_has_a_share_of_its_users)
{
	struct child hog;

	hog = child_start(0, take_all);
	assert_int_equal(child_took(&hog, "this process has 6 connections"), OF_A_PROCESS);
	engine_works(d.socket);
	child_end(&hog);
}

/* They connect, and say HELLO when the last of them has connected. */
TEST_GIVEN(a_crowd_comes_in, begin, end, LARGE)
{
	static struct raw crowd[LARGE_OF_A_PROCESS - 1];
	const uint32_t n = sizeof(crowd) / sizeof(crowd[0]);

	for (uint32_t i = 0; i < n; i++)
		raw_dial(&crowd[i], d.socket);
	AWAIT(connections() == n);
	for (uint32_t i = 0; i < n; i++)
		raw_hello(&crowd[i]);
	daemon_stat_becomes(&d, "clients_refused_total", 0, PATIENT_MS);
	for (uint32_t i = 0; i < n; i++)
		raw_close(&crowd[i]);
}

/* Connections that say nothing: others come in all the same, of the same user and of another. */
TEST_GIVEN(half_open_ones_go_first, begin, end, LARGE)
{
	struct child others[2] = { 0 };
	const int n = geteuid() == 0 ? 2 : 1;
	int held[300];
	char byte;

	for (int i = 0; i < 300; i++)
		held[i] = packet_dial(d.socket, 0);
	for (int i = 0; i < 10; i++)
		engine_works(d.socket);
	AWAIT(connections() <= LARGE_OF_A_PROCESS);
	for (int i = 0; i < n; i++)
		others[i] = child_start(i ? HOG : 0, dial_without_end);
	for (int i = 0; i < n; i++)
		assert_int_equal(read(others[i].answer, &byte, 1), 1);
	for (int i = 0; i < 20; i++)
		engine_works(d.socket);
	for (int i = 0; i < n; i++)
		child_end(&others[i]);
	for (int i = 0; i < 300; i++)
		if (held[i] >= 0)
			(void)close(held[i]);
}
