/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor.c - `kvtierctl doctor`: looks at what kvtierd needs of a machine, and says of each thing
 * that it is fine, or what mends it. It needs no daemon. Limits are those of the daemon that runs,
 * else of this process, which also tries the system calls.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <glob.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "daemon/config/config.h"
#include "daemon/config/config_place.h"
#include "daemon/ctl/kvtierctl.h"
#include "daemon/stats/stats.h"

enum {
	FILES_LEAST = 4096, /* descriptors: some for each of 256 clients */
	RING_BYTES = 512,   /* more than struct io_uring_params has */
};

struct doctor {
	const struct context *context;
	const struct config *config;
	int pid; /* of the daemon; 0: none runs, or its page cannot be read */
	int ring_error, fault_error;
	char text[768], mend[512]; /* of the check that runs; mend "": it is fine */
};

static void say(struct doctor *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void mend(struct doctor *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(struct doctor *d, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(d->text, sizeof(d->text), format, args);
	va_end(args);
}

static void mend(struct doctor *d, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(d->mend, sizeof(d->mend), format, args);
	va_end(args);
}

/* The first line of a file, "" if there is none. */
static const char *line_of(const char *path, char *ret, int n)
{
	FILE *in = fopen(path, "re");

	if (!in || !fgets(ret, n, in))
		ret[0] = '\0';
	ret[strcspn(ret, "\n")] = '\0';
	if (in)
		(void)fclose(in);
	return ret;
}

/* What stands behind a word at the beginning of a line of /proc/PID/FILE; "": it cannot be read. */
static const char *proc_word(const struct doctor *d, const char *file, const char *word, char *ret,
			     size_t n)
{
	char path[64], line[256];
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/%s", d->pid > 0 ? d->pid : getpid(), file);
	ret[0] = '\0';
	in = fopen(path, "re");
	while (in && fgets(line, sizeof(line), in))
		if (strncmp(line, word, strlen(word)) == 0)
			snprintf(ret, n, "%s",
				 line + strlen(word) + strspn(line + strlen(word), ": \t"));
	if (in)
		(void)fclose(in);
	ret[strcspn(ret, "\n")] = '\0';
	return ret;
}

/* A hard limit; UINT64_MAX: there is none, or it is not known. */
static uint64_t hard_limit(const struct doctor *d, const char *name)
{
	char text[256], soft[32], hard[32];

	proc_word(d, "limits", name, text, sizeof(text));
	if (sscanf(text, "%31s %31s", soft, hard) != 2 || strcmp(hard, "unlimited") == 0)
		return UINT64_MAX;
	return strtoull(hard, NULL, 10);
}

static const char *whose(const struct doctor *d)
{
	return d->pid > 0 ? "kvtierd may" : "a process of this shell may";
}

/* --- memory --- */

static void look_memlock(struct doctor *d)
{
	const uint64_t limit = hard_limit(d, "Max locked memory"),
		       bytes = d->config->host_bytes.bytes;
	const bool wanted = d->config->host_lock && bytes != CONFIG_AUTO;
	char shown[32];

	say(d, "%s lock %s of memory", whose(d),
	    limit == UINT64_MAX ? "all" : text_bytes(limit, shown, sizeof(shown)));
	if (wanted ? limit < bytes : limit < 8u << 20)
		mend(d, "LimitMEMLOCK=infinity in the unit; ulimit -l in a shell");
}

static void look_huge_pages(struct doctor *d)
{
	char thp[128], free_pages[32];

	line_of("/sys/kernel/mm/transparent_hugepage/enabled", thp, sizeof(thp));
	line_of("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", free_pages,
		sizeof(free_pages));
	say(d, "transparent huge pages: %s; reserved pages of 2 MiB that are free: %s",
	    thp[0] ? thp : "the kernel has none", free_pages[0] ? free_pages : "0");
	if (d->config->host_huge_pages == CONFIG_HUGE_THP && (!thp[0] || strstr(thp, "[never]")))
		mend(d, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; or [host] "
			"huge_pages = no");
	if (d->config->host_huge_pages == CONFIG_HUGE_2M && d->pid == 0 &&
	    d->config->host_bytes.bytes != CONFIG_AUTO &&
	    strtoull(free_pages, NULL, 10) < d->config->host_bytes.bytes >> 21)
		mend(d, "sysctl vm.nr_hugepages=%" PRIu64, (d->config->host_bytes.bytes >> 21) + 1);
}

static void look_numa(struct doctor *d)
{
	char online[128], allowed[256];

	line_of("/sys/devices/system/node/has_memory", online, sizeof(online));
	proc_word(d, "status", "Mems_allowed_list", allowed, sizeof(allowed));
	say(d, "nodes with memory: %s; %s use %s", online[0] ? online : "0", whose(d),
	    allowed[0] ? allowed : "all");
	if (online[0] && allowed[0] && strcmp(online, allowed) != 0)
		mend(d, "let the cgroup use all nodes (cpuset.mems, AllowedMemoryNodes=), or name "
			"its nodes in [host] bytes");
}

/* --- disks --- */

static const char *file_system(long type)
{
	static const struct {
		long type;
		const char *name;
	} names[] = { { EXT4_SUPER_MAGIC, "ext4" },         { 0x58465342, "xfs" },
		      { BTRFS_SUPER_MAGIC, "btrfs" },       { TMPFS_MAGIC, "tmpfs" },
		      { OVERLAYFS_SUPER_MAGIC, "overlay" }, { NFS_SUPER_MAGIC, "nfs" },
		      { F2FS_SUPER_MAGIC, "f2fs" },         { 0x2fc12fc1, "zfs" },
		      { FUSE_SUPER_MAGIC, "fuse" } };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].type == type)
			return names[i].name;
	return "unknown";
}

/* Cuts the last name off until the rest exists. */
static void to_existing(char *path)
{
	while (access(path, F_OK) != 0 && strrchr(path, '/') && strlen(path) > 1) {
		char *slash = strrchr(path, '/');

		slash[slash == path] = '\0';
	}
}

/* One store: the path, or the directory that it will be made in. */
static void look_store(struct doctor *d, const char *path)
{
	const uint64_t bytes = d->config->nvme_bytes;
	const bool there = access(path, F_OK) == 0;
	char at[CONFIG_PATH_BYTES], have[32], want[32];
	struct statfs fs = { 0 };
	int fd, error;

	snprintf(at, sizeof(at), "%s", path);
	to_existing(at);
	fd = there ? open(at, O_RDWR | O_DIRECT | O_CLOEXEC) :
		     open(at, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
	error = fd < 0 ? errno : 0;
	if (fd >= 0)
		(void)close(fd);
	(void)statfs(at, &fs);
	say(d, "%s: %s, %s free%s", path, file_system((long)fs.f_type),
	    text_bytes((uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize, have, sizeof(have)),
	    there ? ", the store is there" : "");
	if (error == EACCES || error == EPERM || error == EROFS)
		mend(d,
		     "this user may not write at %s (%s): chown it to kvtierd's user, or run "
		     "doctor as that user",
		     at, strerror(error));
	else if (error == EINVAL || fs.f_type == TMPFS_MAGIC)
		mend(d, "no O_DIRECT there: set [nvme] path to a file system on a disk, or bytes "
			"= 0");
	else if (error != 0 && error != EOPNOTSUPP)
		mend(d, "%s: %s", at, strerror(error));
	else if (!there && (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize < bytes)
		mend(d, "[nvme] bytes is %s: lower it, or make room",
		     text_bytes(bytes, want, sizeof(want)));
}

static void look_nvme(struct doctor *d)
{
	char paths[CONFIG_PATHS_BYTES];

	if (d->config->nvme_bytes == 0) {
		say(d, "[nvme] bytes = 0: no NVMe tier");
		return;
	}
	snprintf(paths, sizeof(paths), "%s", d->config->nvme_path);
	say(d, "[nvme] path: none");
	/* the first that needs something, else the last */
	for (char *path = strtok(paths, ":\n"); path && !d->mend[0]; path = strtok(NULL, ":\n"))
		look_store(d, path);
}

/* --- system calls --- */

static void look_io_uring(struct doctor *d)
{
	char line[32];

	say(d, "%s", d->ring_error == 0 ? "works" : strerror(d->ring_error));
	if (d->ring_error == 0 || d->config->nvme_io == CONFIG_NVME_IO_THREADS)
		return;
	line_of("/proc/sys/kernel/io_uring_disabled", line, sizeof(line));
	if (line[0] && line[0] != '0')
		mend(d, "sysctl kernel.io_uring_disabled=0; or [nvme] io = threads, which is "
			"slower");
	else
		mend(d, "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp "
			"profile; or [nvme] io = threads, which is slower");
}

static void look_userfaultfd(struct doctor *d)
{
	say(d, "%s", d->fault_error == 0 ? "works" : strerror(d->fault_error));
	if (d->fault_error != 0)
		mend(d, "allow userfaultfd in the seccomp profile, or in SystemCallFilter= of "
			"the unit");
}

static void look_seccomp(struct doctor *d)
{
	char mode[32];
	const bool filter = proc_word(d, "status", "Seccomp:", mode, sizeof(mode))[0] == '2';

	say(d, "%s", filter ? "a filter is in place" : "no filter");
	if (filter && d->pid == 0 && (d->ring_error == EPERM || d->fault_error == EPERM))
		mend(d, "it refuses %s: see above",
		     d->ring_error == EPERM ? "io_uring" : "userfaultfd");
}

static void look_files(struct doctor *d)
{
	const uint64_t limit = hard_limit(d, "Max open files");

	say(d, "%s have %" PRIu64 " descriptors", whose(d), limit);
	if (limit < FILES_LEAST)
		mend(d, "LimitNOFILE=65536 in the unit; ulimit -Hn in a shell");
}

static void look_clock(struct doctor *d)
{
	char name[64];

	line_of("/sys/devices/system/clocksource/clocksource0/current_clocksource", name,
		sizeof(name));
	say(d, "%s", name[0] ? name : "unknown");
	if (strcmp(name, "hpet") == 0 || strcmp(name, "acpi_pm") == 0 ||
	    strcmp(name, "jiffies") == 0)
		mend(d, "each look at this clock costs microseconds: boot with clocksource=tsc, "
			"if the "
			"kernel's log does not call the TSC unstable");
}

/* --- GPUs --- */

static void look_driver(struct doctor *d)
{
	glob_t nodes = { 0 };
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	const bool uvm = access("/dev/nvidia-uvm", F_OK) == 0;
	size_t refused = 0;

	(void)glob("/dev/nvidia[0-9]*", 0, NULL, &nodes);
	(void)glob("/dev/nvidiactl", GLOB_APPEND, NULL, &nodes);
	for (size_t i = 0; i < nodes.gl_pathc; i++)
		refused += access(nodes.gl_pathv[i], R_OK | W_OK) != 0;
	say(d, "libcuda.so.1: %s; %zu device nodes", library ? "there" : "none", nodes.gl_pathc);
	if (nodes.gl_pathc == 0 && !library)
		say(d, "no GPU here: pages in host memory are served");
	else if (nodes.gl_pathc == 0)
		mend(d, "give the container or the unit its /dev/nvidia*, or set [gpu] devices = "
			"off");
	else if (!library)
		mend(d, "install the driver's libcuda (in a container: "
			"NVIDIA_DRIVER_CAPABILITIES=compute,utility)");
	else if (refused > 0)
		mend(d,
		     "this user may not open %zu of them: see the group and mode of /dev/nvidia*",
		     refused);
	else if (!uvm)
		mend(d, "there is no /dev/nvidia-uvm: nvidia-modprobe -u -c 0");
	globfree(&nodes);
	if (library)
		(void)dlclose(library);
}

/* --- permissions --- */

static void look_socket(struct doctor *d)
{
	const char *path = d->context->socket_path;
	struct stat st;
	int fd;

	if (stat(path, &st)) {
		say(d, "%s: %s", path,
		    errno == ENOENT ? "no daemon has made it yet" : strerror(errno));
		if (errno == EACCES)
			mend(d,
			     "this user may not look into its directory: chmod o+x, or run doctor "
			     "as "
			     "the engine's user");
		return;
	}
	say(d, "%s: mode %04o, user %u, group %u", path, st.st_mode & 07777, st.st_uid, st.st_gid);
	fd = connect_within(path, 1000);
	if (fd >= 0)
		(void)close(fd);
	else if (fd == -EACCES)
		mend(d, "this user may not connect: usermod -aG GROUP USER with the socket's "
			"group, or "
			"[socket] mode and group");
	else
		mend(d, "%s: see kvtierctl status", strerror(-fd));
}

static void look_page(struct doctor *d)
{
	const struct stats *page;
	const int r = stats_map(d->context->stats_path, &page);

	say(d, "%s: %s", d->context->stats_path,
	    r == 0       ? "can be read" :
	    r == -ENOENT ? "no daemon has made it yet" :
			   strerror(-r));
	if (r == 0)
		stats_unmap(page);
	if (r == -EACCES)
		mend(d,
		     "only root and the daemon's user may read it, unless [stats] mode says more");
	else if (r == -EPROTO)
		mend(d, "use the kvtierctl that came with the kvtierd that runs");
}

/* --- all of them --- */

static const struct {
	const char *name;
	void (*look)(struct doctor *d);
} checks[] = {
	{ "memlock", look_memlock },   { "huge_pages", look_huge_pages },
	{ "numa", look_numa },         { "nvme", look_nvme },
	{ "io_uring", look_io_uring }, { "userfaultfd", look_userfaultfd },
	{ "seccomp", look_seccomp },   { "files", look_files },
	{ "clock", look_clock },       { "driver", look_driver },
	{ "socket", look_socket },     { "stats_page", look_page },
};

/* What the calls are refused with here; 0: they work. */
static void try_calls(struct doctor *d)
{
	_Alignas(8) char params[RING_BYTES] = { 0 };
	const int ring = (int)syscall(SYS_io_uring_setup, 8, params);
	int fault;

	d->ring_error = ring < 0 ? errno : 0;
	fault = (int)syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* UFFD_USER_MODE_ONLY */);
	d->fault_error = fault < 0 ? errno : 0;
	if (ring >= 0)
		(void)close(ring);
	if (fault >= 0)
		(void)close(fault);
}

static void find_daemon(struct doctor *d)
{
	const struct stats *page;
	uint64_t health;

	if (stats_map(d->context->stats_path, &page))
		return;
	health = stats_health(page, clock_ns());
	if ((health >> STATS_HEALTH_DEAD & 1) == 0)
		d->pid = page->pid;
	stats_unmap(page);
}

static void print_check(struct doctor *d, const char *name, bool json, bool first)
{
	static char text[4096];
	char line[64], shown[4 * sizeof(d->text)];
	struct json out;

	if (json) {
		json_start(&out, text, sizeof(text));
		json_print(&out, "%s{", first ? "" : ",\n");
		json_text(&out, "name", name);
		json_bool(&out, "ok", d->mend[0] == '\0');
		json_text(&out, "text", d->text);
		json_text(&out, "mend", d->mend);
		printf("%s}", text);
		return;
	}
	snprintf(line, sizeof(line), "%-4s  %-12s ", d->mend[0] ? "MEND" : "ok", name);
	fputs(line, stdout);
	text_wrap(stdout, log_escape(d->text, shown, sizeof(shown)), (int)strlen(line), 19,
		  TEXT_WIDTH);
	if (d->mend[0]) {
		printf("%19s-> ", "");
		text_wrap(stdout, log_escape(d->mend, shown, sizeof(shown)), 22, 22, TEXT_WIDTH);
	}
}

int command_doctor(struct context *context, int argc, char **argv)
{
	static struct config config;
	static struct config_notes notes;
	struct doctor d = { .context = context, .config = &config };
	const char *file = NULL;
	size_t n = 0;

	while (context_option(context, argc, argv) != NULL)
		file = optarg;
	no_more_arguments(context, argc, argv);
	if (config_load(file, &config, &notes) || config_derive(&config, &notes))
		return tell_error(context, EXIT_FAILED, "%s", notes.text);
	find_daemon(&d);
	try_calls(&d);
	if (context->json)
		printf("{\"checks\":[");
	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		d.text[0] = d.mend[0] = '\0';
		checks[i].look(&d);
		n += d.mend[0] != '\0';
		print_check(&d, checks[i].name, context->json, i == 0);
	}
	if (context->json)
		printf("],\"mend\":%zu}\n", n);
	else
		printf("%zu of %zu need something\n", n, sizeof(checks) / sizeof(checks[0]));
	return n > 0 ? EXIT_FAILED : EXIT_FINE;
}
