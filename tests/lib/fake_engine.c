/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of the fakes themselves are asserts: a test cannot go on without them. */
#include "fake_engine.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>

#include "base/clock.h"
#include "lib_packet.h"
#include "test.h"

enum { INDEX_BYTES = WIRE_INDEX_OFFSET + 4096, SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

_Atomic int64_t fake_clock_ahead_ns;

static uint64_t its_now_ns(void)
{
	return clock_ns() + (uint64_t)fake_clock_ahead_ns;
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
	peer->index->heartbeat_ns = its_now_ns();
	peer->complete->magic = WIRE_MAGIC;
	peer->sq_head = peer->cq_tail = 0;
}

static void send_message(struct peer *peer, const void *message, size_t n)
{
	(void)packet_with_fds(peer->fd, message, n, NULL, 0);
}

static void send_error(struct peer *peer, uint32_t seq, int error, const char *text)
{
	struct wire_error e = { .head = packet_head(WIRE_ERROR, sizeof(e), seq), .error = error };

	(void)snprintf(e.text, sizeof(e.text), "%s", text);
	send_message(peer, &e, sizeof(e));
}

static void on_hello(struct peer *peer, uint32_t seq)
{
	static const uint8_t noise[2000] = { 1, 2, 3 };
	const size_t bytes = wire_hello_ok_bytes(peer->version);
	struct wire_hello_ok ok = { .head = packet_head(WIRE_HELLO_OK, bytes, seq),
				    .version = peer->version,
				    .sq_entries = peer->entries,
				    .cq_entries = peer->entries,
				    .arena_blocks = peer->arena,
				    .index_bytes = INDEX_BYTES,
				    .now_ns = its_now_ns() };
	const int lie =
		peer->lie == PEER_FULL_ONCE && peer->connections == 1 ? PEER_FULL : peer->lie;
	int many[20];

	if (lie == PEER_SILENT || lie == PEER_FULL_ONCE)
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
		(void)packet_with_fds(peer->fd, &ok, bytes / 2, peer->memory_fd, 3);
	else if (lie == PEER_LONG)
		send_message(peer, noise, sizeof(noise));
	else if (lie == PEER_REFUSES)
		send_error(peer, seq, -EPROTO, "versions do not meet");
	else if (lie == PEER_FULL)
		send_error(peer, seq, -EBUSY, "no place is free");
	else if (lie == PEER_NO_FDS)
		send_message(peer, &ok, bytes);
	else if (lie == PEER_MANY_FDS)
		(void)packet_with_fds(peer->fd, &ok, bytes, many, 20);
	else
		(void)packet_with_fds(peer->fd, &ok, bytes,
				      (int[]){ peer->memory_fd[0], peer->memory_fd[1],
					       peer->memory_fd[2], peer->pidfd },
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
	const size_t fixed = wire_space_open_bytes(peer->version);
	const struct wire_region *r =
		(const struct wire_region *)(const void *)((const uint8_t *)open + fixed);
	const struct wire_segment *s =
		(const struct wire_segment *)(const void *)(r + open->n_regions);
	struct wire_space_ok ok = { .head = packet_head(WIRE_SPACE_OK, sizeof(ok), open->head.seq),
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
	int fds[PACKET_FDS] = { -1 };
	size_t n_fds;
	const ssize_t n = packet_receive(peer->fd, 0, buffer, sizeof(buffer), fds, &n_fds);
	const struct wire_head *h = (const struct wire_head *)(const void *)buffer;

	if (n <= 0) {
		peer->hang_up = true;
		return;
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
	const struct wire_head wake = packet_head(WIRE_WAKE, sizeof(wake), 0);

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
	const struct wire_space_close closed = { .head = packet_head(WIRE_SPACE_CLOSED,
								     sizeof(closed), 4711) };
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

static void ring_iteration(struct peer *peer)
{
	const struct wire_sqe *ring;

	if (!peer->submit)
		return;
	ring = (const struct wire_sqe *)(const void *)((uint8_t *)peer->submit + WIRE_RING_OFFSET);
	if (!peer->quiet)
		__atomic_store_n(&peer->index->heartbeat_ns, its_now_ns(), __ATOMIC_RELAXED);
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
			ring_iteration(peer);
		if (peer->fd >= 0 && peer->hang_up)
			connection_drop(peer);
	}
	if (peer->fd >= 0)
		connection_drop(peer);
	return NULL;
}

void peer_start(struct peer *peer, enum peer_lie lie)
{
	memset(peer, 0, sizeof(*peer));
	peer->lie = lie;
	peer->entries = 64;
	peer->arena = 256;
	peer->version = WIRE_VERSION_MAX;
	peer->fd = -1;
	peer->blocks = calloc(PEER_BLOCKS, sizeof(*peer->blocks));
	(void)snprintf(peer->path, sizeof(peer->path), "/tmp/kvtier-peer-%d.sock", (int)getpid());
	(void)unlink(peer->path);
	peer->listen_fd = packet_listen(peer->path);
	assert(peer->blocks && peer->listen_fd >= 0);
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

/* --- the engine --- */

const struct kvtier_geometry fake_geometry = { .size = sizeof(fake_geometry),
					       .dtype = KVTIER_BF16,
					       .model = "m",
					       .convention = "c",
					       .layers = 1,
					       .block_tokens = 4,
					       .world = 1,
					       .opaque_bytes = PAGE_BYTES };
const struct kvtier_segment fake_segment = { .size = sizeof(fake_segment),
					     .kind = KVTIER_OPAQUE,
					     .page_stride = PAGE_BYTES,
					     .length = PAGE_BYTES };

uint32_t fake_timeout_ms = 20000;

/* A busy machine may take longer over an answer than fake_timeout_ms. */
#define INSIST(call)                                                                   \
	do {                                                                           \
		int failed = -ETIMEDOUT;                                               \
                                                                                       \
		for (int tries = 0; failed == -ETIMEDOUT && tries < 40; tries++)       \
			failed = (call);                                               \
		if (failed)                                                            \
			(void)fprintf(stderr, "%s: %s\n", #call, kvtier_last_error()); \
		assert(!failed);                                                       \
	} while (0)

void fake_open_with(struct engine *e, bool private, uint32_t entries, uint32_t arena)
{
	struct kvtier_region r = { .size = sizeof(r),
				   .memory = private ? KVTIER_PRIVATE : KVTIER_MEMFD,
				   .length = PAGES * PAGE_BYTES };
	struct kvtier_options o = { .size = sizeof(o),
				    .timeout_ms = fake_timeout_ms,
				    .staging_bytes = 3 * PAGE_BYTES };

	memset(e, 0, sizeof(*e));
	peer_start(&e->peer, PEER_HONEST);
	e->peer.entries = entries;
	e->peer.arena = arena;
	o.socket_path = e->peer.path;
	INSIST(kvtier_connect(&o, &e->client));
	e->fd = r.fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert(r.fd >= 0 && !ftruncate(r.fd, PAGES * PAGE_BYTES) &&
	       !fcntl(r.fd, F_ADD_SEALS, F_SEAL_SHRINK));
	e->memory = mmap(NULL, PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, 0);
	assert(e->memory != MAP_FAILED);
	r.base = e->memory;
	INSIST(kvtier_space_open(e->client, &fake_geometry, &r, 1, &fake_segment, 1, &e->space));
	fake_keys(e, 1, 1, &e->key);
}

void fake_open(struct engine *e, bool private)
{
	fake_open_with(e, private, 64, 256);
}

void fake_close(struct engine *e)
{
	e->peer.hold = e->peer.deaf = false;
	kvtier_close(e->client);
	(void)munmap(e->memory, PAGES * PAGE_BYTES);
	(void)close(e->fd);
	peer_stop(&e->peer);
}

struct engine sole;

int fake_begin(void **state)
{
	fake_open(&sole, *state != NULL);
	return 0;
}

int fake_end(void **unused)
{
	(void)unused;
	fake_close(&sole);
	return 0;
}

void fake_keys(struct engine *e, uint32_t seed, size_t n, struct kvtier_key *ret)
{
	uint32_t tokens[4 * PAGES];

	for (size_t i = 0; i < 4 * n; i++)
		tokens[i] = seed + (uint32_t)i;
	assert(!kvtier_keys(e->space, NULL, tokens, 4 * n, ret, &n));
}

void fake_fill(struct engine *e, uint32_t page, uint8_t value)
{
	memset(e->memory + page * PAGE_BYTES, value, PAGE_BYTES);
}

void fake_page_is(struct engine *e, uint32_t page, uint8_t value)
{
	for (size_t i = 0; i < PAGE_BYTES; i++)
		assert(e->memory[page * PAGE_BYTES + i] == value);
}

void fake_store_again(struct engine *e)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_key key;
	uint64_t op;
	int rc = -ENOTCONN;

	fake_keys(e, 77, 1, &key);
	for (int i = 0; i < 10000 && rc; i++) {
		rc = kvtier_store(e->space, &key, &(uint32_t){ 0 }, 1, NULL, &op);
		assert(rc == 0 || rc == -ENOTCONN);
		if (!rc && !kvtier_wait(e->client, op, -1, &result))
			rc = result.status;
		(void)usleep(500);
	}
	assert(!rc);
}
