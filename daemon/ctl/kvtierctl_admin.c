/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_admin.c - the commands that the daemon answers over its admin socket, whose protocol is
 * in daemon/admin/ctl.h. This file asks the question and shows the reply to people.
 */
#include "kvtierctl_admin.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "client/abi/tbl_hints.h"
#include "client/abi/wire.h"
#include "daemon/admin/ctl.h"
#include "daemon/admin/tbl_lists.h"
#include "daemon/stats/stats.h"

enum { REPLY_MS = 5000, REPLY_BYTES_MAX = 64 << 20 };

struct reply {
	char *text; /* NUL-terminated */
	size_t bytes;
};

/* --- asking --- */

/* Says that the daemon does not answer, and why, if the stats page knows. */
static int explain_silence(const struct context *context)
{
	const struct stats *stats;
	char why[512] = "";
	size_t used = 0;
	uint64_t health;

	if (stats_map(context->stats_path, &stats) == 0) {
		health = stats_health(stats, clock_ns());
		for (unsigned bit = STATS_HEALTH_STOPPED; bit < STATS_HEALTH_COUNT; bit++) {
			if ((health >> bit & 1) != 0 && used < sizeof(why))
				used += (size_t)snprintf(why + used, sizeof(why) - used,
							 "; %s (pid %d): %s",
							 stats_health_row(bit)->name, stats->pid,
							 stats_health_row(bit)->prose);
		}
		stats_unmap(stats);
	}
	return tell_error(context, EXIT_NO_DAEMON, "kvtierd does not answer at %s within %d s%s",
			  context->admin_path, REPLY_MS / 1000, why);
}

/* Says why a connection was not made. */
static int explain_refusal(const struct context *context, int error)
{
	const char *path = context->admin_path;

	if (error == EAGAIN)
		return explain_silence(context);
	if (error == ENOENT || error == ECONNREFUSED)
		return tell_error(context, EXIT_NO_DAEMON,
				  "no kvtierd answers at %s; is it running, or starting? "
				  "(kvtierctl status)",
				  path);
	if (error == EACCES)
		return tell_error(
			context, EXIT_PERMISSION,
			"permission denied: kvtierd answers root and its own user alone at "
			"%s; try `sudo kvtierctl %s`",
			path, context->command->name);
	return tell_error(context, EXIT_NO_DAEMON, "%s: %s", path,
			  error == ENAMETOOLONG ? "longer than a socket's path may be" :
						  strerror(error));
}

/* Connects *ret; the exit status, after the reason was printed. */
static int connect_admin(const struct context *context, int *ret)
{
	*ret = connect_within(context->admin_path, REPLY_MS);
	return *ret >= 0 ? EXIT_FINE : explain_refusal(context, -*ret);
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
	if (!larger)
		return false;
	memcpy(larger + reply->bytes, text, n);
	reply->text = larger;
	reply->bytes += n;
	reply->text[reply->bytes] = '\0';
	return true;
}

ssize_t next_packet(int fd, uint64_t deadline_ns, char *packet)
{
	for (;;) {
		struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
		const uint64_t now_ns = clock_ns();
		ssize_t n;

		if (now_ns >= deadline_ns ||
		    poll(&poll_fd, 1, (int)((deadline_ns - now_ns) / 1000000) + 1) == 0)
			return -ETIMEDOUT;
		n = recv(fd, packet, CTL_MAX_REPLY, MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ECONNRESET;
		packet[n] = '\0';
		return n;
	}
}

/* The same; < 0 after the reason was printed. */
static ssize_t read_packet(const struct context *context, int fd, uint64_t deadline_ns,
			   char *packet)
{
	const ssize_t n = next_packet(fd, deadline_ns, packet);

	if (n == -ETIMEDOUT)
		(void)explain_silence(context);
	else if (n < 0)
		(void)tell_error(context, EXIT_NO_DAEMON, "kvtierd ended the connection: %s",
				 n == -ECONNRESET ? "it stopped, or this took too long" :
						    strerror((int)-n));
	return n;
}

static void show_progress(struct progress *progress, const char *text)
{
	struct json_object *root = json_tokener_parse(text), *done = NULL, *total = NULL,
			   *unit = NULL;

	if (json_object_object_get_ex(root, "done", &done) &&
	    json_object_object_get_ex(root, "total", &total) &&
	    json_object_object_get_ex(root, "unit", &unit) &&
	    json_object_is_type(unit, json_type_string))
		progress_show(progress, json_object_get_uint64(done), json_object_get_uint64(total),
			      json_object_get_string(unit));
	json_object_put(root);
}

/* Reads packets up to the last one. take is for bytes that are no JSON; NULL: none are expected. */
static int read_reply(const struct context *context, int fd, struct reply *reply,
		      struct progress *progress, take_fn *take, void *arg)
{
	uint64_t deadline_ns = clock_ns() + REPLY_MS * 1000000ull;
	static char packet[CTL_MAX_REPLY + 1], shown[1024];

	for (;;) {
		const ssize_t n = read_packet(context, fd, deadline_ns, packet);

		if (n < 0)
			return EXIT_NO_DAEMON;
		if (packet[0] == '~') {
			deadline_ns = clock_ns() + REPLY_MS * 1000000ull;
			show_progress(progress, packet + 1);
			continue;
		}
		if (packet[0] == '=' && take) {
			if (!take(arg, (const uint8_t *)packet + 1, (size_t)n - 1))
				return EXIT_FAILED;
			deadline_ns = clock_ns() + REPLY_MS * 1000000ull;
			continue;
		}
		(void)log_escape(packet + 1, shown, sizeof(shown));
		if (packet[0] == '?')
			usage_error(context, "%s", shown);
		if (packet[0] == '!') {
			progress_end(progress);
			return tell_error(context, EXIT_FAILED, "%s", shown);
		}
		if ((packet[0] != '+' && packet[0] != '.') ||
		    !append(reply, packet + 1, (size_t)n - 1))
			return tell_error(context, EXIT_FAILED,
					  "a reply of %zu bytes that makes no sense", reply->bytes);
		if (packet[0] == '.')
			return EXIT_FINE;
	}
}

/* Replaces bytes that are not printable, which no daemon of ours writes. A string in the JSON
 * may still have them in an escaped form, so strings are escaped again where they are shown to
 * people. */
static void tame(struct reply *reply)
{
	size_t length;

	for (size_t i = 0; i < reply->bytes; i += length) {
		length = log_printable(reply->text + i);
		if (length > 0)
			continue;
		length = 1;
		if (reply->text[i] != '\n')
			reply->text[i] = '?';
	}
}

/* Sends the words, of which the first is the command, and reads the reply. Returns the exit status;
 * if it is EXIT_FINE, the caller frees reply->text. */
static int ask(const struct context *context, int argc, const char *const *words,
	       struct reply *reply)
{
	struct progress progress = { .what = words[0] };
	int fd, r = connect_admin(context, &fd);

	if (r != EXIT_FINE)
		return r;
	/* a client that is refused has its reply already, though the request cannot be sent */
	(void)send_request(fd, argc, words);
	r = read_reply(context, fd, reply, &progress, NULL, NULL);
	progress_end(&progress);
	(void)close(fd);
	if (r != EXIT_FINE)
		free(reply->text);
	else
		tame(reply);
	return r;
}

/* The reply's array of this name, or NULL. */
static struct json_object *rows_of(struct json_object *root, const char *name)
{
	struct json_object *rows = NULL;

	(void)json_object_object_get_ex(root, name, &rows);
	return json_object_is_type(rows, json_type_array) ? rows : NULL;
}

static int no_rows(const struct context *context, const char *name)
{
	return tell_error(context, EXIT_FAILED, "the reply is not JSON with \"%s\" in it", name);
}

int ask_list(const struct context *context, const char *name, struct json_object **ret)
{
	struct reply reply = { 0 };
	struct json_object *root;
	const int r = ask(context, 1, &name, &reply);

	if (r != EXIT_FINE)
		return r;
	root = json_tokener_parse(reply.text);
	free(reply.text);
	*ret = json_object_get(rows_of(root, name));
	json_object_put(root);
	return *ret ? EXIT_FINE : no_rows(context, name);
}

int ask_images(const struct context *context, const char *space, const char *blocks, take_fn *take,
	       void *arg)
{
	const char *const words[] = { "dump", space, "--blocks", blocks };
	struct progress progress = { .what = context->command->name };
	struct reply reply = { 0 };
	int fd, r = connect_admin(context, &fd);

	if (r != EXIT_FINE)
		return r;
	(void)send_request(fd, blocks ? 4 : 2, words);
	r = read_reply(context, fd, &reply, &progress, take, arg);
	progress_end(&progress);
	(void)close(fd);
	free(reply.text);
	return r;
}

uint64_t number_at(struct json_object *root, const char *name)
{
	struct json_object *value = NULL;

	(void)json_object_object_get_ex(root, name, &value);
	return json_object_get_uint64(value);
}

const char *text_at(struct json_object *root, const char *name)
{
	struct json_object *value = NULL;

	(void)json_object_object_get_ex(root, name, &value);
	return value ? json_object_get_string(value) : "?";
}

/* Prints the reply for people, unless context->json; the exit status. */
typedef int print_fn(const struct context *context, struct json_object *root);

/* --- a list of objects as a table --- */

enum column_kind {
	COLUMN_TEXT,
	COLUMN_BOOL,
	COLUMN_HEX,
	COLUMN_NUMBER, /* this kind and the ones below stand at the right of their column */
	COLUMN_BYTES,
	COLUMN_AGE,
	COLUMN_WAIT_MS,
	COLUMN_RATIO,
};

struct column {
	const char *title; /* "": not shown */
	const char *name;  /* in the JSON objects */
	enum column_kind kind;
};

enum { MAX_COLUMNS = 40 };

static const struct list {
	const char *name;                   /* of the array in the reply */
	struct column columns[MAX_COLUMNS]; /* up to one without a name */
} lists[] = {
#define COLUMN(title, name, kind, value) { title, #name, COLUMN_##kind },
#define LIST(name)                             \
	{                                      \
#name,                         \
		{                              \
			name##_COLUMNS(COLUMN) \
		}                              \
	}
	LIST(clients),   LIST(tenants), LIST(spaces),  LIST(disks),  LIST(devices),
	LIST(endpoints), LIST(trace),   LIST(slowlog), LIST(events), LIST(bad),
};

static void print_cell(struct table *table, struct json_object *row, const struct column *column)
{
	struct json_object *value = NULL;
	char text[64] = "";

	if (!json_object_object_get_ex(row, column->name, &value)) {
		/* other members are absent only if the daemon is an older one */
		table_cell(table,
			   column->kind == COLUMN_AGE || column->kind == COLUMN_RATIO ? "" : "?");
		return;
	}
	switch (column->kind) {
	case COLUMN_BYTES:
		table_cell(table, text_bytes(json_object_get_uint64(value), text, sizeof(text)));
		break;
	case COLUMN_AGE:
		table_cell(table, text_age(json_object_get_uint64(value), text, sizeof(text)));
		break;
	case COLUMN_WAIT_MS:
		if (json_object_get_uint64(value) > 0)
			snprintf(text, sizeof(text), "%.1f s",
				 (double)json_object_get_uint64(value) / 1e3);
		table_cell(table, text);
		break;
	case COLUMN_RATIO:
		snprintf(text, sizeof(text), "%.2f %%", json_object_get_double(value) * 100);
		table_cell(table, text);
		break;
	default:
		table_cell(table, json_object_get_string(value));
	}
}

static int print_rows(const struct context *context, struct json_object *root, const char *name)
{
	const struct column *shown[MAX_COLUMNS];
	char aligns[MAX_COLUMNS + 1] = "";
	const struct list *list = lists;
	struct json_object *rows = rows_of(root, name);
	struct table *table;
	size_t n_shown = 0;

	while (strcmp(list->name, name) != 0)
		list++;
	if (!rows)
		return no_rows(context, name);
	if (json_object_array_length(rows) == 0) {
		printf("no %s\n", name);
		return EXIT_FINE;
	}
	for (size_t i = 0; i < MAX_COLUMNS && list->columns[i].name; i++) {
		if (list->columns[i].title[0] == '\0')
			continue;
		aligns[n_shown] = list->columns[i].kind >= COLUMN_NUMBER ? 'r' : 'l';
		shown[n_shown++] = &list->columns[i];
	}
	table = table_new(aligns, NULL);
	for (size_t i = 0; i < n_shown; i++)
		table_cell(table, shown[i]->title);
	for (size_t row = 0; row < json_object_array_length(rows); row++) {
		for (size_t i = 0; i < n_shown; i++)
			print_cell(table, json_object_array_get_idx(rows, row), shown[i]);
	}
	table_print(table);
	return EXIT_FINE;
}

static int print_list(const struct context *context, struct json_object *root)
{
	return context->json ? EXIT_FINE : print_rows(context, root, context->command->name);
}

/* --- tenants: a line for each, then the list, which has a row for each use of each tenant --- */

/* Adds the line of the tenant that row `at` is the first of; returns its last row + 1. */
static size_t add_tenant(struct table *table, struct json_object *rows, size_t at)
{
	struct json_object *row = json_object_array_get_idx(rows, at);
	const char *tenant = text_at(row, "tenant");
	const uint64_t share = number_at(row, "share_percent"),
		       asked = number_at(row, "looked_up_blocks"),
		       hits = number_at(row, "hit_blocks");
	uint64_t clients = 0, blocks = 0, bytes = 0, refused = 0;
	char text[32];

	for (; at < json_object_array_length(rows); at++) {
		struct json_object *use = json_object_array_get_idx(rows, at);
		const char *what = text_at(use, "what");

		if (strcmp(text_at(use, "tenant"), tenant) != 0)
			break;
		clients += strcmp(what, "connections") == 0 ? number_at(use, "used") : 0;
		blocks += strcmp(what, "blocks") == 0 ? number_at(use, "used") : 0;
		bytes += strcmp(what, "host_bytes") == 0 ? number_at(use, "used") : 0;
		refused += number_at(use, "refused");
	}
	table_cell(table, tenant);
	table_number(table, number_at(row, "priority"));
	snprintf(text, sizeof(text), "%" PRIu64 " %%", share);
	table_cell(table, share > 0 ? text : "");
	table_number(table, clients);
	table_number(table, blocks);
	table_cell(table, text_bytes(bytes, text, sizeof(text)));
	table_number(table, asked);
	table_number(table, hits);
	table_cell(table, text_percent(hits, asked, text, sizeof(text)));
	table_number(table, refused);
	return at;
}

static int print_tenants(const struct context *context, struct json_object *root)
{
	struct json_object *rows = rows_of(root, "tenants");
	struct table *table;

	if (context->json)
		return EXIT_FINE;
	if (rows) {
		table = table_new("lrrrrrrrrr", "TENANT|PRIORITY|SHARE|CLIENTS|BLOCKS|MEMORY|"
						"LOOKED UP|HITS|HIT RATE|REFUSED");
		for (size_t at = 0; at < json_object_array_length(rows);)
			at = add_tenant(table, rows, at);
		table_print(table);
		putchar('\n');
	}
	return print_rows(context, root, "tenants");
}

/* --- slowlog: an op's rows follow one another --- */

void print_slow_op(struct json_object *row)
{
	char time[32], age[32], kind[64];

	printf("%s: %s of %" PRIu64 " blocks of space %" PRIu64 ", %s ago, by client %" PRIu64
	       " (process %" PRIu64 ")\n",
	       text_time(number_at(row, "took_us") * 1000, time, sizeof(time)),
	       log_escape(text_at(row, "kind"), kind, sizeof(kind)), number_at(row, "blocks"),
	       number_at(row, "space"), text_age(number_at(row, "ago_s"), age, sizeof(age)),
	       number_at(row, "client"), number_at(row, "pid"));
}

static void add_step(struct table *table, struct json_object *row)
{
	static const struct {
		const char *word, *name;
	} parts[] = { { "block ", "block" },
		      { "", "step" },
		      { "from ", "source" },
		      { "waits for ", "wait" },
		      { "", "status" } };
	char text[64];

	snprintf(text, sizeof(text), "%10" PRIu64 " us", number_at(row, "us"));
	table_cell(table, text);
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		const char *value = text_at(row, parts[i].name);

		snprintf(text, sizeof(text), "%s%s", value[0] ? parts[i].word : "", value);
		table_cell(table, text);
	}
}

static int print_slowlog(const struct context *context, struct json_object *root)
{
	struct json_object *rows = rows_of(root, "slowlog"), *row;
	struct table *table = NULL;
	uint64_t op = 0;

	if (context->json)
		return EXIT_FINE;
	if (!rows)
		return no_rows(context, "slowlog");
	if (json_object_array_length(rows) == 0)
		puts("no op has ended within the last hour");
	for (size_t i = 0; i < json_object_array_length(rows); i++) {
		row = json_object_array_get_idx(rows, i);
		if (!table || number_at(row, "op") != op) {
			if (table)
				table_print(table);
			print_slow_op(row);
			table = table_new("rlllll", NULL);
			op = number_at(row, "op");
		}
		if (text_at(row, "step")[0] != '\0')
			add_step(table, row);
	}
	if (table)
		table_print(table);
	return EXIT_FINE;
}

/* --- evict --- */

static int print_evicted(const struct context *context, struct json_object *root)
{
	struct json_object *complete = NULL;
	char bytes[32];

	if (context->json)
		return EXIT_FINE;
	(void)json_object_object_get_ex(root, "complete", &complete);
	printf("evicted %" PRIu64 " blocks (%" PRIu64 " stay on NVMe), %s%s\n",
	       number_at(root, "evicted_blocks"), number_at(root, "demoted_blocks"),
	       text_bytes(number_at(root, "freed_bytes"), bytes, sizeof(bytes)),
	       json_object_get_boolean(complete) ?
		       "" :
		       "; the rest is in use, or it would have taken too long");
	return EXIT_FINE;
}

/* --- the NVMe tier --- */

/* The check is fine if all blocks that could be looked at are good. It failed if there were blocks
 * and not one could be looked at. */
static int print_verified(const struct context *context, struct json_object *root)
{
	const uint64_t bad = number_at(root, "bad_blocks");
	const uint64_t checked = number_at(root, "checked_blocks");
	const uint64_t skipped = number_at(root, "skipped_blocks");
	const uint64_t dropped = number_at(root, "dropped_blocks");
	const bool good = bad == 0 && (checked > 0 || skipped == 0);
	char bytes[32], age[32];

	if (context->json)
		return good ? EXIT_FINE : EXIT_FAILED;
	if (bad > 0)
		(void)print_rows(context, root, "bad");
	printf("%" PRIu64 " copies, %s, in %s: ", checked,
	       text_bytes(number_at(root, "checked_bytes"), bytes, sizeof(bytes)),
	       text_age(number_at(root, "ms") / 1000, age, sizeof(age)));
	if (bad == 0)
		printf("%s\n", good ? "all are good" : "nothing could be checked");
	else
		printf("%" PRIu64 " bad, %" PRIu64 " dropped; %s\n", bad, dropped,
		       dropped == bad ? "a block without another copy is a miss now" :
					"kvtierctl verify --drop drops all");
	if (skipped > 0)
		printf("not checked: %" PRIu64
		       ", which went or moved meanwhile, lie on a disk that is away, or are of a "
		       "model that no engine has opened\n",
		       skipped);
	return good ? EXIT_FINE : EXIT_FAILED;
}

static int print_purged(const struct context *context, struct json_object *root)
{
	if (!context->json)
		printf("purged %" PRIu64 " blocks\n", number_at(root, "purged_blocks"));
	return EXIT_FINE;
}

/* --- hint --- */

/* The hint is fine if it was done for a block, or will be. */
static int print_answers(const struct context *context, struct json_object *root)
{
	uint64_t done = 0, blocks;

#define PRINT(name, number, prose)                         \
	blocks = number_at(root, #name);                   \
	done += number <= WIRE_HINT_DEFERRED ? blocks : 0; \
	if (!context->json && blocks > 0)                  \
		printf("%" PRIu64 " " #name ": %s\n", blocks, prose);
	HINT_ANSWERS(PRINT)
	return done > 0 ? EXIT_FINE : EXIT_FAILED;
}

/* --- config, loglevel --- */

static void print_values(struct json_object *rows)
{
	struct table *table = table_new("lllll", "SECTION|KEY|VALUE|FROM|RELOAD");

	for (size_t i = 0; i < json_object_array_length(rows); i++) {
		struct json_object *row = json_object_array_get_idx(rows, i), *reload = NULL;

		table_cell(table, text_at(row, "section"));
		table_cell(table, text_at(row, "key"));
		table_cell(table, text_at(row, "value"));
		table_cell(table, text_at(row, "from"));
		json_object_object_get_ex(row, "reload", &reload);
		table_cell(table, json_object_get_boolean(reload) ? "yes" : "no");
	}
	table_print(table);
}

/* Prints each sentence, and returns how many there are. */
static size_t print_sentences(struct json_object *root, const char *name, const char *title)
{
	struct json_object *lines = rows_of(root, name);
	const size_t n = lines ? json_object_array_length(lines) : 0;
	char shown[1024];

	for (size_t i = 0; i < n; i++) {
		const char *line = json_object_get_string(json_object_array_get_idx(lines, i));

		printf("%s%s\n", i == 0 ? title : "",
		       log_escape(line ? line : "?", shown, sizeof(shown)));
	}
	return n;
}

static int print_config(const struct context *context, struct json_object *root)
{
	struct json_object *rows = rows_of(root, "config"), *refused = NULL;

	json_object_object_get_ex(root, "refused", &refused);
	if (context->json) {
		;
	} else if (rows) {
		print_values(rows);
	} else if (print_sentences(root, "mistakes", "nothing changed:\n") +
			   print_sentences(root, "applied", "changed:\n") +
			   print_sentences(root, "restart", "needs a restart:\n") ==
		   0) {
		puts("the file says what is in effect");
	}
	return json_object_get_boolean(refused) ? EXIT_FAILED : EXIT_FINE;
}

static int print_log_level(const struct context *context, struct json_object *root)
{
	char shown[64];

	if (!context->json)
		puts(log_escape(text_at(root, "log_level"), shown, sizeof(shown)));
	return EXIT_FINE;
}

/* --- asking, with the words of the command line --- */

static const struct {
	const char *command;
	print_fn *print;      /* NULL: `sentence` is all */
	const char *sentence; /* for people */
} replies[] = {
	{ .command = "evict", .print = print_evicted },
	{ .command = "verify", .print = print_verified },
	{ .command = "purge", .print = print_purged },
	{ .command = "hint", .print = print_answers },
	{ .command = "config", .print = print_config },
	{ .command = "loglevel", .print = print_log_level },
	{ .command = "slowlog", .print = print_slowlog },
	{ .command = "tenants", .print = print_tenants },
	{ .command = "flush", .sentence = "all that was in memory is on NVMe" },
	{ .command = "undrain", .sentence = "blocks are stored again" },
	{ .command = "drain",
	  .sentence = "drained: no block is stored, and what was in memory is written; kvtierctl "
		      "undrain, or a restart, ends it" },
};

int command_ask(struct context *context, int argc, char **argv)
{
	const struct command *command = context->command;
	const bool optional = command->arguments[0] == '[',
		   action = isupper((unsigned char)command->arguments[optional]);
	const char *words[CTL_MAX_WORDS] = { command->name }, *option;
	print_fn *print = print_list;
	const char *sentence = NULL;
	struct reply reply = { 0 };
	struct json_object *root;
	int n = action ? 2 : 1, r;

	while ((option = context_option(context, argc, argv)) != NULL) {
		for (int i = 1; i < n; i++)
			if (words[i] == option)
				usage_error(context, "%s: once", option);
		assert(n + 2 <= CTL_MAX_WORDS);
		words[n++] = option;
		if (optarg)
			words[n++] = optarg;
	}
	if (action && !optional && optind == argc)
		usage_error(context, "%s needs an action; kvtierctl %s --help lists them",
			    command->name, command->name);
	if (action && optind < argc)
		words[1] = argv[optind++];
	else if (action)
		n = 1;
	no_more_arguments(context, argc, argv);
	for (size_t i = 0; i < sizeof(replies) / sizeof(replies[0]); i++) {
		if (strcmp(replies[i].command, command->name) != 0)
			continue;
		print = replies[i].print;
		sentence = replies[i].sentence;
	}
	r = ask(context, n, words, &reply);
	if (r != EXIT_FINE)
		return r;
	if (context->json)
		fputs(reply.text, stdout);
	else if (sentence)
		puts(sentence);
	root = json_tokener_parse(reply.text);
	r = print ? print(context, root) : EXIT_FINE;
	json_object_put(root);
	free(reply.text);
	return r;
}
