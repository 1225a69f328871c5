/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_gpu_raw.h - an engine with pages in the memory of a GPU that speaks the wire by hand, for
 * tests of the daemon's work on them. Helpers end the test when they cannot do their part.
 */
#pragma once

#include "lib_gpu.h"
#include "lib_raw.h"

/* Pages [page][layer][K|V][token][head][dim], as in lib.h. */
struct gpu_raw {
	struct raw raw;
	const struct gpu *gpu;
	struct kvtier_geometry geometry;
	uint32_t pages;
	size_t page_bytes;
	CUdeviceptr own;    /* cuMemAlloc(); gpu_raw_close() frees it */
	CUdeviceptr memory; /* page 0 lies `offset` behind it: `own`, or what the test put there */
	uint64_t offset;
	uint8_t *host; /* gpu_raw_open_host(): the pages are here, and not on the GPU */
	int host_fd;
	uint32_t space;
	uint32_t position;        /* of the next entry */
	struct wire_words *words; /* gpu_raw_order() */
};

/* Where a region is: the memory of a plain allocation by its legacy handle; that of all pages. */
struct wire_region gpu_region(const struct gpu *g, CUdeviceptr memory, uint64_t offset,
			      uint64_t length);
struct wire_region gpu_raw_region(const struct gpu_raw *e);
void gpu_uuid(const struct gpu *g, uint8_t ret[WIRE_UUID_BYTES]);

/* Connects, and allocates pages. No space yet. */
void gpu_raw_dial(struct gpu_raw *e, const char *socket, const struct gpu *g,
		  const struct kvtier_geometry *geometry, uint32_t pages);
/* SPACE_OPEN over these regions; the answer's errno: 0, or the ERROR's (text: >= 232 bytes). */
int gpu_raw_space(struct gpu_raw *e, const struct wire_region *regions, uint32_t n, const int *fds,
		  uint32_t n_fds, char *text);
/* Likewise; it must not be refused. It must be, with this errno and these words (fd -1: none). */
void gpu_raw_space_open(struct gpu_raw *e, const struct wire_region *regions, uint32_t n,
			const int *fds, uint32_t n_fds);
void gpu_raw_space_refused(struct gpu_raw *e, const struct wire_region *region, int fd, int error,
			   const char *words);
/* Asks once, for one region of a legacy handle. */
int gpu_raw_ask(struct gpu_raw *e, char *text);
/* The same; it must not be refused. */
void gpu_raw_open_again(struct gpu_raw *e);
/* All of it, with such a region. */
void gpu_raw_open(struct gpu_raw *e, const char *socket, const struct gpu *g,
		  const struct kvtier_geometry *geometry, uint32_t pages);
/* The same space, its pages in a memfd. */
void gpu_raw_open_host(struct gpu_raw *e, const char *socket,
		       const struct kvtier_geometry *geometry, uint32_t pages);
/* ORDER; the answer's errno. */
int gpu_raw_order(struct gpu_raw *e);
void gpu_raw_close_space(struct gpu_raw *e); /* waits for SPACE_CLOSED */
void gpu_raw_close(struct gpu_raw *e);       /* and frees the pages */
void gpu_raw_close_all(struct gpu_raw *e);   /* first the space, then the rest */

/* Entries for n blocks of a chain named by a number, from page `first` on. */
struct wire_sqe gpu_raw_sqe(struct gpu_raw *e, enum wire_op op, uint32_t chain, uint32_t first,
			    uint32_t n);
/* Likewise, its keys and pages from this slot of the arena on: for several ops at once. */
struct wire_sqe gpu_raw_sqe_at(struct gpu_raw *e, uint32_t slot, enum wire_op op, uint32_t chain,
			       uint32_t first, uint32_t n);
/* The status of the block in a slot of the arena; its op has completed. */
int32_t gpu_raw_status(const struct gpu_raw *e, uint32_t slot);
void gpu_raw_send(struct gpu_raw *e, const struct wire_sqe *sqe);
/* Sends such an entry as it is. */
void gpu_raw_start(struct gpu_raw *e, enum wire_op op, uint32_t chain, uint32_t first, uint32_t n);
/* Waits for the completions of all entries, and takes them: that of the last one to complete. */
struct wire_cqe gpu_raw_await(struct gpu_raw *e);
bool gpu_raw_completed(const struct gpu_raw *e); /* its completion is there */
struct wire_cqe gpu_raw_run(struct gpu_raw *e, enum wire_op op, uint32_t chain, uint32_t first,
			    uint32_t n);

/* BF16 values that FP8 holds exactly, a function of chain and block. */
void gpu_raw_fill(struct gpu_raw *e, uint32_t chain, uint32_t first, uint32_t n);
void gpu_raw_poison(struct gpu_raw *e, uint32_t first, uint32_t n);
bool gpu_raw_holds(struct gpu_raw *e, uint32_t chain, uint32_t block, uint32_t page);
/* Of its first layers only. */
bool gpu_raw_holds_layers(struct gpu_raw *e, uint32_t chain, uint32_t block, uint32_t page,
			  uint32_t layers);
bool gpu_raw_is_poison(struct gpu_raw *e, uint32_t page);
/* Pages first.. hold the chain's first n blocks; are poison. */
void gpu_raw_all_hold(struct gpu_raw *e, uint32_t chain, uint32_t first, uint32_t n);
void gpu_raw_all_poison(struct gpu_raw *e, uint32_t first, uint32_t n);
/* Fills pages first.. and stores them; poisons them, loads the blocks and looks at them. */
void gpu_raw_store(struct gpu_raw *e, uint32_t chain, uint32_t first, uint32_t n);
void gpu_raw_load(struct gpu_raw *e, uint32_t chain, uint32_t first, uint32_t n);
/* Stores n blocks from the first n pages, and loads them into the next n. */
void gpu_raw_round_trip(struct gpu_raw *e, uint32_t chain, uint32_t n);

/* Waits until the daemon's devices have so many of it: "jobs" that have not ended, "regions". */
void gpu_devices_have(const struct daemon *d, const char *what, uint32_t n);
/* The first GPU and a kvtierd, as the setup of a case: returns 0. */
int gpu_daemon_begin(struct daemon *d, struct gpu *gpu, const char *config);
/* The end of a case that has closed its engines: the daemon has no region and no op in flight and
 * stops, and the driver's report has no complaint of it. Returns 0. */
int gpu_daemon_end(struct daemon *d, struct gpu *gpu);
/* Each case has both: `gpu`, and the daemon `d`. */
#define GPU_DAEMON_EACH(config)                            \
	static struct daemon d;                            \
	static struct gpu gpu;                             \
	FIXTURE(begin)                                     \
	{                                                  \
		return gpu_daemon_begin(&d, &gpu, config); \
	}                                                  \
	FIXTURE(end)                                       \
	{                                                  \
		return gpu_daemon_end(&d, &gpu);           \
	}                                                  \
	TEST_EACH(begin, end)
