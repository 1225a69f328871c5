/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_book.h - which image lies in which slot of a GPU's memory, in a memfd that outlives the
 * process: for the next kvtierd, which maps the same memory again. Core thread only.
 *
 *	header (4 KiB) | slot size of each slab | entries [slab][slot]
 *
 * The writer changes an entry in place: it is cleared before its slot is another image's, and set
 * after the slot is a copy. A process that dies in between leaves an entry that is torn, or too
 * many: the reader trusts none. Bytes that are read back are copied once and checked: the shape,
 * seals that forbid another size, a CRC of each entry with its place. Even so an entry only names
 * an image to compare with: nothing is served before the bytes themselves had the checksum of the
 * block's sealed image (daemon/IMAGE.md, "Memory that outlives the daemon").
 */
#ifndef KVTIER_GPU_BOOK_H
#define KVTIER_GPU_BOOK_H

#include <stdbool.h>
#include <stdint.h>

struct gpu_book;

/* The subject of a book: another GPU, driver, size or format is another book. */
struct gpu_book_shape {
	uint8_t gpu[16]; /* its UUID */
	uint32_t driver; /* the CUDA driver's version */
	uint64_t slab_bytes, bytes;
};

struct gpu_book_entry {
	uint8_t owner[32]; /* of the block's space: space.h */
	uint8_t key[32];
	uint32_t image_bytes;
};

/* A new one, empty, and its memfd, which is the book's. -ENOMEM, -EMFILE... */
int gpu_book_make(const struct gpu_book_shape *shape, struct gpu_book **ret);
/* A book that another process made, of this shape; shape->bytes 0: of any size, which is set then.
 * -EINVAL: it is no such book. fd is the book's on success. */
int gpu_book_open(int fd, struct gpu_book_shape *shape, struct gpu_book **ret);
void gpu_book_close(struct gpu_book *book); /* NULL is fine. Its entries stay */
int gpu_book_fd(const struct gpu_book *book);

/* slab, slot: as in an extent of slabs.h, where a slot of that slab has slot_bytes. */
void gpu_book_set(struct gpu_book *book, uint32_t slab, uint32_t slot, uint32_t slot_bytes,
		  const struct gpu_book_entry *entry);
void gpu_book_clear(struct gpu_book *book, uint32_t slab, uint32_t slot);
/* The book's words on this slab: the size of its slots, a multiple of 4096 that fits a slab, and
 * how many there are at most; 0: nothing lies there. */
uint32_t gpu_book_slab(const struct gpu_book *book, uint32_t slab, uint32_t *ret_slots);
/* The entry of a slot, if there is a whole one whose image fits. */
bool gpu_book_get(const struct gpu_book *book, uint32_t slab, uint32_t slot,
		  struct gpu_book_entry *ret);
uint32_t gpu_book_slabs(const struct gpu_book *book);

#endif
