/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tier.h - a tier keeps images. One const ops table each, listed in one array in tier.c.
 *
 * The core calls tier_*() in tier.c, never a table: tier_*() assert range, state and exactly one
 * completion, count and time. Core thread only, except that addressable slots are read and written
 * by device workers while the block or the request holds them.
 *
 * Ownership: alloc gives an extent to the caller, free takes it back. submit lends the xfer until
 * its `done` ran: exactly once, from the loop, never inside submit. On an error return the caller
 * still owns everything. A tier that chooses the place itself (no alloc: nvme) says in the xfer of
 * a write where it went.
 *
 * A disk that stalls: nobody can take back memory that it may still write to. So a read that is
 * given up (tier_cancel(), or the tier's own patience) ends with `kept`: the slot `home` that its
 * buffer lies in now belongs to the tier, which gives it back through its configuration's release()
 * when the disk is done with it.
 *
 * States (tier_state()):
 *  starting --ready--> up <--probe ok/errors--> degraded --> readonly --> offline
 *
 * The host tier knows starting, up, and degraded: a part of its memory could not be had after the
 * start. The GPU tier is starting while no GPU is in use. misconfigured: Redis refuses us until
 * somebody corrects a password or an ACL.
 */
#ifndef KVTIER_TIER_H
#define KVTIER_TIER_H

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
	/* tier_address() gives a pointer that the CPU may use: no submit needed */
	TIER_CAP_CPU_ADDRESSABLE = 1,
	TIER_CAP_DURABLE = 2,
	/* no extents: an image is found by its key, and is there or not */
	TIER_CAP_KEYED = 4,
	/* tier_address() gives a pointer that a device may use */
	TIER_CAP_DEVICE_ADDRESSABLE = 8,
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

/* XFER_PROBE: a keyed tier says whether it has the key, -ENOENT if not; no buffer. With a geometry
 * it looks at the value's header, too: -EBADMSG if it is not this block's header, else bytes is the
 * image's size. A hint: the value may be gone before it is read. */
enum xfer_op { XFER_READ = 1, XFER_WRITE, XFER_PROBE };

/* The facts that a durable tier keeps beside an image, so that a restart finds its way. */
struct xfer_record {
	uint8_t owner[32];  /* bytes 0..15: tenant; 16..31: space (space.h) */
	uint8_t parent[32]; /* key; zeros: none, or not known */
	uint64_t tick;      /* last access, < 2^48 */
};

/* Embedded in its owner and lent to the tier from tier_submit() until `done` ran. */
struct xfer {
	struct tier *tier;   /* set by tier_submit() */
	struct extent where; /* READ: from there. WRITE without alloc: set before `done` */
	uint8_t *buffer;     /* 4096-aligned, with room up to the next multiple of 4096 */
	uint32_t bytes;      /* of the image */
	enum xfer_op op;
	/* WRITE to a durable tier: to be kept. READ: parent as found there */
	struct xfer_record record;
	struct extent home; /* READ: the host slot that buffer lies in */
	/* Keyed tiers. READ and PROBE need the identity. READ needs the geometry, too; PROBE may
	 * have it. The header of the value is checked against both before its body is taken (the
	 * checksum is not). Both are the caller's until done. READ: bytes is the buffer's room, and
	 * is set before done to the bytes of the image; -EFBIG: to the room that the image would
	 * need. */
	const struct image_identity *identity;
	const struct image_geometry *geometry;
	const struct redis_seal *seal; /* whose, in all ops; as long as the tier is open */
	bool behind;       /* nobody waits for it: write-behind, and its questions before a write */
	bool kept;         /* READ, status < 0: `home` is the tier's for now, see above */
	int status;        /* 0, or -errno: then the buffer's content is undefined */
	struct xfer *next; /* the tier's while lent */
	bool in_flight;    /* tier.c's: false before the first submit */
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
	/* host, gpu: a multiple of 4096 (2 MiB with huge_pages 2) */
	uint64_t slab_bytes;
	uint32_t units; /* gpu: GPUs */
	/* host */
	uint64_t bytes;      /* capacity; TIER_BYTES_AUTO */
	uint32_t huge_pages; /* 0 no, 1 transparent (madvise), 2 hugetlb 2 MiB */
	/* so much of each of these nodes, and bytes together; 0: spread over the nodes of GPUs */
	uint32_t n_nodes;
	struct tier_node nodes[TIER_MAX_NODES];
	bool lock; /* mlock */
	/* 0: one per CPU this process may use, at most 8; else at most 64 */
	uint32_t prefault_threads;
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

/* A part that wants to know of a tier's memory, to register or to pin it. Embedded in its owner,
 * until tier_unlisten(). */
struct tier_ready {
	/* On the core thread, for each byte once: at most 1 GiB, which stays mapped until the tier
	 * is closed. */
	void (*ready)(struct tier_ready *listener, void *base, uint64_t bytes);
	/* memory need not be faulted in: all of it at once, inside tier_listen() */
	bool mapped;
	struct tier_ready *next; /* the tier's */
};

struct tier_ops {
	const char *name;
	enum tier_id id;
	uint32_t caps;
	/* text (n >= TIER_TEXT_BYTES): on failure a sentence naming limit and knob */
	int (*open)(const struct tier_conf *conf, struct loop *loop, struct tier **ret, char *text,
		    size_t n);
	/* accepts NULL and half-open */
	void (*close)(struct tier *t);
	/* of this unit while it has room, then of any. -ENOSPC: evict; -E2BIG. NULL: a write
	 * chooses its place */
	int (*alloc)(struct tier *t, uint32_t bytes, uint32_t unit, struct extent *ret);
	void (*free)(struct tier *t, const struct extent *where);
	uint8_t *(*address)(struct tier *t, const struct extent *where); /* NULL: stale */
	/* NULL where addressable; -EAGAIN: full */
	int (*submit)(struct tier *t, struct xfer *x);
	/* x->done still runs, exactly once */
	void (*cancel)(struct tier *t, struct xfer *x);
	enum tier_state (*state)(const struct tier *t);
	/* addressable tiers: their allocator (slabs.h), or slabs_of: that of one of their units;
	 * NULL: the unit has nothing now */
	struct slabs *(*slabs)(const struct tier *t);
	struct slabs *(*slabs_of)(const struct tier *t, uint32_t unit);
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
	void (*listen)(struct tier *t, struct tier_ready *listener);
	void (*unlisten)(struct tier *t, struct tier_ready *listener);
};

struct tier {
	const struct tier_ops *ops;
	struct tier *inner;                  /* of a wrapper (fault.c); else NULL */
	uint64_t capacity_bytes, used_bytes; /* used: slots in use at their class's size */
	uint64_t extents;                    /* in use */
	uint32_t in_flight;                  /* xfers lent */
	uint32_t behind_in_flight;           /* of these, transfers that nobody waits for */
	/* every transfer of a tier that is up ends within so long. Set by open; 0: at once */
	uint64_t patience_ns;
	/* counted by the wrappers in tier.c */
	uint64_t allocs_total, allocs_full_total, frees_total;
	uint64_t xfers_total, xfers_failed_total;
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
/* Best of this unit; TIER_ANY_UNIT, TIER_NO_UNIT: of any. */
int tier_alloc_near(struct tier *t, uint32_t bytes, uint32_t unit, struct extent *ret);
void tier_free(struct tier *t, const struct extent *where);
uint8_t *tier_address(struct tier *t, const struct extent *where);
int tier_submit(struct tier *t, struct xfer *x);
/* for implementations: from the loop, runs done */
void tier_complete(struct xfer *x, int status);
void tier_cancel(struct tier *t, struct xfer *x);
const char *tier_name(enum tier_id id);
enum tier_state tier_state(const struct tier *t);
const char *tier_state_name(enum tier_state state);

/* The allocator of an addressable tier, wrapped or not; NULL: it has none, or one for each unit. */
struct slabs *tier_slabs(const struct tier *t);
/* Of slots in use, by number (extent.slot): the extent, or -ESTALE; its bytes, or 0: stale; whose
 * it is (block number). Addressable tiers. */
int tier_extent(const struct tier *t, uint32_t slot, struct extent *ret);
uint32_t tier_extent_bytes(const struct tier *t, const struct extent *where);
/* Of slots in use of one unit, by a number for side tables (slabs_number()). */
uint32_t tier_slot_number(const struct tier *t, const struct extent *where);
int tier_slot_numbered(const struct tier *t, uint32_t unit, uint32_t number, struct extent *ret);
void tier_set_owner(struct tier *t, const struct extent *where, uint32_t owner);

/*
 * Questions to any tier, or to none: t may be NULL (it is not configured), and the answer is then
 * the same as of a tier that has no such thing.
 */
/* A read, a write of this image would be tried now. Without such a thing: no. */
bool tier_readable(const struct tier *t, const struct tier_name *name);
bool tier_writable(const struct tier *t, const struct tier_name *name);
/* The image is not wanted there any more; or it was accessed at now_tick. `tick` is as the tier
 * knows it (record.tick of the write, an event, or the last touch). A stale extent is fine. Without
 * such a thing: nothing. */
void tier_forget(struct tier *t, const struct extent *where, uint64_t tick);
void tier_touch(struct tier *t, const struct extent *where, uint64_t tick, uint64_t now_tick);
/* The value that a keyed tier gave for a key failed its checks: the value goes, if it still has
 * these bytes, which may be overwritten when this returns. */
void tier_condemn(struct tier *t, const struct redis_seal *seal, const uint8_t *image,
		  uint32_t bytes);
/* Images that were written to it survive from now on. last: nothing is written to it any more.
 * `done` runs later, once, with the first error or 0. -EBUSY: one is under way. Without such a
 * thing: -ENOTSUP. */
int tier_flush(struct tier *t, bool last, void (*done)(void *arg, int status), void *arg);
/* Likewise: it forgets all images of a tenant that it has now, for good. */
int tier_purge(struct tier *t, const uint8_t tenant[16], void (*done)(void *arg, int status),
	       void *arg);
/* Nothing is in anybody else's hands: tier_close() is possible. Without such a thing: yes. */
bool tier_idle(const struct tier *t);
/* Addressable tiers tell of their memory: of memory that is there at once, of later memory from
 * tier_alloc() and its like. */
void tier_listen(struct tier *t, struct tier_ready *listener);
void tier_unlisten(struct tier *t, struct tier_ready *listener);

#endif
