/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl.c - the admin socket: connections and packets. The commands themselves are in ctl_commands.c.
 *
 *  free --accept_one--> asking --read_request--> replying --last packet sent--> asking
 *                         |                        |  ^
 *                         |                        `--' one packet, or one slice of work, each
 *                         |                             time that the socket is writable; a
 *                         |                             command that waits for other work
 *                         |                             looks every CTL_WAIT_MS
 *                         `--gone, deadline, bad request--> free (asker_close)
 *
 * Invariants
 *   - the core never waits for an asker: no send blocks, and an asker that does not read its reply
 *     loses the connection at the deadline.
 *   - the core receives no descriptor, and closes no descriptor that a stranger has sent, since
 *     closing one may block (conn/intake.c). The socket has mode 0600, so only root and the
 *     daemon's own user can connect. They alone are answered, and they can stop the daemon anyway.
 *     A kernel from 6.16 on also keeps descriptors out of the socket. A packet with descriptors
 *     ends its connection.
 *   - in one iteration of the loop each of the CTL_MAX_CONNECTIONS connections gets at most one
 *     packet or one slice of work. While all connections are taken no further one is accepted, and
 *     askers wait in the kernel's backlog.
 */
#include "ctl.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ctl_commands.h"
#include "base/list.h"
#include "daemon/conn/intake.h"
#include "daemon/kvtierd.h"
#include "base/log.h"
#include "base/text.h"
#include "base/own.h"

enum {
	ACCEPT_PAUSE_MS = 1000,
};

struct asker {
	struct ctl *ctl;
	struct loop_watch watch;
	struct loop_timer deadline;
	struct loop_timer again; /* looks how far a request is that waits */
	bool open, replying;
	bool running; /* the request's command was started, and its end() is to be called */
	struct ctl_request request;
	size_t packet_bytes; /* made and not yet sent; 0: none */
	bool last;           /* that packet ends the reply */
	bool told;           /* that packet starts the deadline anew */
	char packet[CTL_MAX_REPLY];
};

struct ctl {
	struct kvtierd *d;
	char path[CONFIG_PATH_BYTES];
	struct own own; /* the socket at path */
	struct loop_watch watch;
	struct loop_timer resume; /* accepts again after there was no descriptor */
	bool accepting;
	struct asker askers[CTL_MAX_CONNECTIONS];
};

static struct asker *asker_free_slot(struct ctl *ctl)
{
	for (size_t i = 0; i < CTL_MAX_CONNECTIONS; i++) {
		if (!ctl->askers[i].open)
			return &ctl->askers[i];
	}
	return NULL;
}

/* Accepts only while there is a slot and no pause. */
static void listen_update(struct ctl *ctl)
{
	const bool want = asker_free_slot(ctl) && ctl->resume.position == 0;

	if (want != ctl->accepting && ctl->watch.fd >= 0 &&
	    loop_modify(ctl->d->loop, &ctl->watch, want ? EPOLLIN : 0) == 0)
		ctl->accepting = want;
}

static void request_end(struct asker *asker)
{
	if (asker->running && asker->request.command->end)
		asker->request.command->end(asker->ctl->d, &asker->request);
	asker->running = false;
}

static void asker_close(struct asker *asker)
{
	struct loop *loop = asker->ctl->d->loop;

	request_end(asker);
	loop_remove(loop, &asker->watch);
	loop_timer_unset(loop, &asker->deadline);
	loop_timer_unset(loop, &asker->again);
	(void)close(asker->watch.fd);
	asker->open = false;
	listen_update(asker->ctl);
}

static void deadline_fire(struct loop_timer *timer)
{
	asker_close(container_of(timer, struct asker, deadline));
}

/* Starts the deadline anew and waits for `events`. False: the asker is closed. */
static bool asker_expect(struct asker *asker, uint32_t events)
{
	struct loop *loop = asker->ctl->d->loop;

	loop_timer_set(loop, &asker->deadline, loop_now(loop) + CTL_DEADLINE_MS * 1000000ull);
	if (loop_modify(loop, &asker->watch, events) < 0) {
		asker_close(asker);
		return false;
	}
	return true;
}

/* Looks again in a while. Until then the loop reports only that the asker has gone. */
static void asker_wait(struct asker *asker)
{
	struct loop *loop = asker->ctl->d->loop;

	if (asker_expect(asker, 0))
		loop_timer_set(loop, &asker->again, loop_now(loop) + CTL_WAIT_MS * 1000000ull);
}

static void again_fire(struct loop_timer *timer)
{
	(void)asker_expect(container_of(timer, struct asker, again), EPOLLOUT);
}

/* Splits the packet into words; each ends in NUL, the last may lack it. False: no request. */
static bool split_words(struct ctl_request *request, size_t bytes)
{
	char *at = request->packet, *end = request->packet + bytes;

	request->n_words = 0;
	*end = '\0';
	while (at < end) {
		if (request->n_words == CTL_MAX_WORDS)
			return false;
		request->words[request->n_words++] = at;
		at += strlen(at) + 1;
	}
	return request->n_words > 0;
}

static void say_no(int fd, const char *sentence)
{
	char packet[128];
	const int n = snprintf(packet, sizeof(packet), "!%s", sentence);

	(void)send(fd, packet, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* False: there is none, or the asker is closed. */
static bool has_request(struct asker *asker)
{
	bool fds;
	const ssize_t bytes = intake_peek(asker->watch.fd, &fds);

	if (bytes > 0 && !fds)
		return true;
	if (bytes == 0)
		return false;
	if (fds) {
		log_warning("admin_refused",
			    "admin socket: a request with file descriptors was refused");
		say_no(asker->watch.fd, "a request takes no file descriptors");
	}
	asker_close(asker);
	return false;
}

/* False: closed. */
static bool read_request(struct asker *asker)
{
	struct ctl_request *request = &asker->request;
	char sentence[256] = "a request is one to 18 words of together at most 512 bytes";
	ssize_t bytes;
	int r = -EINVAL;

	memset(request, 0, sizeof(*request));
	/* MSG_TRUNC gives the packet's real length */
	bytes = recv(asker->watch.fd, request->packet, CTL_MAX_REQUEST, MSG_DONTWAIT | MSG_TRUNC);
	if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (bytes <= 0) {
		asker_close(asker);
		return false;
	}
	request->started_ns = loop_now(asker->ctl->d->loop);
	asker->packet_bytes = 0;
	if (bytes <= CTL_MAX_REQUEST && split_words(request, (size_t)bytes))
		r = ctl_start(asker->ctl->d, request, sentence, sizeof(sentence));
	asker->running = r == 0;
	asker->last = r < 0;
	if (r < 0)
		asker->packet_bytes = (size_t)snprintf(asker->packet, sizeof(asker->packet), "%c%s",
						       r == -EINVAL ? '?' : '!', sentence);
	asker->replying = true;
	return asker_expect(asker, EPOLLOUT);
}

static void make_packet(struct asker *asker)
{
	static const char kinds[] = { [CTL_TELL] = '~',
				      [CTL_MORE] = '+',
				      [CTL_LAST] = '.',
				      [CTL_FAIL] = '!',
				      [CTL_DATA] = '=' };
	struct json json;
	enum ctl_progress progress;

	json_start(&json, asker->packet + 1, sizeof(asker->packet) - 1);
	progress = asker->request.command->next(asker->ctl->d, &asker->request, &json);
	if (progress == CTL_LATER)
		return;
	if (progress == CTL_WAIT) {
		asker_wait(asker);
		return;
	}
	assert(!json.full);
	asker->last = progress == CTL_LAST || progress == CTL_FAIL;
	asker->told = progress == CTL_TELL || progress == CTL_DATA;
	asker->packet[0] = kinds[progress];
	asker->packet_bytes = 1 + json.used;
	if (asker->last)
		request_end(asker);
}

static void send_packet(struct asker *asker)
{
	const ssize_t sent = send(asker->watch.fd, asker->packet, asker->packet_bytes,
				  MSG_DONTWAIT | MSG_NOSIGNAL);

	if (sent < 0) {
		if (errno != EAGAIN && errno != EINTR)
			asker_close(asker);
		return; /* otherwise it is sent when the socket is writable again */
	}
	asker->packet_bytes = 0;
	if (asker->last) {
		asker->replying = false;
		(void)asker_expect(asker, EPOLLIN);
	} else if (asker->told) {
		(void)asker_expect(asker, EPOLLOUT);
	}
}

static void asker_ready(struct loop_watch *watch, uint32_t events)
{
	struct asker *asker = container_of(watch, struct asker, watch);

	if (!asker->replying && (events & EPOLLIN) != 0) {
		if (has_request(asker))
			(void)read_request(asker);
		return;
	}
	if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
		asker_close(asker);
		return;
	}
	if (!asker->replying)
		return;
	if (asker->packet_bytes == 0)
		make_packet(asker);
	if (asker->packet_bytes != 0)
		send_packet(asker);
}

static bool permitted(int fd, uid_t *ret_uid)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);

	*ret_uid = (uid_t)-1;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
		return false;
	*ret_uid = peer.uid;
	return peer.uid == 0 || peer.uid == geteuid();
}

static void resume_fire(struct loop_timer *timer)
{
	listen_update(container_of(timer, struct ctl, resume));
}

static void accept_one(struct loop_watch *watch, uint32_t events)
{
	struct ctl *ctl = container_of(watch, struct ctl, watch);
	struct loop *loop = ctl->d->loop;
	struct asker *asker = asker_free_slot(ctl);
	uid_t uid;
	int fd;

	(void)events;
	if (!asker)
		return;
	fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0) {
		/* without a pause a listening socket that cannot be accepted from would keep the
		 * loop awake */
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
			log_warning("admin_accept", "admin socket: %s", strerror(errno));
			loop_timer_set(loop, &ctl->resume,
				       loop_now(loop) + ACCEPT_PAUSE_MS * 1000000ull);
			listen_update(ctl);
		}
		return;
	}
	if (!permitted(fd, &uid)) {
		log_warning("admin_refused", "admin socket: refused user %d", (int)uid);
		say_no(fd, "only root and the daemon's own user are answered");
		(void)close(fd);
		return;
	}
	asker->ctl = ctl;
	asker->watch = (struct loop_watch){ .fd = fd, .ready = asker_ready };
	asker->deadline = (struct loop_timer){ .fire = deadline_fire };
	asker->again = (struct loop_timer){ .fire = again_fire };
	asker->replying = asker->running = false;
	if (loop_add(loop, &asker->watch, EPOLLIN) < 0) {
		(void)close(fd);
		return;
	}
	asker->open = true;
	if (asker_expect(asker, EPOLLIN))
		listen_update(ctl);
}

static int listen_at(struct ctl *ctl)
{
	int r = socket_bind(ctl->path, SOCK_SEQPACKET, 0600, &ctl->watch.fd, &ctl->own);

	if (r < 0)
		return r;
	(void)socket_pass_fds(ctl->watch.fd, false);
	if (listen(ctl->watch.fd, 64) < 0)
		return -errno;
	return 0;
}

int ctl_open(struct kvtierd *d, struct ctl **ret, char *text, size_t n)
{
	struct ctl *ctl = calloc(1, sizeof(*ctl));
	int r;

	if (!ctl)
		return text_fail(text, n, -ENOMEM, "admin socket: out of memory");
	ctl->d = d;
	ctl->watch = (struct loop_watch){ .fd = -1, .ready = accept_one };
	ctl->resume.fire = resume_fire;
	snprintf(ctl->path, sizeof(ctl->path), "%s", d->config->admin_path);
	r = listen_at(ctl);
	if (r == 0)
		r = loop_add(d->loop, &ctl->watch, EPOLLIN);
	if (r < 0) {
		snprintf(text, n, "%s: %s; see [daemon] runtime_dir", ctl->path,
			 r == -EADDRINUSE ? "another kvtierd answers there" :
			 r == -EEXIST     ? "exists and is no socket" :
					    strerror(-r));
		ctl_close(ctl);
		return r;
	}
	ctl->accepting = true;
	*ret = ctl;
	return 0;
}

void ctl_shutdown(struct ctl *ctl)
{
	if (!ctl || ctl->watch.fd < 0)
		return;
	for (size_t i = 0; i < CTL_MAX_CONNECTIONS; i++) {
		if (ctl->askers[i].open)
			asker_close(&ctl->askers[i]);
	}
	loop_timer_unset(ctl->d->loop, &ctl->resume);
	loop_remove(ctl->d->loop, &ctl->watch);
	(void)close(ctl->watch.fd); /* ends connections that were not accepted, too */
	ctl->watch.fd = -1;
	own_unlink(ctl->path, &ctl->own);
}

void ctl_close(struct ctl *ctl)
{
	if (!ctl)
		return;
	ctl_shutdown(ctl);
	free(ctl);
}
