/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_ask.c - asks the daemon over its admin socket (protocol: ctl.h). The daemon must be
 * heard of within 5 seconds, again and again: a command that takes longer says how far it is, and
 * people at a terminal see that.
 */
#include "kvtierctl_ask.h"

#include <errno.h>
#include <json-c/json.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/admin/ctl.h"
#include "daemon/base/log.h"
#include "daemon/stats/stats.h"
#include "kvtierctl.h"
#include "kvtierctl_text.h"

enum { REPLY_MS = 5000, REPLY_BYTES_MAX = 64 << 20 };

void explain_silence(const struct context *context)
{
	const struct stats *stats;
	uint64_t health;

	fprintf(stderr, "kvtierctl: kvtierd does not answer at %s within %d s\n",
		context->admin_path, REPLY_MS / 1000);
	if (stats_map(context->stats_path, &stats) < 0)
		return;
	health = stats_health(stats, clock_ns());
	for (unsigned bit = STATS_HEALTH_STOPPED; bit < STATS_HEALTH_COUNT; bit++) {
		if ((health >> bit & 1) != 0)
			fprintf(stderr, "%s (pid %d): %s\n", stats_health_row(bit)->name,
				stats->pid, stats_health_row(bit)->prose);
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
		fprintf(stderr, "kvtierctl: %s: longer than a socket's path may be\n",
			context->admin_path);
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
		fprintf(stderr,
			"kvtierctl: no kvtierd answers at %s; is it running, or starting? "
			"(kvtierctl status)\n",
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
	if (!larger)
		return false;
	memcpy(larger + reply->bytes, text, n);
	reply->text = larger;
	reply->bytes += n;
	reply->text[reply->bytes] = '\0';
	return true;
}

/* The next packet, with NUL behind it, before deadline_ns; its length, or -1: said why on
 * stderr. */
static ssize_t read_packet(const struct context *context, int fd, uint64_t deadline_ns,
			   char *packet)
{
	for (;;) {
		struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
		const uint64_t now_ns = clock_ns();
		ssize_t n;

		if (now_ns >= deadline_ns ||
		    poll(&poll_fd, 1, (int)((deadline_ns - now_ns) / 1000000) + 1) == 0) {
			explain_silence(context);
			return -1;
		}
		n = recv(fd, packet, CTL_MAX_REPLY, MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n <= 0) {
			fprintf(stderr, "kvtierctl: kvtierd ended the connection: %s\n",
				n < 0 ? strerror(errno) : "it stopped, or this took too long");
			return -1;
		}
		packet[n] = '\0';
		return n;
	}
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

/* Packets until the last. */
static int read_reply(const struct context *context, int fd, struct reply *reply,
		      struct progress *progress)
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
		if (packet[0] == '!') {
			progress_end(progress);
			fprintf(stderr, "kvtierctl: %s\n",
				log_escape(packet + 1, shown, sizeof(shown)));
			return EXIT_FAILED;
		}
		if ((packet[0] != '+' && packet[0] != '.') ||
		    !append(reply, packet + 1, (size_t)n - 1)) {
			fprintf(stderr, "kvtierctl: a reply of %zu bytes that makes no sense\n",
				reply->bytes);
			return EXIT_FAILED;
		}
		if (packet[0] == '.')
			return EXIT_FINE;
	}
}

/* A daemon writes JSON without such bytes. A text in it may still have them, escaped, so text is
 * escaped again where it is shown to people. */
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

int ask(const struct context *context, int argc, const char *const *words, struct reply *reply)
{
	const int fd = connect_admin(context);
	struct progress progress = { .what = words[0] };
	int r = EXIT_NO_DAEMON;

	*reply = (struct reply){ 0 };
	if (fd < 0)
		return r;
	/* refused by credentials: the reply is there though the request could not be sent */
	(void)send_request(fd, argc, words);
	r = read_reply(context, fd, reply, &progress);
	tame(reply);
	progress_end(&progress);
	(void)close(fd);
	return r;
}
