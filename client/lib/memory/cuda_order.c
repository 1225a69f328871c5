/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_order.c - orders ops after an engine's stream, and streams after ops. For each connection
 * the daemon is told of the words that do it:
 *
 *	UNTOLD --ORDER sent--> TOLD --ORDER_OK--> KNOWN
 *	  ^                     `--ERROR-----> REFUSED
 *	  `-- connection lost
 *
 * If an op names a stream, the stream writes the op's number into ready[slot], and the daemon
 * touches no page before. The other way round, a stream waits until done[slot] has reached the op's
 * number. The daemon writes that word when it gives back the pages, and the library writes it when
 * the op ends here because a connection was lost. Layer groups have words of their own. A load's
 * layers[slot] is raised group by group, and for all of them when the op ends. A store's
 * given[slot] is written by the stream that fills the pages.
 *
 * Invariants
 *   O1 done[] and layers[] only grow, and each writer compares and swaps: a daemon that was stopped
 *      and goes on late does not change what later ops wrote. So these words serve all connections
 *      of a client.
 *   O2 Each op that ends raises its words. So no stream waits for ever, as long as a thread calls
 *      kvtier_poll() or kvtier_wait() after a daemon died.
 *   O3 A close waits for no stream, since a stream may wait for what the closing thread does next.
 *      A driver may wait for all streams of the process when memory is unregistered: on an H100
 *      with driver 580.159 the close stood still, most likely there. So words that were registered
 *      stay so until the process ends, as long as CUDA_WORDS_KEPT are enough: the next client of
 *      the process has them, whose ops have greater numbers than all before (O1).
 */
#include "cuda_order.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/kvtier.h"
#include "client/lib/base/last_error.h"
#include "client/lib/base/process.h"
#include "client/lib/base/shared_memory.h"
#include "client/lib/base/socket.h"

static_assert((int)WIRE_MAX_WORDS == (int)KVTIER_MAX_OPS, "an op has words of its own");

/* Words of closed clients. A child after fork() finds the words of its parent, and leaves them. A
 * client takes words of its own socket alone, whose daemon may have them mapped still. */
static _Atomic(struct cuda_words *) kept[CUDA_WORDS_KEPT];

static uint32_t slot_of(uint64_t op)
{
	return (uint32_t)(op & (WIRE_MAX_WORDS - 1));
}

static bool words_keep(struct cuda_words *w)
{
	for (size_t i = 0; i < CUDA_WORDS_KEPT && process_ours(w->process); i++) {
		struct cuda_words *none = NULL;

		if (atomic_compare_exchange_strong(&kept[i], &none, w))
			return true;
	}
	return false;
}

static struct cuda_words *words_kept(const char *path)
{
	for (size_t i = 0; i < CUDA_WORDS_KEPT; i++) {
		struct cuda_words *w = atomic_exchange(&kept[i], NULL);

		if (!w || !process_ours(w->process))
			continue;
		if (strcmp(w->path, path) == 0)
			return w;
		(void)words_keep(w); /* full only by a race: then it is left as it is */
	}
	return NULL;
}

static void words_free(struct cuda_words *w)
{
	if (w->at)
		(void)munmap(w->at, sizeof(*w->at));
	if (w->fd >= 0)
		(void)close(w->fd);
	free(w);
}

static int words_make(const char *path, struct cuda_words **ret)
{
	struct cuda_words *w = calloc(1, sizeof(*w));
	void *at;
	int rc;

	if (!w)
		return error_set(-ENOMEM, "out of memory");
	w->process = process_begin();
	(void)snprintf(w->path, sizeof(w->path), "%s", path);
	w->fd = -1;
	rc = memory_file_make("kvtier-words", sizeof(*w->at),
			      F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, &w->fd);
	if (!rc) {
		at = mmap(NULL, sizeof(*w->at), PROT_READ | PROT_WRITE, MAP_SHARED, w->fd, 0);
		if (at == MAP_FAILED)
			rc = error_set(-errno, "cannot map a page of words: %s",
				       strerrordesc_np(errno));
		else
			w->at = at;
	}
	if (rc)
		words_free(w);
	else
		*ret = w;
	return rc;
}

static int words_open(const char *path, struct cuda_order *o)
{
	int rc = 0;

	o->kept = words_kept(path);
	if (!o->kept)
		rc = words_make(path, &o->kept);
	if (!rc)
		o->words = o->kept->at;
	return rc;
}

/* Ops go on without them if the driver cannot. Kept words may have lost their registration, with
 * the context that it was made in. */
static void words_register(struct cuda_order *o)
{
	const struct cuda_api *api = o->device.api;
	struct cuda_words *w = o->kept;
	int can = 0;

	if (api->cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
				      o->device.device) ||
	    !can)
		return;
	if (w->registered && !api->cuMemHostGetDevicePointer(&o->device_words, w->at, 0))
		return;
	o->device_words = 0;
	if (api->cuMemHostRegister(w->at, sizeof(*w->at),
				   CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP))
		return;
	w->registered = true;
	if (api->cuMemHostGetDevicePointer(&o->device_words, w->at, 0))
		o->device_words = 0;
}

static void order_free(struct cuda_order *o)
{
	const struct cuda_api *api = o->device.api;

	if (o->words && !cuda_enter(&o->device)) {
		if (o->kept->registered && !words_keep(o->kept))
			(void)api->cuMemHostUnregister(o->words);
		else if (o->kept->registered)
			o->kept = NULL;
		cuda_leave(&o->device);
	}
	cuda_device_close(&o->device);
	if (o->kept)
		words_free(o->kept);
	free(o);
}

static int order_open(const char *path, const struct cuda_device *device, struct cuda_order **ret)
{
	struct cuda_order *o = calloc(1, sizeof(*o));
	int rc;

	if (!o)
		return error_set(-ENOMEM, "out of memory");
	/* its own use of the primary context: it outlives the space */
	rc = cuda_device_open(device->api, device->device,
			      device->retained ? NULL : device->context, &o->device);
	if (!rc)
		rc = words_open(path, o);
	if (!rc)
		rc = cuda_enter(&o->device);
	if (!rc) {
		words_register(o);
		cuda_leave(&o->device);
		*ret = o;
	} else {
		order_free(o);
	}
	return rc;
}

int cuda_order_of(struct cuda_orders *all, const struct cuda_device *device,
		  struct cuda_order **ret)
{
	int rc;

	for (size_t i = 0; i < CUDA_ORDERS_MAX; i++) {
		struct cuda_order *o = all->of[i];

		if (o && memcmp(o->device.uuid, device->uuid, sizeof(device->uuid)) == 0) {
			*ret = o;
			return 0;
		}
		if (o)
			continue;
		rc = order_open(all->path, device, ret);
		if (!rc) {
			(void)pthread_mutex_lock(all->ring);
			all->of[i] = *ret;
			if (*all->serial < (*ret)->kept->serial)
				*all->serial = (*ret)->kept->serial;
			(void)pthread_mutex_unlock(all->ring);
		}
		return rc;
	}
	return error_set(-EMFILE, "this client has spaces on %d GPUs, the most", CUDA_ORDERS_MAX);
}

void cuda_orders_close(struct cuda_orders *all)
{
	for (size_t i = 0; i < CUDA_ORDERS_MAX && all->of[i]; i++) {
		all->of[i]->kept->serial = *all->serial;
		order_free(all->of[i]);
		all->of[i] = NULL;
	}
}

/* Ring held, too: an op reads it when it is submitted. */
static void enter_state(struct cuda_orders *all, struct cuda_order *o, enum cuda_order_state state)
{
	(void)pthread_mutex_lock(all->ring);
	o->state = state;
	(void)pthread_mutex_unlock(all->ring);
}

void cuda_orders_lost(struct cuda_orders *all)
{
	for (size_t i = 0; i < CUDA_ORDERS_MAX && all->of[i]; i++)
		enter_state(all, all->of[i], CUDA_ORDER_UNTOLD);
}

static int tell(struct cuda_orders *all, struct cuda_order *o, int fd, uint32_t *seq)
{
	struct wire_order m = { .head = { .magic = WIRE_MAGIC,
					  .type = WIRE_ORDER,
					  .length = sizeof(m),
					  .seq = ++*seq } };
	int rc;

	memcpy(m.device, o->device.uuid, sizeof(m.device));
	rc = socket_send(fd, &m, sizeof(m), &o->kept->fd, 1);
	if (rc)
		return rc;
	o->seq = *seq;
	enter_state(all, o, CUDA_ORDER_TOLD);
	return 0;
}

int cuda_orders_advance(struct cuda_orders *all, int fd, uint32_t *seq)
{
	int rc = 0;

	for (size_t i = 0; i < CUDA_ORDERS_MAX && all->of[i] && !rc; i++) {
		if (!all->of[i]->wanted)
			continue;
		if (all->of[i]->state == CUDA_ORDER_UNTOLD)
			rc = tell(all, all->of[i], fd, seq);
		if (!rc && all->of[i]->state == CUDA_ORDER_TOLD)
			rc = -EAGAIN;
	}
	return rc;
}

int cuda_orders_reply(struct cuda_orders *all, uint32_t type, uint32_t seq)
{
	for (size_t i = 0; i < CUDA_ORDERS_MAX && all->of[i]; i++) {
		struct cuda_order *o = all->of[i];

		if (o->state != CUDA_ORDER_TOLD || o->seq != seq)
			continue;
		if (type != WIRE_ORDER_OK && type != WIRE_ERROR)
			return 0;
		enter_state(all, o, type == WIRE_ERROR ? CUDA_ORDER_REFUSED : CUDA_ORDER_KNOWN);
		return 1;
	}
	return 0;
}

int cuda_order_after(struct cuda_order *o, uint64_t op, bool staged, CUstream stream)
{
	const uint64_t at = offsetof(struct wire_words, ready) + 8 * (uint64_t)slot_of(op);
	CUresult r;
	int rc;

	if (!staged && o->state == CUDA_ORDER_REFUSED)
		return error_set(-EOPNOTSUPP, "op.stream: the daemon cannot wait for this GPU's "
					      "streams; synchronize the stream, and leave it out");
	if (!o->device_words)
		return error_set(-EOPNOTSUPP, "op.stream: this driver writes no words; synchronize "
					      "the stream, and leave it out");
	rc = cuda_enter_stream(&o->device, stream, "op.stream");
	if (rc)
		return rc;
	r = o->device.api->cuStreamWriteValue64(stream, o->device_words + at, op,
						CU_STREAM_WRITE_VALUE_DEFAULT);
	cuda_leave(&o->device);
	return r ? driver_error(r, "op.stream: cuStreamWriteValue64") : 0;
}

void cuda_order_entry(const struct cuda_order *o, bool ordered, struct wire_sqe *sqe)
{
	if (o->state != CUDA_ORDER_KNOWN)
		return;
	sqe->word = (uint16_t)(slot_of(sqe->op_id) + 1);
	if (sqe->op == WIRE_OP_STORE && sqe->groups > 0)
		sqe->flags |= WIRE_SQE_GIVEN;
	if (ordered)
		sqe->flags |= WIRE_SQE_READY;
}

bool cuda_order_reached(const struct cuda_order *o, uint64_t op)
{
	const uint64_t word = __atomic_load_n(&o->words->ready[slot_of(op)], __ATOMIC_ACQUIRE);

	return (int64_t)(word - op) >= 0;
}

static void raise_word(uint64_t *word, uint64_t to)
{
	uint64_t now = __atomic_load_n(word, __ATOMIC_RELAXED);

	while ((int64_t)(to - now) > 0 &&
	       !__atomic_compare_exchange_n(word, &now, to, false, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED))
		;
}

void cuda_order_done(struct cuda_order *o, uint64_t op, bool groups)
{
	const uint32_t slot = slot_of(op);

	if (groups)
		raise_word(&o->words->layers[slot], wire_groups(op, WIRE_ALL_GROUPS));
	raise_word(&o->words->done[slot], op);
}

bool cuda_order_all_given(const struct cuda_order *o, uint64_t op, uint32_t groups)
{
	const uint64_t word = __atomic_load_n(&o->words->given[slot_of(op)], __ATOMIC_ACQUIRE);

	return (int64_t)(word - wire_groups(op, groups)) >= 0;
}

int cuda_order_wait(struct cuda_order *o, uint64_t op, uint32_t groups, CUstream stream)
{
	const uint64_t slot = slot_of(op), words = groups ? offsetof(struct wire_words, layers) :
							    offsetof(struct wire_words, done);
	CUresult r;
	int rc;

	if (!o || !o->device_words)
		return error_set(-EOPNOTSUPP,
				 "op %llu: its pages are not KVTIER_CUDA, or the driver has no "
				 "waits for words: use %s()",
				 (unsigned long long)op,
				 groups ? "kvtier_wait_layers" : "kvtier_wait");
	rc = cuda_enter_stream(&o->device, stream, "stream");
	if (rc)
		return rc;
	r = o->device.api->cuStreamWaitValue64(stream, o->device_words + words + 8 * slot,
					       groups ? wire_groups(op, groups) : op,
					       CU_STREAM_WAIT_VALUE_GEQ);
	cuda_leave(&o->device);
	return r ? driver_error(r, "cuStreamWaitValue64") : 0;
}

int cuda_order_give(struct cuda_order *o, uint64_t op, uint32_t groups, CUstream stream)
{
	const uint64_t slot = slot_of(op);
	CUresult r;
	int rc;

	if (!stream) {
		raise_word(&o->words->given[slot], wire_groups(op, groups));
		return 0;
	}
	if (!o->device_words)
		return error_set(-EOPNOTSUPP, "stream: this driver writes no words; synchronize "
					      "the stream, and give NULL");
	rc = cuda_enter_stream(&o->device, stream, "stream");
	if (rc)
		return rc;
	r = o->device.api->cuStreamWriteValue64(
		stream, o->device_words + offsetof(struct wire_words, given) + 8 * slot,
		wire_groups(op, groups), CU_STREAM_WRITE_VALUE_DEFAULT);
	cuda_leave(&o->device);
	return r ? driver_error(r, "stream: cuStreamWriteValue64") : 0;
}
