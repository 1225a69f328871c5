/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtier.h - give an LLM engine's KV-cache blocks to the node's kvtierd, and get prefixes back.
 *
 * Caveats first
 * -------------
 * - A block is the KV of `block_tokens` consecutive tokens, all layers, one rank. Only full blocks
 *   have keys; the tail of a prompt that does not fill a block is the engine's to recompute.
 * - kvtier_lookup() answers a hint: a block may be evicted between lookup and load. The load says
 *   so per block (-ENOENT), and only a load's per-block 0 means "these bytes are in your page".
 * - A page handed to kvtier_store() must not change, and one handed to kvtier_load() must not be
 *   used, while it is lent: see "Lent pages".
 * - Pages of a memfd are allocated when they are first lent, by the library and so on the engine's account.
 * - A store is best effort: -ENOSPC for a block means the daemon chose not to keep it.
 * - FP8 is lossy: with KVTIER_CODEC_FP8 (the default for BF16 and FP16) a loaded page is the nearest
 *   E4M3 value times a power of two, relative error <= 1/17 for normal values, 2.67 % RMS on
 *   Gaussian data (daemon/IMAGE.md, "FP8 rule"). KVTIER_CODEC_RAW is bit exact.
 * - After fork() only the parent may use a client; the child opens its own. In the child every call on an
 *   inherited client is -EPERM, and closing it frees memory only: the parent's connection does not notice.
 *
 * Every function returns 0 or -errno (and leaves its outputs untouched on failure) unless it says
 * otherwise. kvtier_last_error() gives the sentence behind the last failure on this thread: it names
 * the field and the limit. All functions may be called from any thread; calls on one client are
 * safe against each other. No call blocks past its deadline, starts a thread, installs a signal
 * handler, or exits.
 *
 * When the daemon dies, the first call that notices completes every outstanding op with -ECONNRESET
 * per block, and lookups then answer "no hit" at once; so they do for a daemon whose last heartbeat
 * is 2.5 s old. The library connects again by itself with backoff (50 ms doubling to 5 s, tried from
 * inside later calls, never blocking them) and opens the spaces again (one that is refused then,
 * every second); until then stores and loads fail with -ENOTCONN. A daemon that is only stopped keeps
 * the ops and their pages:
 *
 * Lent pages
 * ----------
 * A page is lent from the submission of its op until one of these:
 * - the op's result was taken (kvtier_wait, kvtier_poll) with .lent == 0, or kvtier_cancel() returned 0;
 * - the space was closed and kvtier_space_close() returned 0;
 * - its daemon is dead, or answers again and lets go: kvtier_lent() does not name the page any more.
 * So a healthy daemon, also one that stops, crashes or cuts the client off, gives pages back with the result.
 * Only of a daemon that stands still (SIGSTOP, a debugger, a machine out of memory) pages stay lent after the
 * library had to give the connection up: nothing can fence a writer in another process. Then results say .lent,
 * kvtier_space_close() returns how many pages, kvtier_lent() names them, and until they are free a store or load
 * of one of them is -EBUSY, over whichever connection and client of this process. Leave such pages alone, and
 * write nothing into them for a later store either. Under systemd it takes 30 s at most (WatchdogSec= of
 * kvtierd.service ends a daemon that stands still). Memory from kvtier_memory_alloc() need not wait:
 * kvtier_memory_take_back(). KVTIER_PRIVATE pages are the library's to write, and free with the result or the
 * close. A page that a store read late, after its connection was given up, never becomes a block.
 *
 * Typical use
 * -----------
 *	struct kvtier_options options = { .size = sizeof(options), .name = "my-engine" };
 *	kvtier_connect(&options, &client);
 *	kvtier_space_open(client, &geometry, regions, 1, segments, n_segments, &space);
 *	kvtier_keys(space, NULL, tokens, n_tokens, keys, &n_keys);
 *	kvtier_lookup(space, keys, n_keys, &hit);	-> hit.size is set, as in every struct
 *	kvtier_load(space, keys, pages, hit.blocks, NULL, &op);
 *	kvtier_wait(client, op, 1000, &result);          -> result.prefix blocks are in their pages
 *	... compute the rest ...
 *	struct kvtier_op_options how = { .size = sizeof(how), .parent = &keys[n - 1] };
 *	kvtier_store(space, keys + n, pages + n, m, &how, &op);
 */
#ifndef KVTIER_H
#define KVTIER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVTIER_VERSION_MAJOR 0
#define KVTIER_VERSION_MINOR 1

#define KVTIER_API __attribute__((visibility("default")))

struct kvtier_client;	/* one connection to one kvtierd */
struct kvtier_space;	/* an identity under which blocks are interchangeable, open on a client */

/* Limits of this version; what exceeds one is refused with -EINVAL and named by kvtier_last_error(). */
enum {
	KVTIER_MAX_REGIONS = 64,		/* per space */
	KVTIER_MAX_SEGMENTS = 2048,		/* per space */
	KVTIER_MAX_SPACES = 32,			/* open at once per client */
	KVTIER_MAX_BLOCKS = 8192,		/* per op; a longer prompt is several ops */
	KVTIER_MAX_OPS = 256,			/* outstanding per client; one more is -EAGAIN */
	KVTIER_MAX_LAYERS = 1024,
	KVTIER_MAX_HEADS = 1024,
	KVTIER_MAX_HEAD_DIM = 4096,
	KVTIER_MAX_BLOCK_TOKENS = 4096,
	KVTIER_MAX_STRING = 255,		/* bytes in model, convention, extras */
};
#define KVTIER_MAX_IMAGE_BYTES (256u << 20)	/* one encoded block */

enum kvtier_dtype {
	KVTIER_BF16 = 1,
	KVTIER_FP16 = 2,
	KVTIER_FP32 = 3,
	KVTIER_E4M3 = 4,
	KVTIER_E5M2 = 5,
	KVTIER_INT8 = 6,
};

enum kvtier_codec {
	KVTIER_CODEC_DEFAULT = 0,	/* fp8 for BF16/FP16, fp8-native for 8-bit types, raw otherwise */
	KVTIER_CODEC_RAW = 1,		/* bytes as they are, any dtype */
	KVTIER_CODEC_FP8 = 2,		/* E4M3, a power-of-two scale per head and 16 tokens; BF16, FP16 */
	KVTIER_CODEC_FP8_NATIVE = 3,	/* the engine's KV is 8-bit already: verbatim; 8-bit types */
};

enum kvtier_kind {
	KVTIER_K = 1,		/* keys of one layer: block_tokens x kv_heads x head_dim_k values */
	KVTIER_V = 2,		/* values of one layer: block_tokens x kv_heads x head_dim_v values */
	KVTIER_TYPED = 3,	/* typed_values values of the dtype in an order only the engine knows */
	KVTIER_OPAQUE = 4,	/* bytes kept verbatim */
};

enum kvtier_memory {
	KVTIER_MEMFD = 1,	/* fd: a memfd sealed with F_SEAL_SHRINK; the daemon maps it */
	KVTIER_PRIVATE = 2,	/* base: memory that cannot be shared; libkvtier copies ("staged") */
};

enum kvtier_tier { KVTIER_TIER_GPU = 1, KVTIER_TIER_HOST = 2, KVTIER_TIER_NVME = 4, KVTIER_TIER_REDIS = 8 };

/* Per-block statuses >= 0 are success. Negative ones are -errno:
 * -ENOENT miss, -ENOSPC not kept (store) or no room to bring it into host memory (load, prefetch), -ETIMEDOUT,
 * -ECANCELED, -ECONNRESET, -EFAULT page out of range, or given back to the system since its first use. The page of
 * a load that ended with -ETIMEDOUT, -ECANCELED, -ECONNRESET or -EFAULT may have a part of the block's bytes. */
enum { KVTIER_BLOCK_OK = 0, KVTIER_BLOCK_PRESENT = 1 /* store: already there, nothing was copied */ };

struct kvtier_key {
	uint8_t bytes[32];	/* SHA-256 chain; see kvtier_keys() */
};

/* All optional; a zeroed struct with its size is all defaults. */
struct kvtier_options {
	uint32_t    size;		/* sizeof(struct kvtier_options) */
	uint32_t    timeout_ms;		/* for connecting, opening spaces and ops that say 0; default 5000 */
	const char *socket_path;	/* default $KVTIER_SOCKET, else $XDG_RUNTIME_DIR/kvtier/kvtier.sock,
					 * for root /run/kvtier/kvtier.sock; without XDG_RUNTIME_DIR
					 * /tmp/kvtier-UID/kvtier.sock, if nobody else can write there */
	const char *name;		/* shown by `kvtierctl clients`; default the program's name */
	uint64_t    staging_bytes;	/* for KVTIER_PRIVATE regions, per space; default 16 MiB, >= a page;
					 * a call may copy as much, on top of its deadline */
	uint32_t    spin_us;		/* busy-wait this long in kvtier_wait() before sleeping; default: what
					 * the daemon advises (0 on <= 2 cores); UINT32_MAX: 0 */
	uint32_t    reserved;		/* 0 */
};

/* What makes blocks interchangeable. Two engines that fill this in alike share blocks, whatever the
 * layout of their pages. Everything here enters the space id. */
struct kvtier_geometry {
	uint32_t    size;		/* sizeof(struct kvtier_geometry) */
	uint32_t    dtype;		/* enum kvtier_dtype of the engine's pages */
	const char *model;		/* name + revision, e.g. "meta-llama/Llama-3.1-8B@0e9e39f" */
	const char *convention;		/* of the engine family's KV, e.g. "hf", "gguf" (permutes K rows) */
	const char *extras;		/* LoRA, rope scaling, engine KV scales...; may be NULL */
	uint32_t    layers;
	uint32_t    kv_heads;		/* of this rank */
	uint32_t    head_dim_k;		/* 0: no K planes (all typed) */
	uint32_t    head_dim_v;		/* 0: no V planes (MLA, all typed) */
	uint32_t    block_tokens;
	uint32_t    rank, world;	/* tensor-parallel rank of this shard; 0, 1 when not sharded */
	uint32_t    codec;		/* enum kvtier_codec */
	uint32_t    typed_segments;	/* number of KVTIER_TYPED segments in a page */
	uint32_t    typed_values;	/* values in each of them */
	uint32_t    opaque_bytes;	/* sum over KVTIER_OPAQUE segments of their bytes in one page */
};

struct kvtier_region {
	uint32_t size;			/* sizeof(struct kvtier_region) */
	uint32_t memory;		/* enum kvtier_memory */
	int32_t  fd;			/* KVTIER_MEMFD: stays the caller's, may be closed after the call */
	uint32_t reserved;		/* 0 */
	uint64_t offset;		/* KVTIER_MEMFD: first byte in fd, a multiple of 4096 */
	uint64_t length;		/* bytes */
	void    *base;			/* KVTIER_PRIVATE: start; must stay valid until the space is closed */
};

/* Where one layer's K or V of a page lies. Byte of (page p, token t, head h, dim d) =
 * region + offset + p * page_stride + t * token_stride + h * head_stride + d * sizeof(dtype).
 * Exactly one K (V) segment per layer when head_dim_k (head_dim_v) is not 0. */
struct kvtier_segment {
	uint32_t size;			/* sizeof(struct kvtier_segment) */
	uint32_t region;		/* index into the regions given beside it */
	uint32_t layer;			/* K, V: 0 .. layers-1; others: 0 */
	uint32_t kind;			/* enum kvtier_kind */
	uint64_t offset;		/* bytes, of page 0 in the region; aligned to the dtype */
	uint64_t page_stride;		/* bytes, > 0 */
	uint64_t head_stride;		/* bytes; K, V only */
	uint64_t token_stride;		/* bytes; K, V. OPAQUE: 0: one run; else block_tokens rows apart */
	uint64_t length;		/* TYPED: typed_values. OPAQUE: bytes of the run, or of each row */
};

struct kvtier_hit {
	uint32_t size;			/* sizeof(struct kvtier_hit) */
	uint32_t blocks;		/* leading blocks present */
	uint32_t tiers;			/* enum kvtier_tier bits of the last of them; 0 when blocks is 0 */
	uint32_t generation;		/* changes when that block is replaced; a hint like the rest */
};

struct kvtier_op_options {
	uint32_t size;			/* sizeof(struct kvtier_op_options) */
	uint32_t timeout_ms;		/* 0: kvtier_options.timeout_ms */
	const struct kvtier_key *parent; /* key of the block before keys[0]; NULL: keys[0] starts a prompt */
	uint64_t session;		/* hint: conversation id, 0 = none */
	uint32_t turn;			/* hint: turn in it */
	uint32_t ttl_s;			/* hint: not worth keeping longer; 0 = none */
	int32_t  priority;		/* hint: -100 .. 100, 0 = normal */
	uint32_t reserved;		/* 0 */
};

struct kvtier_result {
	uint32_t size;			/* in: sizeof(struct kvtier_result) */
	int32_t  status;		/* 0: every block >= 0; else the first block's error */
	uint64_t op;
	uint32_t n;			/* blocks of the op */
	uint32_t ok;			/* blocks with status >= 0 */
	uint32_t prefix;		/* leading blocks with status >= 0 */
	uint32_t blocks_max;		/* in: room in blocks */
	int32_t *blocks;		/* in: NULL, or where to write min(n, blocks_max) statuses */
	uint32_t lent;			/* pages of it that are lent still, its connection having been cut: "Lent pages" */
	uint32_t reserved;
};

/* A page that is lent. */
struct kvtier_lent {
	uint32_t size;			/* in ret[0]: sizeof(struct kvtier_lent) */
	uint32_t page;			/* its index, in the space it was lent by */
	uint64_t memory;		/* inode (fstat) of the memfd where its first segment lies; 0: KVTIER_PRIVATE */
	uint64_t offset;		/* of that segment's first byte there */
	uint64_t op;			/* that it was lent to */
	int32_t  daemon;		/* pid, 0: not known. Only with ended */
	uint32_t ended;			/* 0: the op runs; 1: its connection was cut, and the daemon has not let go */
};

struct kvtier_shared;	/* memory for pages that crosses without a copy, and can be taken back */

/* Connects and shakes hands. -ECONNREFUSED/-ENOENT: no daemon there; -EPROTO: version ranges do not
 * meet; -ETIMEDOUT; -EMFILE: no descriptors left here. The client is the caller's, to be closed. */
KVTIER_API int kvtier_connect(const struct kvtier_options *options, struct kvtier_client **ret);

/* Closes every space, drops outstanding ops and frees the client. NULL is fine. The daemon stops
 * touching pages before this returns, or (after the client's timeout_ms) the connection is cut:
 * kvtier_lent(NULL, ...) says whether pages are lent still. No other thread may be in a call on it. */
KVTIER_API void kvtier_close(struct kvtier_client *client);

/* Opens a space and shows the daemon where pages lie. With no regions and segments the space can
 * look up and prefetch, not store or load. A page index is valid when every segment of it lies
 * inside its region; a block of another has status -EFAULT. The arrays and strings are copied. -EINVAL: a
 * field is out of its limits, or KVTIER_MEMFD and KVTIER_PRIVATE are mixed. -EPERM: a memfd without
 * F_SEAL_SHRINK. -EMFILE: KVTIER_MAX_SPACES are open. -ENOTCONN: the daemon is away. -E2BIG: a block is larger
 * than its memory is divided for; -ENOSPC: as many spaces as it keeps are open; -EAGAIN: it is just dropping the
 * blocks of many for others. -ETIMEDOUT. */
KVTIER_API int kvtier_space_open(struct kvtier_client *client, const struct kvtier_geometry *geometry,
				 const struct kvtier_region *regions, size_t n_regions,
				 const struct kvtier_segment *segments, size_t n_segments,
				 struct kvtier_space **ret);

/* Cancels the space's ops and returns 0 after the daemon has let go of every page. After the client's timeout_ms the
 * connection is cut, all of the client's ops end, and this returns how many pages of the space are lent still
 * (one lent to two ops counts twice). Frees the space; its untaken results are gone. NULL is fine. */
KVTIER_API int kvtier_space_close(struct kvtier_space *space);

/* Keys of the full blocks in tokens: key[i] = SHA-256(key[i-1] | tokens of block i as LE32), with
 * key[-1] = *parent, or for NULL the space's salt = SHA-256(tenant secret, space id), which the daemon
 * made. *ret_n: in: room in ret; out: n_tokens / block_tokens. -ENOSPC when room is short. */
KVTIER_API int kvtier_keys(const struct kvtier_space *space, const struct kvtier_key *parent,
			   const uint32_t *tokens, size_t n_tokens, struct kvtier_key *ret, size_t *ret_n);

/* How many leading blocks of the chain keys[0..n) are present. No syscall, no lock the daemon
 * waits on, <= 100 ns a block. Never fails for a lost daemon: that is 0 blocks. */
KVTIER_API int kvtier_lookup(struct kvtier_space *space, const struct kvtier_key *keys, size_t n,
			     struct kvtier_hit *ret);

/* Submit n <= KVTIER_MAX_BLOCKS blocks: keys[i] <-> pages[i]; keys are consecutive in a chain. The
 * arrays are copied; the pages are lent until the result. -EAGAIN: KVTIER_MAX_OPS outstanding, or the
 * rings are full of blocks (take results first). -ENOTCONN: the daemon is away. -EBUSY: a page is lent still,
 * over a connection that was cut. options may be NULL. */
KVTIER_API int kvtier_store(struct kvtier_space *space, const struct kvtier_key *keys, const uint32_t *pages,
			    size_t n, const struct kvtier_op_options *options, uint64_t *ret_op);
KVTIER_API int kvtier_load(struct kvtier_space *space, const struct kvtier_key *keys, const uint32_t *pages,
			   size_t n, const struct kvtier_op_options *options, uint64_t *ret_op);

/* Bring blocks nearer (into the host tier, from NVMe or from the Redis that nodes share), so that the next lookup finds
 * them: for a prompt that kvtier_lookup() does not cover, with keys of the chain from its beginning, as a block of
 * Redis's is kept only under the one before it. Per block: 0, -ENOENT, -ENOSPC, -ETIMEDOUT, -ECANCELED. */
KVTIER_API int kvtier_prefetch(struct kvtier_space *space, const struct kvtier_key *keys, size_t n,
			       uint64_t *ret_op);

/* Waits for one op and takes its result (ret may be NULL). -ETIMEDOUT: not yet done; the op goes on and its
 * pages stay lent. -ENOENT: no such op, or its result was taken. timeout_ms < 0: until the op's own deadline,
 * when the daemon completes it, or a second later: -ETIMEDOUT then means that the daemon is stopped. Wait
 * again, or close the space, which says what is lent still. */
KVTIER_API int kvtier_wait(struct kvtier_client *client, uint64_t op, int timeout_ms,
			   struct kvtier_result *ret);

/* Takes up to max results of completed ops; returns how many, or -errno. Never blocks. Elements of
 * ret are ret[0].size bytes apart; each one's size, blocks and blocks_max are read. */
KVTIER_API int kvtier_poll(struct kvtier_client *client, struct kvtier_result *ret, size_t max);

/* A file descriptor that polls readable when kvtier_poll() may have something. Owned by the client,
 * the same over reconnects. After the first call completions cost the daemon one send each time
 * the descriptor was drained by kvtier_poll(). */
KVTIER_API int kvtier_event_fd(const struct kvtier_client *client);

/* Ends an op early. After 0 no page of it is touched and its result is waiting to be taken
 * (-ECANCELED for blocks that were not done). -ETIMEDOUT: pages of it are lent still, as it runs, or its
 * connection was cut; kvtier_last_error() has their number. -ENOENT: no such op. timeout_ms < 0: the client's. */
KVTIER_API int kvtier_cancel(struct kvtier_client *client, uint64_t op, int timeout_ms);

/* Which pages are lent: those of the client's running stores and loads (client may be NULL: none), then those
 * that this process lent over connections that were cut, whichever client's (also a closed one's). Writes up to
 * max, ret[0].size bytes apart, and returns how many there are; a page lent to two ops is there twice. -EINVAL,
 * -EPERM. */
KVTIER_API int kvtier_lent(struct kvtier_client *client, struct kvtier_lent *ret, size_t max);

/* Memory for pages: a memfd of `length` bytes (rounded up to whole pages, zeroed), sealed, and mapped here. name
 * (NULL: "kvtier-pages") is shown in /proc. -ENOMEM, -EMFILE, -EINVAL. */
KVTIER_API int kvtier_memory_alloc(size_t length, const char *name, struct kvtier_shared **ret);
KVTIER_API void *kvtier_memory_address(const struct kvtier_shared *memory);	/* the same all its life */

/* All of it as a region for kvtier_space_open(); ret->size is set. The fd is the memory's, until it is freed or
 * taken back: ask again then. */
KVTIER_API int kvtier_memory_region(const struct kvtier_shared *memory, struct kvtier_region *ret);

/* Takes all of the memory back at once, whoever may still write into it: a fresh memfd with the same contents
 * appears under the same addresses, pages of it that were lent are free, and a late writer has the old memfd to
 * itself (what it wrote until now is in the lent pages). For when kvtier_space_close() returned more than 0. No
 * thread may write to the memory meanwhile. What was never touched is not copied; the rest needs as much again for
 * the moment. madvise(), mlock() and a GPU's registration are to be done anew. -EBUSY: a space that uses it is
 * open. -ENOMEM, -ENOSPC, -EMFILE: nothing changed. */
KVTIER_API int kvtier_memory_take_back(struct kvtier_shared *memory);

/* After the spaces that use it were closed; pages may be lent still. NULL is fine. */
KVTIER_API void kvtier_memory_free(struct kvtier_shared *memory);

/* The sentence behind the last failure of a call on this thread; "" when there was none. Valid until
 * the thread's next call. */
KVTIER_API const char *kvtier_last_error(void);

/* "0.1.0" of the library in use. */
KVTIER_API const char *kvtier_version(void);

#ifdef __cplusplus
}
#endif
#endif /* KVTIER_H */
