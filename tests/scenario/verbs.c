/* SPDX-License-Identifier: Apache-2.0 */
/* verbs.c - the table of verbs, and those of a few lines. */
#include "scenario.h"

#include "tests/lib/lib_disk.h"

/* --- small verbs --- */

static void expect_does(struct call *c)
{
	const char *seen;
	char was[256];

	if (run_is_so(c, &seen))
		return;
	(void)snprintf(was, sizeof(was), "%s", seen); /* the next text takes its place */
	run_fail("expected %s, seen %s", words_joined(c->words, c->n), was);
}

/* The daemon whose heartbeat is waited for: the one that the words name first. What is no gauge
 * comes without one. */
static const struct daemon *beaten(const struct call *c)
{
	static const struct daemon none;

	if (term_named(c->words[0]))
		return &none;
	for (int i = 0; i < c->n; i++) {
		const size_t n = strcspn(c->words[i], ".:");
		struct its_daemon *its =
			n ? thing_found(THING_DAEMON, run_text("%.*s", (int)n, c->words[i])) : NULL;

		if (its)
			return &its->d;
	}
	return &daemon_first()->d;
}

static void await_does(struct call *c)
{
	struct look look = look_at(beaten(c), PATIENT_MS);
	const char *seen;

	while (!run_is_so(c, &seen))
		if (!look_again(&look))
			run_fail("awaited for %d s, seen %s", PATIENT_MS / 1000, seen);
}

static void keep_does(struct call *c)
{
	run_keep(c->words[0], term_value(c->words + 1, c->n - 1));
}

static void sleep_does(struct call *c)
{
	const uint64_t us = us_of(c->words[0]);
	const struct timespec t = { (time_t)(us / 1000000), (long)(us % 1000000 * 1000) };

	(void)nanosleep(&t, NULL);
}

static void env_does(struct call *c)
{
	if (c->n == 1 ? unsetenv(c->words[0]) : setenv(c->words[0], text_of(c->words[1]), 1))
		run_fail("%s: %s", c->words[0], strerror(errno));
}

static void need_does(struct call *c)
{
	const char *seen;
	const bool there = c->n > 2                         ? run_is_so(c, &seen) :
			   strcmp(c->words[0], "disk") == 0 ? disk_dir() != NULL :
							      system(text_of(c->words[0])) == 0;

	if (there)
		return;
	run_may_skip(true);
	print_message("skipped: it needs %s\n", words_joined(c->words, c->n));
	skip();
}

/* --- the table --- */

#define OF_OPS                                                                            \
	"at salt parent priority ttl expected_back session turn timeout groups fill nan " \
	"stream "
#define OF_ENDS "is all ok miss fill "

static const struct verb verbs[] = {
	/* comparing */
	{ "expect", "A == B", 3, NULL, "is so now; also != < <= > >= has lacks", expect_does },
	{ "await", "A == B | ctl ...", 2, NULL, "becomes so, within a minute", await_does },
	{ "keep", "NAME A", 2, NULL, "$NAME is this value from here on", keep_does },
	{ "for", "NAME 0..9 | NAME in WORDS", 2, NULL, "does the lines that are indented below it",
	  for_does },
	{ "until", "A == B", 3, NULL, "does them until it is so", until_does },
	{ "pass", "TIME [until A == B]", 1, NULL,
	  "lets time pass for daemons whose clock is held; again and again until it is so",
	  pass_does },
	{ "hurry", "on|off", 1, "", "their time passes much faster", hurry_does },
	{ "sleep", "TIME", 1, "", "3s, 20ms, 500us of real time", sleep_does },
	{ "env", "NAME [VALUE]", 1, NULL, "a variable of programs that start from here on",
	  env_does },
	{ "need", "disk | A == B | \"COMMAND\"", 1, NULL,
	  "skips the case where there is no disk, it is not so, or the command fails", need_does },
	/* daemons */
	{ "daemon", "D [clock|still|faulty|nodes|tuned] [SECTION] KEY=VALUE ...", 1, NULL,
	  "starts kvtierd with this configuration, in directories of its own, and waits until it\n"
	  "\tserves. clock: this test holds its clock; still: and jumps by \"pass\" alone;\n"
	  "\tfaulty: and its disk fails on command; nodes: a machine of several NUMA nodes;\n"
	  "\ttuned: env KVTIER_TEST_KERNELS and KVTIER_TEST_DEPTH choose its codec and its jobs",
	  daemon_does },
	{ "place", "D [disk] ...", 1, NULL,
	  "the same, but starts no daemon; or configures D anew. disk: its state is on a disk",
	  daemon_does },
	{ "start", "D|R", 1, "passing",
	  "starts what was placed, killed or stopped; passing=6s: so much time passes meanwhile,\n"
	  "\tfrom the moment on when its disk holds a transfer",
	  start_does },
	{ "kill", "D|R", 1, "", "kill -9", signal_does },
	{ "stop", "D", 1, "", "SIGTERM; it must exit with 0", signal_does },
	{ "pause", "D|R", 1, "", "SIGSTOP", signal_does },
	{ "continue", "D|R", 1, "", "SIGCONT", signal_does },
	{ "signal", "D|R SIGNAL", 2, "", "sends it: HUP, TERM, USR1", signal_does },
	{ "ends", "D => CODE", 1, "within", "it ends by itself, with this code (0)", ends_does },
	{ "ctl", "[D:] ARGUMENTS => CODE \"WORDS\" !\"NOT THESE\"", 1, NULL,
	  "runs kvtierctl; CODE is 0 unless said, * is any", ctl_does },
	{ "sh", "COMMAND => CODE \"WORDS\"", 1, NULL, "runs a command of the shell", sh_does },
	{ "file", "PATH [\"TEXT\"]", 1, "", "makes a file, mode 0600", file_does },
	{ "idle", "D", 1, "", "no op, lease, write or block is left in D's memory", idle_does },
	/* engines */
	{ "engine",
	  "E [tiny|large] [raw|fp8|int8|lossless|q4|int8v4] [staged] [apart] => ERROR \"WORDS\"", 1,
	  "on socket pages model extras layers heads dim tokens staging timeout memory gpu",
	  "connects to daemon on=D (the first), at its socket=PATH, and opens a space: a page\n"
	  "\tof tiny is 8 KiB, of large 128 KiB; 64 pages unless said. apart: the daemon takes\n"
	  "\tit for a process of its own. memory=: on gpu=0, made by alloc, pool, vmm_fd,\n"
	  "\tvmm_fabric, vmm_none, vmm_two, vmm_fabric_two, vmm_many",
	  engine_does },
	{ "close", "E [space]", 1, "", "closes its client, or its space alone", close_does },
	{ "store", "E BLOCKS [== N]", 2, OF_OPS OF_ENDS,
	  "fills pages at=0... and stores them, under the block before them unless parent=BLOCK\n"
	  "\tor none; the op must end with is=0 (a name of an error, any), each block with all=;\n"
	  "\tnan=3: block 3 begins with a value that FP8 cannot hold; fill=0x7f: all bytes are\n"
	  "\tthat; fill=odd: NaNs, infinities and denormals among the values; fill=noise: bytes\n"
	  "\tthat lossless cannot hold; fill=sixteen: values that four bits hold; all must be\n"
	  "\tstored unless == N says",
	  op_does },
	{ "load", "E BLOCKS [each] [part] [== N]", 2, OF_OPS OF_ENDS,
	  "loads into pages at=0... and compares: a block with status 0 is right, another page\n"
	  "\tuntouched (part: or has some of its bytes), its status miss=; N must come, all\n"
	  "\tunless said",
	  op_does },
	{ "prefetch", "E BLOCKS [== N]", 2, OF_OPS OF_ENDS, "N: leading blocks that came",
	  op_does },
	{ "hint", "E ACTION [BLOCKS] [revision] => ERROR \"WORDS\"", 2,
	  OF_OPS OF_ENDS "scope n accepted clipped deferred rejected missing each count",
	  "kvtier_hint(); where an answer is said, those that are not are 0", op_does },
	{ "begin", "OP store|load|prefetch E BLOCKS", 4, OF_OPS, "the same, not waited for",
	  begin_does },
	{ "wait", "OP [part] [== N] => ERROR", 1, OF_ENDS "timeout",
	  "waits for it and looks at it as load and store do", wait_does },
	{ "cancel", "OP => ERROR", 1, "timeout plus",
	  "kvtier_cancel(), of an op whose number is plus=N more", cancel_does },
	{ "layers", "OP GROUP => ERROR", 2, "timeout stream",
	  "kvtier_wait_layers(), or kvtier_stream_wait() of no stream", layers_does },
	{ "group", "OP GROUP", 2, "", "the pages of a load have the bytes of this group",
	  group_does },
	{ "give", "OP GROUP => ERROR", 2, "",
	  "fills this group of a store, and says so by kvtier_store_layers()", give_does },
	{ "given", "OP GROUPS => ERROR", 2, "stream", "only says so", give_does },
	{ "poison", "E PAGES", 2, "", "fills pages FIRST..LAST with 0xa5", pages_does },
	{ "untouched", "E PAGES", 2, "", "they are as poison left them", pages_does },
	{ "process", "P E BLOCKS", 3, "",
	  "another process, an engine as E is, loads these blocks and stays; $P is its number",
	  process_does },
	{ "traffic", "T stores|loads E", 3, "",
	  "a thread stores or loads 48 chains over and over; E's first 32 pages are its own",
	  traffic_does },
	{ "calm", "T", 1, "", "ends it; each of its blocks was right", calm_does },
	/* tiers */
	{ "redis", "R [OPTIONS] | R cluster", 1, NULL,
	  "starts a redis-server, or six as a Cluster: R.0 ... R.5", redis_does },
	{ "fake", "F [raw] \"REPLY\" ...", 2, "",
	  "starts a server that gives these replies, the last one again and again; raw: to AUTH, "
	  "too",
	  fake_does },
	{ "cluster", "R moves FROM TO SLOTS | R fails_over MASTER", 3, "",
	  "slots move to another master; a replica of this master takes over", cluster_does },
	{ "ask", "R \"COMMAND\"", 2, "", "sends it; a reply that is an error fails", ask_does },
	{ "spoil", "R E BLOCK HOW ...", 4, "",
	  "changes the block's value in Redis: flip BYTE [BIT], cut BYTES, insert AT ZEROS, zero,\n"
	  "\tnoise, twice, of BLOCK, text TEXT, good (as it was)",
	  spoil_does },
	{ "meets", "D E E2", 3, "",
	  "a fresh chain that E stores at D reaches E2 through Redis, sooner or later",
	  meets_does },
	{ "flood", "TIME", 1, "",
	  "two daemons store as fast as they can at a Redis that is stopped, and do not grow",
	  flood_does },
	{ "flip", "[E BLOCK]", 0, "at file host",
	  "flips a bit of each copy in file=PATH, or of the image in the memory of host=D,\n"
	  "\tcounted from the image's first byte; without a block, of the file's byte",
	  flip_does },
	{ "disk", "fails|cuts|flips|holds [one]|answers|heals [reads] [writes] [syncs]", 1,
	  "skip times error", "what the disk of a faulty daemon does from here on", disk_does },
	/* GPUs */
	{ "driver", "SETTINGS | lets_go", 0, NULL,
	  "of programs that start from here on: words of tests/gpu/emu/settings.c;\n"
	  "\tlets_go: calls that held= holds go on",
	  driver_does },
	{ "quiesce", "E => ERROR", 1, "", "kvtier_space_quiesce()", quiesce_does },
	{ "resume", "E [other|none|two|private|small] => ERROR", 1, "",
	  "kvtier_space_resume(), over the same memory, over other memory, or over regions that\n"
	  "\tare wrong; $resumed is its error",
	  resume_does },
};

enum { VERBS = sizeof(verbs) / sizeof(verbs[0]) };

const struct verb *verb_named(const char *name)
{
	for (size_t i = 0; i < VERBS; i++)
		if (strcmp(verbs[i].name, name) == 0)
			return &verbs[i];
	return NULL;
}

void verbs_help(void)
{
	printf("kvt FILE.kvt [CASE] - runs the cases of a text; kvt --help\n\nverbs:\n");
	for (const struct verb *v = verbs; v < verbs + VERBS; v++)
		printf("  %s %s\n\t%s%s%s\n", v->name, v->usage, v->what,
		       v->options && *v->options ? "\n\toptions: " : "",
		       v->options ? v->options : "");
	printf("\nwhat can be compared: a number, a \"text\", a path of `kvtierctl stats --json` "
	       "(D.path where there\nare several daemons), and\n");
	for (const struct term *t = terms; t->name; t++)
		printf("  %s %s: %s\n", t->name, t->usage, t->what);
	printf("A + B, - * / %% are worked out from the left.\n\n"
	       "BLOCKS: 1/0..31 are the first 32 blocks of chain 1; 0..39/0..31 of 40 chains, an "
	       "op each;\n7/0,1/1*9 of two chains in one op, the second nine times; a:1/0 with the "
	       "keys of engine a.\n"
	       "$NAME, $D.dir .disk .socket .config .pid, $R.address .socket .port, $E.reached "
	       ".lent,\n"
	       "$F.connections .commands, $dir (the case's own), $build, $gpus, $real, $fabric, "
	       "$(TERM)\n");
}
