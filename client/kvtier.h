/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtier.h - give an LLM engine's KV-cache blocks to the node's kvtierd, and get prefixes back.
 *
 *	kvtier_connect(&options, &client);
 *	kvtier_space_open(client, &geometry, regions, n_regions, segments, n_segments, &space);
 *
 *	kvtier_keys(space, NULL, tokens, n_tokens, keys, &n);	a prompt: n keys of its full blocks
 *	kvtier_lookup(space, keys, n, &hit);			hit.blocks of them are present
 *	kvtier_load(space, keys, pages, hit.blocks, NULL, &op);
 *	kvtier_wait(client, op, -1, &result);			k = result.prefix are in their pages
 *								compute the others, then keep them:
 *	options = KVTIER_INIT(kvtier_op, .parent = k ? &keys[k - 1] : NULL);
 *	kvtier_store(space, keys + k, pages + k, n - k, &options, &op);
 *
 * client/examples/store_load.c is the same as a whole program. kvtier(3) explains each step.
 *
 * - A block is the KV of `block_tokens` consecutive tokens: all layers of one rank. Only full
 *   blocks have keys. The engine recomputes the end of a prompt if it does not fill a block.
 * - kvtier_lookup() gives a hint, because a block may be evicted between the lookup and the load.
 *   The bytes are in your page only if the load's status for this block is 0. -ENOENT means that
 *   the block is gone.
 * - A store is best effort: -ENOSPC for a block means that the daemon chose not to keep it.
 * - FP8 is lossy. With KVTIER_CODEC_FP8 (the default for BF16 and FP16) a loaded value is the
 *   nearest E4M3 value times a power of two: the relative error is <= 1/17 for normal values, and
 *   2.67 % RMS on Gaussian data (daemon/IMAGE.md, "FP8 rule"). KVTIER_CODEC_INT8 has a third
 *   of that error on a real model (tests/bench/RESULTS.md). KVTIER_CODEC_RAW and
 *   KVTIER_CODEC_LOSSLESS are bit exact.
 * - After fork() only the parent may use a client. In the child every call on it returns -EPERM,
 *   and closing it frees memory and does nothing else. The child opens a client of its own.
 *
 * A call returns 0 or -errno, and leaves its outputs untouched when it fails, unless its comment
 * says otherwise. kvtier_last_error() then names the field and the limit. Any thread may call any
 * function, and threads may share a client. No call blocks past its deadline, starts a thread,
 * installs a signal handler, or exits.
 *
 * When the daemon dies, the first call that notices it ends every outstanding op with -ECONNRESET
 * for each block. From then on lookups find 0 blocks, and stores and loads return -ENOTCONN.
 * Lookups also find 0 blocks when the daemon's heartbeat is 2.5 s old. Later calls connect again
 * without blocking, and open the spaces again.
 *
 * A page is lent to the daemon from the submission of its op until one of three things has
 * happened: you took the op's result and its .lent was 0, kvtier_cancel() returned 0 for the op, or
 * kvtier_space_close() returned 0 for the space. While a page is lent, it must not change if the op
 * is a store, and must not be used if the op is a load. A daemon that stands still (SIGSTOP, a
 * debugger) is the only one that may keep pages after the library has given it up. Until that
 * daemon goes on or is dead, kvtier_lent() names these pages, and a store or load of one returns
 * -EBUSY. Either leave them alone or take their memory back. kvtier(3) says more in "Pages that are
 * still lent".
 */
#ifndef KVTIER_H
#define KVTIER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __cplusplus
extern "C" {
#endif

#define KVTIER_VERSION_MAJOR 0
#define KVTIER_VERSION_MINOR 2
#define KVTIER_API           __attribute__((visibility("default")))

struct kvtier_client; /* one connection to one kvtierd */
struct kvtier_space;  /* an identity under which blocks are interchangeable, open on a client */
struct kvtier_memory; /* memory for pages that the daemon maps, and that can be taken back */

/* Makes a struct with these fields; all others are 0, which means the default:
 *	struct kvtier_options options = KVTIER_INIT(kvtier_options, .name = "my-engine");
 * The macro also fills in `size`, from which the library learns which fields the program knows: the
 * program may be older or newer than the library. In an array only the size of element 0 is read,
 * and holds for all. (C99; C++20, or the dialects of g++ and clang++.) */
/* clang-format off */
#ifdef __cplusplus
#define KVTIER_INIT(type, ...) type{ .size = sizeof(type), __VA_ARGS__ }
#else
#define KVTIER_INIT(type, ...) (struct type){ .size = sizeof(struct type), __VA_ARGS__ }
#endif
/* clang-format on */

/* The limits of this version. A call that exceeds one returns -EINVAL, or the error in its line. */
enum {
	KVTIER_MAX_REGIONS = 64,    /* of a space */
	KVTIER_MAX_SEGMENTS = 2048, /* of a space */
	KVTIER_MAX_SPACES = 32,     /* open on a client at once; -EMFILE */
	KVTIER_MAX_BLOCKS = 8192,   /* in an op; a longer prompt takes several ops */
	KVTIER_MAX_OPS = 256,       /* outstanding on a client; -EAGAIN */
	KVTIER_MAX_LAYERS = 1024,
	KVTIER_MAX_LAYER_GROUPS = 128, /* of an op, and no more than its space has layers */
	KVTIER_MAX_HEADS = 1024,
	KVTIER_MAX_HEAD_DIM = 4096,
	KVTIER_MAX_BLOCK_TOKENS = 4096,
	KVTIER_MAX_STRING = 255, /* bytes in model, convention, extras */
};
#define KVTIER_MAX_IMAGE_BYTES (256u << 20) /* the size of an encoded block */

/* ---- a client ---- */

/* Not used any more: it is the daemon that encodes and decodes pages in a GPU's memory. */
enum kvtier_gpu_mode {
	KVTIER_GPU_DEFAULT = 0,
	KVTIER_GPU_DAEMON = 1,
	KVTIER_GPU_ENGINE = 2,
};

struct kvtier_options {
	uint32_t size;
	/* of connecting, of opening a space, and of ops that give none; default 5000 */
	uint32_t timeout_ms;
	const char *socket_path; /* default: see kvtier(3), ENVIRONMENT */
	const char *name;        /* shown by `kvtierctl clients`; default: the program's name */
	/* The size of a space's buffer if its pages are not shared, at least one page; default
	 * 16 MiB. It lies in host memory. A call may exceed its deadline by the time that copying
	 * as much takes. */
	uint64_t staging_bytes;
	/* how long kvtier_wait() spins before it sleeps; UINT32_MAX: it never spins; default: as
	 * the daemon advises (never on <= 2 cores) */
	uint32_t spin_us;
	uint32_t gpu_mode; /* not used any more */
};

/* Connects to the daemon. options may be NULL. -ECONNREFUSED, -ENOENT: there is no daemon. -EPROTO:
 * library and daemon have no version of the protocol in common. -EBUSY: the daemon had no place for
 * another client within timeout_ms. -ETIMEDOUT: it did not answer in that time. -EMFILE: this
 * process or the daemon has no descriptors left. The caller closes the client. */
KVTIER_API int kvtier_connect(const struct kvtier_options *options, struct kvtier_client **ret);

/* Closes every space, drops outstanding ops and frees the client, which may be NULL. No other
 * thread may be in a call on it. If the daemon does not give back all pages within the client's
 * timeout_ms, the connection is cut, and kvtier_lent(NULL, ...) says which pages are still lent.
 *
 * A client that had spaces in a GPU's memory leaves 8 KiB of registered host memory to the next
 * client of the process, because a driver may wait for all streams of the process when memory is
 * unregistered. A space that is staged frees more memory than that, and the driver may wait then.
 * So no stream should wait for what the closing thread does next. */
KVTIER_API void kvtier_close(struct kvtier_client *client);

/* Changes options.timeout_ms for all later calls; 0 is the default. A program that was told to end
 * can so choose how long closing its client may take. */
KVTIER_API int kvtier_set_timeout(struct kvtier_client *client, uint32_t timeout_ms);

/* The state of a client. If neither of the first two bits is set, the client has lost its daemon,
 * or never had one, and tries to connect. */
enum kvtier_state {
	KVTIER_CONNECTED = 1,
	KVTIER_CONNECTING = 2,
	KVTIER_WAITING = 4, /* pages are lent over connections that were cut */
};

/* Returns the state of the client (enum kvtier_state, or'ed), or -errno. Never blocks. If ret is
 * not NULL, the same is written into its n bytes as a sentence for people: "connected to ...", "not
 * connected: ...". While pages are lent over connections that were cut, the sentence goes on with
 * "; waits for kvtierd (pid 12) to answer or end: 3 pages are lent still ...". -ENOSPC: the
 * sentence has more than n bytes. */
KVTIER_API int kvtier_status(struct kvtier_client *client, char *ret, size_t n);

enum kvtier_tier {
	KVTIER_TIER_GPU = 1,
	KVTIER_TIER_HOST = 2,
	KVTIER_TIER_NVME = 4,
	KVTIER_TIER_REDIS = 8,
};

/* Returns the tiers (enum kvtier_tier, or'ed) of the daemon that the client was connected to last,
 * or 0 if it has not been connected yet. Never blocks. An engine that wants blocks of other nodes
 * looks for KVTIER_TIER_REDIS: without it a prefetch brings nothing that a lookup does not find. */
KVTIER_API int kvtier_tiers(struct kvtier_client *client);

/* ---- a space: whose blocks, and where pages lie ---- */

enum kvtier_dtype {
	KVTIER_BF16 = 1,
	KVTIER_FP16 = 2,
	KVTIER_FP32 = 3,
	KVTIER_E4M3 = 4,
	KVTIER_E5M2 = 5,
	KVTIER_INT8 = 6,
};

enum kvtier_codec {
	/* BF16, FP16: [codec] default of the daemon, which is fp8 unless its operator says
	 * otherwise; 8-bit types: fp8-native; else raw */
	KVTIER_CODEC_DEFAULT = 0,
	KVTIER_CODEC_RAW = 1, /* any dtype, bytes as they are */
	KVTIER_CODEC_FP8 = 2, /* BF16, FP16: E4M3, a power-of-two scale for 16 tokens of a head */
	KVTIER_CODEC_FP8_NATIVE = 3, /* 8-bit types, bytes as they are */
	/* BF16, FP16: bit exact, in 0.72 of BF16's bytes and 0.91 of FP16's, and fewer in Redis. A
	 * block that would take more is kept raw. Pages in a GPU's memory are staged where the head
	 * dims of K and V differ and one is beyond 640. */
	KVTIER_CODEC_LOSSLESS = 4,
	/* BF16, FP16, with K or V planes: whole numbers, a power-of-two scale for 64 tokens of a
	 * channel. It takes 1.6 % more bytes than fp8 (6 % with blocks of 16 tokens).
	 * KVTIER_TYPED values beside the planes are fp8. */
	KVTIER_CODEC_INT8 = 5,
	/* BF16, FP16, with K or V planes: four bits. A least value and a step for 64 tokens of a
	 * channel of K, a step for 32 values of a token of V. It takes 0.27 of the bytes (0.30 with
	 * blocks of 16 tokens). The blocks of a prompt's first 64 tokens are kept raw. TYPED values
	 * beside the planes are fp8. */
	KVTIER_CODEC_Q4 = 6,
	/* K as in KVTIER_CODEC_INT8, V as in KVTIER_CODEC_Q4: 0.39 of the bytes */
	KVTIER_CODEC_INT8V4 = 7,
};

/* Engines with equal geometries share blocks, even if their pages have different layouts. */
struct kvtier_geometry {
	uint32_t size;
	uint32_t dtype;         /* enum kvtier_dtype of the engine's pages */
	const char *model;      /* name and revision, e.g. "meta-llama/Llama-3.1-8B@0e9e39f" */
	const char *convention; /* how the engine's family orders KV: "hf", "gguf" (permutes K) */
	const char *extras;     /* all else that changes KV: LoRA, rope scaling...; may be NULL */
	uint32_t layers;
	uint32_t kv_heads;   /* of this rank */
	uint32_t head_dim_k; /* 0: there are no K planes (all values are typed) */
	uint32_t head_dim_v; /* 0: there are no V planes (MLA, or all values are typed) */
	uint32_t block_tokens;
	uint32_t rank, world;    /* tensor-parallel rank and number of ranks; 0, 1: not sharded */
	uint32_t codec;          /* enum kvtier_codec */
	uint32_t typed_segments; /* number of KVTIER_TYPED segments in a page */
	uint32_t typed_values;   /* values in each of them */
	uint32_t opaque_bytes;   /* bytes in all KVTIER_OPAQUE segments of a page together */
};

enum kvtier_memory_kind {
	KVTIER_MEMFD = 1,   /* fd: a memfd sealed with F_SEAL_SHRINK, which the daemon maps */
	KVTIER_PRIVATE = 2, /* base: memory that cannot be shared; the library copies ("staged") */
	/* base: a device pointer. The memory is shared over CUDA IPC or a descriptor if the driver
	 * can do that, else the library copies. kvtier_space_memory() says which, and why. */
	KVTIER_CUDA = 3,
};

struct kvtier_region {
	uint32_t size;
	uint32_t memory; /* enum kvtier_memory_kind */
	int32_t fd;      /* KVTIER_MEMFD: remains the caller's, who may close it after the call */
	uint32_t reserved;
	uint64_t offset; /* KVTIER_MEMFD: first byte in fd, a multiple of 4096 */
	uint64_t length; /* bytes */
	void *base;      /* PRIVATE, CUDA: its start; valid until the space is closed or quiesced */
};

enum kvtier_kind {
	KVTIER_K = 1,      /* keys of one layer: block_tokens x kv_heads x head_dim_k values */
	KVTIER_V = 2,      /* values of one layer: block_tokens x kv_heads x head_dim_v values */
	KVTIER_TYPED = 3,  /* typed_values values of the dtype, in an order that the engine knows */
	KVTIER_OPAQUE = 4, /* bytes that are kept as they are */
};

/* Where the K or V of one layer lies in every page. The value of page p, token t, head h and
 * dimension d begins at
 *	region + offset + p * page_stride + t * token_stride + h * head_stride + d * sizeof(dtype).
 * If head_dim_k is not 0, each layer has exactly one K segment; the same holds for head_dim_v and
 * V. */
struct kvtier_segment {
	uint32_t size;
	uint32_t region;      /* index into the regions that are given with the segments */
	uint32_t layer;       /* K, V: 0 .. layers-1; other kinds: 0 */
	uint32_t kind;        /* enum kvtier_kind */
	uint64_t offset;      /* bytes from the region's start to page 0; aligned to the dtype */
	uint64_t page_stride; /* bytes, > 0 */
	uint64_t head_stride; /* bytes; K and V only */
	/* bytes; K, V, and OPAQUE, where 0 means one run of bytes, and another number that each of
	 * block_tokens tokens has a row of its own */
	uint64_t token_stride;
	uint64_t length; /* TYPED: typed_values. OPAQUE: bytes of the run, or of each row */
};

/* Opens a space and tells the daemon where pages lie. Arrays and strings are copied. A space
 * without regions and segments can look up and prefetch, and nothing else. A page index is valid if
 * each segment of that page lies inside its region.
 *
 * -EINVAL: a field is out of its limits, or MEMFD and PRIVATE are mixed. -EPERM: a memfd has no
 * F_SEAL_SHRINK. -EACCES: the daemon's operator does not allow the codec. -EMFILE:
 * KVTIER_MAX_SPACES are open, or the daemon has no descriptors left.
 * -ENOTCONN: there is no daemon. -E2BIG: a block is larger than a slab of the daemon. -ENOSPC: the
 * daemon keeps no more spaces and all of them are open, or this client has its share of them.
 * -EAGAIN: the daemon is just dropping the blocks of many spaces. -ETIMEDOUT: it did not answer
 * within the client's timeout_ms. */
KVTIER_API int kvtier_space_open(struct kvtier_client *client,
				 const struct kvtier_geometry *geometry,
				 const struct kvtier_region *regions, size_t n_regions,
				 const struct kvtier_segment *segments, size_t n_segments,
				 struct kvtier_space **ret);

/* Cancels the space's ops, waits until the daemon has given back every page, and returns 0. If that
 * takes longer than the client's timeout_ms, the connection is cut, all of the client's ops end,
 * and the call returns how many pages of the space are still lent. In any case the space, which may
 * be NULL, is freed with the results that were not taken. */
KVTIER_API int kvtier_space_close(struct kvtier_space *space);

/* How the daemon reaches the pages of a space. */
enum kvtier_reach {
	KVTIER_REACH_NONE = 0,   /* the space has no pages */
	KVTIER_REACH_MEMFD = 1,  /* the daemon maps them */
	KVTIER_REACH_STAGED = 2, /* the library copies them */
	KVTIER_REACH_CUDA_IPC = 3,
	KVTIER_REACH_CUDA_FD = 4,
	KVTIER_REACH_CUDA_FABRIC = 5,
	KVTIER_REACH_CUDA_STAGED = 6, /* the library copies them, to host memory and back */
	KVTIER_REACH_CUDA_ENGINE = 7, /* not used any more */
};

/* Returns how the daemon reaches the space's pages (enum kvtier_reach), or -errno. If ret is not
 * NULL, the same is written into its n bytes for people, with the reason: "CUDA IPC", "CUDA staged:
 * it is of a stream-ordered...". -ENOSPC: that has more than n bytes. */
KVTIER_API int kvtier_space_memory(const struct kvtier_space *space, char *ret, size_t n);

/* For an engine that frees its pages for a while (sleep mode, new weights). Waits until the space's
 * ops have ended and the daemon has unmapped the pages, and returns 0. Ops that still run after the
 * client's timeout_ms are cancelled, and the call may then return how many pages are still lent, as
 * kvtier_space_close() does. No other thread may be in a call on the space. The space keeps its
 * identity. Until it is resumed it takes no store and no load, and its lookups find no block. */
KVTIER_API int kvtier_space_quiesce(struct kvtier_space *space);
/* Opens a quiesced space again. There must be as many regions as before, of the same kind; the
 * segments are those of the opening. NULL means the regions that the space had; this is not
 * possible with MEMFD, as the library keeps no descriptors. The errors are those of
 * kvtier_space_open(), and after one the space is still quiesced. */
KVTIER_API int kvtier_space_resume(struct kvtier_space *space, const struct kvtier_region *regions,
				   size_t n_regions);

/* ---- keys, and what is present ---- */

struct kvtier_key {
	uint8_t bytes[32]; /* SHA-256 chain */
};

/* Computes the keys of the full blocks in tokens: key[i] = SHA-256(key[i-1] | tokens of block i as
 * LE32). key[-1] is *parent. If parent is NULL, it is the space's salt, which the daemon made:
 * SHA-256(tenant secret, space id). *ret_n is the room in ret, and becomes n_tokens / block_tokens.
 * -ENOSPC: there is too little room. */
KVTIER_API int kvtier_keys(const struct kvtier_space *space, const struct kvtier_key *parent,
			   const uint32_t *tokens, size_t n_tokens, struct kvtier_key *ret,
			   size_t *ret_n);

struct kvtier_hit {
	uint32_t size;
	uint32_t blocks; /* leading blocks that are present */
	/* where the last of these blocks is (enum kvtier_tier, or'ed); 0 if blocks is 0. GPU means
	 * the GPU that has the space's pages */
	uint32_t tiers;
};

/* Says how many leading blocks of the chain keys[0..n) are present; 0 if the daemon is lost. This
 * takes <= 100 ns a block, and neither a system call nor a lock that the daemon waits for. */
KVTIER_API int kvtier_lookup(struct kvtier_space *space, const struct kvtier_key *keys, size_t n,
			     struct kvtier_hit *ret);

/* ---- ops ---- */

enum kvtier_op_kind {
	KVTIER_STORE = 1, /* gives the daemon the blocks that are in these pages */
	/* Brings blocks into these pages. Redis is asked for none behind the first block of the op
	 * that it does not have. */
	KVTIER_LOAD = 2,
	/* Brings blocks into host memory, from NVMe or from the Redis that nodes share, so that the
	 * next lookup finds them. Give the keys of the chain from its beginning, or a parent,
	 * because a block from Redis is kept only under the block before it. */
	KVTIER_PREFETCH = 3,
	KVTIER_HINT = 4, /* says what is to become of blocks: see `action` and `scope` */
};

/* What a hint does to blocks. daemon/HINTS.md has the whole rule, with its bounds. A hint changes
 * which of a tenant's blocks are evicted first, and never how much memory other tenants have. Hints
 * live in the daemon's memory. A daemon that starts again has forgotten all of them, with their
 * ttls, and treats blocks on NVMe as if they had never been hinted. */
enum kvtier_hint_action {
	/* With a priority above 0 the blocks count as a quarter as old as they are, with one below
	 * 0 they are the first to leave memory, with 0 they are treated as usual, or as
	 * expected_back_s says. When ttl_s is over, blocks that were not used since are evicted
	 * first of all. If all are 0, an earlier retain, pin or demote ends. */
	KVTIER_HINT_RETAIN = 1,
	KVTIER_HINT_PIN = 2,        /* they stay in memory for ttl_s */
	KVTIER_HINT_DEMOTE = 3,     /* they are the first to leave memory, and stay on NVMe */
	KVTIER_HINT_PREFETCH = 4,   /* they are brought into memory, as by KVTIER_PREFETCH */
	KVTIER_HINT_RELEASE = 5,    /* they are evicted first in every tier; ends retain, pin */
	KVTIER_HINT_SUPERSEDED = 6, /* as RELEASE: other blocks have taken their place */
	KVTIER_HINT_ENDED = 7,      /* as RELEASE, and the session is forgotten */
};
enum kvtier_hint_scope {
	KVTIER_HINT_KEYS = 1, /* the blocks with these keys; if a session is given, they join it */
	/* The blocks of all ops and hints that gave this session, in all spaces of the tenant
	 * (PREFETCH: in this space). If turn_number is above 0, only those that joined the session
	 * in this turn or later. */
	KVTIER_HINT_SESSION = 2,
	/* All spaces of the tenant with this space's model (name and revision), at once. RETAIN
	 * ends an earlier DEMOTE, RELEASE, SUPERSEDED or ENDED, as does opening a space of this
	 * model again. PIN and PREFETCH are rejected. */
	KVTIER_HINT_REVISION = 3,
};

/* An op: what it does, to which blocks, and how. Fields that its kind does not have must be 0. */
struct kvtier_op {
	uint32_t size;
	uint32_t kind; /* enum kvtier_op_kind */
	/* the keys of n consecutive blocks of a chain. HINT with KVTIER_HINT_KEYS: of any blocks */
	const struct kvtier_key *keys;
	const uint32_t *pages; /* STORE, LOAD: pages[i] is the page of keys[i] */
	size_t n;              /* 1 .. KVTIER_MAX_BLOCKS */
	/* The key before keys[0]; NULL: a prompt begins there. A store keeps no block where the
	 * parent is absent. It waits for an earlier store of this client that ends with the
	 * parent. */
	const struct kvtier_key *parent;
	uint64_t user; /* your own word, which the op's result gives back */
	/* 0: kvtier_options.timeout_ms. While the daemon waits for you to give layers, or for your
	 * stream, at most a minute of it counts. */
	uint32_t timeout_ms;
	uint32_t layer_groups; /* STORE, LOAD: how many, see kvtier_wait_layers(); 0: no groups */
	/* STORE, LOAD of KVTIER_CUDA: a CUstream. No page is touched before the work that is in
	 * this stream now is done. NULL: the op waits for no stream. The default stream is
	 * CU_STREAM_LEGACY, (void *)1. A stream that captures a graph is -EINVAL here and in the
	 * calls below, because what is put into it is not ordered after its earlier work. */
	void *stream;
	/* In a store, load or prefetch these five are hints. Each block of the op that is present
	 * at its end is treated as KVTIER_HINT_RETAIN treats a block. They cannot fail an op. The
	 * fifth is expected_back_s. */
	uint64_t session;     /* a conversation of this tenant; 0: of none */
	uint32_t turn_number; /* in the conversation */
	uint32_t ttl_s;       /* seconds worth keeping; 0: no limit; RETAIN, PIN: the longest */
	int32_t priority;     /* -100 .. 100; 0: normal */
	uint32_t action;      /* HINT: enum kvtier_hint_action */
	uint32_t scope;       /* HINT: enum kvtier_hint_scope */
	/* Seconds until the blocks are used again, as you expect. 0: not known; UINT32_MAX: never.
	 * The tenant's block that is expected last is evicted first. A use ends it. Not
	 * beside a priority; of a HINT with KVTIER_HINT_RETAIN, not with a revision. */
	uint32_t expected_back_s;
};

/* Submits an op. Arrays are copied, and pages are lent. -EINVAL: a field is out of its limits, or
 * an op of this kind does not have it. -EAGAIN: KVTIER_MAX_OPS are outstanding or the rings are
 * full; take results first. -ENOTCONN: the daemon is away. -EBUSY: a page is still lent over a
 * connection that was cut. */
KVTIER_API int kvtier_submit(struct kvtier_space *space, const struct kvtier_op *op,
			     uint64_t *ret_op);

/* The calls below submit one kind of op each. The fields that this kind must have are arguments;
 * the others are taken from options, which may be NULL. */
static inline int kvtier_submit_kind(struct kvtier_space *space, enum kvtier_op_kind kind,
				     const struct kvtier_key *keys, const uint32_t *pages, size_t n,
				     const struct kvtier_op *options, uint64_t *ret_op)
{
	struct kvtier_op op;

	memset(&op, 0, sizeof(op));
	if (options)
		op = *options;
	op.size = sizeof(op);
	op.kind = kind;
	op.keys = keys;
	op.pages = pages;
	op.n = n;
	return kvtier_submit(space, &op, ret_op);
}

static inline int kvtier_store(struct kvtier_space *space, const struct kvtier_key *keys,
			       const uint32_t *pages, size_t n, const struct kvtier_op *options,
			       uint64_t *ret_op)
{
	return kvtier_submit_kind(space, KVTIER_STORE, keys, pages, n, options, ret_op);
}

static inline int kvtier_load(struct kvtier_space *space, const struct kvtier_key *keys,
			      const uint32_t *pages, size_t n, const struct kvtier_op *options,
			      uint64_t *ret_op)
{
	return kvtier_submit_kind(space, KVTIER_LOAD, keys, pages, n, options, ret_op);
}

static inline int kvtier_prefetch(struct kvtier_space *space, const struct kvtier_key *keys,
				  size_t n, const struct kvtier_op *options, uint64_t *ret_op)
{
	return kvtier_submit_kind(space, KVTIER_PREFETCH, keys, NULL, n, options, ret_op);
}

/* options gives at least action and scope. Unless the scope is KVTIER_HINT_KEYS, keys is NULL and n
 * is 0. */
static inline int kvtier_hint(struct kvtier_space *space, const struct kvtier_key *keys, size_t n,
			      const struct kvtier_op *options, uint64_t *ret_op)
{
	return kvtier_submit_kind(space, KVTIER_HINT, keys, NULL, n, options, ret_op);
}

/* The statuses of a block. PRESENT: it had been stored before, and was not copied. All others are
 * -errno. -ENOENT: a miss. -ENOSPC: there was no room for it. -EFAULT: the page is out of range, or
 * was given back to the kernel since its first use. -ETIMEDOUT, -ECANCELED, -ECONNRESET: the op
 * ended first. After a load, the last four may have left a part of the block in the page. */
enum { KVTIER_BLOCK_OK = 0, KVTIER_BLOCK_PRESENT = 1 };

/* The answers to a hint. A block's status is 0, 1 or 2; -EPERM for rejected, -ENOENT for missing. A
 * hint on a session or a revision has a single status, which is -ENOENT or -EPERM only if no block
 * was answered otherwise. */
enum kvtier_hint_answer {
	KVTIER_HINT_ACCEPTED = 0,
	/* a bound was reached, so it was done in part or not at all: [hints] share_percent, a ttl
	 * of more than a day, no room */
	KVTIER_HINT_CLIPPED = 1,
	KVTIER_HINT_DEFERRED = 2, /* done later: a pin, once the block is in memory; a demote, once
				   * it is on NVMe and idle */
	KVTIER_HINT_REJECTED = 3, /* it is not possible */
	KVTIER_HINT_MISSING = 4,  /* there is no such block or session */
};

struct kvtier_result {
	uint32_t size;       /* in */
	int32_t status;      /* 0: each block's status is >= 0; else the first error among them */
	uint64_t op;         /* the op's number */
	uint64_t user;       /* kvtier_op.user */
	uint32_t n;          /* blocks in the op */
	uint32_t ok;         /* blocks with a status >= 0 */
	uint32_t prefix;     /* leading blocks with a status >= 0 */
	uint32_t blocks_max; /* in: how many statuses fit into blocks */
	int32_t *blocks;     /* in: NULL, or where to write min(n, blocks_max) statuses */
	uint32_t lent;       /* pages still lent, because the connection was cut: see above */
	uint32_t answers[5]; /* of a hint: how many blocks had each enum kvtier_hint_answer */
};

/* Waits for one op and takes its result; ret may be NULL. -ETIMEDOUT: the op goes on, and its pages
 * stay lent. -ENOENT: there is no such op, or its result was taken. With timeout_ms < 0 the call
 * waits until a second after the op's own deadline. -ETIMEDOUT then means that the daemon stands
 * still: wait on, or close. */
KVTIER_API int kvtier_wait(struct kvtier_client *client, uint64_t op, int timeout_ms,
			   struct kvtier_result *ret);
/* Takes up to max results of completed ops, and returns how many, or -errno. Never blocks. It reads
 * the size of ret[0], and blocks and blocks_max of each element. */
KVTIER_API int kvtier_poll(struct kvtier_client *client, struct kvtier_result *ret, size_t max);
/* Returns a descriptor that polls readable when kvtier_poll() may have a result. It belongs to the
 * client, and stays the same when the client connects again. Once you have asked for it, the daemon
 * sends a message after each poll that took the last result. */
KVTIER_API int kvtier_event_fd(const struct kvtier_client *client);
/* Ends an op early. timeout_ms < 0 means the client's. 0: no page of the op is touched any more,
 * and its result can be taken; blocks that were not done have -ECANCELED. -ETIMEDOUT: pages are
 * still lent, and kvtier_last_error() says how many. -ENOENT: there is no such op. */
KVTIER_API int kvtier_cancel(struct kvtier_client *client, uint64_t op, int timeout_ms);

/* ---- layer groups, and streams of a GPU ---- */

/* With layer_groups = n the L layers of an op are divided into n groups: group g begins with layer
 * L * g / n and ends before the first layer of group g + 1. A load brings group 0 of all its blocks
 * first, then group 1, and so on, so that an engine can compute with the first layers while the
 * last ones are on their way. Staged pages, and pages with TYPED or OPAQUE segments, get all their
 * groups at the op's end. */

/* Waits until a group is in the pages of all blocks, and returns 0. -ETIMEDOUT: it is not there
 * yet, and the op goes on. -ENODATA: the op has ended without some of its blocks; its result says
 * why. -EINVAL: the op has no such group. -ENOENT: there is no such op. timeout_ms < 0: as in
 * kvtier_wait(). */
KVTIER_API int kvtier_wait_layers(struct kvtier_client *client, uint64_t op, uint32_t group,
				  int timeout_ms);

#define KVTIER_ALL UINT32_MAX /* in place of a group: until the op has ended */

/* KVTIER_CUDA: work that is put into `stream` (a CUstream) after this call waits, without the CPU,
 * until this group is in the pages, or, with KVTIER_ALL, until the op has ended. The daemon ends
 * the wait.
 *
 * A stream can only be told to go on. An op that ends early (a block is gone, cancel, deadline)
 * therefore ends the waits for all of its groups, and the work then runs over pages whose bytes are
 * not there. So take the op's result before you use a value that was computed from its pages. If
 * the status is 0, each wait ended with its bytes in the pages. After any other status such values
 * are void.
 *
 * If the daemon dies, the stream waits until a call on this client notices it. So a thread that
 * waits for the stream, or for its whole context (as cudaFree() may), must not be the only thread
 * that makes such calls.
 *
 * -EOPNOTSUPP: use kvtier_wait() or kvtier_wait_layers(). This is always the answer for staged
 * pages: there the calls on this client do the op's work, and a stream that waits could stop them
 * for ever. -EINVAL: the op has no such group. -ENOENT: there is no such op. */
KVTIER_API int kvtier_stream_wait(struct kvtier_client *client, uint64_t op, uint32_t group,
				  void *stream);
/* Tells the daemon that the first `groups` layer groups of a store are in all of its pages and do
 * not change any more. With `stream` (KVTIER_CUDA) that is true once the work that is in the stream
 * now is done, and the CPU waits for nothing. The daemon reads no other group, so the engine may
 * write the others although their pages are lent. Call it with growing numbers, and always with the
 * same stream or NULL. The blocks are kept after the last group. An op that was not given all of
 * its groups ends at its deadline with -ETIMEDOUT, and none of its blocks is kept. -EAGAIN: the
 * ring is full; call again. -EOPNOTSUPP: this driver cannot write the word that the daemon would
 * wait for; synchronize the stream, and give NULL. */
KVTIER_API int kvtier_store_layers(struct kvtier_client *client, uint64_t op, uint32_t groups,
				   void *stream);

/* ---- memory for pages, and lent pages ---- */

/* Makes memory for pages: a sealed memfd of `length` bytes, rounded up to whole pages of the
 * kernel, zeroed and mapped in this process. /proc shows its name (NULL: "kvtier-pages"). -EINVAL,
 * -ENOMEM, -EMFILE. -EFBIG: that is more than RLIMIT_FSIZE allows. */
KVTIER_API int kvtier_memory_alloc(size_t length, const char *name, struct kvtier_memory **ret);
KVTIER_API void *kvtier_memory_address(const struct kvtier_memory *memory); /* never changes */
/* All of the memory as a region, whose fd is valid until the memory is freed or taken back. */
KVTIER_API int kvtier_memory_region(const struct kvtier_memory *memory, struct kvtier_region *ret);
/* Call this after kvtier_space_close() returned more than 0. It puts a fresh memfd with the same
 * contents under the same addresses, and no page of that one is lent. No thread may write to the
 * memory meanwhile. Repeat what you did with the addresses: madvise(), mlock(), a GPU's
 * registration. -EBUSY: a space that uses the memory is open. -ENOMEM (touched pages need twice
 * their memory), -ENOSPC, -EMFILE, -EFBIG: nothing has changed. */
KVTIER_API int kvtier_memory_take_back(struct kvtier_memory *memory);
/* Frees the memory, which may be NULL. Close the spaces that use it first. Its pages may still be
 * lent. */
KVTIER_API void kvtier_memory_free(struct kvtier_memory *memory);

struct kvtier_lent {
	uint32_t size;   /* in ret[0] */
	uint32_t page;   /* its index in the space of its op */
	uint64_t memory; /* inode (fstat) of its first segment's memfd; 0: PRIVATE; 1: CUDA */
	uint64_t offset; /* of that segment's first byte in the memfd; CUDA: its device address */
	uint64_t op;     /* the op that it was lent to */
	int32_t daemon;  /* pid of the daemon; 0: not known. Set only if ended is 1 */
	uint32_t ended;  /* 0: the op runs; 1: its connection was cut, the daemon keeps pages */
};

/* Writes up to max lent pages, ret[0].size bytes apart, and returns how many there are. A page that
 * was lent to several ops is named once for each. The pages of the client's running stores and
 * loads come first (client NULL: there are none). Then come the pages that any client of this
 * process, closed ones included, lent over connections that were cut. */
KVTIER_API int kvtier_lent(struct kvtier_client *client, struct kvtier_lent *ret, size_t max);

/* ---- errors ---- */

/* The sentence that explains this thread's last failure, or "". It is valid until the thread's next
 * call. */
KVTIER_API const char *kvtier_last_error(void);
KVTIER_API const char *kvtier_version(void); /* of the library in use: "0.2.0" */

#ifdef __cplusplus
}
#endif
#endif /* KVTIER_H */
