/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settings.c - the settings in $KVTIER_EMU. Words, a blank between two:
 *
 *	seed=N            choices of the executor, of fresh memory, of addresses (1)
 *	gpus=N            GPUs of this machine (1); CUDA_VISIBLE_DEVICES chooses among them
 *	nodes=N           NUMA nodes of this machine (1): GPU i lies at node i modulo N
 *	late=N            operations run at once (0), up to 2 ms late (1), N times that (1)
 *	memory=N          MiB of memory of each GPU (2048); all processes together, see hbm.c
 *	context=N         MiB of it that a context takes (64)
 *	pinned=N          MiB of pinned and registered memory that a process may have (no limit)
 *	version=N         of the driver (13000): older has fewer calls, and loads fewer binaries
 *	capability=N      of each GPU (90)
 *	zeroed=N          device memory of N MiB or more is all zeros when it is freed
 *	keeps=1           fresh memory has the bytes of what the process freed last
 *	ipc=0             no legacy handles of memory
 *	user=N            who runs this process (0); legacy handles of another user's memory
 *	                  are refused, by one of two results that the seed draws
 *	fabric=1          VMM memory can be exported as a fabric handle
 *	peer=1            a handle of one GPU can be opened in a context of another one
 *	reuse=0|1         freed addresses are given out again: never, always (drawn by the seed)
 *	one_thread=1      a context may be used by one thread only, the first one; another one may
 *	                  register host memory in it
 *	null_stream=0     using the NULL stream is a violation
 *	mps=1             the attribute MPS_ENABLED
 *	exclusive=1       the attribute COMPUTE_MODE: EXCLUSIVE_PROCESS
 *	queues=1          all streams of a context share one hardware queue, as with
 *	                  CUDA_DEVICE_MAX_CONNECTIONS=1: an operation that waits stops all that were
 *	                  queued after it
 *	waits=1           cuMemFree, cuMemFreeHost, cuMemHostUnregister, cuModuleLoadData and
 *	                  cuModuleUnload wait for all that their context has queued, as a driver may
 *	leaks=0           leaks at exit are not reported
 *	abort=1           a violation ends the process where it happens
 *	log=FILE          where the report goes (standard error)
 *	fail=CALL[:N[:RESULT]]     the N-th call of it fails (each one: 0) with this number
 *	countdown=N       the N-th of all calls fails, see countdown.c
 *	breakdown=N       likewise, and breaks the current context, if there is one
 *	sticky=CALL[:N[:RESULT]]   the context breaks at the N-th call of it (719)
 *	heals=0                    a process whose context broke gets no context any more
 *	slow=CALL:MS[:N]           the N-th call of it takes that long
 *	held=CALL[:N]              the N-th call of it returns when $KVTIER_EMU_DIR/go is there
 *	halts=N                    while $KVTIER_EMU_DIR/go is not there, nothing queued runs after
 *	                           N - 1 kernels
 *	faulty=N                   fail, sticky, slow, held, halts: only in contexts of GPU N
 *	trace=1                    a line for each operation, when it is queued, begins and ends;
 *	                           at exit one for each call, how often it was made
 *	stall=N:MS                 each GPU stands still for so long before its N-th operation
 *
 * A word that it does not know ends the process: a test with a typing error proves nothing.
 */

#include "emu.h"

static void refuse(const char *word)
{
	fprintf(stderr, "KVTIER_EMU: '%s' is no setting of the emulated driver (settings.c)\n",
		word);
	abort();
}

/* Up to three numbers after the name of a call, colons between them. */
static void read_fault(struct settings *s, const char *key, char *value, const char *word)
{
	struct fault *f = &s->faults[s->n_faults];
	uint64_t numbers[2] = { 0, 0 };
	char *rest = value, *name = strsep(&rest, ":");

	for (unsigned i = 0; i < 2 && rest; i++)
		numbers[i] = strtoull(strsep(&rest, ":"), NULL, 0);
	for (f->call = 0; f->call < CALLS && strcmp(call_name(f->call), name); f->call++)
		;
	if (f->call == CALLS || rest || s->n_faults + 1 == EMU_FAULTS)
		refuse(word);
	s->n_faults++;
	if (!strcmp(key, "slow")) {
		f->slow_ms = (uint32_t)numbers[0];
		f->nth = numbers[1];
		return;
	}
	f->sticky = !strcmp(key, "sticky");
	f->held = !strcmp(key, "held");
	f->nth = numbers[0];
	f->result = (CUresult)numbers[1];
}

/* A number that is not more than `most`, times a unit. */
static void read_number(struct settings *s, const char *key, uint64_t number, const char *word)
{
	enum { FLAG = 1, MIB = 1 << 20 };
	const struct {
		const char *key;
		void *to;
		size_t bytes;
		uint64_t most, unit;
	} numbers[] = {
#define NUMBER(key, field, most, unit) { key, &s->field, sizeof(s->field), most, unit }
		NUMBER("seed", seed, UINT64_MAX, 1),
		NUMBER("gpus", gpus, EMU_GPUS, 1),
		NUMBER("faulty", faulty, EMU_GPUS - 1, 1),
		NUMBER("user", user, UINT16_MAX, 1),
		NUMBER("late", late, UINT32_MAX, 1),
		NUMBER("memory", hbm_bytes, UINT32_MAX, MIB),
		NUMBER("context", context_bytes, UINT32_MAX, MIB),
		NUMBER("pinned", pinned_bytes, UINT32_MAX, MIB),
		NUMBER("zeroed", zeroed_bytes, UINT32_MAX, MIB),
		NUMBER("version", version, INT32_MAX, 1),
		NUMBER("capability", capability, INT32_MAX, 1),
		NUMBER("ipc", ipc, FLAG, 1),
		NUMBER("fabric", fabric, FLAG, 1),
		NUMBER("peer", peer, FLAG, 1),
		NUMBER("reuse", reuse, FLAG, 1),
		NUMBER("abort", aborts, FLAG, 1),
		NUMBER("leaks", leaks, FLAG, 1),
		NUMBER("one_thread", one_thread, FLAG, 1),
		NUMBER("null_stream", null_stream, FLAG, 1),
		NUMBER("mps", mps, FLAG, 1),
		NUMBER("exclusive", exclusive, FLAG, 1),
		NUMBER("trace", trace, FLAG, 1),
		NUMBER("keeps", keeps, FLAG, 1),
		NUMBER("halts", halts, UINT32_MAX, 1),
		NUMBER("heals", heals, FLAG, 1),
		NUMBER("queues", one_queue, FLAG, 1),
		NUMBER("waits", waits, FLAG, 1),
#undef NUMBER
	};
	size_t i;

	for (i = 0; i < sizeof(numbers) / sizeof(*numbers) && strcmp(numbers[i].key, key); i++)
		;
	if (i == sizeof(numbers) / sizeof(*numbers) || number > numbers[i].most)
		refuse(word);
	number *= numbers[i].unit;
	memcpy(numbers[i].to, &number, numbers[i].bytes); /* little-endian */
}

static void read_word(struct settings *s, char *word)
{
	char copy[512], *value = copy;
	const char *key;
	uint64_t number;

	snprintf(copy, sizeof(copy), "%s", word);
	key = strsep(&value, "=");
	if (!value)
		refuse(word);
	number = strtoull(value, NULL, 0);
	if (!strcmp(key, "fail") || !strcmp(key, "sticky") || !strcmp(key, "slow") ||
	    !strcmp(key, "held")) {
		read_fault(s, key, value, word);
	} else if (!strcmp(key, "log")) {
		snprintf(s->log, sizeof(s->log), "%s", value);
	} else if (!strcmp(key, "countdown") || !strcmp(key, "breakdown")) {
		countdown_set(number, *key == 'b');
	} else if (!strcmp(key, "nodes") && number > 0) {
		s->nodes = (int)number;
	} else if (!strcmp(key, "stall")) {
		s->stall_nth = strtoull(value, &value, 0);
		s->stall_ms = (uint32_t)strtoul(*value ? value + 1 : "0", NULL, 0);
	} else {
		read_number(s, key, number, word);
	}
}

void settings_read(struct settings *ret)
{
	const char *text = getenv("KVTIER_EMU");
	char *copy = strdup(text ? text : ""), *rest = copy, *word;
	int pass;

	*ret = (struct settings){
		.seed = 1,
		.gpus = 1,
		.nodes = 1,
		.late = 1,
		.hbm_bytes = 2048ULL << 20,
		.context_bytes = 64ULL << 20,
		.version = 13000,
		.capability = 90,
		.ipc = true,
		.leaks = true,
		.heals = true,
		.faulty = -1,
		.null_stream = true,
	};
	/* Twice: the seed's draws must not depend on its place in the text. */
	for (pass = 0; copy && pass < 2; pass++) {
		snprintf(copy, strlen(text ? text : "") + 1, "%s", text ? text : "");
		rest = copy;
		ret->n_faults = 0;
		while ((word = strsep(&rest, " \t\n")) != NULL)
			if (*word)
				read_word(ret, word);
		if (pass == 0) {
			uint64_t random = ret->seed;

			ret->reuse = draw(&random) & 1;
		}
	}
	free(copy);
}
