/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.c - `kvtierctl export`: the daemon's numbers for Prometheus, from a process of its own. So
 * no scrape delays the daemon, the answer comes when the daemon is dead, too, and the daemon needs
 * no network. It is served over HTTP, or written to a file for node_exporter's textfile collector.
 */
#include <errno.h>
#include <getopt.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "http.h"
#include "lists.h"
#include "metrics.h"

static bool print_page(FILE *out, const char *path, void *arg)
{
	const struct context *context = arg;

	if (strcmp(path, "/healthz") == 0)
		return fputs("ok\n", out) >= 0;
	if (strcmp(path, "/metrics") != 0)
		return false;
	if (metrics_print(out, context))
		lists_print(out, context);
	return true;
}

static int serve(struct context *context, const char *address)
{
	char text[512];
	const int fd = http_listen(address, text, sizeof(text));
	int r;

	if (fd < 0) {
		fprintf(stderr, "kvtierctl: --listen %s\n", text);
		return EXIT_FAILED;
	}
	fprintf(stderr, "kvtierctl: serves /metrics and /healthz at %s\n", text);
	r = http_serve(fd, print_page, context);
	fprintf(stderr, "kvtierctl: %s: %s\n", text, strerror(-r));
	return EXIT_FAILED;
}

/* A reader finds the file before or the file now, and never a part of one. 0 or -errno. */
static int write_whole(const char *path, const char *text, size_t n)
{
	char temporary[4096];
	const int length = snprintf(temporary, sizeof(temporary), "%s.%d", path, (int)getpid());
	int fd, r;

	if (length < 0 || (size_t)length >= sizeof(temporary))
		return -ENAMETOOLONG;
	(void)unlink(temporary); /* of a process that had our pid */
	fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	r = write(fd, text, n) == (ssize_t)n ? 0 : -EIO;
	(void)close(fd);
	if (r == 0 && rename(temporary, path) == 0)
		return 0;
	r = r ? r : -errno;
	(void)unlink(temporary);
	return r;
}

static int write_file(struct context *context, const char *path)
{
	char *text = NULL;
	size_t n;
	FILE *out = open_memstream(&text, &n);
	int r = -ENOMEM;

	if (out && print_page(out, "/metrics", context) && fclose(out) == 0)
		r = write_whole(path, text, n);
	free(text);
	return r;
}

/* every_s 0: once */
static int write_files(struct context *context, const char *path, unsigned every_s)
{
	const struct timespec pause = { (time_t)every_s, 0 };
	int r, said = 0;

	do {
		r = write_file(context, path);
		if (r != said && r < 0)
			fprintf(stderr, "kvtierctl: --textfile %s: %s\n", path, strerror(-r));
		said = r;
	} while (every_s > 0 && (nanosleep(&pause, NULL), true));
	return r < 0 ? EXIT_FAILED : EXIT_FINE;
}

static unsigned seconds_of(const struct context *context, const char *text)
{
	char *end;
	const unsigned long seconds = strtoul(text, &end, 10);

	if (text[0] < '0' || text[0] > '9' || *end != '\0' || seconds < 1 || seconds > 86400)
		usage_error(context, "--every %s: seconds from 1 to 86400", text);
	return (unsigned)seconds;
}

int command_export(struct context *context, int argc, char **argv)
{
	const char *option, *address = NULL, *file = NULL;
	unsigned every_s = 0;

	while ((option = context_option(context, argc, argv)) != NULL) {
		if (strcmp(option, "--listen") == 0)
			address = optarg;
		else if (strcmp(option, "--textfile") == 0)
			file = optarg;
		else
			every_s = seconds_of(context, optarg);
	}
	no_more_arguments(context, argc, argv);
	if (!address == !file)
		usage_error(context, "export needs either --listen or --textfile");
	if (every_s > 0 && !file)
		usage_error(context, "--every is for --textfile");
	return file ? write_files(context, file, every_s) : serve(context, address);
}
