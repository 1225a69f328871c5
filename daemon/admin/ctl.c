/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl.c - the admin socket: connections and packets. The commands themselves are in ctl_commands.c.
 *
 *  free --accept_one--> asking --read_request--> replying --last packet sent--> asking
 *                         |                        |  ^
 *                         |                        `--' one packet, or one slice of work, a turn
 *                         |                             of the loop: whenever the socket is
 *                         |                             writable; a command that waits for
 *                         |                             others looks every CTL_WAIT_MS
 *                         `--gone, deadline, bad request--> free (conn_close)
 *
 * Invariants
 *   - the core never waits for an asker: no send blocks, and who does not read loses the connection
 *     at the deadline.
 *   - a turn does at most one packet's or slice's work for each of CTL_MAX_CONNECTIONS connections;
 *     while all are taken nobody is accepted, and askers queue in the kernel's backlog.
 */
#include "ctl.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ctl_commands.h"
#include "daemon/base/container_of.h"
#include "daemon/kvtierd.h"
#include "daemon/base/log.h"
#include "daemon/base/socket.h"

enum { ACCEPT_PAUSE_MS = 1000 };

struct conn {
	struct ctl *ctl;
	struct loop_watch watch;
	struct loop_timer deadline;
	struct loop_timer again; /* to look how far a request is that waits */
	bool open, replying;
	bool running; /* the request's command was started, and its end() is to be called */
	struct ctl_request request;
	size_t packet_bytes; /* made and not yet sent; 0: none */
	bool last;           /* that packet ends the reply */
	bool told;           /* it says how far it is: the asker took it, so its time starts anew */
	char packet[CTL_MAX_REPLY];
};

struct ctl {
	struct kvtierd *d;
	char path[CONFIG_PATH_BYTES];
	dev_t device; /* of the socket at path, so that only ours is removed */
	ino_t inode;
	struct loop_watch watch;
	struct loop_timer resume; /* after accept found no descriptor */
	bool bound, listening;
	struct log_limit limit;
	struct conn conns[CTL_MAX_CONNECTIONS];
};

static struct conn *conn_free_slot(struct ctl *ctl)
{
	for (size_t i = 0; i < CTL_MAX_CONNECTIONS; i++) {
		if (!ctl->conns[i].open)
			return &ctl->conns[i];
	}
	return NULL;
}

/* Accepts only while there is a slot and no pause. */
static void listen_update(struct ctl *ctl)
{
	const bool want = conn_free_slot(ctl) != NULL && ctl->resume.position == 0;

	if (want != ctl->listening &&
	    loop_modify(ctl->d->loop, &ctl->watch, want ? EPOLLIN : 0) == 0)
		ctl->listening = want;
}

static void request_end(struct conn *conn)
{
	if (conn->running)
		ctl_end(conn->ctl->d, &conn->request);
	conn->running = false;
}

static void conn_close(struct conn *conn)
{
	struct loop *loop = conn->ctl->d->loop;

	request_end(conn);
	loop_remove(loop, &conn->watch);
	loop_timer_unset(loop, &conn->deadline);
	loop_timer_unset(loop, &conn->again);
	(void)close(conn->watch.fd);
	conn->open = false;
	listen_update(conn->ctl);
}

static void deadline_fire(struct loop_timer *timer)
{
	conn_close(container_of(timer, struct conn, deadline));
}

/* Starts the time anew and waits for `events`. False: closed. */
static bool conn_expect(struct conn *conn, uint32_t events)
{
	struct loop *loop = conn->ctl->d->loop;

	loop_timer_set(loop, &conn->deadline, loop_now(loop) + CTL_DEADLINE_MS * 1000000ull);
	if (loop_modify(loop, &conn->watch, events) < 0) {
		conn_close(conn);
		return false;
	}
	return true;
}

/* Looks again in a while; until then only the asker's end is heard of. */
static void conn_wait(struct conn *conn)
{
	struct loop *loop = conn->ctl->d->loop;

	if (conn_expect(conn, 0))
		loop_timer_set(loop, &conn->again, loop_now(loop) + CTL_WAIT_MS * 1000000ull);
}

static void again_fire(struct loop_timer *timer)
{
	(void)conn_expect(container_of(timer, struct conn, again), EPOLLOUT);
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

static void fail_packet(struct conn *conn, const char *sentence)
{
	conn->packet_bytes = (size_t)snprintf(conn->packet, sizeof(conn->packet), "!%s", sentence);
	conn->last = true;
}

/* False: closed. */
static bool read_request(struct conn *conn)
{
	struct ctl_request *request = &conn->request;
	char sentence[256] = "a request is one to 8 words of together at most 512 bytes";
	ssize_t bytes;

	memset(request, 0, sizeof(*request));
	/* MSG_TRUNC gives the packet's real length */
	bytes = recv(conn->watch.fd, request->packet, CTL_MAX_REQUEST, MSG_DONTWAIT | MSG_TRUNC);
	if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (bytes <= 0) {
		conn_close(conn);
		return false;
	}
	request->started_ns = loop_now(conn->ctl->d->loop);
	conn->packet_bytes = 0;
	if (bytes > CTL_MAX_REQUEST || !split_words(request, (size_t)bytes) ||
	    ctl_start(conn->ctl->d, request, sentence, sizeof(sentence)) < 0)
		fail_packet(conn, sentence);
	else
		conn->running = true;
	conn->replying = true;
	return conn_expect(conn, EPOLLOUT);
}

static void make_packet(struct conn *conn)
{
	static const char kinds[] = {
		[CTL_TELL] = '~', [CTL_MORE] = '+', [CTL_LAST] = '.', [CTL_FAIL] = '!'
	};
	struct json json;
	enum ctl_progress progress;

	json_start(&json, conn->packet + 1, sizeof(conn->packet) - 1);
	progress = ctl_continue(conn->ctl->d, &conn->request, &json);
	if (progress == CTL_LATER)
		return;
	if (progress == CTL_WAIT) {
		conn_wait(conn);
		return;
	}
	assert(!json.full);
	conn->last = progress == CTL_LAST || progress == CTL_FAIL;
	conn->told = progress == CTL_TELL;
	conn->packet[0] = kinds[progress];
	conn->packet_bytes = 1 + json.used;
	if (conn->last)
		request_end(conn);
}

static void send_packet(struct conn *conn)
{
	const ssize_t sent =
		send(conn->watch.fd, conn->packet, conn->packet_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);

	if (sent < 0) {
		if (errno != EAGAIN && errno != EINTR)
			conn_close(conn);
		return; /* else when the socket is writable again, or the deadline comes */
	}
	conn->packet_bytes = 0;
	if (conn->last) {
		conn->replying = false;
		(void)conn_expect(conn, EPOLLIN);
	} else if (conn->told) {
		(void)conn_expect(conn, EPOLLOUT);
	}
}

static void conn_ready(struct loop_watch *watch, uint32_t events)
{
	struct conn *conn = container_of(watch, struct conn, watch);

	if (!conn->replying && (events & EPOLLIN) != 0) {
		(void)read_request(conn);
		return;
	}
	if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
		conn_close(conn);
		return;
	}
	if (!conn->replying)
		return;
	if (conn->packet_bytes == 0)
		make_packet(conn);
	if (conn->packet_bytes != 0)
		send_packet(conn);
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
	struct conn *conn = conn_free_slot(ctl);
	static const char refusal[] = "!only root and the daemon's own user are answered";
	uid_t uid;
	int fd;

	(void)events;
	if (!conn)
		return;
	fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0) {
		/* without a pause a listening socket that cannot be accepted from would keep the
		 * loop awake */
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
			log_limited(&ctl->limit, loop_now(loop), LOG_LEVEL_WARNING,
				    "admin socket: %s", strerror(errno));
			loop_timer_set(loop, &ctl->resume,
				       loop_now(loop) + ACCEPT_PAUSE_MS * 1000000ull);
			listen_update(ctl);
		}
		return;
	}
	if (!permitted(fd, &uid)) {
		log_limited(&ctl->limit, loop_now(loop), LOG_LEVEL_WARNING,
			    "admin socket: refused user %d", (int)uid);
		(void)send(fd, refusal, sizeof(refusal) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		(void)close(fd);
		return;
	}
	conn->ctl = ctl;
	conn->watch = (struct loop_watch){ .fd = fd, .ready = conn_ready };
	conn->deadline = (struct loop_timer){ .fire = deadline_fire };
	conn->again = (struct loop_timer){ .fire = again_fire };
	conn->replying = conn->running = false;
	if (loop_add(loop, &conn->watch, EPOLLIN) < 0) {
		(void)close(fd);
		return;
	}
	conn->open = true;
	if (conn_expect(conn, EPOLLIN))
		listen_update(ctl);
}

static int listen_at(struct ctl *ctl, uint32_t mode)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct stat st;
	int r;

	if (strlen(ctl->path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, ctl->path, strlen(ctl->path) + 1);
	r = socket_remove_stale(&address);
	if (r < 0)
		return r;
	ctl->watch.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (ctl->watch.fd < 0)
		return -errno;
	/* Linux gives the file the descriptor's mode less umask: at no time is it wider than asked
	 * for */
	if (fchmod(ctl->watch.fd, mode) < 0 ||
	    bind(ctl->watch.fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	if (lstat(ctl->path, &st) < 0)
		return -errno;
	ctl->device = st.st_dev;
	ctl->inode = st.st_ino;
	ctl->bound = true;
	if (chmod(ctl->path, mode) < 0 || listen(ctl->watch.fd, 64) < 0)
		return -errno;
	return 0;
}

int ctl_open(struct kvtierd *d, struct ctl **ret, char *text, size_t n)
{
	struct ctl *ctl = calloc(1, sizeof(*ctl));
	int r;

	if (!ctl) {
		snprintf(text, n, "admin socket: out of memory");
		return -ENOMEM;
	}
	ctl->d = d;
	ctl->watch = (struct loop_watch){ .fd = -1, .ready = accept_one };
	ctl->resume.fire = resume_fire;
	snprintf(ctl->path, sizeof(ctl->path), "%s", d->config->admin_path);
	r = listen_at(ctl, d->config->admin_mode);
	if (r == 0)
		r = loop_add(d->loop, &ctl->watch, EPOLLIN);
	if (r < 0) {
		snprintf(text, n, "%s: %s; see [admin] path", ctl->path,
			 r == -EADDRINUSE ? "another kvtierd answers there" :
			 r == -EEXIST     ? "exists and is no socket" :
					    strerror(-r));
		ctl_close(ctl);
		return r;
	}
	ctl->listening = true;
	*ret = ctl;
	return 0;
}

void ctl_close(struct ctl *ctl)
{
	struct stat st;

	if (!ctl)
		return;
	for (size_t i = 0; i < CTL_MAX_CONNECTIONS; i++) {
		if (ctl->conns[i].open)
			conn_close(&ctl->conns[i]);
	}
	loop_timer_unset(ctl->d->loop, &ctl->resume);
	if (ctl->watch.fd >= 0) {
		loop_remove(ctl->d->loop, &ctl->watch);
		(void)close(ctl->watch.fd);
	}
	if (ctl->bound && lstat(ctl->path, &st) == 0 && st.st_dev == ctl->device &&
	    st.st_ino == ctl->inode)
		(void)unlink(ctl->path);
	free(ctl);
}
