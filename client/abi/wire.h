/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - the contract between libkvtier and kvtierd: control messages and shared-memory layout.
 *
 * The file is not installed. Its types have fixed widths and are little endian, and a static_assert
 * holds each size. The daemon includes this file; the client includes no file of the daemon.
 *
 * Control socket: it is a SOCK_SEQPACKET socket. Each packet is one message and starts with struct
 * wire_head. The client speaks first (HELLO). A request carries a seq, and the reply repeats it.
 * The data path does not use the socket.
 *
 *	HELLO        -> HELLO_OK (+ fds: submit, complete, index,    | ERROR
 *	                and the daemon's pidfd where there is one)
 *	ALLOCS       -> ALLOCS_OK (+ an fd each in the request)     | ERROR
 *	SPACE_OPEN   -> SPACE_OK (+ region fds in the request)       | ERROR
 *	SPACE_CLOSE  -> SPACE_CLOSED, once no page of it is touched  | ERROR
 *	ORDER        -> ORDER_OK (+ the words' fd in the request)    | ERROR
 *	DOORBELL     client woke the daemon: "look at my ring"; no reply
 *	WAKE         daemon woke the client: "look at your ring"; no reply
 *
 * Versions: a connection speaks the highest version that both sides know. HELLO_OK says which one.
 * Both sides also speak the version of the release before, so that either may be upgraded first
 * (daemon/EXTENDING.md says how the wire is changed). What differs:
 *
 *	11	the release before
 *	12	HELLO_OK.now_ns; SPACE_OPEN.gpu_staged; wire_lookups after `hits`
 *	13	wire_sqe.expected_back_s
 *	14	lookups are counted for each space; wire_lookups.calls
 *
 * An ERROR to a well-formed request (bad geometry, seal missing...) leaves the connection as it
 * was. A malformed message or ring entry ends the connection: the daemon sends an ERROR with the
 * reason, and closes.
 *
 * The end of a connection is the daemon's word that it has given back all the client's pages. For
 * any reason (a stop, a violation, the client's own cut), the daemon first waits, silently, for the
 * jobs in flight. Then it sends the ERROR if there is one, and BYE if the client has regions in a
 * GPU's memory; then it closes. A dead daemon's sockets close after its last thread stopped, but
 * maybe before the GPU does: without BYE such pages are lent until it is dead. A client that cuts a
 * connection while pages are lent sets given_up, takes back the entries that the daemon has not
 * read (sq_tail = sq_head), shuts the socket down for writing, and keeps it. The pages of the ops
 * that the daemon had read are lent until the socket hangs up, or the pidfd says it is dead.
 *
 * Rings: two memfds a connection, made and sealed by the daemon (SHRINK|GROW|SEAL; `complete` also
 * FUTURE_WRITE, and the daemon maps `submit` read-only), so each page has one writer:
 *
 *	submit   (client writes)  head | sqe[sq_entries] | key[arena_blocks] | page[arena_blocks]
 *	complete (daemon writes)  head | cqe[cq_entries] | status[arena_blocks] |
 *				  layers[arena_blocks]
 *
 * Indices run freely (mod 2^32); entry i lies at i & (entries - 1). The producer writes the entry,
 * then its tail with release; the consumer reads the tail with acquire, copies the entry once,
 * checks the copy, then writes its head with release. An op uses arena slots [first, first + n):
 * keys and pages from the client, one status each from the daemon, written before the op's cqe. The
 * slots of all outstanding ops together, parents included, are never more than the arena has: a
 * client that claims more is cut.
 *
 * Layer groups: an op with sqe.groups = n divides the layers into n groups. Group g has the layers
 * from wire_group_layer(layers, n, g) up to the next group's first. The last group also has the
 * typed and opaque bytes. If there are any, no group before the last is ever said to be there, as
 * the layers of these bytes are not known.
 *
 * A load goes through all of its blocks for group 0, then for group 1, and so on. layers[first] is
 * how many groups are in the pages of all blocks of the op at `first`. The daemon raises it with
 * release, when it could complete these groups: a kernel that is launched after the word was seen
 * sees their bytes. A group that one block misses is never there. The daemon makes it 0 again
 * before the cqe, so that a slot's next op begins with 0. The other slots' words are 0.
 *
 * The client of a store says, by entries LAYERS or by a word (WIRE_SQE_GIVEN), how many groups are
 * in the pages: the daemon reads the others later. No block is committed before all are given.
 *
 * Clocks: times are the daemon's CLOCK_MONOTONIC. A client in another time namespace has another
 * clock and converts times: HELLO_OK.now_ns lies between its HELLO and its reading of HELLO_OK.
 *
 * Sleeping: the daemon sets index->asleep, full fence, looks at every ring once more, sleeps. The
 * client publishes sq_tail, full fence, and sends DOORBELL only when asleep != 0. A client thread
 * reads complete->news, looks at all that it waits for, adds itself to submit->sleepers, full
 * fence, and FUTEX_WAITs on news as read; the daemon publishes cq_tail, or a word of layers[],
 * moves news on, full fence, and FUTEX_WAKEs only when sleepers != 0, at most 256 of them: as many
 * as there can be ops. want_wake != 0 asks for a WAKE packet when cq_tail moves (for
 * kvtier_event_fd); the client zeroes it when it gets one and sets it again before it sleeps.
 */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum {
	WIRE_MAGIC = 0x4b565431, /* "KVT1" */
	WIRE_VERSION_MIN = 11,   /* range this tree speaks, see Versions at the top */
	WIRE_VERSION_MAX = 14,
	WIRE_MAX_MESSAGE = 160 * 1024, /* bytes; SPACE_OPEN with every segment fits */
	WIRE_MAX_REGIONS = 64,
	WIRE_MAX_SEGMENTS = 2048,
	WIRE_MAX_SPACES = 32, /* per connection */
	WIRE_NAME_BYTES = 64,
	WIRE_STRING_BYTES = 256,
	WIRE_WHY_BYTES = 160,
	WIRE_KEY_BYTES = 32,
	WIRE_MIN_ENTRIES = 8, /* ring sizes: powers of two in these bounds */
	WIRE_MAX_ENTRIES = 1024,
	WIRE_MIN_ARENA = 64,
	WIRE_MAX_ARENA = 65536,
	WIRE_MAX_WORDS = 256,  /* of each kind, for a device of a connection */
	WIRE_MAX_GROUPS = 128, /* groups of layers of one op */
	/* allocations of one ALLOCS: as many descriptors as a packet can carry (SCM_MAX_FD) */
	WIRE_MAX_ALLOCS = 253,
	WIRE_MAX_RANGE_ALLOCS = 65536, /* of a range: 128 GiB in pieces of 2 MiB */
};

/* The most bytes that a range has, which is more than any GPU has. */
#define WIRE_MAX_RANGE_BYTES (1ull << 44)

enum wire_type {
	WIRE_HELLO = 1,
	WIRE_HELLO_OK,
	WIRE_ERROR,
	WIRE_SPACE_OPEN,
	WIRE_SPACE_OK,
	WIRE_SPACE_CLOSE,
	WIRE_SPACE_CLOSED,
	WIRE_DOORBELL,
	WIRE_WAKE,
	WIRE_ORDER,
	WIRE_ORDER_OK,
	WIRE_ALLOCS,
	WIRE_ALLOCS_OK, /* a head alone */
	WIRE_BYE,
};

struct wire_head {
	uint32_t magic; /* WIRE_MAGIC */
	uint16_t type;  /* enum wire_type */
	uint16_t flags; /* 0 */
	/* of the whole message, this head included; = the packet's length */
	uint32_t length;
	uint32_t seq; /* chosen by the requester, repeated in the reply */
};
static_assert(sizeof(struct wire_head) == 16, "wire_head");

/* All versions have these bytes: a daemon that does not know the client's version reads it here.
 * The structs whose sizes it names have one size in all versions. */
struct wire_hello {
	struct wire_head head;
	uint32_t version_min, version_max;
	uint16_t size_geometry, size_region, size_segment, size_sqe, size_cqe, reserved[3];
	uint32_t sq_entries; /* wished; the daemon answers with its own number */
	uint32_t arena_blocks;
	char name[WIRE_NAME_BYTES]; /* NUL-terminated, printable */
};
static_assert(sizeof(struct wire_hello) == 112, "wire_hello");

struct wire_hello_ok {
	struct wire_head head;
	uint32_t version;
	uint32_t connection; /* id, for logs */
	uint32_t sq_entries, cq_entries, arena_blocks;
	uint32_t spin_us;                                   /* advised busy-wait */
	uint64_t submit_bytes, complete_bytes, index_bytes; /* to map */
	char daemon_version[32];
	char tenant[32];
	uint32_t reserved; /* 0. An earlier daemon's says that WIRE_DEVICE_ENGINE is wished for */
	uint32_t tiers;    /* that this daemon has, or'ed; bits: as enum kvtier_tier */
	uint64_t now_ns;   /* see Clocks, at the top */
};
static_assert(sizeof(struct wire_hello_ok) == 144, "wire_hello_ok");

static inline size_t wire_hello_ok_bytes(uint32_t version)
{
	return version < 12 ? offsetof(struct wire_hello_ok, now_ns) : sizeof(struct wire_hello_ok);
}

struct wire_error {
	struct wire_head head;
	int32_t error; /* -errno */
	uint32_t reserved;
	char text[232]; /* names the field and the limit */
};
static_assert(sizeof(struct wire_error) == 256, "wire_error");

/* Mirrors struct kvtier_geometry. Strings are padded with NULs, as all bytes enter the space id. */
struct wire_geometry {
	uint32_t dtype, codec, layers, kv_heads;
	uint32_t head_dim_k, head_dim_v, block_tokens, rank;
	uint32_t world, typed_segments, typed_values, opaque_bytes;
	char model[WIRE_STRING_BYTES], convention[WIRE_STRING_BYTES], extras[WIRE_STRING_BYTES];
};
static_assert(sizeof(struct wire_geometry) == 48 + 3 * 256, "wire_geometry");

/* How a region's memory is reached. The kinds of a device need a daemon that has that device; the
 * CPU device takes the first two, whose `device` and `handle` are 0. */
enum wire_memory {
	WIRE_MEMFD = 1, /* engine pages in a sealed memfd; with an fd */
	/* libkvtier's sealed memfd in front of memory that cannot be shared; with an fd */
	WIRE_STAGED,
	WIRE_DEVICE_HANDLE, /* memory of a device, opened by `handle`; without an fd */
	/* memory of a device that was exported as a descriptor; with an fd */
	WIRE_DEVICE_FD,
	WIRE_DEVICE_FABRIC, /* the same, opened by a fabric `handle`; without an fd */
	/* a range of a device that ALLOCS has brought; without an fd and a handle */
	WIRE_DEVICE_RANGE,
	/* Earlier clients ask for memory of the daemon, for kernels of their own. It is refused
	 * with -EOPNOTSUPP, and they ask for another kind. */
	WIRE_DEVICE_ENGINE,
	WIRE_MEMORIES, /* one more than the last */
};

enum { WIRE_UUID_BYTES = 16, WIRE_HANDLE_BYTES = 64 };

struct wire_region {
	uint32_t memory; /* enum wire_memory */
	/* a kind with an fd: its index in the packet's fds; WIRE_DEVICE_RANGE: the range; else 0 */
	uint32_t fd_index;
	uint64_t offset; /* in the memory of fd, handle or range; memfd: a multiple of 4096 */
	uint64_t length;
	/* UUID of the device that has the memory; 0: the CPU */
	uint8_t device[WIRE_UUID_BYTES];
	uint8_t handle[WIRE_HANDLE_BYTES]; /* of a kind that has one, as its driver made it */
	uint64_t reserved[3];              /* 0 */
};
static_assert(sizeof(struct wire_region) == 128, "wire_region");

/* Memory of a device may lie in several allocations, side by side in one range of addresses. Before
 * the SPACE_OPEN with such regions, one ALLOCS after the other brings the allocations of each
 * range, from its first byte to its last, without a gap. The daemon makes a range of its own and
 * maps them there in this order. The struct is followed by n_allocs struct wire_alloc. If these are
 * descriptors, the packet has an fd for each of them, in their order.
 *
 * A range begins anew with `at` 0. Ranges belong to the next SPACE_OPEN: it takes the ranges that
 * its regions name, each once. The others are given back, whether or not it succeeds. All ranges
 * are given back after an ERROR to an ALLOCS, after an ALLOCS that is 0 behind its head, and when
 * the connection ends. */
struct wire_allocs {
	struct wire_head head;
	uint8_t device[WIRE_UUID_BYTES];
	uint32_t memory;   /* of all allocations of the range: WIRE_DEVICE_FD, WIRE_DEVICE_FABRIC */
	uint32_t range;    /* < WIRE_MAX_REGIONS */
	uint32_t n_allocs; /* 1 .. WIRE_MAX_ALLOCS; 0: all ranges are given back */
	uint32_t reserved; /* 0 */
	uint64_t range_bytes; /* of the whole range, the same each time */
	uint64_t at; /* where the first of these allocations begins and those before them end */
};
static_assert(sizeof(struct wire_allocs) == 64, "wire_allocs");

struct wire_alloc {
	uint64_t bytes;                    /* of its mapping, from the allocation's start */
	uint8_t handle[WIRE_HANDLE_BYTES]; /* WIRE_DEVICE_FABRIC; else 0 */
};
static_assert(sizeof(struct wire_alloc) == 72, "wire_alloc");

struct wire_segment {
	uint32_t region, layer, kind, reserved;
	uint64_t offset, page_stride, head_stride, token_stride, length;
};
static_assert(sizeof(struct wire_segment) == 56, "wire_segment");

/* A connection sends it once for each device, before ops on the device's pages name a word. The
 * packet has one fd: that of the words. */
struct wire_order {
	struct wire_head head;
	uint8_t device[WIRE_UUID_BYTES];
	/* 0. An older library offers so many events, whose handles follow: it is refused, and then
	 * sends the words alone */
	uint32_t n_events;
	uint32_t reserved; /* 0 */
};
static_assert(sizeof(struct wire_order) == 40, "wire_order");

struct wire_order_ok {
	struct wire_head head;
	uint8_t device[WIRE_UUID_BYTES];
};
static_assert(sizeof(struct wire_order_ok) == 32, "wire_order_ok");

/* A client's memfd (SHRINK|GROW|SEAL) of exactly this size, mapped by both. Both write op ids,
 * which grow (mod 2^64): "reached" means (int64_t)(word - op_id) >= 0.
 *	ready   the client's device writes it, in stream order: the pages of op_id may be touched
 *	done    the daemon writes it, with release, when no page of op_id is touched any more,
 *		before the op's cqe; the client writes it for ops that end with their connection, so
 *		that a stream which waits for it continues
 *	layers  the same side writes it, only for ops with groups: wire_groups(), so many groups of
 *		a load are in all pages; when the op ends, however it does, it becomes
 *		wire_groups(op_id, WIRE_ALL_GROUPS)
 *	given   the client or its device writes wire_groups(): so many groups of a store are in all
 *		pages
 * The daemon believes only "not yet": a client that lies harms its own pages. */
struct wire_words {
	uint64_t ready[WIRE_MAX_WORDS];
	uint64_t done[WIRE_MAX_WORDS];
	uint64_t layers[WIRE_MAX_WORDS];
	uint64_t given[WIRE_MAX_WORDS];
};
static_assert(sizeof(struct wire_words) == 8192, "wire_words");

enum { WIRE_ALL_GROUPS = 255 };

/* The word of `layers` or `given`. It grows with the op, and within an op with the groups. */
static inline uint64_t wire_groups(uint64_t op_id, uint32_t groups)
{
	return op_id << 8 | groups;
}

/* The first layer of a group. For group n it is the layer behind the last one. */
static inline uint32_t wire_group_layer(uint32_t layers, uint32_t n, uint32_t group)
{
	return (uint32_t)((uint64_t)layers * group / n);
}

/* wire_region[n_regions], wire_segment[n_segments] follow behind the bytes of the version. */
struct wire_space_open {
	struct wire_head head;
	uint32_t n_regions, n_segments;
	struct wire_geometry geometry;
	char reserved[WIRE_WHY_BYTES]; /* not looked at: earlier clients' words on their kernels */
	/* NUL-terminated, printable: why pages in a GPU's memory are WIRE_STAGED; "" if they are
	 * not */
	char gpu_staged[WIRE_WHY_BYTES];
};
static_assert(sizeof(struct wire_space_open) ==
		      24 + sizeof(struct wire_geometry) + 2 * WIRE_WHY_BYTES,
	      "wire_space_open");

static inline size_t wire_space_open_bytes(uint32_t version)
{
	return version < 12 ? offsetof(struct wire_space_open, gpu_staged) :
			      sizeof(struct wire_space_open);
}
static_assert(sizeof(struct wire_space_open) + WIRE_MAX_REGIONS * sizeof(struct wire_region) +
			      WIRE_MAX_SEGMENTS * sizeof(struct wire_segment) <=
		      WIRE_MAX_MESSAGE,
	      "a full SPACE_OPEN fits");

struct wire_space_ok {
	struct wire_head head;
	uint32_t space;         /* handle for sqes, < WIRE_MAX_SPACES */
	uint32_t codec;         /* enum kvtier_codec in use */
	uint64_t pages;         /* valid page indices are < pages; 0 when opened without segments */
	uint32_t image_bytes;   /* a block's stored size with that codec */
	uint32_t logical_bytes; /* a block's size in the engine's dtype */
	uint8_t space_id[32];
	uint8_t salt[32];      /* the chain's start, see kvtier_keys() */
	uint8_t index_key[16]; /* for the fingerprints of this space's keys, see below */
	uint32_t gpus;         /* its GPU, for wire_tiers(); 0: its pages are not on a GPU */
	uint32_t reserved[3];  /* 0 */
};
static_assert(sizeof(struct wire_space_ok) == 136, "wire_space_ok");

/* The first version in which ops may say when a block is used again. */
enum { WIRE_WITH_EXPECTED_BACK = 13 };

struct wire_space_close { /* and SPACE_CLOSED */
	struct wire_head head;
	uint32_t space;
	uint32_t reserved;
};
static_assert(sizeof(struct wire_space_close) == 24, "wire_space_close");

enum wire_op {
	WIRE_OP_NONE = 0, /* invalid: a zeroed entry is never an op */
	WIRE_OP_NOP,      /* completes at once; n = 0 */
	WIRE_OP_STORE,
	WIRE_OP_LOAD,
	WIRE_OP_PREFETCH,
	WIRE_OP_CANCEL, /* target = op_id of an earlier op; has no completion of its own */
	/* has no completion either; the first n groups of target, a store, are in its pages. n
	 * never falls */
	WIRE_OP_LAYERS,
	WIRE_OP_HINT, /* action on the blocks of a scope; touches no page */
};

/* Which blocks a HINT concerns. KEYS: the blocks of the n keys. SESSION: the blocks that ops or
 * hints with this session named, in `turn` or later (0: all), in all spaces of the tenant; a
 * PREFETCH is for this space alone. REVISION: all spaces of the tenant whose model is this space's.
 * n is 1 for the last two, and the key is not looked at. A block's status is 0, WIRE_HINT_CLIPPED,
 * WIRE_HINT_DEFERRED, -EPERM (rejected), -ENOENT (missing), or one that any op may have. */
enum wire_hint_scope { WIRE_HINT_KEYS = 1, WIRE_HINT_SESSION, WIRE_HINT_REVISION };
/* The values are those of tbl_hints.h. */
enum wire_hint_action {
	WIRE_HINT_RETAIN = 1,
	WIRE_HINT_PIN,
	WIRE_HINT_DEMOTE,
	WIRE_HINT_PREFETCH,
	WIRE_HINT_RELEASE,
	WIRE_HINT_SUPERSEDED,
	WIRE_HINT_ENDED,
};
enum wire_hint_answer {
	WIRE_HINT_ACCEPTED = 0,
	WIRE_HINT_CLIPPED,
	WIRE_HINT_DEFERRED,
	WIRE_HINT_REJECTED,
	WIRE_HINT_MISSING,
	WIRE_HINT_ANSWERS
};
enum {
	WIRE_SQE_HAS_PARENT = 1, /* arena key [first + n] is the parent of key [first] */
	/* no page may be touched before ready[word - 1] has reached op_id */
	WIRE_SQE_READY = 2,
	/* for a store with groups: given[word - 1] says how many are in the pages, not LAYERS */
	WIRE_SQE_GIVEN = 4,
};

struct wire_sqe {
	uint8_t op; /* enum wire_op */
	uint8_t flags;
	uint16_t space; /* from SPACE_OK */
	uint32_t n;     /* blocks, 1 .. arena_blocks (with a parent: arena_blocks - 1) */
	uint64_t op_id; /* chosen by the client, not 0, unique among its outstanding ops */
	/* the daemon's clock; 0 is invalid except for NOP and CANCEL. An op that waits for layers
	 * or a word of its client has a minute at most */
	uint64_t deadline_ns;
	uint32_t first;   /* arena slot of the first block */
	int32_t priority; /* hint, -100 .. 100 */
	union {
		uint64_t target; /* CANCEL, LAYERS: op_id of the op that is meant */
		/* a hint, as in struct kvtier_op; RETAIN or no HINT */
		uint64_t expected_back_s;
	};
	uint64_t session; /* session, turn and ttl_s are hints: they act like */
	uint32_t turn;    /* WIRE_HINT_RETAIN on the blocks that have status >= 0 */
	uint32_t ttl_s;
	uint16_t reserved; /* 0 */
	uint16_t word;     /* which of the words are the op's, from 1; 0: no words */
	uint16_t groups;   /* LOAD, STORE: how many layer groups; 0: no groups */
	uint8_t action;    /* HINT: enum wire_hint_action; else 0 */
	uint8_t scope;     /* HINT: enum wire_hint_scope; else 0 */
};
static_assert(sizeof(struct wire_sqe) == 64, "wire_sqe");

/* How many slots the op has from `first` on: one for each block, and one for the parent's key. */
static inline uint32_t wire_arena_slots(const struct wire_sqe *sqe)
{
	return sqe->n + ((sqe->flags & WIRE_SQE_HAS_PARENT) ? 1u : 0u);
}

struct wire_cqe {
	uint64_t op_id;
	int32_t status; /* as kvtier_result.status */
	uint32_t n, ok, prefix;
	uint32_t first;                      /* that of the sqe */
	uint32_t answers[WIRE_HINT_ANSWERS]; /* HINT: how many blocks got each answer */
	/* CLOCK_MONOTONIC when the daemon took the sqe, and when it completed */
	uint64_t submit_ns;
	uint64_t done_ns;
};
static_assert(sizeof(struct wire_cqe) == 64, "wire_cqe");

/* What a client's lookups in a space asked for and found. The client counts, so that lookups do not
 * cost the daemon time, and the daemon samples the counters into its stats. They only grow, and are
 * believed for display alone. A lookup adds to `blocks` last, with release. Hits that are counted
 * for no other tier were found in host memory. */
struct wire_lookups {
	uint64_t blocks, hits;
	/* of the hits: by the nearest tier that has the block, as enum kvtier_tier */
	uint64_t gpu_hits, nvme_hits, redis_hits;
	uint64_t tokens, hit_tokens;
	uint64_t calls; /* of kvtier_lookup() */
};
static_assert(sizeof(struct wire_lookups) == 64, "wire_lookups");

/* The first page of `submit`, with a cache line for each word that is polled. Arrays follow at the
 * offsets below. */
struct wire_submit {
	_Alignas(64) uint32_t magic;
	_Alignas(64) uint32_t sq_tail;
	_Alignas(64) uint32_t cq_head;
	_Alignas(64) uint32_t sleepers; /* threads in FUTEX_WAIT on news */
	uint32_t want_wake;
	/* != 0: the client ended the connection. The daemon begins no more work on its pages, and
	 * commits no store */
	uint32_t given_up;
	_Alignas(64) struct wire_lookups lookups[WIRE_MAX_SPACES]; /* wire_lookups_at() */
};

/* Which of wire_submit.lookups a space's are; older versions have one for all of a connection. */
static inline uint32_t wire_lookups_at(uint32_t version, uint32_t space)
{
	return version >= 14 ? space : 0;
}

struct wire_complete {
	_Alignas(64) uint32_t magic;
	_Alignas(64) uint32_t sq_head;
	_Alignas(64) uint32_t cq_tail;
	uint32_t news; /* futex: moves with each completion and each group of layers */
};

enum { WIRE_RING_OFFSET = 4096 }; /* where sqe[] lies in submit, and cqe[] in complete */
static_assert(sizeof(struct wire_submit) <= WIRE_RING_OFFSET, "the first page of submit");

static inline uint64_t wire_keys_offset(uint32_t sq_entries)
{
	return WIRE_RING_OFFSET + (uint64_t)sq_entries * sizeof(struct wire_sqe);
}

static inline uint64_t wire_pages_offset(uint32_t sq_entries, uint32_t arena_blocks)
{
	return wire_keys_offset(sq_entries) + (uint64_t)arena_blocks * WIRE_KEY_BYTES;
}

static inline uint64_t wire_submit_bytes(uint32_t sq_entries, uint32_t arena_blocks)
{
	return (wire_pages_offset(sq_entries, arena_blocks) + (uint64_t)arena_blocks * 4 + 4095) &
	       ~4095ull;
}

static inline uint64_t wire_status_offset(uint32_t cq_entries)
{
	return WIRE_RING_OFFSET + (uint64_t)cq_entries * sizeof(struct wire_cqe);
}

static inline uint64_t wire_layers_offset(uint32_t cq_entries, uint32_t arena_blocks)
{
	return wire_status_offset(cq_entries) + (uint64_t)arena_blocks * 4;
}

static inline uint64_t wire_complete_bytes(uint32_t cq_entries, uint32_t arena_blocks)
{
	return (wire_layers_offset(cq_entries, arena_blocks) + (uint64_t)arena_blocks * 4 + 4095) &
	       ~4095ull;
}

/*
 * The index is one sealed memfd for all clients. The daemon writes it, and clients map it
 * read-only. It grows in place by linear hashing: `shape` = level << 32 | split says that buckets
 * 0 .. (2^level + split - 1) exist and that the buckets below split were divided, by one more bit
 * of the hash, with bucket 2^level + b. The memfd has its largest size from the start (sparse), so
 * it grows without a reader noticing. Each key has two candidate buckets, from the two halves of
 * its fingerprint. A bucket is one cache line; its seq moves whenever an entry was published in it.
 * A slot's fingerprint changes only while its meta is 0. client/lib/base/map.c has the rules for
 * reading, and the proof that a stable entry is found.
 *
 * A fingerprint is SipHash-2-4-128 of the key (fingerprint.h) under the index key of its space,
 * which SPACE_OK brings. The daemon draws a secret at each start and derives the index keys of all
 * spaces from it, so a client knows the keys of the spaces that it opened and no others: it can
 * choose no keys that crowd the buckets of another space's blocks, and cannot probe for them.
 *
 * An entry has 64 bits of the fingerprint, so that five entries fit a cache line. The daemon
 * compares whole keys.
 */
enum {
	WIRE_INDEX_MAGIC = 0x4b565849,
	WIRE_INDEX_LAYOUT =
		5, /* another layout needs another WIRE_VERSION, which names the mistake */
	WIRE_BUCKET_ENTRIES = 5,
	WIRE_INDEX_OFFSET = 4096
};

struct wire_index {
	_Alignas(64) uint32_t magic;
	uint32_t layout;
	uint64_t bytes; /* of the memfd */
	uint64_t epoch; /* random per daemon start */
	uint32_t max_level;
	uint32_t reserved;
	_Alignas(64) uint64_t shape;  /* level << 32 | split; moves rarely */
	_Alignas(64) uint32_t asleep; /* != 0: the daemon wants a DOORBELL */
	/* CLOCK_MONOTONIC, moved at least every WIRE_HEARTBEAT_MS */
	_Alignas(64) uint64_t heartbeat_ns;
	uint64_t entries; /* in use, for people */
};
enum { WIRE_HEARTBEAT_MS = 500, WIRE_STALE_MS = 2500 /* older: lookups answer "no hit" */ };

/* The 64 bits of a fingerprint that an entry has: 32 bits of each half, the first half's below. All
 * of them name buckets. */
static inline uint64_t wire_print_of(const uint64_t half[2])
{
	return (half[0] & 0xffffffffu) | half[1] << 32;
}

/* Each row is one field of all entries, so that there is no padding. */
struct wire_bucket {
	uint64_t print[WIRE_BUCKET_ENTRIES]; /* wire_print_of() */
	/* places << WIRE_PLACES_SHIFT | generation; places 0 = empty */
	uint32_t meta[WIRE_BUCKET_ENTRIES];
	uint32_t seq; /* +1 after each entry published here */
};
static_assert(sizeof(struct wire_bucket) == 64, "wire_bucket");

/*
 * The places of a block: enum kvtier_tier in the low bits, and above them a bit for each GPU that
 * has a copy. Beyond WIRE_GPU_BITS GPUs two share a bit, and a lookup may take one for the other:
 * it is a hint.
 */
enum {
	WIRE_PLACES_SHIFT = 20,
	WIRE_GENERATION_MASK = (1 << WIRE_PLACES_SHIFT) - 1,
	WIRE_GPU_BITS = 8,
	WIRE_GPU_SHIFT = 4,
	WIRE_TIER_GPU = 1, /* KVTIER_TIER_GPU: some GPU */
	WIRE_TIERS_MASK = (1 << WIRE_GPU_SHIFT) - 1,
};

static inline uint32_t wire_gpu_bit(uint32_t gpu)
{
	return 1u << gpu % WIRE_GPU_BITS;
}

/* The places of a block. units: bit u says that GPU u has a copy. */
static inline uint32_t wire_places(uint32_t tiers, uint64_t units)
{
	uint32_t gpus = 0;

	for (; units; units >>= WIRE_GPU_BITS)
		gpus |= (uint32_t)units & ((1u << WIRE_GPU_BITS) - 1);
	return tiers | gpus << WIRE_GPU_SHIFT;
}

/* The tiers that serve an engine. gpus: the wire_gpu_bit() of the GPU that has its pages; 0: they
 * are not on a GPU. */
static inline uint32_t wire_tiers(uint32_t places, uint32_t gpus)
{
	const uint32_t near = places >> WIRE_GPU_SHIFT & gpus ? WIRE_TIER_GPU : 0;

	return (places & WIRE_TIERS_MASK & ~(uint32_t)WIRE_TIER_GPU) | near;
}

static inline uint64_t wire_bucket_of(uint64_t half, uint64_t shape)
{
	const uint32_t level = (uint32_t)(shape >> 32);
	const uint64_t split = shape & 0xffffffffu, b = half & ((2ull << level) - 1);

	return b < (1ull << level) + split ? b : b & ((1ull << level) - 1);
}
