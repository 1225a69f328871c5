/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_pin.c - see cuda_pin.h. */
#include "cuda_pin.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "cuda_gpu.h"
#include "daemon/base/thread.h"

enum {
	FAILS_MAX = 3,
	NICER = 5, /* to pin memory is the kernel's work on this thread's time; copies go first */
};
static const uint64_t RETRY_NS = 60000000000u;
static const uint64_t HOLD_NS = 3000000000u;
static const uint64_t LOOK_NS = 1000000; /* between two looks at the holds of others */
/* between two looks at memory that is not faulted in yet, and may never be */
static const uint64_t ABSENT_NS = 10000000, ABSENT_MOST_NS = 1000000000;

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

/* --- the lock is held --- */

static void wait_until(struct cuda_pin *pin, uint64_t ns)
{
	const struct timespec due = { .tv_sec = (time_t)(ns / 1000000000u),
				      .tv_nsec = (long)(ns % 1000000000u) };

	if (ns == UINT64_MAX)
		(void)pthread_cond_wait(&pin->changed, &pin->lock);
	else
		(void)pthread_cond_timedwait(&pin->changed, &pin->lock, &due);
}

static void say(struct cuda_pin *pin, CUresult result, const char *call)
{
	(void)cuda_error(pin->api, result, call, pin->words, sizeof(pin->words));
}

/* --- without it --- */

/* The driver's result; a context that is broken is the GPU's thread's business. */
static CUresult said(struct cuda_pin *pin, CUresult result, const char *call)
{
	atomic_fetch_add(&pin->calls, 1);
	if (result == CUDA_SUCCESS)
		return result;
	(void)pthread_mutex_lock(&pin->lock);
	say(pin, result, call);
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
	const uint64_t now = cuda_now();

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
	uint8_t *at = cuda_pins_at(pin->pins, piece, &bytes);
	const CUresult result =
		CALL(pin, cuMemHostRegister, at, bytes, CU_MEMHOSTREGISTER_PORTABLE);

	cuda_pins_give(pin->pins, pin->number, piece, result == CUDA_SUCCESS);
	pin->fails += result != CUDA_SUCCESS;
	pin->run = result ? pin->run + 1 : 0;
	pin->absent_ns = ABSENT_NS; /* more memory is becoming present */
}

/* One piece at most. */
static void step(struct cuda_pin *pin, CUcontext context)
{
	const uint32_t n = cuda_pins_pieces(pin->pins);

	if (!pin->current)
		pin->current = CALL(pin, cuCtxSetCurrent, context) == CUDA_SUCCESS;
	if (!pin->current)
		pin->fails = pin->run = FAILS_MAX;
	while (pin->at < n && pin->run < FAILS_MAX) {
		const uint32_t piece = cuda_pins_nth(pin->pins, pin->number, pin->at++);

		if (!cuda_pins_is_free(pin->pins, piece))
			continue;
		if (!cuda_pins_resident(pin->pins, piece)) {
			pin->absent = true;
		} else if (cuda_pins_take(pin->pins, piece)) {
			register_piece(pin, piece);
			return;
		}
	}
	end_pass(pin);
}

/* The next of its pieces; false: it has none. */
static bool unregister_piece(struct cuda_pin *pin)
{
	uint64_t bytes;

	pin->left = cuda_pins_next(pin->pins, pin->number, pin->left);
	if (pin->left == cuda_pins_pieces(pin->pins))
		return false;
	/* The result does not matter: the context is about to be closed. */
	(void)CALL(pin, cuMemHostUnregister, cuda_pins_at(pin->pins, pin->left, &bytes));
	cuda_pins_clear(pin->pins, pin->number, pin->left);
	return true;
}

/* --- the thread: with the lock held from here on --- */

static void work(struct cuda_pin *pin)
{
	const CUcontext context = pin->context;

	if (!pin->open) {
		pin->on = pin->open = pin->again = true;
		pin->absent_ns = ABSENT_NS;
		cuda_pins_gate(pin->pins, pin->number, true, false);
	}
	if (pin->again || (pin->due_ns > 0 && cuda_now() >= pin->due_ns))
		begin_pass(pin);
	pin->again = false;
	if (atomic_load(&pin->broken) || cuda_now() < pin->due_ns) {
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
		pin->until_ns = cuda_now() + HOLD_NS;
	}
	cuda_pins_gate(pin->pins, pin->number, false, lost);
	if (cuda_pins_held(pin->pins, pin->number) && cuda_now() < pin->until_ns) {
		wait_until(pin, cuda_now() + LOOK_NS);
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

static void start(struct cuda_pin *pin)
{
	const int r = thread_start(&pin->thread, 0, run, pin);

	pin->started = r == 0;
	if (r)
		snprintf(pin->words, sizeof(pin->words), "no thread can be made: %s", strerror(-r));
}

void cuda_pin_on(struct cuda_pin *pin, CUcontext context)
{
	if (!pin)
		return;
	(void)pthread_mutex_lock(&pin->lock);
	if (pin->want != WANT_ON) {
		pin->context = context;
		pin->want = WANT_ON;
		if (!pin->on)
			atomic_store(&pin->broken, CUDA_SUCCESS);
		if (!pin->started)
			start(pin);
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
	off = !pin->on; /* ON that the thread has not seen is none */
	(void)pthread_mutex_unlock(&pin->lock);
	return off;
}

void cuda_pin_gone(struct cuda_pin *pin)
{
	const uint32_t n = pin ? cuda_pins_pieces(pin->pins) : 0;

	for (uint32_t i = 0; n > 0 && (i = cuda_pins_next(pin->pins, pin->number, i)) < n; i++)
		cuda_pins_clear(pin->pins, pin->number, i);
	if (pin)
		cuda_pins_tell(pin->pins);
}

CUresult cuda_pin_broken(struct cuda_pin *pin)
{
	return pin ? (CUresult)atomic_load(&pin->broken) : CUDA_SUCCESS;
}

uint32_t cuda_pin_hold(struct cuda_pin *pin, const uint8_t *at, uint32_t bytes)
{
	return pin ? cuda_pins_hold(pin->pins, pin->number, at, bytes) : 0;
}

void cuda_pin_drop(struct cuda_pin *pin, uint32_t hold)
{
	if (hold)
		cuda_pins_drop(pin->pins, pin->number, hold);
}

/* --- any thread --- */

void cuda_pin_view(struct cuda_pin *pin, struct cuda_pin_view *ret)
{
	uint64_t registered, all;
	char words[sizeof(pin->words)];

	*ret = (struct cuda_pin_view){ 0 };
	if (!pin)
		return;
	(void)pthread_mutex_lock(&pin->lock);
	memcpy(words, pin->words, sizeof(words));
	(void)pthread_mutex_unlock(&pin->lock);
	ret->bytes = cuda_pins_bytes(pin->pins, pin->number, &registered, &all);
	if (!words[0] || registered == all)
		return;
	snprintf(ret->why, sizeof(ret->why),
		 "%uM of [host] bytes = %uM are pinned, the rest is copied twice: %.80s; raise the "
		 "cgroup's MemoryMax=, lower [host] bytes, or set [host] pin = no",
		 (uint32_t)(registered >> 20), (uint32_t)(all >> 20), words);
}

uint64_t cuda_pin_calls(struct cuda_pin *pin)
{
	return pin ? atomic_load(&pin->calls) : 0;
}

static void on_news(void *arg)
{
	struct cuda_pin *pin = arg;

	(void)pthread_mutex_lock(&pin->lock);
	pin->again = true;
	(void)pthread_cond_signal(&pin->changed);
	(void)pthread_mutex_unlock(&pin->lock);
}

/* --- open and close --- */

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
	cuda_pins_refer(pins);
	pin->number = cuda_pins_add(pins, on_news, pin);
	*ret = pin;
	return 0;
}

void cuda_pin_close(struct cuda_pin *pin)
{
	if (!pin)
		return;
	cuda_pins_remove(pin->pins, pin->number);
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
