/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.c - makes and maps the stats page, and has its tables as data. Contract: stats.h.
 */
#include "stats.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "base/bus.h"
#include "tiers/tier.h"

enum kind_name {
	counter = STATS_COUNTER,
	gauge = STATS_GAUGE,
	state = STATS_STATE,
	histogram = STATS_HISTOGRAM
};

static const struct stats_row rows[] = {
#define STAT(path, field, kind, unit, prose) \
	{ path, unit, prose, (enum stats_kind)kind, offsetof(struct stats_values, field) },
#include "tbl_stats.h"
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

static const struct stats_health_row health_rows[STATS_HEALTH_COUNT] = {
#define HEALTH(bit, name, severity, prose) \
	[STATS_HEALTH_##bit] = { #name, prose, STATS_SEVERITY_##severity },
	STATS_HEALTH(HEALTH)
#undef HEALTH
};

/* A tier's row of counters, as struct stats_tier has them. */
#define TIER_AT(t) offsetof(struct stats_values, tiers_##t##_state)
#define TIER_IS_WHOLE(t)                                                                \
	static_assert(offsetof(struct stats_values, tiers_##t##_corrupt_blocks_total) - \
				      TIER_AT(t) ==                                     \
			      offsetof(struct stats_tier, corrupt_blocks_total),        \
		      "STAT_TIER and struct stats_tier")
TIER_IS_WHOLE(gpu);
TIER_IS_WHOLE(host);
TIER_IS_WHOLE(nvme);
TIER_IS_WHOLE(redis);

struct stats_tier *stats_tier(struct stats *stats, uint32_t tier)
{
	static const size_t at[TIER_COUNT] = {
		[TIER_GPU] = TIER_AT(gpu),
		[TIER_HOST] = TIER_AT(host),
		[TIER_NVME] = TIER_AT(nvme),
		[TIER_REDIS] = TIER_AT(redis),
	};

	assert(tier < TIER_COUNT);
	return (struct stats_tier *)(void *)((char *)&stats->v + at[tier]);
}

size_t stats_rows(const struct stats_row **ret)
{
	*ret = rows;
	return ROWS;
}

const struct histogram *stats_histogram(const struct stats_values *v, const struct stats_row *row)
{
	assert(row->kind == STATS_HISTOGRAM);
	return (const struct histogram *)(const void *)((const char *)v + row->offset);
}

uint64_t stats_unit_ns(const struct stats_row *row)
{
	return strcmp(row->unit, "us") == 0 ? 1000 : 1;
}

uint64_t stats_value(const struct stats *stats, const struct stats_row *row)
{
	if (row->kind == STATS_HISTOGRAM)
		return histogram_total(stats_histogram(&stats->v, row));
	return stats_get((const uint64_t *)((const char *)&stats->v + row->offset));
}

const char *stats_state_name(const struct stats_row *row, uint64_t value, char *buffer, size_t n)
{
	const char *name = row->unit;

	while (value-- > 0) {
		name = strchr(name, '|');
		if (!name)
			return "unknown";
		name++;
	}
	snprintf(buffer, n, "%.*s", (int)strcspn(name, "|"), name);
	return buffer;
}

const char *stats_kind_name(enum stats_kind kind)
{
	static const char *const names[] = { "counter", "gauge", "state", "histogram" };

	return names[kind];
}

const struct stats_health_row *stats_health_row(enum stats_health_bit bit)
{
	return &health_rows[bit];
}

const char *stats_severity_name(enum stats_severity severity)
{
	static const char *const names[] = { "note", "warn", "err" };

	return names[severity];
}

const char *stats_health_word(uint64_t health)
{
	const uint64_t ended = 1ull << STATS_HEALTH_STOPPED | 1ull << STATS_HEALTH_DEAD;
	const char *word = "ok";

	if ((health >> STATS_HEALTH_STARTING & 1) != 0 && (health & ended) == 0)
		return "starting";
	for (unsigned bit = 0; bit < STATS_HEALTH_COUNT; bit++) {
		if ((health >> bit & 1) == 0)
			continue;
		if (health_rows[bit].severity == STATS_SEVERITY_err)
			return "err";
		if (health_rows[bit].severity == STATS_SEVERITY_warn)
			word = "warn";
	}
	return word;
}

/* FNV-1a, for a hash of everything that gives the bytes of the page their meaning. */
static uint32_t hash_text(uint32_t hash, const char *text)
{
	do {
		hash = (hash ^ (unsigned char)*text) * 16777619u;
	} while (*text++ != '\0');
	return hash;
}

static uint32_t stats_layout(void)
{
	uint32_t hash = 2166136261u;

	for (size_t i = 0; i < ROWS; i++) {
		hash = hash_text(hash, rows[i].path);
		hash = hash_text(hash, rows[i].kind == STATS_STATE ? rows[i].unit : "");
	}
	for (size_t i = 0; i < STATS_HEALTH_COUNT; i++)
		hash = hash_text(hash, health_rows[i].name);
	return hash ^ (uint32_t)offsetof(struct stats, version) << 24 ^
	       (uint32_t)offsetof(struct stats, v) ^ (uint32_t)sizeof(struct stats) << 12;
}

static uint64_t pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) < 0 ? 0 : (uint64_t)st.st_ino;
}

/* State letter and start time (fields 3 and 22) of /proc/PID/stat. -ENOENT: no such process. */
static int process_stat(int32_t pid, char *ret_state, uint64_t *ret_start)
{
	char path[64], text[1024];
	const char *at;
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	length = read(fd, text, sizeof(text) - 1);
	(void)close(fd);
	if (length <= 0)
		return -ENOENT;
	text[length] = '\0';
	/* the name, field 2, may have anything in it, ')' too */
	at = strrchr(text, ')');
	if (!at || at[1] != ' ')
		return -EPROTO;
	*ret_state = at[2];
	at++;
	for (int field = 3; field < 22 && at != NULL; field++)
		at = strchr(at + 1, ' ');
	if (!at)
		return -EPROTO;
	*ret_start = strtoull(at + 1, NULL, 10);
	return 0;
}

/* The state letter of the process that made the page. -ENOENT: it is gone. -EXDEV: it is of another
 * pid namespace (a container), and only the heartbeat tells. */
static int maker_look(const struct stats *stats, char *ret_letter)
{
	uint64_t start = 0;
	int r;

	if (stats->pid_namespace != pid_namespace())
		return -EXDEV;
	r = process_stat(stats->pid, ret_letter, &start);
	if (r == 0 && (start != stats->pid_start || *ret_letter == 'Z' || *ret_letter == 'X'))
		r = -ENOENT;
	return r;
}

static void fill(struct stats *stats, uint64_t now_ns)
{
	struct timespec now = { 0 };
	char letter;

	stats->layout = stats_layout();
	stats->bytes = sizeof(*stats);
	stats->pid = (int32_t)getpid();
	(void)process_stat(stats->pid, &letter, &stats->pid_start);
	stats->pid_namespace = pid_namespace();
	(void)clock_gettime(CLOCK_REALTIME, &now);
	stats->start_realtime_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	stats->start_monotonic_ns = now_ns;
	stats->heartbeat_ns = now_ns;
	stats->health = 1ull << STATS_HEALTH_STARTING;
	snprintf(stats->version, sizeof(stats->version), "%s", KVTIER_VERSION);
	stats->magic = STATS_MAGIC;
}

enum { STEPS = 60 };

/* The lookups of the last 60 steps. was[at] is the oldest: what had been counted when that step
 * began. */
struct window {
	uint64_t step_ns, next_ns;
	uint32_t at;
	struct {
		uint64_t requested, hits;
	} was[STEPS];
};

/* The page, and behind it memory that is not in the file. */
struct mapping {
	struct stats page;
	_Alignas(4096) struct stats copy; /* as of the last heartbeat: bus.h */
	struct window minute, hour;
	int fd; /* of the page's file; -1: no file */
};

static struct mapping *mapping_of(struct stats *stats)
{
	return (struct mapping *)(void *)stats;
}

/* Moves the page into the file; it keeps its bytes and its address. The file is reserved and not
 * sparse, so a full file system is an error here and no SIGBUS later. */
static int into_file(struct mapping *m)
{
	const int r = posix_fallocate(m->fd, 0, sizeof(m->page));

	if (r)
		return -r;
	if (pwrite(m->fd, &m->page, sizeof(m->page), 0) != (ssize_t)sizeof(m->page))
		return -EIO;
	return mmap(&m->page, sizeof(m->page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		    m->fd, 0) == MAP_FAILED ?
		       -errno :
		       0;
}

/* Makes the file; path leads to it when all of the page is there. */
static int make_file(struct mapping *m, const char *path)
{
	char temporary[512];
	int r = snprintf(temporary, sizeof(temporary), "%s.%d", path, (int)getpid());

	if (r < 0 || (size_t)r >= sizeof(temporary))
		return -ENAMETOOLONG;
	(void)unlink(temporary); /* of a daemon that had our pid and died between open and rename */
	m->fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (m->fd < 0)
		return -errno;
	r = into_file(m);
	if (r == 0 && rename(temporary, path) < 0)
		r = -errno;
	if (r == 0)
		r = bus_watch(&m->page, sizeof(m->page), &m->copy);
	if (r)
		(void)unlink(temporary);
	return r;
}

static void unmap(struct mapping *m)
{
	if (m->fd >= 0) {
		(void)bus_watch(NULL, 0, NULL);
		(void)close(m->fd);
	}
	(void)munmap(m, sizeof(*m));
}

int stats_open(const char *path, uint64_t now_ns, struct stats **ret)
{
	struct mapping *m =
		mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int r;

	if (m == MAP_FAILED)
		return -errno;
	fill(&m->page, now_ns);
	m->copy = m->page;
	m->minute = (struct window){ .step_ns = 1000000000, .next_ns = now_ns };
	m->hour = (struct window){ .step_ns = 60000000000, .next_ns = now_ns };
	m->fd = -1;
	r = path ? make_file(m, path) : 0;
	if (r)
		unmap(m);
	else
		*ret = &m->page;
	return r;
}

int stats_let_read(struct stats *stats, mode_t mode, gid_t group)
{
	/* A file's owner may let any group in by an ACL. fchown() needs a member of the group, and
	 * the service's filter of system calls refuses it. */
	const uint16_t rights = mode >> 3 & 7;
	const struct {
		struct posix_acl_xattr_header head;
		struct posix_acl_xattr_entry entries[5];
	} acl = { { POSIX_ACL_XATTR_VERSION },
		  { { ACL_USER_OBJ, 6, (uint32_t)ACL_UNDEFINED_ID },
		    { ACL_GROUP_OBJ, 0, (uint32_t)ACL_UNDEFINED_ID },
		    { ACL_GROUP, rights, group },
		    { ACL_MASK, rights, (uint32_t)ACL_UNDEFINED_ID },
		    { ACL_OTHER, mode & 7, (uint32_t)ACL_UNDEFINED_ID } } };
	const int fd = mapping_of(stats)->fd;
	const int r = group == (gid_t)-1 ?
			      fchmod(fd, mode | 0600) :
			      fsetxattr(fd, "system.posix_acl_access", &acl, sizeof(acl), 0);

	return r < 0 ? -errno : 0;
}

int stats_keep(struct stats *stats)
{
	struct mapping *m = mapping_of(stats);
	int r = 1;

	if (stats->magic == STATS_MAGIC) {
		m->copy = *stats;
		if (!bus_mended())
			return 0;
		r = into_file(m);
	} else { /* it was truncated, and is as long as before again */
		*stats = m->copy;
	}
	return r ? r : 1;
}

void stats_close(struct stats *stats, const char *path)
{
	const struct stats *there;

	if (!stats)
		return;
	/* a successor may have put its own page there */
	if (path && stats_map(path, &there) == 0) {
		if (there->pid == stats->pid &&
		    there->start_monotonic_ns == stats->start_monotonic_ns)
			(void)unlink(path);
		stats_unmap(there);
	}
	unmap(mapping_of(stats));
}

static void window_move(struct window *w, uint64_t now_ns, struct stats_values *v,
			uint64_t *ret_requested, uint64_t *ret_hits)
{
	const uint64_t requested = stats_get(&v->lookup_requested_blocks_total);
	const uint64_t hits = stats_get(&v->lookup_hit_blocks_total);

	stats_set(ret_requested, requested - w->was[w->at].requested);
	stats_set(ret_hits, hits - w->was[w->at].hits);
	for (uint32_t i = 0; now_ns >= w->next_ns && i < STEPS; i++) {
		w->was[w->at].requested = requested;
		w->was[w->at].hits = hits;
		w->at = (w->at + 1) % STEPS;
		w->next_ns += w->step_ns;
	}
	if (now_ns >= w->next_ns) /* nothing was counted for longer than the window */
		w->next_ns = now_ns + w->step_ns;
}

void stats_move_windows(struct stats *stats, uint64_t now_ns)
{
	struct mapping *m = mapping_of(stats);
	struct stats_values *v = &stats->v;

	window_move(&m->minute, now_ns, v, &v->lookup_minute_requested_blocks,
		    &v->lookup_minute_hit_blocks);
	window_move(&m->hour, now_ns, v, &v->lookup_hour_requested_blocks,
		    &v->lookup_hour_hit_blocks);
}

void stats_heartbeat(struct stats *stats, uint64_t now_ns)
{
	stats_set(&stats->heartbeat_ns, now_ns);
	stats_set(&stats->v.uptime_s, (now_ns - stats->start_monotonic_ns) / 1000000000u);
}

void stats_health_set(struct stats *stats, enum stats_health_bit bit, bool on)
{
	const uint64_t mask = 1ull << bit, health = stats_get(&stats->health);

	stats_set(&stats->health, on ? health | mask : health & ~mask);
}

/* What a block's status says of why it was not kept, or not given back. */
static const struct {
	int status; /* 0: any other */
	size_t store, load;
} reasons[] = {
#define REASON(status, name)                                                        \
	{                                                                           \
		status, offsetof(struct stats_values, store_##name##_blocks_total), \
			offsetof(struct stats_values, load_##name##_blocks_total)   \
	}
	REASON(-ENOSPC, no_room),      REASON(-ETIMEDOUT, late), REASON(-ECANCELED, canceled),
	REASON(-ECONNRESET, canceled), REASON(-EFAULT, no_page), REASON(0, error),
};

static void count_reason(struct stats_values *v, int status, bool store)
{
	size_t i = 0;

	while (reasons[i].status != 0 && reasons[i].status != status)
		i++;
	stats_add((uint64_t *)(void *)((char *)v + (store ? reasons[i].store : reasons[i].load)),
		  1);
}

void stats_count_dropped(struct stats_values *v, int status, bool drained)
{
	stats_add(&v->store_dropped_blocks_total, 1);
	if (drained)
		stats_add(&v->store_drained_blocks_total, 1);
	else if (status == -ENOENT)
		stats_add(&v->store_no_parent_blocks_total, 1);
	else
		count_reason(v, status, true);
}

void stats_count_failed(struct stats_values *v, int status)
{
	stats_add(&v->load_failed_blocks_total, 1);
	count_reason(v, status, false);
}

void stats_names(struct stats *stats, const char *device, const char *kernels)
{
	snprintf(stats->device, sizeof(stats->device), "%s", device);
	snprintf(stats->kernels, sizeof(stats->kernels), "%s", kernels);
}

/* The last byte is 0 from the start and never written, so there is an end whenever a reader
 * looks. */
void stats_text_set(char *text, size_t room, const char *said)
{
	const size_t length = strnlen(said, room - 1);

	for (size_t i = 0; i < room - 1; i++)
		__atomic_store_n(&text[i], i < length ? said[i] : '\0', __ATOMIC_RELAXED);
}

char *stats_text_get(const char *text, size_t room, char *ret)
{
	for (size_t i = 0; i < room - 1; i++)
		ret[i] = __atomic_load_n(&text[i], __ATOMIC_RELAXED);
	ret[room - 1] = '\0';
	return ret;
}

/* Maps a page of any version. *ret_bytes: those of the file, which has a head at least. */
static int map_file(const char *path, off_t *ret_bytes, const struct stats **ret)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	const struct stats *stats;
	struct stat st;
	void *at;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
	    st.st_size < (off_t)offsetof(struct stats, device)) {
		(void)close(fd);
		return -EPROTO;
	}
	at = mmap(NULL, sizeof(*stats), PROT_READ, MAP_SHARED, fd, 0);
	(void)close(fd);
	if (at == MAP_FAILED)
		return -errno;
	stats = at;
	if (stats->magic != STATS_MAGIC) {
		stats_unmap(stats);
		return -EPROTO;
	}
	*ret_bytes = st.st_size;
	*ret = stats;
	return 0;
}

int stats_map(const char *path, const struct stats **ret)
{
	const struct stats *stats;
	off_t bytes;
	int r = map_file(path, &bytes, &stats);

	if (r)
		return r;
	if (bytes != (off_t)sizeof(*stats) || stats->layout != stats_layout() ||
	    stats->bytes != sizeof(*stats)) {
		stats_unmap(stats);
		return -EPROTO;
	}
	*ret = stats;
	return 0;
}

int stats_maker(const char *path, struct stats_maker *ret)
{
	const struct stats *stats;
	char letter;
	off_t bytes;
	int r = map_file(path, &bytes, &stats);

	static_assert(offsetof(struct stats, version) == 64, "as in all versions of kvtier");
	if (r)
		return r;
	ret->pid = stats->pid;
	ret->dead = maker_look(stats, &letter) == -ENOENT;
	(void)stats_text_get(stats->version, sizeof(ret->version), ret->version);
	stats_unmap(stats);
	return 0;
}

void stats_unmap(const struct stats *stats)
{
	/* munmap takes a pointer that is not const */
	if (stats)
		(void)munmap((void *)(uintptr_t)stats, sizeof(*stats));
}

uint64_t stats_health(const struct stats *stats, uint64_t now_ns)
{
	const uint64_t beat = stats_get(&stats->heartbeat_ns), health = stats_get(&stats->health);
	/* a heartbeat ahead of the clock is one from before a reboot */
	const bool silent = (health >> STATS_HEALTH_STARTING & 1) == 0 &&
			    (beat > now_ns + 1000000000u ||
			     (now_ns > beat && now_ns - beat > STATS_STALE_MS * 1000000ull));
	char letter = '?';
	const int r = maker_look(stats, &letter);

	if (r == -ENOENT)
		return health | 1ull << STATS_HEALTH_DEAD;
	if (r == 0 && (letter == 'T' || letter == 't'))
		return health | 1ull << STATS_HEALTH_STOPPED;
	return silent ? health | 1ull << STATS_HEALTH_SILENT : health;
}
