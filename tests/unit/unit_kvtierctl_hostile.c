/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_kvtierctl_hostile.c - goal: whatever a daemon answers, and whatever lies in its stats page,
 * kvtierctl ends by itself, and no byte of it talks to the terminal: root may ask a daemon of
 * another user. Method: the built program; a child plays the daemon's admin socket, with escapes,
 * nulls, other types, and bytes by chance; a page of names without an end and of numbers by chance,
 * and one that is too short.
 */
#include "tests/lib/lib_kvtierctl.h"

enum { ROUNDS = 60 };

static const char *const lists[] = { "clients",
				     "spaces",
				     "tenants",
				     "disks",
				     "devices",
				     "endpoints",
				     "trace",
				     "clients --json",
				     "trace --json",
				     "verify",
				     "flush",
				     "verify --json",
				     "flush --json",
				     "evict --all",
				     "purge --tenant x",
				     "hint retain --model x" };

static struct random rnd;

/* No byte that a terminal obeys, but the ends of lines. */
static void is_tame(void)
{
	const unsigned char *s = (const unsigned char *)tool.output;

	for (; *s; s++)
		if ((*s < ' ' && *s != '\n') || *s == 0x7f ||
		    (s[0] == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0))
			fail_msg("byte 0x%02x is in: %s", *s, tool.output);
}

static void is_survived(const char *command, const char *packet)
{
	const struct tool_packet script[] = { { 0, packet }, { 0 } };
	const int status = tool_run_with(command, script);

	if (status < 0 || (status > 4 && (status != 64 || packet[0] != '?')))
		fail_msg("%s ended with %d: %s", command, status, tool.output);
	is_tame();
}

static void all_survive(const char *packet)
{
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		is_survived(lists[i], packet);
}

TEST(escapes_do_not_reach_the_terminal)
{
	all_survive("!no \033[2J\007\x9b\xc2\x9b\r\b");
	assert_non_null(strstr(tool.output, "no \\x1b[2J"));
	all_survive(".{\"clients\":[{\"name\":\"\033]0;x\007\xc2\x9b\x7f\"}],\"disks\":[{\"path\":"
		    "\"\\u001b[2J\\u009b\"}]}\r\n");
}

TEST(nulls_and_other_types_are_not_followed)
{
	static const char *const values[] = { "null",
					      "[]",
					      "{}",
					      "\"\"",
					      "-1",
					      "1e308",
					      "[[[[[[[[]]]]]]]]",
					      "true",
					      "18446744073709551616" };
	char packet[1024];

	all_survive(".");
	all_survive(".null");
	all_survive(".[]");
	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		const char *v = values[i];

		(void)snprintf(
			packet, sizeof(packet),
			".{\"clients\":[{\"id\":%s,\"name\":%s,\"state\":%s,\"age_s\":%s},%s]}", v,
			v, v, v, v);
		is_survived("clients", packet);
		(void)snprintf(packet, sizeof(packet),
			       ".{\"endpoints\":[{\"address\":%s,\"text\":%s,\"retry_in_ms\":%s}]}",
			       v, v, v);
		is_survived("endpoints", packet);
		(void)snprintf(packet, sizeof(packet), ".{\"spaces\":[{\"relative_error\":%s}]}",
			       v);
		is_survived("spaces", packet);
		(void)snprintf(packet, sizeof(packet), ".{\"spaces\":%s}", v);
		is_survived("spaces", packet);
		(void)snprintf(packet, sizeof(packet),
			       ".{\"bad_blocks\":%s,\"checked_blocks\":%s,\"bad\":[{\"key\":%s}]}",
			       v, v, v);
		is_survived("verify", packet);
	}
}

TEST(progress_of_no_sense_is_no_end)
{
	static const char *const said[] = { "~{\"done\":1,\"total\":2,\"unit\":null}",
					    "~{\"done\":9e18,\"total\":1,\"unit\":\"\033[2J\"}",
					    "~", "~null" };

	for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
		const struct tool_packet script[] = { { 0, said[i] },
						      { 0, ".{\"clients\":[]}" },
						      { 0 } };

		assert_int_equal(tool_run_with("clients", script), 0);
		is_tame();
	}
}

TEST(bytes_by_chance_are_survived)
{
	char packet[200];

	for (int i = 0; i < ROUNDS; i++) {
		const size_t n = 1 + random_below(&rnd, sizeof(packet) - 2);

		for (size_t j = 0; j < n; j++)
			packet[j] = (char)(1 + random_below(&rnd, 255));
		packet[0] = "!.+?"[random_below(&rnd, 4)];
		packet[n] = '\0';
		is_survived(lists[random_below(&rnd, sizeof(lists) / sizeof(lists[0]))], packet);
	}
}

/* --- the stats page --- */

static const char *const pages[] = { "status",        "status --json", "stats",
				     "stats --json",  "stats --all",   "version",
				     "version --json" };

static void all_pages_are_survived(void)
{
	for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
		const int status = tool_run(pages[i]);

		if (status < 0 || status > 4)
			fail_msg("%s ended with %d: %s", pages[i], status, tool.output);
		is_tame();
	}
}

TEST(names_without_an_end_are_cut)
{
	struct stats *page = tool.page;

	memset(page->version, '\033', sizeof(page->version));
	memset(page->device, '\033', sizeof(page->device));
	memset(page->kernels, '\033', sizeof(page->kernels));
	memset(page->nvme_engine, '\033', sizeof(page->nvme_engine));
	memset(page->nvme_text, '\033', sizeof(page->nvme_text));
	memset(page->clients_text, '\033', sizeof(page->clients_text));
	memset(page->refused_text, '\033', sizeof(page->refused_text));
	memset(page->redis_text, '\033', sizeof(page->redis_text));
	memset(page->gpu_text, '\033', sizeof(page->gpu_text));
	all_pages_are_survived();
}

/* All but what makes it a page, and its process. */
TEST(a_page_of_chance_is_survived)
{
	for (int i = 0; i < ROUNDS / 6; i++) {
		uint8_t *from = (uint8_t *)tool.page->version, *end = (uint8_t *)(tool.page + 1);

		for (; from < end; from++)
			*from = (uint8_t)(random_next(&rnd) >> random_below(&rnd, 56));
		tool.page->health = random_next(&rnd);
		all_pages_are_survived();
	}
}

TEST(a_page_that_is_too_short_is_an_error)
{
	assert_int_equal(truncate(tool.path, 4096), 0);
	for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
		const int status = tool_run(pages[i]);

		assert_in_range(status, 0, 4);
		is_tame();
	}
}

TEST_EACH(tool_set_up, tool_tear_down);
TEST_FIRST(tool_needed(); rnd = random_seeded("unit_kvtierctl_hostile"));
