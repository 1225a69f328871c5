/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.h - the stats page: counters, gauges and health in a file that anybody allowed maps
 * read-only, so they can be read while the daemon is busy, stopped or dead.
 *
 * Writer: the core thread alone, through stats_add() and stats_set(): relaxed stores, no locks.
 * Readers (kvtierctl) see each number whole but not all of one instant. The page is written under
 * another name and renamed, never truncated and never reused by a later daemon. A clean stop
 * removes it; the page that a crash leaves tells its story.
 *
 * Layout: struct stats, valid only when magic and layout (a hash of the tables) are the reader's
 * own.
 */
#ifndef KVTIER_STATS_H
#define KVTIER_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/histogram.h"

enum {
	STATS_MAGIC = 0x4b565453, /* "KVTS" */
	STATS_SCHEMA_VERSION = 1, /* of the JSON text */
	STATS_STALE_MS = 2500,    /* heartbeat older than this: the daemon does not run */
	STATS_NAME_BYTES = 32,
	STATS_TEXT_BYTES = 256,
};

/* The statements about health: HEALTH(bit, name, severity, meaning and remedy). A note leaves
 * health at "ok"; `starting` is a state of its own, until engines can connect. The daemon sets all
 * bits but the last three: a reader finds out that the daemon is stopped, silent or dead. */
#define STATS_HEALTH(HEALTH)                                                                       \
	HEALTH(STARTING, starting, note,                                                           \
	       "Memory, disks and GPUs are being opened; engines can connect behind that. Wait; "  \
	       "see the daemon's log if it takes minutes.")                                        \
	HEALTH(HOST_STARTING, host_starting, note,                                                 \
	       "Host memory is still being taken from the system; engines are served with what "   \
	       "is there.")                                                                        \
	HEALTH(NVME_STARTING, nvme_starting, note,                                                 \
	       "What is on NVMe is still being found; until then blocks there are misses.")        \
	HEALTH(STOPPING, stopping, warn, "The daemon is shutting down.")                           \
	HEALTH(HOST_OFFLINE, host_offline, err,                                                    \
	       "The host tier does not work, nothing is kept; see the daemon's log.")              \
	HEALTH(HUGE_PAGES, no_huge_pages, note,                                                    \
	       "Transparent huge pages were asked for but the kernel refused; see "                \
	       "/sys/kernel/mm/transparent_hugepage/enabled, or set [host] huge_pages = no.")      \
	HEALTH(NUMA, numa_ignored, warn,                                                           \
	       "Some of the host tier's memory lies on another NUMA node than its GPU, or than "   \
	       "[host] bytes says: the node has too little left. Give it less.")                   \
	HEALTH(KERNELS_REF, slow_kernels, warn,                                                    \
	       "The plain C codec is in use: this CPU lacks AVX2, or [device] kernels = ref.")     \
	HEALTH(NOT_GUARDED, no_userfaultfd, note,                                                  \
	       "userfaultfd is refused, so each job first asks whether all of its page is in "     \
	       "memory: slower, a page that is swapped out is refused, and kvtierd pays for "      \
	       "memory that an engine gives back meanwhile. Allow userfaultfd in the seccomp "     \
	       "profile of the container, or in SystemCallFilter= of the unit.")                   \
	HEALTH(CLIENTS_FULL, clients_full, warn,                                                   \
	       "Engines are refused, or would be: see below whose connections there are. Close "   \
	       "some, or raise "                                                                   \
	       "[socket] max_clients or max_clients_per_uid.")                                     \
	HEALTH(FILES_GONE, own_files_gone, warn,                                                   \
	       "A file of the daemon was removed or replaced: see below which one. Restart "       \
	       "kvtierd; keep what cleans /tmp out of [daemon] runtime_dir, and give each "        \
	       "kvtierd paths of its own.")                                                        \
	HEALTH(OUT_OF_FILES, out_of_files, warn,                                                   \
	       "kvtierd had no file descriptor left for an engine in the last ten minutes. Raise " \
	       "LimitNOFILE= in the unit (ulimit -Hn in a shell), or lower "                       \
	       "[socket] max_clients.")                                                            \
	HEALTH(CLIENTS_REFUSED, clients_refused, note,                                             \
	       "Clients were refused or cut in the last ten minutes, and run without a cache "     \
	       "where they have not come back: see below, and `kvtierctl clients`.")               \
	HEALTH(INDEX_FULL, index_full, warn,                                                       \
	       "The index holds [index] max_blocks blocks, new ones are dropped; raise it.")       \
	HEALTH(SPACES_RECYCLED, spaces_recycled, warn,                                             \
	       "More models were opened than [index] max_spaces: the least used ones go with "     \
	       "their blocks. "                                                                    \
	       "See `kvtierctl spaces` for who opens so many, or raise it.")                       \
	HEALTH(CORRUPT, corrupt_blocks, warn,                                                      \
	       "An image failed its checksum and was dropped (see corrupt_blocks_total): test "    \
	       "this "                                                                             \
	       "machine's memory.")                                                                \
	HEALTH(NVME_QUARANTINED, nvme_quarantined, err,                                            \
	       "[nvme] path holds something that kvtierd does not recognise or that is damaged, "  \
	       "and was "                                                                          \
	       "left alone; see the reason below. `kvtierctl format PATH --bytes N` makes an "     \
	       "empty store "                                                                      \
	       "there.")                                                                           \
	HEALTH(NVME_OFFLINE, nvme_offline, err,                                                    \
	       "No NVMe disk works: blocks are kept in memory only; see the reason below and "     \
	       "`kvtierctl disks`.")                                                               \
	HEALTH(NVME_DEGRADED, nvme_degraded, warn,                                                 \
	       "An NVMe disk is away or takes no writes; see the reason below and `kvtierctl "     \
	       "disks`.")                                                                          \
	HEALTH(NVME_UNAVAILABLE, nvme_unavailable, warn,                                           \
	       "The default store could not be made, kvtierd runs without an NVMe tier; see the "  \
	       "reason "                                                                           \
	       "below, set [nvme] path and bytes, or bytes = 0.")                                  \
	HEALTH(NVME_THREADS, nvme_threads, note,                                                   \
	       "io_uring is not in use, threads do the I/O: slower and costlier; see the reason "  \
	       "below, or "                                                                        \
	       "set [nvme] io = threads.")                                                         \
	HEALTH(NVME_LARGER, nvme_larger, note,                                                     \
	       "A store is larger than [nvme] bytes says, and stays so; see `kvtierctl disks`. "   \
	       "Correct bytes, or make the store anew: `kvtierctl format PATH --bytes N`.")        \
	HEALTH(NVME_BUDGET, nvme_budget, note,                                                     \
	       "The write budget is short: what is stored for the first time stays in memory "     \
	       "only; raise "                                                                      \
	       "[nvme] write_budget_bytes_per_day if the disk may wear faster.")                   \
	HEALTH(NVME_CORRUPT, nvme_corrupt, warn,                                                   \
	       "An image read from NVMe failed its checksum twice and was dropped (see "           \
	       "tiers.nvme.corrupt_blocks_total): test that disk, `kvtierctl verify`.")            \
	HEALTH(GPU_CORRUPT, gpu_corrupt, warn,                                                     \
	       "`kvtierctl verify` found an image in a GPU's memory that was not the block's, "    \
	       "and dropped it (see tiers.gpu.corrupt_blocks_total): test that GPU's memory.")     \
	HEALTH(REDIS_MISCONFIGURED, redis_misconfigured, warn,                                     \
	       "Redis refuses kvtierd; see the reason below, correct [redis] username and "        \
	       "password_file or "                                                                 \
	       "the endpoint's ACL. It is tried again every 30 s.")                                \
	HEALTH(REDIS_OFFLINE, redis_offline, warn,                                                 \
	       "No Redis endpoint answers: this node has its own tiers only; see the reason "      \
	       "below and "                                                                        \
	       "`kvtierctl endpoints`. It is tried again.")                                        \
	HEALTH(REDIS_READONLY, redis_readonly, warn,                                               \
	       "No Redis endpoint takes stores; reading goes on, and this stays until a store is " \
	       "taken. See the reason below: its maxmemory and maxmemory-policy, its disk, its "   \
	       "ACL, or that it is a replica.")                                                    \
	HEALTH(REDIS_DEGRADED, redis_degraded, warn,                                               \
	       "A Redis endpoint is away or takes no stores, its part of the blocks is missed; "   \
	       "see the "                                                                          \
	       "reason below and `kvtierctl endpoints`.")                                          \
	HEALTH(REDIS_CORRUPT, redis_corrupt, warn,                                                 \
	       "A value in Redis was not what it should be and became a miss (see "                \
	       "tiers.redis.corrupt_blocks_total): see who else writes under [redis] key_prefix, " \
	       "test "                                                                             \
	       "that machine's memory.")                                                           \
	HEALTH(REDIS_FORGED, redis_forged, warn,                                                   \
	       "A value in Redis was made by somebody who does not know [redis] secret_file, and " \
	       "became a "                                                                         \
	       "miss (see tiers.redis.forged_blocks_total): see who else writes under [redis] "    \
	       "key_prefix.")                                                                      \
	HEALTH(GPU_FAILED, gpu_failed, err,                                                        \
	       "A GPU that was in use does not work: its engines' blocks cannot be stored or "     \
	       "loaded from there; see the reason below, `kvtierctl devices` and `nvidia-smi`.")   \
	HEALTH(GPU_UNUSED, gpu_unused, warn,                                                       \
	       "A GPU of this machine is not served, and its engines' blocks go by copies that "   \
	       "they make themselves; see the reason below. [gpu] devices = off, if that is "      \
	       "wanted.")                                                                          \
	HEALTH(GPU_STAGED, gpu_staged, warn,                                                       \
	       "An engine copies pages of a GPU itself, by its CPU (\"staged\"), as kvtierd does " \
	       "not reach them; see the reason below and `kvtierctl clients`. Where CUDA IPC is "  \
	       "refused, as between two users, memory that has descriptors helps "                 \
	       "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), or [gpu] mode = engine.")      \
	HEALTH(GPU_TIER, no_gpu_tier, warn,                                                        \
	       "A GPU does not have the memory that [gpu] bytes asks for, and keeps no image: "    \
	       "see the reason below; lower [gpu] bytes, or leave more free.")                     \
	HEALTH(GPU_TIME_SLICED, gpu_time_sliced, note,                                             \
	       "Engines and kvtierd take turns on a GPU, in time slices, as there is no MPS: "     \
	       "while one's kernels run, those of the other wait. [gpu] mode = engine avoids it; " \
	       "or start `nvidia-cuda-mps-control -d` before all of them, and kernels run side "   \
	       "by side.")                                                                         \
	HEALTH(HOST_NOT_PINNED, host_not_pinned, warn,                                             \
	       "The CUDA driver does not register all of the host tier's memory, and blocks "      \
	       "in the rest cross to and from GPUs by way of a buffer; see the reason below. "     \
	       "No memlock limit holds for it: the kernel could not pin the pages. Raise the "     \
	       "memory limit of the cgroup (MemoryMax=, a container's), look in the kernel's log " \
	       "for the IOMMU, lower [host] bytes, or set [host] pin = no.")                       \
	HEALTH(STOPPED, stopped, err,                                                              \
	       "The daemon's process is stopped; continue it with `kill -CONT PID`, or see who "   \
	       "stopped it.")                                                                      \
	HEALTH(SILENT, silent, err,                                                                \
	       "The daemon runs but its core thread has not moved for a while; see its log, "      \
	       "`systemctl restart kvtierd`.")                                                     \
	HEALTH(DEAD, dead, err,                                                                    \
	       "The daemon is gone without having stopped cleanly; see its log, "                  \
	       "`systemctl restart kvtierd`.")

enum stats_health_bit {
#define HEALTH(bit, name, severity, prose) STATS_HEALTH_##bit,
	STATS_HEALTH(HEALTH)
#undef HEALTH
		STATS_HEALTH_COUNT
};

/* tiers_*_state: 0 is "off", a running tier is its enum tier_state + 1. */
enum { STATS_TIER_OFF = 0, STATS_TIER_STATE_BASE = 1 };

struct stats_values {
#define STAT(path, field, kind, unit, prose) uint64_t field;
#include "tbl_stats.h"
};

/* The numbers of each tier (STAT_TIER of tbl_stats.h), in their order. */
struct stats_tier {
	uint64_t state, capacity_bytes, used_bytes, blocks;
	uint64_t hit_blocks_total, read_bytes_total, written_bytes_total;
	uint64_t evicted_blocks_total, moved_blocks_total, corrupt_blocks_total;
};

struct stats {
	uint32_t magic;
	uint32_t layout; /* stats_layout() */
	uint32_t bytes;  /* sizeof(struct stats) */
	int32_t pid;
	uint64_t pid_start;     /* field 22 of /proc/PID/stat: tells a reused pid */
	uint64_t pid_namespace; /* inode of /proc/self/ns/pid: elsewhere a pid means nothing */
	uint64_t start_realtime_ns;
	uint64_t start_monotonic_ns;
	uint64_t heartbeat_ns; /* CLOCK_MONOTONIC */
	uint64_t health;       /* 1 << enum stats_health_bit */
	char version[STATS_NAME_BYTES];
	char device[STATS_NAME_BYTES];
	char kernels[STATS_NAME_BYTES];
	/* These texts change while they are read: stats_text_get(). "": nothing to say, or no such
	 * tier. */
	char nvme_engine[STATS_NAME_BYTES];  /* "io_uring", "threads"... */
	char nvme_text[STATS_TEXT_BYTES];    /* why the tier is not up, or not as it should be */
	char files_text[STATS_TEXT_BYTES];   /* which of its own files is not at its path */
	char clients_text[STATS_TEXT_BYTES]; /* while connections are short: whose they are */
	char refused_text[STATS_TEXT_BYTES]; /* clients that were refused lately */
	char redis_text[STATS_TEXT_BYTES];   /* why the tier is not up, or not as it should be */
	char gpu_text[STATS_TEXT_BYTES];     /* why a GPU does not work, or memory is not pinned */
	_Alignas(64) struct stats_values v;
	/* Ops that loaded or stored a block at least: from the turn of the core thread that read
	 * the op from its ring until it completed the op. */
	struct histogram load_times, store_times;
};

/* Relaxed and not read-modify-write: there is one writer. */
static inline void stats_set(uint64_t *value, uint64_t to)
{
	__atomic_store_n(value, to, __ATOMIC_RELAXED);
}

static inline uint64_t stats_get(const uint64_t *value)
{
	return __atomic_load_n(value, __ATOMIC_RELAXED);
}

static inline void stats_add(uint64_t *value, uint64_t n)
{
	stats_set(value, stats_get(value) + n);
}

/* Daemon. Makes the page at path (0600), with health `starting`; now_ns is CLOCK_MONOTONIC. path
 * NULL: private memory, for tests. 0 or -errno. */
int stats_open(const char *path, uint64_t now_ns, struct stats **ret);
/* Unmaps; removes path if the page there is still this page. NULL stats is fine. */
void stats_close(struct stats *stats, const char *path);
/* With each heartbeat. A page that somebody truncated is whole again, with the numbers as of the
 * heartbeat before: 1. Else 0, or -errno: it cannot be. */
int stats_keep(struct stats *stats);
/* moves uptime_s too; at least twice a second */
void stats_heartbeat(struct stats *stats, uint64_t now_ns);
void stats_health_set(struct stats *stats, enum stats_health_bit bit, bool on);
/* The part of stats->v that is about this tier (enum tier_id). */
struct stats_tier *stats_tier(struct stats *stats, uint32_t tier);
void stats_names(struct stats *stats, const char *device, const char *kernels); /* cut to fit */
/* Text for the operator of the NVMe tier; cut to fit. May be called at any time: a reader meanwhile
 * sees a mix of the old and the new text, which always has an end. */
void stats_nvme_text(struct stats *stats, const char *engine, const char *text);
void stats_clients_text(struct stats *stats, const char *text);
void stats_files_text(struct stats *stats, const char *text);
void stats_refused_text(struct stats *stats, const char *text);
void stats_redis_text(struct stats *stats, const char *text); /* the same of the Redis tier */
void stats_gpu_text(struct stats *stats, const char *text);   /* and of GPUs */

/* Reader. -ENOENT, -EACCES...; -EPROTO: no stats page, or of another version of kvtier. */
int stats_map(const char *path, const struct stats **ret);
void stats_unmap(const struct stats *stats); /* NULL is fine */
/* A text that changes while it is read, of `room` bytes in the page; ret has room for as many.
 * Returns ret. */
char *stats_text_get(const char *text, size_t room, char *ret);
/* The page's health, with the statements that only a reader can make (stopped, silent, dead), at
 * now_ns. A start is never silent: to make a large store takes a while. */
uint64_t stats_health(const struct stats *stats, uint64_t now_ns);

/* The tables, for programs that print them. */
enum stats_kind { STATS_COUNTER, STATS_GAUGE, STATS_STATE };

struct stats_row {
	const char *path;
	const char *unit; /* STATS_STATE: names, a|b|c */
	const char *prose;
	enum stats_kind kind;
	uint32_t offset; /* in struct stats_values */
};
size_t stats_rows(const struct stats_row **ret);
uint64_t stats_value(const struct stats *stats, const struct stats_row *row);
const char *stats_state_name(const struct stats_row *row, uint64_t value, char *buffer, size_t n);
const char *stats_kind_name(enum stats_kind kind);

enum stats_severity { STATS_SEVERITY_note, STATS_SEVERITY_warn, STATS_SEVERITY_err };
const char *stats_severity_name(enum stats_severity severity); /* "note", "warn", "err" */

struct stats_health_row {
	const char *name;
	const char *prose;
	enum stats_severity severity;
};
const struct stats_health_row *stats_health_row(enum stats_health_bit bit);
const char *stats_health_word(uint64_t health); /* "ok", "warn", "err" or "starting" */

uint32_t stats_layout(void);

#endif
