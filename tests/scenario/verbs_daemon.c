/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_daemon.c - daemons, signals, kvtierctl, the shell, time. */
#include "scenario.h"

#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_disk.h"
#include "tests/lib/lib_io_faults.h"

enum { BEAT_MS = 300, NAP_MS_MAX = 100 };

/* --- a daemon's configuration --- */

static const char *const programs[][2] = {
	{ "clock", "tests/kvtierd_clock" },   { "still", "tests/kvtierd_clock" },
	{ "faulty", "tests/kvtierd_faulty" }, { "nodes", "tests/kvtierd_nodes" },
	{ "tuned", "tests/kvtierd_tuned" },
};

/* Which one the first word behind the name asks for; the word is taken out. NULL: kvtierd. */
static const char *const *program_of(struct call *c)
{
	for (size_t i = 0; c->n > 1 && i < sizeof(programs) / sizeof(programs[0]); i++)
		if (strcmp(c->words[1], programs[i][0]) == 0) {
			(void)call_has(c, programs[i][0]);
			return programs[i];
		}
	return NULL;
}

/* "[host]", "bytes=1M" -> lines. Pages of 2 MiB are not asked for, unless a line says so. Engines
 * find the socket where [socket] path=... says. */
static void config_text(const struct call *c, struct daemon *d, char *ret, size_t n)
{
	size_t used = (size_t)snprintf(ret, n, "[host]\nhuge_pages = no\n");
	const char *section = "";

	(void)snprintf(d->socket, sizeof(d->socket), "%s/kvtier.sock", d->dir);
	for (int i = 1; i < c->n && used < n; i++) {
		const char *word = text_of(c->words[i]), *value = strchr(word, '=');

		if (word[0] == '[')
			used += (size_t)snprintf(ret + used, n - used, "%s\n", section = word);
		else if (value)
			used += (size_t)snprintf(ret + used, n - used, "%.*s = %s\n",
						 (int)(value - word), word, value + 1);
		else
			run_fail("\"%s\" is no line of a configuration: [SECTION], KEY=VALUE",
				 word);
		if (strcmp(section, "[socket]") == 0 && strncmp(word, "path=", 5) == 0)
			(void)snprintf(d->socket, sizeof(d->socket), "%s", value + 1);
	}
	if (used >= n)
		run_fail("the configuration is too long");
}

static void place(struct call *c, struct its_daemon *its)
{
	const char *const *program = program_of(c), *io = "threads";
	bool disk = call_has(c, "disk"), nvme = false;
	char path[200];

	for (int i = 1; i < c->n; i++) {
		nvme |= strcmp(c->words[i], "[nvme]") == 0;
		io = strcmp(c->words[i], "io=io_uring") == 0 ? "io_uring" : io;
	}
	run_may_skip(true);
	if (nvme)
		disk_need(io);
	run_may_skip(false);
	daemon_place(&its->d, disk || nvme);
	if (!program)
		return;
	if (strcmp(program[0], "nodes") != 0)
		clock_hold(&its->d);
	its->d.program = program[1];
	if (strcmp(program[0], "still") == 0)
		its->d.beat = NULL;
	(void)snprintf(path, sizeof(path), "%s/faults", its->d.dir);
	if (strcmp(program[0], "faulty") == 0 &&
	    (io_plan_share(path, true) || setenv("KVTIER_TEST_FAULTS", path, 1)))
		run_fail("%s: %s", path, strerror(errno));
}

/* Until no tier that the daemon has is starting. */
static void start(struct its_daemon *its)
{
	static const char *const tiers[] = { "tiers.nvme.state", "tiers.redis.state" };
	char state[64];

	daemon_restart(&its->d);
	for (size_t i = 0; i < 2; i++)
		for (struct look look = look_at(&its->d, PATIENT_MS);;) {
			daemon_word(&its->d, tiers[i], state, sizeof(state));
			if (strcmp(state, "starting") != 0)
				break;
			if (!look_again(&look))
				run_fail("%s is \"starting\" all the time", tiers[i]);
		}
}

/* "daemon" starts it; "place" does not. Its directories stay where it has them. */
void daemon_does(struct call *c)
{
	struct its_daemon *its = thing_found(THING_DAEMON, c->words[0]);
	char config[4096];

	if (its) {
		(void)program_of(c);
	} else {
		its = thing_new(THING_DAEMON, c->words[0]);
		place(c, its);
	}
	config_text(c, &its->d, config, sizeof(config));
	daemon_configure(&its->d, config);
	if (strcmp(c->verb->name, "daemon") == 0)
		start(its);
}

/* As soon as its disk holds a transfer, so much time passes, in a process beside this one. */
static pid_t pass_beside(uint64_t ms)
{
	const pid_t pid = fork();

	if (pid != 0)
		return pid;
	while (io_held() == 0)
		nap_ms(1);
	for (; ms >= BEAT_MS; ms -= BEAT_MS)
		clock_pass_ms(BEAT_MS);
	_exit(0);
}

void start_does(struct call *c)
{
	const struct its_server *s = thing_found(THING_SERVER, c->words[0]);
	const int ms = call_ms(c, "passing", 0);
	const pid_t beside = ms ? pass_beside((uint64_t)ms) : 0;

	if (s)
		redis_restart(s->r);
	else
		start(thing_named(THING_DAEMON, c->words[0]));
	if (beside)
		(void)waitpid(beside, NULL, 0);
}

/* --- signals --- */

static int signal_named(const char *word)
{
	for (int i = 1; i < 32; i++)
		if (sigabbrev_np(i) && strcmp(sigabbrev_np(i), word) == 0)
			return i;
	run_fail("there is no signal %s: HUP, USR1, TERM", word);
}

/* kill and stop wait for its end, pause until it stands still; "signal" waits for nothing. */
void signal_does(struct call *c)
{
	static const struct {
		const char *verb;
		int number;
	} verbs[] = { { "kill", SIGKILL },
		      { "stop", SIGTERM },
		      { "pause", SIGSTOP },
		      { "continue", SIGCONT } };
	const struct its_server *s = thing_found(THING_SERVER, c->words[0]);
	struct its_daemon *d = s ? NULL : thing_named(THING_DAEMON, c->words[0]);
	size_t i = 0;

	while (i < 4 && strcmp(c->verb->name, verbs[i].verb) != 0)
		i++;
	if (s && i < 2)
		redis_kill(s->r);
	else if (s)
		redis_signal(s->r, i < 4 ? verbs[i].number : signal_named(c->words[1]));
	else if (d->d.pid <= 0)
		run_fail("%s does not run", c->words[0]);
	else if (i < 4)
		daemon_signal(&d->d, verbs[i].number);
	else if (kill(d->d.pid, signal_named(c->words[1])))
		run_fail("kill: %s", strerror(errno));
}

void ends_does(struct call *c)
{
	struct its_daemon *its = thing_named(THING_DAEMON, c->words[0]);
	const int status = daemon_wait(&its->d, call_ms(c, "within", PATIENT_MS));

	if (!WIFEXITED(status))
		run_fail("%s was ended by signal %d", c->words[0], WTERMSIG(status));
	call_check(c, WEXITSTATUS(status), "");
}

/* --- commands --- */

int ctl_run(char *const *words, int n, const char **ret_text)
{
	static char text[1 << 16];
	const size_t length = strlen(words[0]);
	const struct its_daemon *d;

	if (words[0][length - 1] == ':') {
		d = thing_named(THING_DAEMON, run_text("%.*s", (int)length - 1, words[0]));
		words++;
		n--;
	} else {
		d = daemon_first();
	}
	*ret_text = text;
	return daemon_ctl(&d->d, words_joined(words, n), text, sizeof(text));
}

void ctl_does(struct call *c)
{
	const char *text;
	const int code = ctl_run(c->words, c->n, &text);

	call_check(c, code, text);
}

void sh_does(struct call *c)
{
	static char text[1 << 16];
	const char *command = run_text("exec 2>&1;%s", words_joined(c->words, c->n));
	const int code = shell(command, text, sizeof(text));

	call_check(c, code, text);
}

void file_does(struct call *c)
{
	const char *text = c->n > 1 ? text_of(c->words[1]) : "";
	int fd;

	(void)unlink(c->words[0]);
	fd = open(c->words[0], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		run_fail("%s: %s", c->words[0], strerror(errno));
	(void)close(fd);
}

/* --- time --- */

/* "pass 8s until A == B": so much, again and again, with a little real time before each step. */
void pass_does(struct call *c)
{
	const uint64_t ms = us_of(c->words[0]) / 1000;
	const uint64_t most_ns = now_ns() + (1000 * ms + PATIENT_MS) * 1000000ull;
	const uint32_t nap = ms / 80 < NAP_MS_MAX ? (uint32_t)(ms / 80) : NAP_MS_MAX;
	struct call until = { .n = c->n - 2 };
	const char *seen;

	if (c->n == 1) {
		clock_pass_ms(ms);
		return;
	}
	memcpy(until.words, c->words + 2, sizeof(until.words) - 2 * sizeof(until.words[0]));
	for (;; clock_pass_ms(ms))
		for (uint32_t i = 0; i < 4; i++) {
			if (run_is_so(&until, &seen))
				return;
			if (now_ns() > most_ns)
				run_fail("it never became so: seen %s", seen);
			nap_ms(nap / 4 + 1);
		}
}

void hurry_does(struct call *c)
{
	const bool on = strcmp(c->words[0], "on") == 0;

	if (on != world.hurries)
		clock_hurry(world.hurries = on);
}

/* No op, no lease, no write that waits; and then no block in host memory either. */
void idle_does(struct call *c)
{
	const struct its_daemon *its = thing_named(THING_DAEMON, c->words[0]);
	const struct daemon *d = &its->d;
	struct look look = look_at(d, PATIENT_MS);
	char text[TEXT];

	if (d->program)
		clock_pass_ms(BEAT_MS);
	daemon_stat_becomes(d, "ops.outstanding", 0, PATIENT_MS);
	daemon_stat_becomes(d, "tiers.redis.queued_blocks", 0, PATIENT_MS);
	daemon_stat_becomes(d, "tiers.nvme.queued_blocks", 0, PATIENT_MS);
	do {
		if (daemon_ctl(d, "evict --all", text, sizeof(text)) != 0)
			run_fail("kvtierctl evict --all: %s", text);
		if (d->program)
			clock_pass_ms(BEAT_MS);
		if (!look_again(&look))
			run_fail("host memory does not become empty");
	} while (daemon_stat(d, "tiers.host.used_bytes") > 0);
	daemon_stat_becomes(d, "leases", 0, PATIENT_MS);
}
