/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=flush_begin,flush_cancel,purge_begin,purge_cancel,scrub_start,scrub_report */
/* make: wrap=scrub_next_bad,scrub_end,nvme_row,server_row,space_at,spaces_numbers */
/* make: wrap=blocks_tally,tally_count,tally_blocks,mover_evict_bytes */
/*
 * unit_ctl_nvme - goal: admin commands that take long tell their asker how far they are, survive
 * both sides' deadlines, cost the loop nothing meanwhile, and let go of their flush, purge or scrub
 * when the asker goes. Method: as unit_ctl.c; flush, purge and scrub are faked (lib_ctl.h) and end
 * when the test says.
 */
#include "tests/lib/lib_ctl.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/admin/ctl.h"

static void ask_disks(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "disks"), '.');
	assert_int_equal(admin_rows("disks"), 2);
	assert_non_null(strstr(heard.text, "\"path\":\"/dev/nvme1\",\"state\":\"offline\""));
	assert_non_null(strstr(heard.text, "\"read_errors\":3"));
	assert_null(strpbrk(heard.text, "\033\xff\x9b"));
	assert_int_equal(ASK(fd, "disks\0x"), '!');
	(void)close(fd);
}

TEST_EACH(admin_set_up, admin_tear_down);

TEST(disks_are_json)
{
	fake.disks = 2;
	admin_with_loop(ask_disks);
}

static void ask_disks_of_none(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "disks"), '.');
	assert_int_equal(admin_rows("disks"), 0);
	(void)close(fd);
}

TEST(no_tier_has_no_disks)
{
	fake.disks = 2;
	admin_daemon.store.tiers[TIER_NVME] = NULL;
	admin_with_loop(ask_disks_of_none);
}

static void ask_verify(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "verify\0--scrub"), '.');
	assert_int_equal(admin_rows("bad"), 300);
	assert_true(heard.packets > 3);
	assert_non_null(strstr(heard.text, "\"key\":\"abababab"));
	assert_non_null(strstr(heard.text, "\"tier\":\"nvme\",\"disk\":2,\"segment\":77"));
	assert_non_null(
		strstr(heard.text, "\"bad_blocks\":300,\"dropped_blocks\":300,\"dropped\":true"));
	(void)close(fd);
}

TEST(verify_lists_what_is_bad)
{
	fake.bad = 300;
	fake.looks_needed = 3;
	admin_with_loop(ask_verify);
	assert_true(fake.repair);
	assert_int_equal(fake.ended, 1);
}

static void ask_verify_of_good(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "verify"), '.');
	assert_int_equal(admin_rows("bad"), 0);
	assert_non_null(strstr(heard.text, "\"dropped_blocks\":0,\"dropped\":false"));
	assert_int_equal(ASK(fd, "verify\0--fix"), '!');
	(void)close(fd);
}

TEST(verify_alone_repairs_nothing)
{
	admin_with_loop(ask_verify_of_good);
	assert_false(fake.repair);
	assert_int_equal(fake.begun, 1);
	assert_int_equal(fake.ended, 1);
}

/* 300 looks of 20 ms are more than the 5 s in which a reply is due. */
static void ask_verify_for_long(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "verify"), '.');
	assert_true(heard.told >= 5);
	assert_string_equal(heard.progress, "{\"done\":1000,\"total\":2000,\"unit\":\"blocks\"}\n");
	(void)close(fd);
}

TEST(long_ones_outlive_the_deadline)
{
	fake.looks_needed = 300;
	admin_with_loop(ask_verify_for_long);
	/* looked at on a timer, and not every turn of the loop */
	assert_true(fake.looks <= 302);
}

static void wait_for(const uint32_t *n, uint32_t value)
{
	for (int ms = 0; __atomic_load_n(n, __ATOMIC_RELAXED) != value; ms++) {
		assert_true(ms < 60000); /* never comes */
		(void)usleep(1000);
	}
}

static void ask_verify_and_go(void)
{
	const int fd = admin_dial();

	assert_int_equal(send(fd, "verify", 6, 0), 6);
	wait_for(&fake.begun, 1);
	(void)close(fd);
	wait_for(&fake.ended, 1);
}

TEST(a_scrub_ends_with_its_asker)
{
	fake.never = true;
	admin_with_loop(ask_verify_and_go);
}

static void ask_and_do_not_read(void)
{
	const int fd = admin_dial();
	int room = 1;

	(void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
	assert_int_equal(send(fd, "verify", 6, 0), 6);
	wait_for(&fake.ended, 1);
	(void)close(fd);
}

/* Its socket takes so many packets, each of which starts the deadline anew; then it is over. Rows,
 * which are many and large, fill it at once. */
TEST(a_scrub_ends_when_nobody_reads)
{
	fake.bad = 100000;
	fake.never = true;
	admin_with_loop(ask_and_do_not_read);
}

static void ask_flush(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "flush"), '.');
	assert_true(heard.told >= 1);
	assert_memory_equal(heard.text, "{\"flushed\":true,\"ms\":", 21);
	assert_int_equal(ASK(fd, "clients"), '.'); /* the connection serves on */
	assert_int_equal(ASK(fd, "flush\0now"), '!');
	(void)close(fd);
}

TEST(flush_returns_when_it_is_done)
{
	admin_with_loop(ask_flush);
	assert_int_equal(fake.ended, 1);
	assert_int_equal(fake.canceled, 0);
}

static void ask_flush_in_vain(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "flush"), '!');
	assert_non_null(
		strstr(heard.text, fake.status == -EDQUOT ? "write budget" : "Input/output error"));
	assert_int_equal(ASK(fd, "spaces"), '.');
	(void)close(fd);
}

TEST(a_flush_that_fails_says_why)
{
	fake.status = -EIO;
	admin_with_loop(ask_flush_in_vain);
	fake.status = -EDQUOT;
	admin_with_loop(ask_flush_in_vain);
	assert_int_equal(fake.canceled, 0);
}

static void ask_what_cannot_start(void)
{
	static const char *const busy[] = { "another flush", "another purge", "another verify" };
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "flush"), '!');
	assert_non_null(strstr(heard.text, fake.start == -EBUSY ? busy[0] : "no NVMe tier"));
	assert_int_equal(ASK(fd, "purge\0--tenant\0a"), '!');
	assert_non_null(strstr(heard.text, fake.start == -EBUSY ? busy[1] : "cannot start"));
	assert_int_equal(ASK(fd, "verify"), '!');
	assert_non_null(strstr(heard.text, fake.start == -EBUSY ? busy[2] : "cannot start"));
	(void)close(fd);
}

TEST(what_cannot_start_is_not_ended)
{
	fake.start = -EBUSY;
	admin_with_loop(ask_what_cannot_start);
	fake.start = -ENODEV;
	admin_with_loop(ask_what_cannot_start);
	assert_int_equal(fake.ended + fake.canceled, 0);
}

static void ask_and_leave_alone(void)
{
	int fd = admin_dial();

	assert_int_equal(send(fd, "flush", 5, 0), 5);
	wait_for(&fake.begun, 1);
	(void)close(fd);
	wait_for(&fake.canceled, 1);
	fd = admin_dial();
	assert_int_equal(send(fd, "purge\0--tenant\0a", 16, 0), 16);
	wait_for(&fake.begun, 2);
	(void)close(fd);
	wait_for(&fake.canceled, 2);
}

TEST(who_hangs_up_is_not_called_back)
{
	fake.never = true;
	admin_with_loop(ask_and_leave_alone);
	assert_int_equal(fake.ended, 0);
}

static void ask_flush_only(void)
{
	const int fd = admin_dial();

	assert_int_equal(send(fd, "flush", 5, 0), 5);
	wait_for(&fake.begun, 1);
	/* fd stays open: the daemon ends first */
}

TEST(the_daemons_end_lets_go)
{
	fake.never = true;
	admin_with_loop(ask_flush_only);
	admin_close();
	assert_int_equal(fake.canceled, 1);
}

static void ask_purge(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "purge\0--tenant\0acme"), '.');
	assert_memory_equal(heard.text, "{\"tenant\":\"acme\",\"purged_blocks\":42,", 36);
	assert_int_equal(ASK(fd, "purge"), '!');
	assert_int_equal(ASK(fd, "purge\0--tenant"), '!');
	assert_int_equal(ASK(fd, "purge\0--tenant\0"), '!');
	assert_int_equal(ASK(fd, "purge\0--tenant\0name-of-32-bytes-is-one-too-many!!"), '!');
	assert_non_null(strstr(heard.text, "1 to 31 bytes"));
	(void)close(fd);
}

TEST(purge_names_the_tenant)
{
	admin_with_loop(ask_purge);
	assert_string_equal(fake.tenant, "acme");
	assert_int_equal(fake.begun, 1);
}

static void ask_purge_in_vain(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "purge\0--tenant\0acme"), '!');
	assert_non_null(strstr(heard.text, "42 blocks are gone"));
	assert_non_null(strstr(heard.text, "could come back"));
	(void)close(fd);
}

TEST(a_purge_that_may_come_back_says_so)
{
	fake.status = -EIO;
	admin_with_loop(ask_purge_in_vain);
}
