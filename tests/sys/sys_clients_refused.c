/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait no=thread (the daemon's threads run in others) */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_clients_refused.c - goal: for ten minutes an operator sees each client that was refused, and
 * why: which process it is, its name and versions if it has said them. Method: a real kvtierd and
 * clients by hand: of another version, of a longer HELLO, with words that are no HELLO, one too
 * many.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_raw.h"

enum { MINUTES_MS = 60000 };

static struct daemon d;
static char out[1 << 15];

FIXTURE(begin)
{
	daemon_place(&d, false);
	clock_hold(&d);
	daemon_configure(&d,
			 HOST("1M", "256K") "[socket]\nmax_clients = 4\nmax_clients_per_uid = 4\n");
	daemon_restart(&d);
	return 0;
}

FIXTURE_DO(finish, daemon_remove(&d));

TEST_EACH(begin, finish);

static const char *told(const char *command)
{
	clock_pass_ms(300); /* a heartbeat */
	(void)daemon_ctl(&d, command, out, sizeof(out));
	return out;
}

static void says(const char *command, const char *words)
{
	if (!strstr(told(command), words))
		fail_msg("\"%s\" is not in the answer to %s: %s", words, command, out);
}

/* The row in JSON, and the sentence of status. */
static void is_shown(const char *name, const char *wire, const char *reason, const char *why)
{
	char words[256];

	(void)snprintf(words, sizeof(words), "refused.%s_total", reason);
	assert_true(daemon_stat(&d, words) >= 1);
	assert_int_equal(daemon_stat(&d, "clients_refused_total"), daemon_stat(&d, words));
	(void)snprintf(words, sizeof(words), "\"reason\":\"%s\"", reason);
	says("clients --json", words);
	says("status", "WARN: kvtierd");
	(void)snprintf(words, sizeof(words), "%s: %s", name, reason);
	says("status", words);
	(void)snprintf(words, sizeof(words), "\"pid\":%d,", (int)getpid());
	says("clients --json", words);
	(void)snprintf(words, sizeof(words), "\"name\":\"%s\"", name);
	says("clients --json", words);
	(void)snprintf(words, sizeof(words), "\"state\":\"refused\",\"wire\":\"%s\"", wire);
	says("clients --json", words);
	says("clients --json", why);
	says("clients", why);
	says("status", "clients_refused");
	says("status", name);
	says("status", why);
	(void)snprintf(words, sizeof(words), "pid %d,", (int)getpid());
	says("status", words);
}

static void hang_up(struct raw *r)
{
	char packet[WIRE_MAX_MESSAGE];

	while (raw_receive(r, packet, sizeof(packet)) > 0)
		;
	raw_close(r);
}

static void hello(const struct wire_hello *hello, size_t n)
{
	struct raw r;

	raw_dial(&r, d.socket);
	assert_int_equal(raw_send(&r, hello, n, NULL, 0), 0);
	hang_up(&r);
}

static struct wire_hello named(const char *name)
{
	struct raw r = { 0 };
	struct wire_hello ret = raw_hello_message(&r);

	memset(ret.name, 0, sizeof(ret.name));
	memcpy(ret.name, name, strlen(name));
	return ret;
}

/* The kernel's, of a client that has not said one. */
static const char *own_name(void)
{
	static char name[16];

	(void)snprintf(name, sizeof(name), "%s", program_invocation_short_name);
	return name;
}

TEST(another_version)
{
	struct wire_hello h = named("engine of \033[2Jtomorrow");

	h.version_min = WIRE_VERSION_MAX + 1;
	h.version_max = WIRE_VERSION_MAX + 3;
	hello(&h, sizeof(h));
	(void)snprintf(out, sizeof(out), "%d-%d", WIRE_VERSION_MAX + 1, WIRE_VERSION_MAX + 3);
	is_shown("engine of ?[2Jtomorrow", strdupa(out), "version",
		 "upgrade the older of libkvtier and kvtierd");
	assert_int_equal(daemon_stat(&d, "protocol_errors_total"), 0);
}

/* Its HELLO has grown, so its name is somewhere else. */
TEST(another_version_with_a_longer_hello)
{
	struct {
		struct wire_hello h;
		char more[64];
	} grown = { .h = named("") };

	grown.h.head.length = sizeof(grown);
	grown.h.version_min = grown.h.version_max = WIRE_VERSION_MAX + 4;
	hello(&grown.h, sizeof(grown));
	(void)snprintf(out, sizeof(out), "%d", WIRE_VERSION_MAX + 4);
	is_shown(own_name(), strdupa(out), "version", "upgrade the older of libkvtier and kvtierd");
	assert_int_equal(daemon_stat(&d, "protocol_errors_total"), 0);
}

TEST(no_protocol)
{
	struct wire_hello h = named("someone");

	h.head.magic++;
	hello(&h, sizeof(h));
	is_shown(own_name(), "", "protocol", "head.magic");
	says("status", "restart that engine, and report it");
	assert_int_equal(daemon_stat(&d, "protocol_errors_total"), 1);
}

TEST(too_many)
{
	struct raw r[2], more;

	clock_pass_ms(300); /* the connection by which the daemon's start was seen ends */
	daemon_stat_becomes(&d, "clients", 0, PATIENT_MS);
	(void)told("status"); /* by now the daemon has seen that it ended */
	for (int i = 0; i < 2; i++)
		raw_open(&r[i], d.socket);
	raw_dial(&more, d.socket);
	hang_up(&more);
	is_shown(own_name(), "", "full", "this process has 2 connections");
	for (int i = 0; i < 2; i++)
		raw_close(&r[i]);
}

/* And not for longer, however often it comes, and in one row. */
TEST(a_refusal_is_shown_for_ten_minutes)
{
	struct wire_hello h = named("engine");
	const char *row;

	h.version_min = h.version_max = WIRE_VERSION_MAX + 1;
	for (int i = 0; i < 40; i++)
		hello(&h, sizeof(h));
	says("clients --json", "\"refused\":40");
	row = strstr(out, "\"state\":\"refused\"");
	assert_null(strstr(row + 1, "\"state\":\"refused\""));
	clock_pass_ms(9 * MINUTES_MS);
	says("clients --json", "\"state\":\"refused\"");
	says("status", "clients_refused");
	clock_pass_ms(1 * MINUTES_MS);
	assert_null(strstr(told("clients --json"), "refused\""));
	assert_null(strstr(told("status"), "refused"));
	assert_memory_equal(out, "OK: ", 4);
}
