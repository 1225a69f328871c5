/* SPDX-License-Identifier: Apache-2.0 */
/* lib_hostile_wire.c - see lib_hostile_wire.h. */
#include "lib_hostile_wire.h"
#include "lib_packet.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client/kvtier.h"

enum {
	PATIENCE_US = 200000,
	MAX_FDS = 8,
	OP_BLOCKS = 16,
	ARENA = 1024,
	OP_MS = 2000,
	VALUE_BYTES = 2,
	KEYS = 4096
};

uint64_t evil_now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void evil_nap_us(uint32_t us)
{
	const struct timespec t = { .tv_sec = us / 1000000,
				    .tv_nsec = (long)(us % 1000000) * 1000 };

	(void)nanosleep(&t, NULL);
}

int evil_memfd(uint64_t bytes, int seals)
{
	const int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd >= 0 && (ftruncate(fd, (off_t)bytes) || (seals && fcntl(fd, F_ADD_SEALS, seals)))) {
		(void)close(fd);
		return -1;
	}
	return fd;
}

/* --- connection --- */

void evil_init(struct evil *e, uint64_t seed)
{
	memset(e, 0, sizeof(*e));
	e->random.state = seed;
	e->fd = e->memory = -1;
}

static void forget_space(struct evil *e)
{
	if (e->pages)
		(void)munmap(e->pages, e->bytes);
	if (e->memory >= 0)
		(void)close(e->memory);
	e->pages = NULL;
	e->memory = -1;
	e->n_pages = 0;
}

void evil_close(struct evil *e)
{
	forget_space(e);
	if (e->submit)
		(void)munmap(e->submit, e->ok.submit_bytes);
	if (e->complete)
		(void)munmap((void *)(uintptr_t)e->complete, e->ok.complete_bytes);
	if (e->fd >= 0)
		(void)close(e->fd);
	e->submit = NULL;
	e->complete = NULL;
	e->fd = -1;
	e->model = 0;
	e->starves = false;
}

int evil_connect(const char *socket_path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	const struct timeval patience = { .tv_usec = PATIENCE_US };
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	(void)snprintf(to.sun_path, sizeof(to.sun_path), "%s", socket_path);
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (connect(fd, (const struct sockaddr *)&to, sizeof(to))) {
		const int r = -errno;

		(void)close(fd);
		return r;
	}
	return fd;
}

int evil_dial(struct evil *e, const char *socket_path)
{
	e->fd = evil_connect(socket_path);
	return e->fd < 0 ? e->fd : 0;
}

static struct wire_head head(struct evil *e, enum wire_type type, size_t n)
{
	return (struct wire_head){
		.magic = WIRE_MAGIC, .type = (uint16_t)type, .length = (uint32_t)n, .seq = ++e->seq
	};
}

static int send_with(const struct evil *e, const void *message, size_t n, const int *fds,
		     size_t n_fds)
{
	return packet_with_fds(e->fd, message, n, fds, n_fds);
}

/* Bytes of the next packet; -errno; 0: closed. */
static ssize_t receive(const struct evil *e, void *ret, size_t room, int flags, int fds[MAX_FDS],
		       size_t *ret_fds)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
	} control;
	struct iovec iov = { .iov_base = ret, .iov_len = room };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.bytes,
			    .msg_controllen = sizeof(control.bytes) };
	const ssize_t n = recvmsg(e->fd, &m, MSG_CMSG_CLOEXEC | flags);

	*ret_fds = 0;
	if (n < 0)
		return -errno;
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
		if (h->cmsg_type == SCM_RIGHTS) {
			*ret_fds = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(h), *ret_fds * sizeof(int));
		}
	return n;
}

static void close_all(int *fds, size_t n)
{
	while (n > 0)
		(void)close(fds[--n]);
}

/* Skips messages that it did not ask for. */
static bool receive_reply(const struct evil *e, enum wire_type type, void *ret, size_t n,
			  int fds[MAX_FDS], size_t *ret_fds)
{
	uint8_t packet[512];

	for (int i = 0; i < 64; i++) {
		const ssize_t got = receive(e, packet, sizeof(packet), 0, fds, ret_fds);
		struct wire_head h;

		if (got < (ssize_t)sizeof(h))
			return false;
		memcpy(&h, packet, sizeof(h));
		if (h.type == type && (size_t)got == n) {
			memcpy(ret, packet, n);
			return true;
		}
		close_all(fds, *ret_fds);
		if (h.type == WIRE_ERROR)
			return false;
	}
	return false;
}

int evil_hello_with(struct evil *e, const int *fds, size_t n)
{
	struct wire_hello hello = packet_hello(ARENA, "hostile");

	hello.head = head(e, WIRE_HELLO, sizeof(hello));
	return send_with(e, &hello, sizeof(hello), fds, n);
}

int evil_hello(struct evil *e)
{
	int fds[MAX_FDS];
	size_t n;
	void *submit, *complete;

	if (evil_hello_with(e, NULL, 0) ||
	    !receive_reply(e, WIRE_HELLO_OK, &e->ok, sizeof(e->ok), fds, &n))
		return -EPROTO;
	if (n < 2) {
		close_all(fds, n);
		return -EPROTO;
	}
	submit = mmap(NULL, e->ok.submit_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	complete = mmap(NULL, e->ok.complete_bytes, PROT_READ, MAP_SHARED, fds[1], 0);
	close_all(fds, n);
	e->submit = submit == MAP_FAILED ? NULL : submit;
	e->complete = complete == MAP_FAILED ? NULL : complete;
	return e->submit && e->complete ? 0 : -ENOMEM;
}

int evil_open(struct evil *e, const char *socket_path)
{
	const int r = evil_dial(e, socket_path);

	return r ? r : evil_hello(e);
}

bool evil_is_cut(struct evil *e)
{
	uint8_t packet[512];
	int fds[MAX_FDS];
	size_t n;
	ssize_t got;

	do {
		got = receive(e, packet, sizeof(packet), MSG_DONTWAIT, fds, &n);
		close_all(fds, n);
	} while (got > 0);
	return got == 0 || (got != -EAGAIN && got != -EINTR);
}

void evil_ring(struct evil *e)
{
	(void)evil_ring_with(e, NULL, 0);
}

int evil_ring_with(struct evil *e, const int *fds, size_t n)
{
	const struct wire_head bell = head(e, WIRE_DOORBELL, sizeof(bell));

	return send_with(e, &bell, sizeof(bell), fds, n);
}

void evil_ask_nonsense(struct evil *e)
{
	const struct wire_space_close close_none = {
		.head = head(e, WIRE_SPACE_CLOSE, sizeof(close_none)), .space = 31
	};
	const int flags = fcntl(e->fd, F_GETFL);

	(void)fcntl(e->fd, F_SETFL, flags | O_NONBLOCK);
	(void)send_with(e, &close_none, sizeof(close_none), NULL, 0);
	(void)fcntl(e->fd, F_SETFL, flags);
}

/* --- spaces --- */

struct evil_space_message {
	struct wire_space_open open;
	struct wire_region region;
	struct wire_segment segments[128];
};

static uint64_t row_bytes(const struct evil_layout *l)
{
	return (uint64_t)l->heads * l->dim * VALUE_BYTES;
}

static uint64_t page_bytes(const struct evil_layout *l)
{
	return (uint64_t)l->layers * l->tokens *
	       (l->token_stride ? l->token_stride : 2 * row_bytes(l));
}

static uint64_t region_bytes(const struct evil_layout *l)
{
	return (page_bytes(l) * l->pages + 4095) & ~4095ull;
}

static size_t fill(struct evil *e, const struct evil_layout *l, struct evil_space_message *m)
{
	const uint64_t layer_bytes = page_bytes(l) / l->layers;
	const size_t n =
		sizeof(m->open) + sizeof(m->region) + 2ull * l->layers * sizeof(*m->segments);

	memset(m, 0, sizeof(*m));
	m->open.head = head(e, WIRE_SPACE_OPEN, n);
	m->open.n_regions = 1;
	m->open.n_segments = 2 * l->layers;
	m->open.geometry = (struct wire_geometry){
		.dtype = KVTIER_BF16,
		.codec = l->fp8 ? KVTIER_CODEC_FP8 : KVTIER_CODEC_RAW,
		.layers = l->layers,
		.kv_heads = l->heads,
		.head_dim_k = l->dim,
		.head_dim_v = l->dim,
		.block_tokens = l->tokens,
		.world = 1,
	};
	(void)snprintf(m->open.geometry.model, sizeof(m->open.geometry.model), "hostile%llx@1",
		       (unsigned long long)e->model);
	m->region = (struct wire_region){ .memory = WIRE_MEMFD, .length = region_bytes(l) };
	for (uint32_t i = 0; i < 2 * l->layers; i++)
		m->segments[i] = (struct wire_segment){
			.layer = i / 2,
			.kind = i % 2 ? KVTIER_V : KVTIER_K,
			.offset = i / 2 * layer_bytes +
				  i % 2 * (l->token_stride ? l->token_stride / 2 : layer_bytes / 2),
			.page_stride = page_bytes(l),
			.head_stride = (uint64_t)l->dim * VALUE_BYTES,
			.token_stride = l->token_stride ? l->token_stride : row_bytes(l),
		};
	return n;
}

/* One page of each row, or each page where rows lie close together; each byte for fp8. */
static void touch(struct evil *e, const struct evil_layout *l)
{
	const uint64_t step = l->token_stride ? l->token_stride / 2 : 4096;

	if (l->fp8) {
		memset(e->pages, 0x3f, e->bytes);
		return;
	}
	for (uint64_t at = 0; at < e->bytes; at += step)
		e->pages[at] = (uint8_t)at | 1;
}

int evil_space(struct evil *e, const struct evil_layout *l)
{
	struct evil_space_message m;
	struct wire_space_ok ok;
	int fds[MAX_FDS];
	size_t n = fill(e, l, &m);

	forget_space(e);
	e->bytes = region_bytes(l);
	e->memory = evil_memfd(e->bytes, F_SEAL_SHRINK | F_SEAL_GROW);
	e->pages = mmap(NULL, e->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
			e->memory, 0);
	if (e->pages == MAP_FAILED) {
		e->pages = NULL;
		return -ENOMEM;
	}
	if (l->touched)
		touch(e, l);
	if (send_with(e, &m, n, &e->memory, 1) ||
	    !receive_reply(e, WIRE_SPACE_OK, &ok, sizeof(ok), fds, &n))
		return -EPROTO;
	close_all(fds, n);
	e->space = ok.space;
	e->n_pages = l->pages;
	return 0;
}

int evil_space_over(struct evil *e, const struct evil_layout *l, const int *fds, size_t n)
{
	struct evil_space_message m;
	const size_t bytes = fill(e, l, &m);

	m.region.fd_index = random_below(&e->random, (uint32_t)n);
	return send_with(e, &m, bytes, fds, n);
}

/* --- rings --- */

/* Most of the time it asks for keys that it stored lately. */
static void put_keys(struct evil *e, uint32_t first, bool store)
{
	uint8_t *keys = (uint8_t *)e->submit + wire_keys_offset(e->ok.sq_entries);
	uint32_t *pages =
		(uint32_t *)(void *)((char *)e->submit +
				     wire_pages_offset(e->ok.sq_entries, e->ok.arena_blocks));
	const uint32_t lately = e->key < KEYS ? (uint32_t)e->key : KEYS;
	const uint64_t from = store || !lately ? e->key : e->key - random_below(&e->random, lately);

	for (uint32_t i = 0; i < OP_BLOCKS; i++) {
		random_key((uint64_t)e->memory << 40 ^ (from + i), keys + (size_t)(first + i) * 32);
		pages[first + i] = random_below(&e->random, e->n_pages);
	}
	e->key += store ? OP_BLOCKS : 0;
}

static void put(struct evil *e, uint32_t tail, bool nop)
{
	struct wire_sqe *ring = (struct wire_sqe *)(void *)((char *)e->submit + WIRE_RING_OFFSET);
	const bool store = random_below(&e->random, 2);
	const uint32_t slots = e->ok.arena_blocks / OP_BLOCKS;
	struct wire_sqe sqe = {
		.op = nop   ? WIRE_OP_NOP :
		      store ? WIRE_OP_STORE :
			      WIRE_OP_LOAD,
		.space = (uint16_t)e->space,
		.op_id = ++e->op_id,
	};

	if (!nop) {
		sqe.n = OP_BLOCKS;
		sqe.deadline_ns = evil_now_ns() + OP_MS * 1000000ull;
		sqe.first = tail % slots * OP_BLOCKS;
		put_keys(e, sqe.first, store);
	}
	ring[tail & (e->ok.sq_entries - 1)] = sqe;
}

static uint64_t push(struct evil *e, bool nop)
{
	const uint32_t slots = e->ok.arena_blocks / OP_BLOCKS;
	const uint32_t room = slots < e->ok.sq_entries ? slots : e->ok.sq_entries;
	const uint32_t done = __atomic_load_n(&e->complete->cq_tail, __ATOMIC_ACQUIRE);
	uint32_t tail = __atomic_load_n(&e->submit->sq_tail, __ATOMIC_ACQUIRE);
	uint64_t n = 0;

	if (!e->starves)
		__atomic_store_n(&e->submit->cq_head, done, __ATOMIC_SEQ_CST);
	/* Each op has one completion, so the ops behind it are outstanding. */
	for (; tail - done < room && n < room; n++)
		put(e, tail++, nop);
	if (n == 0)
		return 0;
	__atomic_store_n(&e->submit->sq_tail, tail, __ATOMIC_SEQ_CST);
	evil_ring(e);
	return n;
}

uint64_t evil_push_blocks(struct evil *e)
{
	return push(e, e->n_pages == 0);
}

uint64_t evil_push_nops(struct evil *e)
{
	return push(e, true);
}
