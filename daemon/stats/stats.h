/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.h - the stats page: counters, gauges and health in a file that readers map read-only. So
 * they can be read while the daemon is busy, stopped or dead.
 *
 * The core thread alone writes the page, by stats_add() and stats_set(), which are relaxed stores
 * without locks. A reader (kvtierctl) sees each number whole, but not all numbers of one instant.
 * The page is written under another name and then renamed. It is never truncated, and no later
 * daemon uses it again. A clean stop removes it, and the page that a crash leaves can still be
 * read.
 *
 * The page has the layout of struct stats. It is valid only if its magic and its layout number, a
 * hash of the tables, are those of the reader.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/histogram.h"

enum {
	STATS_MAGIC = 0x4b565453, /* "KVTS" */
	STATS_SCHEMA_VERSION = 1, /* of the JSON text */
	STATS_STALE_MS = 2500,    /* if the heartbeat is older, the daemon does not run */
	STATS_NAME_BYTES = 32,
	STATS_TEXT_BYTES = 384,
	STATS_SOCKETS = 16,
};

/* The statements about health: HEALTH(bit, name, severity, meaning and remedy). With notes alone
 * health is "ok". `starting` is a state of its own, until engines can connect. The daemon sets
 * all bits but the last three: a reader finds out by itself that the daemon is stopped, silent
 * or dead. */
#define STATS_HEALTH(HEALTH)                                                                 \
	HEALTH(STARTING, starting, note,                                                     \
	       "Memory, disks and GPUs are being opened, and engines cannot connect before " \
	       "that is done. Wait; see the daemon's log if it takes minutes.")              \
	HEALTH(HOST_STARTING, host_starting, note,                                           \
	       "Host memory is still being taken from the system; engines are served with "  \
	       "what is there.")                                                             \
	HEALTH(NVME_STARTING, nvme_starting, note,                                           \
	       "Blocks on NVMe are still being found; until then they are misses.")          \
	HEALTH(STOPPING, stopping, warn, "The daemon is shutting down.")                     \
	HEALTH(DRAINING, draining, warn,                                                     \
	       "No block is stored since `kvtierctl drain`; engines go on without it. Not "  \
	       "all is known to be written: ask `kvtierctl drain` again. `kvtierctl "        \
	       "undrain` or a restart ends it.")                                             \
	HEALTH(DRAINED, drained, warn,                                                       \
	       "No block is stored since `kvtierctl drain`; engines go on without it. What " \
	       "was in memory is written, and kvtierd may be stopped. `kvtierctl undrain` "  \
	       "or a restart ends it.")                                                      \
	HEALTH(HOST_OFFLINE, host_offline, err,                                              \
	       "The host tier does not work, and no block is kept; see the daemon's log.")   \
	HEALTH(HUGE_PAGES, no_huge_pages, note,                                              \
	       "Transparent huge pages were asked for but the kernel refused; see "          \
	       "/sys/kernel/mm/transparent_hugepage/enabled, or set [host] huge_pages = "    \
	       "no.")                                                                        \
	HEALTH(NUMA, numa_ignored, warn,                                                     \
	       "Some of the host tier's memory lies on another NUMA node than its GPU, or "  \
	       "than [host] bytes says, since the node has too little memory left. Give it " \
	       "less.")                                                                      \
	HEALTH(KERNELS_REF, slow_kernels, warn,                                              \
	       "The plain C codec is in use, since this CPU lacks AVX2.")                    \
	HEALTH(NOT_GUARDED, no_userfaultfd, note,                                            \
	       "userfaultfd is refused, so each job first asks whether all of its page is "  \
	       "in memory. That is slower, a page that is swapped out is refused, and "      \
	       "kvtierd pays for memory that an engine gives back meanwhile. Allow "         \
	       "userfaultfd in the seccomp profile of the container, or in "                 \
	       "SystemCallFilter= of the unit.")                                             \
	HEALTH(CLIENTS_FULL, clients_full, warn,                                             \
	       "Engines are refused, or would be: see below who has the connections. Close " \
	       "some, or raise [socket] max_clients or max_clients_per_uid.")                \
	HEALTH(FILES_GONE, own_files_gone, warn,                                             \
	       "A file of the daemon was removed or replaced: see below which one. Restart " \
	       "kvtierd; keep what cleans /tmp out of [daemon] runtime_dir, and give each "  \
	       "kvtierd paths of its own.")                                                  \
	HEALTH(OUT_OF_FILES, out_of_files, warn,                                             \
	       "kvtierd had no file descriptor left for an engine in the last ten minutes. " \
	       "Raise LimitNOFILE= in the unit (ulimit -Hn in a shell), or lower [socket] "  \
	       "max_clients.")                                                               \
	HEALTH(CLIENTS_REFUSED, clients_refused, warn,                                       \
	       "Engines were refused or cut in the last ten minutes, and run without a "     \
	       "cache where they have not come back: see below whose, why and the remedy, "  \
	       "and `kvtierctl clients`.")                                                   \
	HEALTH(INDEX_FULL, index_full, warn,                                                 \
	       "The index holds [index] max_blocks blocks, and new ones are dropped; raise " \
	       "it.")                                                                        \
	HEALTH(INDEX_EVICTS, index_evicts, warn,                                             \
	       "Blocks are dropped since the index holds [index] max_blocks, and not for "   \
	       "want of bytes: raise it. Each block takes 96 bytes of memory.")              \
	HEALTH(INT8_BETTER, int8_better, note,                                               \
	       "A space in fp8 would have a quarter of its error, or less, in int8, for "    \
	       "nearly the same bytes: see int8_gain in `kvtierctl spaces --json`, and "     \
	       "`kvtierctl probe SPACE`.")                                                   \
	HEALTH(SPACES_RECYCLED, spaces_recycled, warn,                                       \
	       "More models were opened than [index] max_spaces: the least used ones are "   \
	       "removed with their blocks. See `kvtierctl spaces` for who opens so many, "   \
	       "or raise it.")                                                               \
	HEALTH(CORRUPT, corrupt_blocks, warn,                                                \
	       "An image failed its checksum and was dropped (see corrupt_blocks_total): "   \
	       "test this machine's memory.")                                                \
	HEALTH(NVME_QUARANTINED, nvme_quarantined, err,                                      \
	       "[nvme] path holds something that kvtierd does not recognise or that is "     \
	       "damaged, and was left alone; see the reason below. `kvtierctl format PATH "  \
	       "--bytes N` makes an empty store there.")                                     \
	HEALTH(NVME_OFFLINE, nvme_offline, err,                                              \
	       "No NVMe disk works: blocks are kept in memory only; see the reason below "   \
	       "and `kvtierctl disks`.")                                                     \
	HEALTH(NVME_DEGRADED, nvme_degraded, warn,                                           \
	       "An NVMe disk is away or takes no writes; see the reason below and "          \
	       "`kvtierctl disks`.")                                                         \
	HEALTH(NVME_UNAVAILABLE, nvme_unavailable, warn,                                     \
	       "The default store could not be made, and kvtierd runs without an NVMe "      \
	       "tier; see the reason below, set [nvme] path and bytes, or bytes = 0.")       \
	HEALTH(NVME_THREADS, nvme_threads, note,                                             \
	       "Threads do the I/O instead of io_uring, which is slower and costs more; "    \
	       "see the reason below, or set [nvme] io = threads.")                          \
	HEALTH(NVME_LARGER, nvme_larger, note,                                               \
	       "A store is larger than [nvme] bytes says, and stays so; see `kvtierctl "     \
	       "disks`. Correct bytes, or make the store anew: `kvtierctl format PATH "      \
	       "--bytes N`.")                                                                \
	HEALTH(NVME_BUDGET, nvme_budget, note,                                               \
	       "The write budget is short: blocks that are stored for the first time stay "  \
	       "in memory only; raise [nvme] write_budget_bytes_per_day if the disk may "    \
	       "wear faster.")                                                               \
	HEALTH(NVME_CORRUPT, nvme_corrupt, warn,                                             \
	       "An image read from NVMe failed its checksum twice and was dropped (see "     \
	       "tiers.nvme.corrupt_blocks_total): test that disk, `kvtierctl verify`.")      \
	HEALTH(GPU_CORRUPT, gpu_corrupt, warn,                                               \
	       "`kvtierctl verify` found an image in a GPU's memory that was not the "       \
	       "block's, and dropped it (see tiers.gpu.corrupt_blocks_total): test that "    \
	       "GPU's memory.")                                                              \
	HEALTH(REDIS_MISCONFIGURED, redis_misconfigured, warn,                               \
	       "Redis refuses kvtierd; see the reason below, correct [redis] username and "  \
	       "password_file or the endpoint's ACL. It is tried again every 30 s.")         \
	HEALTH(REDIS_OFFLINE, redis_offline, warn,                                           \
	       "No Redis endpoint answers: this node has its own tiers only; see the "       \
	       "reason below and `kvtierctl endpoints`. It is tried again.")                 \
	HEALTH(REDIS_READONLY, redis_readonly, warn,                                         \
	       "No Redis endpoint takes stores. Reading goes on, and this stays until a "    \
	       "store is taken. See the reason below: its maxmemory and maxmemory-policy, "  \
	       "its disk, its ACL, or that it is a replica.")                                \
	HEALTH(REDIS_DEGRADED, redis_degraded, warn,                                         \
	       "A Redis endpoint is away or takes no stores, and its blocks are misses; "    \
	       "see the reason below and `kvtierctl endpoints`.")                            \
	HEALTH(REDIS_CORRUPT, redis_corrupt, warn,                                           \
	       "A value in Redis was not what it should be and became a miss (see "          \
	       "tiers.redis.corrupt_blocks_total): see who else writes under [redis] "       \
	       "key_prefix, test that machine's memory.")                                    \
	HEALTH(REDIS_FORGED, redis_forged, warn,                                             \
	       "A value in Redis was made by somebody who does not know [redis] "            \
	       "secret_file, or its seal_files, and became a miss (see "                     \
	       "tiers.redis.forged_blocks_total): see who else writes under [redis] "        \
	       "key_prefix.")                                                                \
	HEALTH(GPU_FAILED, gpu_failed, err,                                                  \
	       "A GPU that was in use does not work: its engines' blocks cannot be stored "  \
	       "or loaded from there; see the reason below, `kvtierctl devices` and "        \
	       "`nvidia-smi`.")                                                              \
	HEALTH(GPU_UNUSED, gpu_unused, warn,                                                 \
	       "A GPU of this machine is not served, and engines copy its blocks "           \
	       "themselves; see the reason below. Set [gpu] devices = off if that is "       \
	       "wanted.")                                                                    \
	HEALTH(GPU_STAGED, gpu_staged, warn,                                                 \
	       "An engine copies pages of a GPU itself, by its CPU (\"staged\"), as "        \
	       "kvtierd does not reach them; see the reason below and `kvtierctl clients`. " \
	       "If CUDA IPC is refused, as between two users, use memory that has "          \
	       "descriptors (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).")            \
	HEALTH(GPU_TIER, no_gpu_tier, warn,                                                  \
	       "A GPU does not have the memory that [gpu] bytes asks for, and keeps no "     \
	       "image: see the reason below; lower [gpu] bytes, or leave more free.")        \
	HEALTH(GPU_TIME_SLICED, gpu_time_sliced, note,                                       \
	       "Engines and kvtierd use a GPU in time slices, as there is no MPS: while "    \
	       "the kernels of one run, those of the other wait. Start "                     \
	       "`nvidia-cuda-mps-control -d` before all of them, and kernels run side by "   \
	       "side.")                                                                      \
	HEALTH(HOST_NOT_PINNED, host_not_pinned, warn,                                       \
	       "The CUDA driver does not register all of the host tier's memory, and "       \
	       "blocks in the rest cross to and from GPUs by way of a buffer; see the "      \
	       "reason below. No memlock limit causes this: the kernel could not pin the "   \
	       "pages. Raise the memory limit of the cgroup (MemoryMax=, a container's), "   \
	       "look in the kernel's log for the IOMMU, lower [host] bytes, or set [host] "  \
	       "pin = no.")                                                                  \
	HEALTH(STOPPED, stopped, err,                                                        \
	       "The daemon's process is stopped; continue it with `kill -CONT PID`, or see " \
	       "who stopped it.")                                                            \
	HEALTH(SILENT, silent, err,                                                          \
	       "The daemon runs but its core thread has not moved for a while; see its "     \
	       "log, `systemctl restart kvtierd`.")                                          \
	HEALTH(DEAD, dead, err,                                                              \
	       "The daemon is gone without having stopped cleanly; see its log, `systemctl " \
	       "restart kvtierd`.")

enum stats_health_bit {
#define HEALTH(bit, name, severity, prose) STATS_HEALTH_##bit,
	STATS_HEALTH(HEALTH)
#undef HEALTH
		STATS_HEALTH_COUNT
};

/* tiers_*_state: 0 is "off", a running tier is its enum tier_state + 1. */
enum { STATS_TIER_OFF = 0, STATS_TIER_STATE_BASE = 1 };

/* The type of a number, by its kind: an array of uint64_t, as struct stats_values is, too. */
#define STATS_TYPE_counter   uint64_t
#define STATS_TYPE_gauge     uint64_t
#define STATS_TYPE_state     uint64_t
#define STATS_TYPE_histogram struct histogram

struct stats_values {
#define STAT(path, field, kind, unit, prose) STATS_TYPE_##kind field;
#include "tbl_stats.h"
};

/* The numbers of each tier (STAT_TIER of tbl_stats.h), in their order. */
struct stats_tier {
	uint64_t state, hit_blocks_total, read_bytes_total, written_bytes_total;
	uint64_t corrupt_blocks_total;
	struct histogram load_duration_ns;
};

struct stats {
	/* The members up to `version` keep their places in all versions: stats_maker() */
	uint32_t magic;
	uint32_t layout; /* stats_layout() */
	uint32_t bytes;  /* sizeof(struct stats) */
	int32_t pid;
	uint64_t pid_start;         /* field 22 of /proc/PID/stat: tells a reused pid */
	uint64_t pid_namespace;     /* inode of /proc/self/ns/pid: elsewhere a pid has no meaning */
	uint64_t start_realtime_ns; /* CLOCK_REALTIME */
	uint64_t start_monotonic_ns;
	uint64_t heartbeat_ns; /* CLOCK_MONOTONIC */
	uint64_t health;       /* 1 << enum stats_health_bit */
	char version[STATS_NAME_BYTES];
	char device[STATS_NAME_BYTES];
	char kernels[STATS_NAME_BYTES];
	/* These texts change while they are read: stats_text_get(). "": no text, or no such
	 * tier. */
	char nvme_engine[STATS_NAME_BYTES];  /* "io_uring", "threads"... */
	char nvme_text[STATS_TEXT_BYTES];    /* why the tier is not up, or not as it should be */
	char files_text[STATS_TEXT_BYTES];   /* which of its own files is not at its path */
	char clients_text[STATS_TEXT_BYTES]; /* while connections are short: whose they are */
	char refused_text[STATS_TEXT_BYTES]; /* clients that were refused lately */
	char redis_text[STATS_TEXT_BYTES];   /* why the tier is not up, or not as it should be */
	char gpu_text[STATS_TEXT_BYTES];     /* why a GPU does not work, or memory is not pinned */
	_Alignas(64) struct stats_values v;
	char sockets[STATS_SOCKETS][STATS_TEXT_BYTES]; /* where engines connect, since READY */
};

/* A relaxed store is enough, without read-modify-write, since there is one writer. */
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

/* For the daemon. Makes the page at path (0600), with health `starting`. now_ns is CLOCK_MONOTONIC.
 * path NULL: the page is private memory, for tests. 0 or -errno. */
int stats_open(const char *path, uint64_t now_ns, struct stats **ret);
/* Lets others read the page: the members of group, by an ACL, or if it is -1 of the file's own
 * group. 0, -EOPNOTSUPP: its file system has no ACLs, or -errno. */
int stats_let_read(struct stats *stats, mode_t mode, gid_t group);
/* Unmaps the page, and removes path if it is still this page. stats may be NULL. */
void stats_close(struct stats *stats, const char *path);
/* Call it with each heartbeat. 1: somebody had truncated the page, and it is whole again, with the
 * numbers as of the heartbeat before. 0: it was whole. -errno: it cannot be made whole. */
int stats_keep(struct stats *stats);
/* Brings the gauges of the last minute and hour up to date. Call it with each heartbeat. */
void stats_move_windows(struct stats *stats, uint64_t now_ns);
/* Call it at least twice a second; it moves uptime_s, too. */
void stats_heartbeat(struct stats *stats, uint64_t now_ns);
void stats_health_set(struct stats *stats, enum stats_health_bit bit, bool on);
/* The numbers in stats->v that are about this tier (enum tier_id). */
struct stats_tier *stats_tier(struct stats *stats, uint32_t tier);
/* A block that was offered was not kept, for this -errno. drained: since `kvtierctl drain`. */
void stats_count_dropped(struct stats_values *v, int status, bool drained);
/* A block that is there was not given back, for this -errno. */
void stats_count_failed(struct stats_values *v, int status);
void stats_names(struct stats *stats, const char *device, const char *kernels); /* cut to fit */
/* Sets a text of the page, which has this room; `said` is cut to fit. A reader meanwhile may see a
 * mix of the old and the new text, which always has an end. */
void stats_text_set(char *text, size_t room, const char *said);

/* For readers. -ENOENT, -EACCES...; -EPROTO: the file is no stats page, or one of another version
 * of kvtier. */
int stats_map(const char *path, const struct stats **ret);
void stats_unmap(const struct stats *stats); /* may be NULL */
/* The daemon that made the page at path, which may be of another version of kvtier. Errors as of
 * stats_map(). */
struct stats_maker {
	char version[STATS_NAME_BYTES];
	int32_t pid;
	bool dead; /* false also where its pid has no meaning, in a container of its own */
};
int stats_maker(const char *path, struct stats_maker *ret);
/* Copies a text of the page, which has `room` bytes and may change meanwhile. ret has as much room.
 * Returns ret. */
char *stats_text_get(const char *text, size_t room, char *ret);
/* The page's health at now_ns, with the statements that only a reader can make: stopped, silent,
 * dead. A daemon that starts is never silent, since making a large store takes a while. */
uint64_t stats_health(const struct stats *stats, uint64_t now_ns);

/* The tables, for programs that print them. */
enum stats_kind { STATS_COUNTER, STATS_GAUGE, STATS_STATE, STATS_HISTOGRAM };

struct stats_row {
	const char *path;
	const char *unit; /* STATS_STATE: names, a|b|c */
	const char *prose;
	enum stats_kind kind;
	uint32_t offset; /* in struct stats_values */
};
size_t stats_rows(const struct stats_row **ret);
/* The value of a histogram is how many times it counts. */
uint64_t stats_value(const struct stats *stats, const struct stats_row *row);
/* A row's histogram in these values, whose units are so many ns each. */
const struct histogram *stats_histogram(const struct stats_values *v, const struct stats_row *row);
uint64_t stats_unit_ns(const struct stats_row *row);
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
