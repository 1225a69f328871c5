/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_memory.c - the host tier's memory: whether it fits this machine, from which NUMA nodes it
 * comes, and how it is mapped, locked and faulted in. Contract: host_memory.h.
 *
 * A configuration that does not fit is refused with a sentence that names the knob, the limit and
 * the next step.
 *
 * The mapping is anonymous and private:
 * - No other process can have a descriptor of it and take a page away under a copy (SIGBUS).
 * - Nearly every kernel gives it transparent huge pages when asked. A memfd gets them only where
 *   shmem_enabled allows, and that is "never" nearly everywhere. Huge pages are worth having: a
 *   disk takes a request as a limited number of physically consecutive pieces (virtio: 254), and 1
 *   MiB in single 4 KiB pages is 256 pieces or more.
 * - The daemon does not fork, so private pages are never copied on write.
 *
 * Its slabs come from the NUMA nodes that the configuration names. Without such names they come
 * from the nodes of GPUs, each GPU alike; the kernel knows where GPUs are (sysfs), so no driver is
 * needed. Where no GPU has a node, pages are interleaved over all allowed nodes.
 *
 * A slab's state, written by the thread that faults it in and read by the core:
 *
 *  cold --MADV_POPULATE_WRITE ok (or touched)--> ready
 *    |\---no page, no huge page---> lost
 *    \---host_memory_take_cold()--> taken: in use before its time; its first user faults it in
 *
 * Threads take slabs in ascending order, so at most one a thread is out of order; the core hands
 * them out in order. Faulting in never changes a byte, because the slab may be in use by then.
 */
#include "host_memory.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <numa.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "base/text.h"
#include "base/thread.h"
#include "tiers/slabs.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA           0x53564d41 /* Linux 5.17 */
#define PR_SET_VMA_ANON_NAME 0
#endif

enum {
	PAGE = 4096,
	HUGE_PAGE = 2 << 20,
	PATH_BYTES = 512,
	AUTO_DIVISOR = 4,
	/* faulted in between two looks at `stop`. The kernel locks the address space for as long,
	 * and the core thread waits for that where it starts a helper thread */
	PIECE_BYTES = 256 << 10,
	/* of one node, before another one's: not smaller, as each is a mapping of its own to the
	 * kernel, which has a limit on them (vm.max_map_count) */
	RUN_BYTES = 1 << 30,
	VENDOR_NVIDIA = 0x10de,
	CLASS_DISPLAY = 0x03, /* the first byte of three: VGA controllers, 3D controllers */
};

enum slab_state { SLAB_COLD, SLAB_READY, SLAB_LOST, SLAB_TAKEN };

/* --- does it fit this machine? --- */

struct size_text {
	char s[32];
};

/* A size as a configuration file has it: 65536 is "64K". Odd numbers stay bytes. */
static struct size_text size_text(uint64_t bytes)
{
	static const char units[] = "\0KMGT";
	struct size_text ret;
	int u = 0;

	while (u < 4 && bytes >= 1024 && bytes % 1024 == 0) {
		bytes /= 1024;
		u++;
	}
	(void)snprintf(ret.s, sizeof(ret.s), "%" PRIu64 "%.1s", bytes, &units[u]);
	return ret;
}

/* What config.c cannot know before `auto` is a number. */
static int check_shape(const struct tier_conf *conf, char *text, size_t n)
{
	assert(conf->huge_pages <= 2 && conf->slab_bytes > 0 &&
	       conf->slab_bytes % (conf->huge_pages == 2 ? HUGE_PAGE : PAGE) == 0);
	for (uint32_t i = 0; i < conf->n_nodes; i++)
		assert(conf->nodes[i].bytes >= conf->slab_bytes);
	if (conf->bytes < conf->slab_bytes)
		return text_fail(
			text, n, -EINVAL,
			"[host] bytes = %s is less than one slab ([host] slab_bytes = %s): "
			"raise bytes, or lower slab_bytes (a slab must hold the largest block's "
			"image)",
			size_text(conf->bytes).s, size_text(conf->slab_bytes).s);
	if (conf->bytes / conf->slab_bytes > TIER_MAX_SLABS)
		return text_fail(
			text, n, -EINVAL,
			"[host] bytes = %s is %" PRIu64
			" slabs of [host] slab_bytes = %s; the limit is %d slabs: raise slab_bytes",
			size_text(conf->bytes).s, conf->bytes / conf->slab_bytes,
			size_text(conf->slab_bytes).s, TIER_MAX_SLABS);
	return 0;
}

uint64_t host_limits_auto(const struct tier_conf *conf, const struct host_limits *limits)
{
	uint64_t most = limits->available_bytes;

	if (limits->cgroup_bytes < most)
		most = limits->cgroup_bytes;
	if (conf->huge_pages == 2)
		most = limits->free_huge_pages == UINT64_MAX ? 0 :
							       limits->free_huge_pages * HUGE_PAGE;
	if (most == UINT64_MAX) /* not known: a slab is all we dare */
		return conf->slab_bytes;
	return most / AUTO_DIVISOR / conf->slab_bytes * conf->slab_bytes;
}

int host_limits_check(const struct tier_conf *conf, const struct host_limits *limits, char *text,
		      size_t n)
{
	const int err = check_shape(conf, text, n);
	uint64_t bytes, pages;

	if (err)
		return err;
	bytes = conf->bytes / conf->slab_bytes * conf->slab_bytes;
	pages = bytes / HUGE_PAGE;
	if (conf->huge_pages == 2) { /* set aside at boot: neither limit below counts them */
		if (limits->free_huge_pages == UINT64_MAX)
			return text_fail(
				text, n, -ENOMEM,
				"[host] huge_pages = 2m, but this kernel has no 2 MiB huge pages: "
				"set [host] huge_pages = thp");
		if (pages > limits->free_huge_pages)
			return text_fail(
				text, n, -ENOMEM,
				"[host] huge_pages = 2m and [host] bytes = %s need %" PRIu64
				" huge pages of 2 MiB, %" PRIu64
				" are free: raise vm.nr_hugepages by %" PRIu64
				" (sysctl), lower bytes, or set huge_pages = thp",
				size_text(conf->bytes).s, pages, limits->free_huge_pages,
				pages - limits->free_huge_pages);
		return 0;
	}
	if (bytes > limits->available_bytes)
		return text_fail(
			text, n, -ENOMEM,
			"[host] bytes = %s is more than this machine has available (MemAvailable = "
			"%" PRIu64 "M): lower [host] bytes",
			size_text(conf->bytes).s, limits->available_bytes >> 20);
	if (bytes > limits->cgroup_bytes)
		return text_fail(
			text, n, -ENOMEM,
			"[host] bytes = %s is more than this control group may use (memory.max = "
			"%" PRIu64 "M): lower [host] bytes, or raise MemoryMax= of the service",
			size_text(conf->bytes).s, limits->cgroup_bytes >> 20);
	return 0;
}

/* The whole number that a file holds; UINT64_MAX: it holds none, as "max" in memory.max. */
static uint64_t number_in(const char *path)
{
	FILE *f = fopen(path, "re");
	uint64_t ret;

	if (!f)
		return UINT64_MAX;
	if (fscanf(f, "%" SCNu64, &ret) != 1)
		ret = UINT64_MAX;
	(void)fclose(f);
	return ret;
}

static uint64_t mem_available(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	char line[128];
	uint64_t kib, ret = UINT64_MAX;

	if (!f)
		return UINT64_MAX;
	while (ret == UINT64_MAX && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
			ret = kib * 1024;
	(void)fclose(f);
	return ret;
}

/* The lowest limit from the group `path` up to the root of the hierarchy mounted at `mount`. */
static uint64_t group_limit(const char *mount, const char *path, const char *file)
{
	char group[PATH_BYTES], full[2 * PATH_BYTES];
	uint64_t ret = UINT64_MAX;

	(void)snprintf(group, sizeof(group), "%s", path);
	for (;;) {
		char *slash = strrchr(group, '/');
		uint64_t limit;

		(void)snprintf(full, sizeof(full), "%s%s/%s", mount, slash && slash[1] ? group : "",
			       file);
		limit = number_in(full);
		if (limit < ret)
			ret = limit;
		if (!slash || !slash[1])
			return ret;
		if (slash == group)
			slash++; /* the root stays "/" */
		*slash = '\0';
	}
}

static uint64_t cgroup_limit(void)
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	char line[PATH_BYTES], *path;
	uint64_t limit, ret = UINT64_MAX;

	if (!f)
		return UINT64_MAX;
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		path = strchr(line, '/');
		if (!path)
			continue;
		limit = UINT64_MAX;
		if (!strncmp(line, "0::", 3))
			limit = group_limit("/sys/fs/cgroup", path, "memory.max");
		else if (strstr(line, ":memory:"))
			limit = group_limit("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes");
		if (limit < ret)
			ret = limit;
	}
	(void)fclose(f);
	return ret;
}

void host_limits_read(struct host_limits *ret)
{
	static const char dir[] = "/sys/kernel/mm/hugepages/hugepages-2048kB";
	char path[PATH_BYTES];
	uint64_t reserved;

	ret->available_bytes = mem_available();
	ret->cgroup_bytes = cgroup_limit();
	(void)snprintf(path, sizeof(path), "%s/free_hugepages", dir);
	ret->free_huge_pages = number_in(path);
	(void)snprintf(path, sizeof(path), "%s/resv_hugepages", dir);
	reserved = number_in(path);
	if (ret->free_huge_pages != UINT64_MAX && reserved != UINT64_MAX)
		ret->free_huge_pages -=
			reserved < ret->free_huge_pages ? reserved : ret->free_huge_pages;
}

/* --- the nodes of GPUs --- */

/* The number in a file: hexadecimal, with 0x before it. */
static bool number_of(const char *device, const char *file, long *ret)
{
	char path[512];
	FILE *f;
	bool good;

	if (snprintf(path, sizeof(path), "%s/%s", device, file) >= (int)sizeof(path))
		return false;
	f = fopen(path, "re");
	good = f && fscanf(f, "%li", ret) == 1;
	if (f)
		(void)fclose(f);
	return good;
}

static void add(struct host_nodes *nodes, int32_t node)
{
	uint32_t at = nodes->n++;

	for (; at > 0 && nodes->of_gpu[at - 1] > node; at--)
		nodes->of_gpu[at] = nodes->of_gpu[at - 1];
	nodes->of_gpu[at] = node;
}

void host_nodes_read(const char *sys, bool (*allowed)(void *arg, int32_t node), void *arg,
		     struct host_nodes *ret)
{
	const struct dirent *entry;
	char path[384];
	DIR *dir;

	ret->n = 0;
	(void)snprintf(path, sizeof(path), "%.255s/bus/pci/devices", sys);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)) != NULL && ret->n < HOST_GPUS_MAX) {
		long vendor, class, node;

		(void)snprintf(path, sizeof(path), "%.255s/bus/pci/devices/%.64s", sys,
			       entry->d_name);
		if (entry->d_name[0] != '.' && number_of(path, "vendor", &vendor) &&
		    vendor == VENDOR_NVIDIA && number_of(path, "class", &class) &&
		    class >> 16 == CLASS_DISPLAY && number_of(path, "numa_node", &node) &&
		    node >= 0 && node < HOST_NODES_MAX && allowed(arg, (int32_t)node))
			add(ret, (int32_t)node);
	}
	if (dir)
		(void)closedir(dir);
}

void host_nodes_by_gpus(const struct host_nodes *gpus, uint32_t slabs, struct host_split *ret)
{
	uint32_t given = 0, before = 0;

	ret->n = 0;
	for (uint32_t i = 0; i < gpus->n; i++) {
		const bool last = i + 1 == gpus->n || gpus->of_gpu[i + 1] != gpus->of_gpu[i];

		if (!last)
			continue;
		if (ret->n == TIER_MAX_NODES)
			break;
		given = (uint32_t)((uint64_t)slabs * (i + 1) / gpus->n);
		ret->node[ret->n] = gpus->of_gpu[i];
		ret->slabs[ret->n++] = given - before;
		before = given;
	}
	if (ret->n > 0) /* the slabs of nodes that there was no room for */
		ret->slabs[ret->n - 1] += slabs - given;
}

void host_nodes_by_conf(const struct tier_conf *conf, struct host_split *ret)
{
	ret->n = conf->n_nodes;
	for (uint32_t i = 0; i < conf->n_nodes; i++) {
		ret->node[i] = conf->nodes[i].node;
		ret->slabs[i] = (uint32_t)(conf->nodes[i].bytes / conf->slab_bytes);
	}
}

/* The node that has had the smallest fraction of its slabs; TIER_MAX_NODES: all have had all. */
static uint32_t furthest_behind(const struct host_split *split, const uint32_t *given)
{
	uint32_t best = TIER_MAX_NODES;

	for (uint32_t i = 0; i < split->n; i++)
		if (given[i] < split->slabs[i] &&
		    (best == TIER_MAX_NODES || (uint64_t)given[i] * split->slabs[best] <
						       (uint64_t)given[best] * split->slabs[i]))
			best = i;
	return best;
}

void host_nodes_lay_out(const struct host_split *split, uint32_t run, uint8_t *ret)
{
	uint32_t given[TIER_MAX_NODES] = { 0 }, at = 0, node;

	while ((node = furthest_behind(split, given)) != TIER_MAX_NODES)
		for (uint32_t i = 0; i < run && given[node] < split->slabs[node]; i++) {
			ret[at++] = (uint8_t)node;
			given[node]++;
		}
}

/* --- NUMA: where the kernel knows nodes --- */

static bool numa_known(void)
{
	return numa_available() >= 0;
}

/* This process may have memory of the node. arg: not used. */
static bool is_allowed(void *arg, int32_t node)
{
	struct bitmask *allowed = numa_get_mems_allowed();
	const bool ret = node >= 0 && numa_bitmask_isbitset(allowed, (unsigned int)node);

	(void)arg;
	numa_bitmask_free(allowed);
	return ret;
}

/* Where pages of a mapping are to come from, before they are touched: strictly from this node, or
 * from another one where it is full. 0, or the error of mbind(), as -errno. */
static int place(void *at, uint64_t bytes, int32_t node, bool strict)
{
	struct bitmask *one = numa_allocate_nodemask();
	long r;

	numa_bitmask_setbit(one, (unsigned int)node);
	r = mbind(at, bytes, strict ? MPOL_BIND : MPOL_PREFERRED, one->maskp, one->size + 1, 0);
	r = r ? -errno : 0;
	numa_bitmask_free(one);
	return (int)r;
}

/* From all allowed nodes in turn, where there are several. */
static int interleave(void *at, uint64_t bytes)
{
	struct bitmask *allowed = numa_get_mems_allowed();
	long r = 0;

	if (numa_bitmask_weight(allowed) > 1)
		r = mbind(at, bytes, MPOL_INTERLEAVE, allowed->maskp, allowed->size + 1, 0);
	r = r ? -errno : 0;
	numa_bitmask_free(allowed);
	return (int)r;
}

/* --- the mapping --- */

static int map_memory(struct host_memory *m, const struct tier_conf *conf, char *text, size_t n)
{
	const int huge = conf->huge_pages == 2 ? MAP_HUGETLB | MAP_HUGE_2MB : 0;

	m->base = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | huge,
		       -1, 0);
	if (m->base == MAP_FAILED) {
		m->base = NULL;
		return text_fail(text, n, -errno, "[host] bytes: cannot map %" PRIu64 " bytes: %s",
				 m->bytes, strerror(errno));
	}
	/* For readers of /proc/PID/maps or smaps; a kernel without it is fine. */
	(void)prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, m->base, m->bytes, HOST_MEMORY_NAME);
	/* It holds prompts of all tenants, which do not belong in a file that a crash leaves
	 * behind. Such a file would also be very large. */
	if (madvise(m->base, m->bytes, MADV_DONTDUMP))
		return text_fail(text, n, -errno,
				 "[host] cannot keep the memory out of core dumps: %s",
				 strerror(errno));
	return 0;
}

/* Nodes that are named are taken strictly: memory that lies elsewhere would make a GPU slow, and
 * the operator could not tell why. */
static int check_node(const struct tier_node *node, char *text, size_t n)
{
	long long has;

	if (!numa_known())
		return text_fail(text, n, -ENOSYS,
				 "[host] bytes names NUMA node %" PRId32
				 ", but this kernel knows no nodes; leave the nodes out",
				 node->node);
	if (!is_allowed(NULL, node->node))
		return text_fail(
			text, n, -EINVAL,
			"[host] bytes: %" PRId32
			" is no NUMA node that this process may use (highest node: %" PRId32
			"); leave the nodes out to use all",
			node->node, numa_max_node());
	has = numa_node_size64(node->node, NULL); /* 0, -1: not known */
	if (has > 0 && node->bytes > (uint64_t)has)
		return text_fail(text, n, -ENOMEM,
				 "[host] bytes = %" PRIu64 "M of NUMA node %" PRId32
				 " is more than this node has, %lldM; give it less",
				 node->bytes >> 20, node->node, has >> 20);
	return 0;
}

/* Which slab is to be of which node. */
static int split_slabs(struct host_memory *m, const struct tier_conf *conf, char *text, size_t n)
{
	const uint64_t run = m->slab_bytes < RUN_BYTES ? RUN_BYTES / m->slab_bytes : 1;
	struct host_nodes gpus = { 0 };
	int err = 0;

	for (uint32_t i = 0; err == 0 && i < conf->n_nodes; i++)
		err = check_node(&conf->nodes[i], text, n);
	if (err)
		return err;
	m->strict = conf->n_nodes > 0;
	if (!m->strict && numa_known())
		host_nodes_read("/sys", is_allowed, NULL, &gpus);
	if (m->strict)
		host_nodes_by_conf(conf, &m->split);
	else
		host_nodes_by_gpus(&gpus, m->n_slabs, &m->split);
	host_nodes_lay_out(&m->split, (uint32_t)run, m->nodes);
	return 0;
}

/* Run after run of slabs of one node. */
static int place_runs(struct host_memory *m)
{
	int err = 0;

	for (uint32_t i = 0, end; !err && i < m->n_slabs; i = end) {
		for (end = i + 1; end < m->n_slabs && m->nodes[end] == m->nodes[i]; end++)
			;
		err = place(m->base + i * m->slab_bytes, (end - i) * m->slab_bytes,
			    m->split.node[m->nodes[i]], m->strict);
	}
	return err;
}

/* GPUs' nodes are a wish: where such a node has no memory left another one's is taken, and where
 * the kernel refuses it the memory is interleaved. */
static int set_policy(struct host_memory *m, char *text, size_t n)
{
	int err = m->split.n ? place_runs(m) : -ENOENT;

	if (err && m->strict)
		return text_fail(text, n, err,
				 "[host] bytes: memory cannot be bound to the NUMA nodes: %s",
				 strerror(-err));
	if (!err || !numa_known())
		return 0;
	m->split.n = 0;
	memset(m->nodes, 0, m->n_slabs);
	err = interleave(m->base, m->bytes);
	return err ? text_fail(text, n, err,
			       "[host] cannot interleave memory over the NUMA nodes: %s",
			       strerror(-err)) :
		     0;
}

/* A wish, not a condition: the note says where it has no effect. */
static void ask_for_huge_pages(struct host_memory *m)
{
	static const char path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
	FILE *f = fopen(path, "re");
	char line[128] = "";

	if (f) {
		if (!fgets(line, sizeof(line), f))
			line[0] = '\0';
		(void)fclose(f);
	}
	if (madvise(m->base, m->bytes, MADV_HUGEPAGE) || !line[0] || strstr(line, "[never]"))
		(void)snprintf(
			m->note, sizeof(m->note),
			"[host] huge_pages = thp has no effect here: write \"madvise\" to %s",
			path);
}

/* Locked as they are faulted in: one call that tells at once whether the limit suffices. */
static int lock_memory(struct host_memory *m, char *text, size_t n)
{
	struct rlimit limit;
	int err;

	if (!mlock2(m->base, m->bytes, MLOCK_ONFAULT))
		return 0;
	err = errno;
	if (getrlimit(RLIMIT_MEMLOCK, &limit))
		limit.rlim_cur = 0;
	return text_fail(
		text, n, -err,
		"[host] lock = yes needs %" PRIu64
		" bytes of locked memory, the limit (RLIMIT_MEMLOCK) is %" PRIu64
		": raise LimitMEMLOCK= in the unit (ulimit -l in a shell), or set [host] lock = no "
		"(%s)",
		m->bytes, (uint64_t)limit.rlim_cur, strerror(err));
}

/* --- faulting in --- */

static int fault_in(uint8_t *at, uint64_t n)
{
	while (madvise(at, n, MADV_POPULATE_WRITE)) {
		if (errno == EINTR)
			continue;
		if (errno != EINVAL)
			return -errno;
		for (uint64_t i = 0; i < n; i += PAGE) /* before Linux 5.14 */
			(void)__atomic_fetch_or(at + i, 0, __ATOMIC_RELAXED);
		return 0;
	}
	return 0;
}

static int fault_in_slab(struct host_memory *m, uint32_t slab)
{
	uint8_t *at = m->base + slab * m->slab_bytes, before = SLAB_COLD;
	int err = 0;

	for (uint64_t i = 0; !err && i < m->slab_bytes; i += PIECE_BYTES) {
		const uint64_t left = m->slab_bytes - i;

		if (atomic_load_explicit(&m->stop, memory_order_relaxed))
			return -ECANCELED;
		err = fault_in(at + i, left < PIECE_BYTES ? left : PIECE_BYTES);
	}
	if (!err && m->split.n) {
		int node = -1;

		(void)get_mempolicy(&node, NULL, 0, at, MPOL_F_NODE | MPOL_F_ADDR);
		atomic_fetch_add(&m->astray, node >= 0 && node != m->split.node[m->nodes[slab]]);
	}
	if (atomic_compare_exchange_strong(&m->states[slab], &before, err ? SLAB_LOST : SLAB_READY))
		atomic_fetch_add(&m->lost, err != 0);
	atomic_fetch_add(&m->done, 1);
	return err;
}

static void *prefault(void *arg)
{
	struct host_memory *m = arg;

	for (;;) {
		const uint32_t slab = atomic_fetch_add(&m->next, 1);

		if (slab >= m->n_slabs || fault_in_slab(m, slab) == -ECANCELED)
			return NULL;
	}
}

/* One for each CPU, and no more than there are slabs to fault in. */
static int start_threads(struct host_memory *m, char *text, size_t n)
{
	uint32_t count = thread_cpus();
	int err = 0;

	if (count > HOST_MAX_THREADS)
		count = HOST_MAX_THREADS;
	if (count > m->n_slabs - 1)
		count = m->n_slabs - 1;
	while (!err && m->n_threads < count) {
		err = thread_start(&m->threads[m->n_threads], 0, prefault, m);
		m->n_threads += !err;
	}
	return err ? text_fail(text, n, err,
			       "[host] cannot start %" PRIu32 " threads that touch the memory: %s",
			       count, strerror(-err)) :
		     0;
}

/* Whole slabs of each node; of no node in particular: of all together. */
static uint32_t slabs_of(const struct tier_conf *conf)
{
	uint64_t slabs = conf->n_nodes ? 0 : conf->bytes / conf->slab_bytes;

	for (uint32_t i = 0; i < conf->n_nodes; i++)
		slabs += conf->nodes[i].bytes / conf->slab_bytes;
	return (uint32_t)slabs;
}

static int make_tables(struct host_memory *m, const struct tier_conf *conf, char *text, size_t n)
{
	m->slab_bytes = conf->slab_bytes;
	m->n_slabs = slabs_of(conf);
	m->bytes = m->n_slabs * m->slab_bytes;
	m->states = calloc(m->n_slabs, sizeof(*m->states));
	m->nodes = calloc(m->n_slabs, sizeof(*m->nodes));
	if (!m->states || !m->nodes)
		return text_fail(text, n, -ENOMEM, "[host] no memory to start");
	return split_slabs(m, conf, text, n);
}

int host_memory_open(const struct tier_conf *given, struct host_memory **ret, char *text, size_t n)
{
	struct tier_conf own = *given, *conf = &own;
	struct host_limits limits;
	struct host_memory *m;
	int err;

	host_limits_read(&limits);
	if (own.bytes == TIER_BYTES_AUTO)
		own.bytes = host_limits_auto(conf, &limits);
	err = host_limits_check(conf, &limits, text, n);
	if (err)
		return err;
	m = calloc(1, sizeof(*m));
	if (!m)
		return text_fail(text, n, -ENOMEM, "[host] no memory to start");
	err = make_tables(m, conf, text, n);
	if (!err)
		err = map_memory(m, conf, text, n);
	if (!err)
		err = set_policy(m, text, n);
	if (!err && conf->huge_pages == 1)
		ask_for_huge_pages(m);
	if (!err && conf->lock)
		err = lock_memory(m, text, n);
	if (err)
		goto fail;
	atomic_store(&m->next, 1);
	err = fault_in_slab(m, 0);
	if (err)
		err = text_fail(text, n, err, "[host] bytes: no memory for the first slab: %s",
				strerror(-err));
	else
		err = start_threads(m, text, n);
	if (err)
		goto fail;
	*ret = m;
	return 0;
fail:
	host_memory_close(m);
	return err;
}

void host_memory_close(struct host_memory *m)
{
	if (!m)
		return;
	atomic_store(&m->stop, true);
	for (uint32_t i = 0; i < m->n_threads; i++)
		(void)pthread_join(m->threads[i], NULL);
	if (m->base)
		(void)munmap(m->base, m->bytes);
	free(m->nodes);
	free(m->states);
	free(m);
}

/* --- handing slabs out --- */

uint32_t host_memory_next(struct host_memory *m)
{
	while (m->handed_out < m->n_slabs) {
		const uint8_t state =
			atomic_load_explicit(&m->states[m->handed_out], memory_order_acquire);

		if (state == SLAB_COLD)
			break;
		m->handed_out++;
		if (state == SLAB_READY)
			return m->handed_out - 1;
	}
	return SLABS_NONE;
}

uint32_t host_memory_take_cold(struct host_memory *m)
{
	uint32_t ret;
	uint8_t cold;

	while ((ret = host_memory_next(m)) == SLABS_NONE && m->handed_out < m->n_slabs) {
		cold = SLAB_COLD;
		if (atomic_compare_exchange_strong(&m->states[m->handed_out], &cold, SLAB_TAKEN))
			return m->handed_out++;
	}
	return ret;
}
