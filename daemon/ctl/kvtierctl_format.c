/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_format.c - makes a store for the NVMe tier, without a daemon (tiers/nvme/nvme.h).
 * Before it destroys data it asks on the terminal. Without a terminal it leaves data alone, unless
 * --yes is given.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "daemon/config/config_value.h"
#include "tiers/nvme/nvme.h"
#include "tiers/nvme/log/nvme_format.h"
#include "tiers/nvme/nvme_file.h"
#include "kvtierctl.h"

enum { DEFAULT_SEGMENT_BYTES = 64 << 20 };

struct format {
	const char *path;
	uint64_t bytes, segment_bytes; /* 0: not given */
	bool prewrite, yes;
	bool absent; /* there was nothing at path */
	struct progress progress;
};

/* --- the store that is there --- */

/* Whether all bytes before the first segment are zero. Every file system has some data there. */
static bool blank(int fd)
{
	static uint8_t head[NVME_DATA_OFFSET];
	const ssize_t n = pread(fd, head, sizeof(head), 0);

	for (ssize_t i = 0; i < n; i++) {
		if (head[i] != 0)
			return false;
	}
	return n >= 0;
}

/* Says what content would be lost, in words that follow the path. NULL: no content. */
static const char *lost_words(int fd, char *words, size_t n)
{
	struct nvme_super super;
	char bytes[32];
	const int r = nvme_newest_super(fd, &super);

	if (r == 0)
		snprintf(words, n, "is a kvtier store of %s",
			 text_bytes(NVME_DATA_OFFSET +
					    (uint64_t)super.segments * super.segment_bytes,
				    bytes, sizeof(bytes)));
	else if (r == -ENODATA && blank(fd))
		return NULL;
	else if (r == -EBADMSG)
		snprintf(words, n, "is a damaged kvtier store");
	else if (r == -EPROTONOSUPPORT)
		snprintf(words, n, "is a store of a later version of kvtier");
	else if (r == -ENODATA || r == -EMEDIUMTYPE)
		snprintf(words, n, "holds something that is no kvtier store");
	else
		snprintf(words, n, "cannot be read (%s)", strerror(-r));
	return words;
}

/* Asks for the word yes: y and return are typed too easily for a step that cannot be undone. */
static bool confirmed(void)
{
	char answer[16] = "";

	fprintf(stderr, "All of it will be gone. Type yes to go on: ");
	if (!fgets(answer, sizeof(answer), stdin))
		return false;
	answer[strcspn(answer, "\n")] = '\0';
	return strcmp(answer, "yes") == 0;
}

static bool may_destroy(const struct context *context, const struct format *format, int fd)
{
	char words[96];

	if (format->yes || !lost_words(fd, words, sizeof(words)))
		return true;
	if (isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1) {
		(void)tell_error(context, EXIT_FAILED,
				 "%s %s, and was left alone; --yes makes an empty store of it",
				 format->path, words);
		return false;
	}
	fprintf(stderr, "%s %s.\n", format->path, words);
	if (confirmed())
		return true;
	(void)tell_error(context, EXIT_FAILED, "nothing was changed");
	return false;
}

/* Looks at the path, and asks. False: no store is made, and the reason was printed. */
static bool look(struct format *format, const struct context *context)
{
	struct stat st;
	off_t size;
	bool go;
	int fd;

	memset(&st, 0, sizeof(st));
	if (stat(format->path, &st) < 0 && errno == ENOENT) {
		if (format->bytes == 0)
			usage_error(context, "%s does not exist: how large is it to be? --bytes N",
				    format->path);
		format->absent = true;
		return true;
	}
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		return true; /* is refused, and with better words */
	fd = open(format->path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		(void)tell_error(context, EXIT_FAILED, "%s: %s", format->path, strerror(errno));
		return false;
	}
	go = may_destroy(context, format, fd);
	/* of a block device, too */
	size = lseek(fd, 0, SEEK_END);
	(void)close(fd);
	if (format->bytes == 0 && size > 0)
		format->bytes = (uint64_t)size;
	return go;
}

/* --- making it --- */

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
	struct format *format = arg;

	progress_show(&format->progress, done, total, "bytes");
}

/* Root may make a store for a daemon of another user, so a new file gets the owner of its
 * directory. This changes the file itself, and never a file that a link or a second name leads
 * to. */
static void give_to_owner(const struct format *format)
{
	char directory[4096];
	struct stat file, owner;
	char *slash;
	int fd;

	if (!format->absent || geteuid() != 0)
		return;
	snprintf(directory, sizeof(directory), "./%s", format->path);
	if (format->path[0] == '/')
		snprintf(directory, sizeof(directory), "%s", format->path);
	slash = strrchr(directory, '/');
	slash[slash == directory] = '\0';
	fd = open(format->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return;
	if (stat(directory, &owner) < 0 || fstat(fd, &file) < 0 || !S_ISREG(file.st_mode) ||
	    file.st_nlink != 1 || (owner.st_uid != 0 && fchown(fd, owner.st_uid, owner.st_gid) < 0))
		fprintf(stderr,
			"kvtierctl: %s stays root's; give it to the user that kvtierd runs as\n",
			format->path);
	(void)close(fd);
}

static void print_done(const struct format *format, bool json)
{
	char bytes[32], segment[32], buffer[2048]; /* a path of 255 bytes, escaped */
	struct json text;

	if (json) {
		json_start(&text, buffer, sizeof(buffer));
		json_print(&text, "{");
		json_text(&text, "path", format->path);
		json_number(&text, "bytes", format->bytes);
		json_number(&text, "segment_bytes", format->segment_bytes);
		assert(!text.full);
		printf("%s}\n", buffer);
		return;
	}
	printf("%s is an empty store: %s in segments of %s\n", format->path,
	       text_bytes(format->bytes, bytes, sizeof(bytes)),
	       text_bytes(format->segment_bytes, segment, sizeof(segment)));
}

static int make(struct format *format, const struct context *context)
{
	char text[NVME_TEXT_BYTES] = "";
	int r;

	if (format->segment_bytes == 0)
		format->segment_bytes = config_fit_segment(format->bytes, DEFAULT_SEGMENT_BYTES);
	format->progress.what = "format";
	r = nvme_make_store(format->path, format->bytes, (uint32_t)format->segment_bytes,
			    format->prewrite, on_progress, format, text, sizeof(text));
	progress_end(&format->progress);
	if (r < 0)
		return tell_error(context, EXIT_FAILED, "%s: %s", format->path,
				  text[0] != '\0' ? text : strerror(-r));
	give_to_owner(format);
	print_done(format, context->json);
	return EXIT_FINE;
}

static void take_bytes(const struct context *context, const char *name, const char *text,
		       uint64_t low, uint64_t high, uint64_t *ret)
{
	if (!config_bytes(text, ret) || *ret < low || *ret > high)
		usage_error(context,
			    "%s %s: bytes from %" PRIu64 " to %" PRIu64 ", such as 64M or 200GiB",
			    name, text, low, high);
}

int command_format(struct context *context, int argc, char **argv)
{
	const uint64_t least =
		NVME_DATA_OFFSET + (uint64_t)NVME_MIN_SEGMENTS * NVME_MIN_SEGMENT_BYTES;
	struct format format = { 0 };
	const char *option;

	while ((option = context_option(context, argc, argv)) != NULL) {
		if (strcmp(option, "--bytes") == 0)
			take_bytes(context, "--bytes", optarg, least, 64ull << 40, &format.bytes);
		else if (strcmp(option, "--segment-bytes") == 0)
			take_bytes(context, "--segment-bytes", optarg, NVME_MIN_SEGMENT_BYTES,
				   NVME_MAX_SEGMENT_BYTES, &format.segment_bytes);
		else if (strcmp(option, "--prewrite") == 0)
			format.prewrite = true;
		else
			format.yes = true;
	}
	if (optind + 1 != argc || argv[optind][0] == '\0')
		usage_error(context, "format needs one PATH: a file to make, or a block device");
	if (strlen(argv[optind]) >= NVME_TIER_PATH_BYTES)
		usage_error(context, "PATH: at most %d bytes, as in [nvme] path",
			    NVME_TIER_PATH_BYTES - 1);
	if (format.segment_bytes % NVME_PAGE != 0)
		usage_error(context, "--segment-bytes: a multiple of 4096");
	format.path = argv[optind];
	return look(&format, context) ? make(&format, context) : EXIT_FAILED;
}
