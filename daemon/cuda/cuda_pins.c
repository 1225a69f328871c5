/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_pins.c - see cuda_pins.h. */
#include "cuda_pins.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cuda_load.h"
#include "daemon/base/container_of.h"
#include "tiers/slabs.h"

enum {
	PAGE = 4096,
	LOOK_PAGES = 4096,
	/* a piece's state; else its owner's number + 1 */
	PIECE_FREE = 0,
	PIECE_TAKEN = 0xff,
};
static_assert((int)CUDA_GPUS_MAX < (int)PIECE_TAKEN, "owners");

struct pins_gpu {
	void (*news)(void *arg); /* the lock */
	void *arg;
	atomic_bool open, broken;
	_Atomic uint64_t bytes; /* registered in its context */
	/* of this GPU's thread, on pieces of each owner */
	atomic_uint holds[CUDA_GPUS_MAX];
};

struct cuda_pins {
	uint8_t *base;
	uint64_t bytes, piece_bytes;
	uint32_t n_pieces, n_gpus;
	atomic_uint refs;
	atomic_bool stopping;
	pthread_mutex_t lock; /* guards news. News may take their own lock while it is held */
	struct pins_gpu gpus[CUDA_GPUS_MAX];
	_Atomic uint8_t *pieces;
};

/* --- open and close --- */

struct hearing {
	struct tier_ready listener;
	uint8_t *base;
	uint64_t bytes;
};

/* In order, one behind the other. */
static void hear(struct tier_ready *listener, void *base, uint64_t bytes)
{
	struct hearing *h = container_of(listener, struct hearing, listener);

	if (!h->base)
		h->base = base;
	assert(h->base + h->bytes == (uint8_t *)base);
	h->bytes += bytes;
}

int cuda_pins_open(struct tier *host, uint64_t piece_bytes, struct cuda_pins **ret)
{
	struct hearing h = { .listener = { .ready = hear, .mapped = true } };
	const uint64_t slab = slabs_slab_bytes(tier_slabs(host));
	struct cuda_pins *pins = calloc(1, sizeof(*pins));

	if (!pins)
		return -ENOMEM;
	tier_listen(host, &h.listener);
	tier_unlisten(host, &h.listener);
	pins->base = h.base;
	pins->bytes = h.bytes;
	pins->piece_bytes = piece_bytes < slab ? slab : piece_bytes / slab * slab;
	pins->n_pieces = (uint32_t)((h.bytes + pins->piece_bytes - 1) / pins->piece_bytes);
	atomic_init(&pins->refs, 1);
	(void)pthread_mutex_init(&pins->lock, NULL);
	pins->pieces = calloc(pins->n_pieces + 1, sizeof(*pins->pieces));
	if (!pins->pieces) {
		cuda_pins_close(pins);
		return -ENOMEM;
	}
	*ret = pins;
	return 0;
}

void cuda_pins_refer(struct cuda_pins *pins)
{
	atomic_fetch_add(&pins->refs, 1);
}

void cuda_pins_close(struct cuda_pins *pins)
{
	if (!pins || atomic_fetch_sub(&pins->refs, 1) > 1)
		return;
	(void)pthread_mutex_destroy(&pins->lock);
	free(pins->pieces);
	free(pins);
}

uint32_t cuda_pins_add(struct cuda_pins *pins, void (*news)(void *arg), void *arg)
{
	const uint32_t gpu = pins->n_gpus++;

	assert(gpu < CUDA_GPUS_MAX);
	pins->gpus[gpu].news = news;
	pins->gpus[gpu].arg = arg;
	return gpu;
}

void cuda_pins_remove(struct cuda_pins *pins, uint32_t gpu)
{
	(void)pthread_mutex_lock(&pins->lock);
	pins->gpus[gpu].news = NULL;
	(void)pthread_mutex_unlock(&pins->lock);
}

void cuda_pins_stop(struct cuda_pins *pins)
{
	atomic_store(&pins->stopping, true);
}

/* --- copies --- */

static uint8_t owner_of(uint32_t gpu)
{
	return (uint8_t)(gpu + 1);
}

uint32_t cuda_pins_hold(struct cuda_pins *pins, uint32_t gpu, const uint8_t *at, uint32_t bytes)
{
	const uint64_t offset = (uint64_t)(uintptr_t)at - (uint64_t)(uintptr_t)pins->base;
	uint64_t piece;
	uint8_t owner;

	if (bytes == 0 || offset >= pins->bytes || bytes > pins->bytes - offset)
		return 0; /* not of the tier */
	piece = offset / pins->piece_bytes;
	if ((offset + bytes - 1) / pins->piece_bytes != piece)
		return 0;
	owner = atomic_load(&pins->pieces[piece]);
	if (owner == PIECE_FREE || owner == PIECE_TAKEN)
		return 0;
	atomic_fetch_add(&pins->gpus[gpu].holds[owner - 1], 1);
	if (atomic_load(&pins->gpus[owner - 1].open) && atomic_load(&pins->pieces[piece]) == owner)
		return owner;
	cuda_pins_drop(pins, gpu, owner);
	return 0;
}

void cuda_pins_drop(struct cuda_pins *pins, uint32_t gpu, uint32_t hold)
{
	const unsigned before = atomic_fetch_sub(&pins->gpus[gpu].holds[hold - 1], 1);

	assert(before > 0);
}

/* --- owners --- */

uint32_t cuda_pins_pieces(const struct cuda_pins *pins)
{
	return pins->n_pieces;
}

uint8_t *cuda_pins_at(const struct cuda_pins *pins, uint32_t piece, uint64_t *ret_bytes)
{
	const uint64_t at = piece * pins->piece_bytes, left = pins->bytes - at;

	*ret_bytes = left < pins->piece_bytes ? left : pins->piece_bytes;
	return pins->base + at;
}

/* Pages [at, at + bytes), LOOK_PAGES at most, are there. Where nobody can say: yes. */
static bool there(uint8_t *at, uint64_t bytes)
{
	unsigned char pages[LOOK_PAGES];

	if (mincore(at, bytes, pages))
		return true;
	for (uint64_t i = 0; i < bytes / PAGE; i++)
		if (!(pages[i] & 1))
			return false;
	return true;
}

/* The last page is faulted in last: mostly it alone is asked for. */
bool cuda_pins_resident(const struct cuda_pins *pins, uint32_t piece)
{
	uint64_t bytes;
	uint8_t *base = cuda_pins_at(pins, piece, &bytes);

	if (!there(base + bytes - PAGE, PAGE))
		return false;
	for (uint64_t at = 0; at < bytes; at += LOOK_PAGES * PAGE) {
		const uint64_t left = bytes - at;

		if (!there(base + at, left < LOOK_PAGES * PAGE ? left : LOOK_PAGES * PAGE))
			return false;
	}
	return true;
}

uint32_t cuda_pins_nth(const struct cuda_pins *pins, uint32_t gpu, uint32_t n)
{
	const uint64_t first = (uint64_t)gpu * pins->n_pieces / pins->n_gpus;

	return (uint32_t)((first + n) % pins->n_pieces);
}

bool cuda_pins_is_free(struct cuda_pins *pins, uint32_t piece)
{
	return atomic_load(&pins->pieces[piece]) == PIECE_FREE;
}

bool cuda_pins_take(struct cuda_pins *pins, uint32_t piece)
{
	uint8_t was = PIECE_FREE;

	return !atomic_load(&pins->stopping) &&
	       atomic_compare_exchange_strong(&pins->pieces[piece], &was, PIECE_TAKEN);
}

void cuda_pins_give(struct cuda_pins *pins, uint32_t gpu, uint32_t piece, bool registered)
{
	uint64_t bytes;

	(void)cuda_pins_at(pins, piece, &bytes);
	if (registered)
		atomic_fetch_add(&pins->gpus[gpu].bytes, bytes);
	atomic_store(&pins->pieces[piece], registered ? owner_of(gpu) : PIECE_FREE);
}

uint32_t cuda_pins_next(struct cuda_pins *pins, uint32_t gpu, uint32_t first)
{
	while (first < pins->n_pieces && atomic_load(&pins->pieces[first]) != owner_of(gpu))
		first++;
	return first;
}

void cuda_pins_clear(struct cuda_pins *pins, uint32_t gpu, uint32_t piece)
{
	uint64_t bytes;

	(void)cuda_pins_at(pins, piece, &bytes);
	assert(atomic_load(&pins->pieces[piece]) == owner_of(gpu));
	atomic_fetch_sub(&pins->gpus[gpu].bytes, bytes);
	atomic_store(&pins->pieces[piece], PIECE_FREE);
}

void cuda_pins_gate(struct cuda_pins *pins, uint32_t gpu, bool open, bool broken)
{
	atomic_store(&pins->gpus[gpu].open, open);
	atomic_store(&pins->gpus[gpu].broken, broken);
}

bool cuda_pins_held(struct cuda_pins *pins, uint32_t gpu)
{
	for (uint32_t i = 0; i < pins->n_gpus; i++)
		if (i != gpu && atomic_load(&pins->gpus[i].holds[gpu]) > 0 &&
		    !atomic_load(&pins->gpus[i].broken))
			return true;
	return false;
}

void cuda_pins_tell(struct cuda_pins *pins)
{
	(void)pthread_mutex_lock(&pins->lock);
	for (uint32_t i = 0; i < pins->n_gpus; i++)
		if (pins->gpus[i].news)
			pins->gpus[i].news(pins->gpus[i].arg);
	(void)pthread_mutex_unlock(&pins->lock);
}

uint64_t cuda_pins_bytes(const struct cuda_pins *pins, uint32_t gpu, uint64_t *ret_registered,
			 uint64_t *ret_all)
{
	*ret_all = pins->bytes;
	*ret_registered = 0;
	for (uint32_t i = 0; i < pins->n_gpus; i++)
		*ret_registered += atomic_load(&pins->gpus[i].bytes);
	return atomic_load(&pins->gpus[gpu].bytes);
}
