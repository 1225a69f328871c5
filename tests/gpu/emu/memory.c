/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - the memory of GPUs, and the map of addresses of this process.
 *
 * M1. A device address lies in one window of the address space that the CPU cannot touch: it is
 *     reserved with PROT_NONE, once, and never made accessible.
 * M2. The bytes are in a memfd, which is mapped a second time (the alias). Only the executor and
 *     the calls use the alias; a program does not know where it is.
 * M3. No two ranges of the map overlap. An address is good for an operation when all its bytes are
 *     in one range, the range may be accessed so, and it belongs to the operation's GPU or to the
 *     host.
 * M4. Between two pieces of memory there is a gap of at least one granule, so that an access beyond
 *     the end of one piece meets nothing.
 *
 * The map changes under emu.lock and map_lock; it is read under either.
 */
#include <sys/stat.h>
#include <sys/syscall.h>

#include "emu.h"

#define WINDOW_BYTES (64ULL << 30)
enum { FRESH_BYTES = 4 << 20, SPANS = 4096 };

static struct range **map;
static uint32_t n_map, max_map;
static _Atomic uint64_t map_version = 1;

static uint64_t window, window_next;
static struct span {
	uint64_t base, bytes;
} spans[SPANS]; /* given back */
static uint32_t n_spans;

/* --- addresses --- */

static uint64_t round_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* By hand, not by mmap(): a sanitizer would write its shadow of 64 GiB. */
static bool window_open(void)
{
	const long r = syscall(SYS_mmap, NULL, WINDOW_BYTES, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (r == -1)
		return false;
	window = (uint64_t)r;
	window_next = round_up(window, EMU_GRANULE);
	return true;
}

bool address_of_device(uint64_t address)
{
	return window && address >= window && address < window + WINDOW_BYTES;
}

CUdeviceptr address_take(size_t bytes, size_t alignment)
{
	const uint64_t need = round_up(bytes, EMU_GRANULE);
	const uint64_t unit = alignment > EMU_GRANULE ? alignment : EMU_GRANULE;
	uint64_t base;

	if (!window && !window_open())
		return 0;
	for (uint32_t i = n_spans; emu.settings.reuse && i-- > 0;)
		if (spans[i].bytes == need && spans[i].base % unit == 0) {
			base = spans[i].base;
			spans[i] = spans[--n_spans];
			return base;
		}
	base = round_up(window_next, unit);
	if (base + need + 8 * EMU_GRANULE > window + WINDOW_BYTES)
		return 0;
	window_next = base + need + (1 + draw(&emu.random) % 4) * EMU_GRANULE;
	return base;
}

void address_give(CUdeviceptr base, size_t bytes)
{
	if (n_spans < SPANS)
		spans[n_spans++] = (struct span){ base, round_up(bytes, EMU_GRANULE) };
}

/* --- physical memory --- */

static struct physical *physical_map(struct device *gpu, int fd, size_t bytes,
				     uint32_t handle_types)
{
	struct physical *p = calloc(1, sizeof(*p));
	struct stat status;

	if (!p || fstat(fd, &status) || (uint64_t)status.st_size < bytes)
		goto fail;
	*p = (struct physical){ .fd = -1,
				.inode = status.st_ino,
				.bytes = bytes,
				.gpu = gpu,
				.handle_types = handle_types,
				.refs = 1 };
	p->alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p->alias == MAP_FAILED)
		goto fail;
	if (hbm_take(gpu->physical, p->inode, bytes, &p->row))
		return p;
	munmap(p->alias, bytes);
fail:
	free(p);
	return NULL;
}

/* With keeps=1: the bytes of the memory that was freed last, for the memory that comes next. */
static struct {
	uint8_t *bytes;
	size_t n;
} kept;

static void keep(const struct physical *p)
{
	const size_t n = p->bytes < FRESH_BYTES ? p->bytes : FRESH_BYTES;

	free(kept.bytes);
	kept.bytes = malloc(n);
	kept.n = kept.bytes ? n : 0;
	if (kept.n)
		memcpy(kept.bytes, p->alias, n);
}

/* Fresh memory holds somebody's old bytes. */
static void make_dirty(uint8_t *at, size_t bytes)
{
	const uint64_t word = draw(&emu.random) | 0x8000800080008000;

	if (bytes > FRESH_BYTES)
		bytes = FRESH_BYTES;
	/* All of it is written now: one call is cheaper than a fault for each page. */
	(void)madvise(at, bytes, MADV_POPULATE_WRITE);
	if (kept.n) {
		memcpy(at, kept.bytes, bytes < kept.n ? bytes : kept.n);
		return;
	}
	for (size_t i = 0; i + 8 <= bytes; i += 8)
		memcpy(at + i, &word, 8);
}

struct physical *physical_make(struct device *gpu, size_t bytes, uint32_t handle_types)
{
	struct physical *p;
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "kvtier-emu:%u:%u", gpu->physical, handle_types);
	fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0)
		return NULL;
	p = ftruncate(fd, (off_t)bytes) ? NULL : physical_map(gpu, fd, bytes, handle_types);
	if (!p) {
		close(fd);
		return NULL;
	}
	p->fd = fd;
	make_dirty(p->alias, bytes);
	return p;
}

struct physical *physical_open(struct device *gpu, int fd, size_t bytes, uint32_t handle_types)
{
	return physical_map(gpu, fd, bytes, handle_types);
}

void physical_release(struct physical *memory)
{
	if (--memory->refs)
		return;
	if (emu.settings.keeps && memory->fd >= 0)
		keep(memory);
	munmap(memory->alias, memory->bytes);
	if (memory->fd >= 0)
		close(memory->fd);
	hbm_give(memory->row);
	free(memory);
}

/* Operations go over the border of two mappings that lie side by side. So the aliases of a
 * reservation lie side by side, too. */
uint8_t *alias_reserve(size_t bytes)
{
	const long r = syscall(SYS_mmap, NULL, bytes, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return r == -1 ? NULL : (uint8_t *)r;
}

void alias_free(uint8_t *alias, size_t bytes)
{
	(void)syscall(SYS_munmap, alias, bytes);
}

/* An old size of 0 makes a second mapping of shared memory. */
bool physical_map_at(const struct physical *memory, uint8_t *alias, size_t bytes)
{
	return syscall(SYS_mremap, memory->alias, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, alias) !=
	       -1;
}

static void physical_unmap_at(uint8_t *alias, size_t bytes)
{
	(void)syscall(SYS_mmap, alias, bytes, PROT_NONE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* --- the map --- */

/* The first range that ends behind the address. */
static uint32_t search(CUdeviceptr address)
{
	uint32_t low = 0, high = n_map;

	while (low < high) {
		const uint32_t middle = (low + high) / 2;

		if (map[middle]->base + map[middle]->bytes > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

struct range *range_add(const struct range *range)
{
	static uint64_t ids;
	struct range *r = malloc(sizeof(*r)), **grown;
	uint32_t at;

	if (!r)
		return NULL;
	*r = *range;
	r->id = ++ids;
	pthread_rwlock_wrlock(&emu.map_lock);
	if (n_map == max_map) {
		grown = realloc(map, (max_map * 2 + 64) * sizeof(*map));
		if (!grown) {
			pthread_rwlock_unlock(&emu.map_lock);
			free(r);
			return NULL;
		}
		map = grown;
		max_map = max_map * 2 + 64;
	}
	at = search(r->base);
	memmove(map + at + 1, map + at, (n_map++ - at) * sizeof(*map));
	map[at] = r;
	map_version++;
	pthread_rwlock_unlock(&emu.map_lock);
	return r;
}

struct range *range_add_own(struct range *range)
{
	const size_t bytes = range->bytes;
	struct range *added;

	range->alias =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (range->alias == MAP_FAILED)
		return NULL;
	range->base = (CUdeviceptr)range->alias;
	added = range_add(range);
	if (!added)
		munmap(range->alias, bytes);
	return added;
}

CUresult range_add_device(struct range *range, CUdeviceptr *ret)
{
	if (!range->memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	range->alias = range->memory->alias;
	*ret = range->base = address_take(range->bytes, 0);
	if (range->base && range_add(range))
		return CUDA_SUCCESS;
	physical_release(range->memory);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

void range_remove(struct range *range)
{
	uint32_t at;

	pthread_rwlock_wrlock(&emu.map_lock);
	at = search(range->base);
	memmove(map + at, map + at + 1, (--n_map - at) * sizeof(*map));
	map_version++;
	pthread_rwlock_unlock(&emu.map_lock);
	free(range);
}

struct range *range_at(CUdeviceptr address)
{
	const uint32_t at = search(address);

	return at < n_map && map[at]->base <= address ? map[at] : NULL;
}

struct range *range_overlapping(CUdeviceptr base, size_t bytes)
{
	const uint32_t at = search(base);

	return at < n_map && map[at]->base < base + bytes ? map[at] : NULL;
}

struct range *range_next(uint32_t *at)
{
	return *at < n_map ? map[(*at)++] : NULL;
}

bool range_is_host(const struct range *range)
{
	return range->kind == RANGE_PINNED || range->kind == RANGE_REGISTERED;
}

void range_settle(struct range *range, const char *who)
{
	const unsigned n = streams_using(range);

	if (!n)
		return;
	violation("%s: %u queued operations still use the memory at %#llx", who, n, range->base);
	while (streams_using(range))
		pthread_cond_wait(&emu.changed, &emu.lock);
}

void range_drop(struct range *range)
{
	const struct range r = *range;

	range_remove(range);
	switch (r.kind) {
	case RANGE_ALLOC:
	case RANGE_POOL:
	case RANGE_IMPORT:
		address_give(r.base, r.bytes);
		physical_release(r.memory);
		break;
	case RANGE_VMM:
		physical_unmap_at(r.alias, r.bytes);
		physical_release(r.memory);
		break;
	case RANGE_PINNED:
	case RANGE_MANAGED:
		munmap((void *)r.base, round_up(r.bytes, 4096));
		break;
	case RANGE_REGISTERED:
		break;
	}
}

/* --- memory that an operation may touch --- */

static const struct range *range_behind(const struct range *r)
{
	const struct range *next = range_at(r->base + r->bytes);

	return next && next->base == r->base + r->bytes && r->kind == RANGE_VMM &&
			       next->kind == RANGE_VMM && next->reserved == r->reserved ?
		       next :
		       NULL;
}

size_t range_reach(const struct range *range, CUdeviceptr address)
{
	const struct range *r = range, *next;

	while ((next = range_behind(r)) != NULL)
		r = next;
	return r->base + r->bytes - address;
}

static bool may(const struct range *r, const struct device *gpu, CUdeviceptr address, size_t bytes,
		bool write, char *text, size_t n)
{
	const char *why = NULL;

	if (r->gpu && r->gpu != gpu && r->peer != gpu)
		why = "is of another GPU";
	else if (!(r->access & (write ? 2u : 1u)))
		why = "may not be accessed so";
	else if (bytes > r->base + r->bytes - address && !range_behind(r))
		why = "runs over its end";
	else if (bytes > r->base + r->bytes - address)
		return may(range_behind(r), gpu, r->base + r->bytes,
			   bytes - (r->base + r->bytes - address), write, text, n);
	if (why)
		snprintf(text, n, "%s of %zu bytes at %#llx: the memory [%#llx, %#llx) %s",
			 write ? "a write" : "a read", bytes, address, r->base, r->base + r->bytes,
			 why);
	return !why;
}

uint8_t *translate(const struct device *gpu, CUdeviceptr address, size_t bytes, bool write,
		   char *text, size_t n)
{
	static _Thread_local const struct range *last;
	static _Thread_local uint64_t last_version;
	const struct range *r = last;

	if (last_version != map_version || address < r->base || address - r->base >= r->bytes) {
		r = range_at(address);
		if (!r) {
			snprintf(text, n, "%s of %zu bytes at %#llx: there is no memory",
				 write ? "a write" : "a read", bytes, address);
			return NULL;
		}
		last = r;
		last_version = map_version;
	}
	return may(r, gpu, address, bytes, write, text, n) ? r->alias + (address - r->base) : NULL;
}
