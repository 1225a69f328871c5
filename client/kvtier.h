/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtier.h - give an LLM engine's KV-cache blocks to the node's kvtierd, and get prefixes back.
 *
 * - A block is the KV of `block_tokens` consecutive tokens, all layers, one rank. Only full blocks
 *   have keys. The engine recomputes the tail of a prompt that does not fill a block.
 * - kvtier_lookup() gives a hint: a block may be evicted between lookup and load. Only a per-block
 *   status 0 of a load means "these bytes are in your page"; -ENOENT means that the block is gone.
 * - A store is best effort: -ENOSPC for a block means that the daemon chose not to keep it.
 * - FP8 is lossy. With KVTIER_CODEC_FP8 (the default for BF16 and FP16) a loaded value is the
 *   nearest E4M3 value times a power of two: relative error <= 1/17 for normal values, 2.67 % RMS
 *   on Gaussian data (daemon/IMAGE.md, "FP8 rule"). KVTIER_CODEC_RAW is bit exact.
 * - After fork() only the parent may use a client: every call of the child on it is -EPERM, and a
 *   close there frees memory only. The child opens its own client.
 *
 * Calls return 0 or -errno and leave outputs untouched on failure, unless they say otherwise.
 * kvtier_last_error() names the field and the limit. Any thread may call any function, also on one
 * client. No call blocks past its deadline, starts a thread, installs a signal handler, or exits.
 *
 * A dead daemon: the first call that notices ends every outstanding op with -ECONNRESET per block.
 * Lookups then find 0 blocks, as they do when the daemon's heartbeat is 2.5 s old, and stores and
 * loads are -ENOTCONN. Later calls connect again, without blocking, and open the spaces again.
 *
 * Lent pages: a page is lent from the submission of its op until the op's result was taken with
 * .lent == 0, or kvtier_cancel() returned 0 for the op, or kvtier_space_close() returned 0 for the
 * space. While it is lent, a page of a store must not change and a page of a load must not be used.
 * Only a daemon that stands still (SIGSTOP, a debugger) keeps pages after the library gave it up:
 * until it goes on or is dead, kvtier_lent() names them, and a store or load of one is -EBUSY. Do
 * not touch them, or take their memory back. More in kvtier(3), "Pages that are still lent".
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
#define KVTIER_API           __attribute__((visibility("default")))

struct kvtier_client; /* one connection to one kvtierd */
struct kvtier_space;  /* an identity under which blocks are interchangeable, open on a client */
struct kvtier_shared; /* memory for pages: crosses without a copy, and can be taken back */

/* Limits of this version: -EINVAL beyond one, unless the line says otherwise. */
enum {
	KVTIER_MAX_REGIONS = 64,    /* per space */
	KVTIER_MAX_SEGMENTS = 2048, /* per space */
	KVTIER_MAX_SPACES = 32,     /* open at once per client; -EMFILE */
	KVTIER_MAX_BLOCKS = 8192,   /* per op; a longer prompt is several ops */
	KVTIER_MAX_OPS = 256,       /* outstanding per client; -EAGAIN */
	KVTIER_MAX_LAYERS = 1024,
	KVTIER_MAX_LAYER_GROUPS = 128, /* per op, and at most its space's layers */
	KVTIER_MAX_HEADS = 1024,
	KVTIER_MAX_HEAD_DIM = 4096,
	KVTIER_MAX_BLOCK_TOKENS = 4096,
	KVTIER_MAX_STRING = 255, /* bytes in model, convention, extras */
};
#define KVTIER_MAX_IMAGE_BYTES (256u << 20) /* one encoded block */

enum kvtier_dtype {
	KVTIER_BF16 = 1,
	KVTIER_FP16 = 2,
	KVTIER_FP32 = 3,
	KVTIER_E4M3 = 4,
	KVTIER_E5M2 = 5,
	KVTIER_INT8 = 6,
};

enum kvtier_codec {
	KVTIER_CODEC_DEFAULT = 0, /* fp8 for BF16, FP16; fp8-native for 8-bit types; else raw */
	KVTIER_CODEC_RAW = 1,     /* any dtype, bytes as they are */
	KVTIER_CODEC_FP8 = 2,     /* BF16, FP16: E4M3, a power-of-two scale per head, 16 tokens */
	KVTIER_CODEC_FP8_NATIVE = 3, /* 8-bit types, bytes as they are */
};

enum kvtier_kind {
	KVTIER_K = 1,      /* keys of one layer: block_tokens x kv_heads x head_dim_k values */
	KVTIER_V = 2,      /* values of one layer: block_tokens x kv_heads x head_dim_v values */
	KVTIER_TYPED = 3,  /* typed_values values of the dtype in an order only the engine knows */
	KVTIER_OPAQUE = 4, /* bytes kept verbatim */
};

enum kvtier_memory {
	KVTIER_MEMFD = 1,   /* fd: a memfd sealed with F_SEAL_SHRINK; the daemon maps it */
	KVTIER_PRIVATE = 2, /* base: memory that cannot be shared; libkvtier copies ("staged") */
	/* base: a device pointer; shared over CUDA IPC or a descriptor where its driver can, else
	 * staged: kvtier_space_memory() says how, and why not better */
	KVTIER_CUDA = 3,
};

/* Whose GPU context encodes and decodes the pages of KVTIER_CUDA. DAEMON: the daemon's. ENGINE:
 * this process's, on a stream of the least priority that the driver has, so that nothing takes
 * turns with the engine's kernels; the daemon copies images and launches nothing. The library does
 * its part in calls that submit, wait or poll. Where it cannot, kvtier_space_memory() says why, and
 * it is DAEMON. */
enum kvtier_gpu_mode {
	KVTIER_GPU_DEFAULT = 0,
	KVTIER_GPU_DAEMON = 1,
	KVTIER_GPU_ENGINE = 2,
};

enum kvtier_tier {
	KVTIER_TIER_GPU = 1,
	KVTIER_TIER_HOST = 2,
	KVTIER_TIER_NVME = 4,
	KVTIER_TIER_REDIS = 8,
};

/* Statuses of a block. PRESENT: stored before, not copied. Others are -errno: -ENOENT miss; -ENOSPC
 * no room for it; -EFAULT page out of range, or given back to the kernel since its first use;
 * -ETIMEDOUT; -ECANCELED; -ECONNRESET. After a load the last four may leave a part in the page. */
enum { KVTIER_BLOCK_OK = 0, KVTIER_BLOCK_PRESENT = 1 };

struct kvtier_key {
	uint8_t bytes[32]; /* SHA-256 chain; see kvtier_keys() */
};

/* Every `size` is the sizeof of its struct, every `reserved` 0. Of options 0 means the default. */
struct kvtier_options {
	uint32_t size;
	uint32_t timeout_ms;     /* connecting, opening spaces, ops that say 0; default 5000 */
	const char *socket_path; /* default: see kvtier(3), ENVIRONMENT */
	const char *name;        /* shown by `kvtierctl clients`; default the program's name */
	uint64_t staging_bytes;  /* a space's buffer for KVTIER_PRIVATE, and on the GPU for
				  * KVTIER_GPU_ENGINE, >= a page; default 16 MiB. A call may copy
				  * as much on top of its deadline. */
	uint32_t spin_us;        /* kvtier_wait() spins so long before it sleeps; UINT32_MAX: never;
				  * default: as the daemon advises (never on <= 2 cores) */
	uint32_t gpu_mode;       /* enum kvtier_gpu_mode; default: [gpu] mode of the daemon */
};

/* Engines with equal geometries share blocks, also where their pages have different layouts. */
struct kvtier_geometry {
	uint32_t size;
	uint32_t dtype;         /* enum kvtier_dtype of the engine's pages */
	const char *model;      /* name + revision, e.g. "meta-llama/Llama-3.1-8B@0e9e39f" */
	const char *convention; /* of the engine family's KV, e.g. "hf", "gguf" (permutes K rows) */
	const char *extras;     /* LoRA, rope scaling, engine KV scales...; may be NULL */
	uint32_t layers;
	uint32_t kv_heads;   /* of this rank */
	uint32_t head_dim_k; /* 0: no K planes (all typed) */
	uint32_t head_dim_v; /* 0: no V planes (MLA, all typed) */
	uint32_t block_tokens;
	uint32_t rank, world;    /* tensor-parallel rank of this shard; 0, 1 when not sharded */
	uint32_t codec;          /* enum kvtier_codec */
	uint32_t typed_segments; /* number of KVTIER_TYPED segments in a page */
	uint32_t typed_values;   /* values in each of them */
	uint32_t opaque_bytes;   /* sum over KVTIER_OPAQUE segments of their bytes in one page */
};

struct kvtier_region {
	uint32_t size;
	uint32_t memory; /* enum kvtier_memory */
	int32_t fd;      /* KVTIER_MEMFD: stays the caller's, may be closed after the call */
	uint32_t reserved;
	uint64_t offset; /* KVTIER_MEMFD: first byte in fd, a multiple of 4096 */
	uint64_t length; /* bytes */
	void *base; /* PRIVATE, CUDA: start; stays valid until the space is closed, or quiesced */
};

/* Where one layer's K or V of a page lies. Byte of (page p, token t, head h, dim d) =
 * region + offset + p * page_stride + t * token_stride + h * head_stride + d * sizeof(dtype).
 * Exactly one K (V) segment per layer when head_dim_k (head_dim_v) is not 0. */
struct kvtier_segment {
	uint32_t size;
	uint32_t region;       /* index into the regions given beside it */
	uint32_t layer;        /* K, V: 0 .. layers-1; others: 0 */
	uint32_t kind;         /* enum kvtier_kind */
	uint64_t offset;       /* bytes, of page 0 in the region; aligned to the dtype */
	uint64_t page_stride;  /* bytes, > 0 */
	uint64_t head_stride;  /* bytes; K, V only */
	uint64_t token_stride; /* bytes; K, V. OPAQUE: 0: one run; else block_tokens rows apart */
	uint64_t length;       /* TYPED: typed_values. OPAQUE: bytes of the run, or of each row */
};

struct kvtier_hit {
	uint32_t size;
	uint32_t blocks; /* leading blocks present */
	/* enum kvtier_tier bits of the last of these blocks; 0 when blocks is 0. GPU: the GPU that
	 * has the space's pages, no other GPU */
	uint32_t tiers;
	uint32_t generation; /* changes when that block is replaced; a hint like the rest */
};

/* session, turn, ttl_s and priority are hints: a block of the op that has come to be present is
 * treated as kvtier_hint() with KVTIER_HINT_RETAIN treats it. They cannot fail an op. */
struct kvtier_op_options {
	uint32_t size;
	/* 0: kvtier_options.timeout_ms. At most a minute counts of an op for which the daemon waits
	 * for you: for layers to be given, or for a stream. */
	uint32_t timeout_ms;
	const struct kvtier_key *parent; /* of the block before keys[0]; NULL: a prompt's start */
	uint64_t session;                /* conversation, of this tenant; 0: none */
	uint32_t turn;                   /* in the conversation */
	uint32_t ttl_s;                  /* seconds that it is worth keeping; 0: any */
	int32_t priority;                /* -100 .. 100, 0: normal */
	uint32_t layer_groups;           /* 0: none. n: see kvtier_wait_layers() */
	/* KVTIER_CUDA: a CUstream. No page is touched before the work that is in it now is done.
	 * NULL: none; the default stream is CU_STREAM_LEGACY, (void *)1. A stream that captures a
	 * graph is -EINVAL here and in the calls below: it orders nothing now. */
	void *cuda_stream;
};

struct kvtier_result {
	uint32_t size;       /* in */
	int32_t status;      /* 0: every block >= 0; else the first block's error */
	uint64_t op;         /* the op's number */
	uint32_t n;          /* blocks of the op */
	uint32_t ok;         /* blocks with status >= 0 */
	uint32_t prefix;     /* leading blocks with status >= 0 */
	uint32_t blocks_max; /* in: room in blocks */
	int32_t *blocks;     /* in: NULL, or where to write min(n, blocks_max) statuses */
	uint32_t lent;       /* pages still lent, after the connection was cut: see above */
	uint32_t reserved;
	uint32_t answers[5]; /* of kvtier_hint(): blocks by enum kvtier_hint_answer */
	uint32_t reserved2;
};

/* The effect of a hint on blocks. daemon/HINTS.md says it in full, with the bounds. A hint changes
 * which of a tenant's blocks go first, and never how much other tenants have. Hints are in the
 * daemon's memory: when it starts again, all are forgotten, ttls too, and blocks on NVMe are as
 * usual. */
enum kvtier_hint_action {
	/* priority > 0: go after others; < 0: are the first to leave memory; 0: as usual. When
	 * ttl_s is over they go first of all. Both 0: ends an earlier retain, pin or demote. */
	KVTIER_HINT_RETAIN = 1,
	KVTIER_HINT_PIN = 2,        /* stay in memory for ttl_s */
	KVTIER_HINT_DEMOTE = 3,     /* are the first to leave memory, and stay on NVMe */
	KVTIER_HINT_PREFETCH = 4,   /* are brought into memory; of keys, as kvtier_prefetch() */
	KVTIER_HINT_RELEASE = 5,    /* are the first to go, everywhere; ends retain and pin */
	KVTIER_HINT_SUPERSEDED = 6, /* likewise: others have taken their place */
	KVTIER_HINT_ENDED = 7,      /* likewise, and the session is forgotten */
};
enum kvtier_hint_scope {
	KVTIER_HINT_KEYS = 1, /* the blocks of these keys; with a session they join it */
	/* the blocks of ops and hints with this session, in all spaces of the tenant (PREFETCH: in
	 * this space). turn > 0: the blocks that joined it in this turn or later */
	KVTIER_HINT_SESSION = 2,
	/* all spaces of the tenant with this space's model (name and revision), at once. RETAIN, or
	 * opening a space of it again, ends an earlier DEMOTE, RELEASE, SUPERSEDED or ENDED; PIN
	 * and PREFETCH are rejected */
	KVTIER_HINT_REVISION = 3,
};
/* Statuses of a block of a hint: 0, 1 and 2; -EPERM: rejected; -ENOENT: missing. */
enum kvtier_hint_answer {
	KVTIER_HINT_ACCEPTED = 0,
	KVTIER_HINT_CLIPPED = 1,  /* in part, or not: [hints] share_percent, max_ttl, max_blocks */
	KVTIER_HINT_DEFERRED = 2, /* when it comes into memory; when it is on NVMe, or not in use */
	KVTIER_HINT_REJECTED = 3, /* it cannot be */
	KVTIER_HINT_MISSING = 4,  /* no such block or session */
};

struct kvtier_hint {
	uint32_t size;
	uint32_t action; /* enum kvtier_hint_action */
	uint32_t scope;  /* enum kvtier_hint_scope */
	uint32_t timeout_ms;
	const struct kvtier_key *keys; /* KEYS: n of them, of any chains; else NULL */
	size_t n;                      /* 1 .. KVTIER_MAX_BLOCKS; else 0 */
	uint64_t session;              /* SESSION: not 0 */
	uint32_t turn;
	uint32_t ttl_s;   /* RETAIN, PIN: 0: as long as may be */
	int32_t priority; /* RETAIN: -100 .. 100 */
	uint32_t reserved;
};

struct kvtier_lent {
	uint32_t size;   /* in ret[0] */
	uint32_t page;   /* its index, in the space of its op */
	uint64_t memory; /* inode (fstat) of its first segment's memfd; 0: PRIVATE; 1: CUDA */
	uint64_t offset; /* of that segment's first byte in the memfd; CUDA: its device address */
	uint64_t op;     /* the op that it was lent to */
	int32_t daemon;  /* pid of the daemon, 0: not known; set only with ended */
	uint32_t ended;  /* 0: the op runs; 1: its connection was cut, the daemon did not let go */
};

/* Connects and shakes hands. -ECONNREFUSED, -ENOENT: no daemon there; -EPROTO: no common version;
 * -EBUSY: the daemon had no place for it until timeout_ms; -ETIMEDOUT; -EMFILE: no descriptors
 * left, here or in the daemon. The caller closes the client. */
KVTIER_API int kvtier_connect(const struct kvtier_options *options, struct kvtier_client **ret);

/* Closes every space, drops outstanding ops and frees the client; NULL is fine. No other thread
 * may be in a call on it. When the daemon does not let go of all pages within the client's
 * timeout_ms, the connection is cut: kvtier_lent(NULL, ...) says which pages are still lent. */
KVTIER_API void kvtier_close(struct kvtier_client *client);

/* Another options.timeout_ms (0: the default) for calls from now on: so a program that was told to
 * end closes a client in a time of its choice. */
KVTIER_API int kvtier_set_timeout(struct kvtier_client *client, uint32_t timeout_ms);

/* Opens a space and tells the daemon where pages lie. Arrays and strings are copied. Without
 * regions and segments the space can look up and prefetch only. A page index is valid when each
 * segment of the page lies inside its region. -EINVAL: a field is out of its limits, or MEMFD and
 * PRIVATE are mixed. -EPERM: a memfd without F_SEAL_SHRINK. -EMFILE: KVTIER_MAX_SPACES are open, or
 * the daemon has no descriptors left.
 * -ENOTCONN: no daemon. -E2BIG: a block is larger than a slab of the daemon. -ENOSPC: the daemon
 * keeps no more spaces, and all are open, or this client has its share of them. -EAGAIN: it is just
 * dropping the blocks of many spaces. -ETIMEDOUT. */
KVTIER_API int kvtier_space_open(struct kvtier_client *client,
				 const struct kvtier_geometry *geometry,
				 const struct kvtier_region *regions, size_t n_regions,
				 const struct kvtier_segment *segments, size_t n_segments,
				 struct kvtier_space **ret);

/* Cancels the space's ops, waits until the daemon has let go of every page, and returns 0. After
 * the client's timeout_ms the connection is cut, all of the client's ops end, and this returns how
 * many pages of the space are still lent. Frees the space and results not taken. NULL is fine. */
KVTIER_API int kvtier_space_close(struct kvtier_space *space);

/* How the daemon reaches the space's pages, as a sentence for people: "CUDA IPC", "CUDA staged: it
 * is of a stream-ordered pool...". -ENOSPC: it has more than n bytes. */
KVTIER_API int kvtier_space_memory(const struct kvtier_space *space, char *ret, size_t n);

/* For an engine that gives its pages back for a while (sleep mode, new weights). Waits until the
 * space's ops have ended, which are cancelled after the client's timeout_ms, and until the daemon
 * has unmapped the pages, and returns 0; or how many pages are still lent, as kvtier_space_close().
 * No other thread may be in a call on the space. The space keeps its identity. Until it is resumed
 * it takes no store and no load, and a lookup finds no block. */
KVTIER_API int kvtier_space_quiesce(struct kvtier_space *space);
/* Opens a quiesced space again. regions: as many as before, of the same kind, for the same
 * segments; NULL: the regions that it had (not MEMFD: the library keeps no descriptor of them).
 * Errors: as kvtier_space_open(); after an error the space is still quiesced. */
KVTIER_API int kvtier_space_resume(struct kvtier_space *space, const struct kvtier_region *regions,
				   size_t n_regions);

/* Keys of the full blocks in tokens: key[i] = SHA-256(key[i-1] | tokens of block i as LE32).
 * key[-1] is *parent, or for NULL the space's salt = SHA-256(tenant secret, space id), which the
 * daemon made. *ret_n in: room in ret; out: n_tokens / block_tokens. -ENOSPC: too little room. */
KVTIER_API int kvtier_keys(const struct kvtier_space *space, const struct kvtier_key *parent,
			   const uint32_t *tokens, size_t n_tokens, struct kvtier_key *ret,
			   size_t *ret_n);

/* How many leading blocks of the chain keys[0..n) are present: 0 if the daemon is lost. Takes
 * <= 100 ns a block, no system call, and no lock that the daemon waits for. */
KVTIER_API int kvtier_lookup(struct kvtier_space *space, const struct kvtier_key *keys, size_t n,
			     struct kvtier_hit *ret);

/* Submit n blocks of a chain: keys[i] belongs to pages[i]. Arrays are copied; pages are lent.
 * options may be NULL. -EAGAIN: take results first, as KVTIER_MAX_OPS are outstanding or the rings
 * full. -ENOTCONN: the daemon is away. -EBUSY: a page is lent over a connection that was cut. */
KVTIER_API int kvtier_store(struct kvtier_space *space, const struct kvtier_key *keys,
			    const uint32_t *pages, size_t n,
			    const struct kvtier_op_options *options, uint64_t *ret_op);
KVTIER_API int kvtier_load(struct kvtier_space *space, const struct kvtier_key *keys,
			   const uint32_t *pages, size_t n, const struct kvtier_op_options *options,
			   uint64_t *ret_op);
/* Brings blocks into host memory, from NVMe or from the Redis that nodes share, so that the next
 * lookup finds them. Give the keys of the chain from its beginning: a block from Redis is kept
 * only under the block before it. Per block: 0, -ENOENT, -ENOSPC, -ETIMEDOUT, -ECANCELED. */
KVTIER_API int kvtier_prefetch(struct kvtier_space *space, const struct kvtier_key *keys, size_t n,
			       uint64_t *ret_op);

/* Submits a hint, an op as any other: its result has the answers. The space may have no pages. For
 * SESSION and REVISION result.n is 1, and status -ENOENT or -EPERM where nothing was answered
 * otherwise. -EINVAL: a field is out of its limits, or does not go with the scope. Otherwise as
 * kvtier_store(). */
KVTIER_API int kvtier_hint(struct kvtier_space *space, const struct kvtier_hint *hint,
			   uint64_t *ret_op);

/* Waits for one op and takes its result; ret may be NULL. -ETIMEDOUT: the op goes on, its pages
 * stay lent. -ENOENT: no such op, or its result was taken. timeout_ms < 0: until a second after the
 * op's own deadline; -ETIMEDOUT then means that the daemon stands still: wait on or close. */
KVTIER_API int kvtier_wait(struct kvtier_client *client, uint64_t op, int timeout_ms,
			   struct kvtier_result *ret);
/* Takes up to max results of completed ops and returns how many, or -errno. Never blocks. Elements
 * of ret are ret[0].size bytes apart; size, blocks and blocks_max of each are read. */
KVTIER_API int kvtier_poll(struct kvtier_client *client, struct kvtier_result *ret, size_t max);
/* A descriptor that polls readable when kvtier_poll() may have something. It is the client's, and
 * the same over reconnects. Once asked for, it costs the daemon a send after each draining poll. */
KVTIER_API int kvtier_event_fd(const struct kvtier_client *client);
/* Ends an op early; timeout_ms < 0: the client's. 0: no page of the op is touched any more, and its
 * result can be taken (-ECANCELED for blocks that were not done). -ETIMEDOUT: pages are still lent,
 * kvtier_last_error() says how many. -ENOENT: no such op. */
KVTIER_API int kvtier_cancel(struct kvtier_client *client, uint64_t op, int timeout_ms);
/* KVTIER_CUDA: work that is put into `stream` (a CUstream) after this call waits, without the CPU,
 * until the op has ended. Only the op's result says whether its blocks were loaded. The daemon ends
 * the wait. If it dies, the stream waits until a call of this client notices: so a thread that
 * waits for the stream, or for its whole context (cudaFree() may), must not be the only one that
 * calls.
 * -EOPNOTSUPP: use kvtier_wait(); so it is always with staged pages and in engine mode, where calls
 * of this client do the op's work, and a stream that waits could stop them for ever. -ENOENT: no
 * such op. */
KVTIER_API int kvtier_stream_wait(struct kvtier_client *client, uint64_t op, void *stream);
/* Layer groups. With options.layer_groups = n an op has its layers in n groups: of L layers, group
 * g has layer L * g / n and on, up to the first layer of group g + 1. A load brings group 0 of all
 * of its blocks first, then group 1, and so on, so that an engine can compute with the first layers
 * while the last ones are on their way. This call waits until a group is in the pages of all
 * blocks: 0. -ETIMEDOUT: not yet, the op goes on. -ENODATA: the op has ended, and not with all of
 * its blocks: its result says why. timeout_ms < 0: as kvtier_wait(). -EINVAL: the op has no such
 * group. -ENOENT. Staged pages, pages of engine mode, and pages with TYPED or OPAQUE segments have
 * all their groups at the op's end. */
KVTIER_API int kvtier_wait_layers(struct kvtier_client *client, uint64_t op, uint32_t group,
				  int timeout_ms);
/* KVTIER_CUDA: work that is put into `stream` after this call waits for a group, without the CPU.
 * It never hangs: an op that ends early (a block is gone, cancel, deadline) lets go of all its
 * groups, and the work then runs over pages whose bytes are not there. So take the op's result
 * before you use a value that was computed from its pages: status 0 means that each wait ended with
 * its bytes in the pages. After any other status such values are void. Otherwise as
 * kvtier_stream_wait(). */
KVTIER_API int kvtier_stream_wait_layers(struct kvtier_client *client, uint64_t op, uint32_t group,
					 void *stream);
/* Of a store with options.layer_groups: the first `groups` groups are in all of its pages, and do
 * not change any more; with `stream` (KVTIER_CUDA) once the work that is in it now is done, without
 * the CPU. The daemon reads no other group: the engine may write these groups, though their pages
 * are lent. Call it with growing numbers, always with the same stream or NULL. Blocks are kept
 * after the last group. An op that is not given all groups ends at its deadline with -ETIMEDOUT,
 * and none of its blocks is kept. -EAGAIN: the ring is full, call again. -EOPNOTSUPP: this driver
 * writes no words: synchronize the stream, and give NULL. */
KVTIER_API int kvtier_store_layers(struct kvtier_client *client, uint64_t op, uint32_t groups,
				   void *stream);
/* Writes up to max lent pages, ret[0].size bytes apart, and returns how many there are, once for
 * each op: first the pages of the client's running stores and loads (NULL: none), then the pages
 * that any client of this process, also a closed one, lent over connections that were cut. */
KVTIER_API int kvtier_lent(struct kvtier_client *client, struct kvtier_lent *ret, size_t max);

/* How the client stands, as a sentence for people: "connected to ...", "not connected: ..."; and
 * while pages are lent over connections that were cut: "...; waits for kvtierd (pid 12) to answer
 * or end: 3 pages are lent still ...". Never blocks. -ENOSPC: it has more than n bytes. */
KVTIER_API int kvtier_status(struct kvtier_client *client, char *ret, size_t n);

/* The tiers (enum kvtier_tier, or'ed) of the daemon that the client was connected to last; 0: none
 * so far. For engines that ask for blocks of other nodes: without KVTIER_TIER_REDIS a
 * kvtier_prefetch() of a block that a lookup does not find finds none either. Never blocks. */
KVTIER_API int kvtier_tiers(struct kvtier_client *client);

/* Memory for pages: a sealed memfd of `length` bytes, rounded up to whole pages, zeroed, mapped
 * here. name (NULL: "kvtier-pages") is shown in /proc. -ENOMEM, -EMFILE, -EINVAL; -EFBIG: more than
 * RLIMIT_FSIZE. */
KVTIER_API int kvtier_memory_alloc(size_t length, const char *name, struct kvtier_shared **ret);
KVTIER_API void *kvtier_memory_address(const struct kvtier_shared *memory); /* never changes */
/* All of the memory as a region. Its fd is the memory's, valid until freed or taken back. */
KVTIER_API int kvtier_memory_region(const struct kvtier_shared *memory, struct kvtier_region *ret);
/* For when kvtier_space_close() returned more than 0. Puts a fresh memfd with the same contents
 * under the same addresses; no page of it is lent. No thread may write to the memory meanwhile.
 * Do madvise(), mlock() and a GPU's registration again. -EBUSY: a space that uses the memory is
 * open. -ENOMEM (touched pages need twice their memory), -ENOSPC, -EMFILE, -EFBIG: nothing
 * changed. */
KVTIER_API int kvtier_memory_take_back(struct kvtier_shared *memory);
/* After the spaces that use the memory were closed. Pages may still be lent. NULL is fine. */
KVTIER_API void kvtier_memory_free(struct kvtier_shared *memory);

/* The sentence behind this thread's last failure, or "". Valid until its next call. */
KVTIER_API const char *kvtier_last_error(void);
KVTIER_API const char *kvtier_version(void); /* of the library in use: "0.1.0" */

#ifdef __cplusplus
}
#endif
#endif /* KVTIER_H */
