/* SPDX-License-Identifier: Apache-2.0 */
/* lib_hostile.c - see lib_hostile.h: the process, its threads, its deeds. The protocol:
 * lib_hostile_wire.c. */
#include "lib_hostile.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib_hostile_wire.h"

enum {
	HELD = 300,
	SPACES = 64,
	DESCRIPTORS = 13,
	DESCRIPTORS_AT_ONCE = 4,
	LIFE_MS = 60,
	BUSY_MS = 200
};

struct world {
	const char *socket;
	struct hostile_tally *tally;
	uint64_t seed;
};

struct thread {
	const struct world *world;
	struct evil e;
	const enum hostile_deed *deeds;
	size_t n_deeds;
	pthread_t thread;
};

/* --- jobs --- */

static const struct evil_layout tiny = {
	.layers = 2, .heads = 2, .dim = 32, .tokens = 16, .pages = 64, .touched = true
};
/* 4,096 rows a block, each on a page of its own */
static const struct evil_layout slow = { .layers = 4,
					 .heads = 2,
					 .dim = 64,
					 .tokens = 512,
					 .pages = 4,
					 .token_stride = 65536,
					 .touched = true };
static const struct evil_layout sparse = {
	.layers = 4, .heads = 2, .dim = 64, .tokens = 512, .pages = 8, .token_stride = 1 << 20
};
/* 65,536 units of 32 bytes a block */
static const struct evil_layout units = { .layers = 32,
					  .heads = 1024,
					  .dim = 1,
					  .tokens = 16,
					  .pages = 4,
					  .touched = true,
					  .fp8 = true };
static const struct evil_layout big = {
	.layers = 16, .heads = 8, .dim = 128, .tokens = 16, .pages = 32, .touched = true
};

/* Ops of this layout without a pause, for one life. Between them `beside` runs. */
static void keep_busy(struct thread *t, const struct evil_layout *layout,
		      void (*beside)(struct evil *e))
{
	struct evil *e = &t->e;
	uint64_t end;

	if (evil_open(e, t->world->socket))
		return;
	if (layout == &units) /* a space measures its first store, and then one a second */
		e->model = random_next(&e->random);
	if (evil_space(e, layout))
		return;
	end = evil_now_ns() + BUSY_MS * 1000000ull;
	while (evil_now_ns() < end) {
		const uint64_t pushed = evil_push_blocks(e);

		atomic_fetch_add(&t->world->tally->ops, pushed);
		if (beside)
			beside(e);
		if (!pushed || evil_is_cut(e))
			evil_nap_us(200);
	}
}

static void punch(struct evil *e)
{
	for (int i = 0; i < 16; i++)
		(void)fallocate(e->memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				(off_t)random_below(&e->random, (uint32_t)(e->bytes / 4096)) * 4096,
				4096);
}

/* Any bytes, anywhere in memory that it may write. */
__attribute__((no_sanitize("thread"))) static void scribble(struct evil *e)
{
	for (int i = 0; i < 400 && e->submit; i++) {
		const uint64_t x = random_next(&e->random),
			       bytes = e->ok.submit_bytes - WIRE_RING_OFFSET;
		volatile uint8_t *at =
			(volatile uint8_t *)e->submit + WIRE_RING_OFFSET + (x >> 8) % bytes;

		*at = (uint8_t)(x >> 56) & (x & 16 ? 0xff : 3);
		if (x % 7 == 0)
			e->pages[(x >> 20) % e->bytes] = (uint8_t)x;
	}
}

static void *scribbler(void *arg)
{
	struct evil *e = arg;

	while (!atomic_load(&e->stop))
		scribble(e);
	return NULL;
}

/* By a thread of its own, so that the daemon reads while it writes. */
static void rewrite(struct thread *t)
{
	static struct evil other; /* only one thread does this */
	struct evil *e = &t->e;
	pthread_t thread;

	if (evil_open(e, t->world->socket) || evil_space(e, &tiny))
		return;
	other = *e;
	atomic_store(&other.stop, false);
	if (pthread_create(&thread, NULL, scribbler, &other))
		return;
	for (int i = 0; i < 60 && !evil_is_cut(e); i++) {
		atomic_fetch_add(&t->world->tally->ops, evil_push_blocks(e));
		evil_nap_us(300);
	}
	atomic_store(&other.stop, true);
	(void)pthread_join(thread, NULL);
}

/* --- rings --- */

static void flood(struct thread *t)
{
	const uint64_t end = evil_now_ns() + LIFE_MS * 1000000ull;
	struct evil *e = &t->e;

	if (evil_open(e, t->world->socket) || evil_space(e, &tiny))
		return;
	while (evil_now_ns() < end && !evil_is_cut(e)) {
		atomic_fetch_add(&t->world->tally->ops, random_below(&e->random, 4) ?
								evil_push_nops(e) :
								evil_push_blocks(e));
		for (int i = 0; i < 20; i++)
			evil_ring(e);
	}
}

/* Ops whose completions it leaves, requests whose replies it leaves, until nothing more is
 * taken. */
static void starve(struct thread *t)
{
	struct evil *e = &t->e;

	if (evil_open(e, t->world->socket) || evil_space(e, &tiny))
		return;
	e->starves = true;
	for (int i = 0; i < 200; i++) {
		atomic_fetch_add(&t->world->tally->ops, evil_push_blocks(e));
		evil_ask_nonsense(e);
	}
	evil_nap_us(LIFE_MS * 1000);
}

/* --- connections --- */

static int lingering_socket(void)
{
	const struct linger linger = { .l_onoff = 1, .l_linger = 10 };
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	static char bytes[1 << 20];
	socklen_t n = sizeof(at);
	const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	/* Never accepted, and with more in it than both buffers hold. */
	if (bind(listener, (struct sockaddr *)&at, n) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&at, &n) ||
	    connect(fd, (struct sockaddr *)&at, n))
		at.sin_port = 0;
	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	(void)fcntl(fd, F_SETFL, O_NONBLOCK);
	while (at.sin_port && send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) > 0)
		;
	(void)fcntl(fd, F_SETFL, 0);
	(void)close(listener);
	return fd;
}

static int end_of_pipe(int which)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC))
		return -1;
	(void)close(fds[!which]);
	return fds[which];
}

static int end_of_socket_pair(void)
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		return -1;
	(void)close(fds[0]);
	return fds[1];
}

static int descriptor(uint32_t kind)
{
	char path[] = "/tmp/kvtier-hostile-XXXXXX";
	int fd;

	switch (kind) {
	case 0:
		return lingering_socket();
	case 1:
		return end_of_pipe(0);
	case 2:
		return end_of_pipe(1);
	case 3:
		return eventfd(7, EFD_CLOEXEC);
	case 4:
		return epoll_create1(EPOLL_CLOEXEC);
	case 5:
		return evil_memfd(1 << 20, 0);
	case 6:
		return evil_memfd(1 << 20, F_SEAL_SHRINK | F_SEAL_WRITE);
	case 7:
		return evil_memfd(64ull << 30, F_SEAL_SHRINK);
	case 8:
		return open("/dev/zero", O_RDWR | O_CLOEXEC);
	case 9:
		return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	case 10:
		return open("/", O_PATH | O_CLOEXEC);
	case 11:
		return end_of_socket_pair();
	default:
		fd = mkostemp(path, O_CLOEXEC);
		(void)unlink(path);
		return fd;
	}
}

/* A socket of one's own that lingers would hold up its closer. */
static void close_at_once(int fd)
{
	const struct linger none = { .l_onoff = 1 };

	if (fd < 0)
		return;
	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	(void)close(fd);
}

/* In a message that may have some, and in one that may not. The descriptors are closed here before
 * the daemon has them, so that the daemon's are the last references. */
static void descriptors(struct thread *t)
{
	struct evil *e = &t->e;
	int fds[DESCRIPTORS_AT_ONCE];
	bool sent = false;

	for (int i = 0; i < DESCRIPTORS_AT_ONCE; i++)
		fds[i] = descriptor(random_below(&e->random, DESCRIPTORS));
	if (evil_dial(e, t->world->socket) == 0) {
		const uint32_t how = random_below(&e->random, 3);

		if (how == 0)
			sent = evil_hello_with(e, fds, DESCRIPTORS_AT_ONCE) == 0;
		else if (evil_hello(e) == 0)
			sent = (how == 1 ? evil_space_over(e, &tiny, fds, DESCRIPTORS_AT_ONCE) :
					   evil_ring_with(e, fds, DESCRIPTORS_AT_ONCE)) == 0;
	}
	for (int i = 0; i < DESCRIPTORS_AT_ONCE; i++)
		if (sent && fds[i] >= 0)
			(void)close(fds[i]);
		else
			close_at_once(fds[i]);
	evil_nap_us(5000);
}

static void half_way(struct thread *t)
{
	struct evil *e = &t->e;
	const uint32_t steps = random_below(&e->random, 4);

	if (evil_dial(e, t->world->socket) || steps == 0)
		return;
	if (steps == 1) {
		(void)evil_hello_with(e, NULL, 0); /* and does not stay for the answer */
		return;
	}
	if (evil_hello(e) || evil_space(e, &tiny) || steps == 2)
		return;
	atomic_fetch_add(&t->world->tally->ops, evil_push_blocks(e)); /* dies with its ops */
}

static void spaces(struct thread *t)
{
	struct evil *e = &t->e;

	for (int i = 0; i < SPACES; i++) {
		if (i % 16 == 0) {
			evil_close(e);
			if (evil_open(e, t->world->socket))
				return;
		}
		e->model = random_next(&e->random);
		if (evil_space(e, &tiny) == 0)
			atomic_fetch_add(&t->world->tally->ops, evil_push_blocks(e));
	}
}

static void hold(struct thread *t)
{
	static int fds[HELD]; /* only one thread does this */
	int n = 0;

	while (n < HELD && (fds[n] = evil_connect(t->world->socket)) >= 0)
		n++;
	evil_nap_us(LIFE_MS * 1000);
	while (n > 0)
		(void)close(fds[--n]);
}

/* --- the process --- */

const char *hostile_deed_name(enum hostile_deed deed)
{
	static const char *const names[HOSTILE_DEEDS] = {
		"slow layouts", "sparse regions",  "many units", "big blocks",
		"holes",        "rewritten rings", "floods",     "starved rings",
		"descriptors",  "ends half-way",   "spaces",     "connections held",
	};

	return names[deed];
}

static void one(struct thread *t, enum hostile_deed deed)
{
	switch (deed) {
	case HOSTILE_SLOW:
		keep_busy(t, &slow, NULL);
		break;
	case HOSTILE_SPARSE:
		keep_busy(t, &sparse, NULL);
		break;
	case HOSTILE_UNITS:
		keep_busy(t, &units, NULL);
		break;
	case HOSTILE_BIG:
		keep_busy(t, &big, NULL);
		break;
	case HOSTILE_HOLES:
		keep_busy(t, &tiny, punch);
		break;
	case HOSTILE_REWRITE:
		rewrite(t);
		break;
	case HOSTILE_FLOOD:
		flood(t);
		break;
	case HOSTILE_STARVE:
		starve(t);
		break;
	case HOSTILE_DESCRIPTORS:
		descriptors(t);
		break;
	case HOSTILE_HALF_WAY:
		half_way(t);
		break;
	case HOSTILE_SPACES:
		spaces(t);
		break;
	case HOSTILE_HOLD:
		hold(t);
		break;
	default:
		break;
	}
	evil_close(&t->e);
	atomic_fetch_add(&t->world->tally->deeds[deed], 1);
}

static void *run(void *arg)
{
	struct thread *t = arg;

	for (;;) {
		one(t, t->deeds[random_below(&t->e.random, (uint32_t)t->n_deeds)]);
		evil_nap_us(1000); /* a refusal is quick */
	}
	return NULL;
}

static void be_hostile(const struct world *w)
{
	static const enum hostile_deed jobs[] = { HOSTILE_SLOW, HOSTILE_SPARSE, HOSTILE_UNITS,
						  HOSTILE_BIG,  HOSTILE_HOLES,  HOSTILE_REWRITE },
				       rings[] = { HOSTILE_FLOOD, HOSTILE_STARVE },
				       connections[] = { HOSTILE_DESCRIPTORS, HOSTILE_DESCRIPTORS,
							 HOSTILE_DESCRIPTORS, HOSTILE_HALF_WAY,
							 HOSTILE_HALF_WAY,    HOSTILE_HALF_WAY,
							 HOSTILE_SPACES,      HOSTILE_SPACES,
							 HOSTILE_HOLD };
	static struct thread threads[] = {
		{ .deeds = jobs, .n_deeds = sizeof(jobs) / sizeof(*jobs) },
		{ .deeds = rings, .n_deeds = sizeof(rings) / sizeof(*rings) },
		{ .deeds = connections, .n_deeds = sizeof(connections) / sizeof(*connections) },
	};

	for (size_t i = 0; i < sizeof(threads) / sizeof(*threads); i++) {
		threads[i].world = w;
		evil_init(&threads[i].e, w->seed + i);
		if (pthread_create(&threads[i].thread, NULL, run, &threads[i]))
			_exit(1);
	}
	for (;;)
		pause();
}

int hostile_start(struct hostile *h, const char *socket_path, uint64_t seed)
{
	struct world w = { .socket = socket_path, .seed = seed };

	if (!h->tally) {
		h->tally = mmap(NULL, sizeof(*h->tally), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (h->tally == MAP_FAILED) {
			h->tally = NULL;
			return -ENOMEM;
		}
	}
	w.tally = h->tally;
	h->pid = fork();
	if (h->pid < 0)
		return -errno;
	if (h->pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)signal(SIGPIPE, SIG_IGN);
		(void)setpriority(PRIO_PROCESS, 0, 19);
		if (h->idle) /* its threads inherit it */
			(void)sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 });
		(void)close_range(3, ~0u, 0); /* inherited descriptors are its parent's */
		be_hostile(&w);
	}
	return 0;
}

void hostile_stop(struct hostile *h)
{
	if (h->pid <= 0)
		return;
	(void)kill(h->pid, SIGKILL);
	(void)waitpid(h->pid, NULL, 0);
	h->pid = 0;
}

void hostile_free(struct hostile *h)
{
	hostile_stop(h);
	if (h->tally)
		(void)munmap(h->tally, sizeof(*h->tally));
	h->tally = NULL;
}
