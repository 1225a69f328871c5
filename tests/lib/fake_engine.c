/* SPDX-License-Identifier: Apache-2.0 */
/* fake_engine.c - see fake_engine.h. */
#include "fake_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const struct kvtier_geometry fake_geometry = { .size = sizeof(fake_geometry),
					       .dtype = KVTIER_BF16,
					       .model = "m",
					       .convention = "c",
					       .layers = 1,
					       .block_tokens = 4,
					       .world = 1,
					       .opaque_bytes = PAGE_BYTES };
const struct kvtier_segment fake_segment = { .size = sizeof(fake_segment),
					     .kind = KVTIER_OPAQUE,
					     .page_stride = PAGE_BYTES,
					     .length = PAGE_BYTES };

uint32_t fake_timeout_ms = 20000;

/* A busy machine may take longer over an answer than fake_timeout_ms. */
#define INSIST(call)                                                                   \
	do {                                                                           \
		int failed = -ETIMEDOUT;                                               \
                                                                                       \
		for (int tries = 0; failed == -ETIMEDOUT && tries < 40; tries++)       \
			failed = (call);                                               \
		if (failed)                                                            \
			(void)fprintf(stderr, "%s: %s\n", #call, kvtier_last_error()); \
		assert(!failed);                                                       \
	} while (0)

void fake_open_with(struct engine *e, bool private, uint32_t entries, uint32_t arena)
{
	struct kvtier_region r = { .size = sizeof(r),
				   .memory = private ? KVTIER_PRIVATE : KVTIER_MEMFD,
				   .length = PAGES * PAGE_BYTES };
	struct kvtier_options o = { .size = sizeof(o),
				    .timeout_ms = fake_timeout_ms,
				    .staging_bytes = 3 * PAGE_BYTES };

	memset(e, 0, sizeof(*e));
	peer_start(&e->peer, PEER_HONEST);
	e->peer.entries = entries;
	e->peer.arena = arena;
	o.socket_path = e->peer.path;
	INSIST(kvtier_connect(&o, &e->client));
	e->fd = r.fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert(r.fd >= 0 && !ftruncate(r.fd, PAGES * PAGE_BYTES) &&
	       !fcntl(r.fd, F_ADD_SEALS, F_SEAL_SHRINK));
	e->memory = mmap(NULL, PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, 0);
	assert(e->memory != MAP_FAILED);
	r.base = e->memory;
	INSIST(kvtier_space_open(e->client, &fake_geometry, &r, 1, &fake_segment, 1, &e->space));
}

void fake_open(struct engine *e, bool private)
{
	fake_open_with(e, private, 64, 256);
}

void fake_close(struct engine *e)
{
	e->peer.hold = false;
	kvtier_close(e->client);
	(void)munmap(e->memory, PAGES * PAGE_BYTES);
	(void)close(e->fd);
	peer_stop(&e->peer);
}

void fake_keys(struct engine *e, uint32_t seed, size_t n, struct kvtier_key *ret)
{
	uint32_t tokens[4 * PAGES];

	for (size_t i = 0; i < 4 * n; i++)
		tokens[i] = seed + (uint32_t)i;
	assert(!kvtier_keys(e->space, NULL, tokens, 4 * n, ret, &n));
}

void fake_fill(struct engine *e, uint32_t page, uint8_t value)
{
	memset(e->memory + page * PAGE_BYTES, value, PAGE_BYTES);
}

void fake_page_is(struct engine *e, uint32_t page, uint8_t value)
{
	for (size_t i = 0; i < PAGE_BYTES; i++)
		assert(e->memory[page * PAGE_BYTES + i] == value);
}

void fake_store_again(struct engine *e)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_key key;
	uint64_t op;
	int rc = -ENOTCONN;

	fake_keys(e, 77, 1, &key);
	for (int i = 0; i < 10000 && rc; i++) {
		rc = kvtier_store(e->space, &key, &(uint32_t){ 0 }, 1, NULL, &op);
		assert(rc == 0 || rc == -ENOTCONN);
		if (!rc && !kvtier_wait(e->client, op, -1, &result))
			rc = result.status;
		(void)usleep(500);
	}
	assert(!rc);
}
