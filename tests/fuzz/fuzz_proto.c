/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_proto.c - goal: no packet, segment list or ring entry makes the checks crash, read out of
 * bounds, or let through an entry that reaches outside of its region or arena. Method: good
 * messages with random bytes, words at the edges of their types, and cuts; accepted messages are
 * recomputed in 128 bits. Seed printed ($SEED sets it, $FUZZ_RUNS how many, 200,000). With
 * -DKVTIER_LIBFUZZER libFuzzer mutates, now and then a good message, so that it comes past the
 * first checks of each. Worth most with SAN=address,undefined.
 */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/session/mount.h"
#include "daemon/session/proto.h"
#include "tests/lib/lib_packet.h"
#include "tests/lib/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { REGION_BYTES = 1 << 16, ARENA = 1024, FDS = 3 };

static char text[200];

static uint32_t value_bytes(uint32_t dtype)
{
	return dtype == DTYPE_FP32 ? 4 : dtype == DTYPE_BF16 || dtype == DTYPE_FP16 ? 2 : 1;
}

/* Bytes of one page from the piece's base on. */
static unsigned __int128 span_of(const struct image_geometry *g, const struct page_piece *p)
{
	const uint32_t bytes = value_bytes(g->dtype),
		       dim = p->kind == KIND_K ? g->head_dim_k : g->head_dim_v;

	if (p->kind == KIND_TYPED)
		return (unsigned __int128)p->length * bytes;
	if (p->kind == KIND_OPAQUE)
		return (unsigned __int128)p->token_stride *
			       (p->token_stride ? g->block_tokens - 1 : 0) +
		       p->length;
	return (unsigned __int128)p->token_stride * (g->block_tokens - 1) +
	       (unsigned __int128)p->head_stride * (g->kv_heads - 1) + (uint64_t)dim * bytes;
}

/* An accepted segment lies in its region, for the last page too. */
static void check_layout(const struct image_geometry *g, const struct page_layout *layout,
			 uint64_t pages, uint8_t *const *bases, const uint64_t *lengths, uint32_t n)
{
	for (uint32_t i = 0; i < layout->n_pieces; i++) {
		const struct page_piece *p = &layout->pieces[i];
		bool inside = false;

		for (uint32_t r = 0; r < n; r++) {
			const unsigned __int128 end =
				(unsigned __int128)(uintptr_t)p->base +
				(unsigned __int128)(pages - 1) * p->page_stride + span_of(g, p);

			inside |= p->base >= bases[r] && end <= (uintptr_t)bases[r] + lengths[r];
		}
		assert(pages > 0 && inside);
	}
}

static void try_layout(const struct proto_space_open *m)
{
	/* addresses only: layout_build never looks there */
	static uint8_t memory[WIRE_MAX_REGIONS];
	const struct image_geometry g = IMAGE_GEOMETRY(&m->geometry);
	uint8_t *bases[WIRE_MAX_REGIONS];
	uint64_t lengths[WIRE_MAX_REGIONS], pages = 0;
	struct page_layout layout;
	struct image_shape shape;

	if (image_shape(&g, CODEC_RAW, CODEC_RAW, &shape, NULL))
		return; /* space.c refuses it before any layout is looked at */
	for (uint32_t i = 0; i < m->n_regions; i++) {
		bases[i] = (uint8_t *)((uintptr_t)memory + (uintptr_t)i * (REGION_BYTES << 1));
		lengths[i] = m->regions[i].length % REGION_BYTES;
	}
	if (layout_build(m->segments, m->n_segments, bases, lengths, m->n_regions, &g, &layout,
			 &pages, text, sizeof(text)))
		return;
	if (m->n_segments > 0)
		check_layout(&g, &layout, pages, bases, lengths, m->n_regions);
	layout_free(&layout);
}

static void try_entry(const uint8_t *data, size_t size)
{
	struct wire_sqe e;

	if (size < sizeof(e))
		return;
	memcpy(&e, data, sizeof(e));
	if (proto_sqe(&e, ARENA, text, sizeof(text)))
		return;
	assert(e.op_id != 0 && e.op >= WIRE_OP_NOP && e.op <= WIRE_OP_HINT);
	if (e.op != WIRE_OP_NOP && e.op != WIRE_OP_CANCEL && e.op != WIRE_OP_LAYERS)
		assert((uint64_t)e.first + e.n + (e.flags & 1) <= ARENA && e.n > 0 &&
		       e.space < WIRE_MAX_SPACES);
}

/* Accepted allocations fill a piece of their range, and no more. */
static void try_allocs(const void *packet, size_t size)
{
	const uint32_t n_fds = size > 80 ? ((const struct wire_allocs *)packet)->n_allocs : 0;
	struct proto_allocs allocs;
	unsigned __int128 end;

	if (proto_allocs(packet, size, n_fds, &allocs, text, sizeof(text)) &&
	    proto_allocs(packet, size, 0, &allocs, text, sizeof(text)))
		return;
	assert(allocs.n_allocs <= WIRE_MAX_ALLOCS && allocs.range < WIRE_MAX_REGIONS);
	assert((const char *)(allocs.allocs + allocs.n_allocs) == (const char *)packet + size);
	end = allocs.at;
	for (uint32_t i = 0; i < allocs.n_allocs; i++) {
		assert(allocs.allocs[i].bytes > 0);
		end += allocs.allocs[i].bytes;
	}
	assert(end <= allocs.range_bytes && allocs.range_bytes <= WIRE_MAX_RANGE_BYTES);
}

static void try_packet(const void *packet, size_t size)
{
	struct proto_space_open open;
	uint8_t device[WIRE_UUID_BYTES];
	struct wire_hello hello;
	struct wire_head head;
	uint32_t version, space;
	int r;

	if (proto_head(packet, size, &head, text, sizeof(text)))
		return;
	switch (head.type) {
	case WIRE_HELLO:
		if (proto_hello(packet, size, 256, 4096, &hello, &version, text, sizeof(text)) == 0)
			assert(hello.sq_entries >= 8 && hello.sq_entries <= 256 &&
			       hello.arena_blocks >= 64 && hello.arena_blocks <= 4096 &&
			       memchr(hello.name, 0, sizeof(hello.name)));
		break;
	case WIRE_SPACE_OPEN:
		for (version = WIRE_VERSION_MIN; version <= WIRE_VERSION_MAX; version++) {
			r = proto_space_open(packet, size, FDS, version, &open, text, sizeof(text));
			if (r)
				continue;
			assert((const char *)(open.segments + open.n_segments) ==
			       (const char *)packet + size);
			try_layout(&open);
		}
		break;
	case WIRE_SPACE_CLOSE:
		if (proto_space_close(packet, size, &space, text, sizeof(text)) == 0)
			assert(space < WIRE_MAX_SPACES);
		break;
	case WIRE_ORDER:
		if (proto_order(packet, size, 1, device, text, sizeof(text)) == 0)
			assert(size == sizeof(struct wire_order));
		break;
	case WIRE_ALLOCS:
		try_allocs(packet, size);
		break;
	default:
		assert(head.type == WIRE_DOORBELL);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	void *packet =
		/* of the exact size, so that a sanitizer sees one byte too far */
		malloc(size ? size : 1);

	assert(packet);
	memcpy(packet, data, size);
	try_packet(packet, size);
	try_entry(packet, size);
	free(packet);
	return 0;
}

enum { MAX_PACKET = 4096 };

static size_t good_space_open(struct random *random, uint8_t *ret)
{
	const uint32_t layers = 1 + random_below(random, 3),
		       regions = 1 + random_below(random, FDS);
	struct wire_space_open m = {
		.n_regions = regions,
		.n_segments = 2 * layers,
		.geometry = { .dtype = DTYPE_BF16,
			      .layers = layers,
			      .kv_heads = 2,
			      .head_dim_k = 8,
			      .head_dim_v = 8,
			      .block_tokens = 4,
			      .world = 1,
			      .model = "fuzz" },
	};
	size_t n = sizeof(m);

	for (uint32_t i = 0; i < regions; i++, n += sizeof(struct wire_region)) {
		/* beside memfds it is refused */
		const bool handle = random_below(random, 8) == 0;
		struct wire_region r = { .memory = handle ? WIRE_DEVICE_HANDLE : WIRE_MEMFD,
					 .fd_index = handle ? 0 : i,
					 .length = 8192 };

		r.device[3] = r.handle[5] = handle;

		memcpy(ret + n, &r, sizeof(r));
	}
	for (uint32_t i = 0; i < 2 * layers; i++, n += sizeof(struct wire_segment)) {
		const struct wire_segment s = {
			.region = random_below(random, regions),
			.layer = i / 2,
			.kind = i % 2 ? KIND_V : KIND_K,
			.offset = i * 128,
			.page_stride = layers * 256,
			.head_stride = 16,
			.token_stride = 32,
		};

		memcpy(ret + n, &s, sizeof(s));
	}
	m.head = packet_head(WIRE_SPACE_OPEN, n, 0);
	memcpy(ret, &m, sizeof(m));
	return n;
}

static size_t good_allocs(struct random *random, uint8_t *ret)
{
	const uint32_t allocs = random_below(random, 4);
	const bool fabric = random_below(random, 2);
	const struct wire_alloc alloc = { .bytes = 2 << 20, .handle = { fabric } };
	struct wire_allocs m = { .n_allocs = allocs };
	size_t n = sizeof(m);

	if (allocs > 0) {
		m.device[2] = 1;
		m.memory = fabric ? WIRE_DEVICE_FABRIC : WIRE_DEVICE_FD;
		m.range = random_below(random, WIRE_MAX_REGIONS);
		m.at = (uint64_t)random_below(random, 3) << 21;
		m.range_bytes = 8 << 21;
	}
	for (uint32_t i = 0; i < allocs; i++, n += sizeof(alloc))
		memcpy(ret + n, &alloc, sizeof(alloc));
	m.head = packet_head(WIRE_ALLOCS, n, 0);
	memcpy(ret, &m, sizeof(m));
	return n;
}

static size_t good_order(uint8_t *ret)
{
	const struct wire_order m = { .head = packet_head(WIRE_ORDER, sizeof(m), 0),
				      .device = { 0, 1 } };

	memcpy(ret, &m, sizeof(m));
	return sizeof(m);
}

static size_t good_message(struct random *random, uint8_t *ret)
{
	const struct wire_hello hello = packet_hello(0, 1024, "fuzz");
	const struct wire_space_close close_message = {
		.head = packet_head(WIRE_SPACE_CLOSE, sizeof(close_message), 0)
	};
	const struct wire_sqe e = {
		.op = WIRE_OP_LOAD, .n = 4, .op_id = 1, .deadline_ns = 1, .first = 9
	};

	switch (random_below(random, 11)) {
	case 0:
		memcpy(ret, &hello, sizeof(hello));
		return sizeof(hello);
	case 1:
		memcpy(ret, &close_message, sizeof(close_message));
		return sizeof(close_message);
	case 2:
	case 3:
		memcpy(ret, &e, sizeof(e));
		return sizeof(e);
	case 4:
	case 5:
		return good_allocs(random, ret);
	case 6:
		return good_order(ret);
	default:
		return good_space_open(random, ret);
	}
}

/* Values at which arithmetic goes wrong. */
static uint64_t edge(struct random *random)
{
	const uint64_t power = 1ull << random_below(random, 64);

	return power + random_below(random, 3) - 1;
}

static size_t mutate(struct random *random, uint8_t *packet, size_t n)
{
	for (uint32_t i = random_below(random, 4); i > 0; i--) {
		const uint64_t value = edge(random);
		const size_t width = 1u << random_below(random, 4);
		const size_t at = random_below(random, (uint32_t)(n / width)) * width;

		if (random_below(random, 2))
			memcpy(packet + at, &value, width);
		else
			packet[random_below(random, (uint32_t)n)] = (uint8_t)random_next(random);
	}
	if (random_below(random, 10) == 0)
		n = random_below(random, (uint32_t)n) + 1;
	if (n >= sizeof(struct wire_head) &&
	    random_below(random, 2)) { /* as a liar would: a length that fits */
		const uint32_t length = (uint32_t)n;

		memcpy(packet + offsetof(struct wire_head, length), &length, sizeof(length));
	}
	return n;
}

#ifdef KVTIER_LIBFUZZER

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
	struct random random = { .state = seed };

	if (random_below(&random, 16) > 0 || max_size < MAX_PACKET)
		return LLVMFuzzerMutate(data, size, max_size);
	memset(data, 0, MAX_PACKET);
	return mutate(&random, data, good_message(&random, data));
}

#else

int main(void)
{
	const uint64_t n = env_number("FUZZ_RUNS", 200000);
	struct random random = random_seeded("fuzz_proto");
	static _Alignas(8) uint8_t packet[MAX_PACKET];

	for (uint64_t i = 0; i < n; i++) {
		memset(packet, 0, sizeof(packet));
		(void)LLVMFuzzerTestOneInput(packet, mutate(&random, packet,
							    good_message(&random, packet)));
	}
	return 0;
}
#endif
