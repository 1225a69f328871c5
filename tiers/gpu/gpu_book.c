/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_book.c - see gpu_book.h. */
#include "gpu_book.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/image.h"
#include "tiers/tier.h"

enum {
	PAGE = 4096,
	MAGIC = 0x424b564b, /* "KVKB" */
	VERSION = 1,
	SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW,
};

struct book_head {
	uint32_t magic, version;
	uint8_t gpu[16];
	uint32_t driver, n_slabs;
	uint64_t slab_bytes, bytes;
	uint32_t slots; /* entries a slab */
	uint32_t crc;   /* of the fields before it */
};

struct row {
	struct gpu_book_entry entry;
	uint32_t crc; /* of slab, slot, slot size, entry; 0: nothing */
};

struct gpu_book {
	int fd;
	uint32_t n_slabs, slots;
	uint64_t slab_bytes;
	uint8_t *base;
	uint64_t mapped;
	uint32_t *slot_bytes; /* in it, by slab */
	struct row *rows;     /* in it */
};

static uint64_t pages(uint64_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* False: no book can be of this. */
static bool head_of(const struct gpu_book_shape *shape, struct book_head *ret)
{
	const uint64_t slots = shape->slab_bytes / PAGE;

	if (shape->slab_bytes == 0 || shape->slab_bytes % PAGE || shape->bytes == 0 ||
	    shape->bytes % shape->slab_bytes || shape->bytes / shape->slab_bytes > TIER_MAX_SLABS)
		return false;
	memset(ret, 0, sizeof(*ret));
	ret->magic = MAGIC;
	ret->version = VERSION;
	memcpy(ret->gpu, shape->gpu, sizeof(ret->gpu));
	ret->driver = shape->driver;
	ret->n_slabs = (uint32_t)(shape->bytes / shape->slab_bytes);
	ret->slab_bytes = shape->slab_bytes;
	ret->bytes = shape->bytes;
	ret->slots = slots < TIER_MAX_SLAB_SLOTS ? (uint32_t)slots : TIER_MAX_SLAB_SLOTS;
	ret->crc = image_crc32c(ret, offsetof(struct book_head, crc));
	return true;
}

static uint64_t book_bytes(const struct book_head *h)
{
	return PAGE + pages((uint64_t)h->n_slabs * sizeof(uint32_t)) +
	       pages((uint64_t)h->n_slabs * h->slots * sizeof(struct row));
}

/* Takes the descriptor. */
static int map(int fd, const struct book_head *h, struct gpu_book **ret)
{
	struct gpu_book *b = calloc(1, sizeof(*b));
	void *at;

	if (!b)
		return -ENOMEM;
	at = mmap(NULL, book_bytes(h), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		free(b);
		return -ENOMEM;
	}
	b->fd = fd;
	b->n_slabs = h->n_slabs;
	b->slots = h->slots;
	b->slab_bytes = h->slab_bytes;
	b->base = at;
	b->mapped = book_bytes(h);
	b->slot_bytes = (uint32_t *)(void *)(b->base + PAGE);
	b->rows = (struct row *)(void *)(b->base + PAGE +
					 pages((uint64_t)h->n_slabs * sizeof(uint32_t)));
	*ret = b;
	return 0;
}

int gpu_book_make(const struct gpu_book_shape *shape, struct gpu_book **ret)
{
	struct book_head h;
	int fd, r = 0;

	if (!head_of(shape, &h))
		return -EINVAL;
	fd = memfd_create("kvtier-gpu-book", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)book_bytes(&h)) ||
	    pwrite(fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h) || fcntl(fd, F_ADD_SEALS, SEALS))
		r = -errno;
	if (r == 0)
		r = map(fd, &h, ret);
	if (r)
		(void)close(fd);
	return r;
}

int gpu_book_open(int fd, struct gpu_book_shape *shape, struct gpu_book **ret)
{
	struct gpu_book_shape found = *shape;
	struct book_head h, wanted;
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || (seals & SEALS) != SEALS || seals & F_SEAL_WRITE || fstat(fd, &st) ||
	    pread(fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h))
		return -EINVAL;
	if (found.bytes == 0)
		found.bytes = h.bytes;
	if (!head_of(&found, &wanted) || memcmp(&h, &wanted, sizeof(h)) != 0 ||
	    (uint64_t)st.st_size != book_bytes(&wanted))
		return -EINVAL;
	*shape = found;
	return map(fd, &wanted, ret);
}

void gpu_book_close(struct gpu_book *b)
{
	if (!b)
		return;
	(void)munmap(b->base, b->mapped);
	(void)close(b->fd);
	free(b);
}

int gpu_book_fd(const struct gpu_book *b)
{
	return b->fd;
}

static struct row *row_at(const struct gpu_book *b, uint32_t slab, uint32_t slot)
{
	return slab < b->n_slabs && slot < b->slots ? &b->rows[(uint64_t)slab * b->slots + slot] :
						      NULL;
}

/* Never 0. */
static uint32_t crc_of(uint32_t slab, uint32_t slot, uint32_t slot_bytes,
		       const struct gpu_book_entry *entry)
{
	struct {
		uint32_t slab, slot, slot_bytes;
		struct gpu_book_entry entry;
	} all = { slab, slot, slot_bytes, *entry };
	const uint32_t crc = image_crc32c(&all, sizeof(all));

	return crc ? crc : 1;
}

void gpu_book_set(struct gpu_book *b, uint32_t slab, uint32_t slot, uint32_t slot_bytes,
		  const struct gpu_book_entry *entry)
{
	struct row *row = row_at(b, slab, slot);

	if (!row)
		return;
	b->slot_bytes[slab] = slot_bytes;
	row->entry = *entry;
	__atomic_store_n(&row->crc, crc_of(slab, slot, slot_bytes, entry), __ATOMIC_RELEASE);
}

/* A row that was never set stays a hole of the file. */
void gpu_book_clear(struct gpu_book *b, uint32_t slab, uint32_t slot)
{
	struct row *row = row_at(b, slab, slot);

	if (row && b->slot_bytes[slab] != 0)
		__atomic_store_n(&row->crc, 0, __ATOMIC_RELEASE);
}

uint32_t gpu_book_slab(const struct gpu_book *b, uint32_t slab, uint32_t *ret_slots)
{
	uint32_t bytes, slots;

	if (slab >= b->n_slabs)
		return 0;
	bytes = __atomic_load_n(&b->slot_bytes[slab], __ATOMIC_RELAXED);
	if (bytes == 0 || bytes % PAGE || bytes > b->slab_bytes)
		return 0;
	slots = (uint32_t)(b->slab_bytes / bytes);
	*ret_slots = slots < b->slots ? slots : b->slots;
	return bytes;
}

bool gpu_book_get(const struct gpu_book *b, uint32_t slab, uint32_t slot,
		  struct gpu_book_entry *ret)
{
	const struct row *row = row_at(b, slab, slot);
	uint32_t slots = 0;
	const uint32_t slot_bytes = gpu_book_slab(b, slab, &slots);
	struct row copy;

	if (!row || slot >= slots)
		return false;
	copy = *row;
	if (copy.crc == 0 || copy.crc != crc_of(slab, slot, slot_bytes, &copy.entry) ||
	    copy.entry.image_bytes == 0 || copy.entry.image_bytes > slot_bytes)
		return false;
	*ret = copy.entry;
	return true;
}

uint32_t gpu_book_slabs(const struct gpu_book *b)
{
	return b->n_slabs;
}
