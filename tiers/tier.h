/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tier.h - a tier keeps images. Each tier is one const ops table, and tier.c lists them in one
 * array.
 *
 * The core calls tier_*() in tier.c, never a table. These functions assert range and state, and
 * that every transfer completes exactly once. They are for the core thread only; but device workers
 * read and write the memory of addressable slots while the block or the request holds them.
 *
 * Ownership: alloc gives an extent to the caller, and free takes it back. submit lends the xfer
 * until its `done` has run, which happens exactly once, from the loop, never inside submit. On an
 * error return the caller still owns everything. A tier without alloc chooses the place of a write
 * itself (nvme), and says in the xfer where it is.
 *
 * A disk that stalls: memory that it may still write to cannot be taken back. So a read that is
 * given up (tier_cancel(), or the tier's own patience) ends with `kept`: the slot `home` that its
 * buffer lies in now belongs to the tier, which gives it back through its configuration's release()
 * when the disk is done with it.
 *
 * States (tier_state()):
 *  starting --ready--> up <--probe ok/errors--> degraded --> readonly --> offline
 *
 * The host tier is starting, up, or degraded: some of its memory could not be had after the start.
 * The memory of GPUs is starting while no GPU is in use. misconfigured: Redis refuses us until an
 * operator corrects a password or an ACL.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image_geometry;
struct image_identity;
struct loop;
struct nvme_tier_conf;
struct redis_seal;
struct redis_tier_conf;
struct slabs;
struct tier;

enum {
	TIER_MAX_CLASSES = 64,   /* slot sizes of an addressable tier */
	TIER_MAX_SPACES = 32768, /* numbers of identities: 15 bits of a block's */
	TIER_MAX_SLABS = 65535,
	TIER_MAX_SLAB_SLOTS = 65536,
	TIER_MAX_NODES = 16, /* NUMA nodes of the host tier: its units */
	TIER_NO_UNIT = 254,  /* no unit of this tier is meant */
	TIER_ANY_UNIT = 255, /* it does not matter which */
};

enum tier_id { TIER_GPU = 0, TIER_HOST, TIER_NVME, TIER_REDIS, TIER_COUNT }; /* bit = 1 << id */

enum tier_caps {
	TIER_CAP_DURABLE = 1,
	/* no extents: an image is found by its key, and is there or not */
	TIER_CAP_KEYED = 2,
};

enum tier_state {
	TIER_STARTING,
	TIER_UP,
	TIER_DEGRADED,
	TIER_READONLY,
	TIER_OFFLINE,
	TIER_MISCONFIGURED
};

/* Where an image lies. A stale generation is refused with -ESTALE. */
struct extent {
	uint8_t tier;  /* enum tier_id */
	uint8_t unit;  /* of the tier: NUMA node, GPU, disk */
	uint8_t class; /* slot size class */
	uint8_t reserved;
	uint32_t slot;       /* addressable: slab << 16 | slot in slab */
	uint32_t generation; /* of the slot */
};

/* The same place, and the same image in it. */
static inline bool extent_equal(const struct extent *a, const struct extent *b)
{
	return a->tier == b->tier && a->unit == b->unit && a->slot == b->slot &&
	       a->generation == b->generation;
}

/* XFER_PROBE asks a keyed tier whether it has the key, -ENOENT if not, and needs no buffer. With a
 * geometry the tier looks at the value's header, too: -EBADMSG if that is not this block's, else
 * bytes is the image's size. The answer is a hint: the value may be gone before it is read. */
enum xfer_op { XFER_READ = 1, XFER_WRITE, XFER_PROBE };

/* The facts that a durable tier keeps beside an image, so that the block is found again after a
 * restart. */
struct xfer_record {
	uint8_t owner[32];  /* bytes 0..15: tenant; 16..31: space (space.h) */
	uint8_t parent[32]; /* key; zeros: no parent, or not known */
	uint64_t tick;      /* last access, < 2^48 */
};

/* Embedded in its owner and lent to the tier from tier_submit() until `done` ran. */
struct xfer {
	struct tier *tier;   /* set by tier_submit() */
	struct extent where; /* READ: from there. WRITE without alloc: set before `done` */
	uint8_t *buffer;     /* 4096-aligned, with room up to the next multiple of 4096 */
	uint32_t bytes;      /* of the image */
	enum xfer_op op;
	/* WRITE to a durable tier: what it is to keep. READ: the parent is as it was found there */
	struct xfer_record record;
	struct extent home; /* READ: the host slot that buffer lies in */
	/* Keyed tiers. READ and PROBE need the identity. READ needs the geometry, too; PROBE may
	 * have it. The header of the value is checked against both before its body is taken (the
	 * checksum is not). Both are the caller's until done. READ: bytes is the buffer's room, and
	 * is set before done to the bytes of the image; -EFBIG: to the room that the image would
	 * need. */
	const struct image_identity *identity;
	const struct image_geometry *geometry;
	const struct redis_seal *seal; /* the tenant's, in all ops; as long as the tier is open */
	/* WRITE: enum kvtier_codec in which the tier may keep the image instead (recode.h); 0: as
	 * it is. Before `done` it is set to 0 where the image was kept as it is. */
	uint32_t codec;
	bool behind;        /* no op waits for it: write-behind, and its questions before a write */
	bool kept;          /* READ, status < 0: `home` is the tier's for now, see above */
	int status;         /* 0, or -errno: then the buffer's content is undefined */
	bool in_flight;     /* tier.c's: false before the first submit */
	uint64_t submit_ns; /* tier.c's */
	void (*done)(struct xfer *x);
};

/* tier_conf.bytes of the host tier: a quarter of the machine's available memory */
#define TIER_BYTES_AUTO UINT64_MAX

/* Memory of one NUMA node. */
struct tier_node {
	int32_t node;
	uint64_t bytes;
};

struct tier_conf {
	/* host */
	uint64_t slab_bytes; /* a multiple of 4096 (2 MiB with huge_pages 2) */
	uint64_t bytes;      /* capacity; TIER_BYTES_AUTO */
	uint32_t huge_pages; /* 0 no, 1 transparent (madvise), 2 hugetlb 2 MiB */
	/* so much of each of these nodes, `bytes` together; 0: spread over the nodes of GPUs */
	uint32_t n_nodes;
	struct tier_node nodes[TIER_MAX_NODES];
	bool lock;                           /* mlock */
	const struct nvme_tier_conf *nvme;   /* nvme.h */
	const struct redis_tier_conf *redis; /* redis.h */
};

/* Which image is meant. A tier looks at the members that it needs. */
struct tier_name {
	const struct extent *where; /* tiers with extents: to read it */
	/* 32 bytes. Durable tiers: to write it. Keyed tiers: both */
	const uint8_t *key;
	const struct redis_seal *seal; /* keyed tiers: whose */
};

struct tier_ops {
	enum tier_id id;
	uint32_t caps; /* enum tier_caps */
	/* text (n >= TIER_TEXT_BYTES): on failure a sentence that names limit and knob */
	int (*open)(const struct tier_conf *conf, struct loop *loop, struct tier **ret, char *text,
		    size_t n);
	/* accepts NULL and half-open */
	void (*close)(struct tier *t);
	/* of this unit while it has room, then of any. -ENOSPC: something must be evicted first;
	 * -E2BIG. NULL: the tier chooses the place of a write */
	int (*alloc)(struct tier *t, uint32_t bytes, uint32_t unit, struct extent *ret);
	void (*free)(struct tier *t, const struct extent *where);
	/* addressable tiers: a pointer that the CPU may use, without submit; NULL: stale */
	uint8_t *(*address)(struct tier *t, const struct extent *where);
	/* NULL where addressable; -EAGAIN: full */
	int (*submit)(struct tier *t, struct xfer *x);
	/* x->done() still runs, exactly once */
	void (*cancel)(struct tier *t, struct xfer *x);
	enum tier_state (*state)(const struct tier *t);
	struct slabs *(*slabs)(const struct tier *t); /* addressable tiers: their allocator */
	/* The rest may be NULL. tier_*() of the same name says its answer in that case. */
	bool (*readable)(const struct tier *t, const struct tier_name *name);
	bool (*writable)(const struct tier *t, const struct tier_name *name);
	void (*forget)(struct tier *t, const struct extent *where, uint64_t tick);
	void (*touch)(struct tier *t, const struct extent *where, uint64_t tick, uint64_t now_tick);
	void (*condemn)(struct tier *t, const struct redis_seal *seal, const uint8_t *image,
			uint32_t bytes);
	int (*flush)(struct tier *t, bool last, void (*done)(void *arg, int status), void *arg);
	int (*purge)(struct tier *t, const uint8_t tenant[16], void (*done)(void *arg, int status),
		     void *arg);
	bool (*idle)(const struct tier *t);
	uint8_t *(*memory)(const struct tier *t, uint64_t *ret_bytes);
};

struct tier {
	const struct tier_ops *ops;
	struct tier *inner;                  /* of a wrapper (fault.c); else NULL */
	uint64_t capacity_bytes, used_bytes; /* used: slots in use at their class's size */
	uint64_t extents;                    /* in use */
	uint32_t in_flight;                  /* xfers lent */
	uint32_t behind_in_flight;           /* of these, transfers that no op waits for */
	/* every transfer of a tier that is up ends within this time. Set by open; 0: at once */
	uint64_t patience_ns;
	uint64_t xfers_total; /* that were submitted */
	/* the caller's: how long transfers took, and writes that succeeded, in ns. NULL: that is
	 * not measured */
	struct histogram *times, *store_times;
};

/* The facts that a policy needs about one class of slots (slabs.h). */
struct tier_class_view {
	uint32_t slot_bytes;
	uint32_t slots_per_slab;
	uint32_t slabs;                  /* 0: the class exists in name only */
	uint32_t used_slots, free_slots; /* in its slabs */
};

enum { TIER_TEXT_BYTES = 512 };

/* text (n >= TIER_TEXT_BYTES) is undefined on success. */
int tier_open(enum tier_id id, const struct tier_conf *conf, struct loop *loop, struct tier **ret,
	      char *text, size_t n);
void tier_close(struct tier *t);
int tier_alloc(struct tier *t, uint32_t bytes, struct extent *ret);
/* tier_alloc() from this unit, if it has room; TIER_ANY_UNIT, TIER_NO_UNIT: from any. */
int tier_alloc_near(struct tier *t, uint32_t bytes, uint32_t unit, struct extent *ret);
void tier_free(struct tier *t, const struct extent *where);
uint8_t *tier_address(struct tier *t, const struct extent *where);
int tier_submit(struct tier *t, struct xfer *x);
/* For implementations: called from the loop, it runs done(). */
void tier_complete(struct xfer *x, int status);
void tier_cancel(struct tier *t, struct xfer *x);
const char *tier_name(enum tier_id id);
enum tier_state tier_state(const struct tier *t);
const char *tier_state_name(enum tier_state state);

/* The allocator of an addressable tier, wrapped or not; NULL: the tier has none, or one a unit. */
struct slabs *tier_slabs(const struct tier *t);
/* Slots in use of an addressable tier, by number (extent.slot): the extent, or -ESTALE; its bytes,
 * or 0: stale; whose it is (block number). */
int tier_extent(const struct tier *t, uint32_t slot, struct extent *ret);
uint32_t tier_extent_bytes(const struct tier *t, const struct extent *where);
void tier_set_owner(struct tier *t, const struct extent *where, uint32_t owner);

/*
 * Questions to any tier. t may be NULL (the tier is not configured): the answer is then that of a
 * tier whose table has no such function.
 */
/* A read, or a write, of this image would be tried now. Without such a function: no. */
bool tier_readable(const struct tier *t, const struct tier_name *name);
bool tier_writable(const struct tier *t, const struct tier_name *name);
/* The image is not wanted there any more; or it was accessed at now_tick. `tick` is as the tier
 * knows it (record.tick of the write, an event, or the last touch). The extent may be stale.
 * Without such a function this has no effect. */
void tier_forget(struct tier *t, const struct extent *where, uint64_t tick);
void tier_touch(struct tier *t, const struct extent *where, uint64_t tick, uint64_t now_tick);
/* The value that a keyed tier gave for a key failed its checks: the value is deleted, if it still
 * has these bytes, which may be overwritten when this returns. */
void tier_condemn(struct tier *t, const struct redis_seal *seal, const uint8_t *image,
		  uint32_t bytes);
/* When `done` has run with 0, images that were written before survive a crash. last: the tier takes
 * no more writes. `done` runs later, once, with the first error or 0. -EBUSY: a flush is under way.
 * Without such a function: -ENOTSUP. */
int tier_flush(struct tier *t, bool last, void (*done)(void *arg, int status), void *arg);
/* Forgets all images that it has of a tenant, for good; done() runs as in tier_flush(). */
int tier_purge(struct tier *t, const uint8_t tenant[16], void (*done)(void *arg, int status),
	       void *arg);
/* No transfer, flush or purge is under way: tier_close() is possible. */
bool tier_idle(const struct tier *t);
/* The memory of a tier that the CPU can address, to register or to pin: one mapping, which stays
 * until the tier is closed. Some of it may not be faulted in yet. Without such memory: NULL. */
uint8_t *tier_memory(const struct tier *t, uint64_t *ret_bytes);
