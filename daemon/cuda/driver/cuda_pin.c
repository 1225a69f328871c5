/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_pin.c - see cuda_pin.h. */
#include "cuda_pin.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "tiers/slabs.h"

enum {
	PAGE = 4096,
	LOOK_PAGES = 4096,
	/* a piece's state; else its owner's number + 1 */
	PIECE_FREE = 0,
	PIECE_TAKEN = 0xff,
	FAILS_MAX = 3,
	NICER = 5, /* to pin memory is the kernel's work on this thread's time; copies go first */
};
static const uint64_t RETRY_NS = 60000000000u;
/* longer than a GPU may stand still before it is given up, cuda_gpu.c */
static const uint64_t HOLD_NS = 35000000000u;
static const uint64_t LOOK_NS = 1000000; /* between two looks at the holds of others */
/* between two looks at memory that is not faulted in yet, and may never be */
static const uint64_t ABSENT_NS = 10000000, ABSENT_MOST_NS = 1000000000;
static_assert((int)CUDA_GPUS_MAX < (int)PIECE_TAKEN, "owners");

struct pins_gpu {
	struct cuda_pin *pin; /* the lock; NULL: it is told no more */
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
	pthread_mutex_t lock; /* guards pin. A pin's lock may be taken while it is held */
	struct pins_gpu gpus[CUDA_GPUS_MAX];
	_Atomic uint8_t *pieces;
};

enum want { WANT_OFF, WANT_ON, WANT_LOST, WANT_END };

struct cuda_pin {
	struct cuda_pins *pins;
	uint32_t number; /* among its GPUs */
	const struct cuda_api *api;
	void (*news)(void *arg);
	void *arg;
	pthread_t thread;
	bool started; /* the GPU's thread's; then the core's */
	_Atomic uint64_t calls;
	_Atomic int broken; /* CUresult */

	/* Guards the fields below. Take no locks while holding it. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum want want;
	CUcontext context;
	bool on;    /* the thread may call the driver with the context: not OFF */
	bool again; /* there may be pieces to take: a pass begins */
	char words[160];

	/* the pin thread's */
	bool current;        /* the context is, there */
	bool open;           /* its gate */
	uint32_t at;         /* pieces that this pass has looked at */
	uint32_t left;       /* unregistered up to here */
	uint32_t fails, run; /* refused in this pass; of these the last ones in a row */
	bool absent;         /* some were not faulted in yet */
	uint64_t absent_ns;  /* until they are looked at again */
	uint64_t due_ns;     /* of the next pass; UINT64_MAX: when something is new */
	uint64_t until_ns;   /* LEAVING, LOST: holds of others are waited for */
};

/* --- pieces: any thread --- */

static uint8_t owner_of(uint32_t gpu)
{
	return (uint8_t)(gpu + 1);
}

static uint8_t *piece_at(const struct cuda_pins *pins, uint32_t piece, uint64_t *ret_bytes)
{
	const uint64_t at = piece * pins->piece_bytes, left = pins->bytes - at;

	*ret_bytes = left < pins->piece_bytes ? left : pins->piece_bytes;
	return pins->base + at;
}

/* Pages [at, at + bytes), LOOK_PAGES at most, are there. If the kernel cannot say: yes. */
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
static bool resident(const struct cuda_pins *pins, uint32_t piece)
{
	uint64_t bytes;
	uint8_t *base = piece_at(pins, piece, &bytes);

	if (!there(base + bytes - PAGE, PAGE))
		return false;
	for (uint64_t at = 0; at < bytes; at += LOOK_PAGES * PAGE) {
		const uint64_t left = bytes - at;

		if (!there(base + at, left < LOOK_PAGES * PAGE ? left : LOOK_PAGES * PAGE))
			return false;
	}
	return true;
}

/* The n-th piece that a GPU takes: each GPU begins somewhere else. */
static uint32_t nth_piece(const struct cuda_pins *pins, uint32_t gpu, uint32_t n)
{
	const uint64_t first = (uint64_t)gpu * pins->n_pieces / pins->n_gpus;

	return (uint32_t)((first + n) % pins->n_pieces);
}

static bool take(struct cuda_pins *pins, uint32_t piece)
{
	uint8_t was = PIECE_FREE;

	return !atomic_load(&pins->stopping) &&
	       atomic_compare_exchange_strong(&pins->pieces[piece], &was, PIECE_TAKEN);
}

static void give(struct cuda_pins *pins, uint32_t gpu, uint32_t piece, bool registered)
{
	uint64_t bytes;

	(void)piece_at(pins, piece, &bytes);
	if (registered)
		atomic_fetch_add(&pins->gpus[gpu].bytes, bytes);
	atomic_store(&pins->pieces[piece], registered ? owner_of(gpu) : PIECE_FREE);
}

/* From `first` on, the next piece of a GPU; n_pieces: it has no other. */
static uint32_t next_piece(struct cuda_pins *pins, uint32_t gpu, uint32_t first)
{
	while (first < pins->n_pieces && atomic_load(&pins->pieces[first]) != owner_of(gpu))
		first++;
	return first;
}

static void clear(struct cuda_pins *pins, uint32_t gpu, uint32_t piece)
{
	uint64_t bytes;

	(void)piece_at(pins, piece, &bytes);
	assert(atomic_load(&pins->pieces[piece]) == owner_of(gpu));
	atomic_fetch_sub(&pins->gpus[gpu].bytes, bytes);
	atomic_store(&pins->pieces[piece], PIECE_FREE);
}

/* broken: of a gate that is shut: no work of the GPU runs any more */
static void set_gate(struct cuda_pins *pins, uint32_t gpu, bool open, bool broken)
{
	atomic_store(&pins->gpus[gpu].open, open);
	atomic_store(&pins->gpus[gpu].broken, broken);
}

/* Others copy to its pieces. */
static bool held(struct cuda_pins *pins, uint32_t gpu)
{
	for (uint32_t i = 0; i < pins->n_gpus; i++)
		if (i != gpu && atomic_load(&pins->gpus[i].holds[gpu]) > 0 &&
		    !atomic_load(&pins->gpus[i].broken))
			return true;
	return false;
}

/* --- the pin thread: the lock is held --- */

static void wait_until(struct cuda_pin *pin, uint64_t ns)
{
	const struct timespec due = clock_timespec(ns);

	if (ns == UINT64_MAX)
		(void)pthread_cond_wait(&pin->changed, &pin->lock);
	else
		(void)pthread_cond_timedwait(&pin->changed, &pin->lock, &due);
}

/* --- without it --- */

/* The driver's result; a context that is broken is the GPU's thread's business. */
static CUresult said(struct cuda_pin *pin, CUresult result, const char *call)
{
	atomic_fetch_add(&pin->calls, 1);
	if (result == CUDA_SUCCESS)
		return result;
	(void)pthread_mutex_lock(&pin->lock);
	(void)cuda_error(pin->api, result, call, pin->words, sizeof(pin->words));
	(void)pthread_mutex_unlock(&pin->lock);
	if (cuda_sticky(result)) {
		atomic_store(&pin->broken, (int)result);
		pin->news(pin->arg);
	}
	return result;
}

#define CALL(pin, name, ...) said(pin, (pin)->api->name(__VA_ARGS__), #name)

static void begin_pass(struct cuda_pin *pin)
{
	pin->at = pin->fails = pin->run = 0;
	pin->absent = false;
	pin->due_ns = 0;
}

/* All pieces were looked at, or the driver refuses them. */
static void end_pass(struct cuda_pin *pin)
{
	const uint64_t now = clock_ns();

	(void)pthread_mutex_lock(&pin->lock);
	if (pin->fails == 0)
		pin->words[0] = '\0';
	(void)pthread_mutex_unlock(&pin->lock);
	if (pin->absent && pin->run < FAILS_MAX) {
		pin->due_ns = now + pin->absent_ns;
		pin->absent_ns *= pin->absent_ns < ABSENT_MOST_NS ? 2 : 1;
	} else {
		pin->due_ns = pin->fails > 0 ? now + RETRY_NS : UINT64_MAX;
	}
}

static void register_piece(struct cuda_pin *pin, uint32_t piece)
{
	uint64_t bytes;
	uint8_t *at = piece_at(pin->pins, piece, &bytes);
	const CUresult result =
		CALL(pin, cuMemHostRegister, at, bytes, CU_MEMHOSTREGISTER_PORTABLE);

	give(pin->pins, pin->number, piece, result == CUDA_SUCCESS);
	pin->fails += result != CUDA_SUCCESS;
	pin->run = result ? pin->run + 1 : 0;
	pin->absent_ns = ABSENT_NS; /* more memory is becoming present */
}

/* One piece at most. */
static void step(struct cuda_pin *pin, CUcontext context)
{
	const uint32_t n = pin->pins->n_pieces;

	if (!pin->current)
		pin->current = CALL(pin, cuCtxSetCurrent, context) == CUDA_SUCCESS;
	if (!pin->current)
		pin->fails = pin->run = FAILS_MAX;
	while (pin->at < n && pin->run < FAILS_MAX) {
		const uint32_t piece = nth_piece(pin->pins, pin->number, pin->at++);

		if (atomic_load(&pin->pins->pieces[piece]) != PIECE_FREE)
			continue;
		if (!resident(pin->pins, piece)) {
			pin->absent = true;
		} else if (take(pin->pins, piece)) {
			register_piece(pin, piece);
			return;
		}
	}
	end_pass(pin);
}

/* The next of its pieces; false: there is no other. */
static bool unregister_piece(struct cuda_pin *pin)
{
	uint64_t bytes;

	pin->left = next_piece(pin->pins, pin->number, pin->left);
	if (pin->left == pin->pins->n_pieces)
		return false;
	/* The result does not matter: the context is about to be closed. */
	(void)CALL(pin, cuMemHostUnregister, piece_at(pin->pins, pin->left, &bytes));
	clear(pin->pins, pin->number, pin->left);
	return true;
}

/* --- the thread: with the lock held from here on --- */

static void work(struct cuda_pin *pin)
{
	const CUcontext context = pin->context;

	if (!pin->open) {
		pin->on = pin->open = pin->again = true;
		pin->absent_ns = ABSENT_NS;
		set_gate(pin->pins, pin->number, true, false);
	}
	if (pin->again || (pin->due_ns > 0 && clock_ns() >= pin->due_ns))
		begin_pass(pin);
	pin->again = false;
	if (atomic_load(&pin->broken) || clock_ns() < pin->due_ns) {
		wait_until(pin, atomic_load(&pin->broken) ? UINT64_MAX : pin->due_ns);
		return;
	}
	(void)pthread_mutex_unlock(&pin->lock);
	step(pin, context);
	(void)pthread_mutex_lock(&pin->lock);
}

static void leave(struct cuda_pin *pin)
{
	const bool lost = pin->want == WANT_LOST || atomic_load(&pin->broken);
	bool more;

	if (pin->open) {
		pin->open = false;
		pin->left = 0;
		pin->until_ns = clock_ns() + HOLD_NS;
	}
	set_gate(pin->pins, pin->number, false, lost);
	if (held(pin->pins, pin->number) && clock_ns() < pin->until_ns) {
		wait_until(pin, clock_ns() + LOOK_NS);
		return;
	}
	(void)pthread_mutex_unlock(&pin->lock);
	more = !lost && pin->current && unregister_piece(pin);
	if (!more)
		(void)pin->api->cuCtxSetCurrent(NULL);
	(void)pthread_mutex_lock(&pin->lock);
	if (more)
		return;
	pin->on = pin->current = false;
	pin->words[0] = '\0';
	(void)pthread_mutex_unlock(&pin->lock);
	pin->news(pin->arg);
	(void)pthread_mutex_lock(&pin->lock);
}

static void *run(void *arg)
{
	struct cuda_pin *pin = arg;

	(void)prctl(PR_SET_NAME, "kvtier-pin");
	(void)setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, 0) + NICER);
	(void)pthread_mutex_lock(&pin->lock);
	while (pin->want != WANT_END || pin->on) {
		if (pin->want == WANT_ON)
			work(pin);
		else if (pin->on)
			leave(pin);
		else
			wait_until(pin, UINT64_MAX);
	}
	(void)pthread_mutex_unlock(&pin->lock);
	return NULL;
}

/* --- the GPU's thread --- */

void cuda_pin_on(struct cuda_pin *pin, CUcontext context)
{
	int r = 0;

	if (!pin)
		return;
	(void)pthread_mutex_lock(&pin->lock);
	if (pin->want != WANT_ON) {
		pin->context = context;
		pin->want = WANT_ON;
		if (!pin->on)
			atomic_store(&pin->broken, CUDA_SUCCESS);
		if (!pin->started)
			r = thread_start(&pin->thread, 0, run, pin);
		pin->started = r == 0;
		if (r)
			snprintf(pin->words, sizeof(pin->words), "no thread can be made: %s",
				 strerror(-r));
		(void)pthread_cond_signal(&pin->changed);
	}
	(void)pthread_mutex_unlock(&pin->lock);
}

bool cuda_pin_off(struct cuda_pin *pin, bool lost)
{
	const enum want want = lost ? WANT_LOST : WANT_OFF;
	bool off;

	if (!pin)
		return true;
	(void)pthread_mutex_lock(&pin->lock);
	if (pin->want != want)
		(void)pthread_cond_signal(&pin->changed);
	pin->want = want;
	off = !pin->on; /* an ON that the thread has not seen does not count */
	(void)pthread_mutex_unlock(&pin->lock);
	return off;
}

/* Pieces are free that were not. */
static void look_again(struct cuda_pin *pin)
{
	(void)pthread_mutex_lock(&pin->lock);
	pin->again = true;
	(void)pthread_cond_signal(&pin->changed);
	(void)pthread_mutex_unlock(&pin->lock);
}

void cuda_pin_gone(struct cuda_pin *pin)
{
	struct cuda_pins *pins = pin ? pin->pins : NULL;

	if (!pin)
		return;
	for (uint32_t i = 0; (i = next_piece(pins, pin->number, i)) < pins->n_pieces; i++)
		clear(pins, pin->number, i);
	(void)pthread_mutex_lock(&pins->lock);
	for (uint32_t i = 0; i < pins->n_gpus; i++)
		if (pins->gpus[i].pin)
			look_again(pins->gpus[i].pin);
	(void)pthread_mutex_unlock(&pins->lock);
}

CUresult cuda_pin_broken(struct cuda_pin *pin)
{
	return pin ? (CUresult)atomic_load(&pin->broken) : CUDA_SUCCESS;
}

void cuda_pin_drop(struct cuda_pin *pin, uint32_t hold)
{
	if (hold) {
		const unsigned before =
			atomic_fetch_sub(&pin->pins->gpus[pin->number].holds[hold - 1], 1);

		assert(before > 0);
	}
}

uint32_t cuda_pin_hold(struct cuda_pin *pin, const uint8_t *at, uint32_t bytes)
{
	struct cuda_pins *pins = pin ? pin->pins : NULL;
	uint64_t offset, piece;
	uint8_t owner;

	if (!pins)
		return 0;
	offset = (uint64_t)(uintptr_t)at - (uint64_t)(uintptr_t)pins->base;
	if (bytes == 0 || offset >= pins->bytes || bytes > pins->bytes - offset)
		return 0; /* not of the tier */
	piece = offset / pins->piece_bytes;
	if ((offset + bytes - 1) / pins->piece_bytes != piece)
		return 0;
	owner = atomic_load(&pins->pieces[piece]);
	if (owner == PIECE_FREE || owner == PIECE_TAKEN)
		return 0;
	atomic_fetch_add(&pins->gpus[pin->number].holds[owner - 1], 1);
	if (atomic_load(&pins->gpus[owner - 1].open) && atomic_load(&pins->pieces[piece]) == owner)
		return owner;
	cuda_pin_drop(pin, owner);
	return 0;
}

/* --- any thread --- */

uint64_t cuda_pin_bytes(struct cuda_pin *pin, char *ret_why, size_t n)
{
	char words[sizeof(pin->words)];
	uint64_t registered = 0; /* in the contexts of all GPUs */

	ret_why[0] = '\0';
	if (!pin)
		return 0;
	(void)pthread_mutex_lock(&pin->lock);
	memcpy(words, pin->words, sizeof(words));
	(void)pthread_mutex_unlock(&pin->lock);
	for (uint32_t i = 0; i < pin->pins->n_gpus; i++)
		registered += atomic_load(&pin->pins->gpus[i].bytes);
	if (words[0] && registered < pin->pins->bytes)
		snprintf(ret_why, n,
			 "%uM of [host] bytes = %uM are pinned, the rest is copied twice: %.80s; "
			 "raise the cgroup's MemoryMax=, lower [host] bytes, or set [host] pin = "
			 "no",
			 (uint32_t)(registered >> 20), (uint32_t)(pin->pins->bytes >> 20), words);
	return atomic_load(&pin->pins->gpus[pin->number].bytes);
}

uint64_t cuda_pin_calls(struct cuda_pin *pin)
{
	return pin ? atomic_load(&pin->calls) : 0;
}

/* --- open and close --- */

int cuda_pins_open(struct tier *host, struct cuda_pins **ret)
{
	enum { PIECES = 32, PIECE_BYTES = 64 << 20 };
	const uint64_t slab = slabs_slab_bytes(tier_slabs(host));
	struct cuda_pins *pins = calloc(1, sizeof(*pins));
	uint64_t piece;

	if (!pins)
		return -ENOMEM;
	pins->base = tier_memory(host, &pins->bytes);
	piece = pins->bytes / PIECES < PIECE_BYTES ? pins->bytes / PIECES : PIECE_BYTES;
	pins->piece_bytes = piece < slab ? slab : piece / slab * slab;
	pins->n_pieces = (uint32_t)((pins->bytes + pins->piece_bytes - 1) / pins->piece_bytes);
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

void cuda_pins_close(struct cuda_pins *pins)
{
	if (!pins || atomic_fetch_sub(&pins->refs, 1) > 1)
		return;
	(void)pthread_mutex_destroy(&pins->lock);
	free(pins->pieces);
	free(pins);
}

void cuda_pins_stop(struct cuda_pins *pins)
{
	atomic_store(&pins->stopping, true);
}

int cuda_pin_open(struct cuda_pins *pins, const struct cuda_api *api, void (*news)(void *arg),
		  void *arg, struct cuda_pin **ret)
{
	struct cuda_pin *pin = calloc(1, sizeof(*pin));

	if (!pin)
		return -ENOMEM;
	pin->pins = pins;
	pin->api = api;
	pin->news = news;
	pin->arg = arg;
	(void)pthread_mutex_init(&pin->lock, NULL);
	thread_cond_open(&pin->changed);
	atomic_fetch_add(&pins->refs, 1);
	assert(pins->n_gpus < CUDA_GPUS_MAX);
	pin->number = pins->n_gpus++;
	pins->gpus[pin->number].pin = pin;
	*ret = pin;
	return 0;
}

void cuda_pin_close(struct cuda_pin *pin)
{
	if (!pin)
		return;
	(void)pthread_mutex_lock(&pin->pins->lock);
	pin->pins->gpus[pin->number].pin = NULL;
	(void)pthread_mutex_unlock(&pin->pins->lock);
	(void)pthread_mutex_lock(&pin->lock);
	pin->want = WANT_END;
	(void)pthread_cond_signal(&pin->changed);
	(void)pthread_mutex_unlock(&pin->lock);
	if (pin->started)
		(void)pthread_join(pin->thread, NULL);
	(void)pthread_cond_destroy(&pin->changed);
	(void)pthread_mutex_destroy(&pin->lock);
	cuda_pins_close(pin->pins);
	free(pin);
}
