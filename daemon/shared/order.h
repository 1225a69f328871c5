/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.h - the events that a client's ops on a device may wait for, and how its streams hear of
 * their end: the events and words of an ORDER message (wire.h). One for each device and connection.
 *
 *	order_import (helper) --> a connection's list, core --> order_release (helper)
 *
 * The words are the client's memory: a hint of it is believed only for its own pages.
 */
#ifndef KVTIER_SHARED_ORDER_H
#define KVTIER_SHARED_ORDER_H

#include "daemon/device/devices.h"
#include "proto.h"

struct order {
	struct order *next;
	struct device *device;
	struct device_events events; /* n 0: none */
	struct wire_words *words;
};

/* On a helper thread; fd is a client's, and stays the caller's. -errno with text (>= 232 bytes). */
int order_import(const struct devices *devices, const struct proto_order *m, int fd,
		 struct order **ret, char *text, size_t n);
void order_release(struct order *order); /* on a helper thread: and frees it */

/* Core thread. NULL: the client has sent none for this device. */
struct order *order_find(struct order *list, const struct device *device);
/* The events that have to come before an op's pages are touched. The op's event and word were
 * checked. */
struct device_order order_of(const struct order *order, const struct wire_sqe *sqe);
/* The op begins: its words are fetched, since its client had them last. */
void order_prefetch(const struct order *order, const struct wire_sqe *sqe);
/* So many groups of layers of a load are in all of its pages. */
void order_layers(const struct order *order, const struct wire_sqe *sqe, uint32_t groups);
/* No page of the op is touched any more: raises its words. */
void order_done(const struct order *order, const struct wire_sqe *sqe);

#endif
