/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_order.h - the words that a client has on one GPU. They order ops after an engine's stream,
 * and streams after ops.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/abi/cuda_api.h"
#include "client/abi/wire.h"
#include "cuda.h"

enum {
	CUDA_ORDERS_MAX = 16, /* GPUs a client */
	CUDA_WORDS_KEPT = 64, /* words of clients that this process has closed */
};

/* Whether the daemon was told of them on this connection, and what it said. */
enum cuda_order_state { CUDA_ORDER_UNTOLD, CUDA_ORDER_TOLD, CUDA_ORDER_KNOWN, CUDA_ORDER_REFUSED };

/* The words, in memory that a client leaves to the next one of its process when it is closed. */
struct cuda_words {
	struct wire_words *at;
	int fd;
	bool registered;
	char path[108];   /* the socket of the daemon that has them */
	uint64_t process; /* which made them */
	uint64_t serial;  /* of the last op that they served */
};

struct cuda_order {
	struct cuda_device device;
	struct cuda_words *kept;
	struct wire_words *words; /* kept->at */
	CUdeviceptr device_words; /* 0: streams cannot write words or wait for them */
	bool wanted;              /* a space needs it whose pages the daemon reaches. Control */
	/* control and ring */
	enum cuda_order_state state;
	uint32_t seq;
};

/* All of a client. `ring` is held too when the list or a state changes. */
struct cuda_orders {
	struct cuda_order *of[CUDA_ORDERS_MAX];
	const char *path; /* of the client's socket */
	pthread_mutex_t *ring;
	uint64_t *serial; /* of the client's last op; ring */
};

/* Finds the one for this GPU, which is made at its first use. Control held. 0, or -errno with its
 * sentence. */
int cuda_order_of(struct cuda_orders *all, const struct cuda_device *device,
		  struct cuda_order **ret);
void cuda_orders_close(struct cuda_orders *all);
void cuda_orders_lost(struct cuda_orders *all); /* the connection ended. Control */
/* Sends the messages that are due, each with a number of its own. 0: all were sent and answered.
 * -EAGAIN: not yet. Another -errno: the connection is lost. Control held. */
int cuda_orders_advance(struct cuda_orders *all, int fd, uint32_t *seq);
/* 1: the packet answers an ORDER; 0: it does not. Control held. */
int cuda_orders_reply(struct cuda_orders *all, uint32_t type, uint32_t seq);

/* Orders an op, which is given by its id, after the work that is in the stream now. staged: the
 * library waits for that work, and not the daemon. No lock is held, as the call may wait for room
 * in the stream. */
int cuda_order_after(struct cuda_order *order, uint64_t op, bool staged, CUstream stream);
/* Writes the order into an entry that has its op, op_id and groups. Ring held. */
void cuda_order_entry(const struct cuda_order *order, bool ordered, struct wire_sqe *sqe);
/* Whether the engine's stream has reached the place after which a staged op comes. Ring held. */
bool cuda_order_reached(const struct cuda_order *order, uint64_t op);
/* The op has ended. Streams that wait for it, or for its layer groups, go on. Ring held. */
void cuda_order_done(struct cuda_order *order, uint64_t op, bool groups);
/* Has the stream wait for an op that runs: for so many of its layer groups, or for its end (0). If
 * order is NULL: -EOPNOTSUPP. */
int cuda_order_wait(struct cuda_order *order, uint64_t op, uint32_t groups, CUstream stream);
/* So many groups of a store are in its pages: now if stream is NULL, else when the stream has done
 * its work of now. No lock is held, as above. */
int cuda_order_give(struct cuda_order *order, uint64_t op, uint32_t groups, CUstream stream);
/* Whether so many were given up to now. */
bool cuda_order_all_given(const struct cuda_order *order, uint64_t op, uint32_t groups);
