/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_engine.h - an engine of 64 opaque pages against a fake daemon (fake_peer.h), for tests of
 * libkvtier. Facts beside the test's question are asserted inside.
 */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include "fake_peer.h"

enum { PAGES = 64, PAGE_BYTES = 4096 };

/* Of the next engine and its ops: 20 s. A test that waits for the end of it sets less. */
extern uint32_t fake_timeout_ms;

struct engine {
	struct peer peer;
	struct kvtier_client *client;
	struct kvtier_space *space;
	uint8_t *memory;
	int fd;
};

/* One opaque row a page, of one layer. */
extern const struct kvtier_geometry fake_geometry;
extern const struct kvtier_segment fake_segment;

/* private: KVTIER_PRIVATE, with room for 3 pages in the staging memory. */
void fake_open(struct engine *e, bool private);
void fake_open_with(struct engine *e, bool private, uint32_t entries, uint32_t arena);
void fake_close(struct engine *e);
/* n <= PAGES */
void fake_keys(struct engine *e, uint32_t seed, size_t n, struct kvtier_key *ret);
void fake_fill(struct engine *e, uint32_t page, uint8_t value);
void fake_page_is(struct engine *e, uint32_t page, uint8_t value); /* asserts */
void fake_store_again(struct engine *e); /* until it works: the client is back */

#endif
