/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_raw.c - the wire protocol by hand, and the witness (lib_raw.h).
 */
#include "lib_raw.h"

#include "lib_packet.h"

enum { PATIENCE_S = 60 };

uint32_t raw_version;

/* --- connection --- */

void raw_dial(struct raw *r, const char *socket_path)
{
	const int send_bytes = 1 << 20;

	*r = (struct raw){ .fd = packet_dial(socket_path, 1000 * PATIENCE_S) };
	if (r->fd < 0)
		fail_msg("connect: %s", strerror(-r->fd));
	(void)setsockopt(r->fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof(send_bytes));
}

struct wire_head raw_head(struct raw *r, enum wire_type type, size_t n)
{
	return packet_head(type, n, ++r->seq);
}

struct wire_hello raw_hello_message(struct raw *r)
{
	struct wire_hello hello = packet_hello(++r->seq, 1024, "raw");

	if (raw_version)
		hello.version_min = hello.version_max = raw_version;
	return hello;
}

int raw_send(const struct raw *r, const void *message, size_t n, const int *fds, size_t n_fds)
{
	return packet_with_fds(r->fd, message, n, fds, fds ? n_fds : 0);
}

static size_t receive(const struct raw *r, void *ret, size_t room, int fds[PACKET_FDS],
		      size_t *ret_fds)
{
	ssize_t n = packet_receive(r->fd, 0, ret, room, fds, ret_fds);

	/* Closed before it had read all: told once, and before the packets that say why. */
	if (n == -ECONNRESET)
		n = packet_receive(r->fd, 0, ret, room, fds, ret_fds);
	if (n == -ECONNRESET || n == -EPIPE)
		return 0;
	if (n < 0)
		fail_msg("the daemon does not answer: %s", strerror((int)-n));
	return (size_t)n;
}

size_t raw_receive_fd(const struct raw *r, void *ret, size_t room, int *ret_fd)
{
	int fds[PACKET_FDS];
	size_t n_fds;
	const size_t n = receive(r, ret, room, fds, &n_fds);

	*ret_fd = n_fds > 0 ? fds[0] : -1;
	while (n_fds > 1)
		(void)close(fds[--n_fds]);
	return n;
}

size_t raw_receive(const struct raw *r, void *ret, size_t room)
{
	int fd;
	const size_t n = raw_receive_fd(r, ret, room, &fd);

	if (fd >= 0)
		(void)close(fd);
	return n;
}

void raw_hello(struct raw *r)
{
	const struct wire_hello hello = raw_hello_message(r);
	int fds[PACKET_FDS];
	size_t n_fds;

	assert_int_equal(raw_send(r, &hello, sizeof(hello), NULL, 0), 0);
	assert_true(receive(r, &r->ok, sizeof(r->ok), fds, &n_fds) > 0);
	assert_int_equal(r->ok.head.type, WIRE_HELLO_OK);
	assert_int_equal(r->ok.version, raw_version ? raw_version : WIRE_VERSION_MAX);
	assert_int_equal(r->ok.head.length, wire_hello_ok_bytes(r->ok.version));
	assert_in_range(n_fds, 3, 4); /* and the daemon's pidfd, where there are any */
	r->submit = mmap(NULL, r->ok.submit_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	r->complete = mmap(NULL, r->ok.complete_bytes, PROT_READ, MAP_SHARED, fds[1], 0);
	assert_ptr_not_equal(r->submit, MAP_FAILED);
	assert_ptr_not_equal(r->complete, MAP_FAILED);
	while (n_fds > 0)
		(void)close(fds[--n_fds]);
}

void raw_open(struct raw *r, const char *socket_path)
{
	raw_dial(r, socket_path);
	raw_hello(r);
}

void raw_close(struct raw *r)
{
	if (r->submit)
		(void)munmap(r->submit, r->ok.submit_bytes);
	if (r->complete)
		(void)munmap((void *)(uintptr_t)r->complete, r->ok.complete_bytes);
	(void)close(r->fd);
	memset(r, 0, sizeof(*r));
	r->fd = -1;
}

void raw_expect_cut(struct raw *r, const char *text)
{
	struct wire_error e = { 0 };
	size_t n;

	do
		n = raw_receive(r, &e, sizeof(e));
	while (n > 0 && e.head.type != WIRE_ERROR); /* WAKE, replies to good messages */
	if (n != sizeof(e))
		fail_msg("cut without an ERROR; expected one with \"%s\"", text);
	e.text[sizeof(e.text) - 1] = 0;
	if (e.error != -EPROTO || !strstr(e.text, text))
		fail_msg("ERROR %d \"%s\"; expected -EPROTO with \"%s\"", e.error, e.text, text);
	n = raw_receive(r, &e, sizeof(e));
	if (n > 0) { /* it had regions of a GPU */
		assert_int_equal(e.head.type, WIRE_BYE);
		n = raw_receive(r, &e, sizeof(e));
	}
	assert_int_equal(n, 0);
}

void raw_expect_refused(struct raw *r, int error, const char *text)
{
	struct wire_error e = { 0 };
	const struct wire_head bell = raw_head(r, WIRE_DOORBELL, sizeof(bell));

	assert_int_equal(raw_receive(r, &e, sizeof(e)), sizeof(e));
	e.text[sizeof(e.text) - 1] = 0;
	if (e.head.type != WIRE_ERROR || e.error != error || !strstr(e.text, text))
		fail_msg("ERROR %d \"%s\"; expected %d with \"%s\"", e.error, e.text, error, text);
	assert_int_equal(raw_send(r, &bell, sizeof(bell), NULL, 0), 0);
}

/* --- spaces --- */

size_t raw_region_bytes(void)
{
	return engine_page_bytes(&tiny_raw) * RAW_PAGES;
}

void raw_space_fill(struct raw *r, struct raw_space *ret)
{
	struct kvtier_segment segments[4];
	const size_t n = engine_segments(&tiny_raw, segments, 4);

	*ret = (struct raw_space){
		.open = { .head = raw_head(r, WIRE_SPACE_OPEN, sizeof(*ret)),
			  .n_regions = 1,
			  .n_segments = 4,
			  .geometry = { .dtype = tiny_raw.dtype,
					.codec = tiny_raw.codec,
					.layers = tiny_raw.layers,
					.kv_heads = tiny_raw.kv_heads,
					.head_dim_k = tiny_raw.head_dim_k,
					.head_dim_v = tiny_raw.head_dim_v,
					.block_tokens = tiny_raw.block_tokens,
					.world = 1,
					.model = "hostile@1" } },
		.region = { .memory = WIRE_MEMFD, .length = raw_region_bytes() },
	};
	for (size_t i = 0; i < n; i++)
		ret->segments[i] = (struct wire_segment){
			.layer = segments[i].layer,
			.kind = segments[i].kind,
			.offset = segments[i].offset,
			.page_stride = segments[i].page_stride,
			.head_stride = segments[i].head_stride,
			.token_stride = segments[i].token_stride,
		};
}

size_t raw_space_narrow(const struct raw *r, struct wire_space_open *open)
{
	const size_t fixed = wire_space_open_bytes(r->ok.version);
	const size_t arrays = open->head.length - sizeof(*open);

	open->head.length = (uint32_t)(fixed + arrays);
	memmove((uint8_t *)open + fixed, open + 1, arrays);
	return fixed + arrays;
}

int raw_space_open(struct raw *r, uint32_t *ret_handle)
{
	const int fd = memfd_make(raw_region_bytes(), F_SEAL_SHRINK);
	struct wire_space_ok ok = { 0 };
	struct raw_space space;

	raw_space_fill(r, &space);
	assert_int_equal(raw_send(r, &space, raw_space_narrow(r, &space.open), &fd, 1), 0);
	assert_int_equal(raw_receive(r, &ok, sizeof(ok)), sizeof(ok));
	assert_int_equal(ok.head.type, WIRE_SPACE_OK);
	assert_int_equal(ok.pages, RAW_PAGES);
	*ret_handle = ok.space;
	return fd;
}

void raw_space_close(struct raw *r, uint32_t handle)
{
	struct wire_space_close m = { .head = raw_head(r, WIRE_SPACE_CLOSE, sizeof(m)),
				      .space = handle };

	assert_int_equal(raw_send(r, &m, sizeof(m), NULL, 0), 0);
	assert_int_equal(raw_receive(r, &m, sizeof(m)), sizeof(m));
	assert_int_equal(m.head.type, WIRE_SPACE_CLOSED);
}

uint8_t *raw_region_map(int fd)
{
	uint8_t *region = mmap(NULL, raw_region_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	assert_ptr_not_equal(region, MAP_FAILED);
	return region;
}

uint32_t raw_hoard(struct raw *r, int *ret_error)
{
	const int fd = memfd_make(raw_region_bytes() + 4096, F_SEAL_SHRINK);
	struct {
		struct wire_space_open open;
		struct wire_region regions[WIRE_MAX_REGIONS]; /* only the first holds pages */
		struct wire_segment segments[4];
	} m;
	struct wire_error reply = { 0 };
	struct raw_space space;
	uint32_t opened = 0;

	raw_space_fill(r, &space);
	m.open = space.open;
	m.open.n_regions = WIRE_MAX_REGIONS;
	memcpy(m.segments, space.segments, sizeof(m.segments));
	for (uint64_t i = 0; i < WIRE_MAX_REGIONS; i++)
		m.regions[i] = (struct wire_region){ .memory = WIRE_MEMFD,
						     .offset = i % 2 * 4096,
						     .length = raw_region_bytes() };
	for (*ret_error = 0; opened < WIRE_MAX_SPACES && *ret_error == 0;) {
		m.open.head = raw_head(r, WIRE_SPACE_OPEN, sizeof(m));
		assert_int_equal(raw_send(r, &m, sizeof(m), &fd, 1), 0);
		assert_true(raw_receive(r, &reply, sizeof(reply)) > 0);
		*ret_error = reply.head.type == WIRE_ERROR ? reply.error : 0;
		opened += *ret_error == 0;
	}
	(void)close(fd);
	return opened;
}

/* --- rings --- */

struct wire_sqe raw_sqe(enum wire_op op, uint32_t space)
{
	static uint64_t id = 1000;

	return (struct wire_sqe){
		.op = (uint8_t)op,
		.space = (uint16_t)space,
		.op_id = ++id,
		.n = op == WIRE_OP_NOP ? 0 : 1,
		.deadline_ns = op == WIRE_OP_NOP ? 0 : now_ns() + 10000000000u,
	};
}

struct wire_sqe *raw_entries(struct raw *r)
{
	return (struct wire_sqe *)(void *)((char *)r->submit + WIRE_RING_OFFSET);
}

uint8_t *raw_keys(struct raw *r)
{
	return (uint8_t *)r->submit + wire_keys_offset(r->ok.sq_entries);
}

uint32_t *raw_pages(struct raw *r)
{
	return (uint32_t *)(void *)((char *)r->submit +
				    wire_pages_offset(r->ok.sq_entries, r->ok.arena_blocks));
}

void raw_put(struct raw *r, uint32_t position, const struct wire_sqe *sqe)
{
	raw_entries(r)[position & (r->ok.sq_entries - 1)] = *sqe;
}

void raw_publish(struct raw *r, uint32_t tail)
{
	const struct wire_head bell = raw_head(r, WIRE_DOORBELL, sizeof(bell));

	__atomic_store_n(&r->submit->sq_tail, tail, __ATOMIC_SEQ_CST);
	(void)raw_send(r, &bell, sizeof(bell), NULL, 0); /* it may have been cut already */
}

void raw_push(struct raw *r, uint32_t position, const struct wire_sqe *sqe)
{
	raw_put(r, position, sqe);
	raw_publish(r, position + 1);
}

void raw_run(struct raw *r, uint32_t position, const struct wire_sqe *sqe)
{
	raw_push(r, position, sqe);
	raw_await(r, position + 1);
}

void raw_await(const struct raw *r, uint32_t tail)
{
	AWAIT(__atomic_load_n(&r->complete->cq_tail, __ATOMIC_ACQUIRE) == tail);
}

void raw_taken(struct raw *r, uint32_t tail)
{
	__atomic_store_n(&r->submit->cq_head, tail, __ATOMIC_SEQ_CST);
}

const struct wire_cqe *raw_cqe(const struct raw *r, uint32_t position)
{
	const struct wire_cqe *ring = (const void *)((const char *)r->complete + WIRE_RING_OFFSET);

	return &ring[position & (r->ok.cq_entries - 1)];
}

int32_t raw_status(const struct raw *r, uint32_t slot)
{
	const int32_t *statuses =
		(const void *)((const char *)r->complete + wire_status_offset(r->ok.cq_entries));

	return __atomic_load_n(&statuses[slot], __ATOMIC_RELAXED);
}

/* --- the daemon's size --- */

/* Sanitizers keep freed memory and shadows of it. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLACK_KIB = 128 << 10 };
#else
enum { SLACK_KIB = 2 << 10 };
#endif

static struct daemon_size size_now(const struct daemon *d)
{
	return (struct daemon_size){ .fds = daemon_fds(d), .kib = daemon_rss_kib(d) };
}

struct daemon_size daemon_size(const struct daemon *d)
{
	return (struct daemon_size){ .fds = daemon_fds_settled(d), .kib = daemon_rss_kib(d) };
}

void daemon_size_check(const struct daemon *d, const struct daemon_size *before)
{
	struct daemon_size now = size_now(d);

	/* Fewer than before are no leak: descriptors of an earlier client may have been open
	 * still. */
	for (int ms = 0;
	     ms < 1000 * PATIENCE_S && (now.fds > before->fds || now.kib > before->kib + SLACK_KIB);
	     ms += 10) {
		nap_ms(10);
		now = size_now(d);
	}
	if (now.fds > before->fds)
		fail_msg("the daemon has %d descriptors, not %d", now.fds, before->fds);
	if (now.kib > before->kib + SLACK_KIB)
		fail_msg("the daemon grew from %ld to %ld KiB", before->kib, now.kib);
}

/* --- the witness --- */

enum { WITNESS_BLOCKS = 8, WITNESS_CHAINS = 8, WITNESS_PAGES = 2 * WITNESS_BLOCKS };

/* No cmocka here: its assertions belong to the thread that runs the tests. */
static int witness_round(struct witness *w, const struct kvtier_key *keys)
{
	struct engine *e = &w->engine;
	uint32_t from[WITNESS_BLOCKS], to[WITNESS_BLOCKS];
	int r;

	pages_from(0, from, WITNESS_BLOCKS);
	pages_from(WITNESS_BLOCKS, to, WITNESS_BLOCKS);
	for (uint32_t i = 0; i < WITNESS_BLOCKS; i++) {
		page_fill(e, from[i], &keys[i], 0);
		page_poison(e, to[i]);
	}
	r = engine_store(e, keys, from, WITNESS_BLOCKS, NULL, NULL);
	if (r == 0)
		r = engine_load(e, keys, to, WITNESS_BLOCKS, NULL);
	for (uint32_t i = 0; r == 0 && i < WITNESS_BLOCKS; i++)
		if (!page_is(e, to[i], &keys[i], 0))
			r = -EBADMSG;
	return r == -ENOENT && w->may_miss ? 0 : r;
}

static void *witness_run(void *arg)
{
	struct witness *w = arg;

	while (!atomic_load(&w->stop)) {
		const uint64_t round = atomic_load(&w->rounds);
		const int r = witness_round(w, &w->keys[round % WITNESS_CHAINS * WITNESS_BLOCKS]);

		if (r && atomic_fetch_add(&w->failures, 1) == 0)
			w->first_failure = r;
		atomic_fetch_add(&w->rounds, 1);
		nap_ms(1);
	}
	return NULL;
}

void witness_start(struct witness *w, const char *socket_path)
{
	const bool may_miss = w->may_miss;

	memset(w, 0, sizeof(*w));
	w->may_miss = may_miss;
	engine_open(&w->engine, socket_path, "witness", &tiny_fp8, WITNESS_PAGES);
	for (uint32_t i = 0; i < WITNESS_CHAINS; i++)
		chain_keys(&w->engine, 77000 + i, WITNESS_BLOCKS, &w->keys[i * WITNESS_BLOCKS]);
	assert_int_equal(pthread_create(&w->thread, NULL, witness_run, w), 0);
}

static void witness_met_nothing(struct witness *w)
{
	if (atomic_load(&w->failures))
		fail_msg("the honest engine met %llu failures, the first one %d",
			 (unsigned long long)w->failures, w->first_failure);
}

void witness_check(struct witness *w)
{
	const uint64_t target = atomic_load(&w->rounds) + 2;

	AWAIT(atomic_load(&w->rounds) >= target);
	witness_met_nothing(w);
}

void witness_stop(struct witness *w)
{
	atomic_store(&w->stop, true);
	(void)pthread_join(w->thread, NULL);
	engine_close(&w->engine);
	witness_met_nothing(w);
}

/* --- a daemon under attack --- */

void attacked_begin(struct attacked *a, const char *config, bool may_miss)
{
	daemon_start(&a->d, config);
	a->witness.may_miss = may_miss;
	witness_start(&a->witness, a->d.socket);
	witness_check(&a->witness);
	daemon_stat_becomes(&a->d, "clients", 1, 10000);
	a->size = daemon_size(&a->d);
}

int attacked_end(void **state)
{
	struct attacked *a = *state;
	daemon_size_check(&a->d, &a->size);
	witness_stop(&a->witness);
	daemon_stat_becomes(&a->d, "leases", 0, 10000);
	daemon_remove(&a->d);
	return 0;
}

static uint64_t offences(const struct attacked *a)
{
	return daemon_stat(&a->d, "protocol_errors_total") +
	       daemon_stat(&a->d, "refused.version_total");
}

int attacked_before_case(void **state)
{
	struct attacked *a = *state;

	a->errors = offences(a);
	return 0;
}

int attacked_after_case(void **state)
{
	struct attacked *a = *state;

	witness_check(&a->witness);
	daemon_stat_becomes(&a->d, "clients", 1, 10000);
	assert_int_equal(offences(a), a->errors + 1);
	return 0;
}
