/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=20 no=thread (the daemon's threads run in others) */
/* make: needs=kvtierd_faulty wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * sys_hints_prefetch.c - goal: kvtierctl hint prefetch brings blocks into host memory as an
 * engine's hint does, names absent blocks, refuses requests that make no sense or would do harm,
 * and ends in any state of the daemon and its disk. Method: a real daemon whose memory holds 85
 * blocks, blocks on NVMe alone; a disk that does not answer (kvtierd_faulty.c).
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_faulty.h"
#include "tests/lib/lib_hint.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LENGTH = 16, SESSION = 77, OP_MS = 60000, STEP_MS = 500 };

/* A raw tiny block takes 12 KiB: 1 MiB holds at most 85 of them. */
static const char config[] = "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n"
			     "[nvme]\nbytes = 16M\nsegment_bytes = 1M\n";

struct world {
	struct served s;
	struct kvtier_key keys[LENGTH]; /* of a chain in the session, on NVMe alone */
	char out[8192];
};

static void says(struct world *w, const char *command, int status, const char *words)
{
	hint_says(&w->s.d, command, status, words, w->out, sizeof(w->out));
}

static void store(struct engine *e, uint32_t chain, uint64_t session, struct kvtier_key *keys)
{
	const struct kvtier_op_options options = { .size = sizeof(options), .session = session };

	hint_store(e, chain, LENGTH, &options, keys);
}

static uint32_t in_host(const struct engine *e, const struct kvtier_key *keys)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < LENGTH; i++) {
		struct kvtier_hit hit = { .size = sizeof(hit) };

		assert_int_equal(kvtier_lookup(e->space, &keys[i], 1, &hit), 0);
		n += hit.blocks == 1 && hit.tiers & KVTIER_TIER_HOST;
	}
	return n;
}

static void leave_memory(struct world *w)
{
	assert_int_equal(daemon_ctl(&w->s.d, "flush", w->out, sizeof(w->out)), 0);
	assert_int_equal(daemon_ctl(&w->s.d, "evict --all", w->out, sizeof(w->out)), 0);
}

FIXTURE(begin)
{
	static struct world w;
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	if (!disk_dir())
		skip();
	memset(&w, 0, sizeof(w));
	served_begin(&w.s, config, &g, 2 * LENGTH);
	store(&w.s.e, 1, SESSION, w.keys);
	leave_memory(&w);
	assert_int_equal(in_host(&w.s.e, w.keys), 0);
	*state = &w;
	return 0;
}

/* --- prefetched blocks --- */

TEST_WITH(keys_on_nvme_alone_are_in_memory_then, begin, served_end)
{
	struct world *w = *state;

	says(w, hint_with_keys("hint prefetch --space 0", w->keys, 1), 0, "1 accepted: done");
	assert_int_equal(in_host(&w->s.e, w->keys), 1);
	says(w, hint_with_keys("hint prefetch --space 0 --tenant default --json", w->keys, 8), 0,
	     "{\"accepted\":8,\"clipped\":0,\"deferred\":0,\"rejected\":0,\"missing\":0}\n");
	assert_int_equal(in_host(&w->s.e, w->keys), 8);
	assert_int_equal(daemon_stat(&w->s.d, "hints.prefetch.accepted_total"), 9);
	assert_int_equal(chain_load(&w->s.e, w->keys, LENGTH, LENGTH), LENGTH);
}

TEST_WITH(a_session_is_brought_from_the_space_that_was_named, begin, served_end)
{
	struct world *w = *state;
	struct kvtier_key others[LENGTH];

	store(&w->s.e, 2, SESSION + 1, others);
	leave_memory(w);
	says(w, "hint prefetch --space 0 --session 77", 0, "16 accepted: done");
	assert_int_equal(in_host(&w->s.e, w->keys), LENGTH);
	assert_int_equal(in_host(&w->s.e, others), 0);
	says(w, "hint prefetch --space 0 --session 77 --turn 1", 1, "");
	says(w, "hint prefetch --space 0 --session 79", 1, "1 missing");
}

TEST_WITH(what_nobody_has_is_missing, begin, served_end)
{
	struct world *w = *state;
	struct kvtier_key keys[2];

	chain_keys(&w->s.e, 9, 1, keys);
	says(w, hint_with_keys("hint prefetch --space 0", keys, 1), 1, "1 missing: there is no");
	says(w, hint_with_keys("hint prefetch --space 0 --json", keys, 1), 1, "\"missing\":1}");
	keys[1] = keys[0];
	keys[0] = w->keys[0];
	says(w, hint_with_keys("hint prefetch --space 0", keys, 2), 0, "1 missing");
	assert_int_equal(in_host(&w->s.e, w->keys), 1);
}

/* As an engine's prefetch, it finds room where others of the tenant are not pinned. */
TEST_WITH(what_is_pinned_stays, begin, served_end)
{
	struct world *w = *state;
	struct kvtier_key pinned[LENGTH], others[LENGTH];

	store(&w->s.e, 2, SESSION + 1, pinned);
	says(w, "hint pin --session 78", 0, "16 accepted");
	for (uint32_t i = 0; i < 6; i++) {
		store(&w->s.e, 10 + i, 0, others);
		assert_int_equal(daemon_ctl(&w->s.d, "flush", w->out, sizeof(w->out)), 0);
	}
	says(w, "hint prefetch --space 0 --session 77", 0, "16 accepted");
	assert_int_equal(in_host(&w->s.e, w->keys), LENGTH);
	assert_int_equal(in_host(&w->s.e, pinned), LENGTH);
}

/* --- the space --- */

TEST_WITH(a_space_that_cannot_be_opened_is_an_error, begin, served_end)
{
	struct world *w = *state;
	const char *command = hint_with_keys("hint prefetch --space 0", w->keys, 1);

	says(w, "hint prefetch --space 99 --session 77", 1,
	     "space 99 is not there; kvtierctl spaces");
	says(w, "hint prefetch --space 0 --session 77 --tenant no", 1, "is of another tenant");
	says(w, "hint superseded --model tiny@1", 0, "1 accepted");
	says(w, command, 1, "hint retain --model NAME first");
	says(w, "spaces", 0, "retired");
	says(w, "hint retain --model tiny@1", 0, "1 accepted");
	says(w, command, 0, "1 accepted");
	says(w, "hint prefetch --model tiny@1", 1, "1 rejected");
	/* the next daemon finds blocks and no geometry */
	engine_close(&w->s.e);
	daemon_signal(&w->s.d, SIGTERM);
	daemon_restart(&w->s.d);
	disk_state_becomes(&w->s.d, "up", PATIENT_MS);
	says(w, command, 1, "space 0 is unknown");
	daemon_signal(&w->s.d, SIGTERM);
	says(w, command, 3, "no kvtierd answers");
}

/* One block of zeros, from a page with each kind of segment; its key. */
static struct kvtier_key store_page(struct kvtier_client *client, const struct kvtier_geometry *g)
{
	enum { SEGMENTS = 6, PAGE = 1 << 16 };
	const uint64_t value = g->dtype == KVTIER_FP16 ? 2 : 1;
	struct kvtier_region region = { .size = sizeof(region),
					.memory = KVTIER_PRIVATE,
					.length = PAGE };
	struct kvtier_segment segments[SEGMENTS];
	const uint32_t page = 0, tokens[16] = { g->dtype };
	struct kvtier_space *space;
	struct kvtier_key key;
	size_t n = 1;
	uint64_t op;

	for (uint32_t i = 0; i < SEGMENTS; i++) {
		const uint64_t dim = i < 2 ? g->head_dim_k : g->head_dim_v;

		segments[i] = (struct kvtier_segment){ .size = sizeof(segments[i]),
						       .layer = i % 2,
						       .kind = i < 2 ? KVTIER_K : KVTIER_V,
						       .offset = i * (PAGE / SEGMENTS / 16) * 16,
						       .page_stride = PAGE,
						       .head_stride = dim * value,
						       .token_stride = g->kv_heads * dim * value };
		if (i < 4)
			continue;
		segments[i].layer = 0;
		segments[i].kind = i == 4 ? KVTIER_TYPED : KVTIER_OPAQUE;
		segments[i].head_stride = segments[i].token_stride = 0;
		segments[i].length = i == 4 ? g->typed_values : g->opaque_bytes;
	}
	region.base = calloc(1, PAGE);
	if (kvtier_space_open(client, g, &region, 1, segments, SEGMENTS, &space))
		fail_msg("%s", kvtier_last_error());
	assert_int_equal(kvtier_keys(space, NULL, tokens, 16, &key, &n), 0);
	assert_int_equal(kvtier_store(space, &key, &page, 1, NULL, &op), 0);
	assert_int_equal(kvtier_wait(client, op, -1, NULL), 0);
	assert_int_equal(kvtier_space_close(space), 0);
	free(region.base);
	return key;
}

/* With one field of its geometry wrong it would be another one, which has no such block. */
TEST_WITH(the_space_is_the_very_one, begin, served_end)
{
	struct world *w = *state;
	struct kvtier_space *space;
	struct kvtier_key halves, bytes;
	struct kvtier_geometry g = { .size = sizeof(g),
				     .dtype = KVTIER_FP16,
				     .model = "m\"\\\xc3\xa9@2",
				     .convention = "c",
				     .extras = "lora={x}",
				     .layers = 2,
				     .kv_heads = 4,
				     .head_dim_k = 16,
				     .head_dim_v = 32,
				     .block_tokens = 16,
				     .rank = 1,
				     .world = 3,
				     .typed_segments = 1,
				     .typed_values = 64,
				     .opaque_bytes = 128 };

	halves = store_page(w->s.e.client, &g);
	g.dtype = KVTIER_E4M3;
	bytes = store_page(w->s.e.client, &g);
	g.model = "\xff";
	assert_int_equal(kvtier_space_open(w->s.e.client, &g, NULL, 0, NULL, 0, &space), 0);
	leave_memory(w);
	says(w, hint_with_keys("hint prefetch --space 1", &halves, 1), 0, "1 accepted");
	says(w, hint_with_keys("hint prefetch --space 2", &bytes, 1), 0, "1 accepted");
	says(w, hint_with_keys("hint prefetch --space 2", &halves, 1), 1, "1 missing");
	says(w, hint_with_keys("hint prefetch --space 3", w->keys, 1), 1, "cannot say again");
}

TEST_WITH(what_makes_no_sense_is_refused, begin, served_end)
{
	struct world *w = *state;

	says(w, "hint prefetch", 64, "prefetch needs --space N");
	says(w, "hint prefetch --session 77", 64, "prefetch needs --space N");
	says(w, "hint prefetch --space 0", 64, "prefetch needs --space N");
	says(w, hint_with_keys("hint prefetch --space 0 --session 77", w->keys, 1), 64, "needs");
	says(w, hint_with_keys("hint prefetch --space 0 --turn 1", w->keys, 1), 64, "--turn only");
	says(w, "hint prefetch --space 0 --session 77 --ttl 1", 64, "takes no --ttl");
	says(w, "hint prefetch --space 0 --session 77 --priority 1", 64, "no --priority");
	says(w, "hint prefetch --space 0x0 --session 77", 64, "--space 0x0: a number");
	says(w, "hint prefetch --space 4294967296 --session 77", 64, "a number of 0 to");
	says(w, "hint prefetch --space 0 --session 0", 64, "--session 0: a number of 1 to");
	says(w, "hint prefetch --space 0 --session -1", 64, "--session -1: a number");
	says(w, "hint prefetch --space 0 --key 12", 64, "64 hexadecimal digits");
	says(w, hint_with_keys("hint pin --space 0", w->keys, 2), 64, "--key: once");
	assert_int_equal(in_host(&w->s.e, w->keys), 0);
}

/* As a kvtierctl of another version might ask: the daemon does not prefetch by itself. */
TEST_WITH(the_admin_socket_refuses_it, begin, served_end)
{
	static const char words[] = "hint\0prefetch\0--session\0"
				    "77";
	struct world *w = *state;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ssize_t n;

	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/admin.sock", w->s.d.dir);
	assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(send(fd, words, sizeof(words), MSG_NOSIGNAL), sizeof(words));
	n = recv(fd, w->out, sizeof(w->out) - 1, 0);
	assert_true(n > 0);
	w->out[n] = '\0';
	assert_non_null(strstr(w->out, "!hint: to prefetch is an op"));
	(void)close(fd);
}

/* --- a daemon and a disk that do not answer --- */

static FILE *prefetch_begin(const struct disk_world *w)
{
	char command[1500];
	FILE *f;

	(void)snprintf(command, sizeof(command),
		       "timeout 60 %s/kvtierctl --socket %s %s 2>&1; echo status $?", build_dir(),
		       w->d.socket, hint_with_keys("hint prefetch --space 0", w->keys, 2));
	io_hold(READS);
	f = popen(command, "r");
	assert_non_null(f);
	faulty_held(2);
	return f;
}

static void ends(struct disk_world *w, FILE *f, const char *words, const char *status)
{
	w->text[fread(w->text, 1, sizeof(w->text) - 1, f)] = '\0';
	(void)pclose(f);
	if (!strstr(w->text, words) || !strstr(w->text, status))
		fail_msg("kvtierctl said \"%s\"", w->text);
}

TEST_GIVEN(it_ends_when_the_daemon_stands_still, NULL, NULL, disk_threads)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	FILE *f = prefetch_begin(w);

	assert_int_equal(kill(w->d.pid, SIGSTOP), 0);
	ends(w, f, "does not answer", "status 3");
	assert_non_null(strstr(w->text, "stopped"));
	assert_int_equal(kill(w->d.pid, SIGCONT), 0);
	faulty_gauge(w, "clients", 1);
	faulty_answers(w);
	faulty_all_there(w);
	faulty_end(w);
}

TEST_GIVEN(it_ends_when_the_daemon_dies, NULL, NULL, disk_threads)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	FILE *f = prefetch_begin(w);

	disk_die(w, SIGKILL);
	ends(w, f, "kvtierd ended it", "status 3");
	io_hold(0);
	faulty_live(w);
	faulty_all_there(w);
	faulty_end(w);
}

/* The last: the daemon's clock is then ahead of kvtierctl's, by its deadline */
TEST_GIVEN(it_ends_when_the_disk_does_not_answer, NULL, NULL, disk_threads)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	FILE *f = prefetch_begin(w);

	for (int ms = 0; ms < OP_MS; ms += STEP_MS)
		clock_pass_ms(STEP_MS);
	ends(w, f, "not all of the blocks came within 60 s", "status 1");
	faulty_none(w, "ops.outstanding");
	faulty_gauge(w, "clients", 1);
	faulty_answers(w);
	faulty_all_there(w);
	faulty_end(w);
}
