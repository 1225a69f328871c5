/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - libkvtier's inside. Not installed; the daemon includes none of it.
 *
 * A call of the public API runs on its caller's thread; the library has no others. A client has two
 * locks. No call waits while it holds one, so no call can block another past its deadline:
 *
 *	control  the socket and the session's state, the list of spaces and each one's state
 *	ring     submission, completions, op table, arenas, staging memory (copies included)
 *
 * Order: control before ring. `link`, `fd` and a space's `error`, `text`, `handle` and `open`
 * change with both held (a close needs only ring to clear `open`).
 *
 * kvtier_lookup() takes neither lock. It counts itself into `readers` around its use of *link. A
 * link that was taken out of use is unmapped when it has neither readers nor `refs` (threads asleep
 * on it). The keys of a space have a lock of their own, a leaf: take no locks while holding it.
 *
 * Files call each other in one direction: client.c > space.c > submit.c > turn.c > session.c >
 * spaces.c; below them chunk.c, op.c and the files that serve these.
 *
 * Pages that are still lent over ended connections belong to the process, not to a client: lent.c.
 * Its lock is a leaf below all of these.
 *
 * The library believes nothing that the daemon says. It checks sizes, seals, handles, statuses and
 * op ids on a private copy. A lie ends the connection (session_lost()), which completes every op
 * with -ECONNRESET.
 */
#ifndef KVTIER_CLIENT_H
#define KVTIER_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <time.h>

#include "client/kvtier.h"
#include "map.h"
#include "client/wire.h"

struct cuda_memory;
struct cuda_order;

/* A GPU of the daemon that has just failed, and comes back (cuda.h). */
struct cuda_busy {
	uint64_t since_ns; /* 0: it has not */
	uint64_t retry_ns; /* not asked again before */
};

enum {
	CLIENT_SLICE_MS = 20, /* a sleeper looks at the socket this often */
	/* and so often at an engine's stream that a staged op waits for */
	CLIENT_STREAM_SLICE_NS = 50000,
	/* so long after an op's deadline kvtier_wait(-1) gives up on the op */
	CLIENT_GRACE_MS = 1000,
	CLIENT_BACKOFF_MIN_MS = 50,
	CLIENT_BACKOFF_MAX_MS = 5000,
	CLIENT_REOPEN_MS = 1000,    /* until a space that was open before is opened again */
	CLIENT_SPIN_MAX_US = 10000, /* the daemon's advice is cut to this */
	CLIENT_SQ_ENTRIES = 256,    /* wished for in HELLO */
	CLIENT_ARENA_BLOCKS = 32768,
};

/* ---- time ---- */
static inline uint64_t client_now(void) /* CLOCK_MONOTONIC, ns */
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t ms_to_ns(uint64_t ms)
{
	return ms * 1000000u;
}

/* ---- arena.c: contiguous ranges of [0, blocks), first fit, freed in any order ---- */
struct range {
	uint32_t first, n;
};

struct arena {
	uint32_t blocks, n_used;
	struct range used[KVTIER_MAX_OPS]; /* by first, disjoint */
};

void arena_init(struct arena *arena, uint32_t blocks);
/* A range of at most `most` and at least `least` > 0: the largest gap up to `most`. -EAGAIN: no
 * room. */
int arena_take(struct arena *arena, uint32_t least, uint32_t most, struct range *ret);
void arena_give(struct arena *arena, uint32_t first); /* the start of a range that was taken */

/* ---- process.c: a client belongs to the process that made it ---- */
/* this process's number, 0: none yet. No use before process_begin() */
extern _Atomic uint64_t *process_mark;
/* gives this process a number, > 0; each client made in it has the same */
uint64_t process_begin(void);
int process_refuse(void); /* -EPERM with its sentence */

static inline bool process_ours(uint64_t made_in)
{
	return atomic_load_explicit(process_mark, memory_order_relaxed) == made_in;
}

/* ---- lent.c: pages a daemon may still touch although their ops have ended. Any thread ---- */
enum { LENT_GRAVES_MAX = 64 }; /* with so many graves no connection is made */
extern _Atomic uint32_t lent_graves;

/* Where a region lies: its memfd by device and inode; a GPU's memory by its address, which is one
 * for all GPUs. All 0: its memory was taken back. */
struct lent_place {
	uint64_t device, inode, offset, length;
};
enum { LENT_CUDA = 1 }; /* device and inode of a GPU's memory: no memfd has these */
int lent_place_of(int fd, const struct kvtier_region *region, struct lent_place *ret); /* -errno */

/* which memory a space's pages lie in, and how; NULL for staged pages, or none */
struct lent_layout;
int lent_layout_open(const struct lent_place *places, size_t n_places,
		     const struct wire_segment *segments, size_t n_segments,
		     struct lent_layout **ret);
void lent_layout_close(struct lent_layout *layout); /* its space is gone; NULL is fine */

struct grave; /* of one connection; made when it comes up */
/* room for so many pages. Takes pidfd (-1: none) if 0 */
int grave_open(uint32_t room, int pidfd, struct grave **ret);
/* the connection ended without a need for it; NULL is fine */
void grave_close(struct grave *grave);
void grave_add(struct grave *grave, struct lent_layout *layout, uint64_t op, const uint32_t *pages,
	       uint32_t n);
/* Takes the grave and the socket. A number for lent_op(), or 0: nothing is lent, all is closed. */
uint64_t grave_bury(struct grave *grave, int fd);

/* forgets graves whose daemon let go */
void lent_look(void);
/* 0, -EBUSY and its sentence */
int lent_check(const struct lent_layout *layout, const uint32_t *pages, size_t n);
/* pages of an op that are lent still */
uint32_t lent_op(uint64_t grave, uint64_t op);
uint32_t lent_space(const struct lent_layout *layout); /* pages of a space */
void lent_fill(const struct lent_layout *layout, uint32_t page, struct kvtier_lent *ret);
size_t lent_list(size_t at, void (*put)(void *arg, size_t at, const struct kvtier_lent *lent),
		 void *arg);
/* some space of this process uses it */
bool lent_memory_open(uint64_t device, uint64_t inode);
/* the memory was taken back */
void lent_forget(uint64_t device, uint64_t inode);
void lent_lock(void); /* for fork() */
void lent_unlock(void);
void lent_child(void); /* in the child: forgets all graves, unlocks */

/* ---- ring.c: one connection's shared memory ---- */
struct link {
	struct wire_submit *submit;           /* read and write */
	const struct wire_complete *complete; /* read-only, as is the index */
	struct map *map;
	const struct wire_index *index;
	struct wire_sqe *sqes;
	struct kvtier_key *keys;
	uint32_t *pages;
	const struct wire_cqe *cqes;
	const int32_t *statuses;
	uint64_t submit_bytes, complete_bytes;
	uint32_t sq_entries, cq_entries, arena_blocks;
	uint32_t sq_tail, cq_head; /* private copies: ours are the truth */
	uint32_t in_flight;        /* ops on the wire, <= cq_entries */
	uint32_t refs;             /* threads asleep on it */
	uint64_t serial;           /* of this connection in the client's life, from 1 */
	struct arena arena;
	struct grave *grave; /* made with the link; NULL once it is buried */
	struct link *next;   /* retired ones */
};

/* fds stay the caller's. -EPROTO with kvtier_last_error(): the daemon offers memory that is not
 * safe. */
int link_open(const struct wire_hello_ok *ok, const int fds[3], struct link **ret);
void link_close(struct link *link);                           /* NULL is fine */
int ring_push(struct link *link, const struct wire_sqe *sqe); /* -EAGAIN: full; -EPROTO */
/* The connection is given up. A daemon that was stopped may read the rings before it sees the
 * socket shut down. So entries that it has not read are withdrawn. Returns sq_head: entries from
 * there on never touch a page. */
uint32_t ring_withdraw(struct link *link);
/* after ring_push: the daemon wants a DOORBELL */
bool ring_asleep(const struct link *link);
/* 1: a private copy; 0: none; -EPROTO */
int ring_next(struct link *link, struct wire_cqe *ret);
bool ring_moved(const struct link *link, uint32_t seen);
/* the daemon took every sqe before `tail` */
bool ring_passed(const struct link *link, uint32_t tail);
/* until cq_tail != seen (true), at most ns */
bool ring_sleep(struct link *link, uint32_t seen, uint64_t ns);

/* ---- socket.c: one packet in or out, never blocking ---- */
enum { SOCKET_MAX_FDS = 8, SOCKET_PACKET_BYTES = 1024 };

struct packet {
	union {
		struct wire_head head;
		struct wire_hello_ok hello_ok;
		struct wire_error error;
		struct wire_space_ok space_ok;
		struct wire_space_close closed;
		uint8_t bytes[SOCKET_PACKET_BYTES];
	};
	int fds[SOCKET_MAX_FDS];
	int n_fds;
};

int socket_connect(const char *path, int *ret); /* -EAGAIN: its backlog is full */
int socket_send(int fd, const void *message, size_t n, const int *fds, size_t n_fds);
/* 0: a packet with a checked head; -EAGAIN: none; -ECONNRESET: the peer is gone; -EPROTO: not a
 * message; -EMFILE: descriptors came with the packet, and this process has no room for them. */
int socket_receive(int fd, struct packet *ret);
void packet_close(struct packet *packet); /* closes the fds that nobody took */

/* ---- session.c: connection, handshake, dispatch, reconnection ----
 *
 *	AWAY --connected, HELLO sent--> GREETING --HELLO_OK, links mapped--> UP
 *	  ^------------- hang-up, timeout, violation, cut: session_lost() ----' */
enum session_state { SESSION_AWAY, SESSION_GREETING, SESSION_UP };

/* One non-blocking step: connects if it is time, takes packets, opens and closes spaces. Control
 * held. */
void session_advance(struct kvtier_client *c, uint64_t now);
/* The same step from calls that do not hold control, at most once a millisecond (AWAY: once a
 * backoff). */
void session_nudge(struct kvtier_client *c);
/* Drops the connection, completes every op with -ECONNRESET. Control lock held. error < 0. */
void session_lost(struct kvtier_client *c, int error, const char *why);
/* Like session_lost(), but takes the lock itself, and does nothing if `serial` is not the current
 * connection any more. */
void session_cut(struct kvtier_client *c, uint64_t serial, int error, const char *why);
/* unmaps retired links that nobody uses; control */
void session_reap(struct kvtier_client *c);
/* Sleeps until the socket has a packet, for a slice at most. No lock held. */
void session_pause(struct kvtier_client *c, uint64_t deadline);
void session_doorbell(struct kvtier_client *c, uint64_t serial); /* no lock held */

/* ---- keys.c ---- */
struct keys;
int keys_open(uint32_t block_tokens, struct keys **ret);
void keys_close(struct keys *keys);
void keys_salt(struct keys *keys, const uint8_t salt[32]);
bool keys_salted(struct keys *keys);
int keys_chain(struct keys *keys, const struct kvtier_key *parent, const uint32_t *tokens,
	       size_t n_tokens, struct kvtier_key *ret, size_t *ret_n);

/* ---- staged.c: sealed memory in front of pages that cannot be shared ---- */
struct staged;
/* Arguments have passed check_layout(). cuda: the memory that the regions are of, which outlives
 * this; NULL: host memory. */
int staged_open(const struct kvtier_geometry *geometry, const struct kvtier_region *regions,
		const struct kvtier_segment *segments, size_t n_segments, uint64_t staging_bytes,
		const struct cuda_memory *cuda, struct staged **ret);
void staged_close(struct staged *staged);
/* A new memfd for a new connection: an old daemon that wakes late must not write into it. */
int staged_renew(struct staged *staged);
int staged_fd(const struct staged *staged);
uint64_t staged_bytes(const struct staged *staged); /* of the memfd */
uint64_t staged_user_pages(const struct staged *staged);
uint32_t staged_pages(const struct staged *staged);
struct arena *staged_arena(struct staged *staged);
void staged_populate(struct staged *staged, uint32_t end); /* pages below: allocated */
void staged_segment(const struct staged *staged, size_t i, struct wire_segment *ret);
/* user -> staging. From a GPU: the copies begin here, and have ended when staged_copied() has
 * returned. 0, or -errno */
int staged_copy_in(struct staged *staged, uint64_t user_page, uint32_t page);
/* staging -> user; likewise */
int staged_copy_out(struct staged *staged, uint64_t user_page, uint32_t page);
/* Afterwards all copies that were begun have ended, also when one has failed. */
int staged_copied(struct staged *staged);

/* ---- populate.c: pages of shared regions are allocated before the daemon sees them ---- */
struct populate;
/* *ret NULL: a region cannot be mapped, and the daemon will say why. -ENOMEM. Arguments have passed
 * check_layout(). */
int populate_open(const struct kvtier_geometry *geometry, const struct kvtier_region *regions,
		  size_t n_regions, const struct kvtier_segment *segments, size_t n_segments,
		  struct populate **ret);
void populate_close(struct populate *populate);
/* Before the first use of each page. No lock held. populate may be NULL. -ETIMEDOUT. */
int populate_pages(struct populate *populate, const uint32_t *pages, size_t n,
		   uint64_t deadline_ns);
/* the daemon refused the page: it is touched again. Any lock */
void populate_forget(struct populate *populate, uint32_t page);
void populate_touch(uint8_t *base, uint64_t n); /* aligned to 4096 */

/* ---- check.c: what callers hand in, as private full-size copies ---- */
int check_geometry(const struct kvtier_geometry *in, struct kvtier_geometry *ret,
		   struct wire_geometry *ret_wire);
/* regions[n], segments[n]: room for all; *ret_memory: the regions' enum kvtier_memory, 0: none. */
int check_layout(const struct kvtier_geometry *geometry, const struct kvtier_region *in_regions,
		 size_t n_regions, const struct kvtier_segment *in_segments, size_t n_segments,
		 struct kvtier_region *regions, struct kvtier_segment *segments,
		 uint32_t *ret_memory);
/* 0, or the error that a call returns at once: -EINVAL for NULL, -EPERM in a process that did not
 * make the client. */
int client_check(const struct kvtier_client *c);
int space_check(const struct kvtier_space *space);
uint32_t check_element_bytes(uint32_t dtype);
struct space_layout;
/* Puts other regions for the same segments into layout, as many and of the same kind. -EINVAL:
 * layout is as it was. */
int check_regions_again(struct space_layout *layout, const struct kvtier_region *in, size_t n);

/* ---- space.c ----
 *
 *  WANTED --OPEN sent--> OPENING --OK--> OPEN --closed, CLOSE sent--> CLOSING --CLOSED--> GONE
 *    ^ connection lost <----'--ERROR--> REFUSED   connection lost while CLOSING --> GONE
 *
 * A space that was open before does not stay REFUSED (a daemon or process short of something says
 * so, too): it is WANTED again after a while. A space that is quiesced goes the way of one that is
 * closed, but to QUIET; from there kvtier_space_resume() makes it WANTED, a close GONE. */
enum space_state {
	SPACE_WANTED,
	SPACE_OPENING,
	SPACE_OPEN,
	SPACE_REFUSED,
	SPACE_CLOSING,
	SPACE_QUIET,
	SPACE_GONE
};

struct kvtier_space {
	struct kvtier_client *client;
	struct keys *keys;
	struct staged *staged;     /* NULL: its pages are shared, or it has none */
	struct lent_layout *lent;  /* NULL: staged, or no pages */
	struct populate *populate; /* of shared ones; may be NULL */
	/* KVTIER_CUDA, else NULL: the GPU's memory that the pages lie in, and the events and words
	 * of that GPU */
	struct cuda_memory *cuda;
	struct cuda_order *order;
	struct cuda_busy busy;       /* control */
	struct space_layout *layout; /* the arguments, kept */
	char memory[256];            /* how the pages are reached, for people; control and ring */
	bool has_pages;
	/* control */
	enum space_state state;
	bool close_wanted, quiet_wanted;
	bool orphan; /* nobody waits for its end: freed when GONE */
	/* was open before: space_id and pages must come back the same */
	bool known;
	/* OPENING: the daemon has taken PARTS, and waits for more or for the SPACE_OPEN */
	bool parts_due;
	bool gives_up;       /* OPENING: refused here; the daemon is to give the parts back */
	uint32_t seq;        /* of the request in flight */
	uint64_t refused_ns; /* REFUSED: since when */
	/* sent at each opening; followed by regions and segments */
	struct wire_space_open *message;
	int fds[KVTIER_MAX_REGIONS];
	size_t n_fds;
	uint8_t space_id[32];
	uint64_t pages;
	/* both locks */
	int error; /* why it was refused last; 0 when it was opened since */
	char text[256];
	uint32_t handle;
	_Atomic bool open;
	/* written before `open`; a lookup that sees half of a new key misses */
	_Atomic uint64_t index_key[2];
};

/* The arguments that a space was opened with, checked. The geometry's strings are the caller's: use
 * those of the wire. */
struct space_layout {
	struct kvtier_geometry geometry;
	struct wire_geometry wire;
	uint32_t memory; /* enum kvtier_memory; 0: no regions */
	size_t n_regions, n_segments;
	struct kvtier_region regions[KVTIER_MAX_REGIONS];
	struct kvtier_segment segments[KVTIER_MAX_SEGMENTS];
};

/* ---- space_memory.c: a space's regions. Control held, or nobody knows the space yet ---- */
int space_memory_open(struct kvtier_space *space);
void space_memory_close(struct kvtier_space *space);
/* Sends the opening. 0; 1: PARTS that come before it were sent; -EAGAIN: the socket is full;
 * -ECONNRESET; another -errno: this process cannot send it. */
int space_memory_send(struct kvtier_space *space);
/* Parts that were sent are not needed. 0; 1: it was said, and is answered; or as above. */
int space_memory_unsend(struct kvtier_space *space);
/* The daemon cannot reach the memory in this way. True: the space is WANTED again, to be asked for
 * in another way. */
bool space_memory_refused(struct kvtier_space *space, int error, const char *why);

/* As kvtier_space_close(). No lock held. */
int space_close_until(struct kvtier_space *space, uint64_t deadline_ns);
/* in a process that did not make the space: frees memory only */
void space_disown(struct kvtier_space *space);

/* ---- spaces.c: control held in all of these ---- */
void space_free(struct kvtier_space *space); /* NULL is fine */
/* takes the space off the client's list */
void space_unlist(struct kvtier_client *c, const struct kvtier_space *space);
/* the daemon has let go of the space */
void space_gone(struct kvtier_client *c, struct kvtier_space *space);
/* Sends what is due. -errno: the connection is lost. */
int spaces_advance(struct kvtier_client *c);
void spaces_lost(struct kvtier_client *c);
/* A reply to one of the spaces' requests: 0, or -EPROTO with kvtier_last_error(). */
int spaces_reply(struct kvtier_client *c, const struct packet *packet);

/* ---- op.c: the op table. Ring lock held in all of these ---- */
enum op_state { OP_FREE, OP_RUNNING, OP_DONE };

struct op {
	TAILQ_ENTRY(op) done_link;
	struct kvtier_space *space;
	uint64_t id;           /* serial << 8 | slot */
	uint64_t wire_id;      /* of its sqe on the wire (not staged: id); 0: none */
	uint64_t cancelled_id; /* wire_id that a CANCEL was sent for */
	uint64_t deadline_ns;
	/* its connection ended while its pages were lent: a number for lent_op(); else 0 */
	uint64_t grave;
	uint32_t sq_at;        /* where its sqe lies, if it is on the wire */
	struct wire_sqe hints; /* op, priority, session, turn, ttl_s */
	enum op_state state;
	bool staged;
	struct cuda_order *order; /* KVTIER_CUDA: the events and words of its GPU */
	bool ordered;             /* the op comes after the work of a stream */
	bool reached;             /* staged: the library has seen that work done */
	bool cancel;              /* start no further chunk */
	bool has_parent;
	uint32_t n;
	uint32_t first;             /* arena range on the wire */
	uint32_t chunk, chunk_done; /* blocks on the wire, blocks before them */
	uint32_t stage_first;
	int32_t status;
	uint32_t ok, prefix;
	int32_t *blocks;         /* [KVTIER_MAX_BLOCKS] */
	struct kvtier_key *keys; /* staged: copies, the parent last */
	uint32_t *pages;
};

int ops_open(struct kvtier_client *c);         /* -ENOMEM; no lock */
void ops_close(struct kvtier_client *c);       /* half-open is fine; no lock */
int ops_stage_copies(struct kvtier_client *c); /* reserves staged_copies; control held */
void ops_event(struct kvtier_client *c);       /* makes event_fd readable */
/* -EAGAIN */
int op_new(struct kvtier_client *c, struct kvtier_space *space, struct op **ret);
/* the slot of this id, whatever op is in it */
struct op *op_at(struct kvtier_client *c, uint64_t id);
/* NULL: there is none, or its result was taken */
struct op *op_find(struct kvtier_client *c, uint64_t id);
/* rest: the status of blocks that are not done */
void op_finish(struct kvtier_client *c, struct op *op, int32_t rest);
void op_drop(struct kvtier_client *c, struct op *op); /* DONE or never started -> FREE */
/* takes the result, then drops the op */
void op_take(struct kvtier_client *c, struct op *op, struct kvtier_result *ret);
uint64_t op_next_id(struct kvtier_client *c, const struct op *op);
/* the op is on the wire, with pages that the daemon itself touches */
bool op_lends(const struct op *op);
/* The connection ends. Pages of ops that the daemon has read (before sq_head), and may be using, go
 * into the link's grave, which takes the socket. False: no page was lent, and the socket is still
 * the caller's. */
bool ops_bury(struct kvtier_client *c, struct link *link, uint32_t sq_head);
void ops_fail(struct kvtier_client *c, int32_t status);

/* ---- chunk.c: ring lock held in all of these ---- */
/* Puts n blocks of an op on the wire. pages NULL: page, page + 1, ... -EAGAIN: no room;
 * -EPROTO. */
int chunk_push(struct kvtier_client *c, struct op *op, const struct kvtier_key *keys,
	       const struct kvtier_key *parent, const uint32_t *pages, uint32_t page, uint32_t n);
/* The next chunk of a staged op that has none on the wire, or its end. -EAGAIN, -EPROTO. */
int chunk_staged(struct kvtier_client *c, struct op *op, uint64_t now);
/* a chunk's statuses are in op->blocks */
int chunk_done(struct op *op); /* 0, or the error with which the op's copies failed */

/* ---- turn.c: ring lock held, but in op_await() ---- */
/* Completions off the ring, then staged chunks. -EPROTO: the daemon lied (c->lied is set). */
int ops_turn(struct kvtier_client *c);
/* A staged op waits for an engine's stream. The stream wakes nobody, so ops_turn() has to look. */
bool ops_wait_for_stream(const struct kvtier_client *c);
/* Unlocks ring, then does the work that needs it unlocked: rings the daemon's bell, cuts off a
 * liar. Control not held. */
void ops_unlock(struct kvtier_client *c);
/* Waits until op `id` is done (0; its result is taken if `take`), gone (-ENOENT), or until limit_ns
 * (-ETIMEDOUT). No lock held. */
int op_await(struct kvtier_client *c, uint64_t id, uint64_t limit_ns, bool take,
	     struct kvtier_result *ret);

/* ---- submit.c ---- */
/* As kvtier_cancel(). No lock held. */
int submit_cancel(struct kvtier_client *c, uint64_t id, uint64_t limit_ns);

/* ---- client.c ---- */
TAILQ_HEAD(op_list, op);

struct kvtier_client {
	/* fixed after kvtier_connect() */
	char path[108];
	char name[WIRE_NAME_BYTES];
	uint32_t timeout_ms;
	uint32_t spin_us; /* 0: as the daemon advises; UINT32_MAX: none */
	uint64_t staging_bytes;
	int epoll_fd, event_fd;
	uint64_t process; /* that made it: process_ours() */

	/* control */
	pthread_mutex_t control;
	enum session_state state;
	uint32_t seq, hello_seq;
	uint64_t since_ns; /* when the state was entered */
	uint32_t backoff_ms;
	uint64_t connections;
	/* the daemon said why it ends the connection: no page is lent any more */
	bool let_go;
	bool shares_pids; /* the daemon is in this process's PID namespace */
	int error;        /* why the last connection ended, or could not be made */
	char text[256];
	struct kvtier_space *spaces[KVTIER_MAX_SPACES];
	struct cuda_order
		*orders[16]; /* CUDA_ORDERS_MAX: a GPU each; changed with ring held, too */
	struct link *retired;

	/* control and ring */
	int fd;

	/* ring */
	pthread_mutex_t ring;
	struct op ops[KVTIER_MAX_OPS];
	uint16_t free_slots[KVTIER_MAX_OPS];
	uint32_t n_free;
	uint64_t op_serial;
	struct op_list done;
	uint32_t staged_running; /* RUNNING ops that are staged */
	uint32_t staged_turn;    /* slot that is asked first for a chunk */
	int32_t *statuses;       /* lazily touched backing of op.blocks */
	/* of op.keys and op.pages; NULL before the first staged space */
	uint8_t *staged_copies;
	bool event_used, event_set;
	/* an sqe was pushed while the daemon slept: see ops_unlock() */
	bool doorbell;
	bool lied; /* the rings broke the rules: see ops_unlock() */

	/* no lock */
	_Atomic(struct link *) link; /* NULL: the daemon is away */
	_Atomic uint32_t readers;
	_Atomic uint64_t next_look_ns; /* session_nudge() */
	_Atomic uint32_t spin_advised_us;
};

/* ---- error.c ---- */
/* Sets this thread's sentence and returns error. */
int error_set(int error, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* Copies a caller's struct, which begins with its size, over a zeroed one of ours (`known` bytes).
 * A smaller struct is of an older program. A larger one is of a newer program, and all bytes that
 * we do not know must be 0 (else -E2BIG, as in Linux). */
int error_struct_in(void *ret, size_t known, const void *in, const char *name);

#endif
