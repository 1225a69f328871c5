/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_engine.h - for tests of libkvtier: a small daemon that keeps pages in an array, and lies
 * when told to; and an engine of 64 opaque pages against it. The daemon is a thread of the test,
 * for one connection at a time; `hold` and the like may be changed while it runs. Facts beside the
 * test's question are asserted inside.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "client/kvtier.h"
#include "client/abi/wire.h"

enum peer_lie {
	PEER_HONEST,
	PEER_SILENT,    /* accepts, says nothing */
	PEER_FULL_ONCE, /* is PEER_FULL on its first connection, PEER_SILENT on others */
	PEER_HANGS_UP,  /* accepts, closes */
	PEER_GARBAGE,   /* answers HELLO with noise */
	PEER_SHORT,     /* ... with half a HELLO_OK */
	PEER_LONG,      /* ... with a packet larger than any message */
	PEER_VERSION,   /* ... with a version nobody asked for */
	PEER_REFUSES,   /* ... with ERROR -EPROTO and a text */
	PEER_FULL,      /* ... with ERROR -EBUSY, and closes */
	PEER_NO_FDS,
	PEER_MANY_FDS,
	PEER_UNSEALED, /* submit memory without F_SEAL_SHRINK */
	PEER_WRITABLE, /* complete memory without F_SEAL_FUTURE_WRITE */
	PEER_SMALL,    /* complete memory smaller than said */
	PEER_ENTRIES,  /* a ring of 3 */
	PEER_HUGE_ARENA,
	PEER_BAD_INDEX,
	PEER_TAIL,        /* rings: cq_tail far ahead, once an op came */
	PEER_FOREIGN_CQE, /* completes an op that nobody submitted */
	PEER_DOUBLE_CQE,
	PEER_WRONG_N,
	PEER_WRONG_STATUS,  /* a status that does not exist */
	PEER_UNASKED_REPLY, /* SPACE_CLOSED out of the blue, once an op came */
	PEER_WRONG_HANDLE,  /* SPACE_OK with handle 99 */
	PEER_REFUSES_SPACE,
	PEER_IGNORES_SPACE, /* never answers SPACE_OPEN */
	PEER_IGNORES_CLOSE, /* never answers SPACE_CLOSE */
	PEER_LIES,
};

enum { PEER_PAGE_BYTES = 16384, PEER_BLOCKS = 1024 };

struct peer {
	char path[108];
	_Atomic int lie;
	_Atomic bool hold;    /* takes nothing off the ring */
	_Atomic bool keep;    /* takes ops and never completes them */
	_Atomic bool deaf;    /* reads nothing off the socket, sees no hang-up */
	_Atomic int pidfd;    /* sent as the fourth descriptor of HELLO_OK; 0: none */
	_Atomic bool quiet;   /* heartbeat stands still */
	_Atomic bool hang_up; /* drops the connection, once */
	_Atomic uint8_t salt; /* fills the salts it gives */
	_Atomic uint32_t connections, wakes, ops, taken; /* taken: off the ring */
	_Atomic uint64_t deadline_ns;                    /* of the entry that it took last */
	_Atomic uint32_t entries, arena; /* as it offers them; set before the client connects */
	_Atomic uint32_t version;        /* of the wire, the same */
	/* the thread's own */
	pthread_t thread;
	_Atomic bool stop;
	int listen_fd, fd;
	int memory_fd[3];
	struct wire_submit *submit;
	struct wire_complete *complete;
	struct wire_index *index;
	uint64_t submit_bytes, complete_bytes; /* mapped here */
	uint32_t sq_head, cq_tail;
	struct peer_space {
		bool open;
		uint8_t *pages;
		uint64_t bytes, page_bytes;
	} spaces[WIRE_MAX_SPACES];
	struct peer_block {
		uint8_t key[32];
		uint8_t bytes[PEER_PAGE_BYTES];
		bool used;
	} * blocks;
};

/* The clock of all peers is so far ahead of the test's. */
extern _Atomic int64_t fake_clock_ahead_ns;

void peer_start(struct peer *peer, enum peer_lie lie); /* asserts on failure */
void peer_stop(struct peer *peer);

/* --- the engine --- */

enum { PAGES = 64, PAGE_BYTES = 4096 };

/* Of the next engine and its ops: 20 s. A test that waits for the end of it sets less. */
extern uint32_t fake_timeout_ms;

struct engine {
	struct peer peer;
	struct kvtier_client *client;
	struct kvtier_space *space;
	uint8_t *memory;
	int fd;
	struct kvtier_key key; /* fake_keys() of seed 1 */
};

/* One opaque row a page, of one layer. */
extern const struct kvtier_geometry fake_geometry;
extern const struct kvtier_segment fake_segment;

/* private: KVTIER_PRIVATE, with room for 3 pages in the staging memory. */
void fake_open(struct engine *e, bool private);
void fake_open_with(struct engine *e, bool private, uint32_t entries, uint32_t arena);
void fake_close(struct engine *e);
/* A case with `sole`, which is open and is closed when it has ended. */
#define TEST_FAKE(name, private) TEST_GIVEN(name, fake_begin, fake_end, private)
/* Two: the same with shared and with private memory. */
#define TEST_FAKES(name, shared, staged)                               \
	TEST_ROWS(name, { #shared, name, fake_begin, fake_end, NULL }, \
		  { #staged, name, fake_begin, fake_end, (void *)1 })
extern struct engine sole;
int fake_begin(void **state);
int fake_end(void **unused);
/* n <= PAGES */
void fake_keys(struct engine *e, uint32_t seed, size_t n, struct kvtier_key *ret);
void fake_fill(struct engine *e, uint32_t page, uint8_t value);
void fake_page_is(struct engine *e, uint32_t page, uint8_t value); /* asserts */
void fake_store_again(struct engine *e); /* until it works: the client is back */
