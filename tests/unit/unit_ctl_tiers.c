/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=writeback_flush,writeback_flush_cancel,purge_begin,purge_cancel */
/* make: wrap=verify_begin,verify_report,verify_next_bad,verify_cancel */
/* make: wrap=redis_endpoint_row,nvme_row,server_row,space_at,spaces_numbers */
/* make: wrap=blocks_counts,counts_variant,counts_blocks,mover_evict_bytes */
/*
 * unit_ctl_tiers - goal: admin commands that take long tell their asker how far they are, survive
 * both sides' deadlines, cost the loop nothing meanwhile, and leave their flush, purge or verify
 * when the asker goes; endpoints are listed as JSON that is valid and harmless for any words of a
 * server. Method: as unit_ctl.c; flush, purge, verify and the tier of Redis are faked (lib_ctl.h),
 * and the first three end when the test says.
 */
#include "tests/lib/lib_ctl.h"

#include "daemon/admin/ctl.h"

ADMIN_CASE(disks_are_json, fake.disks = 2)
{
	assert_int_equal(ASK(fd, "disks"), '.');
	assert_int_equal(admin_rows("disks"), 2);
	admin_says("\"path\":\"/dev/nvme1\",\"state\":\"offline\"");
	admin_says("\"read_errors\":3");
	assert_null(strpbrk(heard.text, "\033\xff\x9b"));
	assert_int_equal(ASK(fd, "disks\0x"), '?');
}

TEST_EACH(admin_set_up, admin_tear_down);

ADMIN_CASE(no_tier_has_no_disks, fake.disks = 2; admin_daemon.tables.tiers[TIER_NVME] = NULL)
{
	assert_int_equal(ASK(fd, "disks"), '.');
	assert_int_equal(admin_rows("disks"), 0);
}

static void ask_verify(int fd)
{
	assert_int_equal(ASK(fd, "verify\0--drop"), '.');
	assert_int_equal(admin_rows("bad"), 300);
	assert_true(heard.packets > 3);
	admin_says("\"key\":\"abababab");
	admin_says("\"tier\":\"nvme\",\"disk\":2,\"segment\":77");
	admin_says("\"bad_blocks\":300,\"dropped_blocks\":300,\"dropped\":true");
}

TEST(verify_lists_what_is_bad)
{
	fake.bad = 300;
	fake.looks_needed = 3;
	admin_asks(ask_verify);
	assert_true(fake.drop);
	assert_int_equal(fake.ended, 1);
}

static void ask_verify_of_good(int fd)
{
	assert_int_equal(ASK(fd, "verify"), '.');
	assert_int_equal(admin_rows("bad"), 0);
	admin_says("\"dropped_blocks\":0,\"dropped\":false");
	assert_int_equal(ASK(fd, "verify\0--fix"), '?');
}

TEST(verify_alone_repairs_nothing)
{
	admin_asks(ask_verify_of_good);
	assert_false(fake.drop);
	assert_int_equal(fake.begun, 1);
	assert_int_equal(fake.ended, 1);
}

/* 300 looks of 20 ms are more than the 5 s in which a reply is due. */
static void ask_verify_for_long(int fd)
{
	assert_int_equal(ASK(fd, "verify"), '.');
	assert_true(heard.told >= 5);
	assert_string_equal(heard.progress, "{\"done\":1000,\"total\":2000,\"unit\":\"blocks\"}\n");
}

TEST(long_ones_outlive_the_deadline)
{
	fake.looks_needed = 300;
	admin_asks(ask_verify_for_long);
	/* looked at on a timer, and not every iteration of the loop */
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

TEST_DO(a_verify_ends_with_its_asker, fake.never = true; admin_with_loop(ask_verify_and_go));

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
TEST(a_verify_ends_when_nobody_reads)
{
	fake.bad = 100000;
	fake.never = true;
	admin_with_loop(ask_and_do_not_read);
}

static void ask_flush(int fd)
{
	assert_int_equal(ASK(fd, "flush"), '.');
	assert_true(heard.told >= 1);
	assert_memory_equal(heard.text, "{\"flushed\":true,\"ms\":", 21);
	assert_int_equal(ASK(fd, "clients"), '.'); /* the connection serves on */
	assert_int_equal(ASK(fd, "flush\0now"), '?');
}

TEST(flush_returns_when_it_is_done)
{
	admin_asks(ask_flush);
	assert_int_equal(fake.ended, 1);
	assert_int_equal(fake.canceled, 0);
}

static void ask_flush_in_vain(int fd)
{
	assert_int_equal(ASK(fd, "flush"), '!');
	admin_says(fake.status == -EDQUOT ? "write budget" : "Input/output error");
	assert_int_equal(ASK(fd, "spaces"), '.');
}

TEST(a_flush_that_fails_says_why)
{
	fake.status = -EIO;
	admin_asks(ask_flush_in_vain);
	fake.status = -EDQUOT;
	admin_asks(ask_flush_in_vain);
	assert_int_equal(fake.canceled, 0);
}

static void ask_what_cannot_start(int fd)
{
	static const char *const busy[] = { "another flush", "another purge", "another verify" };

	assert_int_equal(ASK(fd, "flush"), '!');
	admin_says(fake.start == -EBUSY ? busy[0] : "no NVMe tier");
	assert_int_equal(ASK(fd, "purge\0--tenant\0a"), '!');
	admin_says(fake.start == -EBUSY ? busy[1] : "cannot start");
	assert_int_equal(ASK(fd, "verify"), '!');
	admin_says(fake.start == -EBUSY ? busy[2] : "cannot start");
}

TEST(what_cannot_start_is_not_ended)
{
	fake.start = -EBUSY;
	admin_asks(ask_what_cannot_start);
	fake.start = -ENODEV;
	admin_asks(ask_what_cannot_start);
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

static void ask_purge(int fd)
{
	assert_int_equal(ASK(fd, "purge\0--tenant\0acme"), '.');
	assert_memory_equal(heard.text, "{\"tenant\":\"acme\",\"purged_blocks\":42,", 36);
	assert_int_equal(ASK(fd, "purge"), '?');
	assert_int_equal(ASK(fd, "purge\0--tenant"), '?');
	assert_int_equal(ASK(fd, "purge\0--tenant\0"), '?');
	assert_int_equal(ASK(fd, "purge\0--tenant\0name-of-32-bytes-is-one-too-many!!"), '?');
	admin_says("1 to 31 bytes");
}

TEST(purge_names_the_tenant)
{
	admin_asks(ask_purge);
	assert_string_equal(fake.tenant, "acme");
	assert_int_equal(fake.begun, 1);
}

ADMIN_CASE(a_purge_that_may_come_back_says_so, fake.status = -EIO)
{
	assert_int_equal(ASK(fd, "purge\0--tenant\0acme"), '!');
	admin_says("42 blocks are gone");
	admin_says("could come back");
}

/* --- Redis --- */

ADMIN_CASE(endpoints_are_json, fake.endpoints = 2)
{
	assert_int_equal(ASK(fd, "endpoints"), '.');
	assert_int_equal(admin_rows("endpoints"), 2);
	admin_says("{\"endpoint\":1,\"address\":\"10.0.0.1:6379\",\"state\":\"offline\",\"tls\":");
	admin_says("\"slots\":5461,\"connections\":0,\"in_flight\":0,");
	admin_says("\"retry_in_ms\":7300,\"text\":");
	admin_says("\"timeouts\":3");
	admin_says("\"late_replies\":18446744073709551615");
	assert_null(strpbrk(heard.text, "\033\xff\x9b"));
}

ADMIN_CASE(more_than_a_packet_holds_are_several, fake.endpoints = 300)
{
	assert_int_equal(ASK(fd, "endpoints"), '.');
	assert_int_equal(admin_rows("endpoints"), 300);
	assert_true(heard.packets > 1);
}

ADMIN_CASE(no_tier_has_no_endpoints, fake.endpoints = 2;
	   admin_daemon.tables.tiers[TIER_REDIS] = NULL)
{
	assert_int_equal(ASK(fd, "endpoints"), '.');
	assert_int_equal(admin_rows("endpoints"), 0);
}

static void ask_with_an_argument(int fd)
{
	assert_int_equal(ASK(fd, "endpoints\0x"), '?');
	assert_string_equal(heard.text, "endpoints takes no \"x\"; it takes [--json]");
}

TEST_DO(an_argument_is_refused, admin_asks(ask_with_an_argument));
