/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_admin.c - commands that the daemon answers, over its admin socket (protocol: daemon/ctl.h).
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "../daemon/ctl.h"
#include "../daemon/stats.h"
#include "kvtierctl.h"

enum { REPLY_MS = 5000, REPLY_BYTES_MAX = 64 << 20 };

struct reply {
	char *text; /* NUL-terminated */
	size_t bytes;
};

/* Why does it not answer? The stats page knows. */
static void explain_silence(const struct context *context)
{
	const struct stats *stats;
	uint64_t health;

	fprintf(stderr, "kvtierctl: kvtierd does not answer at %s within %d s\n", context->admin_path,
		REPLY_MS / 1000);
	if (stats_map(context->stats_path, &stats) < 0)
		return;
	health = stats_health(stats, clock_ns());
	for (unsigned bit = STATS_HEALTH_STOPPED; bit < STATS_HEALTH_COUNT; bit++) {
		if ((health >> bit & 1) != 0)
			fprintf(stderr, "%s (pid %d): %s\n", stats_health_row(bit)->name, stats->pid,
				stats_health_row(bit)->prose);
	}
	stats_unmap(stats);
}

/* A connected socket, or -1 with the reason said. */
static int connect_admin(const struct context *context)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const struct timeval timeout = { .tv_sec = REPLY_MS / 1000 };
	int fd, error;

	if (strlen(context->admin_path) >= sizeof(address.sun_path)) {
		fprintf(stderr, "kvtierctl: %s: longer than a socket's path may be\n", context->admin_path);
		return -1;
	}
	memcpy(address.sun_path, context->admin_path, strlen(context->admin_path) + 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		fprintf(stderr, "kvtierctl: %s\n", strerror(errno));
		return -1;
	}
	/* a full backlog makes connect wait: no longer than this */
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	error = errno;
	(void)close(fd);
	if (error == EAGAIN)
		explain_silence(context);
	else if (error == ENOENT || error == ECONNREFUSED)
		fprintf(stderr, "kvtierctl: no kvtierd answers at %s; is it running? (kvtierctl status)\n",
			context->admin_path);
	else if (error == EACCES)
		fprintf(stderr, "kvtierctl: %s: only root and the daemon's own user may ask\n",
			context->admin_path);
	else
		fprintf(stderr, "kvtierctl: %s: %s\n", context->admin_path, strerror(error));
	return -1;
}

static bool send_request(int fd, int argc, const char *const *words)
{
	char packet[CTL_MAX_REQUEST];
	size_t used = 0;

	for (int i = 0; i < argc; i++) {
		const size_t length = strlen(words[i]) + 1;

		if (used + length > sizeof(packet))
			return false;
		memcpy(packet + used, words[i], length);
		used += length;
	}
	return send(fd, packet, used, MSG_NOSIGNAL) == (ssize_t)used;
}

static bool append(struct reply *reply, const char *text, size_t n)
{
	char *larger;

	if (reply->bytes + n > REPLY_BYTES_MAX)
		return false;
	larger = realloc(reply->text, reply->bytes + n + 1);
	if (larger == NULL)
		return false;
	memcpy(larger + reply->bytes, text, n);
	reply->text = larger;
	reply->bytes += n;
	reply->text[reply->bytes] = '\0';
	return true;
}

/* Packets until the last, all before the deadline. */
static int read_reply(const struct context *context, int fd, struct reply *reply)
{
	const uint64_t deadline_ns = clock_ns() + REPLY_MS * 1000000ull;
	static char packet[CTL_MAX_REPLY + 1];

	for (;;) {
		struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
		const uint64_t now_ns = clock_ns();
		ssize_t n;

		if (now_ns >= deadline_ns ||
		    poll(&poll_fd, 1, (int)((deadline_ns - now_ns) / 1000000) + 1) == 0) {
			explain_silence(context);
			return EXIT_NO_DAEMON;
		}
		n = recv(fd, packet, CTL_MAX_REPLY, MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n <= 0) {
			fprintf(stderr, "kvtierctl: kvtierd ended the connection: %s\n",
				n < 0 ? strerror(errno) : "it stopped, or this took too long");
			return EXIT_NO_DAEMON;
		}
		packet[n] = '\0';
		if (packet[0] == '!') {
			fprintf(stderr, "kvtierctl: %s\n", packet + 1);
			return EXIT_FAILED;
		}
		if ((packet[0] != '+' && packet[0] != '.') || !append(reply, packet + 1, (size_t)n - 1)) {
			fprintf(stderr, "kvtierctl: a reply of %zu bytes that makes no sense\n",
				reply->bytes);
			return EXIT_FAILED;
		}
		if (packet[0] == '.')
			return EXIT_FINE;
	}
}

static int ask(const struct context *context, int argc, const char *const *words, struct reply *reply)
{
	const int fd = connect_admin(context);
	int r = EXIT_NO_DAEMON;

	*reply = (struct reply){ 0 };
	if (fd < 0)
		return r;
	/* refused by credentials: the reply is there though the request could not be sent */
	(void)send_request(fd, argc, words);
	r = read_reply(context, fd, reply);
	(void)close(fd);
	return r;
}

/* --- a list of objects as a table --- */

enum format { FORMAT_TEXT, FORMAT_NUMBER, FORMAT_BYTES, FORMAT_AGE };

struct column {
	const char *title;
	const char *name; /* in the JSON objects */
	enum format format;
};

static void print_cell(struct table *table, struct json_object *row, const struct column *column)
{
	struct json_object *value = NULL;
	char text[64];

	if (!json_object_object_get_ex(row, column->name, &value)) {
		table_cell(table, "?"); /* an older daemon */
		return;
	}
	switch (column->format) {
	case FORMAT_BYTES:
		table_cell(table, text_bytes(json_object_get_uint64(value), text, sizeof(text)));
		break;
	case FORMAT_AGE:
		table_cell(table, text_age(json_object_get_uint64(value), text, sizeof(text)));
		break;
	default:
		table_cell(table, json_object_get_string(value));
	}
}

static int print_rows(struct json_object *root, const char *name, const struct column *columns, size_t n)
{
	struct json_object *rows = NULL;
	struct table *table;
	bool right[32] = { false };

	if (!json_object_object_get_ex(root, name, &rows) || !json_object_is_type(rows, json_type_array))
		return EXIT_FAILED;
	if (json_object_array_length(rows) == 0) {
		printf("no %s\n", name);
		return EXIT_FINE;
	}
	table = table_new(n);
	for (size_t i = 0; i < n; i++) {
		right[i] = columns[i].format != FORMAT_TEXT;
		table_cell(table, columns[i].title);
	}
	for (size_t row = 0; row < json_object_array_length(rows); row++) {
		for (size_t i = 0; i < n; i++)
			print_cell(table, json_object_array_get_idx(rows, row), &columns[i]);
	}
	table_print(table, right);
	return EXIT_FINE;
}

static int list(struct context *context, int argc, char **argv, const struct column *columns, size_t n)
{
	const char *name = context->command->name;
	struct json_object *root;
	struct reply reply;
	int r;

	(void)context_option(context, argc, argv, "", NULL);
	no_more_arguments(context, argc, argv);
	r = ask(context, 1, &name, &reply);
	if (r == EXIT_FINE && context->json) {
		fputs(reply.text, stdout);
	} else if (r == EXIT_FINE) {
		root = json_tokener_parse(reply.text);
		r = print_rows(root, name, columns, n);
		if (r != EXIT_FINE)
			fprintf(stderr, "kvtierctl: the reply is not JSON with \"%s\" in it\n", name);
		json_object_put(root);
	}
	free(reply.text);
	return r;
}

int command_clients(struct context *context, int argc, char **argv)
{
	static const struct column columns[] = {
		{ "ID", "id", FORMAT_NUMBER },
		{ "PID", "pid", FORMAT_NUMBER },
		{ "UID", "uid", FORMAT_NUMBER },
		{ "TENANT", "tenant", FORMAT_TEXT },
		{ "NAME", "name", FORMAT_TEXT },
		{ "PATH", "path", FORMAT_TEXT },
		{ "SPACES", "spaces", FORMAT_NUMBER },
		{ "REGIONS", "regions", FORMAT_NUMBER },
		{ "MEMORY", "region_bytes", FORMAT_BYTES },
		{ "OPS", "ops", FORMAT_NUMBER },
		{ "STORED", "stored_blocks", FORMAT_NUMBER },
		{ "LOADED", "loaded_blocks", FORMAT_NUMBER },
		{ "MISSED", "missed_blocks", FORMAT_NUMBER },
		{ "AGE", "age_s", FORMAT_AGE },
	};

	return list(context, argc, argv, columns, sizeof(columns) / sizeof(columns[0]));
}

int command_spaces(struct context *context, int argc, char **argv)
{
	static const struct column columns[] = {
		{ "NUMBER", "number", FORMAT_NUMBER },
		{ "TENANT", "tenant", FORMAT_TEXT },
		{ "MODEL", "model", FORMAT_TEXT },
		{ "CONVENTION", "convention", FORMAT_TEXT },
		{ "DTYPE", "dtype", FORMAT_TEXT },
		{ "CODEC", "codec", FORMAT_TEXT },
		{ "LAYERS", "layers", FORMAT_NUMBER },
		{ "HEADS", "kv_heads", FORMAT_NUMBER },
		{ "DIM-K", "head_dim_k", FORMAT_NUMBER },
		{ "DIM-V", "head_dim_v", FORMAT_NUMBER },
		{ "TOKENS", "block_tokens", FORMAT_NUMBER },
		{ "RANK", "rank", FORMAT_NUMBER },
		{ "LOGICAL", "logical_bytes", FORMAT_BYTES },
		{ "IMAGE", "image_bytes", FORMAT_BYTES },
		{ "OPEN", "opened", FORMAT_NUMBER },
		{ "BLOCKS", "blocks", FORMAT_NUMBER },
		{ "STORED", "stored_blocks", FORMAT_NUMBER },
		{ "LOADED", "loaded_blocks", FORMAT_NUMBER },
		{ "RAW", "raw_blocks", FORMAT_NUMBER },
	};

	return list(context, argc, argv, columns, sizeof(columns) / sizeof(columns[0]));
}

/* --- evict --- */

static void print_evicted(const char *text)
{
	struct json_object *root = json_tokener_parse(text), *blocks = NULL, *freed = NULL, *complete = NULL;
	char bytes[32];

	(void)json_object_object_get_ex(root, "evicted_blocks", &blocks);
	(void)json_object_object_get_ex(root, "freed_bytes", &freed);
	(void)json_object_object_get_ex(root, "complete", &complete);
	printf("evicted %" PRIu64 " blocks, %s%s\n", json_object_get_uint64(blocks),
	       text_bytes(json_object_get_uint64(freed), bytes, sizeof(bytes)),
	       json_object_get_boolean(complete) ? ""
						 : "; the rest is in use, or it would have taken too long");
	json_object_put(root);
}

int command_evict(struct context *context, int argc, char **argv)
{
	static const struct option options[] = {
		{ "all", no_argument, NULL, 'a' },
		{ "bytes", required_argument, NULL, 'b' },
		{ 0 },
	};
	const char *words[3] = { "evict", NULL, NULL };
	struct reply reply;
	char number[32];
	uint64_t bytes;
	int option, r;

	while ((option = context_option(context, argc, argv, "", options)) != -1) {
		if (words[1] != NULL)
			usage_error(context, "evict takes --all or --bytes, once");
		words[1] = "--all";
		if (option == 'a')
			continue;
		if (!parse_bytes(optarg, &bytes))
			usage_error(context, "--bytes %s: a number above 0, such as 1000000, 512M or 2GiB",
				    optarg);
		words[1] = "--bytes";
		snprintf(number, sizeof(number), "%" PRIu64, bytes);
		words[2] = number;
	}
	no_more_arguments(context, argc, argv);
	if (words[1] == NULL)
		usage_error(context, "evict needs --all or --bytes N");
	r = ask(context, words[2] != NULL ? 3 : 2, words, &reply);
	if (r == EXIT_FINE && context->json)
		fputs(reply.text, stdout);
	else if (r == EXIT_FINE)
		print_evicted(reply.text);
	free(reply.text);
	return r;
}
