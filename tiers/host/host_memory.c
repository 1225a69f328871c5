/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_memory.c - mapping, placement, locking and pre-faulting of the host tier's memory.
 *
 * The mapping is anonymous and private:
 * - Nobody else can have a descriptor of it and take a page away under a copy (SIGBUS).
 * - Nearly every kernel gives it transparent huge pages when asked. A memfd gets them only where
 *   shmem_enabled allows, and that is "never" nearly everywhere. Huge pages are worth having: a
 *   disk takes a request as a limited number of physically consecutive pieces (virtio: 254), and 1
 *   MiB in single 4 KiB pages is 256 pieces or more.
 * - Nothing here forks, so private pages are never copied on write.
 *
 * Its slabs are of the NUMA nodes asked for; else of the nodes of GPUs, where GPUs have one
 * (host_nodes.h); else pages are interleaved over all allowed nodes.
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
#include "host_limits.h"
#include "host_nodes.h"
#include "host_numa.h"
#include "tiers/slabs.h"
#include "daemon/base/thread.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

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
	/* faulted in between two looks at `stop`: close waits a few ms */
	PIECE_BYTES = 16 << 20,
	/* of one node, before another one's: not smaller, as each is a mapping of its own to the
	 * kernel, which has a limit on them (vm.max_map_count) */
	RUN_BYTES = 1 << 30,
};

enum slab_state { SLAB_COLD, SLAB_READY, SLAB_LOST, SLAB_TAKEN };

struct host_memory {
	uint8_t *base;
	uint64_t bytes, slab_bytes;
	uint32_t n_slabs;
	struct host_shares shares; /* n 0: of any node */
	bool strict;               /* of the nodes in shares and no others */
	uint8_t *nodes;            /* by slab: index in shares */
	char note[160];
	_Atomic uint8_t *states; /* enum slab_state, one a slab */
	atomic_uint next;        /* slab that the next free thread takes */
	atomic_bool stop;
	/* core: slabs with lower numbers were given by host_memory_next() */
	uint32_t handed_out;
	atomic_uint done, lost; /* slabs no longer cold; of them, lost */
	atomic_uint astray;     /* of them, with a first page of another node */
	uint32_t n_threads;
	pthread_t threads[HOST_MAX_THREADS];
};

/* The failed action goes into text, with the system's reason; returns -err. */
__attribute__((format(printf, 4, 5))) static int failed(int err, char *text, size_t n,
							const char *format, ...)
{
	va_list args;
	int used;

	va_start(args, format);
	used = vsnprintf(text, n, format, args);
	va_end(args);
	if (used >= 0 && (size_t)used < n)
		(void)snprintf(text + used, n - (size_t)used, ": %s", strerror(err));
	return -err;
}

static int map_memory(struct host_memory *m, const struct tier_conf *conf, char *text, size_t n)
{
	const int huge = conf->huge_pages == 2 ? MAP_HUGETLB | MAP_HUGE_2MB : 0;

	m->base = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | huge,
		       -1, 0);
	if (m->base == MAP_FAILED) {
		m->base = NULL;
		return failed(errno, text, n, "[host] bytes: cannot map %" PRIu64 " bytes",
			      m->bytes);
	}
	/* For readers of /proc/PID/maps or smaps; a kernel without it is fine. */
	(void)prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, m->base, m->bytes, HOST_MEMORY_NAME);
	/* Prompts of all tenants: not for a file that a crash leaves behind, nor is that to be of
	 * this size. */
	if (madvise(m->base, m->bytes, MADV_DONTDUMP))
		return failed(errno, text, n, "[host] cannot keep the memory out of core dumps");
	return 0;
}

/* Strict where nodes are named: memory that lies elsewhere is a slow GPU that nobody can
 * explain. */
static int check_node(const struct tier_node *node, char *text, size_t n)
{
	const uint64_t has = host_numa_known() ? host_numa_bytes(node->node) : 0;

	if (!host_numa_known())
		return failed(ENOSYS, text, n,
			      "[host] bytes names NUMA node %" PRId32
			      ", but this kernel knows no nodes; leave the nodes out",
			      node->node);
	if (!host_numa_allowed(NULL, node->node))
		return failed(EINVAL, text, n,
			      "[host] bytes: %" PRId32
			      " is no NUMA node that this process may use (highest node: %" PRId32
			      "); leave the nodes out to use all",
			      node->node, host_numa_highest());
	if (has > 0 && node->bytes > has)
		return failed(ENOMEM, text, n,
			      "[host] bytes = %" PRIu64 "M of NUMA node %" PRId32
			      " is more than this node has, %" PRIu64 "M; give it less",
			      node->bytes >> 20, node->node, has >> 20);
	return 0;
}

/* Which slab is to be of which node. */
static int share_out(struct host_memory *m, const struct tier_conf *conf, char *text, size_t n)
{
	const uint64_t run = m->slab_bytes < RUN_BYTES ? RUN_BYTES / m->slab_bytes : 1;
	struct host_nodes gpus = { 0 };
	int err = 0;

	for (uint32_t i = 0; err == 0 && i < conf->n_nodes; i++)
		err = check_node(&conf->nodes[i], text, n);
	if (err)
		return err;
	m->strict = conf->n_nodes > 0;
	if (!m->strict && host_numa_known())
		host_nodes_read("/sys", host_numa_allowed, NULL, &gpus);
	if (m->strict)
		host_nodes_by_conf(conf, &m->shares);
	else
		host_nodes_by_gpus(&gpus, m->n_slabs, &m->shares);
	host_nodes_lay_out(&m->shares, (uint32_t)run, m->nodes);
	return 0;
}

/* Run after run of slabs of one node. */
static int place_runs(struct host_memory *m)
{
	int err = 0;

	for (uint32_t i = 0, end; !err && i < m->n_slabs; i = end) {
		for (end = i + 1; end < m->n_slabs && m->nodes[end] == m->nodes[i]; end++)
			;
		err = host_numa_place(m->base + i * m->slab_bytes, (end - i) * m->slab_bytes,
				      m->shares.node[m->nodes[i]], m->strict);
	}
	return err;
}

/* GPUs' nodes are a wish: where such a node has no memory left another one's is taken, and where
 * the kernel refuses it the memory is interleaved. */
static int set_policy(struct host_memory *m, char *text, size_t n)
{
	int err = m->shares.n ? place_runs(m) : -ENOENT;

	if (err && m->strict)
		return failed(-err, text, n,
			      "[host] bytes: memory cannot be bound to the NUMA nodes");
	if (!err || !host_numa_known())
		return 0;
	m->shares.n = 0;
	memset(m->nodes, 0, m->n_slabs);
	err = host_numa_interleave(m->base, m->bytes);
	return err ? failed(-err, text, n, "[host] cannot interleave memory over the NUMA nodes") :
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
	return failed(
		err, text, n,
		"[host] lock = yes needs %" PRIu64
		" bytes of locked memory, the limit (RLIMIT_MEMLOCK) is %" PRIu64
		": raise LimitMEMLOCK= in the unit (ulimit -l in a shell), or set [host] lock = no",
		m->bytes, (uint64_t)limit.rlim_cur);
}

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
	if (!err && m->shares.n) {
		const int32_t node = host_numa_of(at);

		atomic_fetch_add(&m->astray, node >= 0 && node != m->shares.node[m->nodes[slab]]);
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

static uint32_t thread_count(const struct tier_conf *conf, uint32_t cold_slabs)
{
	uint32_t ret = conf->prefault_threads;
	cpu_set_t cpus;

	if (ret == 0) {
		ret = sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : (uint32_t)CPU_COUNT(&cpus);
		if (ret > HOST_DEFAULT_THREADS)
			ret = HOST_DEFAULT_THREADS;
	}
	return ret < cold_slabs ? ret : cold_slabs;
}

static int start_threads(struct host_memory *m, uint32_t count, char *text, size_t n)
{
	int err = 0;

	while (!err && m->n_threads < count) {
		err = -thread_start(&m->threads[m->n_threads], 0, prefault, m);
		m->n_threads += !err;
	}
	return err ? failed(err, text, n, "[host] cannot start %" PRIu32 " prefault_threads",
			    count) :
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
		return failed(ENOMEM, text, n, "[host] no memory to start");
	return share_out(m, conf, text, n);
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
		return failed(ENOMEM, text, n, "[host] no memory to start");
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
		err = failed(-err, text, n, "[host] bytes: no memory for the first slab");
	else
		err = start_threads(m, thread_count(conf, m->n_slabs - 1), text, n);
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

uint8_t *host_memory_base(const struct host_memory *m)
{
	return m->base;
}

uint32_t host_memory_slabs(const struct host_memory *m)
{
	return m->n_slabs;
}

uint32_t host_memory_node_count(const struct host_memory *m)
{
	return m->shares.n;
}

int32_t host_memory_node(const struct host_memory *m, uint32_t at)
{
	return at < m->shares.n ? m->shares.node[at] : -1;
}

const uint8_t *host_memory_nodes(const struct host_memory *m)
{
	return m->nodes;
}

uint32_t host_memory_astray(const struct host_memory *m)
{
	return atomic_load(&m->astray);
}

const char *host_memory_note(const struct host_memory *m)
{
	return m->note;
}

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

uint32_t host_memory_handed_out(const struct host_memory *m)
{
	return m->handed_out;
}

bool host_memory_is_lost(const struct host_memory *m, uint32_t slab)
{
	return atomic_load(&m->states[slab]) == SLAB_LOST;
}

bool host_memory_settled(const struct host_memory *m)
{
	return atomic_load(&m->done) == m->n_slabs;
}

uint32_t host_memory_lost(const struct host_memory *m)
{
	return atomic_load(&m->lost);
}
