/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_order.h - the words that a client's ops on a device may wait for, and by which its streams
 * see that ops have ended. They come in an ORDER message (wire.h). A connection has at most one for
 * each device.
 *
 *	stream_order_import (helper) --> a connection's list, core --> stream_order_release (helper)
 *
 * The words lie in the client's memory, so what it writes there can only affect its own pages.
 */
#pragma once

#include "daemon/device/device.h"
#include "proto.h"

struct stream_order {
	struct stream_order *next;
	struct device *device;
	struct wire_words *words;
};

/* Runs on a helper thread, since fd is a client's; it stays the caller's. -errno with text (>= 232
 * bytes). */
int stream_order_import(const struct devices *devices, const uint8_t device[WIRE_UUID_BYTES],
			int fd, struct stream_order **ret, char *text, size_t n);
void stream_order_release(struct stream_order *order); /* frees it; on a helper thread */

/* Core thread. NULL: the client has sent no ORDER for this device. */
struct stream_order *stream_order_find(struct stream_order *list, const struct device *device);
/* What has to come before the pages of an op are touched. The op's word was checked. */
struct device_order stream_order_of(const struct stream_order *order, const struct wire_sqe *sqe);
/* The op begins: fetches the cache lines of its words, which its client had last. */
void stream_order_prefetch(const struct stream_order *order, const struct wire_sqe *sqe);
/* Says that so many layer groups of a load are in all of its pages. */
void stream_order_layers(const struct stream_order *order, const struct wire_sqe *sqe,
			 uint32_t groups);
/* Says that the pages of the op are not touched any more: raises its words. */
void stream_order_done(const struct stream_order *order, const struct wire_sqe *sqe);
