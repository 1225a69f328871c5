/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_nvme_kill.c - see lib_nvme_kill.h.
 *
 *	start ──> verify ──> work ──> kill -9 ──> op_end, flush_end ──> hurt
 *	  ^                                                              │
 *	  └──────────────────────────────────────────────────────────────┘
 *
 * Chains are new in every life, so there is always something to write; every EPOCH lives the store
 * is thrown away and all chains are new, which bounds model and file. Some lives purge instead:
 * blocks that an acknowledged purge took must never be seen again.
 */
#include "lib_nvme_kill.h"

enum {
	LENGTH = 8,
	FRESH = 8,
	EPOCH = 25,
	CHAINS = FRESH * EPOCH,
	OPS = 6,
	PAGES = (OPS + 1) * LENGTH,
	VERIFY_OLD = 8, /* chains of earlier lives that a life loads again */
	SEGMENT = 65536,
	WORK_US = 40000,
	PATIENCE_MS = 20000,
};

enum action { STORE = 1, LOAD, PREFETCH };

struct op {
	enum action action; /* 0: free */
	uint64_t id;
	uint32_t chain;
};

struct loop {
	enum kill_kind kind;
	struct random random;
	struct kill_counts *n;
	struct disk_world *w;
	struct kvtier_geometry g;
	uint32_t epoch, life; /* of the epoch */
	/* The model. */
	struct kvtier_key keys[CHAINS][LENGTH];
	bool offered[CHAINS]; /* to a store, since an acknowledged purge */
	bool kept[CHAINS][LENGTH];
	/* Ops under way. */
	struct op ops[OPS];
	pid_t flush; /* 0: none */
	bool before_flush[CHAINS][LENGTH];
	bool refused; /* this life has no store */
};

static const char *const configs[] = {
	[KILL_ROOMY] = "[host]\nbytes = 16M\nslab_bytes = 1M\nhuge_pages = no\n"
		       "[nvme]\nbytes = 64M\nsegment_bytes = 64K\n",
	[KILL_TIGHT] = "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n"
		       "[nvme]\nbytes = 1M\nsegment_bytes = 64K\n",
	[KILL_HURT] = "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n"
		      "[nvme]\nbytes = 4M\nsegment_bytes = 64K\n",
};

/* --- flushes --- */

static pid_t start_ctl(const struct loop *l, const char *command, const char *more,
		       const char *last)
{
	char program[600];
	pid_t pid;

	(void)snprintf(program, sizeof(program), "%s/kvtierctl", build_dir());
	(void)fflush(stdout);
	pid = fork();
	if (pid == 0) {
		const int null = open("/dev/null", O_RDWR);

		(void)dup2(null, 1);
		(void)dup2(null, 2);
		execl(program, "kvtierctl", "--socket", l->w->d.socket, command, more, last,
		      (char *)NULL);
		_exit(127);
	}
	assert_true(pid > 0);
	return pid;
}

static bool is_there(struct loop *l, uint32_t chain, uint32_t i)
{
	return engine_lookup(&l->w->e, &l->keys[chain][i], 1) == 1;
}

static void flush_start(struct loop *l)
{
	for (uint32_t c = 0; c < CHAINS; c++)
		for (uint32_t i = 0; i < LENGTH; i++)
			l->before_flush[c][i] = l->offered[c] && is_there(l, c, i);
	l->flush = start_ctl(l, "flush", NULL, NULL);
}

/* Takes its end, if it ended or `wait`. Acknowledged: blocks that were there when it began are
 * kept. */
static void flush_end(struct loop *l, bool wait)
{
	int status;

	if (!l->flush || waitpid(l->flush, &status, wait ? 0 : WNOHANG) != l->flush)
		return;
	l->flush = 0;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || l->refused)
		return;
	l->n->flushes++;
	for (uint32_t c = 0; c < CHAINS; c++)
		for (uint32_t i = 0; i < LENGTH; i++)
			l->kept[c][i] = l->kept[c][i] || l->before_flush[c][i];
}

static void forget_kept(struct loop *l)
{
	memset(l->kept, 0, sizeof(l->kept));
	memset(l->before_flush, 0, sizeof(l->before_flush));
}

/* --- ops --- */

/* Pages of slot OPS are the verifier's. */
static void slot_pages(uint32_t slot, uint32_t ret[LENGTH])
{
	pages_from(slot * LENGTH, ret, LENGTH);
}

static void check_loaded(struct loop *l, const struct op *op, uint32_t slot, const int32_t *blocks,
			 bool alive)
{
	for (uint32_t i = 0; i < LENGTH; i++) {
		const uint32_t page = slot * LENGTH + i;

		if (blocks[i] == 0 && !page_is(&l->w->e, page, &l->keys[op->chain][i], 0))
			fail_msg("chain %u block %u was loaded with wrong bytes", op->chain, i);
		if (blocks[i] < 0 && alive && !page_is_poison(&l->w->e, page))
			fail_msg("chain %u block %u has status %d, and its page was touched",
				 op->chain, i, blocks[i]);
		if (blocks[i] == 0 && !l->offered[op->chain])
			fail_msg("chain %u block %u was loaded, and never stored, or purged",
				 op->chain, i);
		l->n->whole += blocks[i] == 0;
		l->n->missed += blocks[i] != 0;
	}
}

/* alive: the daemon is. Else the op was cut, and a page of a load may be half written. */
static void op_end(struct loop *l, uint32_t slot, bool alive)
{
	int32_t blocks[LENGTH];
	struct kvtier_result result = { .size = sizeof(result),
					.blocks = blocks,
					.blocks_max = LENGTH };
	struct op *op = &l->ops[slot];

	if (!op->action)
		return;
	assert_int_equal(kvtier_wait(l->w->e.client, op->id, -1, &result), 0);
	assert_int_equal(result.n, LENGTH);
	if (op->action == LOAD)
		check_loaded(l, op, slot, blocks, alive);
	l->n->cut += result.status == -ECONNRESET;
	op->action = 0;
}

static uint32_t pick_chain(struct loop *l, enum action action)
{
	const uint32_t first = l->life * FRESH;

	if (action == STORE || random_below(&l->random, 2) == 0)
		return first + random_below(&l->random, FRESH);
	return random_below(&l->random, first + FRESH);
}

/* 0, or the call's error. */
static int op_start(struct loop *l, uint32_t slot, enum action action)
{
	struct op *op = &l->ops[slot];
	const uint32_t chain = pick_chain(l, action);
	const struct kvtier_key *keys = l->keys[chain];
	uint32_t pages[LENGTH];
	int r;

	op_end(l, slot, true);
	slot_pages(slot, pages);
	for (uint32_t i = 0; i < LENGTH; i++) {
		if (action == STORE)
			page_fill(&l->w->e, pages[i], &keys[i], 0);
		else
			page_poison(&l->w->e, pages[i]);
	}
	if (action == PREFETCH)
		r = kvtier_prefetch(l->w->e.space, keys, LENGTH, NULL, &op->id);
	else
		r = action == STORE ?
			    kvtier_store(l->w->e.space, keys, pages, LENGTH, NULL, &op->id) :
			    kvtier_load(l->w->e.space, keys, pages, LENGTH, NULL, &op->id);
	if (r)
		return r;
	op->action = action;
	op->chain = chain;
	l->offered[chain] = l->offered[chain] || action == STORE;
	return 0;
}

static void work(struct loop *l, uint32_t us)
{
	const uint64_t until = now_ns() + 1000ull * us;

	while (now_ns() < until) {
		const uint32_t dice = random_below(&l->random, 32),
			       slot = random_below(&l->random, OPS);
		const enum action action = dice < 16 ? STORE : dice < 26 ? LOAD : PREFETCH;

		flush_end(l, false);
		if (dice == 31 && !l->flush)
			flush_start(l); /* some of them end, others are cut */
		else if (op_start(l, slot, action))
			fail_msg("an op was refused: %s", kvtier_last_error());
	}
}

/* A flush takes some tens of milliseconds: every other life waits for one, and is killed some work
 * later. */
static void work_long(struct loop *l)
{
	work(l, random_below(&l->random, WORK_US));
	if (l->kind != KILL_ROOMY || random_below(&l->random, 2))
		return;
	if (!l->flush)
		flush_start(l);
	flush_end(l, true);
	work(l, random_below(&l->random, WORK_US / 4));
}

/* Nothing else is under way. Cut by a kill or not acknowledged it may come either way. */
static void purge(struct loop *l, bool cut)
{
	const pid_t pid = start_ctl(l, "purge", "--tenant", "default");
	int status;

	if (cut) {
		(void)usleep(random_below(&l->random, 3000));
		assert_int_equal(kill(l->w->d.pid, SIGKILL), 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	forget_kept(l);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		memset(l->offered, 0, sizeof(l->offered));
	else if (!cut && !l->refused)
		fail_msg("kvtierctl purge ended with 0x%x", (unsigned)status);
}

/* --- verification --- */

/* Kept blocks become visible as recovery goes on. */
static void await_kept(struct loop *l)
{
	const uint64_t until = now_ns() + PATIENCE_MS * 1000000ull;

	for (uint32_t c = 0; c < CHAINS; c++)
		for (uint32_t i = 0; i < LENGTH; i++) {
			while (l->kept[c][i] && !is_there(l, c, i)) {
				if (now_ns() > until)
					fail_msg("epoch %u life %u: chain %u block %u was flushed, "
						 "and is gone",
						 l->epoch, l->life, c, i);
				nap_ms(1);
			}
			if (!l->offered[c] && is_there(l, c, i))
				fail_msg("chain %u block %u is there, and never was stored, or was "
					 "purged",
					 c, i);
		}
}

static void verify_chain(struct loop *l, uint32_t chain)
{
	int32_t blocks[LENGTH];
	uint32_t pages[LENGTH];
	const struct op op = { .action = LOAD, .chain = chain };

	slot_pages(OPS, pages);
	for (uint32_t i = 0; i < LENGTH; i++) {
		page_poison(&l->w->e, pages[i]);
		blocks[i] = -EINPROGRESS;
	}
	(void)engine_load(&l->w->e, l->keys[chain], pages, LENGTH, blocks);
	check_loaded(l, &op, OPS, blocks, true);
	for (uint32_t i = 0; i < LENGTH; i++) {
		if (l->kept[chain][i] && blocks[i] != 0)
			fail_msg("epoch %u life %u: chain %u block %u was flushed, and its load "
				 "says %d",
				 l->epoch, l->life, chain, i, blocks[i]);
		l->n->kept += l->kept[chain][i];
	}
}

static void verify(struct loop *l)
{
	const uint32_t now = l->life * FRESH, recent = now < 2 * FRESH ? 0 : now - 2 * FRESH;

	await_kept(l);
	for (uint32_t c = recent; c < now; c++)
		verify_chain(l, c);
	for (uint32_t i = 0; recent > 0 && i < VERIFY_OLD; i++)
		verify_chain(l, random_below(&l->random, recent));
	for (uint32_t c = 0; l->life == EPOCH - 1 && c < now; c++)
		verify_chain(l, c);
}

/* --- damage between lives --- */

static void flip_some(struct loop *l, uint64_t from, uint64_t to)
{
	for (uint32_t i = 1 + random_below(&l->random, 24); i > 0; i--) {
		const uint64_t at = from + random_next(&l->random) % (to - from);
		uint8_t byte;

		disk_read(l->w->path, at, &byte, 1);
		byte ^= (uint8_t)(1u << random_below(&l->random, 8));
		disk_write(l->w->path, at, &byte, 1);
	}
}

/* A segment becomes zeros, or a copy of another. */
static void replace_segment(struct loop *l, uint64_t bytes, bool zeros)
{
	static uint8_t segment[SEGMENT];
	const uint32_t n = (uint32_t)(bytes / SEGMENT) - 1;

	memset(segment, 0, sizeof(segment));
	if (!zeros)
		disk_read(l->w->path, SEGMENT * (1 + (uint64_t)random_below(&l->random, n)),
			  segment, sizeof(segment));
	disk_write(l->w->path, SEGMENT * (1 + (uint64_t)random_below(&l->random, n)), segment,
		   sizeof(segment));
}

static void hurt(struct loop *l)
{
	const uint64_t bytes = disk_file_bytes(l->w->path);

	/* Cut short by the last one, and its next daemon was killed before it made it anew. */
	if (bytes < 2 * SEGMENT)
		return;
	l->n->hurts++;
	switch (random_below(&l->random, 8)) {
	case 0:
	case 1:
	case 2:
		/* after the superblocks, which lie before segment 0 */
		flip_some(l, SEGMENT, bytes);
		break;
	case 3:
		replace_segment(l, bytes, true);
		break;
	case 4:
	case 5:
		replace_segment(l, bytes, false);
		break;
	case 6:
		flip_some(l, 0, 4096); /* one superblock, or both */
		if (random_below(&l->random, 2))
			flip_some(l, SEGMENT / 2, SEGMENT / 2 + 4096);
		break;
	case 7:
		assert_int_equal(truncate(l->w->path, (off_t)(random_next(&l->random) % bytes)), 0);
		break;
	}
}

/* --- lives --- */

static void new_epoch(struct loop *l)
{
	(void)unlink(l->w->path);
	forget_kept(l);
	memset(l->offered, 0, sizeof(l->offered));
	l->epoch++;
	l->life = 0;
}

static void open_engine(struct loop *l)
{
	engine_open(&l->w->e, l->w->d.socket, "engine", &l->g, PAGES);
	if (l->life == 0)
		for (uint32_t c = 0; c < CHAINS; c++)
			chain_keys(&l->w->e, (uint64_t)l->epoch * CHAINS + c, LENGTH, l->keys[c]);
}

/* After damage the store may be refused; then nothing can be recovered, and the daemon lives
 * without. */
static void note_refusal(struct loop *l)
{
	struct look look = look_at(&l->w->d, PATIENT_MS);
	char state[32];

	while (daemon_word(&l->w->d, "tiers.nvme.state", state, sizeof(state)),
	       strcmp(state, "starting") == 0)
		if (!look_again(&look))
			fail_msg("the store is neither used nor refused");
	l->refused = strcmp(state, "offline") == 0;
	l->n->refused += l->refused;
}

static void live_and_die(struct loop *l)
{
	daemon_restart(&l->w->d);
	/* in the midst of recovery */
	if (random_below(&l->random, 16) == 0 && l->life > 0) {
		daemon_signal(&l->w->d, SIGKILL);
		return;
	}
	open_engine(l);
	l->refused = false;
	if (l->kind == KILL_HURT)
		note_refusal(l);
	verify(l);
	if (random_below(&l->random, 12) == 0)
		purge(l, random_below(&l->random, 2));
	else
		work_long(l);
	daemon_signal(&l->w->d, SIGKILL);
	for (uint32_t slot = 0; slot < OPS; slot++)
		op_end(l, slot, false);
	flush_end(l, true);
	engine_close(&l->w->e);
}

void kill_loop(const char *engine, enum kill_kind kind, uint32_t kills, uint64_t seed,
	       struct kill_counts *ret)
{
	void *state = (void *)(uintptr_t)engine;
	static struct loop l;

	memset(&l, 0, sizeof(l));
	memset(ret, 0, sizeof(*ret));
	l.kind = kind;
	l.random.state = seed;
	l.n = ret;
	l.g = tiny_geometry(seed % 2 ? KVTIER_CODEC_RAW : KVTIER_CODEC_FP8);
	l.w = disk_place(&state, configs[kind]);
	for (; ret->kills < kills; ret->kills++) {
		live_and_die(&l);
		if (kind != KILL_ROOMY)
			forget_kept(&l);
		if (++l.life == EPOCH || l.refused)
			new_epoch(&l);
		else if (kind == KILL_HURT && random_below(&l.random, 4) > 0)
			hurt(&l);
	}
	printf("%u kills: %llu blocks kept, %llu loaded whole, %llu missed; %u flushes, %u ops cut,"
	       " %u hurts, %u refused\n",
	       ret->kills, (unsigned long long)ret->kept, (unsigned long long)ret->whole,
	       (unsigned long long)ret->missed, ret->flushes, ret->cut, ret->hurts, ret->refused);
	disk_end(l.w);
}
