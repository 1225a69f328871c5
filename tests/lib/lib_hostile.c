/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_hostile.c - see lib_hostile.h. First the wire protocol, for connections that may be refused,
 * cut or left at any step: no call there waits for longer than 200 ms, and no call asserts. Then
 * the deeds, and the process with its threads.
 */
#include "lib_hostile.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "client/kvtier.h"
#include "lib_packet.h"
#include "test.h"

enum {
	PATIENCE_MS = 200,
	OP_BLOCKS = 16,
	ARENA = 1024,
	OP_MS = 2000,
	VALUE_BYTES = 2,
	KEYS = 4096
};

/* Pages [page][layer][K|V][token][head][dim] of BF16; with a token stride,
 * [page][layer][token] with K and V of a token in either half of it. */
struct evil_layout {
	uint32_t layers, heads, dim, tokens, pages;
	uint64_t token_stride; /* 0: close together */
	bool touched;          /* its memory is there before the daemon sees it */
	bool fp8;              /* else raw; touched with values that fp8 holds */
};

/* A thread, and its connection. */
struct evil {
	const char *socket;
	struct hostile_tally *tally;
	int fd; /* -1: not connected */
	uint32_t seq;
	struct wire_hello_ok ok;
	struct wire_submit *submit;
	const struct wire_complete *complete;
	uint32_t space, n_pages;
	int memory; /* of the space's region, or -1 */
	uint8_t *pages;
	size_t bytes;
	uint64_t model; /* which space it is; 0: the usual one */
	uint64_t op_id, key;
	bool starves; /* takes no completions */
	const enum hostile_deed *deeds;
	uint32_t n_deeds;
	atomic_bool stop;
	struct random random;
};

static int evil_memfd(uint64_t bytes, int seals)
{
	const int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd >= 0 && (ftruncate(fd, (off_t)bytes) || (seals && fcntl(fd, F_ADD_SEALS, seals)))) {
		(void)close(fd);
		return -1;
	}
	return fd;
}

/* --- connection --- */

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

static void evil_close(struct evil *e)
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

static int evil_dial(struct evil *e)
{
	e->fd = packet_dial(e->socket, PATIENCE_MS);
	return e->fd < 0 ? e->fd : 0;
}

static struct wire_head head(struct evil *e, enum wire_type type, size_t n)
{
	return packet_head(type, n, ++e->seq);
}

static void close_all(int *fds, size_t n)
{
	while (n > 0)
		(void)close(fds[--n]);
}

/* Skips messages that it did not ask for. */
static bool receive_reply(const struct evil *e, enum wire_type type, void *ret, size_t n,
			  int fds[PACKET_FDS], size_t *ret_fds)
{
	uint8_t packet[512];

	for (int i = 0; i < 64; i++) {
		const ssize_t got = packet_receive(e->fd, 0, packet, sizeof(packet), fds, ret_fds);
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

/* This one, evil_ring_with() and evil_space_over() wait for no answer. */
static int evil_hello_with(struct evil *e, const int *fds, size_t n)
{
	const struct wire_hello hello = packet_hello(++e->seq, ARENA, "hostile");

	return packet_with_fds(e->fd, &hello, sizeof(hello), fds, n);
}

static int evil_hello(struct evil *e)
{
	int fds[PACKET_FDS];
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

static int evil_open(struct evil *e)
{
	const int r = evil_dial(e);

	return r ? r : evil_hello(e);
}

/* Reads, and forgets, the daemon's messages. */
static bool evil_is_cut(struct evil *e)
{
	uint8_t packet[512];
	int fds[PACKET_FDS];
	size_t n;
	ssize_t got;

	do {
		got = packet_receive(e->fd, MSG_DONTWAIT, packet, sizeof(packet), fds, &n);
		close_all(fds, n);
	} while (got > 0);
	return got == 0 || (got != -EAGAIN && got != -EINTR);
}

static int evil_ring_with(struct evil *e, const int *fds, size_t n)
{
	const struct wire_head bell = head(e, WIRE_DOORBELL, sizeof(bell));

	return packet_with_fds(e->fd, &bell, sizeof(bell), fds, n);
}

static void evil_ring(struct evil *e)
{
	(void)evil_ring_with(e, NULL, 0);
}

/* A request that is refused; the refusal is not read. */
static void evil_ask_nonsense(struct evil *e)
{
	const struct wire_space_close close_none = {
		.head = head(e, WIRE_SPACE_CLOSE, sizeof(close_none)), .space = 31
	};
	const int flags = fcntl(e->fd, F_GETFL);

	(void)fcntl(e->fd, F_SETFL, flags | O_NONBLOCK);
	(void)packet_with_fds(e->fd, &close_none, sizeof(close_none), NULL, 0);
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

static int evil_space(struct evil *e, const struct evil_layout *l)
{
	struct evil_space_message m;
	struct wire_space_ok ok;
	int fds[PACKET_FDS];
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
	if (packet_with_fds(e->fd, &m, n, &e->memory, 1) ||
	    !receive_reply(e, WIRE_SPACE_OK, &ok, sizeof(ok), fds, &n))
		return -EPROTO;
	close_all(fds, n);
	e->space = ok.space;
	e->n_pages = l->pages;
	return 0;
}

static int evil_space_over(struct evil *e, const struct evil_layout *l, const int *fds, size_t n)
{
	struct evil_space_message m;
	const size_t bytes = fill(e, l, &m);

	m.region.fd_index = random_below(&e->random, (uint32_t)n);
	return packet_with_fds(e->fd, &m, bytes, fds, n);
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
		sqe.deadline_ns = clock_ns() + OP_MS * 1000000ull;
		sqe.first = tail % slots * OP_BLOCKS;
		put_keys(e, sqe.first, store);
	}
	ring[tail & (e->ok.sq_entries - 1)] = sqe;
}

/* As many ops as the ring takes; whether there were any. Stores of new keys and loads of some that
 * were stored before, or NOPs. */
static bool evil_push(struct evil *e, bool nop)
{
	const uint32_t slots = e->ok.arena_blocks / OP_BLOCKS;
	const uint32_t room = slots < e->ok.sq_entries ? slots : e->ok.sq_entries;
	const uint32_t done = __atomic_load_n(&e->complete->cq_tail, __ATOMIC_ACQUIRE);
	uint32_t tail = __atomic_load_n(&e->submit->sq_tail, __ATOMIC_ACQUIRE);
	uint32_t n = 0;

	if (!e->starves)
		__atomic_store_n(&e->submit->cq_head, done, __ATOMIC_SEQ_CST);
	/* Each op has one completion, so the ops behind it are outstanding. */
	for (; tail - done < room && n < room; n++)
		put(e, tail++, nop || e->n_pages == 0);
	if (n == 0)
		return false;
	atomic_fetch_add(&e->tally->ops, n);
	__atomic_store_n(&e->submit->sq_tail, tail, __ATOMIC_SEQ_CST);
	evil_ring(e);
	return true;
}

/* --- the threads --- */

enum {
	HELD = 300,
	SPACES = 64,
	DESCRIPTORS = 13,
	DESCRIPTORS_AT_ONCE = 4,
	LIFE_MS = 60,
	BUSY_MS = 200
};

/* --- jobs --- */

static const struct evil_layout tiny = {
	.layers = 2, .heads = 2, .dim = 32, .tokens = 16, .pages = 64, .touched = true
};
/* 4,096 rows a block, each on a page of its own */
static const struct evil_layout slow = { .layers = 4,
					 .heads = 2,
					 .dim = 64,
					 .tokens = 512,
					 .pages = 4,
					 .token_stride = 65536,
					 .touched = true };
static const struct evil_layout sparse = {
	.layers = 4, .heads = 2, .dim = 64, .tokens = 512, .pages = 8, .token_stride = 1 << 20
};
/* 65,536 tiles of 32 bytes a block */
static const struct evil_layout tiles = { .layers = 32,
					  .heads = 1024,
					  .dim = 1,
					  .tokens = 16,
					  .pages = 4,
					  .touched = true,
					  .fp8 = true };
static const struct evil_layout big = {
	.layers = 16, .heads = 8, .dim = 128, .tokens = 16, .pages = 32, .touched = true
};

/* Ops of this layout without a pause, for one life. Between them `beside` runs. */
static void keep_busy(struct evil *e, const struct evil_layout *layout,
		      void (*beside)(struct evil *e))
{
	uint64_t end;

	if (evil_open(e))
		return;
	if (layout == &tiles) /* a space measures its first store, and then one a second */
		e->model = random_next(&e->random);
	if (evil_space(e, layout))
		return;
	end = clock_ns() + BUSY_MS * 1000000ull;
	while (clock_ns() < end) {
		const bool pushed = evil_push(e, false);

		if (beside)
			beside(e);
		if (!pushed || evil_is_cut(e))
			(void)usleep(200);
	}
}

static void punch(struct evil *e)
{
	for (int i = 0; i < 16; i++)
		(void)fallocate(e->memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				(off_t)random_below(&e->random, (uint32_t)(e->bytes / 4096)) * 4096,
				4096);
}

/* Any bytes, anywhere in memory that it may write. */
__attribute__((no_sanitize("thread"))) static void scribble(struct evil *e)
{
	for (int i = 0; i < 400 && e->submit; i++) {
		const uint64_t x = random_next(&e->random),
			       bytes = e->ok.submit_bytes - WIRE_RING_OFFSET;
		volatile uint8_t *at =
			(volatile uint8_t *)e->submit + WIRE_RING_OFFSET + (x >> 8) % bytes;

		*at = (uint8_t)(x >> 56) & (x & 16 ? 0xff : 3);
		if (x % 7 == 0)
			e->pages[(x >> 20) % e->bytes] = (uint8_t)x;
	}
}

static void *scribbler(void *arg)
{
	struct evil *e = arg;

	while (!atomic_load(&e->stop))
		scribble(e);
	return NULL;
}

/* By a thread of its own, so that the daemon reads while it writes. */
static void rewrite(struct evil *e)
{
	static struct evil other; /* only one thread does this */
	pthread_t thread;

	if (evil_open(e) || evil_space(e, &tiny))
		return;
	other = *e;
	atomic_store(&other.stop, false);
	if (pthread_create(&thread, NULL, scribbler, &other))
		return;
	for (int i = 0; i < 60 && !evil_is_cut(e); i++) {
		(void)evil_push(e, false);
		(void)usleep(300);
	}
	atomic_store(&other.stop, true);
	(void)pthread_join(thread, NULL);
}

/* --- rings --- */

static void flood(struct evil *e)
{
	const uint64_t end = clock_ns() + LIFE_MS * 1000000ull;

	if (evil_open(e) || evil_space(e, &tiny))
		return;
	while (clock_ns() < end && !evil_is_cut(e)) {
		(void)evil_push(e, random_below(&e->random, 4));
		for (int i = 0; i < 20; i++)
			evil_ring(e);
	}
}

/* Ops whose completions it leaves, requests whose replies it leaves, until nothing more is
 * taken. */
static void starve(struct evil *e)
{
	if (evil_open(e) || evil_space(e, &tiny))
		return;
	e->starves = true;
	for (int i = 0; i < 200; i++) {
		(void)evil_push(e, false);
		evil_ask_nonsense(e);
	}
	(void)usleep(LIFE_MS * 1000);
}

/* --- connections --- */

static int lingering_socket(void)
{
	const struct linger linger = { .l_onoff = 1, .l_linger = 10 };
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	static char bytes[1 << 20];
	socklen_t n = sizeof(at);
	const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	/* Never accepted, and with more in it than both buffers hold. */
	if (bind(listener, (struct sockaddr *)&at, n) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&at, &n) ||
	    connect(fd, (struct sockaddr *)&at, n))
		at.sin_port = 0;
	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	(void)fcntl(fd, F_SETFL, O_NONBLOCK);
	while (at.sin_port && send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) > 0)
		;
	(void)fcntl(fd, F_SETFL, 0);
	(void)close(listener);
	return fd;
}

static int end_of_pipe(int which)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC))
		return -1;
	(void)close(fds[!which]);
	return fds[which];
}

static int end_of_socket_pair(void)
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		return -1;
	(void)close(fds[0]);
	return fds[1];
}

static int descriptor(uint32_t kind)
{
	char path[] = "/tmp/kvtier-hostile-XXXXXX";
	int fd;

	switch (kind) {
	case 0:
		return lingering_socket();
	case 1:
		return end_of_pipe(0);
	case 2:
		return end_of_pipe(1);
	case 3:
		return eventfd(7, EFD_CLOEXEC);
	case 4:
		return epoll_create1(EPOLL_CLOEXEC);
	case 5:
		return evil_memfd(1 << 20, 0);
	case 6:
		return evil_memfd(1 << 20, F_SEAL_SHRINK | F_SEAL_WRITE);
	case 7:
		return evil_memfd(64ull << 30, F_SEAL_SHRINK);
	case 8:
		return open("/dev/zero", O_RDWR | O_CLOEXEC);
	case 9:
		return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	case 10:
		return open("/", O_PATH | O_CLOEXEC);
	case 11:
		return end_of_socket_pair();
	default:
		fd = mkostemp(path, O_CLOEXEC);
		(void)unlink(path);
		return fd;
	}
}

/* A socket of one's own that lingers would hold up its closer. */
static void close_at_once(int fd)
{
	const struct linger none = { .l_onoff = 1 };

	if (fd < 0)
		return;
	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	(void)close(fd);
}

/* In a message that may have some, and in one that may not. The descriptors are closed here before
 * the daemon has them, so that the daemon's are the last references. */
static void descriptors(struct evil *e)
{
	int fds[DESCRIPTORS_AT_ONCE];
	bool sent = false;

	for (int i = 0; i < DESCRIPTORS_AT_ONCE; i++)
		fds[i] = descriptor(random_below(&e->random, DESCRIPTORS));
	if (evil_dial(e) == 0) {
		const uint32_t how = random_below(&e->random, 3);

		if (how == 0)
			sent = evil_hello_with(e, fds, DESCRIPTORS_AT_ONCE) == 0;
		else if (evil_hello(e) == 0)
			sent = (how == 1 ? evil_space_over(e, &tiny, fds, DESCRIPTORS_AT_ONCE) :
					   evil_ring_with(e, fds, DESCRIPTORS_AT_ONCE)) == 0;
	}
	for (int i = 0; i < DESCRIPTORS_AT_ONCE; i++)
		if (sent && fds[i] >= 0)
			(void)close(fds[i]);
		else
			close_at_once(fds[i]);
	(void)usleep(5000);
}

static void half_way(struct evil *e)
{
	const uint32_t steps = random_below(&e->random, 4);

	if (evil_dial(e) || steps == 0)
		return;
	if (steps == 1) {
		(void)evil_hello_with(e, NULL, 0); /* and does not stay for the answer */
		return;
	}
	if (evil_hello(e) || evil_space(e, &tiny) || steps == 2)
		return;
	(void)evil_push(e, false); /* dies with its ops */
}

static void spaces(struct evil *e)
{
	for (int i = 0; i < SPACES; i++) {
		if (i % 16 == 0) {
			evil_close(e);
			if (evil_open(e))
				return;
		}
		e->model = random_next(&e->random);
		if (evil_space(e, &tiny) == 0)
			(void)evil_push(e, false);
	}
}

static void hold(struct evil *e)
{
	static int fds[HELD]; /* only one thread does this */
	int n = 0;

	while (n < HELD && (fds[n] = packet_dial(e->socket, PATIENCE_MS)) >= 0)
		n++;
	(void)usleep(LIFE_MS * 1000);
	while (n > 0)
		(void)close(fds[--n]);
}

/* --- the process --- */

/* Each is a function, or a layout that is kept busy. */
static const struct {
	const char *name;
	void (*does)(struct evil *e);
	const struct evil_layout *layout;
	void (*beside)(struct evil *e);
} deeds[HOSTILE_DEEDS] = {
	[HOSTILE_SLOW] = { "slow layouts", NULL, &slow, NULL },
	[HOSTILE_SPARSE] = { "sparse regions", NULL, &sparse, NULL },
	[HOSTILE_TILES] = { "many tiles", NULL, &tiles, NULL },
	[HOSTILE_BIG] = { "big blocks", NULL, &big, NULL },
	[HOSTILE_HOLES] = { "holes", NULL, &tiny, punch },
	[HOSTILE_REWRITE] = { "rewritten rings", rewrite, NULL, NULL },
	[HOSTILE_FLOOD] = { "floods", flood, NULL, NULL },
	[HOSTILE_STARVE] = { "starved rings", starve, NULL, NULL },
	[HOSTILE_DESCRIPTORS] = { "descriptors", descriptors, NULL, NULL },
	[HOSTILE_HALF_WAY] = { "ends half-way", half_way, NULL, NULL },
	[HOSTILE_SPACES] = { "spaces", spaces, NULL, NULL },
	[HOSTILE_HOLD] = { "connections held", hold, NULL, NULL },
};

const char *hostile_deed_name(enum hostile_deed deed)
{
	return deeds[deed].name;
}

static void one(struct evil *e, enum hostile_deed deed)
{
	if (deeds[deed].does)
		deeds[deed].does(e);
	else
		keep_busy(e, deeds[deed].layout, deeds[deed].beside);
	evil_close(e);
	atomic_fetch_add(&e->tally->deeds[deed], 1);
}

static void *run(void *arg)
{
	struct evil *e = arg;

	for (;;) {
		one(e, e->deeds[random_below(&e->random, e->n_deeds)]);
		(void)usleep(1000); /* a refusal is quick */
	}
	return NULL;
}

static void be_hostile(const char *socket_path, struct hostile_tally *tally, uint64_t seed)
{
	static const enum hostile_deed jobs[] = { HOSTILE_SLOW, HOSTILE_SPARSE, HOSTILE_TILES,
						  HOSTILE_BIG,  HOSTILE_HOLES,  HOSTILE_REWRITE },
				       rings[] = { HOSTILE_FLOOD, HOSTILE_STARVE },
				       connections[] = { HOSTILE_DESCRIPTORS, HOSTILE_DESCRIPTORS,
							 HOSTILE_DESCRIPTORS, HOSTILE_HALF_WAY,
							 HOSTILE_HALF_WAY,    HOSTILE_HALF_WAY,
							 HOSTILE_SPACES,      HOSTILE_SPACES,
							 HOSTILE_HOLD };
	static struct evil threads[] = {
		{ .deeds = jobs, .n_deeds = sizeof(jobs) / sizeof(*jobs) },
		{ .deeds = rings, .n_deeds = sizeof(rings) / sizeof(*rings) },
		{ .deeds = connections, .n_deeds = sizeof(connections) / sizeof(*connections) },
	};
	pthread_t thread;

	for (size_t i = 0; i < sizeof(threads) / sizeof(*threads); i++) {
		threads[i].socket = socket_path;
		threads[i].tally = tally;
		threads[i].random.state = seed + i;
		threads[i].fd = threads[i].memory = -1;
		if (pthread_create(&thread, NULL, run, &threads[i]))
			_exit(1);
	}
	for (;;)
		pause();
}

int hostile_start(struct hostile *h, const char *socket_path, uint64_t seed)
{
	if (!h->tally) {
		h->tally = mmap(NULL, sizeof(*h->tally), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (h->tally == MAP_FAILED) {
			h->tally = NULL;
			return -ENOMEM;
		}
	}
	h->pid = fork();
	if (h->pid < 0)
		return -errno;
	if (h->pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)signal(SIGPIPE, SIG_IGN);
		(void)setpriority(PRIO_PROCESS, 0, 19);
		if (h->idle) /* its threads inherit it */
			(void)sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 });
		(void)close_range(3, ~0u, 0); /* inherited descriptors are its parent's */
		be_hostile(socket_path, h->tally, seed);
	}
	return 0;
}

void hostile_stop(struct hostile *h)
{
	if (h->pid <= 0)
		return;
	(void)kill(h->pid, SIGKILL);
	(void)waitpid(h->pid, NULL, 0);
	h->pid = 0;
}

void hostile_free(struct hostile *h)
{
	hostile_stop(h);
	if (h->tally)
		(void)munmap(h->tally, sizeof(*h->tally));
	h->tally = NULL;
}
