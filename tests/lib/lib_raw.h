/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_raw.h - shared by tests of a hostile client: the wire protocol spoken by hand (so that it can
 * be spoken wrongly), and a witness: an honest engine on a thread of its own that stores and loads
 * all the while.
 */
#pragma once

#include "client/abi/wire.h"
#include "lib.h"

struct raw {
	int fd;
	uint32_t seq;
	struct wire_hello_ok ok;
	struct wire_submit *submit;
	const struct wire_complete *complete;
};

/* Connects, and says nothing. Receiving ends the test after 20 s. */
void raw_dial(struct raw *r, const char *socket);
void raw_hello(struct raw *r);                    /* an honest HELLO, answered; the rings mapped */
void raw_open(struct raw *r, const char *socket); /* both */
void raw_close(struct raw *r);
struct wire_head raw_head(struct raw *r, enum wire_type type, size_t n);
struct wire_hello raw_hello_message(struct raw *r);
/* The version that the next HELLO offers; 0: all. */
extern uint32_t raw_version;
/* Makes a SPACE_OPEN one of the connection's version; returns its bytes. */
size_t raw_space_narrow(const struct raw *r, struct wire_space_open *open);

/* 0 or -errno. fds may be NULL. */
int raw_send(const struct raw *r, const void *message, size_t n, const int *fds, size_t n_fds);
/* Bytes of the next packet; 0: the daemon closed the connection. Received fds are closed. */
size_t raw_receive(const struct raw *r, void *ret, size_t n);
/* But the first, which is the caller's; -1: there was none. */
size_t raw_receive_fd(const struct raw *r, void *ret, size_t n, int *ret_fd);
/* The daemon ends the connection, after an ERROR -EPROTO whose text contains `text`. */
void raw_expect_cut(struct raw *r, const char *text);
/* The next packet is an ERROR with this errno and text, and the connection still answers. */
void raw_expect_refused(struct raw *r, int error, const char *text);

/* SPACE_OPEN of tiny raw pages in one region; change it before sending. */
struct raw_space {
	struct wire_space_open open;
	struct wire_region region;
	struct wire_segment segments[4];
};
enum { RAW_PAGES = 16 };
void raw_space_fill(struct raw *r, struct raw_space *ret);
size_t raw_region_bytes(void);
/* Opens it over a good memfd, which is returned (the caller's); *ret_handle: for sqes. */
int raw_space_open(struct raw *r, uint32_t *ret_handle);
void raw_space_close(struct raw *r, uint32_t handle); /* waits for SPACE_CLOSED */
uint8_t *raw_region_map(int fd);                      /* raw_region_bytes() */
/* Opens spaces with as many regions as there may be, a mapping each, until one is refused; how many
 * were not, and why no more. */
uint32_t raw_hoard(struct raw *r, int *ret_error);

/* An entry that is in order, for one block; change it before pushing. */
struct wire_sqe raw_sqe(enum wire_op op, uint32_t space);
/* into the ring, unpublished */
void raw_put(struct raw *r, uint32_t position, const struct wire_sqe *sqe);
void raw_publish(struct raw *r, uint32_t tail);                              /* with a doorbell */
void raw_push(struct raw *r, uint32_t position, const struct wire_sqe *sqe); /* both */
/* Likewise, and waits for its completion: of an entry each, so far. */
void raw_run(struct raw *r, uint32_t position, const struct wire_sqe *sqe);
struct wire_sqe *raw_entries(struct raw *r);
uint8_t *raw_keys(struct raw *r);
uint32_t *raw_pages(struct raw *r);
/* Waits until cq_tail is `tail`; ends the test after 20 s. */
void raw_await(const struct raw *r, uint32_t tail);
void raw_taken(struct raw *r, uint32_t tail); /* completions before it are */
const struct wire_cqe *raw_cqe(const struct raw *r, uint32_t position);
int32_t raw_status(const struct raw *r, uint32_t slot); /* of the arena */

/* --- the daemon's size --- */

struct daemon_size {
	int fds;
	long kib;
};

struct daemon_size daemon_size(const struct daemon *d);
/* Ends the test if the daemon grew: as many descriptors, and no more memory than an allocator's
 * whims explain. */
void daemon_size_check(const struct daemon *d, const struct daemon_size *before);

/* --- the witness --- */

struct witness {
	pthread_t thread;
	struct engine engine;
	struct kvtier_key keys[64];
	bool may_miss; /* the test evicts; set before witness_start() */
	_Atomic bool stop;
	_Atomic uint64_t rounds;
	_Atomic uint64_t failures;
	int first_failure;
};

void witness_start(struct witness *w, const char *socket);
/* It goes on: a whole round from now on came out right. */
void witness_check(struct witness *w);
void witness_stop(struct witness *w); /* ends the test if anything ever went wrong */

/* --- a daemon under attack, with a witness at work --- */

struct attacked {
	struct daemon d;
	struct witness witness;
	struct daemon_size size; /* with the witness at work */
	uint64_t errors;         /* that were counted before the case */
};

/* may_miss: the attacker's blocks may push out the witness's. */
void attacked_begin(struct attacked *a, const char *config, bool may_miss);
int attacked_end(void **state); /* *state begins with one. Also: the daemon has not grown */
/* Around a case, whose *state is an attacked: the attacker is cut off once, and harms nobody. */
int attacked_before_case(void **state);
int attacked_after_case(void **state);
