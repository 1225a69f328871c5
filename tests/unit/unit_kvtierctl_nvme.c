/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) lane=wait */
/*
 * unit_kvtierctl_nvme - goal: `kvtierctl format` makes a store, and destroys nothing without a yes;
 * verify, flush, purge and disks show the daemon's words, for as long as that takes, with the right
 * exit status. Method: the built program on files in a directory where O_DIRECT works, at a
 * terminal (a pty) where it matters; a child plays the daemon's admin socket.
 */
#include "tests/lib/lib_kvtierctl.h"

#include <pty.h>
#include <sys/file.h>

#include "tiers/nvme/log/nvme_format.h"

static char store[600], disk[512];
static bool direct; /* O_DIRECT works there */
static struct nvme_super before, after;

/* A directory for stores: $TMPDIR or /var/tmp, if O_DIRECT works there. */
FIXTURE(disk_setup)
{
	int fd;

	if (tool_set_up(state) < 0)
		return -1;
	scratch_make(scratch_parent("/var/tmp"), disk, sizeof(disk));
	snprintf(store, sizeof(store), "%s/store", disk);
	fd = open(store, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
	direct = fd >= 0;
	if (fd >= 0)
		(void)close(fd);
	(void)unlink(store);
	return 0;
}

FIXTURE(disk_teardown)
{
	(void)unlink(store);
	return rmdir(disk) < 0 ? -1 : tool_tear_down(state);
}

TEST_EACH(disk_setup, disk_teardown);

static void direct_is_needed(void)
{
	if (direct)
		return;
	print_message("no O_DIRECT in %s\n", disk);
	skip();
}

#define ON_DISK(name) TEST_AFTER(name, direct_is_needed())

static int format(const char *options)
{
	char arguments[800];

	snprintf(arguments, sizeof(arguments), "format %s %s", store, options);
	return tool_run(arguments);
}

static void read_super(struct nvme_super *ret)
{
	uint8_t super[NVME_PAGE];
	const int fd = open(store, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(read(fd, super, sizeof(super)), sizeof(super));
	(void)close(fd);
	assert_int_equal(nvme_super_check(super, ret), 0);
}

ON_DISK(format_makes_a_store)
{
	struct nvme_super super;
	struct stat st;

	assert_int_equal(format("--bytes 4M --json < /dev/null"), 0);
	tool_says("\"bytes\":4194304,\"segment_bytes\":524288}"); /* fitted: at least 4 */
	read_super(&super);
	assert_int_equal(super.segment_bytes, 512 << 10);
	assert_int_equal(super.segments, 7);
	assert_int_equal(stat(store, &st), 0);
	assert_int_equal(st.st_size, 4 << 20);
	assert_int_equal(st.st_mode & 0777, 0600);
}

ON_DISK(a_new_store_belongs_to_its_directorys_owner)
{
	struct stat st;

	if (geteuid() != 0)
		skip();
	assert_int_equal(chown(disk, 65534, 65534), 0);
	assert_int_equal(format("--bytes 4M"), 0);
	assert_int_equal(stat(store, &st), 0);
	assert_int_equal(st.st_uid, 65534);
	/* but not one that was there before */
	assert_int_equal(chown(store, 0, 0), 0);
	assert_int_equal(format("--bytes 4M --yes"), 0);
	assert_int_equal(stat(store, &st), 0);
	assert_int_equal(st.st_uid, 0);
}

ON_DISK(nothing_is_destroyed_unasked)
{
	FILE *file;

	file = fopen(store, "w");
	assert_true(fputs("somebody's letters\n", file) >= 0);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(format("--bytes 4M < /dev/null"), 1);
	tool_says("holds something that is no kvtier store");
	tool_says("--yes");
	assert_int_equal(format("--bytes 4M --yes < /dev/null"), 0);
	read_super(&before);
	assert_int_equal(format("--bytes 4M < /dev/null"), 1);
	tool_says("is a kvtier store of 3.6 MiB");
	read_super(&after);
	assert_memory_equal(&before, &after, sizeof(before));
	/* without --bytes: as large as it is */
	assert_int_equal(format("--yes --prewrite --segment-bytes 64K < /dev/null"), 0);
	tool_says("4.0 MiB in segments of 64.0 KiB");
	read_super(&after);
	assert_memory_not_equal(before.uuid, after.uuid, sizeof(before.uuid));
}

/* At a terminal, with this typed. Returns the exit status; `output` has the terminal's text. */
static int run_typing(const char *arguments, const char *typed)
{
	char command[1024];
	size_t used = 0;
	ssize_t n;
	int terminal, status;
	pid_t child = forkpty(&terminal, NULL, NULL, NULL);

	snprintf(command, sizeof(command), "exec %s --socket %s/kvtier.sock %s", tool.program,
		 tool.dir, arguments);
	if (child == 0) {
		(void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	assert_true(child > 0);
	assert_int_equal(write(terminal, typed, strlen(typed)), (ssize_t)strlen(typed));
	while (used < sizeof(tool.output) - 1 &&
	       (n = read(terminal, tool.output + used, sizeof(tool.output) - 1 - used)) > 0)
		used += (size_t)n;
	tool.output[used] = '\0';
	(void)close(terminal);
	assert_int_equal(waitpid(child, &status, 0), child);
	return WEXITSTATUS(status);
}

ON_DISK(a_terminal_is_asked)
{
	char arguments[700];

	snprintf(arguments, sizeof(arguments), "format %s --bytes 4M", store);
	assert_int_equal(run_typing(arguments, ""), 0); /* nothing there: no question */
	assert_null(strstr(tool.output, "Type yes"));
	read_super(&before);
	assert_int_equal(run_typing(arguments, "y\n"), 1);
	tool_says("Type yes");
	tool_says("nothing was changed");
	read_super(&after);
	assert_memory_equal(&before, &after, sizeof(before));
	assert_int_equal(run_typing(arguments, "yes\n"), 0);
	read_super(&after);
	assert_memory_not_equal(&before, &after, sizeof(before));
}

ON_DISK(a_daemons_store_is_left_alone)
{
	int fd;

	assert_int_equal(format("--bytes 4M"), 0);
	read_super(&before);
	fd = open(store, O_RDWR | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	assert_int_equal(format("--bytes 4M --yes"), 1);
	tool_says("in use by another kvtierd");
	(void)close(fd);
	read_super(&after);
	assert_memory_equal(&before, &after, sizeof(before));
}

ON_DISK(format_refuses_with_words)
{
	char arguments[700];

	assert_int_equal(tool_run("format"), 64);
	assert_int_equal(tool_run("format /a /b"), 64);
	assert_int_equal(format("--bytes 5X"), 64);
	assert_int_equal(format("--bytes 100K"), 64);
	assert_int_equal(format("--bytes 4M --segment-bytes 65537"), 64);
	assert_int_equal(format(""), 64);
	tool_says("how large is it to be?");
	snprintf(arguments, sizeof(arguments), "format %s --bytes 4M --yes", disk);
	assert_int_equal(tool_run(arguments), 1);
	tool_says("directory");
	assert_int_equal(tool_run("format /nonexistent/store --bytes 4M"), 1);
	tool_says("the directory does not exist");
	assert_int_equal(format("--bytes 60T"), 1); /* more than there is room for: nothing stays */
	assert_int_equal(access(store, F_OK), -1);
}

/* --- the daemon's answers --- */

#define SUMS(bad, n, dropped)                                                                     \
	"],\"checked_blocks\":20,\"checked_bytes\":4096,\"skipped_blocks\":1,\"bad_blocks\":" bad \
	",\"dropped_blocks\":" n ",\"dropped\":" dropped ",\"ms\":3000}\n"
#define BAD                                                                               \
	"{\"key\":\"ab12\",\"space\":3,\"tenant\":\"acme\",\"tier\":\"nvme\",\"disk\":0," \
	"\"segment\":77,\"dropped\":false}"
#define BAD_GPU                                                                          \
	"{\"key\":\"cd34\",\"space\":3,\"tenant\":\"acme\",\"tier\":\"gpu\",\"disk\":1," \
	"\"segment\":5,\"dropped\":true}"

TEST_WITH(verify_is_1_when_something_is_bad, tool_set_up, tool_tear_down)
{
	assert_int_equal(tool_told("verify", ".{\"bad\":[" SUMS("0", "0", "false"), NULL), 0);
	tool_says("20 copies, 4.0 KiB, in 3s: all are good");
	tool_says("not checked: 1");
	assert_int_equal(tool_told("verify", "+{\"bad\":[\n" BAD, "." SUMS("1", "0", "false")), 1);
	tool_says("nvme");
	tool_says("77");
	tool_says("ab12");
	tool_says("false");
	tool_says("1 bad, 0 dropped; kvtierctl verify --drop drops all");
	assert_int_equal(tool_told("verify", "+{\"bad\":[\n" BAD ",\n" BAD_GPU,
				   "." SUMS("2", "1", "false")),
			 1);
	tool_says("true");
	tool_says("2 bad, 1 dropped; kvtierctl verify --drop drops all");
	assert_int_equal(tool_told("verify", "+{\"bad\":[\n" BAD_GPU, "." SUMS("1", "1", "true")),
			 1);
	tool_says("1 bad, 1 dropped; a block without another copy is a miss now");
	assert_int_equal(tool_told("verify --drop --json", "+{\"bad\":[\n" BAD,
				   "." SUMS("1", "1", "true")),
			 1);
	assert_string_equal(tool_json_at("bad_blocks"), "1");
}

TEST_WITH(verify_is_1_when_nothing_could_be_checked, tool_set_up, tool_tear_down)
{
	static const char nothing[] =
		".{\"bad\":[],\"checked_blocks\":0,\"checked_bytes\":0,\"skipped_blocks\":7,"
		"\"bad_blocks\":0,\"dropped_blocks\":0,\"dropped\":false,\"ms\":1}\n";
	static const char empty[] =
		".{\"bad\":[],\"checked_blocks\":0,\"checked_bytes\":0,\"skipped_blocks\":0,"
		"\"bad_blocks\":0,\"dropped_blocks\":0,\"dropped\":false,\"ms\":1}\n";

	assert_int_equal(tool_told("verify", nothing, NULL), 1);
	tool_says("nothing could be checked");
	tool_says("not checked: 7");
	assert_int_equal(tool_told("verify --json", nothing, NULL), 1);
	assert_int_equal(tool_told("verify", empty, NULL), 0);
}

/* Six seconds of progress are more than the five in which a reply is due; a pipe is told nothing of
 * them. */
TEST_WITH(progress_holds_the_deadline, tool_set_up, tool_tear_down)
{
	const struct tool_packet tell = { 3000000,
					  "~{\"done\":10,\"total\":40,\"unit\":\"blocks\"}\n" };
	const struct tool_packet script[] = {
		tell, tell, { 0, ".{\"flushed\":true,\"ms\":1}\n" }, { 0 }
	};

	assert_int_equal(tool_run_with("flush", script), 0);
	assert_string_equal(tool.output, "all that was in memory is on NVMe\n");
}

TEST_WITH(a_terminal_sees_progress, tool_set_up, tool_tear_down)
{
	const struct tool_packet tell = { 1100000,
					  "~{\"done\":10,\"total\":40,\"unit\":\"blocks\"}\n" };
	const struct tool_packet script[] = {
		{ 0, tell.text }, tell, tell, { 0, "!not all could be written\n" }, { 0 }
	};
	const pid_t child = tool_play(script);

	assert_int_equal(run_typing("flush", ""), 1);
	tool_says("flush: 10 of 40 blocks, 25 %");
	tool_says("\r\033[Kkvtierctl: not all could be written");
	assert_int_equal(waitpid(child, NULL, 0), child);
}

TEST_WITH(purge_and_disks_show_what_came, tool_set_up, tool_tear_down)
{
	assert_int_equal(tool_run("purge --tenant"), 64);
	tool_says("--tenant");
	assert_int_equal(tool_told("purge --tenant acme",
				   ".{\"tenant\":\"acme\",\"purged_blocks\":42,\"ms\":1}", NULL),
			 0);
	tool_says("purged 42 blocks");
	assert_int_equal(tool_told("disks",
				   ".{\"disks\":[{\"path\":\"/dev/nvme0\",\"state\":\"offline\","
				   "\"text\":\"went away\",\"capacity_bytes\":1073741824}]}",
				   NULL),
			 0);
	tool_says("/dev/nvme0");
	tool_says("went away");
	tool_says("1.0 GiB");
}

TEST_FIRST(tool_needed());
