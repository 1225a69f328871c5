/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scenario.h - a test that is a text: NAME.kvt says in the product's own words what is started,
 * stored, killed and expected. The program kvt reads it and does that, case after case, each in a
 * directory and with daemons of its own. tests/README.md shows how to write one; `kvt --help` lists
 * all verbs.
 *
 *	script.c   the text: lines of words, and the blocks of lines below them
 *	run.c      the cases one after another: names ($x), loops, definitions, failures
 *	terms.c    what can be compared: counters, lookups, lines of a log, replies, output
 *	world.c    what a case has, by name: daemons, engines, servers of Redis, ops
 *	verbs.c    the table of verbs; each verb is in one of the files verbs_*.c
 */
#pragma once

#include "tests/lib/lib.h"
#include "tests/lib/lib_gpu_engine.h"
#include "tests/lib/lib_redis.h"
#include "tests/lib/lib_shared.h"

enum { WORDS = 96, TEXT = 8192, NAME = 64 };

/* --- script.c --- */

/* Words as they stand there; a word in quotes begins with '"' and does not end so. */
struct line {
	const char *file;
	int number, indent;
	int n; /* 0: the end of the text */
	char *words[WORDS];
};

extern struct script {
	const char *name;   /* sys_evict */
	struct line *lines; /* the last one has n 0 */
} script;

/* Ends the program with a sentence, file and line, where the text is not a script. */
void script_read(const char *path);
/* The first heading with this word, and this name behind it (NULL: any); NULL: there is none. */
const struct line *script_heading(const char *word, const char *name);
/* The line behind the block of lines that are indented below this one. */
const struct line *script_end(const struct line *l);
bool script_says(const char *verb); /* somewhere */
/* Splits at blanks, with quotes; the words are the caller's. NULL, or what is wrong. */
const char *script_split(const char *text, char **words, int max, int *ret_n);

/* --- run.c --- */

/* A line whose names are replaced by their values. */
struct call {
	const struct line *line;
	const struct verb *verb;
	int n; /* without the verb, the options, and what stands behind => */
	char *words[WORDS];
	int n_options;
	char *options[WORDS]; /* name=value */
	int n_says;
	char *says[WORDS]; /* behind =>; n_says 0: no => */
	bool arrow;
};

int run_script(const char *only); /* exit status; only: this case, or NULL */
/* The case fails here, with this sentence. */
void run_fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void run_may_skip(bool may); /* from here on skip() may end the case */
void run_keep(const char *name, const char *value);
void run_keep_number(const char *name, uint64_t n);
/* A text that stays until the line has been done. */
char *run_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "A == B", or "ctl ..." and what is said: whether it is so; *ret_seen: what A was. */
bool run_is_so(const struct call *c, const char **ret_seen);
uint32_t run_random(uint32_t below); /* SEED repeats it */

void for_does(struct call *c), until_does(struct call *c);

/* --- a call's words --- */

const char *call_option(const struct call *c, const char *name); /* NULL: not said */
uint64_t call_number(const struct call *c, const char *name, uint64_t otherwise);
int call_ms(const struct call *c, const char *name, int otherwise); /* a time, in ms */
/* The word is among them; it is taken out. */
bool call_has(struct call *c, const char *word);
/* Code and text are as said behind =>; without it, code is 0. */
bool call_is_said(const struct call *c, int code, const char *text);
void call_check(const struct call *c, int code, const char *text);
/* What a call of libkvtier returned. */
void call_returned(const struct call *c, int r);
const char *text_of(const char *word); /* without the quote */
uint64_t number_of(const char *word);  /* 12, 4K, 1M, 2G; fails the case */
uint64_t us_of(const char *word);      /* 20ms, 500us, 3s: microseconds */
int32_t status_of(const char *word);   /* ENOENT: -2 */
char *words_joined(char *const *words, int n);

/* --- terms.c --- */

struct term {
	const char *name, *usage;
	int arity;
	const char *what;
	const char *(*value)(char *const *words);
};

extern const struct term terms[];
const struct term *term_named(const char *word);   /* NULL: there is none */
const char *term_value(char *const *words, int n); /* of all these words */
bool term_is(char *const *words, int n, const char **ret_seen);
/* == 5, >= 3 behind an op; nothing said: == otherwise; any. */
void term_check(char *const *words, int n, uint64_t seen, uint64_t otherwise);

/* --- verbs.c --- */

struct verb {
	const char *name, *usage;
	int least;           /* words */
	const char *options; /* "at salt": at=..., salt=...; NULL: its words are its own matter */
	const char *what;
	void (*does)(struct call *c);
};

const struct verb *verb_named(const char *name); /* NULL: there is none */
void verbs_help(void);

/* verbs_daemon.c */
void daemon_does(struct call *c), start_does(struct call *c), signal_does(struct call *c);
void ends_does(struct call *c), ctl_does(struct call *c), sh_does(struct call *c);
void pass_does(struct call *c), hurry_does(struct call *c), idle_does(struct call *c);
void file_does(struct call *c);
int ctl_run(char *const *words, int n, const char **ret_text); /* exit status */

/* verbs_engine.c */
void engine_does(struct call *c), close_does(struct call *c), op_does(struct call *c);
void begin_does(struct call *c), wait_does(struct call *c), cancel_does(struct call *c);
void layers_does(struct call *c), group_does(struct call *c), give_does(struct call *c);
void pages_does(struct call *c), process_does(struct call *c);
void traffic_does(struct call *c), calm_does(struct call *c);

/* verbs_tiers.c */
void redis_does(struct call *c), cluster_does(struct call *c), fake_does(struct call *c);
void ask_does(struct call *c), spoil_does(struct call *c), meets_does(struct call *c);
void flood_does(struct call *c), flip_does(struct call *c), disk_does(struct call *c);

/* verbs_gpu.c */
void driver_does(struct call *c), quiesce_does(struct call *c), resume_does(struct call *c);
const char *driver_for_value(char *const *words), *notes_value(char *const *words);
const char *gpu_name(const char *name); /* of $gpus, $real, $fabric */

/* --- world.c: what a case has --- */

struct its_daemon {
	char name[NAME];
	struct daemon d;
};

struct its_engine {
	char name[NAME];
	union {
		struct engine e;
		struct gpu_engine on; /* begins with that; its pages are on a GPU */
	};
	struct its_daemon *of;
	bool on_gpu;
};

struct its_server {
	char name[NAME];
	struct redis_server *r;
	struct redis_cluster_rig *cluster; /* its servers are R.0, R.1, ... */
};

struct its_fake {
	char name[NAME];
	struct fake_server f;
};

struct its_traffic {
	char name[NAME];
	struct shared_load load;
};

/* One op: what it is about, and what became of it. */
struct op {
	char name[NAME];
	struct its_engine *e;
	enum kvtier_op_kind kind;
	uint32_t action; /* of a hint */
	bool part;       /* a page may have some of its block's bytes */
	uint64_t id, salt;
	uint32_t n, groups, *pages;
	struct kvtier_key *keys;
	int32_t *statuses;
	struct kvtier_result result;
};

enum kind { THING_DAEMON, THING_ENGINE, THING_SERVER, THING_FAKE, THING_TRAFFIC, THING_OP };
enum { DAEMONS = 4, ENGINES = 20, SERVERS = 8, FAKES = 2, TRAFFICS = 4, OPS = 192, GPUS = 4 };

extern struct world {
	char dir[64];
	struct its_daemon daemons[DAEMONS];
	struct its_engine engines[ENGINES];
	struct its_server servers[SERVERS];
	struct its_fake fakes[FAKES];
	struct its_traffic traffics[TRAFFICS];
	struct op ops[OPS];
	struct gpu gpus[GPUS]; /* context NULL: not opened */
	bool hurries;          /* time passes faster */
} world;

void world_begin(void);
void world_end(void);  /* all ends well, or the case fails */
void world_drop(void); /* all is removed, however it stands */
void world_tell(void); /* the last lines of the daemons' logs */
/* d.dir, r.address, dir...; NULL: no such thing. */
const char *world_name(const char *name);
/* The thing of this kind with this name: NULL where there is none; the case fails where there is
 * none; one that is there, or a new one. */
void *thing_found(enum kind kind, const char *name);
void *thing_named(enum kind kind, const char *name);
void *thing_new(enum kind kind, const char *name);
struct its_daemon *daemon_first(void);
void op_free(struct op *op);
void engine_gone(struct its_engine *e);

/* --- verbs_gpu.c: pages are filled and compared in a copy on the host --- */

void gpus_close(bool good); /* good: the driver may have no complaint */
void engine_on_gpu(struct its_engine *its, uint32_t ordinal, const char *socket,
		   const struct kvtier_geometry *g, uint32_t pages, const char *kind);
void pages_go(const struct its_engine *e, uint32_t page);   /* to the GPU, if it has them */
void pages_come(const struct its_engine *e, uint32_t page); /* from it */
void engine_is_current(const struct its_engine *e);         /* the calls are of its GPU */

/* --- blocks: "[E:]CHAIN[..]/FIRST[..LAST][*TIMES],...", an op for each chain --- */

enum { SPEC_RUNS = 16 };

struct spec {
	struct its_engine *keys_of;
	uint64_t first, last; /* chains, where there is one run */
	uint32_t n_runs, n;   /* n: blocks of an op */
	struct {
		uint64_t chain;
		uint32_t from, to, times;
	} runs[SPEC_RUNS];
};

void spec_read(const char *word, struct its_engine *e, struct spec *ret);
struct kvtier_key *spec_keys(const struct spec *s, uint64_t chain); /* the caller's */
/* The key of the one block that the word names. */
struct kvtier_key spec_key(const char *word, struct its_engine *e);
