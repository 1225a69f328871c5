/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_order.c - ops after an engine's stream, and streams after ops.
 *
 *	UNTOLD --ORDER sent--> TOLD --ORDER_OK--> KNOWN		of each connection
 *	  ^                     |--ERROR -EBUSY--> UNTOLD, for a while
 *	  |                     |--ERROR, with events--> UNTOLD, without them
 *	  `-- connection lost   `--ERROR, without------> REFUSED
 *
 * An op that names a stream records the event of its slot there, and the daemon touches no page
 * before that event. Where events cannot be shared (containers), the stream writes the op's number
 * into ready[slot] instead. The other way round, a stream waits until done[slot] has reached the
 * op's number. The daemon writes it when it lets go of the pages. The library writes it when the op
 * ends here (a connection that was lost). Groups of layers have words of their own: a
 * load's layers[slot] is raised group by group, and to all of them when the op ends; a store's
 * given[slot] is written by the stream that fills the pages.
 *
 * Invariants
 *   O1 done[] and layers[] only grow, and each writer compares and swaps: a daemon that was stopped
 *      and goes on late changes nothing that later ops wrote. So these words serve all connections
 *      of a client.
 *   O2 Each op that ends raises its words. So no stream waits for ever, as long as a thread calls
 *      kvtier_poll() or kvtier_wait() after a daemon died.
 *   O3 A slot's event is not recorded again before its op has ended: an op has one slot (op.c).
 */
#include "cuda_order.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client.h"
#include "clock.h"
#include "cuda.h"
#include "error.h"
#include "memory_file.h"
#include "op.h"
#include "socket.h"

static_assert((int)WIRE_MAX_EVENTS == (int)KVTIER_MAX_OPS, "a slot of an op is its event's number");

static uint32_t slot_of(const struct op *op)
{
	return (uint32_t)(op->id & (WIRE_MAX_EVENTS - 1));
}

static int words_open(struct cuda_order *o)
{
	const int rc = memory_file_make("kvtier-words", sizeof(*o->words),
					F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, &o->words_fd);
	void *words;

	if (rc)
		return rc;
	words = mmap(NULL, sizeof(*o->words), PROT_READ | PROT_WRITE, MAP_SHARED, o->words_fd, 0);
	if (words == MAP_FAILED)
		return error_set(-errno, "cannot map a page of words: %s", strerrordesc_np(errno));
	o->words = words;
	return 0;
}

static int attribute(const struct cuda_order *o, CUdevice_attribute name)
{
	int value = 0;

	return o->device.api->cuDeviceGetAttribute(&value, name, o->device.device) ? 0 : value;
}

/* Ops go on without the features that the driver lacks; see shares_events and device_words. */
static void driver_open(struct cuda_order *o)
{
	const struct cuda_api *api = o->device.api;
	uint32_t n = 0;

	if (attribute(o, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) &&
	    !api->cuMemHostRegister(o->words, sizeof(*o->words),
				    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP) &&
	    api->cuMemHostGetDevicePointer(&o->device_words, o->words, 0)) {
		(void)api->cuMemHostUnregister(o->words);
		o->device_words = 0;
	}
	while (n < WIRE_MAX_EVENTS &&
	       !api->cuEventCreate(&o->events[n],
				   CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS) &&
	       !api->cuIpcGetEventHandle(&o->handles[n], o->events[n]))
		n++;
	o->shares_events = n == WIRE_MAX_EVENTS;
	for (n = 0; n < WIRE_MAX_EVENTS; n++)
		if (!o->events[n] && api->cuEventCreate(&o->events[n], CU_EVENT_DISABLE_TIMING))
			o->events[n] = NULL;
}

static void order_free(struct cuda_order *o)
{
	const struct cuda_api *api = o->device.api;

	if (o->words && !cuda_enter(&o->device)) {
		for (uint32_t i = 0; i < WIRE_MAX_EVENTS; i++)
			if (o->events[i])
				(void)api->cuEventDestroy(o->events[i]);
		if (o->device_words)
			(void)api->cuMemHostUnregister(o->words);
		cuda_leave(&o->device);
	}
	cuda_device_close(&o->device);
	if (o->words)
		(void)munmap(o->words, sizeof(*o->words));
	if (o->words_fd >= 0)
		(void)close(o->words_fd);
	free(o);
}

static int order_open(const struct cuda_device *device, struct cuda_order **ret)
{
	struct cuda_order *o = calloc(1, sizeof(*o));
	int rc;

	if (!o)
		return error_set(-ENOMEM, "out of memory");
	o->words_fd = -1;
	/* its own use of the primary context: it outlives the space */
	rc = cuda_device_open(device->api, device->device,
			      device->retained ? NULL : device->context, &o->device);
	if (!rc)
		rc = words_open(o);
	if (!rc)
		rc = cuda_enter(&o->device);
	if (!rc) {
		driver_open(o);
		cuda_leave(&o->device);
		*ret = o;
	} else {
		order_free(o);
	}
	return rc;
}

int cuda_order_of(struct kvtier_client *c, const struct cuda_device *device,
		  struct cuda_order **ret)
{
	int rc;

	for (size_t i = 0; i < CUDA_ORDERS_MAX; i++) {
		struct cuda_order *o = c->orders[i];

		if (o && memcmp(o->device.uuid, device->uuid, sizeof(device->uuid)) == 0) {
			*ret = o;
			return 0;
		}
		if (o)
			continue;
		rc = order_open(device, ret);
		if (!rc) {
			(void)pthread_mutex_lock(&c->ring);
			c->orders[i] = *ret;
			(void)pthread_mutex_unlock(&c->ring);
		}
		return rc;
	}
	return error_set(-EMFILE, "this client has spaces on %d GPUs, the most", CUDA_ORDERS_MAX);
}

void cuda_orders_close(struct kvtier_client *c)
{
	for (size_t i = 0; i < CUDA_ORDERS_MAX && c->orders[i]; i++) {
		order_free(c->orders[i]);
		c->orders[i] = NULL;
	}
}

/* Ring held, too: an op reads it when it is submitted. */
static void enter_state(struct kvtier_client *c, struct cuda_order *o, enum cuda_order_state state)
{
	(void)pthread_mutex_lock(&c->ring);
	o->state = state;
	(void)pthread_mutex_unlock(&c->ring);
}

void cuda_orders_lost(struct kvtier_client *c)
{
	for (size_t i = 0; i < CUDA_ORDERS_MAX && c->orders[i]; i++) {
		c->orders[i]->busy = (struct cuda_busy){ 0 };
		enter_state(c, c->orders[i], CUDA_ORDER_UNTOLD);
	}
}

static int tell(struct kvtier_client *c, struct cuda_order *o)
{
	struct {
		struct wire_order order;
		CUipcEventHandle handles[WIRE_MAX_EVENTS];
	} m = { .order = { .n_events = o->shares_events ? WIRE_MAX_EVENTS : 0 } };
	const size_t n = sizeof(m.order) + m.order.n_events * sizeof(m.handles[0]);
	int rc;

	m.order.head = (struct wire_head){
		.magic = WIRE_MAGIC, .type = WIRE_ORDER, .length = (uint32_t)n, .seq = ++c->seq
	};
	memcpy(m.order.device, o->device.uuid, sizeof(m.order.device));
	memcpy(m.handles, o->handles, sizeof(m.handles));
	rc = socket_send(c->fd, &m, n, &o->words_fd, 1);
	if (rc)
		return rc;
	o->seq = c->seq;
	enter_state(c, o, CUDA_ORDER_TOLD);
	return 0;
}

int cuda_orders_advance(struct kvtier_client *c)
{
	int rc = 0;

	for (size_t i = 0; i < CUDA_ORDERS_MAX && c->orders[i] && !rc; i++) {
		if (!c->orders[i]->wanted)
			continue;
		if (client_now() < c->orders[i]->busy.retry_ns)
			return -EAGAIN;
		if (c->orders[i]->state == CUDA_ORDER_UNTOLD)
			rc = tell(c, c->orders[i]);
		if (!rc && c->orders[i]->state == CUDA_ORDER_TOLD)
			rc = -EAGAIN;
	}
	return rc;
}

int cuda_orders_reply(struct kvtier_client *c, uint32_t type, uint32_t seq, int error)
{
	for (size_t i = 0; i < CUDA_ORDERS_MAX && c->orders[i]; i++) {
		struct cuda_order *o = c->orders[i];

		if (o->state != CUDA_ORDER_TOLD || o->seq != seq)
			continue;
		if (type == WIRE_ORDER_OK) {
			enter_state(c, o, CUDA_ORDER_KNOWN);
		} else if (type == WIRE_ERROR && cuda_busy_again(&o->busy, error)) {
			enter_state(c, o, CUDA_ORDER_UNTOLD);
		} else if (type == WIRE_ERROR && o->shares_events) {
			o->shares_events = false;
			enter_state(c, o, CUDA_ORDER_UNTOLD);
		} else if (type == WIRE_ERROR) {
			enter_state(c, o, CUDA_ORDER_REFUSED);
		} else {
			return 0;
		}
		return 1;
	}
	return 0;
}

int cuda_order_after(struct cuda_order *o, const struct op *op, bool staged, CUstream stream)
{
	const struct cuda_api *api = o->device.api;
	const uint32_t slot = slot_of(op);
	CUresult r;
	int rc;

	if (!staged && o->state == CUDA_ORDER_REFUSED)
		return error_set(-EOPNOTSUPP,
				 "options.cuda_stream: the daemon cannot wait for this GPU's "
				 "streams; synchronize the stream, and leave it out");
	if (!(o->shares_events || (staged && o->events[slot])) && !o->device_words)
		return error_set(
			-EOPNOTSUPP,
			"options.cuda_stream: this driver shares neither events nor words; "
			"synchronize the stream, and leave it out");
	rc = cuda_enter(&o->device);
	if (rc)
		return rc;
	rc = cuda_stream_check(&o->device, stream, "options.cuda_stream");
	if (rc) {
		/* the daemon would take an event that was not recorded for one that was reached */
	} else if (o->shares_events || (staged && o->events[slot])) {
		r = api->cuEventRecord(o->events[slot], stream);
		rc = r ? driver_error(r, "options.cuda_stream: cuEventRecord") : 0;
	} else {
		r = api->cuStreamWriteValue64(stream,
					      o->device_words + offsetof(struct wire_words, ready) +
						      8 * slot,
					      op->id, CU_STREAM_WRITE_VALUE_DEFAULT);
		rc = r ? driver_error(r, "options.cuda_stream: cuStreamWriteValue64") : 0;
	}
	cuda_leave(&o->device);
	return rc;
}

void cuda_order_entry(const struct cuda_order *o, const struct op *op, struct wire_sqe *sqe)
{
	if (o->state != CUDA_ORDER_KNOWN)
		return;
	sqe->word = (uint16_t)(slot_of(op) + 1);
	if (op->hints.op == WIRE_OP_STORE && op->hints.groups > 0)
		sqe->flags |= WIRE_SQE_GIVEN;
	if (!op->ordered)
		return;
	if (o->shares_events)
		sqe->event = (uint16_t)(slot_of(op) + 1);
	else
		sqe->flags |= WIRE_SQE_READY;
}

int cuda_order_reached(const struct cuda_order *o, const struct op *op)
{
	const uint32_t slot = slot_of(op);
	CUresult r;
	int rc;

	if (!o->events[slot])
		return (int64_t)(__atomic_load_n(&o->words->ready[slot], __ATOMIC_ACQUIRE) -
				 op->id) >= 0;
	rc = cuda_enter(&o->device);
	if (rc)
		return rc;
	r = o->device.api->cuEventQuery(o->events[slot]);
	cuda_leave(&o->device);
	if (r == CUDA_ERROR_NOT_READY)
		return 0;
	return r ? driver_error(r, "cuEventQuery") : 1;
}

static void raise_word(uint64_t *word, uint64_t to)
{
	uint64_t now = __atomic_load_n(word, __ATOMIC_RELAXED);

	while ((int64_t)(to - now) > 0 &&
	       !__atomic_compare_exchange_n(word, &now, to, false, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED))
		;
}

void cuda_order_done(struct cuda_order *o, const struct op *op)
{
	const uint32_t slot = slot_of(op);

	if (op->hints.groups > 0)
		raise_word(&o->words->layers[slot], wire_groups(op->id, WIRE_ALL_GROUPS));
	raise_word(&o->words->done[slot], op->id);
}

uint32_t cuda_order_given(const struct cuda_order *o, const struct op *op)
{
	const uint64_t word = __atomic_load_n(&o->words->given[slot_of(op)], __ATOMIC_ACQUIRE);
	const int64_t groups = (int64_t)(word - wire_groups(op->id, 0));

	return groups < 0 ? 0 : groups > op->hints.groups ? op->hints.groups : (uint32_t)groups;
}

int cuda_order_wait(struct cuda_order *o, uint64_t id, uint32_t groups, CUstream stream)
{
	const uint64_t slot = id & (WIRE_MAX_EVENTS - 1);
	CUresult r = CUDA_SUCCESS;
	int rc;

	if (!o || !o->device_words)
		return error_set(-EOPNOTSUPP,
				 "op %llu: its pages are not KVTIER_CUDA, or the driver has no "
				 "waits for words: use %s()",
				 (unsigned long long)id,
				 groups ? "kvtier_wait_layers" : "kvtier_wait");
	rc = cuda_enter(&o->device);
	if (rc)
		return rc;
	rc = cuda_stream_check(&o->device, stream, "stream");
	if (!rc)
		r = o->device.api->cuStreamWaitValue64(
			stream,
			o->device_words +
				(groups ? offsetof(struct wire_words, layers) :
					  offsetof(struct wire_words, done)) +
				8 * slot,
			groups ? wire_groups(id, groups) : id, CU_STREAM_WAIT_VALUE_GEQ);
	cuda_leave(&o->device);
	return r ? driver_error(r, "cuStreamWaitValue64") : rc;
}

int cuda_order_give(struct cuda_order *o, uint64_t id, uint32_t groups, CUstream stream)
{
	const uint64_t slot = id & (WIRE_MAX_EVENTS - 1);
	CUresult r = CUDA_SUCCESS;
	int rc;

	if (!stream) {
		raise_word(&o->words->given[slot], wire_groups(id, groups));
		return 0;
	}
	if (!o->device_words)
		return error_set(-EOPNOTSUPP, "stream: this driver writes no words; synchronize "
					      "the stream, and give NULL");
	rc = cuda_enter(&o->device);
	if (rc)
		return rc;
	rc = cuda_stream_check(&o->device, stream, "stream");
	if (!rc)
		r = o->device.api->cuStreamWriteValue64(
			stream, o->device_words + offsetof(struct wire_words, given) + 8 * slot,
			wire_groups(id, groups), CU_STREAM_WRITE_VALUE_DEFAULT);
	cuda_leave(&o->device);
	return r ? driver_error(r, "stream: cuStreamWriteValue64") : rc;
}
