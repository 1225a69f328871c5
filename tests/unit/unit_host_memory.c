/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: the host tier's memory: every shortfall is a sentence that names limit, knob and next step;
 * opened memory is faulted in, kept out of core dumps, and unmapped. Method: host_limits_check() on
 * invented machines; host_memory_open() on this one.
 */

#include "tests/lib/test.h"
#include "tiers/host/host_memory.h"
#include "tiers/slabs.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

static const struct host_limits plenty = { UINT64_MAX, UINT64_MAX, UINT64_MAX - 1 };
static const struct tier_conf small = { .bytes = 1 * MIB, .slab_bytes = 64 * KIB };
static char text[TIER_TEXT_BYTES]; /* of the last refusal */

/* The check fails with err and its text has every word of the NULL-terminated list. */
static void expect_refusal(const struct tier_conf *conf, const struct host_limits *limits, int err,
			   ...)
{
	const char *word;
	va_list words;

	text[0] = '\0';
	assert_int_equal(host_limits_check(conf, limits, text, sizeof(text)), err);
	va_start(words, err);
	while ((word = va_arg(words, const char *)) != NULL)
		if (!strstr(text, word))
			fail_msg("\"%s\" does not name %s", text, word);
	va_end(words);
}

TEST(a_slab_must_fit)
{
	const struct tier_conf conf = { .bytes = 32 * MIB, .slab_bytes = 64 * MIB };

	expect_refusal(&conf, &plenty, -EINVAL, "[host] bytes = 32M", "slab_bytes = 64M",
		       "lower slab_bytes", NULL);
}

TEST(slabs_are_counted_in_16_bits)
{
	const struct tier_conf conf = { .bytes = 65536 * 64 * KIB, .slab_bytes = 64 * KIB };

	expect_refusal(&conf, &plenty, -EINVAL, "65536 slabs", "65535", "raise slab_bytes", NULL);
}

TEST(auto_is_a_quarter_of_what_is_left)
{
	const struct tier_conf conf = { .slab_bytes = 64 * MIB },
			       huge = { .slab_bytes = 64 * MIB, .huge_pages = 2 };
	const struct host_limits machine = { 10 * GIB + 1, UINT64_MAX, 1024 },
				 group = { 10 * GIB, 2 * GIB, UINT64_MAX },
				 small_one = { 200 * MIB, UINT64_MAX, 0 };
	struct tier_conf none = conf;

	assert_int_equal(host_limits_auto(&conf, &machine), 2560 * MIB);
	assert_int_equal(host_limits_auto(&conf, &group), 512 * MIB);
	assert_int_equal(host_limits_auto(&huge, &machine), 512 * MIB);
	assert_int_equal(host_limits_auto(&huge, &group), 0);
	assert_int_equal(host_limits_auto(&conf, &plenty), 64 * MIB);
	none.bytes = host_limits_auto(&conf, &small_one);
	assert_int_equal(none.bytes, 0);
	assert_int_equal(host_limits_check(&none, &small_one, text, sizeof(text)), -EINVAL);
}

TEST(memory_must_be_available)
{
	const struct tier_conf conf = { .bytes = 8 * GIB, .slab_bytes = 64 * MIB };
	const struct host_limits limits = { 4000 * MIB, UINT64_MAX, 0 };

	expect_refusal(&conf, &limits, -ENOMEM, "[host] bytes = 8G", "MemAvailable = 4000M", NULL);
}

TEST(the_control_group_limits)
{
	const struct tier_conf conf = { .bytes = 8 * GIB, .slab_bytes = 64 * MIB };
	const struct host_limits limits = { 64 * GIB, 2 * GIB, 0 };

	expect_refusal(&conf, &limits, -ENOMEM, "[host] bytes = 8G", "memory.max = 2048M",
		       "MemoryMax=", NULL);
}

TEST(huge_pages_must_be_set_aside)
{
	const struct tier_conf conf = { .bytes = 1 * GIB, .slab_bytes = 64 * MIB, .huge_pages = 2 };
	const struct host_limits limits = { 4 * GIB, UINT64_MAX, 100 },
				 none = { 4 * GIB, UINT64_MAX, UINT64_MAX };

	expect_refusal(&conf, &limits, -ENOMEM, "[host] huge_pages = 2m", "512 huge pages",
		       "100 are free", "vm.nr_hugepages by 412", NULL);
	expect_refusal(&conf, &none, -ENOMEM, "[host] huge_pages", "no 2 MiB huge pages", NULL);
}

TEST(huge_pages_are_not_counted_as_available)
{
	const struct tier_conf conf = { .bytes = 1 * GIB, .slab_bytes = 64 * MIB, .huge_pages = 2 };
	const struct host_limits limits = { 1 * MIB, 1 * MIB, 512 };

	assert_int_equal(host_limits_check(&conf, &limits, text, sizeof(text)), 0);
}

TEST(this_machine_says_what_it_has)
{
	struct host_limits limits;

	host_limits_read(&limits);
	assert_true(limits.available_bytes > MIB && limits.available_bytes < UINT64_MAX);
	assert_true(limits.cgroup_bytes > 0);
}

static struct host_memory *m;

static void open_of(const struct tier_conf *conf)
{
	if (host_memory_open(conf, &m, text, sizeof(text)))
		fail_msg("%s", text);
}

FIXTURE_DO(open_small, open_of(&small));
FIXTURE_DO(close_it, host_memory_close(m));
#define WITH_MEMORY(name) TEST_WITH(name, open_small, close_it)

WITH_MEMORY(every_slab_is_handed_out_once_in_order)
{
	uint32_t expected = 0;

	assert_int_equal(host_memory_next(m), expected++); /* open waited for the first */
	while (expected < 16) {
		const uint32_t slab = host_memory_next(m);

		if (slab != SLABS_NONE)
			assert_int_equal(slab, expected++);
		else
			(void)nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	}
	assert_int_equal(host_memory_next(m), SLABS_NONE);
	assert_int_equal(atomic_load(&m->lost), 0);
}

WITH_MEMORY(a_slab_handed_out_is_resident)
{
	unsigned char resident[16];

	assert_int_equal(host_memory_next(m), 0);
	assert_int_equal(mincore(m->base, 64 * KIB, resident), 0);
	for (int i = 0; i < 16; i++)
		assert_true(resident[i] & 1);
}

/* The line of /proc/self/smaps that begins with `field`, of the mapping that `at` lies in. */
static void smaps_line(const uint8_t *at, const char *field, char *ret, size_t n)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	bool inside = false;
	char line[512];

	assert_non_null(f);
	ret[0] = '\0';
	while (!ret[0] && fgets(line, sizeof(line), f)) {
		unsigned long long from, to;

		if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
			inside = (uintptr_t)at >= from && (uintptr_t)at < to;
		else if (inside && !strncmp(line, field, strlen(field)))
			(void)snprintf(ret, n, "%s", line);
	}
	(void)fclose(f);
}

WITH_MEMORY(a_core_dump_has_none_of_it)
{
	char flags[512];

	smaps_line(m->base, "VmFlags:", flags, sizeof(flags));
	assert_non_null(strstr(flags, " dd"));
}

TEST(closing_does_not_wait_for_all_slabs)
{
	struct tier_conf conf = small;

	conf.bytes = 256 * MIB; /* closed at once: threads are joined wherever they are */
	open_of(&conf);
	host_memory_close(m);
}

TEST(a_node_that_does_not_exist)
{
	struct tier_conf conf = small;

	conf.n_nodes = 1;
	conf.nodes[0] = (struct tier_node){ .node = 1000, .bytes = conf.bytes };
	assert_true(host_memory_open(&conf, &m, text, sizeof(text)) < 0);
	assert_non_null(strstr(text, "[host] bytes"));
	assert_non_null(strstr(text, "1000"));
	assert_non_null(strstr(text, "leave the nodes out"));
}

/* In a child, because privileges do not come back: 0 as it should be, 1 not, 77 cannot be tried. */
static int lock_without_privilege(void)
{
	const struct rlimit limit = { 64 * KIB, 64 * KIB };
	struct tier_conf conf = small;

	if (setrlimit(RLIMIT_MEMLOCK, &limit) || (geteuid() == 0 && setresuid(65534, 65534, 65534)))
		return 77;
	conf.lock = true;
	if (!host_memory_open(&conf, &m, text, sizeof(text)))
		return 1;
	return strstr(text, "[host] lock = yes needs 1048576") && strstr(text, "is 65536") &&
			       strstr(text, "LimitMEMLOCK=") ?
		       0 :
		       1;
}

TEST(a_lock_beyond_the_limit)
{
	const pid_t child = fork();
	int status;

	if (child == 0)
		_exit(lock_without_privilege());
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(huge_pages_without_effect_are_told)
{
	struct tier_conf conf = small;
	char line[128] = "";
	FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");

	if (!f || !fgets(line, sizeof(line), f))
		line[0] = '\0';
	if (f)
		(void)fclose(f);
	conf.huge_pages = 1;
	open_of(&conf);
	if (!line[0] || strstr(line, "[never]"))
		assert_non_null(strstr(m->note, "[host] huge_pages = thp"));
	else
		assert_string_equal(m->note, "");
	host_memory_close(m);
}
