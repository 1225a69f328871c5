/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib.h - shared by system tests: a real kvtierd of one's own, an engine with pages, payloads that
 * describe themselves. Helpers end the test (fail_msg) when they cannot do their part; nothing here
 * waits without a deadline.
 */
#pragma once

#include "client/kvtier.h"
#include "test.h"

/* --- the daemon --- */

struct daemon {
	pid_t pid;      /* 0: not running */
	char dir[64];   /* its own runtime and state directory, removed by daemon_remove() */
	char disk[160]; /* with an NVMe tier: its state directory, where O_DIRECT works; likewise */
	char socket[96];
	char config[96]; /* file */
	/* in the build directory; NULL: kvtierd, or what daemon_tuned() asked for. After
	 * daemon_place() */
	const char *program;
	/* Its next heartbeat is now, where the test holds its clock; else NULL. */
	void (*beat)(void);
	/* Runs in the new process, before it is kvtierd; NULL: nothing. After daemon_place() */
	void (*enter)(void);
};

/* Starts build/kvtierd with these lines of configuration (directories are added) and waits until it
 * serves. Without an NVMe tier, unless they have a section [nvme]. */
void daemon_start(struct daemon *d, const char *config);
/* A section [host]; with little memory. */
#define HOST(bytes, slab_bytes) \
	"[host]\nbytes = " bytes "\nslab_bytes = " slab_bytes "\nhuge_pages = no\n"
#define SMALL_HOST HOST("4M", "256K")
/* Each case that names no fixtures has a daemon with these lines. */
#define DAEMON_EACH(name, config)                               \
	static struct daemon name;                              \
	FIXTURE_DO(name##_starts, daemon_start(&name, config)); \
	FIXTURE_DO(name##_ends, daemon_remove(&name));          \
	TEST_EACH(name##_starts, name##_ends)
/* The steps of it, for configurations that name files: directories, then the file, then
 * daemon_restart(). */
void daemon_place(struct daemon *d, bool on_disk);
void daemon_configure(struct daemon *d, const char *config); /* also between two lives */
const char *disk_dir(void); /* where O_DIRECT works: $TMPDIR, or /var/tmp; NULL: neither */
void daemon_restart(struct daemon *d); /* same directories; it must not be running */
void daemon_spawn(struct daemon *d);   /* likewise, and does not wait until it serves */
/* SIGKILL and SIGTERM also reap it; after SIGSTOP all its threads stand still. */
void daemon_signal(struct daemon *d, int signal);
int daemon_wait(struct daemon *d,
		/* exit status as of waitpid; ends the test if it does not end */
		int timeout_ms);
void daemon_remove(struct daemon *d); /* stops it and removes its directory; asserts a clean exit */
/* Runs kvtierctl with these arguments against it; returns the exit code, output (cut to n) in
 * ret. */
int daemon_ctl(const struct daemon *d, const char *arguments, char *ret, size_t n);
/* Likewise, exit code 0; its output, until the next call or daemon_stat(). */
const char *daemon_told(const struct daemon *d, const char *arguments);
/* Daemons from now on are kvtierd_tuned (a test that calls it needs that), with this codec and so
 * many jobs at once; NULL and 0: as kvtierd. */
void daemon_tuned(const char *kernels, unsigned depth);
/* A number of `kvtierctl stats --json` by its dotted path, e.g. "tiers.host.blocks"; or the sum of
 * a column of a list, e.g. "disks:read_bytes" of `kvtierctl disks --json`. */
uint64_t daemon_stat(const struct daemon *d, const char *path);
/* Likewise a text, e.g. "tiers.nvme.state". */
void daemon_word(const struct daemon *d, const char *path, char *ret, size_t n);
/* Its resident memory without pages of files, which the kernel drops and reads again. */
long daemon_rss_kib(const struct daemon *d);
long daemon_mapped_kib(const struct daemon *d);
int daemon_fds(const struct daemon *d);
/* The smallest count of 300 ms: the descriptors that clients left are closed behind the core's
 * back. */
int daemon_fds_settled(const struct daemon *d);
void daemon_fds_fall_to(const struct daemon *d, int fds, int timeout_ms);
/* Between two looks at the daemon's stats page, which follows with its heartbeat:
 *	for (struct look look = look_at(d, PATIENT_MS); !is_there();)
 *		if (!look_again(&look))
 *			fail_msg(...);
 * look_again() lets a little time pass, the next heartbeat now and then, and is false when no more
 * is left. */
struct look {
	const struct daemon *d;
	uint64_t until_ns;
	uint32_t looks;
};

struct look look_at(const struct daemon *d, int timeout_ms);
bool look_again(struct look *look);
/* Asks until the number is `value`; ends the test when it is not after `timeout_ms`. */
void daemon_stat_becomes(const struct daemon *d, const char *path, uint64_t value, int timeout_ms);
/* Likewise, until it is at least that. */
void daemon_stat_reaches(const struct daemon *d, const char *path, uint64_t value);
/* Lines with this word: of its log, of its /proc/PID/maps. */
int daemon_log_lines(const struct daemon *d, const char *word);
int daemon_maps(const struct daemon *d, const char *word);
/* Large regions are unmapped behind the core's back. */
void daemon_maps_become(const struct daemon *d, const char *word, int lines, int timeout_ms);
/* Runs a command line of the shell; its exit code, or -1; output (cut to n) in ret. */
int shell(const char *command, char *ret, size_t n);
const char *build_dir(void); /* where this test program's build lies */

/* --- an engine --- */

/* kvtier_connect(). timeout_ms 0: the library's; name NULL: none. */
int client_dial(const char *socket, const char *name, uint32_t timeout_ms,
		struct kvtier_client **ret);

/* A call of libkvtier that must succeed, of a client with so little patience that a busy daemon may
 * well exceed it: again, while that is all that is wrong. */
#define INSIST(call)                                                                \
	do {                                                                        \
		const uint64_t until_ns = now_ns() + PATIENT_MS * 1000000ull;       \
		int result;                                                         \
                                                                                    \
		do                                                                  \
			result = (call);                                            \
		while (result == -ETIMEDOUT && now_ns() < until_ns);                \
		if (result)                                                         \
			fail_msg("%s: %d, %s", #call, result, kvtier_last_error()); \
	} while (0)

/* Token-major pages [page][layer][K|V][token][head][dim] in one memfd. */
struct engine {
	struct kvtier_client *client;
	struct kvtier_space *space;
	struct kvtier_geometry geometry;
	uint32_t pages;
	size_t page_bytes;
	uint8_t *memory; /* pages * page_bytes, the memfd mapped */
	int fd;
};

/* 2 layers, 2 heads x 32, 16 tokens, BF16: 8 KiB a page */
extern const struct kvtier_geometry tiny_raw, tiny_fp8;
/* 4 layers, 4 heads x 64, 32 tokens, BF16: 128 KiB a page */
extern const struct kvtier_geometry large_raw, large_fp8;
/* of a GPU's lanes of 1 MiB: 1.5 MiB a page, 4 MiB a page */
extern const struct kvtier_geometry two_lanes_raw, many_lanes_raw;
struct kvtier_geometry tiny_geometry(uint32_t codec);
struct kvtier_geometry large_geometry(uint32_t codec);

void engine_open(struct engine *e, const char *socket, const char *name,
		 const struct kvtier_geometry *geometry, uint32_t pages);
/* The same pages described through KVTIER_PRIVATE memory. */
void engine_open_staged(struct engine *e, const char *socket, const char *name,
			const struct kvtier_geometry *geometry, uint32_t pages,
			uint64_t staging_bytes);
void engine_close(struct engine *e);
/* Segments of such pages, for tests that open spaces by hand; returns how many. */
size_t engine_segments(const struct kvtier_geometry *geometry, struct kvtier_segment *ret,
		       size_t max);
size_t engine_page_bytes(const struct kvtier_geometry *geometry);
int memfd_make(size_t bytes, int seals); /* memfd with these seals */

/* Store or load and wait; statuses into `blocks` (may be NULL). Returns result.status, or -errno of
 * the call. */
int engine_store(struct engine *e, const struct kvtier_key *keys, const uint32_t *pages, size_t n,
		 const struct kvtier_key *parent, int32_t *blocks);
int engine_load(struct engine *e, const struct kvtier_key *keys, const uint32_t *pages, size_t n,
		int32_t *blocks);
uint32_t engine_lookup(struct engine *e, const struct kvtier_key *keys, size_t n);
/* Looks up until there are `hits`: lookups of a daemon that stands still find nothing, from
 * 2.5 s after its last heartbeat until the next one. */
void engine_lookup_becomes(struct engine *e, const struct kvtier_key *keys, size_t n,
			   uint32_t hits);

/* --- self-describing payloads: each byte pair is a function of (salt, key, offset) --- */

/* BF16 values that fp8 and int8 hold exactly: such spaces give them back bit for bit too. */
void page_fill(struct engine *e, uint32_t page, const struct kvtier_key *key, uint64_t salt);
bool page_is(const struct engine *e, uint32_t page, const struct kvtier_key *key, uint64_t salt);
/* Likewise of the layers [first, end) alone. */
void page_fill_layers(struct engine *e, uint32_t page, const struct kvtier_key *key, uint64_t salt,
		      uint32_t first, uint32_t end);
bool page_has_layers(const struct engine *e, uint32_t page, const struct kvtier_key *key,
		     uint64_t salt, uint32_t first, uint32_t end);
void page_poison(struct engine *e, uint32_t page); /* 0xa5 */
bool page_is_poison(const struct engine *e, uint32_t page);
/* Each value is the block's, or poison still: a load of it ended between two pieces. */
bool page_is_part(const struct engine *e, uint32_t page, const struct kvtier_key *key,
		  uint64_t salt);

/* Keys of a chain named by a number: tokens are a function of (chain, position). */
void chain_keys(struct engine *e, uint64_t chain, size_t n, struct kvtier_key *ret);

/* first, first + 1, ... */
void pages_from(uint32_t first, uint32_t *ret, size_t n);
/* Fills pages first.. with the keys' payloads, and stores them as the start of a chain. */
int chain_store(struct engine *e, const struct kvtier_key *keys, uint32_t first, uint32_t n);
/* An engine of one's own connects, stores, loads, and gets its blocks back. */
void engine_works(const char *socket);
void engine_works_for(const char *socket, const char *model);
/* Poisons pages first.., loads, and compares: a block with status 0 has its bytes, any other is
 * untouched. Returns the number of blocks that were there; ends the test on a wrong byte. */
uint32_t chain_load(struct engine *e, const struct kvtier_key *keys, uint32_t first, uint32_t n);

/* The same in two steps, with a deadline for the op (0: the client's): pages first.. are poisoned
 * before; a block that does not come has this status. */
uint64_t chain_load_begin(struct engine *e, const struct kvtier_key *keys, uint32_t first,
			  uint32_t n, uint32_t timeout_ms);
uint32_t chain_load_end(struct engine *e, uint64_t op, const struct kvtier_key *keys,
			uint32_t first, uint32_t n, int32_t otherwise);

/* An engine with a chain, in a small daemon, that others are to do no harm. */
enum { HONEST_BLOCKS = 4 };
struct honest {
	struct daemon d;
	struct engine e;
	struct kvtier_key keys[HONEST_BLOCKS];
};
void honest_begin(struct honest *h, const char *program); /* of struct daemon */
/* It loads its chain, again and again; so do others that come and go. */
void honest_is_served(struct honest *h);
void honest_end(struct honest *h); /* a clean exit */
