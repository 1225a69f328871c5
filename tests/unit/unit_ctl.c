/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=server_row,space_at,spaces_numbers,blocks_tally,tally_count,tally_blocks */
/* make: wrap=mover_evict_bytes */
/*
 * unit_ctl - goal: the admin socket answers users who may ask, whole and as JSON; a user who asks
 * badly, slowly or too often costs the others nothing. Method: the real ctl.c and loop.c, all else
 * faked (lib_ctl.h); the asker is a second thread.
 */
#include "tests/lib/lib_ctl.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/admin/ctl.h"

/* --- cases --- */

struct scene {
	const char *name;
	void (*asker)(void);
	uint32_t clients, spaces;
	uint64_t blocks;
};

static void ask_clients(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "clients"), '.');
	assert_int_equal(admin_rows("clients"), 3);
	assert_null(strpbrk(heard.text, "\033\xff\x9b")); /* nothing that talks to a terminal */
	assert_non_null(strstr(heard.text, "a\\\"b\\\\c\\u000a\\u001b[31m\\ufffd"));
	assert_non_null(strstr(heard.text, "\"state\":\"open\",\"wire\":\"\",\"path\":\"shared\""));
	assert_non_null(
		strstr(heard.text, "\"state\":\"ending\",\"wire\":\"\",\"path\":\"shared\""));
	assert_non_null(strstr(heard.text, "\"pages\":2,"));
	(void)close(fd);
}

static void ask_many_clients(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "clients"), '.');
	assert_int_equal(admin_rows("clients"), 4096);
	assert_true(heard.packets > 1);
	(void)close(fd);
}

static void ask_spaces(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "spaces"), '.');
	assert_int_equal(admin_rows("spaces"), 300);
	assert_non_null(strstr(heard.text, "\"dtype\":\"bf16\",\"codec\":\"fp8\""));
	assert_non_null(strstr(heard.text, "\"blocks\":5990"));
	(void)close(fd);
}

static void ask_empty(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "clients"), '.');
	assert_int_equal(admin_rows("clients"), 0);
	assert_int_equal(ASK(fd, "spaces"), '.');
	assert_int_equal(admin_rows("spaces"), 0);
	(void)close(fd);
}

static void ask_evict_all(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "evict\0--all"), '.');
	assert_true(fake.slices > 10);
	assert_string_equal(
		heard.text,
		"{\"evicted_blocks\":10000,\"demoted_blocks\":5000,\"freed_bytes\":10000000,"
		"\"complete\":true}\n");
	(void)close(fd);
}

static void ask_evict_bytes(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "evict\0--bytes\0"
				 "5500"),
			 '.');
	assert_string_equal(heard.text,
			    "{\"evicted_blocks\":6,\"demoted_blocks\":3,\"freed_bytes\":6000,"
			    "\"complete\":true}\n");
	assert_int_equal(ASK(fd, "evict\0--bytes\0"
				 "900000"),
			 '.');
	assert_string_equal(heard.text,
			    "{\"evicted_blocks\":4,\"demoted_blocks\":2,\"freed_bytes\":4000,"
			    "\"complete\":false}\n");
	(void)close(fd);
}

static void ask_badly(void)
{
	const int fd = admin_dial();
	char large[CTL_MAX_REQUEST + 1];

	memset(large, 'x', sizeof(large));
	assert_int_equal(ASK(fd, "reboot\033"), '!');
	assert_non_null(
		strstr(heard.text, "reboot\\x1b: no such command; this daemon knows clients, "));
	assert_int_equal(ASK(fd, "clients\0now"), '!');
	assert_int_equal(ASK(fd, "evict"), '!');
	assert_int_equal(ASK(fd, "evict\0--bytes\0-5"), '!');
	assert_int_equal(ASK(fd, "evict\0--bytes\0"
				 "99999999999999999999"),
			 '!');
	assert_int_equal(ASK(fd, "evict\0--bytes\0"
				 "5x"),
			 '!');
	assert_int_equal(ASK(fd, "a\0a\0a\0a\0a\0a\0a\0a\0a"), '!');
	assert_int_equal(admin_ask(fd, large, sizeof(large)), '!');
	assert_non_null(strstr(heard.text, "at most 512 bytes"));
	assert_int_equal(admin_ask(fd, large, sizeof(large) - 1), '!');
	assert_non_null(strstr(heard.text, "no such command"));
	assert_int_equal(ASK(fd, "clients"), '.'); /* and the connection still serves */
	(void)close(fd);
	assert_int_equal(fake.slices, 0);
}

/* Eight that ask for much and do not read; a ninth waits its turn; then the eight are gone. */
static void ask_and_not_read(void)
{
	int fds[CTL_MAX_CONNECTIONS], ninth;
	char rest[16];

	for (int i = 0; i < CTL_MAX_CONNECTIONS; i++) {
		fds[i] = admin_dial();
		assert_int_equal(send(fds[i], "clients", 7, 0), 7);
	}
	ninth = admin_dial();
	assert_int_equal(send(ninth, "spaces", 6, 0), 6);
	/* served only when the deadline cut somebody off */
	assert_int_equal(admin_hear(ninth), '.');
	assert_int_equal(admin_rows("spaces"), 2);
	for (int i = 0; i < CTL_MAX_CONNECTIONS; i++) {
		while (recv(fds[i], rest, sizeof(rest), 0) > 0)
			;
		(void)close(fds[i]);
	}
	(void)close(ninth);
}

/* One that does not read has no say over the others. */
static void ask_beside_one_that_does_not_read(void)
{
	const int deaf = admin_dial(), fd = admin_dial();

	assert_int_equal(send(deaf, "clients", 7, 0), 7);
	for (int i = 0; i < 100; i++)
		assert_int_equal(ASK(fd, "spaces"), '.');
	assert_int_equal(poll(&(struct pollfd){ .fd = deaf, .events = POLLIN }, 1, 0), 1);
	(void)close(deaf);
	(void)close(fd);
}

static void ask_and_hang_up(void)
{
	for (int i = 0; i < 500; i++) {
		const int fd = admin_dial();

		assert_int_equal(send(fd, "clients", 7, 0), 7);
		(void)close(fd);
	}
	ask_clients();
}

static void ask_as_nobody(void)
{
	const pid_t child = fork();
	int status;

	if (child == 0) {
		int fd;

		if (setgid(65534) < 0 || setuid(65534) < 0)
			_exit(1);
		fd = admin_dial();
		_exit(admin_hear(fd) == '!' && strstr(heard.text, "only root") != NULL &&
				      admin_hear(fd) == 0 ?
			      0 :
			      2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void other_users_are_refused(void **unused)
{
	(void)unused;
	if (geteuid() != 0)
		skip();
	assert_int_equal(chmod(admin_config.admin_path, 0666), 0);
	admin_with_loop(ask_as_nobody);
}

static void the_socket_has_the_mode_asked_for(void **unused)
{
	struct stat st;

	(void)unused;
	assert_int_equal(stat(admin_config.admin_path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
}

static void an_answered_socket_is_not_taken(void **unused)
{
	struct ctl *second = NULL;
	char text[256];

	(void)unused;
	assert_int_equal(ctl_open(&admin_daemon, &second, text, sizeof(text)), -EADDRINUSE);
	assert_non_null(strstr(text, "another kvtierd answers there"));
	assert_null(second);
	assert_int_equal(access(admin_config.admin_path, F_OK), 0);
}

static void a_dead_daemons_socket_is_replaced(void **unused)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const int dead = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	char text[256];

	(void)unused;
	admin_close();
	memcpy(address.sun_path, admin_config.admin_path, strlen(admin_config.admin_path));
	assert_int_equal(bind(dead, (const struct sockaddr *)&address, sizeof(address)), 0);
	(void)close(dead);
	assert_int_equal(access(admin_config.admin_path, F_OK), 0);
	assert_int_equal(ctl_open(&admin_daemon, &admin_daemon.ctl, text, sizeof(text)), 0);
	admin_with_loop(ask_clients);
}

static void a_file_is_not_replaced(void **unused)
{
	char text[256];
	FILE *file;

	(void)unused;
	admin_close();
	file = fopen(admin_config.admin_path, "w");
	(void)fclose(file);
	assert_int_equal(ctl_open(&admin_daemon, &admin_daemon.ctl, text, sizeof(text)), -EEXIST);
	assert_non_null(strstr(text, "is no socket"));
	assert_int_equal(unlink(admin_config.admin_path), 0);
	assert_int_equal(ctl_open(&admin_daemon, &admin_daemon.ctl, text, sizeof(text)), 0);
}

/* Commands that need no more than an asker and a daemon that has so many of each. */
static const struct scene scenes[] = {
	{ "clients_are_json", ask_clients, 3, 2, 0 },
	{ "long_lists_come_in_packets", ask_many_clients, 4096, 2, 0 },
	{ "spaces_are_json", ask_spaces, 3, 300, 0 },
	{ "empty_lists_are_lists", ask_empty, 0, 0, 0 },
	{ "evicting_all_goes_in_slices", ask_evict_all, 3, 2, 10000 },
	{ "evicting_some_stops_there", ask_evict_bytes, 3, 2, 10 },
	{ "bad_requests_get_a_sentence", ask_badly, 3, 2, 0 },
	{ "who_does_not_read_is_cut_off", ask_and_not_read, 20000, 2, 0 },
	{ "others_are_served_meanwhile", ask_beside_one_that_does_not_read, 20000, 2, 0 },
	{ "who_hangs_up_leaves_nothing", ask_and_hang_up, 3, 2, 0 },
};

static void play(void **state)
{
	const struct scene *scene = *state;

	fake.clients = scene->clients;
	fake.spaces = scene->spaces;
	fake.blocks = scene->blocks;
	admin_with_loop(scene->asker);
}

int main(void)
{
	const struct CMUnitTest others[] = {
		cmocka_unit_test_setup_teardown(other_users_are_refused, admin_set_up,
						admin_tear_down),
		cmocka_unit_test_setup_teardown(the_socket_has_the_mode_asked_for, admin_set_up,
						admin_tear_down),
		cmocka_unit_test_setup_teardown(an_answered_socket_is_not_taken, admin_set_up,
						admin_tear_down),
		cmocka_unit_test_setup_teardown(a_dead_daemons_socket_is_replaced, admin_set_up,
						admin_tear_down),
		cmocka_unit_test_setup_teardown(a_file_is_not_replaced, admin_set_up,
						admin_tear_down),
	};
	enum {
		SCENES = sizeof(scenes) / sizeof(scenes[0]),
		OTHERS = sizeof(others) / sizeof(others[0])
	};
	struct CMUnitTest tests[SCENES + OTHERS];

	for (size_t i = 0; i < SCENES; i++) {
		tests[i] = (struct CMUnitTest){ scenes[i].name, play, admin_set_up, admin_tear_down,
						(void *)(uintptr_t)&scenes[i] };
	}
	memcpy(tests + SCENES, others, sizeof(others));
	return cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1;
}
