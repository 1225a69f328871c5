/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_order.h - events and words of a client on one GPU: they order ops after an engine's stream,
 * and streams after ops.
 */
#ifndef KVTIER_LIB_CUDA_ORDER_H
#define KVTIER_LIB_CUDA_ORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/cuda_api.h"
#include "client/wire.h"
#include "cuda.h"

struct kvtier_client;
struct op;

enum { CUDA_ORDERS_MAX = 16 }; /* GPUs a client */

/* The state of the message that tells the daemon of them: of one connection. */
enum cuda_order_state { CUDA_ORDER_UNTOLD, CUDA_ORDER_TOLD, CUDA_ORDER_KNOWN, CUDA_ORDER_REFUSED };

struct cuda_order {
	struct cuda_device device;
	CUevent events[WIRE_MAX_EVENTS];
	CUipcEventHandle handles[WIRE_MAX_EVENTS];
	_Atomic bool shares_events; /* the driver exports them, and the daemon took them */
	struct wire_words *words;
	CUdeviceptr device_words; /* 0: streams can neither write nor wait for words */
	int words_fd;
	bool wanted; /* a space whose pages the daemon reaches needs it. Control */
	/* control and ring */
	enum cuda_order_state state;
	uint32_t seq;
	struct cuda_busy busy; /* control */
};

/* The client's for that GPU, made at its first use. Control held. 0, or -errno and its sentence. */
int cuda_order_of(struct kvtier_client *c, const struct cuda_device *device,
		  struct cuda_order **ret);
void cuda_orders_close(struct kvtier_client *c);
void cuda_orders_lost(struct kvtier_client *c); /* the connection ended. Control */
/* Sends the messages that are due: 0: all is told and answered; -EAGAIN: not yet; else the
 * connection is lost. Control. */
int cuda_orders_advance(struct kvtier_client *c);
/* 1: the packet answers an ORDER; 0: it does not. error: of an ERROR. Control. */
int cuda_orders_reply(struct kvtier_client *c, uint32_t type, uint32_t seq, int error);

/* Orders the op after the work that is in the stream now. No lock held: it may wait for room in
 * the stream. staged: it is the library that waits. */
int cuda_order_after(struct cuda_order *order, const struct op *op, bool staged, CUstream stream);
/* Writes the order into the op's entry. Ring. */
void cuda_order_entry(const struct cuda_order *order, const struct op *op, struct wire_sqe *sqe);
/* Staged: the engine's stream has come so far. 1, 0: not yet, or -errno. Ring. */
int cuda_order_reached(const struct cuda_order *order, const struct op *op);
/* The op has ended: streams that wait for it go on. Ring. */
void cuda_order_done(struct cuda_order *order, const struct op *op);
/* The stream waits for the op of this id, which runs: for so many of its layer groups, or for its
 * end (0). o NULL: -EOPNOTSUPP. */
int cuda_order_wait(struct cuda_order *o, uint64_t id, uint32_t groups, CUstream stream);
/* So many groups of a store are in its pages: now (stream NULL), or when the stream has come so
 * far. No lock held, as above. */
int cuda_order_give(struct cuda_order *o, uint64_t id, uint32_t groups, CUstream stream);
uint32_t cuda_order_given(const struct cuda_order *o, const struct op *op); /* up to now */

#endif
