/* SPDX-License-Identifier: Apache-2.0 */
/* fake_peer.c - see fake_peer.h. Failures of its own are asserts: a test cannot go on without
 * it. */
#include "fake_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { INDEX_BYTES = WIRE_INDEX_OFFSET + 4096, SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

_Atomic int64_t fake_clock_ahead_ns;

static uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec +
	       (uint64_t)fake_clock_ahead_ns;
}

static void *memory(uint64_t bytes, int seals, int *ret_fd)
{
	void *p;

	*ret_fd = memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert(*ret_fd >= 0 && !ftruncate(*ret_fd, (off_t)bytes));
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd, 0);
	assert(p != MAP_FAILED && !fcntl(*ret_fd, F_ADD_SEALS, seals));
	return p;
}

static void memory_make(struct peer *peer)
{
	const uint32_t entries = peer->entries, arena = peer->arena;
	const int lie = peer->lie;

	peer->submit_bytes = wire_submit_bytes(entries, arena);
	peer->complete_bytes = lie == PEER_SMALL ? 4096 : wire_complete_bytes(entries, arena);
	peer->submit = memory(peer->submit_bytes, lie == PEER_UNSEALED ? F_SEAL_GROW : SEALS,
			      &peer->memory_fd[0]);
	peer->complete = memory(peer->complete_bytes,
				lie == PEER_WRITABLE ? SEALS : SEALS | F_SEAL_FUTURE_WRITE,
				&peer->memory_fd[1]);
	peer->index = memory(INDEX_BYTES, SEALS | F_SEAL_FUTURE_WRITE, &peer->memory_fd[2]);
	peer->index->magic = lie == PEER_BAD_INDEX ? 1 : WIRE_INDEX_MAGIC;
	peer->index->layout = WIRE_INDEX_LAYOUT;
	peer->index->bytes = INDEX_BYTES;
	peer->index->heartbeat_ns = now_ns();
	peer->complete->magic = WIRE_MAGIC;
	peer->sq_head = peer->cq_tail = 0;
}

static void send_fds(struct peer *peer, const void *message, size_t n, const int *fds, size_t n_fds)
{
	_Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(64 * sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)message, .iov_len = n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (n_fds) {
		struct cmsghdr *c;

		m.msg_control = control;
		m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		c = CMSG_FIRSTHDR(&m);
		*c = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
				       .cmsg_type = SCM_RIGHTS,
				       .cmsg_len = CMSG_LEN(n_fds * sizeof(int)) };
		memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
	}
	(void)sendmsg(peer->fd, &m, MSG_NOSIGNAL);
}

static void send_message(struct peer *peer, const void *message, size_t n)
{
	send_fds(peer, message, n, NULL, 0);
}

static struct wire_head head(uint16_t type, size_t n, uint32_t seq)
{
	return (struct wire_head){
		.magic = WIRE_MAGIC, .type = type, .length = (uint32_t)n, .seq = seq
	};
}

static void send_error(struct peer *peer, uint32_t seq, int error, const char *text)
{
	struct wire_error e = { .head = head(WIRE_ERROR, sizeof(e), seq), .error = error };

	(void)snprintf(e.text, sizeof(e.text), "%s", text);
	send_message(peer, &e, sizeof(e));
}

static void on_hello(struct peer *peer, uint32_t seq)
{
	static const uint8_t noise[2000] = { 1, 2, 3 };
	struct wire_hello_ok ok = { .head = head(WIRE_HELLO_OK, sizeof(ok), seq),
				    .version = WIRE_VERSION_MAX,
				    .sq_entries = peer->entries,
				    .cq_entries = peer->entries,
				    .arena_blocks = peer->arena,
				    .index_bytes = INDEX_BYTES,
				    .now_ns = now_ns() };
	const int lie = peer->lie;
	int many[20];

	if (lie == PEER_SILENT)
		return;
	memory_make(peer);
	ok.submit_bytes = peer->submit_bytes;
	ok.complete_bytes = wire_complete_bytes(peer->entries, peer->arena);
	for (int i = 0; i < 20; i++)
		many[i] = peer->memory_fd[0];
	if (lie == PEER_FULL)
		peer->hang_up = true;
	if (lie == PEER_VERSION)
		ok.version = 999;
	if (lie == PEER_ENTRIES)
		ok.sq_entries = ok.cq_entries = 3;
	if (lie == PEER_HUGE_ARENA)
		ok.arena_blocks = UINT32_MAX;
	if (lie == PEER_GARBAGE)
		send_message(peer, noise, 64);
	else if (lie == PEER_SHORT)
		send_fds(peer, &ok, sizeof(ok) / 2, peer->memory_fd, 3);
	else if (lie == PEER_LONG)
		send_message(peer, noise, sizeof(noise));
	else if (lie == PEER_REFUSES)
		send_error(peer, seq, -EPROTO, "versions do not meet");
	else if (lie == PEER_FULL)
		send_error(peer, seq, -EBUSY, "no place is free");
	else if (lie == PEER_NO_FDS)
		send_message(peer, &ok, sizeof(ok));
	else if (lie == PEER_MANY_FDS)
		send_fds(peer, &ok, sizeof(ok), many, 20);
	else
		send_fds(peer, &ok, sizeof(ok),
			 (int[]){ peer->memory_fd[0], peer->memory_fd[1], peer->memory_fd[2],
				  peer->pidfd },
			 peer->pidfd ? 4 : 3);
}

static void space_drop(struct peer_space *space)
{
	if (space->pages)
		(void)munmap(space->pages, space->bytes);
	memset(space, 0, sizeof(*space));
}

static void on_open(struct peer *peer, const struct wire_space_open *open, const int *fds)
{
	const struct wire_region *r = (const struct wire_region *)(const void *)(open + 1);
	const struct wire_segment *s =
		(const struct wire_segment *)(const void *)(r + open->n_regions);
	struct wire_space_ok ok = { .head = head(WIRE_SPACE_OK, sizeof(ok), open->head.seq),
				    .codec = 1 };
	struct peer_space *space;

	if (peer->lie == PEER_IGNORES_SPACE)
		return;
	if (peer->lie == PEER_REFUSES_SPACE) {
		send_error(peer, open->head.seq, -EINVAL,
			   "geometry.layers is 7, and I do not like it");
		return;
	}
	while (peer->spaces[ok.space].open)
		ok.space++;
	space = &peer->spaces[ok.space];
	space->open = true;
	if (open->n_regions) {
		space->bytes = r->offset + r->length;
		space->page_bytes = s->page_stride;
		assert(space->page_bytes <= PEER_PAGE_BYTES);
		space->pages =
			mmap(NULL, space->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
		assert(space->pages != MAP_FAILED);
		ok.pages = r->length / s->page_stride;
	}
	memset(ok.salt, peer->salt, sizeof(ok.salt));
	if (peer->lie == PEER_WRONG_HANDLE)
		ok.space = 99;
	send_message(peer, &ok, sizeof(ok));
}

static void on_packet(struct peer *peer)
{
	static _Alignas(8) uint8_t buffer[WIRE_MAX_MESSAGE];
	_Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(64 * sizeof(int))];
	struct iovec iov = { .iov_base = buffer, .iov_len = sizeof(buffer) };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	const ssize_t n = recvmsg(peer->fd, &m, MSG_CMSG_CLOEXEC);
	const struct wire_head *h = (const struct wire_head *)(const void *)buffer;
	const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
	int fds[64] = { -1 };
	size_t n_fds = 0;

	if (n <= 0) {
		peer->hang_up = true;
		return;
	}
	if (c) {
		n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds, CMSG_DATA(c), n_fds * sizeof(int));
	}
	assert(h->magic == WIRE_MAGIC && h->length == (size_t)n);
	if (h->type == WIRE_HELLO) {
		on_hello(peer, h->seq);
	} else if (h->type == WIRE_SPACE_OPEN) {
		on_open(peer, (const struct wire_space_open *)(const void *)buffer, fds);
	} else if (h->type == WIRE_SPACE_CLOSE && peer->lie != PEER_IGNORES_CLOSE) {
		struct wire_space_close closed =
			*(const struct wire_space_close *)(const void *)buffer;

		space_drop(&peer->spaces[closed.space]);
		closed.head.type = WIRE_SPACE_CLOSED;
		send_message(peer, &closed, sizeof(closed));
	}
	for (size_t i = 0; i < n_fds; i++)
		(void)close(fds[i]);
}

static struct peer_block *block_find(struct peer *peer, const uint8_t key[32])
{
	struct peer_block *unused = NULL;

	for (int i = 0; i < PEER_BLOCKS; i++) {
		if (peer->blocks[i].used && !memcmp(peer->blocks[i].key, key, 32))
			return &peer->blocks[i];
		if (!peer->blocks[i].used && !unused)
			unused = &peer->blocks[i];
	}
	assert(unused);
	return unused;
}

static int32_t one_block(struct peer *peer, const struct wire_sqe *sqe, uint32_t slot)
{
	const uint8_t *submit = (const uint8_t *)peer->submit;
	const uint8_t *key = submit + wire_keys_offset(peer->entries) + (uint64_t)slot * 32;
	const struct peer_space *space = &peer->spaces[sqe->space];
	struct peer_block *block = block_find(peer, key);
	uint8_t *bytes;
	uint32_t page;

	if (sqe->op == WIRE_OP_PREFETCH || sqe->op == WIRE_OP_HINT)
		return block->used ? 0 : -ENOENT;
	memcpy(&page, submit + wire_pages_offset(peer->entries, peer->arena) + (uint64_t)slot * 4,
	       4);
	if ((page + 1) * space->page_bytes > space->bytes)
		return -EFAULT;
	bytes = space->pages + page * space->page_bytes;
	if (sqe->op == WIRE_OP_LOAD) {
		if (block->used)
			memcpy(bytes, block->bytes, space->page_bytes);
		else
			/* a careful client does not show this */
			memset(bytes, 0xee, space->page_bytes);
		return block->used ? 0 : -ENOENT;
	}
	if (block->used)
		return KVTIER_BLOCK_PRESENT;
	memcpy(block->key, key, 32);
	memcpy(block->bytes, bytes, space->page_bytes);
	block->used = true;
	return 0;
}

static void publish(struct peer *peer, const struct wire_cqe *cqe)
{
	struct wire_cqe *ring =
		(struct wire_cqe *)(void *)((uint8_t *)peer->complete + WIRE_RING_OFFSET);

	ring[peer->cq_tail++ & (peer->entries - 1)] = *cqe;
}

static void publish_end(struct peer *peer)
{
	const struct wire_head wake = head(WIRE_WAKE, sizeof(wake), 0);

	__atomic_store_n(&peer->complete->cq_tail, peer->cq_tail, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&peer->complete->news, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&peer->submit->sleepers, __ATOMIC_SEQ_CST))
		(void)syscall(SYS_futex, &peer->complete->news, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	if (__atomic_load_n(&peer->submit->want_wake, __ATOMIC_SEQ_CST)) {
		send_message(peer, &wake, sizeof(wake));
		peer->wakes++;
	}
}

static void on_sqe(struct peer *peer, const struct wire_sqe *sqe)
{
	struct wire_cqe cqe = { .op_id = sqe->op_id, .n = sqe->n, .first = sqe->first };
	int32_t *statuses =
		(int32_t *)(void *)((uint8_t *)peer->complete + wire_status_offset(peer->entries));
	const struct wire_space_close closed = { .head = head(WIRE_SPACE_CLOSED, sizeof(closed),
							      4711) };
	const int lie = peer->lie;

	peer->deadline_ns = sqe->deadline_ns;
	peer->taken++;
	if (sqe->op == WIRE_OP_CANCEL || peer->keep)
		return; /* an op that is done at once cannot be cancelled */
	for (uint32_t i = 0; i < sqe->n; i++) {
		const int32_t status = one_block(peer, sqe, sqe->first + i);

		__atomic_store_n(&statuses[sqe->first + i], lie == PEER_WRONG_STATUS ? 2 : status,
				 __ATOMIC_RELAXED);
	}
	peer->ops++;
	cqe.op_id += lie == PEER_FOREIGN_CQE ? 256 : 0;
	cqe.n += lie == PEER_WRONG_N ? 1 : 0;
	publish(peer, &cqe);
	if (lie == PEER_DOUBLE_CQE)
		publish(peer, &cqe);
	if (lie == PEER_TAIL)
		peer->cq_tail += 100000;
	if (lie == PEER_UNASKED_REPLY)
		send_message(peer, &closed, sizeof(closed));
	else
		publish_end(peer);
}

static void ring_turn(struct peer *peer)
{
	const struct wire_sqe *ring;

	if (!peer->submit)
		return;
	ring = (const struct wire_sqe *)(const void *)((uint8_t *)peer->submit + WIRE_RING_OFFSET);
	if (!peer->quiet)
		__atomic_store_n(&peer->index->heartbeat_ns, now_ns(), __ATOMIC_RELAXED);
	/* A client that was lied to about sq_head may take back more than there is. */
	while (!peer->hold &&
	       __atomic_load_n(&peer->submit->sq_tail, __ATOMIC_SEQ_CST) - peer->sq_head - 1 <
		       peer->entries) {
		const struct wire_sqe sqe = ring[peer->sq_head & (peer->entries - 1)];

		peer->sq_head++;
		__atomic_store_n(&peer->complete->sq_head, peer->sq_head, __ATOMIC_RELEASE);
		on_sqe(peer, &sqe);
	}
}

static void connection_drop(struct peer *peer)
{
	for (int i = 0; i < WIRE_MAX_SPACES; i++)
		space_drop(&peer->spaces[i]);
	if (peer->submit) {
		(void)munmap(peer->submit, peer->submit_bytes);
		(void)munmap(peer->complete, peer->complete_bytes);
		(void)munmap(peer->index, INDEX_BYTES);
		for (int i = 0; i < 3; i++)
			(void)close(peer->memory_fd[i]);
	}
	peer->submit = NULL;
	(void)close(peer->fd);
	peer->fd = -1;
	peer->hang_up = false;
}

static void *peer_run(void *arg)
{
	struct peer *peer = arg;

	while (!peer->stop) {
		struct pollfd p = { .fd = peer->fd >= 0 ? peer->fd : peer->listen_fd,
				    .events = POLLIN };

		if (peer->fd >= 0 && peer->deaf)
			p.fd = -1;
		if (poll(&p, 1, 1) > 0 && !(peer->fd >= 0 && peer->deaf)) {
			if (peer->fd >= 0) {
				on_packet(peer);
			} else {
				peer->fd = accept4(peer->listen_fd, NULL, NULL, SOCK_CLOEXEC);
				peer->connections++;
				peer->hang_up = peer->lie == PEER_HANGS_UP;
			}
		}
		if (peer->fd >= 0)
			ring_turn(peer);
		if (peer->fd >= 0 && peer->hang_up)
			connection_drop(peer);
	}
	if (peer->fd >= 0)
		connection_drop(peer);
	return NULL;
}

void peer_start(struct peer *peer, enum peer_lie lie)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	memset(peer, 0, sizeof(*peer));
	peer->lie = lie;
	peer->entries = 64;
	peer->arena = 256;
	peer->fd = -1;
	peer->blocks = calloc(PEER_BLOCKS, sizeof(*peer->blocks));
	(void)snprintf(address.sun_path, sizeof(address.sun_path), "/tmp/kvtier-peer-%d.sock",
		       (int)getpid());
	memcpy(peer->path, address.sun_path, sizeof(peer->path));
	(void)unlink(peer->path);
	peer->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert(peer->blocks && peer->listen_fd >= 0);
	assert(!bind(peer->listen_fd, (const struct sockaddr *)&address, sizeof(address)));
	assert(!listen(peer->listen_fd, 8));
	assert(!pthread_create(&peer->thread, NULL, peer_run, peer));
}

void peer_stop(struct peer *peer)
{
	peer->stop = true;
	(void)pthread_join(peer->thread, NULL);
	(void)close(peer->listen_fd);
	(void)unlink(peer->path);
	free(peer->blocks);
}
